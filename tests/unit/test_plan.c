/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Plans on the fake GPU: what is compiled, cached and loaded. One kernel goes through the real NVRTC
 * where there is one.
 */
#include "support/cmocka_all.h"

#include "machine.h"
#include "plan/context.h"
#include "plan/plan.h"
#include "plan/variant.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- preparing ---- */

typedef struct session {
  const char *model; /* its configuration; NULL: machine_yaml's */
  char dir[64];
  nsa_ctx *ctx;
} session;

/* The last warning that names a last resort. */
static char last_resort[512];

static void listen(void *user, int32_t level, const char *component, const char *text) {
  (void)user, (void)component;
  if (level == NSA_LOG_WARN && strstr(text, "is a last resort"))
    snprintf(last_resort, sizeof last_resort, "%s", text);
}

/* A deviceless context with a private cache and the fake compiler. */
static void open_session(session *s, const char *extra) {
  char yaml[1024];
  machine_overrides o;
  if (!s->dir[0]) {
    snprintf(s->dir, sizeof s->dir, "/tmp/nsa-test-plan-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
  }
  machine_yaml(&(machine_request){ .gpu = true }, yaml, sizeof yaml);
  machine_overrides_init(&o, s->dir, extra);
  nsa_options options = INIT(nsa_options, .yaml_text = s->model ? s->model : yaml,
                             .overrides = o.list, .arch = "sm_90a", .log = listen);
  machine_expect("nsa_create", nsa_create(NULL, &options, &s->ctx), NSA_OK, NULL);
}

static void close_session(session *s) {
  nsa_destroy(s->ctx);
  machine_remove(s->dir);
  s->dir[0] = 0;
}

static nsa_problem small_problem(void) {
  /* Beyond 64 tokens the selection is a real one. */
  return INIT(nsa_problem, .max_tokens = 1000, .max_seqs = 2);
}

static int32_t missing(session *s) {
  nsa_problem problem = small_problem();
  nsa_caps caps = NSA_CAPS_INIT;
  machine_expect("nsa_query", nsa_query(s->ctx, &problem, &caps), NSA_OK, NULL);
  assert_int_equal(caps.supported, 1);
  return caps.missing_kernels;
}

typedef struct watch {
  int calls, cancel_at;
  int64_t done, most, total; /* total: the most */
  const nsa_ctx *ctx;        /* others may ask it meanwhile; NULL: nobody does */
} watch;

static int32_t observe(void *user, int64_t done, int64_t total, const char *what) {
  watch *w = user;
  /* It counts anew for a device with choices of its own. */
  assert_true(what && (done >= w->done || !done) && done <= total);
  w->done = done;
  if (w->ctx) assert_null(w->ctx->target.device); /* as before, whatever device it compiles for */
  if (done > w->most) w->most = done;
  if (total > w->total) w->total = total;
  return ++w->calls == w->cancel_at;
}

static void test_prepare(void **state) {
  session s = { 0 };
  nsa_problem problem = small_problem();
  watch w = { 0 };
  open_session(&s, NULL);
  int32_t kernels = missing(&s);
  w.ctx = s.ctx;
  assert_int_equal(kernels, 6); /* compress, compressed, importance, select, window, selected */
  machine_expect("prepare", nsa_prepare(s.ctx, &problem, 1, observe, &w), NSA_OK, NULL);
  assert_int_equal(w.most, kernels);
  assert_int_equal(missing(&s), 0);
  w = (watch){ 0 };
  machine_expect("again", nsa_prepare(s.ctx, &problem, 1, observe, &w), NSA_OK, NULL);
  assert_int_equal(w.calls, 0);
  nsa_plan *plan = (nsa_plan *)(void *)&w;
  machine_expect("no device", nsa_plan_create(s.ctx, &problem, NULL, NULL, &plan), NSA_E_NO_DEVICE,
                 "nsa_prepare");
  assert_null(plan);
  nsa_destroy(s.ctx);
  open_session(&s, "runtime.jit=never"); /* another process: from the disk */
  assert_int_equal(missing(&s), 0);
  machine_expect("from disk", nsa_prepare(s.ctx, &problem, 1, observe, &w), NSA_OK, NULL);
  assert_int_equal(w.calls, 0);
  problem.max_probe_rows = 1; /* one more kernel, which nobody has */
  machine_expect("never", nsa_prepare(s.ctx, &problem, 1, NULL, NULL), NSA_E_NOT_PREPARED,
                 "runtime.jit is never and no cache has: select_importance (sm_90a)");
  close_session(&s);
}

static void test_cancel(void **state) {
  session s = { 0 };
  nsa_problem problem = small_problem();
  open_session(&s, "runtime.compile_jobs=1");
  int32_t kernels = missing(&s);
  watch w = { .cancel_at = 1 };
  machine_expect("at once", nsa_prepare(s.ctx, &problem, 1, observe, &w), NSA_E_CANCELLED,
                 "cancelled after 0 of 6");
  assert_int_equal(missing(&s), kernels);
  setenv("FAKE_NVRTC_MS", "30", 1);
  w = (watch){ .cancel_at = 3 }; /* after the second kernel, while the third is compiled */
  machine_expect("later", nsa_prepare(s.ctx, &problem, 1, observe, &w), NSA_E_CANCELLED,
                 "cancelled after");
  unsetenv("FAKE_NVRTC_MS");
  assert_true(missing(&s) <= kernels - 2);
  nsa_destroy(s.ctx);
  open_session(&s, NULL);
  assert_true(missing(&s) <= kernels - 2); /* on the disk, too */
  close_session(&s);
}

/* One kernel does not compile, the others are kept; the text names it, although the folder can no
 * longer be written and says so as well. */
static void test_bad_kernel(void **state) {
  session s = { 0 };
  nsa_problem problem = small_problem();
  setenv("FAKE_NVRTC_BAD", "attend_window_sm90", 1);
  open_session(&s, "runtime.compile_jobs=1");
  char kernels[128];
  snprintf(kernels, sizeof kernels, "%s/kernels", s.dir);
  rmdir(kernels);
  machine_record()->compilations = 0;
  machine_expect("bad kernel", nsa_prepare(s.ctx, &problem, 1, NULL, NULL), NSA_E_COMPILE,
                 "kernel attend_window_sm90 for sm_90a does not compile");
  unsetenv("FAKE_NVRTC_BAD");
  assert_int_equal(machine_record()->compilations, 2); /* smaller tiles are not tried */
  assert_true(missing(&s) < 6);
  close_session(&s);
}

/* A kernel that spills is refused, and smaller tiles are used. */
static void test_refused_kernel(void **state) {
  session s = { 0 };
  nsa_problem problem = small_problem();
  setenv("FAKE_NVRTC_FAT", "attend_window_sm90", 1);
  open_session(&s, "runtime.compile_jobs=1");
  machine_record()->spills = 1;
  machine_expect("smaller tiles", nsa_prepare(s.ctx, &problem, 1, NULL, NULL), NSA_OK, NULL);
  assert_true(machine_record()->spills <= 0);
  assert_int_equal(missing(&s), 0);
  close_session(&s);
  open_session(&s, "runtime.compile_jobs=1");
  machine_record()->spills = 100;
  machine_expect("the portable kernel", nsa_prepare(s.ctx, &problem, 1, NULL, NULL), NSA_OK, NULL);
  assert_int_equal(machine_record()->spills, 100 - 2 * NSAI_SMALLEST_TILES); /* and for the H200 */
  assert_string_equal(last_resort, "");
  close_session(&s);
  machine_record()->spills = 100;
  setenv("FAKE_NVRTC_BAD", "attend_compressed_sm90", 1); /* a real failure beside it is the cause */
  open_session(&s, "runtime.compile_jobs=2");
  setenv("FAKE_NVRTC_MS", "20", 1);
  machine_expect("both", nsa_prepare(s.ctx, &problem, 1, NULL, NULL), NSA_E_COMPILE,
                 "kernel attend_compressed_sm90 for sm_90a does not compile");
  assert_int_equal(machine_record()->spills, 99);
  unsetenv("FAKE_NVRTC_MS");
  unsetenv("FAKE_NVRTC_BAD");
  unsetenv("FAKE_NVRTC_FAT");
  machine_record()->spills = 0;
  close_session(&s);
}

/* Prepares a problem of which one kernel never compiles well, with the smallest tiles neither. */
static void prepare_last_resort(session *s, const char *kernel, bool serial,
                                const nsa_problem *problem) {
  char begin[128];
  snprintf(begin, sizeof begin, "kernel %s for sm_90a is a last resort: ", kernel);
  setenv("FAKE_NVRTC_FAT", kernel, 1);
  open_session(s, "runtime.compile_jobs=1");
  last_resort[0] = 0;
  machine_record()->serial = serial;
  machine_record()->spills = 100;
  machine_expect("last resort", nsa_prepare(s->ctx, problem, 1, NULL, NULL), NSA_OK, NULL);
  /* Every size was tried first; what serves is in the cache when it is the H200's turn. */
  assert_in_range(machine_record()->spills, 100 - 1 - 2 * NSAI_LAST_RESORT,
                  100 - 1 - NSAI_LAST_RESORT);
  if (strncmp(last_resort, begin, strlen(begin)) != 0 ||
      !strstr(last_resort, serial ? "serialised its wgmma (ptxas info    : (C7510)"
                                  : "it spills 16 bytes of registers (255 registers, 8 bytes"))
    fail_msg("the log has: %s", last_resort);
  machine_record()->spills = 0;
  machine_record()->serial = false;
  unsetenv("FAKE_NVRTC_FAT");
}

/* Where the smallest tiles spill as well, the kernel is taken: no legal model is refused. */
static void test_last_resort(void **state) {
  session s = { 0 };
  nsa_problem problem = small_problem();
  char story[16384];
  prepare_last_resort(&s, "compress_mean", false, &problem);
  assert_int_equal(missing(&s), 0);
  nsa_explain(s.ctx, &problem, story, sizeof story);
  assert_non_null(strstr(story, "register fallback 3 of 3"));
  assert_non_null(strstr(story, "bytes of shared memory, a last resort: spills 16 bytes of reg"));
  nsa_destroy(s.ctx);
  open_session(&s, "runtime.jit=never"); /* another process, without a compiler */
  assert_int_equal(missing(&s), 0);
  machine_expect("from disk", nsa_prepare(s.ctx, &problem, 1, NULL, NULL), NSA_OK, NULL);
  close_session(&s);
  prepare_last_resort(&s, "compress_mean", true, &problem);
  assert_int_equal(missing(&s), 0);
  close_session(&s);
}

/* A kernel that is the same with all tiles: what the last resort has put into the cache is refused
 * there until it is the last resort again, and nothing is compiled for the tiles before it. */
static void test_last_resort_of_one_size(void **state) {
  session s = { 0 };
  nsa_problem problem = small_problem();
  problem.selection = NSA_SELECT_BLOCKS;
  prepare_last_resort(&s, "data_sort_blocks", false, &problem);
  nsa_destroy(s.ctx);
  open_session(&s, NULL);
  problem.max_probe_rows = 1; /* one more kernel */
  const int before = machine_record()->compilations;
  machine_expect("probe", nsa_prepare(s.ctx, &problem, 1, NULL, NULL), NSA_OK, NULL);
  assert_int_equal(machine_record()->compilations, before + 1);
  close_session(&s);
}

/* The kernels of a decode step that a device of so many multiprocessors would still compile. */
static int32_t missing_with(session *s, const nsa_problem *problem, int32_t sms) {
  nsa_caps caps = NSA_CAPS_INIT;
  s->ctx->target.sms = sms;
  machine_expect("nsa_query", nsa_query(s->ctx, problem, &caps), NSA_OK, NULL);
  s->ctx->target.sms = 0;
  return caps.missing_kernels;
}

/* How many sequences a form of a decode step takes depends on the number of multiprocessors, which
 * an architecture does not tell: what is prepared serves all of its devices. */
static void test_prepare_serves_every_device(void **state) {
  /* With D 128 and 16 heads a group consumer groups depend on it, too. */
  session s = { .model = "nsa: 1\nmodel: {heads: 64, kv_heads: 4, head_dim: 128}\n" };
  const int32_t seqs[] = { 1, 3, 16, 32, 100 };
  open_session(&s, NULL);
  for (size_t i = 0; i < sizeof seqs / sizeof *seqs; i++)
    for (int32_t q_len = 1; q_len <= 4; q_len += 3) {
      nsa_problem problem = INIT(nsa_problem, .op = NSA_OP_DECODE, .max_seqs = seqs[i],
                                 .max_q_len = q_len, .max_kv_len = 65536);
      machine_expect("prepare", nsa_prepare(s.ctx, &problem, 1, NULL, NULL), NSA_OK, NULL);
      for (int32_t sms = 14; sms <= 256; sms++) /* from a seventh of an H100 on */
        if (missing_with(&s, &problem, sms))
          fail_msg("%d sequences of %d tokens: a device of %d multiprocessors lacks kernels",
                   seqs[i], q_len, sms);
    }
  close_session(&s);
  open_session(&s, "device.sms=132"); /* for this device alone */
  nsa_problem problem =
      INIT(nsa_problem, .op = NSA_OP_DECODE, .max_seqs = 32, .max_q_len = 1, .max_kv_len = 65536);
  assert_int_equal(s.ctx->target.sms, 132);
  machine_expect("prepare", nsa_prepare(s.ctx, &problem, 1, NULL, NULL), NSA_OK, NULL);
  assert_int_equal(missing_with(&s, &problem, 132), 0);
  assert_true(missing_with(&s, &problem, 16) > 0);
  close_session(&s);
}

/* Kernels of a plan that share a lock file do not wait for each other: the waits of 3 s each would
 * sum up over these plans. */
static void test_no_waiting(void **state) {
  session s = { 0 };
  time_t start = time(NULL);
  open_session(&s, NULL);
  for (int i = 1; i <= 12; i++) {
    char window[32];
    nsa_problem problem = small_problem();
    snprintf(window, sizeof window, "model.window=%d", i);
    close_session(&s);
    open_session(&s, window);
    machine_expect("prepare", nsa_prepare(s.ctx, &problem, 1, NULL, NULL), NSA_OK, NULL);
  }
  close_session(&s);
  assert_true(time(NULL) - start < 6);
}

/* What another process does: it holds every lock file of the cache. Returns how many it took. */
static int hold_locks(const char *dir, int *fds) {
  int count = 0;
  for (int i = 0; i < 256; i++) {
    char path[128];
    snprintf(path, sizeof path, "%s/kernels/.lock-%02x", dir, i);
    fds[i] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    count += fds[i] >= 0 && flock(fds[i], LOCK_EX | LOCK_NB) == 0;
  }
  return count;
}

typedef struct waiter {
  int waits, cancel_at;
  int *fds; /* closed at the third wait; NULL: never */
} waiter;

static int32_t observe_waiting(void *user, int64_t done, int64_t total, const char *what) {
  waiter *w = user;
  assert_true(done <= total);
  if (strcmp(what, "waiting for another process") != 0) return 0;
  assert_int_equal(done, 0);
  if (++w->waits == 3 && w->fds)
    for (int i = 0; i < 256; i++) close(w->fds[i]);
  return w->waits == w->cancel_at;
}

/* Waiting for others ends when they are done, when the host cancels, and once for all kernels when
 * the time is over. */
static void test_waiting(void **state) {
  session s = { 0 };
  nsa_problem problem = small_problem();
  int fds[256];
  open_session(&s, NULL);
  assert_int_equal(hold_locks(s.dir, fds), 256);
  waiter w = { .cancel_at = 2 };
  machine_expect("cancel", nsa_prepare(s.ctx, &problem, 1, observe_waiting, &w), NSA_E_CANCELLED,
                 "while another process compiles the same kernels, after 0 of 6");
  assert_int_equal(w.waits, 2);
  w = (waiter){ .fds = fds };
  machine_expect("wait", nsa_prepare(s.ctx, &problem, 1, observe_waiting, &w), NSA_OK, NULL);
  assert_int_equal(w.waits, 3);
  problem.max_probe_rows = 1;
  problem.selection = NSA_SELECT_BLOCKS; /* other kernels */
  assert_int_equal(hold_locks(s.dir, fds), 256);
  time_t start = time(NULL);
  w = (waiter){ 0 };
  machine_expect("time over", nsa_prepare(s.ctx, &problem, 1, observe_waiting, &w), NSA_OK, NULL);
  assert_in_range(time(NULL) - start, 2, 5);
  for (int i = 0; i < 256; i++) close(fds[i]);
  close_session(&s);
}

/* A forward pass, one that also has a kernel of a probe, and one whose selection is given. */
static void three_problems(nsa_problem problems[3]) {
  for (int i = 0; i < 3; i++) problems[i] = small_problem();
  problems[1].max_probe_rows = 1;
  problems[2].selection = NSA_SELECT_BLOCKS;
}

/* The kernels of several problems are compiled at once, each one once, and the same ones as of one
 * problem after the other. */
static void test_prepare_many(void **state) {
  session s = { 0 };
  nsa_problem problems[3];
  watch w = { 0 };
  int before = machine_record()->compilations;
  three_problems(problems);
  open_session(&s, "runtime.compile_jobs=1");
  for (int i = 0; i < 3; i++)
    machine_expect("each", nsa_prepare(s.ctx, &problems[i], 1, observe, &w), NSA_OK, NULL);
  const int kernels = machine_record()->compilations - before;
  const int64_t most = w.total; /* of the first problem */
  assert_true(kernels > most);
  close_session(&s);
  before += kernels;
  w = (watch){ 0 };
  open_session(&s, "runtime.compile_jobs=2");
  machine_expect("all", nsa_prepare(s.ctx, problems, 3, observe, &w), NSA_OK, NULL);
  assert_int_equal(machine_record()->compilations - before, kernels);
  assert_int_equal(w.total, kernels);
  assert_int_equal(w.done, kernels);
  w = (watch){ 0 };
  machine_expect("again", nsa_prepare(s.ctx, problems, 3, observe, &w), NSA_OK, NULL);
  assert_int_equal(w.calls, 0);
  nsa_destroy(s.ctx);
  open_session(&s, "runtime.jit=never");
  machine_expect("from disk", nsa_prepare(s.ctx, problems, 3, NULL, NULL), NSA_OK, NULL);
  close_session(&s);
}

/* What does not succeed at once ends as it does with one problem after the other. */
static int32_t cancel_at_end(void *user, int64_t done, int64_t total, const char *what) {
  return done == total;
}

static void test_prepare_many_fails(void **state) {
  session s = { 0 };
  nsa_problem problems[3];
  watch w = { .cancel_at = 1 };
  int fds[256];
  three_problems(problems);
  open_session(&s, "runtime.compile_jobs=2");
  machine_expect("cancel", nsa_prepare(s.ctx, problems, 3, observe, &w), NSA_E_CANCELLED,
                 "cancelled after 0 of");
  setenv("FAKE_NVRTC_BAD", "select_importance", 1);
  machine_expect("bad kernel", nsa_prepare(s.ctx, problems, 3, NULL, NULL), NSA_E_COMPILE,
                 "kernel select_importance for sm_90a does not compile");
  unsetenv("FAKE_NVRTC_BAD");
  assert_int_equal(hold_locks(s.dir, fds), 256);
  waiter other = { .fds = fds }; /* another process compiles all */
  machine_expect("wait", nsa_prepare(s.ctx, problems, 3, observe_waiting, &other), NSA_OK, NULL);
  assert_int_equal(other.waits, 3);
  close_session(&s);
  open_session(&s, "runtime.compile_jobs=2");
  setenv("FAKE_NVRTC_FAT", "attend_window_sm90", 1);
  machine_record()->spills = 2; /* at once, and when it is the problem's turn */
  machine_expect("smaller tiles", nsa_prepare(s.ctx, problems, 3, NULL, NULL), NSA_OK, NULL);
  assert_true(machine_record()->spills <= 0);
  machine_record()->spills = 0;
  assert_int_equal(missing(&s), 0);
  close_session(&s);
  open_session(
      &s,
      "runtime.compile_jobs=2"); /* a refused kernel does not hide that the host has cancelled */
  machine_record()->spills = 1;
  machine_expect("cancel behind it", nsa_prepare(s.ctx, problems, 3, cancel_at_end, NULL),
                 NSA_E_CANCELLED, "kernels; those are kept");
  unsetenv("FAKE_NVRTC_FAT");
  machine_record()->spills = 0;
  close_session(&s);
  open_session(&s, "runtime.compile_jobs=2");
  problems[1].max_tokens = -1;
  machine_expect("bad problem", nsa_prepare(s.ctx, problems, 3, NULL, NULL), NSA_E_ARG,
                 "max_tokens");
  assert_int_equal(missing(&s), 0); /* of the one before it */
  close_session(&s);
}

/* The real compiler, on the smallest kernel. */
static void test_real_compiler(void **state) {
  session s = { 0 };
  char cache[128];
  snprintf(s.dir, sizeof s.dir, "/tmp/nsa-test-plan-XXXXXX");
  assert_non_null(mkdtemp(s.dir));
  snprintf(cache, sizeof cache, "runtime.cache_dir=%s", s.dir);
  const char *const overrides[] = { cache, NULL };
  nsa_options options =
      INIT(nsa_options, .yaml_text = "nsa: 1\nmodel: {heads: 1, kv_heads: 1, head_dim: 16}\n",
           .overrides = overrides, .arch = "sm_80");
  nsa_problem problem = INIT(nsa_problem, .op = NSA_OP_DENSE, .max_tokens = 64, .max_seqs = 1);
  machine_expect("nsa_create", nsa_create(NULL, &options, &s.ctx), NSA_OK, NULL);
  watch w = { 0 };
  nsa_status status = nsa_prepare(s.ctx, &problem, 1, observe, &w);
  if (status != NSA_E_NO_COMPILER) {
    machine_expect("prepare", status, NSA_OK, NULL);
    assert_int_equal(w.done, 1);
    w.calls = 0;
    machine_expect("again", nsa_prepare(s.ctx, &problem, 1, observe, &w), NSA_OK, NULL);
    assert_int_equal(w.calls, 0);
  }
  close_session(&s);
}

/* ---- policies on a device ---- */

static void test_policies(void **state) {
  static const char *const jits[] = { "runtime.jit=never", "runtime.jit=prepare_only" };
  for (int i = 0; i < 2; i++) {
    session s = { 0 };
    char yaml[1024];
    nsa_problem problem = small_problem();
    nsa_plan *plan = NULL;
    machine_yaml(&(machine_request){ .gpu = true }, yaml, sizeof yaml);
    machine_reopen(&s.ctx, s.dir, &(machine_reopening){ yaml, jits[i], NULL, NULL });
    machine_expect("plan", nsa_plan_create(s.ctx, &problem, NULL, NULL, &plan), NSA_E_NOT_PREPARED,
                   "attend_compressed_sm90, attend_window_sm90, attend_selected_sm90_mma, "
                   "select_importance, select_topn, compress_mean (sm_90a)");
    assert_null(plan);
    machine_expect("prepare", nsa_prepare(s.ctx, &problem, 1, NULL, NULL),
                   i ? NSA_OK : NSA_E_NOT_PREPARED, NULL);
    machine_expect("plan", nsa_plan_create(s.ctx, &problem, NULL, NULL, &plan),
                   i ? NSA_OK : NSA_E_NOT_PREPARED, NULL);
    nsa_plan_destroy(plan);
    close_session(&s);
  }
  assert_int_equal(machine_record()->loads, machine_record()->unloads);
}

/* Kernels are loaded once for all plans of a context. */
static void test_shared_kernels(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ .gpu = true });
  int loads = machine_record()->loads;
  /* The same code at another length. */
  nsa_problem problem = INIT(nsa_problem, .max_tokens = 32, .max_seqs = 1);
  nsa_plan *plan;
  watch w = { 0 };
  machine_expect("plan", nsa_plan_create(m.ctx, &problem, observe, &w, &plan), NSA_OK, NULL);
  assert_int_equal(machine_record()->loads, loads);
  assert_int_equal(w.calls, 0);
  nsa_plan_destroy(plan);
  machine_free(&m);
  assert_int_equal(machine_record()->retained, 0);
  assert_int_equal(machine_record()->loads, machine_record()->unloads);
}

typedef struct warnings {
  int count;
  char last[512];
} warnings;

static void keep_warnings(void *user, int32_t level, const char *component, const char *text) {
  warnings *w = user;
  (void)component;
  if (level != NSA_LOG_WARN) return;
  w->count++;
  snprintf(w->last, sizeof w->last, "%s", text);
}

/* A plan from a filled cache, after the driver was exchanged for an older one: so many images do
 * not load. */
static nsa_status plan_with_bad_images(char dir[64], const char *extra, int bad, warnings *w) {
  char yaml[1024];
  nsa_problem problem = small_problem();
  nsa_ctx *ctx = NULL;
  nsa_plan *plan;
  *w = (warnings){ 0 };
  machine_yaml(&(machine_request){ .gpu = true }, yaml, sizeof yaml);
  machine_reopen(&ctx, dir, &(machine_reopening){ yaml, extra, keep_warnings, w });
  machine_record()->fail_loads = bad;
  machine_record()->compilations = 0;
  nsa_status status = nsa_plan_create(ctx, &problem, NULL, NULL, &plan);
  machine_record()->fail_loads = 0;
  nsa_plan_destroy(plan);
  nsa_destroy(ctx);
  return status;
}

/* An image of the cache that does not load is compiled once more; a new one is not. */
static void test_images_that_do_not_load(void **state) {
  char dir[64] = "";
  warnings w;
  machine_expect("new", plan_with_bad_images(dir, NULL, 1, &w), NSA_E_CUDA, "cuLibraryLoadData");
  assert_int_equal(machine_record()->compilations, 6);
  machine_expect("cached", plan_with_bad_images(dir, NULL, 1, &w), NSA_OK, NULL);
  assert_int_equal(machine_record()->compilations, 1);
  assert_int_equal(w.count, 1);
  assert_non_null(strstr(w.last, "kernel attend_compressed_sm90 of the cache does not load "
                                 "(cuLibraryLoadData: "));
  assert_non_null(strstr(w.last, ".nsak was removed"));
  machine_expect("stored", plan_with_bad_images(dir, "runtime.jit=never", 0, &w), NSA_OK, NULL);
  machine_expect("twice", plan_with_bad_images(dir, NULL, 2, &w), NSA_E_CUDA, "cuLibraryLoadData");
  machine_expect("never", plan_with_bad_images(dir, "runtime.jit=never", 1, &w), NSA_E_NOT_PREPARED,
                 "kernel attend_compressed_sm90 of the cache does not load (cuLibraryLoadData");
  machine_remove(dir);
  assert_int_equal(machine_record()->loads, machine_record()->unloads);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_prepare),
    cmocka_unit_test(test_cancel),
    cmocka_unit_test(test_bad_kernel),
    cmocka_unit_test(test_refused_kernel),
    cmocka_unit_test(test_last_resort),
    cmocka_unit_test(test_last_resort_of_one_size),
    cmocka_unit_test(test_prepare_serves_every_device),
    cmocka_unit_test(test_no_waiting),
    cmocka_unit_test(test_real_compiler),
    cmocka_unit_test(test_waiting),
    cmocka_unit_test(test_prepare_many),
    cmocka_unit_test(test_prepare_many_fails),
    cmocka_unit_test(test_images_that_do_not_load),
    cmocka_unit_test(test_policies),
    cmocka_unit_test(test_shared_kernels),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

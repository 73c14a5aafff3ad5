/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The public API from many threads: contexts come and go, plans are made and run, kernels are
 * prepared, on the CPU device, for an architecture alone, and on the GPU of the fake driver. Meanwhile
 * the process forks every 20 ms, and each child uses what it inherited. Nothing may race (TSan), hang,
 * crash, or give another result than on one thread.
 *
 *   test_threads [SECONDS [THREADS]]    3 seconds with 8 threads
 */
#include "support/cmocka_all.h"

#include "../unit/machine.h"

#include <nsa/tune.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FORK_MS 20
#define CHILD_SECONDS 30 /* a child takes milliseconds, under TSan on a busy machine a second */
#define MAX_THREADS 64

#define MAX_TOKENS 64

/* TSan's own allocator and its dlopen take locks that a fork leaves locked (seen with clang 14 and
 * 16): under it children neither allocate nor free. */
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define CHILD_MAY_ALLOCATE 0
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define CHILD_MAY_ALLOCATE 0
#endif
#ifndef CHILD_MAY_ALLOCATE
#define CHILD_MAY_ALLOCATE 1
#endif

static int seconds = 3, thread_count = 8;

/* ---- what the threads share ---- */

typedef enum kind { CPU, ARCH, GPU, KINDS } kind;

static const char *const kind_names[] = { "CPU", "sm_90a", "GPU" };

typedef struct shared {
  char dir[64]; /* cache folder of all contexts */
  char yaml[KINDS][1024];
  nsa_ctx *ctx[KINDS];
  nsa_plan *plan[KINDS]; /* of PLAN_PROBLEM; NULL for ARCH, which only compiles */
  atomic_bool stop;
  atomic_int rounds, children;
} shared;

static shared all;

static const nsa_problem PLAN_PROBLEM = { .struct_size = sizeof(nsa_problem),
                                          .max_tokens = MAX_TOKENS,
                                          .max_seqs = 2 };

/* Ends the process: cmocka's own checks belong to the thread that runs the test. */
static void must(bool good, const char *what, kind k) {
  if (good) return;
  fprintf(stderr, "%s, %s: %s\n", kind_names[k], what, nsa_last_error());
  _exit(1);
}

static void be_silent(void *user, int32_t level, const char *component, const char *text) {
  (void)user, (void)level, (void)component, (void)text;
}

/* Models with another window have kernels of their own, which are compiled; 0: the shared contexts'. */
static nsa_status create(kind k, int32_t window, nsa_ctx **ctx) {
  nsa_options o = INIT(nsa_options, .yaml_text = all.yaml[k], .log = be_silent);
  machine_overrides overrides;
  char extra[32];
  snprintf(extra, sizeof extra, "model.window=%d", window);
  machine_overrides_init(&overrides, all.dir, window ? extra : NULL);
  if (k != CPU) o.overrides = overrides.list;
  if (k == ARCH) o.arch = "sm_90a";
  if (k == GPU) o.device = "cuda:1";
  return nsa_create(NULL, &o, ctx);
}

/* ---- one thread ---- */

/* A thread's own tensors: `o` is what one thread alone computes of them. */
typedef struct worker {
  pthread_t thread;
  int index;
  toy toy[KINDS];
  float *expected;
  nsa_exec exec;
} worker;

static void worker_init(worker *w, int index) {
  static const int32_t lengths[] = { 17, 23 };
  nsa_caps caps = NSA_CAPS_INIT;
  memset(w, 0, sizeof *w);
  w->index = index;
  for (int k = 0; k < KINDS; k++) {
    nsai_model model = toy_model(NSAI_PHI_MEAN);
    model.dtype = k == CPU ? NSA_F32 : NSA_BF16;
    toy_init(&w->toy[k], &model, 2, lengths, lengths);
  }
  w->exec = (nsa_exec)NSA_EXEC_INIT;
  must(nsa_plan_caps(all.plan[GPU], &caps) == NSA_OK, "nsa_plan_caps", GPU);
  w->exec.workspace_bytes = caps.workspace_bytes;
  w->exec.workspace = aligned_alloc(caps.workspace_align, caps.workspace_bytes); /* never touched */
  toy *t = &w->toy[CPU];
  const size_t bytes = (size_t)toy_count(&t->io.o) * sizeof(float);
  w->expected = malloc(bytes);
  must(w->exec.workspace && w->expected, "memory", CPU);
  must(nsa_forward(all.plan[CPU], &w->exec, &t->batch, &t->io) == NSA_OK, "alone", CPU);
  memcpy(w->expected, t->io.o.data, bytes);
}

static void worker_free(worker *w) {
  for (int k = 0; k < KINDS; k++) toy_free(&w->toy[k]);
  free(w->exec.workspace);
  free(w->expected);
}

/* Makes a plan, which a context for an architecture refuses: `*plan` is NULL then. */
static void make_plan(kind k, nsa_ctx *ctx, const nsa_problem *problem, nsa_plan **plan) {
  const nsa_status wanted = k == ARCH ? NSA_E_NO_DEVICE : NSA_OK;
  must(nsa_plan_create(ctx, problem, NULL, NULL, plan) == wanted, "nsa_plan_create", k);
}

/* Runs a plan of PLAN_PROBLEM, if there is one; on the CPU device the result has to be the known one. */
static void run(worker *w, kind k, const nsa_plan *plan) {
  toy *t = &w->toy[k];
  const size_t bytes = (size_t)toy_count(&t->io.o) * sizeof(float);
  if (!plan) return;
  if (k == CPU) memset(t->io.o.data, 0xff, bytes);
  must(nsa_forward(plan, &w->exec, &t->batch, &t->io) == NSA_OK, "nsa_forward", k);
  must(k != CPU || !memcmp(t->io.o.data, w->expected, bytes), "the result is another one", k);
}

/* A tuning record of one of a few problems, with a candidate of this round. */
static void import_record(nsa_ctx *ctx, kind k, int round) {
  char text[2048];
  if (k == CPU) return; /* has no records */
  snprintf(text, sizeof text,
           "nsa_records: 1\nrecords:\n"
           "  - device: {name: \"Fake H200\", arch: \"sm_90a\", sms: 132}\n"
           "    problem: {key: \"problem%d\", bucket: 64}\n"
           "    environment: {library: \"0\", templates: \"0\", driver: \"0\", compiler: \"0\"}\n"
           "    measured: {date: \"2026-01-02T03:04:05Z\", level: \"normal\", complete: true,\n"
           "      overlap_r: 0.25, union4: 32, union8: 38, clock_mhz: [1900, 1980],\n"
           "      temperature_c: [40, 60]}\n"
           "    baselines: []\n"
           "    stages: {attend_window: [{candidate: \"rows=%d\", state: ok, ms: 1, spread: 0,\n"
           "      rounds: 3, chosen: true, default: false, note: \"\"}]}\n...\n",
           round % 5, round % 40);
  must(nsa_records_import(ctx, text, strlen(text)) == NSA_OK, "nsa_records_import", k);
}

/* Everything that a context of many threads answers. */
static void use_shared(worker *w, kind k, int round) {
  nsa_ctx *ctx = all.ctx[k];
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_plan *plan;
  uint8_t digest[16];
  char text[512];
  nsa_problem p = PLAN_PROBLEM;
  p.max_tokens = 16 + (round * 7 + w->index) % 200;
  must(nsa_query(ctx, &p, &caps) == NSA_OK, "nsa_query", k);
  must(nsa_prepare(ctx, &p, 1, NULL, NULL) == NSA_OK, "nsa_prepare", k);
  make_plan(k, ctx, &p, &plan);
  must(!plan || nsa_plan_caps(plan, &caps) == NSA_OK, "nsa_plan_caps", k);
  nsa_explain(ctx, &p, text, sizeof text);
  nsa_problem_string(ctx, &p, text, sizeof text);
  nsa_config_dump(ctx, 1, text, sizeof text);
  if (round % 4 == 0) import_record(ctx, k, round);
  must(nsa_records_reload(ctx) == NSA_OK, "nsa_records_reload", k);
  must(nsa_records_digest(ctx, digest) == NSA_OK, "nsa_records_digest", k);
  nsa_plan_destroy(plan);
  p.max_tokens = -1; /* each thread has its own error */
  must(nsa_query(ctx, &p, &caps) == NSA_E_ARG, "a bad problem", k);
  run(w, k, all.plan[k]);
}

/* The life of a context; on every other round the plan outlives it. */
static void use_own(worker *w, kind k, int round) {
  nsa_ctx *ctx;
  nsa_plan *plan;
  must(create(k, k == CPU ? 0 : 1 + round % 1000, &ctx) == NSA_OK, "nsa_create", k);
  must(nsa_prepare(ctx, &PLAN_PROBLEM, 1, NULL, NULL) == NSA_OK, "nsa_prepare", k);
  make_plan(k, ctx, &PLAN_PROBLEM, &plan);
  run(w, k, plan);
  if (round % 2) nsa_destroy(ctx);
  run(w, k, plan);
  nsa_plan_destroy(plan);
  if (round % 2 == 0) nsa_destroy(ctx);
}

static void *work(void *user) {
  worker *w = user;
  for (int round = w->index; !all.stop; round++) {
    const kind k = (kind)(round % KINDS);
    if (round / KINDS % 2)
      use_own(w, k, round);
    else
      use_shared(w, k, round);
    all.rounds++;
  }
  return NULL;
}

/* ---- children ---- */

/* What a child may ask of its parent's contexts. Ends the child where something is not refused as
 * context.h says. */
static void use_inherited(worker *w, kind k) {
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_plan *plan = NULL;
  uint8_t digest[16];
  char text[512];
  nsa_ctx *ctx = all.ctx[k];
  toy *t = &w->toy[k];
  must(nsa_query(ctx, &PLAN_PROBLEM, &caps) == NSA_E_FORKED, "nsa_query", k);
  must(nsa_prepare(ctx, &PLAN_PROBLEM, 1, NULL, NULL) == NSA_E_FORKED, "nsa_prepare", k);
  must(nsa_plan_create(ctx, &PLAN_PROBLEM, NULL, NULL, &plan) == NSA_E_FORKED && !plan,
       "nsa_plan_create", k);
  if (all.plan[k]) {
    must(nsa_plan_caps(all.plan[k], &caps) == NSA_E_FORKED, "nsa_plan_caps", k);
    must(nsa_forward(all.plan[k], &w->exec, &t->batch, &t->io) == NSA_E_FORKED, "nsa_forward", k);
  }
  must(strstr(nsa_last_error(), "fork()") != NULL, "the error's text", k);
  must(nsa_records_reload(ctx) == NSA_E_FORKED, "nsa_records_reload", k);
  must(nsa_records_digest(ctx, digest) == NSA_E_FORKED, "nsa_records_digest", k);
  nsa_explain(ctx, &PLAN_PROBLEM, text, sizeof text);
  must(strstr(text, "fork()") != NULL, "nsa_explain", k);
  must(nsa_config_dump(ctx, 0, text, sizeof text) == 0, "nsa_config_dump", k);
  if (!CHILD_MAY_ALLOCATE) return;
  nsa_plan_destroy(all.plan[k]);
  nsa_destroy(ctx);
}

/* A fork happens in the middle of anything that the other threads do. */
static void live_as_child(worker *w, int number) {
  nsa_ctx *ctx;
  alarm(CHILD_SECONDS);
  for (int k = 0; k < KINDS; k++) use_inherited(w, (kind)k);
  if (!CHILD_MAY_ALLOCATE) _exit(0);
  must(create(GPU, 0, &ctx) == NSA_E_FORKED, "nsa_create", GPU);
  if (number % 2) use_own(w, CPU, 0);
  if (number % 4 == 3) use_own(w, ARCH, 0);
  _exit(0);
}

static void *fork_often(void *user) {
  const struct timespec pause = { 0, FORK_MS * 1000000L };
  while (!all.stop) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) live_as_child(user, all.children);
    must(child > 0 && waitpid(child, &status, 0) == child, "fork", CPU);
    if (status != 0) {
      fprintf(stderr, "child %d: %s %d\n", all.children,
              WIFSIGNALED(status) ? "ended by signal" : "exit status",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
      _exit(1);
    }
    all.children++;
    nanosleep(&pause, NULL);
  }
  return NULL;
}

/* ---- the test ---- */

static void open_shared(void) {
  snprintf(all.dir, sizeof all.dir, "/tmp/nsa-test-threads-XXXXXX");
  assert_non_null(mkdtemp(all.dir));
  for (int k = 0; k < KINDS; k++) {
    machine_yaml(&(machine_request){ .gpu = k != CPU }, all.yaml[k], sizeof all.yaml[k]);
    machine_expect(kind_names[k], create((kind)k, 0, &all.ctx[k]), NSA_OK, NULL);
    make_plan((kind)k, all.ctx[k], &PLAN_PROBLEM, &all.plan[k]);
  }
}

static void close_shared(void) {
  for (int k = 0; k < KINDS; k++) {
    nsa_plan_destroy(all.plan[k]);
    nsa_destroy(all.ctx[k]);
  }
  const fake_cuda_state *r = machine_record();
  assert_int_equal(r->loads, r->unloads);
  assert_int_equal(r->retained + r->handles + r->blocks + r->wrong_context, 0);
  machine_remove(all.dir);
}

static void test_threads(void **state) {
  static worker workers[MAX_THREADS + 1]; /* the last one forks */
  open_shared();
  for (int i = 0; i <= thread_count; i++) worker_init(&workers[i], i);
  for (int i = 0; i <= thread_count; i++)
    assert_int_equal(pthread_create(&workers[i].thread, NULL, i < thread_count ? work : fork_often,
                                    &workers[i]),
                     0);
  sleep((unsigned)seconds);
  all.stop = true;
  for (int i = 0; i <= thread_count; i++) pthread_join(workers[i].thread, NULL);
  for (int i = 0; i <= thread_count; i++) worker_free(&workers[i]);
  close_shared();
  printf("# %d threads, %d rounds, %d children\n", thread_count, all.rounds, all.children);
  assert_true(all.rounds >= thread_count);
  assert_true(all.children >= 1);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = { cmocka_unit_test(test_threads) };
  if (argc > 1) seconds = atoi(argv[1]);
  if (argc > 2) thread_count = atoi(argv[2]);
  if (argc > 3 || seconds < 1 || thread_count < 1 || thread_count > MAX_THREADS) {
    fprintf(stderr, "usage: test_threads [SECONDS [THREADS]], at most %d threads\n", MAX_THREADS);
    return 2;
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}

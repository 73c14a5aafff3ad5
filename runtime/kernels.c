/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#define UNIT_BYTES 4096 /* a generated unit is about 1 KB */

/* Longest wait for another process that compiles the same kernel: more than any one kernel takes.
 */
#define LOCK_WAIT_MS 3000

/* Roles in the order they are compiled, the longest first (NVRTC 13, D 128: 0.7 s, 0.35 s, 0.1 s of
 * one core): with the short ones last the threads end together. */
static const nsai_role compile_order[NSAI_ROLES] = {
  NSAI_KERNEL_ATTEND_COMPRESSED,
  NSAI_KERNEL_ATTEND_WINDOW,
  NSAI_KERNEL_DENSE,
  NSAI_KERNEL_ATTEND_SELECTED,
  NSAI_KERNEL_IMPORTANCE,
  NSAI_KERNEL_PROBE,
  NSAI_KERNEL_SELECT,
  NSAI_KERNEL_COMPRESS,
  NSAI_KERNEL_SORT,
  NSAI_KERNEL_SOFTMAX,
  NSAI_KERNEL_GATHER_K,
  NSAI_KERNEL_GATHER_V,
  NSAI_KERNEL_PHI_ACTIVATION,
  NSAI_KERNEL_PHI_BIAS,
  NSAI_KERNEL_GATE_ACTIVATION,
  NSAI_KERNEL_GATE_BIAS,
};

struct nsai_loaded {
  char digest[NSAI_DIGEST_CHARS];
  nsai_cu_library library;
  nsai_cu_function function;
  struct nsai_loaded *next;
};

/* One kernel on its way. Roles with equal code share an item. */
typedef struct item {
  const nsai_kernel_spec *spec;
  char unit[UNIT_BYTES];
  nsai_kernel_key key;
  nsai_kernel_image image;          /* cubin NULL: not found yet */
  const struct nsai_loaded *loaded; /* NULL: not in the memory tier */
  int lock;                         /* token while it is being compiled here */
} item;

typedef struct work {
  item items[NSAI_ROLES];
  int count;
  int of_role[NSAI_ROLES]; /* index into items, -1: no such kernel */
} work;

static void work_destroy(work *w) {
  if (!w) return;
  for (int i = 0; i < w->count; i++) {
    nsai_kernel_image_fini(&w->items[i].image);
    nsai_kernel_key_fini(&w->items[i].key);
  }
  free(w);
}

static nsai_jit_request request_of(const nsa_ctx *ctx, const item *it, const char *source) {
  return (nsai_jit_request){ .name = it->spec->entry,
                             .source = source,
                             .arch = ctx->target.arch,
                             .line_info = ctx->config->runtime.line_info };
}

/* The unit's first line names the problem for readers; the key must not depend on it. */
static const char *source_for_key(const item *it) {
  const char *line_end = strchr(it->unit, '\n');
  return line_end ? line_end + 1 : it->unit;
}

static nsa_status make_item(nsa_ctx *ctx, const nsai_kernel_request *request, int role, work *w) {
  item *it = &w->items[w->count];
  it->spec = &request->specs[role];
  nsai_writer unit = nsai_writer_open(it->unit, sizeof it->unit);
  nsai_kernel_unit(it->spec, request->problem, &unit);
  if (unit.used >= sizeof it->unit)
    return nsai_fail(NSA_E_INTERNAL, "the generated unit of %s has %zu bytes", it->spec->entry,
                     unit.used);
  nsai_jit_request compile = request_of(ctx, it, source_for_key(it));
  NSAI_TRY(nsai_jit_key(ctx->jit, &compile, &it->key));
  w->count++;
  for (int i = 0; i < w->count - 1; i++) {
    if (strcmp(w->items[i].key.digest, it->key.digest)) continue;
    nsai_kernel_key_fini(&it->key); /* another role has the same code */
    w->count--;
    w->of_role[role] = i;
    return NSA_OK;
  }
  w->of_role[role] = w->count - 1;
  return NSA_OK;
}

static nsa_status work_create(nsa_ctx *ctx, const nsai_kernel_request *request, work **out) {
  work *w = calloc(1, sizeof *w);
  nsa_status status = NSA_OK;
  if (!w) return nsai_fail_nomem("the kernels of a plan", sizeof *w);
  for (int role = 0; role < NSAI_ROLES; role++) w->of_role[role] = -1;
  for (int i = 0; i < NSAI_ROLES; i++) {
    int role = (int)compile_order[i];
    if (request->specs[role].entry) NSAI_TRY_TO(fail, make_item(ctx, request, role, w));
  }
  *out = w;
  return NSA_OK;
fail:
  work_destroy(w);
  return status;
}

static const struct nsai_loaded *find_loaded(nsa_ctx *ctx, const char *digest) {
  for (const struct nsai_loaded *l = ctx->loaded; l; l = l->next)
    if (!strcmp(l->digest, digest)) return l;
  return NULL;
}

/* Looks every item up in the memory tier and the disk cache; returns how many are in neither. */
static int look_up(nsa_ctx *ctx, work *w) {
  int missing = 0;
  for (int i = 0; i < w->count; i++) {
    item *it = &w->items[i];
    pthread_mutex_lock(&ctx->lock);
    it->loaded = find_loaded(ctx, it->key.digest);
    pthread_mutex_unlock(&ctx->lock);
    if (!it->loaded && !nsai_cache_find(ctx->cache, &it->key, &it->image)) missing++;
  }
  return missing;
}

static nsa_status refuse_unprepared(const nsa_ctx *ctx, const work *w) {
  char names[512];
  nsai_writer list = nsai_writer_open(names, sizeof names);
  for (int i = 0; i < w->count; i++)
    if (!w->items[i].loaded && !w->items[i].image.cubin)
      nsai_write(&list, "%s%s", list.used ? ", " : "", w->items[i].spec->entry);
  return nsai_fail(NSA_E_NOT_PREPARED,
                   "runtime.jit is %s and no cache has: %s (%s). Fill the cache with nsa_prepare "
                   "or `nsa-autotune compile "
                   "--arch %s`, or set runtime.jit to on_demand",
                   ctx->config->runtime.jit == NSAI_JIT_NEVER ? "never" : "prepare_only", names,
                   ctx->target.arch, ctx->target.arch);
}

/* Takes the lock of one item, unless an item before it holds the same one: waiting for oneself
 * would take the whole time. */
static int lock_item(nsa_ctx *ctx, item *const *before, int count, const item *it) {
  for (int i = 0; i < count; i++)
    if (nsai_cache_same_lock(&before[i]->key, &it->key)) return -1;
  return nsai_cache_lock(ctx->cache, &it->key, LOCK_WAIT_MS);
}

/* Whether kernels were refused, and nothing else failed. */
static bool only_refused(const nsai_jit_job *jobs, int count) {
  int refused = 0, failed = 0;
  for (int i = 0; i < count; i++) {
    failed += jobs[i].status != NSA_OK && jobs[i].status != NSA_E_CANCELLED;
    refused += jobs[i].image.refused;
  }
  return refused && failed == refused;
}

/* Compiles what is missing. Finished kernels go into the cache even when another fails or the
 * caller cancels. */
static nsa_status compile_missing(nsa_ctx *ctx, nsai_kernel_request *request, work *w,
                                  int missing) {
  nsai_jit_job jobs[NSAI_ROLES] = { 0 };
  item *of_job[NSAI_ROLES];
  int count = 0;
  for (int i = 0; i < w->count; i++) {
    item *it = &w->items[i];
    if (it->loaded || it->image.cubin) continue;
    it->lock = lock_item(ctx, of_job, count, it);
    if (nsai_cache_find(ctx->cache, &it->key, &it->image)) { /* somebody else was compiling it */
      nsai_cache_unlock(it->lock);
      continue;
    }
    jobs[count].request = request_of(ctx, it, it->unit);
    of_job[count++] = it;
  }
  nsai_log(&ctx->logger, NSA_LOG_INFO, "jit", "compiling %d kernels for %s", missing,
           ctx->target.arch);
  nsai_jit_run run = { .threads = ctx->config->runtime.compile_jobs,
                       .progress = request->progress,
                       .user = request->user };
  nsa_status status = nsai_jit_compile_many(ctx->jit, jobs, (size_t)count, &run);
  /* Storing the finished ones may leave an error text of its own. */
  char *why = status != NSA_OK ? strdup(nsa_last_error()) : NULL;
  request->refused = only_refused(jobs, count);
  for (int i = 0; i < count; i++) {
    of_job[i]->image = jobs[i].image;
    free(jobs[i].error);
    if (of_job[i]->image.cubin) nsai_cache_store(ctx->cache, &of_job[i]->key, &of_job[i]->image);
    nsai_cache_unlock(of_job[i]->lock);
  }
  if (status != NSA_OK) nsai_fail_text(status, why ? why : nsa_status_text(status));
  free(why);
  return status;
}

/* Puts one image into the device's memory and the context's list. The device is current, the lock
 * is held. */
static nsa_status load_image(nsa_ctx *ctx, item *it) {
  const nsai_driver *driver = ctx->device.driver;
  struct nsai_loaded *l = calloc(1, sizeof *l);
  nsai_cu_kernel kernel;
  nsa_status status = NSA_OK;
  if (!l) return nsai_fail_nomem("a loaded kernel", sizeof *l);
  NSAI_TRY_TO(fail, NSAI_CUDA(driver, cuLibraryLoadData(&l->library, it->image.cubin, NULL, NULL, 0,
                                                        NULL, NULL, 0)));
  NSAI_TRY_TO(fail, NSAI_CUDA(driver, cuLibraryGetKernel(&kernel, l->library, it->spec->entry)));
  NSAI_TRY_TO(fail, NSAI_CUDA(driver, cuKernelSetAttribute(NSAI_CU_FUNC_MAX_DYNAMIC_SHARED_BYTES,
                                                           (int)it->spec->shared_bytes, kernel,
                                                           ctx->device.ordinal)));
  NSAI_TRY_TO(fail, NSAI_CUDA(driver, cuKernelGetFunction(&l->function, kernel)));
  memcpy(l->digest, it->key.digest, sizeof l->digest);
  l->next = ctx->loaded;
  ctx->loaded = l;
  it->loaded = l;
  return NSA_OK;
fail:
  if (l->library) driver->cuLibraryUnload(l->library);
  free(l);
  return status;
}

static nsa_status load_all(nsa_ctx *ctx, work *w) {
  nsa_status status = NSA_OK;
  bool pushed = false;
  /* Another stream of this process may be capturing: loading must not disturb it. */
  int32_t mode = NSAI_CU_CAPTURE_RELAXED;
  NSAI_TRY(nsai_context_enter(ctx, &pushed));
  ctx->device.driver->cuThreadExchangeStreamCaptureMode(&mode);
  pthread_mutex_lock(&ctx->lock);
  for (int i = 0; i < w->count && status == NSA_OK; i++) {
    item *it = &w->items[i];
    if (!it->loaded)
      it->loaded = find_loaded(ctx, it->key.digest); /* another thread may have been faster */
    if (!it->loaded) status = load_image(ctx, it);
  }
  pthread_mutex_unlock(&ctx->lock);
  ctx->device.driver->cuThreadExchangeStreamCaptureMode(&mode);
  nsai_context_leave(ctx, pushed);
  return status;
}

nsa_status nsai_kernels_make(nsa_ctx *ctx, nsai_kernel_request *request,
                             nsai_kernel out[NSAI_ROLES]) {
  work *w = NULL;
  nsa_status status = NSA_OK;
  request->refused = false;
  NSAI_TRY(work_create(ctx, request, &w));
  int missing = look_up(ctx, w);
  if (missing && !request->may_compile) {
    status = refuse_unprepared(ctx, w);
    goto done;
  }
  if (missing) NSAI_TRY_TO(done, compile_missing(ctx, request, w, missing));
  if (!out) goto done;
  NSAI_TRY_TO(done, load_all(ctx, w));
  for (int role = 0; role < NSAI_ROLES; role++) {
    if (w->of_role[role] < 0) continue;
    const nsai_kernel_spec *spec = &request->specs[role];
    out[role] = (nsai_kernel){ .function = w->items[w->of_role[role]].loaded->function,
                               .name = spec->entry,
                               .threads = spec->threads,
                               .shared_bytes = spec->shared_bytes,
                               .tokens = spec->tokens };
  }
done:
  work_destroy(w);
  return status;
}

nsa_status nsai_kernels_missing(nsa_ctx *ctx, const nsai_kernel_request *request,
                                int32_t *missing) {
  work *w = NULL;
  NSAI_TRY(work_create(ctx, request, &w));
  *missing = look_up(ctx, w);
  work_destroy(w);
  return NSA_OK;
}

void nsai_kernels_unload(nsa_ctx *ctx, bool unload) {
  while (ctx->loaded) {
    struct nsai_loaded *l = ctx->loaded;
    ctx->loaded = l->next;
    if (unload) ctx->device.driver->cuLibraryUnload(l->library);
    free(l);
  }
}

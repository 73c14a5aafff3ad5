/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plan/kernel_set.h"

#include "base/duration.h"
#include "base/lock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define UNIT_BYTES 4096 /* a generated unit is about 1 KB */

/* Longest wait for others that compile the same kernels, of one request: more than any one kernel
 * takes. */
#define WAIT_SECONDS 3.0
#define POLL_MS 20 /* short against a compilation of 100 ms and more */

/* CTAs of a cluster that every device with clusters takes; a kernel of larger ones has to ask. */
#define PORTABLE_CLUSTER 8

/* Guarded by the context's lock, but what its users read: library and function. */
struct nsai_loaded {
  char digest[NSAI_DIGEST_CHARS];
  nsai_cu_library library;
  nsai_cu_function function;
  int32_t users;  /* kernels of plans, and items on their way */
  bool temporary; /* wanted by the tuner alone */
  int32_t spill_bytes;
  bool last_resort; /* nsai_is_last_resort */
  struct nsai_loaded *next;
};

/* One kernel on its way. Specs with equal code share an item. */
typedef struct item {
  const nsai_kernel_spec *spec;
  char unit[UNIT_BYTES];
  nsai_kernel_key key;
  nsai_kernel_image image;    /* cubin NULL: not found yet */
  struct nsai_loaded *loaded; /* NULL: not in the memory tier; held by this item */
  int lock;                   /* token while it is being compiled here */
  bool compiled;              /* the image was made here and now */
  bool unfit;                 /* what the cache has does not load */
  bool refused;               /* what the cache has is a last resort, and the request takes none */
} item;

typedef struct work {
  item items[NSAI_MAX_KERNELS];
  int count;
  int of_spec[NSAI_MAX_KERNELS]; /* index into items, -1: no such kernel */
} work;

static void work_destroy(nsa_ctx *ctx, work *w) {
  if (!w) return;
  pthread_mutex_lock(&ctx->lock);
  for (int i = 0; i < w->count; i++)
    if (w->items[i].loaded) w->items[i].loaded->users--;
  pthread_mutex_unlock(&ctx->lock);
  for (int i = 0; i < w->count; i++) {
    nsai_kernel_image_fini(&w->items[i].image);
    nsai_kernel_key_fini(&w->items[i].key);
  }
  free(w);
}

static nsai_compile_request request_of(const nsa_ctx *ctx, const nsai_kernel_request *request,
                                       const item *it, const char *source) {
  return (nsai_compile_request){ .name = it->spec->entry,
                                 .source = source,
                                 .arch = ctx->target.arch,
                                 .line_info = ctx->config->runtime.line_info,
                                 .last_resort = request->last_resort };
}

/* The unit's first line names the problem for readers; the key must not depend on it. */
static const char *source_for_key(const item *it) {
  const char *line_end = strchr(it->unit, '\n');
  return line_end ? line_end + 1 : it->unit;
}

static nsa_status make_item(nsa_ctx *ctx, const nsai_kernel_request *request, int index, work *w) {
  item *it = &w->items[w->count];
  it->spec = &request->specs[index];
  nsai_writer unit = nsai_writer_open(it->unit, sizeof it->unit);
  nsai_kernel_unit(it->spec, request->problems ? &request->problems[index] : request->problem,
                   &unit);
  if (unit.used >= sizeof it->unit)
    return nsai_fail(NSA_E_INTERNAL, "the generated unit of %s has %zu bytes", it->spec->entry,
                     unit.used);
  nsai_compile_request compile = request_of(ctx, request, it, source_for_key(it));
  NSAI_TRY(nsai_compiler_key(ctx->compiler, &compile, &it->key));
  w->count++;
  for (int i = 0; i < w->count - 1; i++) {
    if (strcmp(w->items[i].key.digest, it->key.digest)) continue;
    nsai_kernel_key_fini(&it->key); /* another spec has the same code */
    w->count--;
    w->of_spec[index] = i;
    return NSA_OK;
  }
  w->of_spec[index] = w->count - 1;
  return NSA_OK;
}

/* The costly kernels first: with the short ones last, the compiling threads end together. */
static void sort_by_cost(const nsai_kernel_request *request, int order[NSAI_MAX_KERNELS]) {
  for (int i = 0, at; i < request->count; i++) {
    const int32_t cost = request->specs[i].compile_cost;
    for (at = i; at && request->specs[order[at - 1]].compile_cost < cost; at--)
      order[at] = order[at - 1];
    order[at] = i;
  }
}

static nsa_status work_create(nsa_ctx *ctx, const nsai_kernel_request *request, work **out) {
  work *w = calloc(1, sizeof *w);
  nsa_status status = NSA_OK;
  if (!w) return nsai_fail_nomem("the kernels of a plan", sizeof *w);
  int order[NSAI_MAX_KERNELS];
  for (int i = 0; i < NSAI_MAX_KERNELS; i++) w->of_spec[i] = -1;
  sort_by_cost(request, order);
  for (int i = 0; i < request->count; i++)
    if (request->specs[order[i]].entry) NSAI_TRY_TO(fail, make_item(ctx, request, order[i], w));
  *out = w;
  return NSA_OK;
fail:
  work_destroy(ctx, w);
  return status;
}

/* Looks an item up in the memory tier, and holds what is there. Lock held. */
static void find_loaded(const nsa_ctx *ctx, bool last_resort, item *it) {
  struct nsai_loaded *l = ctx->loaded;
  while (l && strcmp(l->digest, it->key.digest) != 0) l = l->next;
  it->refused = l && l->last_resort && !last_resort;
  it->loaded = it->refused ? NULL : l;
  if (it->loaded) l->users++;
}

/* Looks an item up in the disk cache. */
static void find_stored(nsa_ctx *ctx, bool last_resort, item *it) {
  if (!nsai_cache_find(ctx->cache, &it->key, &it->image)) return;
  it->refused = nsai_is_last_resort(&it->image) && !last_resort;
  if (it->refused) nsai_kernel_image_fini(&it->image);
}

static bool is_missing(const item *it) { return !it->loaded && !it->image.cubin; }

static int count_missing(const work *w) {
  int missing = 0;
  for (int i = 0; i < w->count; i++) missing += is_missing(&w->items[i]);
  return missing;
}

/* Looks every item up in the memory tier and the disk cache; returns how many are in neither. */
static int look_up(nsa_ctx *ctx, bool last_resort, work *w) {
  for (int i = 0; i < w->count; i++) {
    item *it = &w->items[i];
    pthread_mutex_lock(&ctx->lock);
    find_loaded(ctx, last_resort, it);
    pthread_mutex_unlock(&ctx->lock);
    if (!it->loaded && !it->refused) find_stored(ctx, last_resort, it);
  }
  return count_missing(w);
}

static const char *jit_name(const nsa_ctx *ctx) {
  return ctx->config->runtime.jit == NSAI_JIT_NEVER ? "never" : "prepare_only";
}

static nsa_status refuse_unprepared(const nsa_ctx *ctx, const work *w) {
  char names[512];
  nsai_writer list = nsai_writer_open(names, sizeof names);
  for (int i = 0; i < w->count; i++)
    if (is_missing(&w->items[i]))
      nsai_write(&list, "%s%s", list.used ? ", " : "", w->items[i].spec->entry);
  return nsai_fail(NSA_E_NOT_PREPARED,
                   "runtime.jit is %s and no cache has: %s (%s). Fill the cache with nsa_prepare "
                   "or `nsa-autotune compile "
                   "--arch %s`, or set runtime.jit to on_demand",
                   jit_name(ctx), names, ctx->target.arch, ctx->target.arch);
}

/* A kernel that an earlier plan took as its last resort: it would compile no better now. */
static nsa_status check_refused(const nsa_ctx *ctx, nsai_kernel_request *request, const work *w) {
  for (int i = 0; i < w->count; i++) {
    if (!w->items[i].refused) continue;
    request->refused = true;
    return nsai_fail(NSA_E_COMPILE,
                     "kernel %s for %s is refused: the one in the cache spills registers or has "
                     "serialised wgmma; smaller tiles are tried where there are any",
                     w->items[i].spec->entry, ctx->target.arch);
  }
  return NSA_OK;
}

/* ---- compiling ---- */

/* What is compiled here at once. */
typedef struct batch {
  nsai_compile_job jobs[NSAI_MAX_KERNELS];
  item *of_job[NSAI_MAX_KERNELS];
  int count;
} batch;

/* Takes the lock of one item, unless an item before it holds the same one: waiting for oneself
 * would take the whole time. */
static int lock_item(nsa_ctx *ctx, const batch *b, const item *it, bool *busy) {
  *busy = false;
  for (int i = 0; i < b->count; i++)
    if (nsai_cache_same_lock(&b->of_job[i]->key, &it->key)) return -1;
  return nsai_cache_lock(ctx->cache, &it->key, busy);
}

/* Collects the missing items that nobody else is compiling, or all when `in_spite`. Returns how
 * many are left to others. */
static int collect(nsa_ctx *ctx, const nsai_kernel_request *request, work *w, bool in_spite,
                   batch *b) {
  int left = 0;
  b->count = 0;
  for (int i = 0; i < w->count; i++) {
    item *it = &w->items[i];
    bool busy;
    if (!is_missing(it) || it->refused) continue;
    it->lock = lock_item(ctx, b, it, &busy);
    if (busy && !in_spite) {
      left++;
      continue;
    }
    if (!it->unfit) find_stored(ctx, request->last_resort, it);
    if (!is_missing(it) || it->refused) {
      nsai_cache_unlock(it->lock); /* somebody else was compiling it */
      continue;
    }
    b->jobs[b->count] = (nsai_compile_job){ .request = request_of(ctx, request, it, it->unit) };
    b->of_job[b->count++] = it;
  }
  return left;
}

/* One batch within the whole request, and its progress. */
typedef struct part {
  nsa_ctx *ctx;
  const nsai_kernel_request *request;
  batch *batch;
  int64_t done, total;
} part;

static int32_t report_part(void *user, int64_t done, int64_t total, const char *what) {
  const part *p = user;
  (void)total;
  return p->request->progress(p->request->user, p->done + done, p->total, what);
}

/* Whether kernels were refused, and nothing else failed. */
static bool only_refused(const batch *b) {
  int refused = 0, failed = 0;
  for (int i = 0; i < b->count; i++) {
    failed += b->jobs[i].status != NSA_OK && b->jobs[i].status != NSA_E_CANCELLED;
    refused += b->jobs[i].image.refused;
  }
  return refused && failed == refused;
}

/* Puts a finished kernel into the cache while others are being compiled: the disk takes some
 * milliseconds for each. Other processes may have it, whatever becomes of the others. */
static void store_finished(void *user, nsai_compile_job *job) {
  const part *p = user;
  item *it = p->batch->of_job[job - p->batch->jobs];
  if (job->image.cubin) nsai_cache_store(p->ctx->cache, &it->key, &job->image);
  nsai_cache_unlock(it->lock);
  it->lock = -1;
}

static nsa_status compile_batch(nsa_ctx *ctx, nsai_kernel_request *request, batch *b, part *p) {
  nsai_log(&ctx->logger, NSA_LOG_INFO, "jit", "compiling %d kernels for %s", b->count,
           ctx->target.arch);
  nsai_compile_many_options run = { .threads = ctx->config->runtime.compile_jobs,
                                    .past_refused = request->ahead,
                                    .progress = request->progress ? report_part : NULL,
                                    .finished = store_finished,
                                    .user = p };
  const nsa_status status = nsai_compile_many(ctx->compiler, b->jobs, (size_t)b->count, &run);
  request->refused = only_refused(b);
  for (int i = 0; i < b->count; i++) {
    item *it = b->of_job[i];
    it->image = b->jobs[i].image;
    it->compiled = it->image.cubin != NULL;
    free(b->jobs[i].error);
    nsai_cache_unlock(it->lock); /* of those that were not reached */
  }
  return status;
}

/* Waits a moment for others, holding no lock, so that nobody waits for each other. */
static nsa_status wait_for_others(const part *p) {
  const struct timespec pause = { 0, POLL_MS * 1000000 };
  if (p->request->progress && report_part((void *)p, 0, 0, "waiting for another process") != 0)
    return nsai_fail(NSA_E_CANCELLED,
                     "cancelled while another process compiles the same kernels, after %lld of "
                     "%lld; those are kept",
                     (long long)p->done, (long long)p->total);
  nanosleep(&pause, NULL);
  return NSA_OK;
}

/* Compiles what is missing. What others are compiling is waited for after that, until one deadline
 * for the whole request has passed. */
static nsa_status compile_missing(nsa_ctx *ctx, nsai_kernel_request *request, work *w) {
  const double deadline = nsai_seconds() + WAIT_SECONDS;
  batch b;
  part p = { .ctx = ctx, .request = request, .batch = &b, .total = count_missing(w) };
  for (;;) {
    int left = collect(ctx, request, w, nsai_seconds() >= deadline, &b);
    p.done = p.total - left - b.count;
    if (request->ahead) {
      const nsa_status status = b.count ? compile_batch(ctx, request, &b, &p) : NSA_OK;
      return request->refused && status != NSA_E_CANCELLED ? NSA_OK : status;
    }
    if (b.count) NSAI_TRY(compile_batch(ctx, request, &b, &p));
    if (!left) return check_refused(ctx, request, w);
    if (!b.count) NSAI_TRY(wait_for_others(&p));
  }
}

static nsa_status complete(nsa_ctx *ctx, nsai_kernel_request *request, work *w) {
  if (!count_missing(w)) return NSA_OK;
  if (!request->ahead) NSAI_TRY(check_refused(ctx, request, w));
  return request->may_compile ? compile_missing(ctx, request, w) : refuse_unprepared(ctx, w);
}

/* ---- loading ---- */

/* Whether another image of the kernel may do: the driver is older than the compiler was, or the
 * image is for something else. Other failures are the device's. */
static bool blames_image(nsai_cu_result result) {
  switch (result) {
  case NSAI_CUDA_ERROR_INVALID_IMAGE:
  case NSAI_CUDA_ERROR_NO_BINARY_FOR_GPU:
  case NSAI_CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
  case NSAI_CUDA_ERROR_INVALID_SOURCE:
  case NSAI_CUDA_ERROR_NOT_FOUND: return true;
  default: return false;
  }
}

/* The driver's four steps; `*call` names the one that failed. With lazy loading each of them may be
 * the first that looks at the image. */
static nsai_cu_result load_function(const nsa_ctx *ctx, const item *it, struct nsai_loaded *l,
                                    const char **call) {
  const nsai_driver *driver = ctx->device.driver;
  nsai_cu_kernel kernel = NULL;
  *call = "cuLibraryLoadData";
  nsai_cu_result result =
      driver->cuLibraryLoadData(&l->library, it->image.cubin, NULL, NULL, 0, NULL, NULL, 0);
  if (result != NSAI_CUDA_SUCCESS) return result;
  *call = "cuLibraryGetKernel";
  result = driver->cuLibraryGetKernel(&kernel, l->library, it->spec->entry);
  if (result != NSAI_CUDA_SUCCESS) return result;
  *call = "cuKernelSetAttribute";
  result = driver->cuKernelSetAttribute(NSAI_CU_FUNC_MAX_DYNAMIC_SHARED_BYTES,
                                        (int)it->spec->shared_bytes, kernel, ctx->device.ordinal);
  if (result != NSAI_CUDA_SUCCESS) return result;
  if (it->spec->cluster > PORTABLE_CLUSTER) {
    *call = "cuKernelSetAttribute of the cluster's size";
    result = driver->cuKernelSetAttribute(NSAI_CU_FUNC_NON_PORTABLE_CLUSTER, 1, kernel,
                                          ctx->device.ordinal);
    if (result != NSAI_CUDA_SUCCESS) return result;
  }
  *call = "cuKernelGetFunction";
  return driver->cuKernelGetFunction(&l->function, kernel);
}

/* Puts one image into the device's memory and the context's list. `it->unfit` tells whether it was
 * the cache's image that failed. The device is current, the lock is held. */
static nsa_status load_image(nsa_ctx *ctx, item *it, bool temporary) {
  const nsai_driver *driver = ctx->device.driver;
  struct nsai_loaded *l = calloc(1, sizeof *l);
  const char *call;
  nsa_status status = NSA_OK;
  if (!l) return nsai_fail_nomem("a loaded kernel", sizeof *l);
  nsai_cu_result result = load_function(ctx, it, l, &call);
  it->unfit = blames_image(result) && !it->compiled;
  NSAI_TRY_TO(fail, nsai_driver_status(driver, result, call));
  memcpy(l->digest, it->key.digest, sizeof l->digest);
  l->users = 1;
  l->temporary = temporary;
  l->spill_bytes = it->image.spill_bytes;
  l->last_resort = nsai_is_last_resort(&it->image);
  l->next = ctx->loaded;
  ctx->loaded = l;
  it->loaded = l;
  return NSA_OK;
fail:
  if (l->library) driver->cuLibraryUnload(l->library);
  free(l);
  return status;
}

/* Loads until something fails; `*failed` is the item, NULL when it was none. */
static nsa_status load_all(nsa_ctx *ctx, const nsai_kernel_request *request, work *w,
                           item **failed) {
  nsa_status status = NSA_OK;
  bool pushed = false;
  /* Another stream of this process may be capturing: loading must not disturb it. */
  int32_t mode = NSAI_CU_CAPTURE_RELAXED;
  *failed = NULL;
  NSAI_TRY(nsai_context_enter(ctx, &pushed));
  ctx->device.driver->cuThreadExchangeStreamCaptureMode(&mode);
  pthread_mutex_lock(&ctx->lock);
  for (int i = 0; i < w->count && status == NSA_OK; i++) {
    item *it = &w->items[i];
    if (!it->loaded) find_loaded(ctx, request->last_resort, it); /* another thread was faster */
    if (!it->loaded) status = load_image(ctx, it, request->temporary);
    if (status != NSA_OK) *failed = it;
  }
  pthread_mutex_unlock(&ctx->lock);
  ctx->device.driver->cuThreadExchangeStreamCaptureMode(&mode);
  nsai_context_leave(ctx, pushed);
  return status;
}

/* The cache has an image that does not load: the driver was exchanged for an older one, or, without
 * an NVRTC here, any compiler's image was taken. It is dropped and compiled anew. */
static nsa_status replace_image(nsa_ctx *ctx, nsai_kernel_request *request, work *w, item *it) {
  char why[256];
  const char *text = nsa_last_error();
  snprintf(why, sizeof why, "%.*s", (int)strcspn(text, "\n"), text);
  nsai_cache_drop(ctx->cache, &it->key, &it->image, why);
  nsai_kernel_image_fini(&it->image);
  if (!request->may_compile)
    return nsai_fail(NSA_E_NOT_PREPARED,
                     "kernel %s of the cache does not load (%s), and runtime.jit is %s: fill the "
                     "cache with nsa_prepare or `nsa-autotune compile --arch %s` and an NVRTC of "
                     "the driver's version, or set runtime.jit to on_demand",
                     it->spec->entry, why, jit_name(ctx), ctx->target.arch);
  nsa_status status = compile_missing(ctx, request, w);
  char *cause = status != NSA_OK && status != NSA_E_CANCELLED ? strdup(nsa_last_error()) : NULL;
  if (cause)
    nsai_fail(status, "kernel %s of the cache does not load (%s), and cannot be made anew: %s",
              it->spec->entry, why, cause);
  free(cause);
  return status;
}

/* Each image of the cache can fail once; a new one that fails is not the cache's fault. */
static nsa_status load_work(nsa_ctx *ctx, nsai_kernel_request *request, work *w) {
  for (;;) {
    item *failed;
    nsa_status status = load_all(ctx, request, w, &failed);
    if (!failed || !failed->unfit) return status;
    NSAI_TRY(replace_image(ctx, request, w, failed));
  }
}

/* Hands the loaded kernels out: each spec holds its own. */
static void hand_out(nsa_ctx *ctx, const nsai_kernel_request *request, const work *w,
                     nsai_kernel out[NSAI_MAX_KERNELS]) {
  pthread_mutex_lock(&ctx->lock);
  for (int i = 0; i < request->count; i++) {
    if (w->of_spec[i] < 0) continue;
    const nsai_kernel_spec *spec = &request->specs[i];
    struct nsai_loaded *l = w->items[w->of_spec[i]].loaded;
    l->users++;
    l->temporary = l->temporary && request->temporary;
    out[i] = (nsai_kernel){ .function = l->function,
                            .loaded = l,
                            .name = spec->entry,
                            .threads = spec->threads,
                            .shared_bytes = spec->shared_bytes,
                            .tile_tokens = spec->tile_tokens,
                            .most_ctas = spec->ctas_per_sm * ctx->target.sms,
                            .tma_box_heads = spec->tma_box_heads,
                            .tma_box_tokens = spec->tma_box_tokens,
                            .tma_box_keys = spec->tma_box_keys,
                            .interleaved_keys = spec->interleaved_keys };
  }
  pthread_mutex_unlock(&ctx->lock);
}

nsa_status nsai_kernel_set_make(nsa_ctx *ctx, nsai_kernel_request *request,
                                nsai_kernel out[NSAI_MAX_KERNELS]) {
  work *w = NULL;
  nsa_status status = NSA_OK;
  request->refused = false;
  NSAI_TRY(work_create(ctx, request, &w));
  look_up(ctx, request->last_resort, w);
  NSAI_TRY_TO(done, complete(ctx, request, w));
  if (!out) goto done;
  NSAI_TRY_TO(done, load_work(ctx, request, w));
  hand_out(ctx, request, w, out);
done:
  work_destroy(ctx, w);
  return status;
}

void nsai_kernel_set_release(nsa_ctx *ctx, nsai_kernel kernels[NSAI_MAX_KERNELS]) {
  if (ctx->pid != getpid()) return; /* another thread of the parent may have held the lock */
  pthread_mutex_lock(&ctx->lock);
  for (int i = 0; i < NSAI_MAX_KERNELS; i++) {
    if (kernels[i].loaded) kernels[i].loaded->users--;
    kernels[i].loaded = NULL;
  }
  pthread_mutex_unlock(&ctx->lock);
}

void nsai_kernel_set_unload_temporary(nsa_ctx *ctx) {
  pthread_mutex_lock(&ctx->lock);
  for (struct nsai_loaded **at = &ctx->loaded; *at;) {
    struct nsai_loaded *l = *at;
    if (!l->temporary || l->users) {
      at = &l->next;
      continue;
    }
    *at = l->next;
    ctx->device.driver->cuLibraryUnload(l->library);
    free(l);
  }
  pthread_mutex_unlock(&ctx->lock);
}

nsa_status nsai_kernel_set_missing(nsa_ctx *ctx, const nsai_kernel_request *request,
                                   int32_t *missing) {
  work *w = NULL;
  NSAI_TRY(work_create(ctx, request, &w));
  *missing = look_up(ctx, request->last_resort, w);
  work_destroy(ctx, w);
  return NSA_OK;
}

nsa_status nsai_kernel_set_spills(nsa_ctx *ctx, const nsai_kernel_request *request,
                                  int32_t spills[NSAI_MAX_KERNELS]) {
  work *w = NULL;
  NSAI_TRY(work_create(ctx, request, &w));
  look_up(ctx, true, w);
  for (int i = 0; i < NSAI_MAX_KERNELS; i++) {
    const item *it = w->of_spec[i] < 0 ? NULL : &w->items[w->of_spec[i]];
    spills[i] = !it ? 0 : it->loaded ? it->loaded->spill_bytes : it->image.spill_bytes;
  }
  work_destroy(ctx, w);
  return NSA_OK;
}

void nsai_kernel_set_unload(nsa_ctx *ctx, bool unload) {
  if (!nsai_lock_is_free(&ctx->lock)) return;
  while (ctx->loaded) {
    struct nsai_loaded *l = ctx->loaded;
    ctx->loaded = l->next;
    if (unload) ctx->device.driver->cuLibraryUnload(l->library);
    free(l);
  }
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A driver without hardware: GPU 0 is too old, GPU 1 is a Hopper. Kernels are loaded and launched
 * in name only and recorded (fake_cuda.h), unless a test gives them work and time; memory is the
 * host's. FAKE_CUDA_INIT is what cuInit returns; FAKE_CUDA_HIDE names a function that is missing;
 * FAKE_CUDA_CURRENT is the device of the current context. FAKE_CUDA_GPU makes GPU 1 another one:
 * its compute capability times 10, multiprocessors, bytes of shared memory and name ("80 108 166912
 * NVIDIA A100"). FAKE_CUDA_HOST names all GPUs in that way, with ';' between them. FAKE_CUDA_LOST is
 * the number of a GPU that gives no context.
 */
#include "fake_cuda.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  INVALID_VALUE = 1,
  DEVICE_UNAVAILABLE = 46,
  INVALID_CONTEXT = 201,
  ILLEGAL_ADDRESS = 700,
  LAUNCH_OUT_OF_RESOURCES = 701,
  LAUNCH_FAILED = 719
}; /* CUresult */

/* One library with its one kernel; library, kernel and function are the same address. */
typedef struct library {
  char name[64];
  int max_shared_bytes;
  void *code;
} library;

static fake_cuda_state record;
static int host_context;

pthread_mutex_t fake_cuda_lock = PTHREAD_MUTEX_INITIALIZER;

/* Threads count at once. Returns the number before. */
#define COUNT(member, change) __atomic_fetch_add(&record.member, change, __ATOMIC_RELAXED)

static _Thread_local nsai_cu_context stack[8];
static _Thread_local int depth;
static _Thread_local int32_t capture_mode;

fake_cuda_state *fake_cuda_record(void) { return &record; }

static int number(const char *variable, int otherwise) {
  const char *text = getenv(variable);
  return text ? atoi(text) : otherwise;
}

typedef struct gpu {
  int capability, multiprocessors, shared_bytes;
  char name[64];
} gpu;

/* The text of a GPU on FAKE_CUDA_HOST; NULL: there is none. */
static const char *host_text(int index) {
  const char *text = getenv("FAKE_CUDA_HOST");
  for (; text && index > 0; index--) {
    text = strchr(text, ';');
    if (text) text++;
  }
  return text;
}

static gpu gpu_at(nsai_cu_device device) {
  gpu g = { 90, 132, 232448, "Fake H200" };
  const char *text = host_text(device);
  if (!getenv("FAKE_CUDA_HOST") && device == 0) return (gpu){ 75, 40, 65536, "Fake T4" };
  if (!text) text = getenv("FAKE_CUDA_GPU");
  if (text)
    sscanf(text, "%d %d %d %63[^;\n]", &g.capability, &g.multiprocessors, &g.shared_bytes, g.name);
  return g;
}

static int gpu_count(void) {
  int count = 0;
  while (host_text(count)) count++;
  return count ? count : 2;
}

/* Like a real one it does not start in the child of a process that had started it. */
static nsai_cu_result init(unsigned flags) {
  static pid_t started;
  (void)flags;
  if (started && started != getpid()) return NSAI_CUDA_ERROR_NOT_INITIALIZED;
  started = getpid();
  return number("FAKE_CUDA_INIT", 0);
}

static nsai_cu_result get_version(int *version) {
  *version = 13000;
  return 0;
}

static nsai_cu_result get_error(nsai_cu_result result, const char **text) {
  *text = result == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_FAKE";
  return 0;
}

static nsai_cu_result get_count(int *count) {
  *count = gpu_count();
  return 0;
}

static nsai_cu_result get_device(nsai_cu_device *device, int ordinal) {
  if (ordinal < 0 || ordinal >= gpu_count()) return 101; /* CUDA_ERROR_INVALID_DEVICE */
  *device = ordinal;
  return 0;
}

static nsai_cu_result get_name(char *name, int size, nsai_cu_device device) {
  const gpu g = gpu_at(device);
  snprintf(name, (size_t)size, "%s", g.name);
  return 0;
}

static nsai_cu_result get_uuid(nsai_cu_uuid *uuid, nsai_cu_device device) {
  memset(uuid->bytes, 0xac - device, sizeof uuid->bytes);
  return 0;
}

static nsai_cu_result get_pci(char *id, int size, nsai_cu_device device) {
  snprintf(id, (size_t)size, "0000:%02x:00.0", (unsigned)device + 16);
  return 0;
}

static nsai_cu_result by_pci(nsai_cu_device *device, const char *id) {
  unsigned bus = 0;
  if (sscanf(id, "0000:%2x:00.0", &bus) != 1 || bus < 16 || bus - 16 >= (unsigned)gpu_count())
    return 101;
  *device = (int)bus - 16;
  return 0;
}

static nsai_cu_result get_attribute(int *value, int attribute, nsai_cu_device device) {
  const gpu g = gpu_at(device);
  switch (attribute) {
  case NSAI_CU_DEVICE_CC_MAJOR: *value = g.capability / 10; break;
  case NSAI_CU_DEVICE_CC_MINOR: *value = g.capability % 10; break;
  case NSAI_CU_DEVICE_SM_COUNT: *value = g.multiprocessors; break;
  case NSAI_CU_DEVICE_MAX_SHARED_PER_BLOCK_OPTIN: *value = g.shared_bytes; break;
  case NSAI_CU_DEVICE_L2_BYTES: *value = 60 << 20; break;
  default: *value = 0;
  }
  return 0;
}

static nsai_cu_result total_memory(size_t *bytes, nsai_cu_device device) {
  (void)device;
  *bytes = (size_t)139 << 30;
  return 0;
}

static nsai_cu_result retain(nsai_cu_context *context, nsai_cu_device device) {
  if (device == number("FAKE_CUDA_LOST", -1)) return DEVICE_UNAVAILABLE;
  COUNT(retained, 1);
  *context = (nsai_cu_context)&record;
  return 0;
}

static nsai_cu_result release(nsai_cu_device device) {
  (void)device;
  return COUNT(retained, -1) < 1 ? 1 : 0;
}

static nsai_cu_context current(void) {
  if (depth) return stack[depth - 1];
  return getenv("FAKE_CUDA_CURRENT") ? (nsai_cu_context)&host_context : NULL;
}

static nsai_cu_result get_current(nsai_cu_context *context) {
  *context = current();
  return 0;
}

static nsai_cu_result push(nsai_cu_context context) {
  if (depth == sizeof stack / sizeof *stack) return INVALID_VALUE;
  stack[depth++] = context;
  return 0;
}

static nsai_cu_result pop(nsai_cu_context *context) {
  if (!depth) return INVALID_CONTEXT;
  *context = stack[--depth];
  return 0;
}

nsai_cu_context fake_cuda_set_current(nsai_cu_context context) {
  nsai_cu_context before = current();
  depth = 0;
  if (context) push(context);
  return before;
}

static nsai_cu_result set_current(nsai_cu_context context) {
  fake_cuda_set_current(context);
  return 0;
}

/* Whether the device's context is current, as loading and launching need it. */
static int in_context(void) {
  int good = current() == (nsai_cu_context)&record || current() == (nsai_cu_context)&host_context;
  COUNT(wrong_context, !good);
  return good;
}

static nsai_cu_result current_device(nsai_cu_device *device) {
  *device = number("FAKE_CUDA_CURRENT", -1);
  return 0;
}

static nsai_cu_result exchange_mode(int32_t *mode) {
  int32_t before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return 0;
}

static nsai_cu_result load(nsai_cu_library *out, const void *image, void *jit_options,
                           void **jit_values, unsigned jit_count, void *options, void **values,
                           unsigned count) {
  (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  if (!in_context()) return INVALID_CONTEXT;
  if (memcmp(image, "\177ELF", 4) != 0) return NSAI_CUDA_ERROR_NO_BINARY_FOR_GPU;
  if (record.fail_loads && record.fail_loads--) return NSAI_CUDA_ERROR_NO_BINARY_FOR_GPU;
  library *l = calloc(1, sizeof *l);
  if (!l) return NSAI_CUDA_ERROR_OUT_OF_MEMORY;
  if (record.load && !(l->code = record.load(image))) {
    free(l);
    return NSAI_CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  COUNT(loads, 1);
  COUNT(capture_relaxed, capture_mode == NSAI_CU_CAPTURE_RELAXED);
  *out = (nsai_cu_library)(void *)l;
  return 0;
}

static nsai_cu_result unload(nsai_cu_library l) {
  COUNT(unloads, 1);
  free(l);
  return 0;
}

static nsai_cu_result get_kernel(nsai_cu_kernel *kernel, nsai_cu_library l, const char *name) {
  library *self = (library *)(void *)l;
  snprintf(self->name, sizeof self->name, "%s", name);
  *kernel = (nsai_cu_kernel)(void *)l;
  return 0;
}

static nsai_cu_result get_function(nsai_cu_function *function, nsai_cu_kernel kernel) {
  *function = (nsai_cu_function)(void *)kernel;
  return in_context() ? 0 : INVALID_CONTEXT;
}

static nsai_cu_result set_attribute(int attribute, int value, nsai_cu_kernel kernel,
                                    nsai_cu_device device) {
  (void)device;
  if (attribute == NSAI_CU_FUNC_NON_PORTABLE_CLUSTER && value == 1) {
    COUNT(large_clusters, 1);
    return 0;
  }
  if (attribute != NSAI_CU_FUNC_MAX_DYNAMIC_SHARED_BYTES || value > 232448) return INVALID_VALUE;
  ((library *)(void *)kernel)->max_shared_bytes = value;
  return 0;
}

/* A graph, and what is made of it, is the time that it takes and, where kernels run, its launches. */
typedef struct captured {
  fake_cuda_launch launch;
  void *params; /* a copy; NULL: `product` */
  fake_product product;
} captured;

typedef struct graph_contents {
  double ms;
  captured *launches;
  size_t count;
} graph_contents;

static graph_contents capture;

static int add_launch(graph_contents *g, const captured *c, size_t bytes) {
  captured *launches = realloc(g->launches, (g->count + 1) * sizeof *launches);
  void *params = c->params ? malloc(bytes) : NULL;
  if (launches) g->launches = launches;
  if (!launches || (c->params && !params)) return free(params), 0;
  if (params) memcpy(params, c->params, bytes);
  launches[g->count] = *c;
  launches[g->count++].params = params;
  return 1;
}

static size_t bytes_of(const captured *c) {
  return c->params ? record.params_bytes(c->launch.code) : 0;
}

static void free_graph(graph_contents *g) {
  for (size_t i = 0; i < g->count; i++) free(g->launches[i].params);
  free(g->launches);
  *g = (graph_contents){ 0 };
}

void fake_cuda_enqueue(const fake_cuda_launch *launch, const void *params) {
  if (record.capturing && record.load) {
    const captured c = { *launch, (void *)(uintptr_t)params, *fake_cuda_product() };
    if (!add_launch(&capture, &c, bytes_of(&c))) record.broken = LAUNCH_FAILED;
    return;
  }
  const int n = COUNT(launches, 1);
  if (n < FAKE_CUDA_LAUNCHES) record.launch[n] = *launch;
  double ms = record.kernel ? record.kernel(launch, params) : 1;
  pthread_mutex_lock(&fake_cuda_lock);
  *(record.capturing ? &record.captured_ms : &record.clock_ms) += ms;
  pthread_mutex_unlock(&fake_cuda_lock);
}

/* The one attribute that is known; -1: there is another, or several. */
static int get_overlaps(const nsai_cu_launch_config *config) {
  const nsai_cu_launch_attribute *a = config->attributes;
  if (!config->attribute_count) return 0;
  if (config->attribute_count > 1 || a->id != NSAI_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION) return -1;
  return a->value.allowed;
}

static nsai_cu_result launch(const nsai_cu_launch_config *config, nsai_cu_function function,
                             void **params, void **extra) {
  const library *self = (const library *)(void *)function;
  if (!in_context()) return INVALID_CONTEXT;
  if (record.fail_launch && !--record.fail_launch) return LAUNCH_FAILED;
  if (record.broken) return record.broken;
  if (record.refuse_threads == (int)config->block_x &&
      !(record.refuse_spare && record.refuse_spare--))
    return LAUNCH_OUT_OF_RESOURCES;
  if (!self || !params || !params[0] || extra || !config->grid_x || !config->block_x ||
      config->block_x > 1024 || config->grid_z != 1 || config->block_y != 1 ||
      config->block_z != 1 || (int)config->shared_bytes > self->max_shared_bytes)
    return INVALID_VALUE;
  fake_cuda_launch l = { .grid_x = config->grid_x,
                         .grid_y = config->grid_y,
                         .threads = config->block_x,
                         .shared_bytes = config->shared_bytes,
                         .stream = config->stream,
                         .overlaps = get_overlaps(config),
                         .code = self->code };
  if (l.overlaps < 0) return INVALID_VALUE;
  memcpy(l.name, self->name, sizeof l.name);
  fake_cuda_enqueue(&l, params[0]);
  if (record.break_threads == (int)config->block_x) record.broken = ILLEGAL_ADDRESS;
  return 0;
}

/* meson lets the C library fill new memory (MALLOC_PERTURB_); not the 256 MB that a tuner empties
 * the L2 with, which nobody reads. */
#define UNFILLED_BYTES ((size_t)64 << 20)

static void *allocate_aligned(size_t bytes) {
  const char *perturb = bytes < UNFILLED_BYTES ? NULL : getenv("MALLOC_PERTURB_");
  if (perturb) mallopt(M_PERTURB, 0);
  void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (perturb) mallopt(M_PERTURB, atoi(perturb));
  return memory;
}

static nsai_cu_result allocate(nsai_cu_ptr *out, size_t bytes) {
  if (record.most_bytes && bytes > record.most_bytes)
    return record.refusal ? record.refusal : NSAI_CUDA_ERROR_OUT_OF_MEMORY;
  void *memory = allocate_aligned(bytes);
  COUNT(memory_calls, 1);
  COUNT(blocks, memory != NULL);
  *out = (nsai_cu_ptr)(uintptr_t)memory;
  return memory ? 0 : NSAI_CUDA_ERROR_OUT_OF_MEMORY;
}

static nsai_cu_result release_memory(nsai_cu_ptr memory) {
  COUNT(memory_calls, 1);
  if (!memory) return 801;
  COUNT(blocks, -1);
  free((void *)(uintptr_t)memory);
  return 0;
}

/* Ranks write words to each other, and poll them: these are copied as a device does. */
static void move(void *to, const void *from, size_t bytes) {
  if (bytes != sizeof(int) || ((uintptr_t)to | (uintptr_t)from) % sizeof(int)) {
    memcpy(to, from, bytes);
    return;
  }
  const int word = __atomic_load_n((const int *)from, __ATOMIC_ACQUIRE);
  __atomic_store_n((int *)to, word, __ATOMIC_RELEASE);
}

static nsai_cu_result copy(nsai_cu_ptr to, nsai_cu_ptr from, size_t bytes, nsai_cu_stream stream) {
  (void)stream;
  COUNT(memory_calls, 1);
  if (record.broken) return record.broken;
  move((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
  return 0;
}

static nsai_cu_result copy_inside(nsai_cu_ptr to, nsai_cu_ptr from, size_t bytes,
                                  nsai_cu_stream stream) {
  const int at = COUNT(copies, 1);
  if (at < FAKE_CUDA_COPIES)
    record.copy[at] = (fake_cuda_copy){ (const char *)(uintptr_t)to,
                                        (const char *)(uintptr_t)from,
                                        bytes,
                                        stream,
                                        COUNT(launches, 0),
                                        COUNT(edges, 0) };
  if (record.fail_copy && !--record.fail_copy) return LAUNCH_FAILED;
  return copy(to, from, bytes, stream);
}

static nsai_cu_result upload(nsai_cu_ptr to, const void *from, size_t bytes,
                             nsai_cu_stream stream) {
  COUNT(uploads, 1);
  pthread_mutex_lock(&fake_cuda_lock);
  if (bytes > record.most_uploaded) record.most_uploaded = bytes;
  pthread_mutex_unlock(&fake_cuda_lock);
  return copy(to, (nsai_cu_ptr)(uintptr_t)from, bytes, stream);
}

static nsai_cu_result download(void *to, nsai_cu_ptr from, size_t bytes, nsai_cu_stream stream) {
  (void)stream;
  COUNT(memory_calls, 1);
  if (record.broken) return record.broken;
  move(to, (const void *)(uintptr_t)from, bytes);
  return 0;
}

static nsai_cu_result copy_2d(const nsai_cu_copy_2d *c, nsai_cu_stream stream) {
  if (c->from.type != NSAI_CU_MEMORY_DEVICE || c->to.type != NSAI_CU_MEMORY_DEVICE) return 1;
  const size_t most = record.most_pitch ? record.most_pitch : INT32_MAX;
  if (c->from.pitch < c->width || c->to.pitch < c->width) return 1; /* CUDA_ERROR_INVALID_VALUE */
  if (c->from.pitch > most || c->to.pitch > most) return 1;
  for (size_t i = 0; i < c->height; i++) {
    const nsai_cu_result result =
        copy(c->to.device + i * c->to.pitch, c->from.device + i * c->from.pitch, c->width, stream);
    if (result) return result;
  }
  return NSAI_CUDA_SUCCESS;
}

static nsai_cu_result allocate_host(void **out, size_t bytes, unsigned flags) {
  (void)flags;
  *out = malloc(bytes);
  return *out ? 0 : NSAI_CUDA_ERROR_OUT_OF_MEMORY;
}

static nsai_cu_result release_host(void *memory) {
  free(memory);
  return 0;
}

static nsai_cu_result fill(nsai_cu_ptr memory, unsigned char value, size_t bytes,
                           nsai_cu_stream stream) {
  (void)stream;
  COUNT(memory_calls, 1);
  if (record.broken) return record.broken;
  if (bytes < UNFILLED_BYTES || record.fills) memset((void *)(uintptr_t)memory, value, bytes);
  return 0;
}

static nsai_cu_result can_access(int *can, nsai_cu_device device, nsai_cu_device peer) {
  *can = device != peer && !getenv("FAKE_CUDA_NO_PEERS");
  return 0;
}

static nsai_cu_result enable_peer(nsai_cu_context peer, unsigned flags) {
  if (!in_context()) return INVALID_CONTEXT;
  if (peer == current() || flags) return INVALID_VALUE;
  return COUNT(peer_contexts, 1) ? NSAI_CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : 0;
}

/* A handle holds the address: ranks that say to be processes are threads. */
static nsai_cu_result get_ipc(nsai_cu_ipc_handle *out, nsai_cu_ptr memory) {
  memset(out, 0, sizeof *out);
  memcpy(out->bytes, &memory, sizeof memory);
  return 0;
}

static nsai_cu_result open_ipc(nsai_cu_ptr *out, nsai_cu_ipc_handle handle, unsigned flags) {
  if (!in_context()) return INVALID_CONTEXT;
  if (flags != NSAI_CU_IPC_LAZY_PEER_ACCESS || record.refuse_ipc) return INVALID_VALUE;
  memcpy(out, handle.bytes, sizeof *out);
  COUNT(ipc_opened, 1);
  return 0;
}

/* A real one waits for the device. */
static nsai_cu_result close_ipc(nsai_cu_ptr memory) {
  if (__atomic_load_n(&record.stalls, __ATOMIC_RELAXED)) COUNT(ipc_hangs, 1);
  COUNT(ipc_opened, -1);
  return memory ? 0 : INVALID_VALUE;
}

/* Streams are bytes that are never read. */
static nsai_cu_result create_stream(nsai_cu_stream *out, unsigned flags) {
  void *memory = malloc(1);
  (void)flags;
  COUNT(streams, 1);
  *out = (nsai_cu_stream)memory;
  return memory ? 0 : NSAI_CUDA_ERROR_OUT_OF_MEMORY;
}

static nsai_cu_result create_stream_with_priority(nsai_cu_stream *out, unsigned flags,
                                                  int priority) {
  __atomic_store_n(&record.priority, priority, __ATOMIC_RELAXED); /* ranks are threads */
  return create_stream(out, flags);
}

static nsai_cu_result priority_range(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return 0;
}

static nsai_cu_result destroy_stream(nsai_cu_stream stream) {
  COUNT(streams, -1);
  free((void *)stream);
  return 0;
}

/* An event is the time when it was recorded. */
static nsai_cu_result create_event(nsai_cu_event *out, unsigned flags) {
  double *memory = malloc(sizeof *memory);
  (void)flags;
  if (!memory) return NSAI_CUDA_ERROR_OUT_OF_MEMORY;
  *memory = -1;
  COUNT(events, 1);
  *out = (nsai_cu_event)(void *)memory;
  return 0;
}

static nsai_cu_result destroy_event(nsai_cu_event event) {
  COUNT(events, -1);
  free(event);
  return 0;
}

static void note_edge(fake_cuda_edge edge) {
  const int at = __atomic_fetch_add(&record.edges, 1, __ATOMIC_ACQ_REL);
  if (at < FAKE_CUDA_EDGES) record.edge[at] = edge;
}

static nsai_cu_result record_event(nsai_cu_event event, nsai_cu_stream stream) {
  note_edge((fake_cuda_edge){ event, stream, false, COUNT(launches, 0) });
  while (__atomic_load_n(&record.full, __ATOMIC_ACQUIRE)) usleep(500);
  *(double *)(void *)event = record.clock_ms;
  return 0;
}

static nsai_cu_result wait_for_event(nsai_cu_event event) {
  (void)event;
  COUNT(waits, 1);
  return record.broken;
}

/* What was enqueued has happened, but where `stalls` says that the device hangs. */
static nsai_cu_result query_event(nsai_cu_event event) {
  (void)event;
  if (record.broken) return record.broken;
  return __atomic_load_n(&record.stalls, __ATOMIC_RELAXED) ? NSAI_CUDA_ERROR_NOT_READY : 0;
}

static nsai_cu_result query_stream(nsai_cu_stream stream) {
  (void)stream;
  return query_event(NULL);
}

static nsai_cu_result stream_waits(nsai_cu_stream stream, nsai_cu_event event, unsigned flags) {
  (void)flags;
  note_edge((fake_cuda_edge){ event, stream, true, record.launches });
  COUNT(stream_waits, 1);
  return record.broken;
}

static nsai_cu_result elapsed_time(float *ms, nsai_cu_event from, nsai_cu_event to) {
  double begin = *(const double *)(const void *)from, end = *(const double *)(const void *)to;
  if (begin < 0 || end < begin) return INVALID_VALUE;
  *ms = (float)(end - begin);
  return 0;
}

static nsai_cu_result begin_capture(nsai_cu_stream stream, int32_t mode) {
  (void)stream, (void)mode;
  if (record.capturing) return INVALID_VALUE;
  record.capturing = true;
  record.captured_ms = 0;
  return record.broken;
}

static graph_contents *new_graph(const graph_contents *like) {
  graph_contents *g = calloc(1, sizeof *g);
  if (!g) return NULL;
  g->ms = like->ms;
  for (size_t i = 0; i < like->count; i++)
    if (!add_launch(g, &like->launches[i], bytes_of(&like->launches[i]))) {
      free_graph(g);
      free(g);
      return NULL;
    }
  COUNT(graphs, 1);
  return g;
}

static nsai_cu_result end_capture(nsai_cu_stream stream, nsai_cu_graph *out) {
  (void)stream;
  if (!record.capturing) return INVALID_VALUE;
  record.capturing = false;
  capture.ms = record.captured_ms;
  *out = (nsai_cu_graph)(void *)new_graph(&capture);
  free_graph(&capture);
  return *out ? record.broken : NSAI_CUDA_ERROR_OUT_OF_MEMORY;
}

static nsai_cu_result is_capturing(nsai_cu_stream stream, int32_t *status) {
  *status = record.capturing || (record.captured && stream == record.captured);
  return record.broken;
}

static nsai_cu_result instantiate(nsai_cu_graph_exec *out, nsai_cu_graph graph, uint64_t flags) {
  (void)flags;
  *out = (nsai_cu_graph_exec)(void *)new_graph((const graph_contents *)(const void *)graph);
  return *out ? record.broken : NSAI_CUDA_ERROR_OUT_OF_MEMORY;
}

static nsai_cu_result launch_graph(nsai_cu_graph_exec graph, nsai_cu_stream stream) {
  (void)stream;
  COUNT(graph_launches, 1);
  const graph_contents *g = (const graph_contents *)(const void *)graph;
  pthread_mutex_lock(&fake_cuda_lock);
  record.clock_ms += g->ms;
  pthread_mutex_unlock(&fake_cuda_lock);
  for (size_t i = 0; i < g->count; i++) {
    *fake_cuda_product() = record.product = g->launches[i].product;
    fake_cuda_enqueue(&g->launches[i].launch, g->launches[i].params);
  }
  return record.broken;
}

static nsai_cu_result destroy_graph(nsai_cu_graph graph) {
  COUNT(graphs, -1);
  free_graph((graph_contents *)(void *)graph);
  free((void *)graph);
  return 0;
}

static nsai_cu_result destroy_graph_exec(nsai_cu_graph_exec graph) {
  COUNT(graphs, -1);
  free_graph((graph_contents *)(void *)graph);
  free((void *)graph);
  return 0;
}

/* Addresses whose page offset has bit 4 set are the host's: the tests choose. */
static nsai_cu_result pointer_attribute(void *value, int attribute, nsai_cu_ptr memory) {
  uint32_t host = NSAI_CU_MEMORY_HOST, device = 2;
  if (attribute != NSAI_CU_POINTER_MEMORY_TYPE) return INVALID_VALUE;
  if (!in_context()) return INVALID_CONTEXT;
  memcpy(value, memory & 16 && !record.load ? &host : &device, sizeof host);
  return 0;
}

static nsai_cu_result wait_for_stream(nsai_cu_stream stream) {
  (void)stream;
  COUNT(waits, 1);
  return record.broken;
}

/* What a map of the fake driver holds: the arguments that it was made of. */
typedef struct map_contents {
  void *address;
  int8_t type, rank, interleave, swizzle, promotion, fill;
  uint16_t box[5];
  uint64_t extents[5], strides[4];
} map_contents;
_Static_assert(sizeof(map_contents) <= 128, "CUtensorMap is 128 bytes");

/* Refuses what the driver refuses. */
static nsai_cu_result encode_map(void *map, int32_t type, uint32_t rank, void *address,
                                 const uint64_t *extents, const uint64_t *strides,
                                 const uint32_t *box, const uint32_t *steps, int32_t interleave,
                                 int32_t swizzle, int32_t promotion, int32_t fill_with) {
  map_contents m = { .address = address,
                     .type = (int8_t)type,
                     .rank = (int8_t)rank,
                     .interleave = (int8_t)interleave,
                     .swizzle = (int8_t)swizzle,
                     .promotion = (int8_t)promotion,
                     .fill = (int8_t)fill_with };
  if (!address || (uintptr_t)address % 16 || (uintptr_t)map % 64 || rank > 5) return INVALID_VALUE;
  for (uint32_t i = 0; i < rank; i++) {
    if (!extents[i] || extents[i] > 1ull << 32 || !box[i] || box[i] > 256 || steps[i] != 1)
      return INVALID_VALUE;
    if (i && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40)) return INVALID_VALUE;
    m.box[i] = (uint16_t)box[i];
    m.extents[i] = extents[i];
    if (i) m.strides[i - 1] = strides[i - 1];
  }
  memcpy(map, &m, sizeof m);
  return 0;
}

static nsai_cu_result unsupported(void) { return 801; }

nsai_cu_result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                   int32_t *found) {
  typedef void (*any)(void);
  static const struct {
    const char *name;
    any function;
  } table[] = {
    { "cuInit", (any)init },
    { "cuDriverGetVersion", (any)get_version },
    { "cuGetErrorName", (any)get_error },
    { "cuGetErrorString", (any)get_error },
    { "cuDeviceGetCount", (any)get_count },
    { "cuDeviceGet", (any)get_device },
    { "cuDeviceGetName", (any)get_name },
    { "cuDeviceGetUuid", (any)get_uuid },
    { "cuDeviceGetPCIBusId", (any)get_pci },
    { "cuDeviceGetByPCIBusId", (any)by_pci },
    { "cuDeviceGetAttribute", (any)get_attribute },
    { "cuDeviceTotalMem", (any)total_memory },
    { "cuDevicePrimaryCtxRetain", (any)retain },
    { "cuDevicePrimaryCtxRelease", (any)release },
    { "cuCtxGetCurrent", (any)get_current },
    { "cuCtxGetDevice", (any)current_device },
    { "cuCtxSetCurrent", (any)set_current },
    { "cuCtxPushCurrent", (any)push },
    { "cuCtxPopCurrent", (any)pop },
    { "cuThreadExchangeStreamCaptureMode", (any)exchange_mode },
    { "cuLibraryLoadData", (any)load },
    { "cuLibraryUnload", (any)unload },
    { "cuLibraryGetKernel", (any)get_kernel },
    { "cuKernelGetFunction", (any)get_function },
    { "cuKernelSetAttribute", (any)set_attribute },
    { "cuLaunchKernelEx", (any)launch },
    { "cuTensorMapEncodeTiled", (any)encode_map },
    { "cuMemAlloc", (any)allocate },
    { "cuMemFree", (any)release_memory },
    { "cuPointerGetAttribute", (any)pointer_attribute },
    { "cuStreamSynchronize", (any)wait_for_stream },
    { "cuMemcpyHtoDAsync", (any)upload },
    { "cuMemcpyDtoHAsync", (any)download },
    { "cuMemcpyDtoDAsync", (any)copy_inside },
    { "cuMemcpy2DAsync", (any)copy_2d },
    { "cuMemHostAlloc", (any)allocate_host },
    { "cuMemFreeHost", (any)release_host },
    { "cuMemsetD8Async", (any)fill },
    { "cuDeviceCanAccessPeer", (any)can_access },
    { "cuCtxEnablePeerAccess", (any)enable_peer },
    { "cuIpcGetMemHandle", (any)get_ipc },
    { "cuIpcOpenMemHandle", (any)open_ipc },
    { "cuIpcCloseMemHandle", (any)close_ipc },
    { "cuStreamCreate", (any)create_stream },
    { "cuStreamCreateWithPriority", (any)create_stream_with_priority },
    { "cuCtxGetStreamPriorityRange", (any)priority_range },
    { "cuStreamDestroy", (any)destroy_stream },
    { "cuEventCreate", (any)create_event },
    { "cuEventDestroy", (any)destroy_event },
    { "cuEventRecord", (any)record_event },
    { "cuEventQuery", (any)query_event },
    { "cuEventSynchronize", (any)wait_for_event },
    { "cuEventElapsedTime", (any)elapsed_time },
    { "cuStreamIsCapturing", (any)is_capturing },
    { "cuStreamQuery", (any)query_stream },
    { "cuStreamWaitEvent", (any)stream_waits },
    { "cuStreamBeginCapture", (any)begin_capture },
    { "cuStreamEndCapture", (any)end_capture },
    { "cuGraphInstantiateWithFlags", (any)instantiate },
    { "cuGraphLaunch", (any)launch_graph },
    { "cuGraphDestroy", (any)destroy_graph },
    { "cuGraphExecDestroy", (any)destroy_graph_exec },
  };
  any result = (any)unsupported;
  const char *hidden = getenv("FAKE_CUDA_HIDE");
  (void)version, (void)flags;
  *found = hidden && strcmp(hidden, name) == 0;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
    if (strcmp(table[i].name, name) == 0) result = table[i].function;
  memcpy(function, &result, sizeof result);
  return 0;
}

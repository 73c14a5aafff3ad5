/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One layer of a small inference engine, as a host writes it: a pool of pages, requests that come
 * and go, prompts in chunks beside sequences that decode, and two CUDA graphs, captured once, for
 * all steps.
 *
 *   a step with a prompt in it:  nsa_kv_append, nsa_prefill   CHUNK + ROWS tokens at most
 *   a step of decoding alone:    nsa_kv_append, nsa_decode    one token of each of ROWS rows
 *
 * The loop runs on the CPU device, where each request must get the bits of one nsa_prefill over all
 * of its tokens, and then on the GPU, where it must get nearly the same. In the place of a model's
 * projections stand numbers that follow from the request and the position.
 *
 * Knows the public headers alone, and of CUDA the few functions below. Exit status: 0, 1 when
 * something is wrong, 77 when all is well but there is no GPU.
 */
#include <nsa/kv_cache.h>
#include <nsa/nsa.h>

#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  HQ = 8,
  HKV = 2,
  DIM = 64,
  PAGE = 32,
  STRIDE = 16,
  ROWS = 4,
  CHUNK = 48,
  TOKENS = CHUNK + ROWS
};
enum { PAGES = 24, MAX_LEN = 384, LIST = MAX_LEN / PAGE, REQUESTS = 9, WIDTH = HQ * DIM };

static const nsa_model model = { .struct_size = sizeof(nsa_model),
                                 .heads = HQ,
                                 .kv_heads = HKV,
                                 .head_dim_qk = DIM,
                                 .compress_block = 32,
                                 .compress_stride = STRIDE,
                                 .select_block = 32,
                                 .select_count = 6,
                                 .window = 64,
                                 .kv_sharing = NSA_KV_SHARED };

static void fail(const char *what) {
  fprintf(stderr, "serve: %s\n", what);
  exit(1);
}

static void check(nsa_status status) {
  if (status != NSA_OK) fail(nsa_last_error());
}

/* ---- CUDA, or nothing of it ---- */

enum { STUB_LIBRARY = 34, NO_DEVICE = 100 }; /* of CUresult: there is no GPU */

typedef struct cuda {
  int (*init)(unsigned), (*device_get)(int *, int);
  int (*retain)(void **, int), (*set_current)(void *);
  int (*alloc)(unsigned long long *, size_t), (*put)(unsigned long long, const void *, size_t);
  int (*get)(void *, unsigned long long, size_t);
  int (*stream_create)(nsa_stream *, unsigned), (*wait)(nsa_stream);
  int (*begin)(nsa_stream, int), (*end)(nsa_stream, void **);
  int (*instantiate)(void **, void *, unsigned long long), (*launch)(void *, nsa_stream);
} cuda;

/* Where a loop runs. */
typedef struct machine {
  bool gpu;
  cuda cu;
  nsa_stream stream;
} machine;

static void expect(int result, const char *what) {
  if (result) fail(what);
}

/* False: there is no GPU. */
static bool open_gpu(machine *m) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
  int device = 0;
  const struct {
    void **to;
    const char *name;
  } all[] = { { (void **)&m->cu.init, "cuInit" },
              { (void **)&m->cu.device_get, "cuDeviceGet" },
              { (void **)&m->cu.retain, "cuDevicePrimaryCtxRetain" },
              { (void **)&m->cu.set_current, "cuCtxSetCurrent" },
              { (void **)&m->cu.alloc, "cuMemAlloc_v2" },
              { (void **)&m->cu.put, "cuMemcpyHtoD_v2" },
              { (void **)&m->cu.get, "cuMemcpyDtoH_v2" },
              { (void **)&m->cu.stream_create, "cuStreamCreate" },
              { (void **)&m->cu.wait, "cuStreamSynchronize" },
              { (void **)&m->cu.begin, "cuStreamBeginCapture_v2" },
              { (void **)&m->cu.end, "cuStreamEndCapture" },
              { (void **)&m->cu.instantiate, "cuGraphInstantiateWithFlags" },
              { (void **)&m->cu.launch, "cuGraphLaunch" } };
  if (!lib) return false;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!(*all[i].to = dlsym(lib, all[i].name))) fail(all[i].name);
  int result = m->cu.init(0);
  if (result == NO_DEVICE || result == STUB_LIBRARY) return false;
  expect(result || m->cu.device_get(&device, 0), "CUDA does not start");
  expect(m->cu.retain(&context, device) || m->cu.set_current(context), "no CUDA context");
  expect(m->cu.stream_create(&m->stream, 0), "no stream");
  m->gpu = true;
  return true;
}

static void *take(const machine *m, size_t bytes) {
  unsigned long long on_gpu = 0;
  void *p = m->gpu ? NULL : aligned_alloc(256, (bytes / 256 + 1) * 256); /* as cuMemAlloc aligns */
  if (m->gpu) expect(m->cu.alloc(&on_gpu, bytes), "no device memory");
  if (!m->gpu && !p) fail("no memory");
  return m->gpu ? (void *)(uintptr_t)on_gpu : p;
}

static void give(const machine *m, void *p) {
  if (!m->gpu) free(p); /* the GPU's goes with the process, as stream and graphs do */
}

static void put(const machine *m, void *to, const void *from, size_t bytes) {
  if (m->gpu) expect(m->cu.put((uintptr_t)to, from, bytes), "cuMemcpyHtoD");
  if (!m->gpu) memcpy(to, from, bytes);
}

static void get(const machine *m, void *to, const void *from, size_t bytes) {
  if (m->gpu) expect(m->cu.get(to, (uintptr_t)from, bytes), "cuMemcpyDtoH");
  if (!m->gpu) memcpy(to, from, bytes);
}

/* ---- numbers ---- */

static uint16_t to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

enum { Q, K, V, GATE, KINDS };
static const int64_t heads_of[KINDS] = { HQ, HKV, HKV, HQ }, dim_of[KINDS] = { DIM, DIM, DIM, 3 };

/* What a model's projections would give for a token, about normal. */
static void project(int kind, int request, int position, uint16_t *out) {
  uint64_t x = (uint64_t)((request * KINDS + kind) * MAX_LEN + position) * 0x9e3779b97f4a7c15u + 1;
  for (int64_t i = 0; i < heads_of[kind] * dim_of[kind]; i++) {
    float sum = 0;
    for (int n = 0; n < 4; n++) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      sum += (float)(x >> 40) / (float)(1 << 24) - 0.5f;
    }
    out[i] = to_bf16(1.7f * sum);
  }
}

/* ---- a layer: plans, the cache, and what the steps' graphs read and write ---- */

typedef struct layer {
  const machine *m;
  nsa_ctx *ctx;
  nsa_plan *append, *prefill, *decode;
  nsa_exec exec;
  nsa_kv cache;
  nsa_tensor in[KINDS], o, cu_q, kv_len, table;
  void *graph[2]; /* of decoding alone, of steps with prompts */
} layer;

static nsa_tensor tensor(const machine *m, int32_t dtype, int32_t ndim, int64_t a, int64_t b,
                         int64_t c, int64_t d) {
  nsa_tensor t = { .shape = { a, b, c, d }, .ndim = ndim, .dtype = dtype };
  int64_t count = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    t.stride[i] = count;
    count *= t.shape[i];
  }
  t.data = take(m, (size_t)count * (dtype == NSA_BF16 ? 2 : 4));
  return t;
}

static nsa_plan *make_plan(layer *l, int32_t op, int32_t seqs, int32_t tokens, int32_t q_len) {
  nsa_problem p = NSA_PROBLEM_INIT;
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_plan *plan = NULL;
  p.op = op;
  p.max_seqs = seqs;
  p.max_tokens = tokens;
  p.max_q_len = q_len;
  p.max_kv_len = MAX_LEN;
  p.page_size = PAGE;
  check(nsa_plan_create(l->ctx, &p, NULL, NULL, &plan));
  check(nsa_plan_caps(plan, &caps)); /* one workspace serves all: the calls follow each other */
  if (caps.workspace_bytes > l->exec.workspace_bytes)
    l->exec.workspace_bytes = caps.workspace_bytes;
  return plan;
}

static void open_layer(layer *l, const machine *m, int32_t seqs, int32_t tokens, int32_t q_len) {
  nsa_options o = NSA_OPTIONS_INIT;
  *l = (layer){ .m = m, .exec = NSA_EXEC_INIT };
  o.model = &model;
  if (!m->gpu) o.device = "cpu";
  check(nsa_create(NULL, &o, &l->ctx));
  l->append = make_plan(l, NSA_OP_APPEND, seqs, tokens, q_len);
  l->prefill = make_plan(l, NSA_OP_PREFILL, seqs, tokens, q_len);
  l->decode = make_plan(l, NSA_OP_DECODE, seqs, 0, 1);
  l->exec.workspace = l->exec.workspace_bytes ? take(m, l->exec.workspace_bytes) : NULL;
  l->exec.stream = m->stream;
  l->cache.k[0] = tensor(m, NSA_BF16, 4, PAGES, PAGE, HKV, DIM);
  l->cache.v[0] = tensor(m, NSA_BF16, 4, PAGES, PAGE, HKV, DIM);
  l->cache.k_cmp = tensor(m, NSA_BF16, 4, PAGES, PAGE / STRIDE, HKV, DIM);
  l->cache.v_cmp = tensor(m, NSA_BF16, 4, PAGES, PAGE / STRIDE, HKV, DIM);
  for (int kind = 0; kind < KINDS; kind++)
    l->in[kind] = tensor(m, NSA_BF16, 3, tokens, heads_of[kind], dim_of[kind], 0);
  l->o = tensor(m, NSA_BF16, 3, tokens, HQ, DIM, 0);
  l->cu_q = tensor(m, NSA_I32, 1, seqs + 1, 0, 0, 0);
  l->kv_len = tensor(m, NSA_I32, 1, seqs, 0, 0, 0);
  l->table = tensor(m, NSA_I32, 2, seqs, LIST, 0, 0);
}

static void close_layer(layer *l) {
  nsa_plan_destroy(l->append);
  nsa_plan_destroy(l->prefill);
  nsa_plan_destroy(l->decode);
  nsa_destroy(l->ctx);
  void *const memory[] = { l->cache.k[0].data,  l->cache.v[0].data, l->cache.k_cmp.data,
                           l->cache.v_cmp.data, l->o.data,          l->cu_q.data,
                           l->kv_len.data,      l->table.data,      l->exec.workspace };
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) give(l->m, memory[i]);
  for (int kind = 0; kind < KINDS; kind++) give(l->m, l->in[kind].data);
}

static nsa_tensor rows_of(nsa_tensor t, int64_t rows) {
  t.shape[0] = rows;
  return t;
}

/* The calls of a step; where tokens lie and how long sequences are is read when they run. */
static void enqueue(layer *l, bool prompts) {
  nsa_batch batch = NSA_BATCH_INIT;
  nsa_io io = NSA_IO_INIT;
  int64_t tokens = prompts ? l->o.shape[0] : l->kv_len.shape[0];
  batch.num_seqs = (int32_t)l->kv_len.shape[0];
  if (prompts) batch.cu_q = l->cu_q; /* else one token of each row */
  batch.kv_len = l->kv_len;
  batch.block_table = l->table;
  io.new_kv.k[0] = rows_of(l->in[K], tokens);
  io.new_kv.v[0] = rows_of(l->in[V], tokens);
  io.q = rows_of(l->in[Q], tokens);
  io.gate.value = rows_of(l->in[GATE], tokens);
  io.o = rows_of(l->o, tokens);
  io.kv = l->cache;
  check(nsa_kv_append(l->append, &l->exec, &batch, &io));
  check(prompts ? nsa_prefill(l->prefill, &l->exec, &batch, &io)
                : nsa_decode(l->decode, &l->exec, &batch, &io));
}

/* Runs a step; on the GPU by its graph, captured when the first one of its kind comes. */
static void run(layer *l, bool prompts) {
  const cuda *cu = &l->m->cu;
  nsa_stream stream = l->m->stream;
  if (!l->m->gpu) {
    enqueue(l, prompts);
    return;
  }
  if (!l->graph[prompts]) {
    void *graph = NULL;
    expect(cu->begin(stream, 0), "cuStreamBeginCapture");
    enqueue(l, prompts);
    expect(cu->end(stream, &graph), "cuStreamEndCapture");
    expect(cu->instantiate(&l->graph[prompts], graph, 0), "cuGraphInstantiate");
  }
  expect(cu->launch(l->graph[prompts], stream) || cu->wait(stream), "a step failed");
}

/* ---- requests ---- */

typedef struct request {
  int arrival;        /* step that it comes with */
  int prompt, answer; /* tokens; the answer's are decoded one by one */
  int done, pages;
  int32_t page[LIST];
  uint16_t *o; /* [prompt + answer, Hq, D] */
} request;

static const request requests[REQUESTS] = {
  { 0, 100, 30, 0, 0, { 0 }, NULL },  { 0, 7, 60, 0, 0, { 0 }, NULL },
  { 2, 300, 12, 0, 0, { 0 }, NULL },  { 3, 1, 20, 0, 0, { 0 }, NULL },
  { 5, 64, 64, 0, 0, { 0 }, NULL },   { 20, 200, 40, 0, 0, { 0 }, NULL },
  { 30, 33, 100, 0, 0, { 0 }, NULL }, { 31, 350, 34, 0, 0, { 0 }, NULL },
  { 60, 15, 9, 0, 0, { 0 }, NULL },
};

static int length_of(const request *r) { return r->prompt + r->answer; }

typedef struct engine {
  layer layer;
  request all[REQUESTS];
  int row[ROWS]; /* the request that has it; -1: free */
  int32_t free_page[PAGES];
  int free_pages, step, mixed_steps, decode_steps;
} engine;

/* One step on the host. */
typedef struct batch {
  int32_t cu_q[ROWS + 1], kv_len[ROWS], table[ROWS * LIST];
  int tokens, request[TOKENS], position[TOKENS];
  bool prompts;
} batch;

/* Gives free rows to requests that have come and whose pages there are. */
static void admit(engine *e) {
  for (int i = 0, row = 0; i < REQUESTS; i++) {
    request *r = &e->all[i];
    int pages = (length_of(r) + PAGE - 1) / PAGE;
    if (r->pages || r->arrival > e->step || pages > e->free_pages) continue;
    while (row < ROWS && e->row[row] >= 0) row++;
    if (row == ROWS) return;
    e->row[row] = i;
    for (; r->pages < pages; r->pages++) r->page[r->pages] = e->free_page[--e->free_pages];
  }
}

/* Every prompt gets a part of what a chunk may have, every other sequence one token. */
static void compose(const engine *e, batch *b) {
  int chunk = CHUNK;
  memset(b, 0, sizeof *b);
  memset(b->table, 0x7f, sizeof b->table); /* not to be looked at */
  for (int row = 0; row < ROWS; row++)
    b->prompts |= e->row[row] >= 0 && e->all[e->row[row]].done < e->all[e->row[row]].prompt;
  for (int row = 0; row < ROWS; row++) {
    const request *r = e->row[row] < 0 ? NULL : &e->all[e->row[row]];
    int count = r ? 1 : !b->prompts; /* decoding alone, a free row is a padded one */
    if (r && r->done < r->prompt) {
      count = r->prompt - r->done < chunk ? r->prompt - r->done : chunk;
      chunk -= count;
    }
    for (int i = 0; i < count; i++) {
      b->request[b->tokens] = e->row[row];
      b->position[b->tokens++] = r ? r->done + i : 0;
    }
    b->cu_q[row + 1] = b->tokens;
    b->kv_len[row] = r && count ? r->done + count : 0;
    if (r) memcpy(b->table + row * LIST, r->page, (size_t)r->pages * sizeof *r->page);
  }
}

static void upload(layer *l, const batch *b) {
  for (int kind = 0; kind < KINDS; kind++) {
    int64_t width = l->in[kind].stride[0];
    uint16_t *rows = calloc((size_t)(b->tokens * width) + 1, sizeof *rows);
    if (!rows) fail("no memory");
    for (int i = 0; i < b->tokens; i++)
      if (b->request[i] >= 0) project(kind, b->request[i], b->position[i], rows + i * width);
    put(l->m, l->in[kind].data, rows, (size_t)(b->tokens * width) * sizeof *rows);
    free(rows);
  }
  put(l->m, l->cu_q.data, b->cu_q, sizeof b->cu_q);
  put(l->m, l->kv_len.data, b->kv_len, sizeof b->kv_len);
  put(l->m, l->table.data, b->table, sizeof b->table);
}

/* Keeps the outputs; what is complete gives its row and pages back. */
static void finish(engine *e, const batch *b) {
  static uint16_t o[TOKENS * WIDTH];
  get(e->layer.m, o, e->layer.o.data, (size_t)b->tokens * WIDTH * sizeof *o);
  for (int i = 0; i < b->tokens; i++) {
    if (b->request[i] < 0) continue;
    request *r = &e->all[b->request[i]];
    memcpy(r->o + (int64_t)b->position[i] * WIDTH, o + (int64_t)i * WIDTH, WIDTH * sizeof *o);
    r->done = b->position[i] + 1;
  }
  for (int row = 0; row < ROWS; row++) {
    request *r = e->row[row] < 0 ? NULL : &e->all[e->row[row]];
    if (!r || r->done < length_of(r)) continue;
    for (int i = 0; i < r->pages; i++) e->free_page[e->free_pages++] = r->page[i];
    e->row[row] = -1;
  }
}

static bool is_done(const engine *e) {
  for (int i = 0; i < REQUESTS; i++)
    if (e->all[i].done < length_of(&e->all[i])) return false;
  return true;
}

static void serve(engine *e, const machine *m) {
  memset(e, 0, sizeof *e);
  open_layer(&e->layer, m, ROWS, TOKENS, CHUNK);
  memcpy(e->all, requests, sizeof requests);
  for (int i = 0; i < REQUESTS; i++) {
    e->all[i].o = malloc((size_t)length_of(&e->all[i]) * WIDTH * sizeof(uint16_t));
    if (!e->all[i].o) fail("no memory");
  }
  for (int row = 0; row < ROWS; row++) e->row[row] = -1;
  for (; e->free_pages < PAGES; e->free_pages++)
    e->free_page[e->free_pages] = e->free_pages * 7 % PAGES;
  for (; !is_done(e); e->step++) {
    batch b;
    admit(e);
    compose(e, &b);
    if (!b.tokens) continue;
    upload(&e->layer, &b);
    run(&e->layer, b.prompts);
    finish(e, &b);
    *(b.prompts ? &e->mixed_steps : &e->decode_steps) += 1;
  }
  printf("serve: %d requests on the %s, %d steps with prompts, %d of decoding alone\n", REQUESTS,
         m->gpu ? "GPU" : "CPU device", e->mixed_steps, e->decode_steps);
  close_layer(&e->layer);
}

/* ---- checks ---- */

/* One prefill over all of a request's tokens must give the bits that the steps gave. */
static void check_whole(const machine *cpu, const request *r, int number) {
  int tokens = length_of(r);
  layer l;
  open_layer(&l, cpu, 1, tokens, tokens);
  for (int kind = 0; kind < KINDS; kind++)
    for (int i = 0; i < tokens; i++)
      project(kind, number, i, (uint16_t *)l.in[kind].data + i * l.in[kind].stride[0]);
  ((int32_t *)l.cu_q.data)[0] = 0;
  ((int32_t *)l.cu_q.data)[1] = ((int32_t *)l.kv_len.data)[0] = tokens;
  for (int32_t i = 0; i < LIST; i++) ((int32_t *)l.table.data)[i] = i;
  run(&l, true);
  if (memcmp(l.o.data, r->o, (size_t)tokens * WIDTH * sizeof *r->o))
    fail("a request got other bits in steps than in one prefill");
  close_layer(&l);
}

/* Rows of the GPU against the CPU device's: within 2 %, where the same blocks were chosen. Near the
 * cut a row may choose one that weighs as much as another: one in fifty at most, and never far
 * off. */
static void compare(const request *got, const request *want) {
  int tokens = length_of(got), off = 0;
  for (int i = 0; i < tokens; i++) {
    double error = 0, norm = 0;
    for (int64_t e = (int64_t)i * WIDTH; e < (int64_t)(i + 1) * WIDTH; e++) {
      double a = (double)from_bf16(got->o[e]), b = (double)from_bf16(want->o[e]);
      error += (a - b) * (a - b);
      norm += b * b;
    }
    if (!(error <= 0.5 * 0.5 * norm)) fail("a row on the GPU is far off, or not a number");
    off += error > 0.02 * 0.02 * norm;
  }
  if (off * 50 > tokens) fail("rows on the GPU are off by more than 2 %");
}

int main(void) {
  static engine on_cpu, on_gpu;
  machine cpu = { 0 }, gpu = { 0 };
  serve(&on_cpu, &cpu);
  for (int i = 0; i < REQUESTS; i++) check_whole(&cpu, &on_cpu.all[i], i);
  if (!open_gpu(&gpu)) {
    printf("serve: the CPU device is right; there is no GPU\n");
    return 77;
  }
  serve(&on_gpu, &gpu);
  for (int i = 0; i < REQUESTS; i++) compare(&on_gpu.all[i], &on_cpu.all[i]);
  printf("serve: both agree\n");
  return 0;
}

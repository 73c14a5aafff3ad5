/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A small inference engine in C: a paged KV cache, continuous batching, greedy decoding. It reads
 * the weights file and the prompts of serve.py, which says what it prints, and prints the same.
 *
 *   serve [--small] [--new N] [--rows N] [--pages N] WEIGHTS < PROMPTS
 *
 *   cc serve.c $(pkg-config --cflags --libs libnsa) -lm -o serve
 *
 * The model is computed here in plain C, and its attention by libnsa on the CPU device, in float32.
 * An engine for a GPU has its matrix products there, keeps the cache and the tensors of a step in
 * device memory, and captures the steps into graphs. The calls of libnsa stay as they are;
 * tests/hosts/serve.c shows the rest.
 */
#define _POSIX_C_SOURCE 200809L /* getline */
#include <nsa/nsa.h>

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, PAGE = 64, CHUNK = 48, MAX_LEN = 2048, LIST = MAX_LEN / PAGE };
enum { MAX_LAYERS = 128, MAX_ROWS = 256, MAX_TOKENS = CHUNK + MAX_ROWS };

static void fail(const char *what) {
  fprintf(stderr, "serve: %s\n", what);
  exit(1);
}

static void check(nsa_status status) {
  if (status != NSA_OK) fail(nsa_last_error());
}

/* Zeros, aligned as device memory is. */
static void *take(size_t bytes) {
  size_t room = (bytes / 256 + 1) * 256;
  void *p = aligned_alloc(256, room);
  if (!p) fail("no memory");
  return memset(p, 0, room);
}

/* ---- the model, as weights.py describes it ---- */

typedef struct layer {
  float *attn_norm, *q, *k, *v, *gate, *gate_bias, *o, *mlp_norm, *mlp_gate, *up, *down;
} layer;

typedef struct model {
  int width, ffn, layers, heads, kv_heads, dim, block, stride, select, count, window;
  double theta, eps;
  float *embed, *norm, *head;
  layer layer[MAX_LAYERS];
} model;

static float *read_tensor(FILE *file, size_t rows, size_t columns) {
  float *x = take(rows * columns * sizeof *x);
  if (fread(x, sizeof *x, rows * columns, file) != rows * columns)
    fail("the weights file ends early");
  return x;
}

static void load(model *m, const char *path) {
  FILE *file = fopen(path, "rb");
  char line[1024];
  if (!file || !fgets(line, sizeof line, file)) fail("the weights file cannot be read");
  if (sscanf(
          line,
          "libnsa-example-weights width=%d ffn=%d layers=%d heads=%d kv_heads=%d dim=%d block=%d "
          "stride=%d select=%d count=%d window=%d theta=%lf eps=%lf",
          &m->width, &m->ffn, &m->layers, &m->heads, &m->kv_heads, &m->dim, &m->block, &m->stride,
          &m->select, &m->count, &m->window, &m->theta, &m->eps) != 13)
    fail("that is no weights file of the examples");
  if (m->width < 1 || m->ffn < 1 || m->heads < 1 || m->kv_heads < 1 || m->dim < 2 || m->dim % 2 ||
      m->stride < 1 || PAGE % m->stride || m->layers < 0 || m->layers > MAX_LAYERS)
    fail("the model of the weights file is not one that this program serves");
  size_t width = (size_t)m->width, ffn = (size_t)m->ffn;
  size_t q = (size_t)m->heads * (size_t)m->dim, kv = (size_t)m->kv_heads * (size_t)m->dim;
  size_t gates = 3 * (size_t)m->heads;
  m->embed = read_tensor(file, BYTES, width);
  for (int i = 0; i < m->layers; i++) {
    layer *l = &m->layer[i];
    l->attn_norm = read_tensor(file, 1, width);
    l->q = read_tensor(file, q, width);
    l->k = read_tensor(file, kv, width);
    l->v = read_tensor(file, kv, width);
    l->gate = read_tensor(file, gates, width);
    l->gate_bias = read_tensor(file, 1, gates);
    l->o = read_tensor(file, width, q);
    l->mlp_norm = read_tensor(file, 1, width);
    l->mlp_gate = read_tensor(file, ffn, width);
    l->up = read_tensor(file, ffn, width);
    l->down = read_tensor(file, width, ffn);
  }
  m->norm = read_tensor(file, 1, width);
  m->head = read_tensor(file, BYTES, width);
  if (fgetc(file) != EOF) fail("the weights file goes on behind the last tensor");
  fclose(file);
}

/* y [rows, out] = x [rows, in] * w^T, with w [out, in]; added to y if `add`. */
static void linear(float *y, const float *x, const float *w, int rows, int in, int out, int add) {
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < out; j++) {
      float sum = 0;
      for (int i = 0; i < in; i++) sum += x[r * in + i] * w[j * in + i];
      y[r * out + j] = add ? y[r * out + j] + sum : sum;
    }
}

static void normalise(float *y, const float *x, const float *w, int rows, int width, double eps) {
  for (int r = 0; r < rows; r++) {
    double sum = 0;
    for (int i = 0; i < width; i++) sum += (double)x[r * width + i] * (double)x[r * width + i];
    double scale = 1 / sqrt(sum / width + eps);
    for (int i = 0; i < width; i++) y[r * width + i] = (float)(x[r * width + i] * scale) * w[i];
  }
}

/* Rotary embedding of x [rows, heads, dim]: element i turns with element i + dim/2. */
static void rotate(const model *m, float *x, const int *position, int rows, int heads) {
  const int half = m->dim / 2;
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < half; i++) {
      double angle = position[r] * pow(m->theta, -2.0 * i / m->dim);
      float c = (float)cos(angle), s = (float)sin(angle);
      for (int h = 0; h < heads; h++) {
        float *a = x + (r * heads + h) * m->dim + i, *b = a + half, first = *a;
        *a = first * c - *b * s;
        *b = *b * c + first * s;
      }
    }
}

/* ---- the engine: plans, the caches of all layers, and the tensors of a step ---- */

typedef struct engine {
  const model *m;
  int rows, pages;
  nsa_ctx *ctx;
  nsa_plan *append, *prefill, *decode;
  nsa_exec exec;
  nsa_batch batch;
  nsa_io io;
  nsa_kv cache[MAX_LAYERS];
  float *x, *h, *gate, *up; /* [tokens, width or ffn] */
  int token[MAX_TOKENS], position[MAX_TOKENS], tokens;
} engine;

static nsa_tensor tensor(int dtype, int ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
  nsa_tensor t = { .shape = { a, b, c, d }, .ndim = ndim, .dtype = dtype };
  int64_t count = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    t.stride[i] = count;
    count *= t.shape[i];
  }
  t.data = take((size_t)count * 4);
  return t;
}

static nsa_plan *make_plan(engine *e, int op, int tokens, int q_len) {
  nsa_problem problem = NSA_PROBLEM_INIT;
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_plan *plan = NULL;
  problem.op = op;
  problem.max_seqs = e->rows;
  problem.max_tokens = tokens;
  problem.max_q_len = q_len;
  problem.max_kv_len = MAX_LEN;
  problem.page_size = PAGE;
  check(nsa_plan_create(e->ctx, &problem, NULL, NULL, &plan));
  check(nsa_plan_caps(plan, &caps)); /* one workspace serves all: the calls follow each other */
  if (caps.workspace_bytes > e->exec.workspace_bytes)
    e->exec.workspace_bytes = caps.workspace_bytes;
  return plan;
}

static void open_engine(engine *e, const model *m, int rows, int pages) {
  nsa_options options = NSA_OPTIONS_INIT;
  nsa_model shape = NSA_MODEL_INIT;
  const int tokens = CHUNK + rows;
  *e = (engine){ .m = m, .rows = rows, .pages = pages };
  e->exec = (nsa_exec)NSA_EXEC_INIT;
  e->batch = (nsa_batch)NSA_BATCH_INIT;
  e->io = (nsa_io)NSA_IO_INIT;
  shape.heads = m->heads, shape.kv_heads = m->kv_heads, shape.head_dim_qk = m->dim;
  shape.dtype = NSA_F32, shape.kv_sharing = NSA_KV_SHARED;
  shape.compress_block = m->block, shape.compress_stride = m->stride;
  shape.select_block = m->select, shape.window = m->window ? m->window : NSA_NONE;
  shape.select_count = m->count ? m->count : NSA_NONE;
  options.model = &shape;
  options.device = "cpu";
  check(nsa_create(NULL, &options, &e->ctx));
  e->append = make_plan(e, NSA_OP_APPEND, tokens, CHUNK);
  e->prefill = make_plan(e, NSA_OP_PREFILL, tokens, CHUNK);
  e->decode = make_plan(e, NSA_OP_DECODE, rows, 1);
  e->exec.workspace = e->exec.workspace_bytes ? take(e->exec.workspace_bytes) : NULL;
  for (int i = 0; i < m->layers; i++) {
    e->cache[i].k[0] = tensor(NSA_F32, 4, pages, PAGE, m->kv_heads, m->dim);
    e->cache[i].v[0] = tensor(NSA_F32, 4, pages, PAGE, m->kv_heads, m->dim);
    e->cache[i].k_cmp = tensor(NSA_F32, 4, pages, PAGE / m->stride, m->kv_heads, m->dim);
    e->cache[i].v_cmp = tensor(NSA_F32, 4, pages, PAGE / m->stride, m->kv_heads, m->dim);
  }
  e->io.q = tensor(NSA_F32, 3, tokens, m->heads, m->dim, 0);
  e->io.o = tensor(NSA_F32, 3, tokens, m->heads, m->dim, 0);
  e->io.gate.value = tensor(NSA_F32, 3, tokens, m->heads, 3, 0);
  e->io.new_kv.k[0] = tensor(NSA_F32, 3, tokens, m->kv_heads, m->dim, 0);
  e->io.new_kv.v[0] = tensor(NSA_F32, 3, tokens, m->kv_heads, m->dim, 0);
  e->batch.cu_q = tensor(NSA_I32, 1, rows + 1, 0, 0, 0);
  e->batch.kv_len = tensor(NSA_I32, 1, rows, 0, 0, 0);
  e->batch.block_table = tensor(NSA_I32, 2, rows, LIST, 0, 0);
  e->x = take((size_t)tokens * (size_t)m->width * sizeof(float));
  e->h = take((size_t)tokens * (size_t)m->width * sizeof(float));
  e->gate = take((size_t)tokens * (size_t)m->ffn * sizeof(float));
  e->up = take((size_t)tokens * (size_t)m->ffn * sizeof(float));
}

/* The cache gets the layer's K and V of the step's tokens, which then attend to it: io.o. */
static void attend(engine *e, int i, int prompts) {
  const model *m = e->m;
  const layer *l = &m->layer[i];
  const int n = e->tokens, kv = m->kv_heads * m->dim;
  float *q = e->io.q.data, *k = e->io.new_kv.k[0].data, *gates = e->io.gate.value.data;
  linear(q, e->h, l->q, n, m->width, m->heads * m->dim, 0);
  linear(k, e->h, l->k, n, m->width, kv, 0);
  linear(e->io.new_kv.v[0].data, e->h, l->v, n, m->width, kv, 0);
  for (int r = 0; r < n; r++)
    memcpy(gates + r * m->heads * 3, l->gate_bias, sizeof(float) * (size_t)m->heads * 3);
  linear(gates, e->h, l->gate, n, m->width, m->heads * 3, 1);
  rotate(m, q, e->position, n, m->heads);
  rotate(m, k, e->position, n, m->kv_heads);
  e->io.q.shape[0] = e->io.o.shape[0] = e->io.gate.value.shape[0] = n;
  e->io.new_kv.k[0].shape[0] = e->io.new_kv.v[0].shape[0] = n;
  e->io.kv = e->cache[i];
  check(nsa_kv_append(e->append, &e->exec, &e->batch, &e->io));
  check(prompts ? nsa_prefill(e->prefill, &e->exec, &e->batch, &e->io)
                : nsa_decode(e->decode, &e->exec, &e->batch, &e->io));
}

/* All layers on the step's tokens: x. */
static void run(engine *e, int prompts) {
  const model *m = e->m;
  const int n = e->tokens;
  for (int r = 0; r < n; r++)
    memcpy(e->x + r * m->width, m->embed + e->token[r] * m->width,
           sizeof(float) * (size_t)m->width);
  for (int i = 0; i < m->layers; i++) {
    const layer *l = &m->layer[i];
    normalise(e->h, e->x, l->attn_norm, n, m->width, m->eps);
    attend(e, i, prompts);
    linear(e->x, e->io.o.data, l->o, n, m->heads * m->dim, m->width, 1);
    normalise(e->h, e->x, l->mlp_norm, n, m->width, m->eps);
    linear(e->gate, e->h, l->mlp_gate, n, m->width, m->ffn, 0);
    linear(e->up, e->h, l->up, n, m->width, m->ffn, 0);
    for (int j = 0; j < n * m->ffn; j++) e->up[j] *= e->gate[j] / (1 + expf(-e->gate[j]));
    linear(e->x, e->up, l->down, n, m->ffn, m->width, 1);
  }
}

/* The most likely byte behind row r. */
static int choose(engine *e, int r) {
  const model *m = e->m;
  float *h = e->h, logits[BYTES]; /* the layers are done with h */
  int best = 0;
  normalise(h, e->x + r * m->width, m->norm, 1, m->width, m->eps);
  linear(logits, h, m->head, 1, m->width, BYTES, 0);
  for (int i = 1; i < BYTES; i++)
    if (logits[i] > logits[best]) best = i;
  return best;
}

/* ---- requests ---- */

typedef struct request {
  uint8_t text[MAX_LEN];
  int length, end; /* tokens so far, the prompt's first; and when it is complete */
  int done;        /* tokens that the cache has */
  int pages;
  int32_t page[LIST];
  struct request *next;
} request;

typedef struct options {
  int new_tokens, rows, pages;
} options;

/* The lines of the standard input, in order. */
static request *read_requests(const options *o) {
  request *first = NULL, **end = &first;
  char *line = NULL;
  size_t room = 0;
  for (ssize_t n; (n = getline(&line, &room, stdin)) >= 0;) {
    while (n > 0 && line[n - 1] == '\n') n--;
    if (n == 0) continue;
    request *r = take(sizeof *r);
    r->pages = n > MAX_LEN ? LIST + 1 : ((int)n + o->new_tokens - 1 + PAGE - 1) / PAGE;
    if (n + o->new_tokens > MAX_LEN || r->pages > o->pages)
      fail("a prompt and its new tokens do not fit into the cache");
    memcpy(r->text, line, (size_t)n);
    r->length = (int)n;
    r->end = (int)n + o->new_tokens;
    *end = r;
    end = &r->next;
  }
  free(line);
  return first;
}

/* Describes the step: prompts in chunks, one token of each sequence that decodes. True: a sequence
 * has more than one. */
static int compose(engine *e, request *const *active, int count, request **step) {
  int32_t *begin = e->batch.cu_q.data, *len = e->batch.kv_len.data,
          *table = e->batch.block_table.data;
  int room = CHUNK, prompts = 0, rows = 0;
  e->tokens = 0;
  for (int i = 0; i < count; i++) {
    request *r = active[i];
    int n = r->length - r->done;
    if (n > 1) {
      n = n < room ? n : room;
      room -= n;
    }
    if (n == 0) continue;
    prompts |= n > 1;
    for (int t = 0; t < n; t++) {
      e->token[e->tokens] = r->text[r->done + t];
      e->position[e->tokens++] = r->done + t;
    }
    r->done += n;
    memcpy(table + rows * LIST, r->page, sizeof r->page);
    step[rows] = r;
    len[rows++] = r->done;
    begin[rows] = e->tokens;
  }
  e->batch.num_seqs = rows;
  e->batch.cu_q.shape[0] = rows + 1;
  e->batch.kv_len.shape[0] = e->batch.block_table.shape[0] = rows;
  return prompts;
}

static void serve(engine *e, request *waiting) {
  request *active[MAX_ROWS], *step[MAX_ROWS];
  int32_t *free_page = take(sizeof *free_page * (size_t)e->pages);
  int free_pages = 0, count = 0, steps[2] = { 0 }, requests = 0;
  for (; free_pages < e->pages; free_pages++) free_page[free_pages] = free_pages;
  while (waiting || count) {
    for (; waiting && count < e->rows && waiting->pages <= free_pages; waiting = waiting->next) {
      for (int i = 0; i < waiting->pages; i++) waiting->page[i] = free_page[--free_pages];
      active[count++] = waiting;
      requests++;
    }
    int prompts = compose(e, active, count, step);
    run(e, prompts);
    steps[!prompts]++;
    for (int i = 0; i < e->batch.num_seqs; i++)
      if (step[i]->done == step[i]->length)
        step[i]->text[step[i]->length++] =
            (uint8_t)choose(e, ((int32_t *)e->batch.cu_q.data)[i + 1] - 1);
    int kept = 0;
    for (int i = 0; i < count; i++) {
      request *r = active[i];
      if (r->length < r->end)
        active[kept++] = r;
      else
        for (int p = 0; p < r->pages; p++) free_page[free_pages++] = r->page[p];
    }
    count = kept;
  }
  fprintf(stderr, "%d prompts, %d steps with prompts, %d of decoding alone, cpu\n", requests,
          steps[0], steps[1]);
  free(free_page);
}

static void print(const request *r) {
  for (int i = 0; i < r->length; i++)
    if (r->text[i] >= 32 && r->text[i] < 127 && r->text[i] != '\\')
      putchar(r->text[i]);
    else
      printf("\\x%02x", r->text[i]);
  putchar('\n');
}

static int number(const char *text, int most) {
  char *end;
  long n = strtol(text, &end, 10);
  if (*end || n < 1 || n > most) fail("a number is out of range");
  return (int)n;
}

int main(int argc, char **argv) {
  static const struct option known[] = { { "small", no_argument, NULL, 's' },
                                         { "new", required_argument, NULL, 'n' },
                                         { "rows", required_argument, NULL, 'r' },
                                         { "pages", required_argument, NULL, 'p' },
                                         { 0 } };
  static model m;
  static engine e;
  options o = { .new_tokens = 0, .rows = 4, .pages = 64 };
  int small = 0;
  for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    if (c == 's')
      small = 1;
    else if (c == 'n')
      o.new_tokens = number(optarg, MAX_LEN);
    else if (c == 'r')
      o.rows = number(optarg, MAX_ROWS);
    else if (c == 'p')
      o.pages = number(optarg, 1 << 20);
    else
      return 2;
  }
  if (optind + 1 != argc) {
    fprintf(stderr, "usage: serve [--small] [--new N] [--rows N] [--pages N] WEIGHTS < PROMPTS\n");
    return 2;
  }
  if (!o.new_tokens) o.new_tokens = small ? 16 : 128;
  load(&m, argv[optind]);
  request *all = read_requests(&o);
  open_engine(&e, &m, o.rows, o.pages);
  serve(&e, all);
  while (all) {
    request *r = all;
    all = r->next;
    print(r);
    free(r);
  }
  nsa_plan_destroy(e.append);
  nsa_plan_destroy(e.prefill);
  nsa_plan_destroy(e.decode);
  nsa_destroy(e.ctx); /* weights and cache go with the process */
  return 0;
}

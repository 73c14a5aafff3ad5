/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What run calls refuse, through the public API, on the CPU device and on the fake GPU: each tensor
 * wrong in each way. A refusal names the tensor and enqueues nothing.
 */
#include "support/cmocka_all.h"

#include "machine.h"

#include <math.h>

/* One tensor of a call, and what may be wrong with it. */
typedef struct field {
  const char *name;
  nsa_tensor *tensor;
  bool optional, rows16; /* may be absent; copied in units of 16 bytes */
  int free_dims;         /* leading dims that the check takes as they come */
} field;

typedef nsa_status (*run_fn)(const nsa_plan *, const nsa_exec *, const nsa_batch *, const nsa_io *);

/* Runs and expects a refusal that names the tensor; on the GPU nothing may have been enqueued. */
static void refuse(machine *m, run_fn run, const char *name, const char *why) {
  int before = m->gpu ? machine_record()->launches : 0;
  char what[96];
  snprintf(what, sizeof what, "%s %s on the %s", name, why, m->gpu ? "GPU" : "CPU");
  machine_expect(what, run(m->plan, &m->exec, &m->toy.batch, &m->toy.io), NSA_E_ARG, name);
  if (m->gpu) assert_int_equal(machine_record()->launches, before);
}

static void corrupt(machine *m, run_fn run, const field *f) {
  nsa_tensor *t = f->tensor, good = *t;
  assert_non_null(t->data);
  if (!f->optional) {
    t->data = NULL;
    refuse(m, run, f->name, "missing");
    *t = good;
  }
  static const int32_t ndims[] = { 0, -1, 5, INT32_MAX, INT32_MIN };
  for (size_t i = 0; i < sizeof ndims / sizeof *ndims; i++) {
    t->ndim = ndims[i];
    refuse(m, run, f->name, "with another ndim");
  }
  *t = good;
  static const int32_t dtypes[] = { 0, NSA_I64, 99, -1 };
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
    t->dtype = dtypes[i];
    refuse(m, run, f->name, "with another dtype");
  }
  *t = good;
  for (int d = 0; d < t->ndim; d++) {
    t->shape[d] = -1;
    refuse(m, run, f->name, "with a negative dim");
    t->shape[d] = good.shape[d] + 1;
    if (d >= f->free_dims) refuse(m, run, f->name, "with a larger dim");
    t->shape[d] = good.shape[d] - 1;
    if (d >= f->free_dims) refuse(m, run, f->name, "with a smaller dim");
    *t = good;
  }
  t->stride[t->ndim - 1] = 2;
  refuse(m, run, f->name, "with a last stride of 2");
  *t = good;
  for (int d = 0; d < t->ndim - 1; d++) {
    static const int64_t strides[] = { INT64_MAX - 7, INT64_MIN, INT64_MAX / 8 * 4, INT64_MIN / 4 };
    if (good.shape[d] < 2) continue;
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++) {
      t->stride[d] = strides[i];
      refuse(m, run, f->name, "with a stride beyond all memory");
    }
    *t = good;
  }
  t->data = (char *)t->data + 1;
  refuse(m, run, f->name, "at an odd address");
  *t = good;
  if (!f->rows16 || m->toy.model.dtype == NSA_F32) return;
  t->data = (char *)t->data + 8;
  refuse(m, run, f->name, "at 8 bytes");
  *t = good;
  t->stride[0] += 4;
  refuse(m, run, f->name, "with a stride of 8 bytes");
  *t = good;
}

/* All tensors that a machine's forward has. Returns their number. */
static int list_fields(machine *m, field *out) {
  nsa_io *io = &m->toy.io;
  nsa_batch *batch = &m->toy.batch;
  const field all[] = {
    { "io.q", &io->q, false, true, 1 },
    { "io.o", &io->o, false, true, 0 },
    { "io.kv.k[0]", &io->kv.k[0], false, true, 1 },
    { "io.kv.v[0]", &io->kv.v[0], false, true, 0 },
    { "io.kv.k[1]", &io->kv.k[1], false, true, 0 },
    { "io.kv.v[1]", &io->kv.v[1], false, true, 0 },
    { "io.kv.k[2]", &io->kv.k[2], false, true, 0 },
    { "io.kv.v[2]", &io->kv.v[2], false, true, 0 },
    { "io.kv.k_cmp", &io->kv.k_cmp, false, true, 1 },
    { "io.kv.v_cmp", &io->kv.v_cmp, false, true, 0 },
    { "io.phi.k.pe", &io->phi.k.pe, true, true, 0 },
    { "io.phi.v.pe", &io->phi.v.pe, true, true, 0 },
    { "io.phi.k.w", &io->phi.k.w, false, false, 0 },
    { "io.phi.v.w", &io->phi.v.w, false, false, 0 },
    { "io.phi.k.w1", &io->phi.k.w1, false, false, 0 },
    { "io.phi.v.w1", &io->phi.v.w1, false, false, 0 },
    { "io.phi.k.b1", &io->phi.k.b1, true, false, 0 },
    { "io.phi.v.w2", &io->phi.v.w2, false, false, 0 },
    { "io.phi.v.b2", &io->phi.v.b2, true, false, 0 },
    { "io.gate.value", &io->gate.value, false, false, 0 },
    { "io.gate.x", &io->gate.x, false, false, 0 },
    { "io.gate.w1", &io->gate.w1, false, false, 0 },
    { "io.gate.b1", &io->gate.b1, true, false, 0 },
    { "io.gate.w2", &io->gate.w2, false, false, 0 },
    { "io.gate.b2", &io->gate.b2, true, false, 0 },
    { "io.index_q", &io->index_q, false, false, 0 },
    { "io.k_idx", &io->k_idx, false, false, 0 },
    { "io.block_idx", &io->block_idx, true, false, 0 },
    { "io.o_branch[0]", &io->o_branch[0], true, true, 0 },
    { "io.o_branch[1]", &io->o_branch[1], true, true, 0 },
    { "io.o_branch[2]", &io->o_branch[2], true, true, 0 },
    { "io.lse[0]", &io->lse[0], true, false, 0 },
    { "io.lse[1]", &io->lse[1], true, false, 0 },
    { "io.lse[2]", &io->lse[2], true, false, 0 },
    { "io.probe_rows", &io->probe_rows, false, false, 1 },
    { "io.probe_importance", &io->probe_importance, false, false, 0 },
    { "batch.cu_q", &batch->cu_q, false, false, 0 },
    { "batch.cu_kv", &batch->cu_kv, true, false, 0 },
    { "batch.cu_cmp", &batch->cu_cmp, false, false, 0 },
  };
  int count = 0;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i].tensor->data) out[count++] = all[i];
  return count;
}

static void corrupt_all(const machine_request *request, int probes) {
  machine m;
  field fields[40];
  machine_init(&m, request);
  if (probes) {
    static const int32_t ends[] = { 39, 0 };
    m.toy.io.probe_rows = toy_offsets(&m.toy, 1, ends); /* rows 0 and 39 */
    m.toy.io.probe_importance = toy_tensor(&m.toy, NSA_F32, 3, 2, 2, 4);
  }
  machine_expect("the good call", machine_forward(&m), NSA_OK, NULL);
  int count = list_fields(&m, fields);
  for (int i = 0; i < count; i++) {
    if (probes && !strcmp(fields[i].name, "io.probe_importance")) {
      nsa_tensor good = *fields[i].tensor;
      fields[i].tensor->shape[2] = 3; /* 64 tokens have 4 blocks; more columns are welcome */
      refuse(&m, nsa_forward, fields[i].name, "with too few columns");
      *fields[i].tensor = good;
      fields[i].tensor->dtype = NSA_BF16;
      refuse(&m, nsa_forward, fields[i].name, "of another dtype");
      *fields[i].tensor = good;
      continue;
    }
    corrupt(&m, nsa_forward, &fields[i]);
  }
  machine_free(&m);
}

/* The CPU device takes 16-bit tensors as GPU kernels do. */
static void test_each_tensor(void **state) {
  corrupt_all(&(machine_request){ .dtype = NSA_BF16, .max_probe_rows = 2 }, 1);
  corrupt_all(&(machine_request){ .dtype = NSA_F16, .phi = NSAI_PHI_EXTERNAL }, 0);
  corrupt_all(&(machine_request){ .dtype = NSA_BF16, .phi = NSAI_PHI_MLP }, 0);
  corrupt_all(&(machine_request){ .dtype = NSA_BF16,
                                  .phi = NSAI_PHI_NONE,
                                  .pool = NSAI_POOL_MAX,
                                  .indexed = true,
                                  .max_probe_rows = 2 },
              1);
  for (int gpu = 0; gpu < 2; gpu++) {
    corrupt_all(&(machine_request){ .gpu = gpu, .max_probe_rows = 2 }, 1);
    corrupt_all(&(machine_request){ .gpu = gpu, .per_branch = true }, 0);
    corrupt_all(&(machine_request){ .gpu = gpu, .phi = NSAI_PHI_LINEAR }, 0);
    corrupt_all(&(machine_request){ .gpu = gpu, .phi = NSAI_PHI_MLP }, 0);
    corrupt_all(&(machine_request){ .gpu = gpu, .phi = NSAI_PHI_EXTERNAL }, 0);
    corrupt_all(&(machine_request){ .gpu = gpu, .gate = NSAI_GATE_NONE }, 0);
    corrupt_all(&(machine_request){ .gpu = gpu, .gate = NSAI_GATE_MLP }, 0);
    corrupt_all(&(machine_request){ .gpu = gpu, .gate = NSAI_GATE_MLP, .gate_hidden = 8 }, 0);
  }
}

/* A caller's selection: with and without the axis of KV heads, every dim checked in both. */
static void test_selections(void **state) {
  for (int i = 0; i < 4; i++) {
    bool ranges = i & 1, gpu = i & 2;
    machine m;
    machine_init(&m, &(machine_request){
                         .gpu = gpu, .selection = ranges ? NSA_SELECT_RANGES : NSA_SELECT_BLOCKS });
    nsa_io *io = &m.toy.io;
    nsa_tensor *list = ranges ? &io->ranges : &io->block_idx;
    const field f = { ranges ? "io.ranges" : "io.block_idx", list, false, false, 0 };
    for (int shared = 0; shared < 2; shared++) {
      int64_t heads = shared ? 1 : 2, tokens = m.toy.tokens;
      *list = toy_tensor(&m.toy, NSA_I32, 3, tokens, heads, ranges ? 8 : 4);
      if (shared) *list = toy_tensor(&m.toy, NSA_I32, 2, tokens, ranges ? 8 : 4, 0);
      if (ranges) { /* the last dim of 8 is 4 pairs */
        list->shape[list->ndim - 1] = 4;
        list->shape[list->ndim] = 2;
        list->stride[list->ndim - 1] = 2;
        list->stride[list->ndim++] = 1;
      }
      machine_expect(f.name, nsa_forward(m.plan, &m.exec, &m.toy.batch, io), NSA_OK, NULL);
      corrupt(&m, nsa_forward, &f);
    }
    *list = (nsa_tensor){ 0 };
    refuse(&m, nsa_forward, f.name, "missing");
    io->importance = toy_tensor(&m.toy, NSA_F32, 3, m.toy.tokens, 2, 4);
    machine_expect("nsa_select", nsa_select(m.plan, &m.exec, &m.toy.batch, io), NSA_E_ARG,
                   "the caller brings");
    machine_free(&m);
  }
}

/* A model without gates takes none. */
static void test_no_gates(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    machine_init(&m, &(machine_request){ .gpu = gpu, .gate = NSAI_GATE_NONE });
    m.toy.io.gate.value = toy_tensor(&m.toy, m.toy.model.dtype, 3, m.toy.tokens, 6, 3);
    refuse(&m, nsa_forward, "io.gate.value", "is given, but model.gate is none");
    machine_free(&m);
  }
}

/* A model without compressed values takes none, nor anything that belongs to them. */
static void test_keys_only(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ .keys_only = true });
  toy *t = &m.toy;
  const nsa_io good = t->io;
  machine_expect("good", machine_forward(&m), NSA_OK, NULL);
  t->io.kv.k_cmp = toy_tensor(t, NSA_F32, 3, 20, 2, 24);
  t->io.kv.v_cmp = toy_tensor(t, NSA_F32, 3, 20, 2, 16);
  static const int32_t blocks[] = { 10, 10 };
  t->batch.cu_cmp = toy_offsets(t, 2, blocks);
  refuse(&m, nsa_forward, "io.kv.v_cmp is given, but model.compress.output is false", "given");
  refuse(&m, nsa_compress, "io.kv.v_cmp is given, but model.compress.output is false", "given");
  t->io.kv.v_cmp = (nsa_tensor){ 0 };
  machine_expect("keys", machine_forward(&m), NSA_OK, NULL);
  nsa_tensor keys = t->io.kv.k_cmp;
  t->io.kv.k_cmp = toy_tensor(t, NSA_F32, 3, 20, 2, 24);
  machine_expect("keys", nsa_compress(m.plan, &m.exec, &t->batch, &t->io), NSA_OK, NULL);
  toy_same("k_cmp", &t->io.kv.k_cmp, &keys, 3);
  t->io = good;
  t->io.lse[0] = toy_tensor(t, NSA_F32, 2, t->tokens, 6, 0);
  refuse(&m, nsa_forward, "io.lse[0] is wanted, but branch 0 does not run", "wanted");
  t->io = good;
  m.exec.branches = 1u << NSA_CMP;
  refuse(&m, nsa_forward, "the model has none of these branches", "asked for");
  machine_free(&m);
}

/* A model with an index has neither compressed keys nor what belongs to them; another model has none of
 * an index. */
static void test_indexed(void **state) {
  machine m;
  machine_init(&m,
               &(machine_request){ .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true });
  toy *t = &m.toy;
  const nsa_io good = t->io;
  machine_expect("good", machine_forward(&m), NSA_OK, NULL);
  t->io.kv.k_cmp = toy_tensor(t, NSA_F32, 3, 20, 2, 24);
  refuse(&m, nsa_forward, "io.kv.k_cmp is given, but model.compress is none", "given");
  t->io = good;
  t->io.kv.v_cmp = toy_tensor(t, NSA_F32, 3, 20, 2, 16);
  refuse(&m, nsa_forward, "io.kv.v_cmp is given, but model.compress is none", "given");
  t->io = good;
  refuse(&m, nsa_compress,
         "model.compress is none: there are no compressed keys; do not call nsa_compress",
         "called");
  t->io.lse[0] = toy_tensor(t, NSA_F32, 2, t->tokens, 6, 0);
  refuse(&m, nsa_forward, "io.lse[0] is wanted, but branch 0 does not run", "wanted");
  t->io = good;
  m.exec.branches = 1u << NSA_CMP;
  refuse(&m, nsa_forward, "the model has none of these branches", "asked for");
  machine_free(&m);
  machine_init(&m, &(machine_request){ 0 });
  nsa_tensor *const all[] = { &m.toy.io.index_q, &m.toy.io.k_idx, &m.toy.io.new_k_idx };
  for (int i = 0; i < 3; i++) {
    *all[i] = m.toy.io.q;
    refuse(&m, nsa_forward, "model.select.by is compressed, and the model has no index", "given");
    *all[i] = (nsa_tensor){ 0 };
  }
  machine_free(&m);
}

/* f32, the CPU device's own, is aligned to its elements; strides are free. */
static void test_f32(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ 0 });
  toy *t = &m.toy;
  nsa_io io = t->io;
  nsa_tensor *const rows[] = { &io.q, &io.o, &io.kv.k[0], &io.kv.v[0] };
  for (int i = 0; i < 4; i++) {
    int64_t dim = rows[i]->shape[2];
    *rows[i] = toy_tensor(t, NSA_F32, 3, rows[i]->shape[0], rows[i]->shape[1], dim + 1);
    memset(rows[i]->data, 0, (size_t)toy_count(rows[i]) * 4);
    rows[i]->shape[2] = dim;
    rows[i]->data = toy_floats(rows[i]) + 1;
  }
  machine_expect("odd rows", nsa_forward(m.plan, &m.exec, &t->batch, &io), NSA_OK, NULL);
  io.q.data = (char *)io.q.data + 2;
  machine_expect("half", nsa_forward(m.plan, &m.exec, &t->batch, &io), NSA_E_ARG,
                 "io.q.data is not aligned to 4 bytes");
  machine_free(&m);
}

/* Capacities, one token above what the plan was made for. */
static void test_capacities(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    machine_init(&m, &(machine_request){ .gpu = gpu });
    toy *t = &m.toy;
    nsa_io io = INIT(nsa_io, .q = toy_tensor(t, t->model.dtype, 3, 65, 6, 24),
                     .o = toy_tensor(t, t->model.dtype, 3, 65, 6, 16));
    io.gate.value = toy_tensor(t, t->model.dtype, 3, 65, 6, 3);
    io.kv.k[0] = t->io.kv.k[0];
    io.kv.v[0] = t->io.kv.v[0];
    machine_expect("tokens", nsa_forward(m.plan, &m.exec, NULL, &io), NSA_E_ARG,
                   "raise problem.max_tokens");
    io = t->io;
    io.kv.k[0] = toy_tensor(t, t->model.dtype, 3, 65, 2, 24);
    io.kv.v[0] = toy_tensor(t, t->model.dtype, 3, 65, 2, 16);
    machine_expect("KV tokens", nsa_forward(m.plan, &m.exec, NULL, &io), NSA_E_ARG,
                   "raise problem.max_kv_tokens");
    nsa_batch batch = t->batch;
    static const int32_t three[] = { 1, 1, 1 };
    batch.num_seqs = 3;
    batch.cu_q = toy_offsets(t, 3, three);
    batch.cu_kv = batch.cu_q;
    machine_expect("sequences", nsa_forward(m.plan, &m.exec, &batch, &t->io), NSA_E_ARG,
                   "raise problem.max_seqs");
    batch.num_seqs = -1;
    machine_expect("no sequence", nsa_forward(m.plan, &m.exec, &batch, &t->io), NSA_E_ARG,
                   "batch.num_seqs is -1");
    batch.num_seqs = INT32_MAX;
    machine_expect("2^31 sequences", nsa_forward(m.plan, &m.exec, &batch, &t->io), NSA_E_ARG,
                   "batch.cu_q");
    machine_free(&m);
  }
}

/* On the CPU device the offsets themselves are read first. */
static void test_offsets(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ 0 });
  static const struct {
    int32_t values[3];
    const char *text;
  } bad[] = { { { 1, 17, 40 }, "[0] is 1, expected 0" },
              { { 0, 41, 40 }, "[1] is 41" },
              { { 0, 17, 41 }, "[2] is 41" },
              { { 0, -1, 40 }, "[1] is -1" },
              { { 0, 17, 16 }, "[2] is 16" },
              { { 0, 0, INT32_MAX }, "[2] is 2147483647" } };
  for (int i = 0; i < 3; i++) {
    nsa_tensor *t = i == 1 ? &m.toy.batch.cu_kv : &m.toy.batch.cu_q;
    if (i == 2) m.toy.batch.cu_kv = (nsa_tensor){ 0 }; /* cu_q stands for both */
    int32_t good[3];
    memcpy(good, t->data, sizeof good);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
      memcpy(t->data, bad[k].values, sizeof good);
      refuse(&m, nsa_forward, i == 1 ? "batch.cu_kv" : "batch.cu_q", bad[k].text);
      machine_expect("offsets", machine_forward(&m), NSA_E_ARG, bad[k].text);
    }
    memcpy(t->data, good, sizeof good);
  }
  /* Compressed blocks: too few rows of one sequence would be written beyond. */
  static const int32_t few[] = { 3, 3 };
  m.toy.batch.cu_cmp = toy_offsets(&m.toy, 2, few);
  m.toy.io.kv.k_cmp = toy_tensor(&m.toy, NSA_F32, 3, 6, 2, 24);
  m.toy.io.kv.v_cmp = toy_tensor(&m.toy, NSA_F32, 3, 6, 2, 16);
  refuse(&m, nsa_forward, "batch.cu_cmp", "too few");
  refuse(&m, nsa_compress, "batch.cu_cmp", "too few");
  machine_free(&m);
}

/* runtime.check_inputs: off looks at nothing but what a run cannot do without; full asks whose
 * memory it is, and reads the values of offsets. */
static void test_levels(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ .gpu = true, .override = "runtime.check_inputs=off" });
  m.toy.io.gate.value.shape[1]--;
  machine_expect("off", machine_forward(&m), NSA_OK, NULL);
  m.toy.io.q.shape[0] = -1;
  refuse(&m, nsa_forward, "io.q", "negative");
  m.toy.io.q.shape[0] = 65;
  refuse(&m, nsa_forward, "io.q", "too long");
  m.toy.io.q.data = NULL;
  refuse(&m, nsa_forward, "io.q", "missing");
  machine_free(&m);
  machine_init(&m, &(machine_request){ .gpu = true, .override = "runtime.check_inputs=full" });
  nsa_tensor *rows = &m.toy.io.lse[1]; /* f32: any multiple of 4 will do */
  enum { EACH = 16384 };               /* bytes, more than any of the tensors has */
  char *memory = aligned_alloc(32, 14 * EACH);
  assert_non_null(memory);
  memset(memory, 0, 14 * EACH); /* of offsets: no sequence has tokens */
  nsa_tensor *all[] = { &m.toy.io.q,           &m.toy.io.o,           &m.toy.io.kv.k[0],
                        &m.toy.io.kv.v[0],     &m.toy.io.gate.value,  &m.toy.io.block_idx,
                        &m.toy.io.o_branch[0], &m.toy.io.o_branch[1], &m.toy.io.o_branch[2],
                        &m.toy.io.lse[0],      &m.toy.io.lse[1],      &m.toy.io.lse[2],
                        &m.toy.batch.cu_q,     &m.toy.batch.cu_kv };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) all[i]->data = memory + i * EACH;
  int wrong = machine_record()->wrong_context;
  machine_expect("full", machine_forward(&m), NSA_OK, NULL);
  assert_int_equal(machine_record()->wrong_context, wrong); /* asked with the device current */
  rows->data = memory + 10 * EACH + 16;                     /* the host's, says the fake driver */
  refuse(&m, nsa_forward, "io.lse[1]", "on the host");
  machine_expect("full", machine_forward(&m), NSA_E_ARG, "is not device memory");
  rows->data = memory + 10 * EACH;
  int32_t *cu_q = m.toy.batch.cu_q.data;
  cu_q[1] = -1;
  refuse(&m, nsa_forward, "batch.cu_q[1] is -1", "descending");
  cu_q[1] = 0;
  free(memory);
  machine_free(&m);
}

static void test_exec(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ .gpu = true });
  nsa_batch *batch = &m.toy.batch;
  nsa_io *io = &m.toy.io;
  nsa_exec exec = m.exec;
  exec.workspace = NULL;
  machine_expect("no workspace", nsa_forward(m.plan, &exec, batch, io), NSA_E_WORKSPACE,
                 "exec.workspace is missing (NULL), the plan needs ");
  exec = m.exec;
  exec.workspace_bytes--;
  machine_expect("small", nsa_forward(m.plan, &exec, batch, io), NSA_E_WORKSPACE,
                 "exec.workspace_bytes is ");
  exec = m.exec;
  exec.workspace = (char *)exec.workspace + 128;
  machine_expect("misaligned", nsa_forward(m.plan, &exec, batch, io), NSA_E_WORKSPACE,
                 "aligned to 256");
  exec = m.exec;
  exec.branches = 8;
  machine_expect("branch 3", nsa_forward(m.plan, &exec, batch, io), NSA_E_ARG, "exec.branches");
  exec.branches = 1u << NSA_WIN; /* outputs of the two others are wanted */
  machine_expect("one branch", nsa_forward(m.plan, &exec, batch, io), NSA_E_ARG, "io.o_branch[0]");
  nsa_io bad = *io;
  static const float scales[] = { -1.0f, NAN, INFINITY };
  for (int i = 0; i < 3; i++) {
    bad = *io;
    bad.softmax_scale = scales[i];
    machine_expect("scale", nsa_forward(m.plan, &m.exec, batch, &bad), NSA_E_ARG,
                   "io.softmax_scale");
  }
  machine_expect("NULL plan", nsa_forward(NULL, &m.exec, batch, io), NSA_E_ARG, "plan is NULL");
  machine_expect("NULL exec", nsa_forward(m.plan, NULL, batch, io), NSA_E_ARG, "exec is NULL");
  machine_expect("NULL io", nsa_forward(m.plan, &m.exec, batch, NULL), NSA_E_ARG, "io is NULL");
  machine_expect("other op", nsa_dense(m.plan, &m.exec, batch, io), NSA_E_ARG, "problem.op");
  machine_expect("no importance", nsa_select(m.plan, &m.exec, batch, io), NSA_E_ARG,
                 "io.importance is missing");
  machine_expect("NULL io", nsa_select(m.plan, &m.exec, batch, NULL), NSA_E_ARG, "io is NULL");
  machine_expect("NULL io", nsa_compress(m.plan, &m.exec, batch, NULL), NSA_E_ARG, "io");
  machine_free(&m);
}

/* Pairs that go together, and outputs that an operation does not have. */
static void test_pairs(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    machine_init(&m, &(machine_request){ .gpu = gpu });
    toy *t = &m.toy;
    t->io.probe_rows = t->batch.cu_q;
    refuse(&m, nsa_forward, "io.probe_importance", "missing");
    t->io.probe_importance = toy_tensor(t, NSA_F32, 3, 3, 2, 4);
    refuse(&m, nsa_forward, "io.probe_rows", "of a plan without");
    t->io.probe_rows = t->io.probe_importance = (nsa_tensor){ 0 };
    t->io.kv.k_cmp = toy_tensor(t, t->model.dtype, 3, 7, 2, 24);
    refuse(&m, nsa_forward, "io.kv.v_cmp", "missing");
    t->io.kv.v_cmp = toy_tensor(t, t->model.dtype, 3, 7, 2, 16);
    refuse(&m, nsa_forward, "batch.cu_cmp", "missing");
    machine_expect("too few rows", nsa_forward(m.plan, &m.exec, NULL, &t->io), NSA_E_ARG,
                   "40 tokens have 9 compression blocks");
    machine_free(&m);
    machine_init(&m, &(machine_request){ .gpu = gpu, .op = NSA_OP_DENSE });
    machine_expect("dense", nsa_dense(m.plan, &m.exec, &m.toy.batch, &m.toy.io), NSA_OK, NULL);
    m.toy.io.o_branch[0] = m.toy.io.o;
    refuse(&m, nsa_dense, "io.o_branch[0]", "of dense");
    m.toy.io.o_branch[0] = (nsa_tensor){ 0 };
    m.toy.io.lse[1] = m.toy.io.lse[0];
    refuse(&m, nsa_dense, "io.lse[1]", "of dense");
    machine_free(&m);
    /* Products go through workspace: a larger k_cmp would overrun it. */
    machine_init(&m, &(machine_request){ .gpu = gpu, .phi = NSAI_PHI_LINEAR });
    t = &m.toy;
    t->io.kv.k_cmp = toy_tensor(t, t->model.dtype, 3, 18, 2, 24);
    t->io.kv.v_cmp = toy_tensor(t, t->model.dtype, 3, 18, 2, 16);
    machine_expect("too many rows", nsa_compress(m.plan, &m.exec, NULL, &t->io), NSA_E_ARG,
                   "at most 17 compression blocks");
    machine_free(&m);
  }
}

static void test_external(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    machine_init(&m, &(machine_request){ .gpu = gpu, .phi = NSAI_PHI_EXTERNAL });
    m.toy.batch.cu_cmp.data = NULL;
    refuse(&m, nsa_forward, "batch.cu_cmp", "missing");
    machine_expect("compress", nsa_compress(m.plan, &m.exec, &m.toy.batch, &m.toy.io), NSA_E_ARG,
                   "external");
    machine_free(&m);
    /* With a pair per branch the compressed branch has no raw keys; stray ones must agree. */
    machine_init(&m,
                 &(machine_request){ .gpu = gpu, .phi = NSAI_PHI_EXTERNAL, .per_branch = true });
    m.toy.io.kv.k[0].shape[0] = 39;
    refuse(&m, nsa_forward, "io.kv.k[0]", "stray");
    m.toy.io.kv.k[0].data = NULL;
    machine_expect("external", machine_forward(&m), NSA_OK, NULL);
    machine_free(&m);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_each_tensor), cmocka_unit_test(test_no_gates),
    cmocka_unit_test(test_keys_only),   cmocka_unit_test(test_indexed),
    cmocka_unit_test(test_f32),         cmocka_unit_test(test_selections),
    cmocka_unit_test(test_capacities),  cmocka_unit_test(test_offsets),
    cmocka_unit_test(test_levels),      cmocka_unit_test(test_exec),
    cmocka_unit_test(test_pairs),       cmocka_unit_test(test_external),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

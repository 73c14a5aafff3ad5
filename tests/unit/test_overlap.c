/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Memory of a run call: outputs that share bytes with another tensor are refused, and slices of one
 * buffer's columns are not. The rule itself is held against sets of bytes.
 */
#include "support/cmocka_all.h"

#include "gradients.h"
#include "kv_fixture.h"
#include "run/check_overlap.h"
#include "run/check_tensor.h"

/* ---- the rule against sets of bytes ---- */

#define BYTES 4096
#define MIDDLE (BYTES / 2)

static uint64_t random_state = 1;
static int64_t draw(int64_t low, int64_t high) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return low + (int64_t)((random_state >> 33) % (uint64_t)(high - low + 1));
}

/* The tensor's bytes, counted from `base`. */
static void mark(const nsa_tensor *t, const char *base, unsigned char set[BYTES]) {
  memset(set, 0, BYTES);
  for (int64_t a = 0; a < t->shape[0]; a++)
    for (int64_t b = 0; b < t->shape[1]; b++)
      for (int64_t c = 0; c < t->shape[2]; c++) {
        int64_t at = (const char *)t->data - base +
                     4 * (a * t->stride[0] + b * t->stride[1] + c * t->stride[2]);
        assert_true(at >= 0 && at + 4 <= BYTES);
        memset(set + at, 1, 4);
      }
}

static bool share(const unsigned char a[BYTES], const unsigned char b[BYTES]) {
  for (int i = 0; i < BYTES; i++)
    if (a[i] && b[i]) return true;
  return false;
}

/* As a call has them that writes one of the two; any shape will do. */
static nsa_status check_pair(const nsa_tensor *written, const nsa_tensor *other) {
  nsai_call_tensors call = { 0 };
  nsai_problem problem = { .model.dtype = NSA_F32 };
  const nsai_check check = { .problem = &problem, .tensors = &call };
  nsai_tensor_spec any = { "other", other->ndim, { 0 }, NSAI_DTYPE_F32 };
  for (int i = 0; i < NSA_MAX_DIMS; i++) any.shape[i] = NSAI_ANY;
  NSAI_TRY(nsai_check_tensor(&check, other, &any));
  any.name = "written", any.ndim = written->ndim;
  NSAI_TRY(nsai_check_tensor(&check, written, &any));
  nsai_call_tensors_mark_written(&call, written);
  return nsai_check_overlap(&call);
}

static nsa_tensor draw_tensor(char *base) {
  nsa_tensor t = { .ndim = 3, .dtype = NSA_F32 };
  static const int64_t steps[] = { 4, 6, 8, 12, 24, 48 };
  for (int i = 0; i < 3; i++) t.shape[i] = draw(1, i ? 4 : 6);
  t.stride[2] = 1;
  t.stride[1] = steps[draw(0, 3)] * (draw(0, 7) ? 1 : -1);
  t.stride[0] = steps[draw(0, 5)] * (draw(0, 7) ? 1 : -1);
  if (!draw(0, 9)) t.stride[1] = 0;
  t.data = base + MIDDLE + 4 * draw(-40, 40);
  return t;
}

/* No two tensors that share a byte are accepted; ranges apart always are. */
static void test_sets(void **state) {
  static char memory[BYTES];
  static unsigned char a[BYTES], b[BYTES];
  int sharing = 0, between = 0;
  for (int i = 0; i < 20000; i++) {
    const nsa_tensor x = draw_tensor(memory), y = draw_tensor(memory);
    mark(&x, memory, a);
    mark(&y, memory, b);
    const unsigned char *first_x = memchr(a, 1, BYTES), *first_y = memchr(b, 1, BYTES);
    const unsigned char *last_x = memrchr(a, 1, BYTES), *last_y = memrchr(b, 1, BYTES);
    const bool apart = last_x - a < first_y - b || last_y - b < first_x - a;
    const nsa_status status = check_pair(&x, &y);
    assert_int_equal(check_pair(&y, &x), status);
    if (share(a, b)) assert_int_equal(status, NSA_E_ARG);
    if (apart) assert_int_equal(status, NSA_OK);
    sharing += share(a, b);
    between += !apart && !status;
  }
  assert_true(sharing > 2000 && between > 500); /* both happened */
}

/* Slices of the columns of one buffer, cut at each of its dimensions. */
static void test_slices(void **state) {
  static char memory[BYTES];
  for (int i = 0; i < 2000; i++) {
    int64_t shape[4] = { draw(1, 4), draw(1, 3), draw(1, 3), draw(2, 6) }, stride[4];
    stride[3] = 1;
    for (int d = 3; d-- > 0;) stride[d] = stride[d + 1] * shape[d + 1];
    const int cut = (int)draw(1, 3);
    if (shape[cut] < 2) continue;
    nsa_tensor x = { .data = memory, .ndim = 4, .dtype = NSA_F32 }, y;
    memcpy(x.shape, shape, sizeof shape);
    memcpy(x.stride, stride, sizeof stride);
    y = x;
    x.shape[cut] = draw(1, shape[cut] - 1);
    y.shape[cut] = draw(1, shape[cut] - x.shape[cut]);
    y.data = memory + 4 * stride[cut] * (shape[cut] - y.shape[cut]);
    assert_int_equal(check_pair(&x, &y), NSA_OK);
    assert_int_equal(check_pair(&y, &x), NSA_OK);
    y.data = memory + 4 * stride[cut] * (x.shape[cut] - 1); /* one in common */
    assert_int_equal(check_pair(&x, &y), NSA_E_ARG);
    assert_int_equal(check_pair(&y, &x), NSA_E_ARG);
  }
}

/* Strides that lead out of all memory are refused, unless they are never taken. */
static void test_huge(void **state) {
  static char memory[64];
  nsa_tensor x = { memory, { 2 }, { 1 }, 1, NSA_F32 };
  nsa_tensor y = { memory + 32, { 3, 2 }, { INT64_MAX, 1 }, 2, NSA_F32 };
  assert_int_equal(check_pair(&x, &y), NSA_E_ARG);
  assert_non_null(strstr(nsa_last_error(), "reach beyond the address space"));
  y.shape[0] = 1;
  assert_int_equal(check_pair(&x, &y), NSA_OK);
  y.stride[0] = INT64_MIN;
  assert_int_equal(check_pair(&x, &y), NSA_OK);
  y.data = memory + 4;
  assert_int_equal(check_pair(&x, &y), NSA_E_ARG);
  assert_non_null(strstr(nsa_last_error(), "shares memory with"));
  y.shape[0] = 0; /* no element */
  assert_int_equal(check_pair(&x, &y), NSA_OK);
}

/* ---- calls ---- */

static void refuse(machine *m, const char *text) {
  machine_expect(text, machine_forward(m), NSA_E_ARG, text);
  assert_non_null(strstr(nsa_last_error(), "shares memory with"));
}

/* Each output on each other tensor. */
static void test_forward(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    machine_init(&m, &(machine_request){ .gpu = gpu });
    nsa_io *io = &m.toy.io;
    nsa_batch *b = &m.toy.batch;
    const struct {
      const char *name; /* in the message */
      nsa_tensor *tensor;
    } outs[] = { { "io.o", &io->o },
                 { "io.o_branch[0]", &io->o_branch[0] },
                 { "io.o_branch[2]", &io->o_branch[2] },
                 { "io.lse[1]", &io->lse[1] },
                 { "io.block_idx", &io->block_idx } },
      ins[] = { { "io.q", &io->q },
                { "io.kv.k[0]", &io->kv.k[0] },
                { "io.kv.v[0]", &io->kv.v[0] },
                { "io.gate.value", &io->gate.value },
                { "batch.cu_q", &b->cu_q },
                { "batch.cu_kv", &b->cu_kv } };
    for (size_t i = 0; i < sizeof outs / sizeof *outs; i++) {
      nsa_tensor *out = outs[i].tensor, good = *out;
      for (size_t k = 0; k < sizeof ins / sizeof *ins; k++) {
        out->data = ins[k].tensor->data;
        refuse(&m, outs[i].name); /* on this input, and perhaps on what lies behind it */
      }
      for (size_t k = 0; k < i; k++) {
        out->data = outs[k].tensor->data;
        refuse(&m, outs[i].name);
      }
      *out = good;
    }
    io->kv.v[0].data = io->kv.k[0].data; /* inputs may be the same */
    machine_expect("inputs", nsa_forward(m.plan, &m.exec, b, io), NSA_OK, NULL);
    machine_free(&m);
  }
}

/* The last 16 bytes are too many, what follows them is not. */
static void test_ends(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ .gpu = true });
  nsa_io *io = &m.toy.io;
  const int64_t bytes = toy_count(&io->q) * 2;
  nsa_tensor room = toy_tensor(&m.toy, NSA_BF16, 3, 4 * m.toy.tokens, 6, 24);
  io->q.data = room.data;
  io->o.data = (char *)room.data + bytes - 16;
  refuse(&m, "io.o is written, and shares memory with io.q");
  io->o.data = (char *)room.data + bytes;
  machine_expect("behind", nsa_forward(m.plan, &m.exec, &m.toy.batch, io), NSA_OK, NULL);
  /* The workspace is a tensor, too. Nothing else lies behind it. */
  const nsa_exec exec = m.exec;
  const uint64_t end = (exec.workspace_bytes + 255) / 256 * 256;
  void *larger = aligned_alloc(256, end + ((uint64_t)bytes + 255) / 256 * 256);
  assert_non_null(larger);
  m.exec.workspace = larger;
  io->q.data = (char *)larger + end - 256;
  m.exec.workspace_bytes = end;
  refuse(&m, "exec.workspace is written, and shares memory with io.q");
  io->q.data = room.data;
  m.exec = exec;
  free(larger);
  m.exec.workspace_bytes += 1 << 30;
  io->o.data = (char *)m.exec.workspace + m.exec.workspace_bytes - 256;
  refuse(&m, "exec.workspace");
  machine_free(&m);
}

/* Whatever runtime.check_inputs says, on a GPU and on the CPU device. */
static void test_levels(void **state) {
  static const char *const levels[] = { "runtime.check_inputs=off", "runtime.check_inputs=basic",
                                        "runtime.check_inputs=full" };
  for (int i = 0; i < 6; i++) {
    machine m;
    machine_init(&m, &(machine_request){ .gpu = i >= 3, .override = levels[i % 3] });
    nsa_io *io = &m.toy.io;
    const nsa_io good = *io;
    const nsa_exec exec = m.exec;
    void *larger = aligned_alloc(256, 65536); /* o fits into it, unlike into that of a CPU plan */
    assert_non_null(larger);
    if (!m.gpu) m.exec.workspace = larger, m.exec.workspace_bytes = 65536;
    io->o.data = io->q.data;
    refuse(&m, "io.o is written, and shares memory with io.q");
    *io = good, io->o.data = io->kv.k[0].data;
    refuse(&m, "io.o is written"); /* on K, and on what lies behind it */
    *io = good, io->lse[0] = good.lse[1], io->lse[0].data = io->o.data;
    refuse(&m, "io.o is written, and shares memory with io.lse[0]");
    *io = good, io->o.data = (char *)m.exec.workspace + 256;
    refuse(&m, "shares memory with exec.workspace");
    *io = good, io->o.stride[0] = 0;
    machine_expect("rows", machine_forward(&m), NSA_E_ARG, "io.o has stride[0] = 0");
    *io = good, io->o.stride[0] = INT64_MAX / 8 * 8;
    machine_expect("span", machine_forward(&m), NSA_E_ARG, "reach beyond the address space");
    *io = good, io->q.ndim = 2;
    machine_expect("ndim", machine_forward(&m), NSA_E_ARG, "io.q has 2 dimensions, expected 3");
    *io = good;
    m.exec.workspace_bytes = UINT64_MAX;
    machine_expect("workspace", machine_forward(&m), NSA_E_ARG,
                   "exec.workspace_bytes = 18446744073709551615 reaches beyond");
    m.exec = exec;
    machine_expect("good", nsa_forward(m.plan, &m.exec, &m.toy.batch, io), NSA_OK, NULL);
    machine_free(&m);
    free(larger);
  }
}

/* The gradients of a packed q, k, v go into a packed buffer. */
static void test_packed_gradients(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ .op = NSA_OP_BACKWARD });
  toy *t = &m.toy;
  choose(t);
  nsa_grads apart = make_grads(t, NSA_F32), packed = apart;
  const int64_t width = 6 * 24 + 2 * 24 + 2 * 16, starts[] = { 0, 6 * 24, 6 * 24 + 2 * 24 };
  nsa_tensor buffer = toy_tensor(t, NSA_F32, 2, t->tokens, width, 0);
  nsa_tensor *const to[] = { &packed.d_q, &packed.d_kv.k[0], &packed.d_kv.v[0] };
  const nsa_tensor *const from[] = { &apart.d_q, &apart.d_kv.k[0], &apart.d_kv.v[0] };
  for (int i = 0; i < 3; i++) {
    to[i]->data = toy_floats(&buffer) + starts[i];
    to[i]->stride[0] = width;
  }
  machine_expect("apart", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &apart), NSA_OK, NULL);
  machine_expect("packed", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &packed), NSA_OK, NULL);
  for (int i = 0; i < 3; i++)
    for (int64_t row = 0; row < t->tokens; row++)
      assert_memory_equal(toy_floats(to[i]) + row * width,
                          toy_floats(from[i]) + row * from[i]->stride[0],
                          (size_t)from[i]->stride[0] * 4);
  packed.d_kv.k[0].data = toy_floats(&packed.d_kv.k[0]) - 1; /* q's last column */
  machine_expect("overlap", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &packed), NSA_E_ARG,
                 "grads.d_q is written, and shares memory with grads.d_kv.k[0]");
  /* A gradient in the place of what the forward wrote to o, which nothing reads here. */
  packed = apart;
  t->io.o = apart.d_q;
  t->io.o.shape[2] = 16;
  machine_expect("o", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &apart), NSA_OK, NULL);
  packed.d_q.data = t->io.q.data;
  machine_expect("q", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &packed), NSA_E_ARG,
                 "grads.d_q is written, and shares memory with io.q");
  machine_free(&m);
}

/* K and V of a page side by side, which an append writes and a decode reads. */
static void test_interleaved_cache(void **state) {
  static const int32_t lengths[] = { 37, 20 }, first[] = { 30, 17 }, one[] = { 1, 1 };
  const kv_options options = { .page_size = 16 };
  kv_fixture w;
  kv_init(&w, &(machine_request){ 0 }, &options, 2, lengths);
  nsa_tensor *k = &w.cache.k[0], *v = &w.cache.v[0];
  const int64_t heads = k->shape[2], dim = k->shape[3] + v->shape[3], tokens = k->shape[1];
  nsa_tensor both = toy_tensor(&w.memory, NSA_F32, 3, k->shape[0], tokens * heads, dim);
  nsa_tensor *const sides[] = { k, v };
  for (int i = 0; i < 2; i++) {
    sides[i]->data = toy_floats(&both) + (i ? k->shape[3] : 0);
    sides[i]->stride[0] = tokens * heads * dim;
    sides[i]->stride[1] = heads * dim;
    sides[i]->stride[2] = dim;
  }
  kv_oracle(&w);
  kv_step(&w, first, false);
  kv_step(&w, one, true);
  kv_call c;
  kv_call_init(&c, &w, one, w.len);
  c.io.kv.v[0].data = toy_floats(v) - 1;
  machine_expect("overlap", nsa_kv_append(w.append, &w.exec, &c.batch, &c.io), NSA_E_ARG,
                 "io.kv.k[0] is written, and shares memory with io.kv.v[0]");
  machine_expect("read", nsa_decode(w.decode, &w.exec, &c.batch, &c.io), NSA_OK, NULL);
  c.io.kv = w.cache;
  c.io.new_kv.k[0].data = w.cache.k_cmp.data;
  machine_expect("new_kv", nsa_kv_append(w.append, &w.exec, &c.batch, &c.io), NSA_E_ARG,
                 "io.kv.k_cmp is written, and shares memory with io.new_kv.k[0]");
  kv_call_free(&c);
  kv_free(&w);
}

int main(void) {
  static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_sets),
    cmocka_unit_test(test_slices),
    cmocka_unit_test(test_huge),
    cmocka_unit_test(test_forward),
    cmocka_unit_test(test_ends),
    cmocka_unit_test(test_levels),
    cmocka_unit_test(test_packed_gradients),
    cmocka_unit_test(test_interleaved_cache),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Structs of other versions through the public calls: smaller ones, larger ones whose tail is zero
 * or not, sizes that nobody set, results, arrays.
 */
#include "support/cmocka_all.h"

#include "base/struct.h"
#include "gradients.h"
#include "machine.h"

#define NEWER 24 /* bytes that a later version has more */

/* A struct of a later version, with `NEWER` bytes of zeros. The caller frees it. */
static void *grow(const void *from, size_t size) {
  char *larger = calloc(1, size + NEWER);
  assert_non_null(larger);
  memcpy(larger, from, size);
  *(uint32_t *)(void *)larger = (uint32_t)(size + NEWER);
  return larger;
}

/* ---- a run ---- */

/* The structs of a call of nsa_backward. */
typedef struct structs {
  const nsa_plan *plan;
  const void *item[4]; /* exec, batch, io, grads */
} structs;

static const struct {
  const char *name, *init;
  size_t size, least; /* whole; up to the last field that the call needs */
} kinds[] = {
  { "exec", "NSA_EXEC_INIT", sizeof(nsa_exec), offsetof(nsa_exec, stream) },
  { "batch", "NSA_BATCH_INIT", sizeof(nsa_batch), offsetof(nsa_batch, cu_kv) },
  { "io", "NSA_IO_INIT", sizeof(nsa_io), offsetof(nsa_io, probe_rows) },
  { "grads", "NSA_GRADS_INIT", sizeof(nsa_grads), offsetof(nsa_grads, d_kv) },
};

static nsa_status run(const structs *s) {
  return nsa_backward(s->plan, s->item[0], s->item[1], s->item[2], s->item[3]);
}

static void expect_version(const structs *s, const char *what, const char *text) {
  machine_expect(what, run(s), NSA_E_VERSION, text);
}

/* One struct of the call at other sizes. */
static void try_sizes(structs *s, int k) {
  const void *good = s->item[k];
  char text[96];
  uint32_t *smaller = malloc(kinds[k].least); /* no byte more is there to be read */
  assert_non_null(smaller);
  memcpy(smaller, good, kinds[k].least);
  s->item[k] = smaller;
  static const uint32_t unset[] = { 0, 3, 1u << 16, 0xcccccccc };
  for (int i = 0; i < 4; i++) {
    *smaller = unset[i];
    snprintf(text, sizeof text, "%s.struct_size is %u, this library knows %zu bytes: use %s",
             kinds[k].name, unset[i], kinds[k].size, kinds[k].init);
    expect_version(s, kinds[k].name, text);
  }
  *smaller = (uint32_t)kinds[k].least;
  machine_expect("smaller", run(s), NSA_OK, NULL);
  free(smaller);
  char *larger = grow(good, kinds[k].size);
  s->item[k] = larger;
  machine_expect("larger", run(s), NSA_OK, NULL);
  for (size_t at = kinds[k].size; at < kinds[k].size + NEWER; at += NEWER - 1) {
    larger[at] = 1;
    snprintf(text, sizeof text, "byte %zu is not zero", at);
    expect_version(s, kinds[k].name, text);
    larger[at] = 0;
  }
  free(larger);
  s->item[k] = good;
}

static void test_run(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    machine_init(&m, &(machine_request){ .gpu = gpu, .op = NSA_OP_BACKWARD });
    toy *t = &m.toy;
    if (!gpu) choose(t);
    const nsa_grads all = make_grads(t, t->model.dtype);
    nsa_grads grads = NSA_GRADS_INIT;
    grads.d_o = all.d_o, grads.d_q = all.d_q;
    structs s = { m.plan, { &m.exec, &t->batch, &t->io, &grads } };
    machine_expect("good", run(&s), NSA_OK, NULL);
    for (int k = 0; k < 4; k++) try_sizes(&s, k);
    machine_free(&m);
  }
}

/* What a smaller struct lacks is zero, whatever lies behind it: the outputs that it does not know
 * are not written, and the default is taken. */
static void test_zero_extension(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ 0 });
  nsa_io whole = m.toy.io, cut = whole;
  toy_outputs(&m.toy, &whole, m.toy.tokens);
  toy_outputs(&m.toy, &cut, m.toy.tokens);
  memset(cut.o_branch, 0, sizeof cut.o_branch);
  memset(cut.lse, 0, sizeof cut.lse);
  nsa_io behind = cut;
  for (int b = 0; b < NSA_BRANCHES; b++) behind.o_branch[b].data = behind.lse[b].data = (void *)1;
  cut = behind;
  cut.struct_size = offsetof(nsa_io, o_branch);
  machine_expect("whole", nsa_forward(m.plan, &m.exec, &m.toy.batch, &whole), NSA_OK, NULL);
  machine_expect("cut", nsa_forward(m.plan, &m.exec, &m.toy.batch, &cut), NSA_OK, NULL);
  toy_same("o", &whole.o, &cut.o, m.toy.tokens);
  machine_expect("not cut", nsa_forward(m.plan, &m.exec, &m.toy.batch, &behind), NSA_E_ARG,
                 "io.o_branch[0]");
  machine_free(&m);
}

/* ---- results ---- */

static void test_caps(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ .gpu = true });
  nsa_caps whole = NSA_CAPS_INIT;
  machine_expect("whole", nsa_plan_caps(m.plan, &whole), NSA_OK, NULL);
  assert_true(whole.workspace_bytes > 0 && whole.variants[0]);
  /* An older caller: its fields alone. */
  unsigned char older[sizeof(nsa_caps)], newer[sizeof(nsa_caps) + NEWER];
  const uint32_t least = offsetof(nsa_caps, variants);
  memset(older, 0xee, sizeof older);
  memcpy(older, &least, sizeof least);
  machine_expect("older", nsa_plan_caps(m.plan, (nsa_caps *)(void *)older), NSA_OK, NULL);
  assert_memory_equal(older, &least, sizeof least);
  assert_memory_equal(older + sizeof least, (char *)&whole + sizeof least, least - sizeof least);
  for (size_t i = least; i < sizeof older; i++) assert_int_equal(older[i], 0xee);
  /* A newer one: zeros behind what this library knows. */
  nsa_problem problem = INIT(nsa_problem, .max_tokens = 64, .max_seqs = 2);
  for (int call = 0; call < 2; call++) {
    const uint32_t size = sizeof newer;
    memset(newer, 0, sizeof newer);
    memcpy(newer, &size, sizeof size);
    nsa_caps *caps = (nsa_caps *)(void *)newer;
    machine_expect("newer", call ? nsa_query(m.ctx, &problem, caps) : nsa_plan_caps(m.plan, caps),
                   NSA_OK, NULL);
    assert_int_equal(caps->struct_size, size);
    assert_int_equal(caps->workspace_bytes, whole.workspace_bytes);
    assert_string_equal(caps->variants, whole.variants);
    for (size_t i = sizeof(nsa_caps); i < sizeof newer; i++) assert_int_equal(newer[i], 0);
  }
  machine_free(&m);
}

/* ---- arrays ---- */

static void test_arrays(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ .gpu = true });
  nsa_problem one = INIT(nsa_problem, .max_tokens = 16, .max_seqs = 1);
  /* Three problems of a later version: steps of its size. */
  char *each = grow(&one, sizeof one);
  const size_t size = sizeof one + NEWER;
  char *problems = malloc(3 * size);
  assert_non_null(problems);
  for (int i = 0; i < 3; i++) memcpy(problems + i * size, each, size);
  nsa_problem *second = (nsa_problem *)(void *)(problems + size);
  const nsa_problem *first = (const nsa_problem *)(const void *)problems;
  machine_expect("newer", nsa_prepare(m.ctx, first, 3, NULL, NULL), NSA_OK, NULL);
  second->max_seqs = -2;
  machine_expect("second", nsa_prepare(m.ctx, first, 3, NULL, NULL), NSA_E_ARG,
                 "problem.max_seqs is -2");
  machine_expect("second", nsa_tune(m.ctx, first, 3, NULL), NSA_E_ARG, "problem.max_seqs is -2");
  second->max_seqs = 1;
  problems[2 * size - 1] = 1;
  machine_expect("tail", nsa_prepare(m.ctx, first, 3, NULL, NULL), NSA_E_VERSION, "is not zero");
  problems[2 * size - 1] = 0;
  second->struct_size = sizeof one;
  static const char mixed[] = "problems[1].struct_size is ";
  machine_expect("mixed", nsa_prepare(m.ctx, first, 3, NULL, NULL), NSA_E_VERSION, mixed);
  machine_expect("mixed", nsa_tune(m.ctx, first, 3, NULL), NSA_E_VERSION, mixed);
  machine_expect("one", nsa_prepare(m.ctx, first, 1, NULL, NULL), NSA_OK, NULL);
  free(problems);
  free(each);
  machine_free(&m);
}

/* ---- contexts and problems ---- */

static void test_options(void **state) {
  nsa_ctx *ctx = NULL;
  nsa_options o =
      INIT(nsa_options,
           .yaml_text =
               "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64}\nruntime: {device: cpu}\n");
  o.struct_size = offsetof(nsa_options, overrides); /* what follows is not read */
  o.overrides = (const char *const *)(const void *)o.yaml_text;
  machine_expect("older", nsa_create(NULL, &o, &ctx), NSA_OK, NULL);
  nsa_destroy(ctx);
  o.overrides = NULL;
  o.struct_size = sizeof o;
  char *larger = grow(&o, sizeof o);
  machine_expect("newer", nsa_create(NULL, (nsa_options *)(void *)larger, &ctx), NSA_OK, NULL);
  nsa_destroy(ctx);
  larger[sizeof o] = 1;
  machine_expect("newer", nsa_create(NULL, (nsa_options *)(void *)larger, &ctx), NSA_E_VERSION,
                 "options.struct_size is ");
  assert_null(ctx);
  free(larger);
}

/* The helper alone: any address, any size. */
static void test_helper(void **state) {
  const nsai_struct_type type = { "thing", "NSA_THING_INIT", 16 };
  unsigned char bytes[64] = { 0 }, room[16];
  const void *read;
  for (uint32_t size = 4; size <= 32; size++) {
    unsigned char *at = bytes + 1; /* not aligned */
    memset(bytes, 0, sizeof bytes);
    memcpy(at, &size, sizeof size);
    for (uint32_t i = 4; i < size && i < 16; i++) at[i] = (unsigned char)i;
    memset(at + size, 0xff, sizeof bytes - 1 - size); /* behind it: anything */
    assert_int_equal(nsai_struct_in(&type, at, room, &read), NSA_OK);
    const unsigned char *got = read;
    for (uint32_t i = 4; i < 16; i++) assert_int_equal(got[i], i < size ? i : 0);
    assert_true((read == at) == (size == 16));
  }
  assert_int_equal(nsai_struct_in(&type, NULL, room, &read), NSA_E_ARG);
  assert_string_equal(nsa_last_error(), "thing is NULL");
}

int main(void) {
  static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_run),     cmocka_unit_test(test_zero_extension),
    cmocka_unit_test(test_caps),    cmocka_unit_test(test_arrays),
    cmocka_unit_test(test_options), cmocka_unit_test(test_helper),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What nsa_backward refuses, each by its name, and that no GPU serves it yet.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gradients.h"

#include <string.h>

static void refuse(machine *m, const nsa_io *io, const nsa_grads *g, const char *text) {
  nsa_status status = nsa_backward(m->plan, &m->exec, &m->toy.batch, io, g);
  machine_expect(text, status, NSA_E_ARG, text);
}

/* Gradients of what this model (mean, weights, shared) does not have. */
static void test_absent(void **state) {
  (void)state;
  machine m;
  machine_init(&m, &(machine_request){ .op = NSA_OP_BACKWARD });
  toy *t = &m.toy;
  choose(t);
  nsa_grads g = make_grads(t, NSA_F32);
  nsa_tensor any = g.d_q;
  const struct {
    nsa_tensor *tensor;
    const char *text;
  } cases[] = {
    { &g.d_kv.k[1], "grads.d_kv.k[1] is wanted, but the model does not read this pair" },
    { &g.d_kv.v[2], "grads.d_kv.v[2] is wanted" },
    { &g.d_kv.k_cmp, "grads.d_kv.k_cmp is wanted, but model.compress.phi is not external" },
    { &g.d_phi.k.pe, "grads.d_phi.k.pe is wanted" },
    { &g.d_phi.v.w2, "grads.d_phi.v.w2 is wanted" },
    { &g.d_gate.x, "grads.d_gate.x is wanted" },
    { &g.d_gate.w1, "grads.d_gate.w1 is wanted" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    *cases[i].tensor = any;
    refuse(&m, &t->io, &g, cases[i].text);
    *cases[i].tensor = (nsa_tensor){ 0 };
  }
  machine_expect("good", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &g), NSA_OK, NULL);
  machine_free(&m);
}

/* Every gradient of a model with all weights: wrong shape, dtype and stride are refused by name. */
static void test_each_tensor(void **state) {
  (void)state;
  machine m;
  pair pairs[MAX_PAIRS + 1];
  machine_init(&m, &(machine_request){ .op = NSA_OP_BACKWARD,
                                       .phi = NSAI_PHI_MLP,
                                       .gate = NSAI_GATE_MLP,
                                       .gate_hidden = 8,
                                       .per_branch = true });
  toy *t = &m.toy;
  choose(t);
  nsa_grads g = make_grads(t, NSA_F32);
  int count = list_pairs(&t->io, &g, pairs);
  pairs[count++] = (pair){ "o", &t->io.o, &g.d_o };
  for (int k = 0; k < count; k++) {
    nsa_tensor *x = pairs[k].gradient, good = *x;
    x->shape[x->ndim - 1]++;
    refuse(&m, &t->io, &g, pairs[k].name);
    *x = good;
    x->ndim++;
    refuse(&m, &t->io, &g, "dimensions, expected");
    *x = good;
    x->dtype = NSA_BF16;
    refuse(&m, &t->io, &g, "has dtype bf16, expected f32");
    *x = good;
    x->stride[x->ndim - 1] = 2;
    refuse(&m, &t->io, &g, "expected 1: make the last dimension contiguous");
    *x = good;
  }
  machine_expect("good", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &g), NSA_OK, NULL);
  machine_free(&m);
}

static void test_arguments(void **state) {
  (void)state;
  machine m, other;
  machine_init(&m, &(machine_request){ .op = NSA_OP_BACKWARD });
  machine_init(&other, &(machine_request){ 0 });
  toy *t = &m.toy;
  choose(t);
  nsa_grads g = make_grads(t, NSA_F32), bad = g;
  nsa_io io = t->io;
  refuse(&m, &io, NULL, "grads is NULL");
  bad.accumulate = 2;
  refuse(&m, &io, &bad, "grads.accumulate is 2");
  bad = g;
  bad.d_o = (nsa_tensor){ 0 };
  refuse(&m, &io, &bad, "grads.d_o is missing");
  bad = g;
  bad.struct_size--;
  machine_expect("size", nsa_backward(m.plan, &m.exec, &t->batch, &io, &bad), NSA_E_VERSION,
                 "NSA_GRADS_INIT");
  io.block_idx = (nsa_tensor){ 0 };
  refuse(&m, &io, &g, "io.block_idx is missing");
  io = t->io;
  io.probe_rows = io.probe_importance = g.d_q;
  refuse(&m, &io, &g, "io.probe_rows is given, but NSA_OP_BACKWARD");
  io = t->io;
  io.q.shape[0]++;
  refuse(&m, &io, &g, "io.");
  machine_expect("plan", nsa_backward(other.plan, &m.exec, &t->batch, &t->io, &g), NSA_E_ARG,
                 "made for problem.op NSA_OP_FORWARD, this call runs NSA_OP_BACKWARD");
  machine_expect("forward", nsa_forward(m.plan, &m.exec, &t->batch, &t->io), NSA_E_ARG,
                 "made for problem.op NSA_OP_BACKWARD, this call runs NSA_OP_FORWARD");
  machine_free(&m);
  machine_free(&other);
}

static void test_gpu(void **state) {
  (void)state;
  machine m;
  nsa_problem p = machine_problem(NSA_OP_BACKWARD, 64, 0);
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_plan *plan;
  char text[1024];
  machine_init(&m, &(machine_request){ .gpu = true });
  machine_expect("query", nsa_query(m.ctx, &p, &caps), NSA_OK, NULL);
  assert_false(caps.supported);
  nsa_explain(m.ctx, &p, text, sizeof text);
  assert_non_null(
      strstr(text, "no kernel serves NSA_OP_BACKWARD yet: set runtime.device to cpu\n"));
  machine_expect("plan", nsa_plan_create(m.ctx, &p, NULL, NULL, &plan), NSA_E_UNSUPPORTED,
                 "no kernel serves NSA_OP_BACKWARD");
  assert_null(plan);
  machine_expect("tune", nsa_tune(m.ctx, &p, 1, NULL), NSA_E_UNSUPPORTED, "leave it out");
  machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_absent),
    cmocka_unit_test(test_each_tensor),
    cmocka_unit_test(test_arguments),
    cmocka_unit_test(test_gpu),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

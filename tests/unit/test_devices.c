/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The same wrong calls on the CPU device and on the fake GPU: both answer with the same status, so
 * that a host that was tested without a GPU does not meet a new rule on one. Only what the copy engine
 * of sm_90a cannot do differs; attention.h names it.
 */
#include "support/cmocka_all.h"

#include "machine.h"

/* ---- the changes ---- */

/* What a call passes, free to be changed. */
typedef struct call {
  nsa_exec exec;
  nsa_batch batch;
  nsa_io io;
  uint64_t asked; /* caps.workspace_bytes */
} call;

typedef struct change {
  const char *name;
  void (*make)(call *c);
  nsa_status wanted; /* of both devices */
  nsa_status sm90;   /* of the GPU, where it differs */
} change;

static void shift(nsa_tensor *t, ptrdiff_t bytes) { t->data = (char *)t->data + bytes; }

static void nothing(call *c) { (void)c; }
static void no_workspace(call *c) { c->exec.workspace = NULL; }
static void no_workspace_bytes(call *c) { c->exec.workspace_bytes = 0; }
static void neither(call *c) { c->exec.workspace = NULL, c->exec.workspace_bytes = 0; }
static void small_workspace(call *c) { c->exec.workspace_bytes = c->asked - 1; }
static void shifted_workspace(call *c) { c->exec.workspace = (char *)c->exec.workspace + 128; }
static void workspace_of_malloc(call *c) { c->exec.workspace = (char *)c->exec.workspace + 16; }
static void far_workspace(call *c) {
  c->exec.workspace_bytes = UINT64_MAX - (uint64_t)(uintptr_t)c->exec.workspace + 2;
}
static void q_in_workspace(call *c) { c->io.q.data = (char *)c->exec.workspace + 256; }
static void o_in_workspace(call *c) { c->io.o.data = (char *)c->exec.workspace + 256; }
static void lse_in_workspace(call *c) { c->io.lse[0].data = c->exec.workspace; }
static void offsets_in_workspace(call *c) { c->batch.cu_q.data = c->exec.workspace; }
static void o_on_q(call *c) { c->io.o.data = c->io.q.data; }
static void o_on_itself(call *c) { c->io.o.stride[0] = c->io.o.stride[1]; }
static void lse_on_o(call *c) { c->io.lse[0].data = c->io.o.data; }
static void k_on_v(call *c) { c->io.kv.v[0].data = c->io.kv.k[0].data; }
static void q_at_2(call *c) { shift(&c->io.q, 2); }
static void q_at_8(call *c) { shift(&c->io.q, 8); }
static void k_at_8(call *c) { shift(&c->io.kv.k[0], 8); }
static void o_at_1(call *c) { shift(&c->io.o, 1); }
static void lse_at_2(call *c) { shift(&c->io.lse[0], 2); }
static void offsets_at_2(call *c) { shift(&c->batch.cu_q, 2); }
static void last_stride(call *c) { c->io.q.stride[2] = 2; }
static void odd_stride(call *c) { c->io.kv.k[0].stride[0] += 4; }
static void negative_stride(call *c) {
  nsa_tensor *q = &c->io.q;
  q->data = (char *)q->data + 2 * (q->shape[0] - 1) * q->stride[0];
  q->stride[0] = -q->stride[0];
}
static void stride_zero(call *c) { c->io.q.stride[0] = 0; }
static void far_stride(call *c) { c->io.kv.v[0].stride[0] = INT64_MAX / 16 * 8; }
static void one_row_more(call *c) { c->io.kv.v[0].shape[0]++; }
static void other_dtype(call *c) { c->io.q.dtype = NSA_F16; }
static void too_long(call *c) { c->io.q.shape[0] = 65; }
static void too_many(call *c) { c->batch.num_seqs = 3; }
static void no_q(call *c) { c->io.q.data = NULL; }
static void no_o(call *c) { c->io.o.data = NULL; }
static void no_branch(call *c) { c->exec.branches = 8; }
static void bad_scale(call *c) { c->io.softmax_scale = -1; }

#define WORKSPACE NSA_E_WORKSPACE
#define ARG NSA_E_ARG

static const change changes[] = {
  { "nothing", nothing, NSA_OK },
  { "no workspace", no_workspace, WORKSPACE },
  { "no bytes of workspace", no_workspace_bytes, WORKSPACE },
  { "neither", neither, WORKSPACE },
  { "a byte of workspace too few", small_workspace, WORKSPACE },
  { "workspace at 128 bytes", shifted_workspace, WORKSPACE },
  { "workspace at 16 bytes, as of malloc", workspace_of_malloc, WORKSPACE },
  { "workspace beyond the address space", far_workspace, ARG },
  { "q in the workspace", q_in_workspace, ARG },
  { "o in the workspace", o_in_workspace, ARG },
  { "lse in the workspace", lse_in_workspace, ARG },
  { "cu_q in the workspace", offsets_in_workspace, ARG },
  { "o on q", o_on_q, ARG },
  { "o on itself", o_on_itself, ARG },
  { "lse on o", lse_on_o, ARG },
  { "k on v", k_on_v, NSA_OK },
  { "q at 2 bytes", q_at_2, ARG },
  { "q at 8 bytes", q_at_8, ARG },
  { "k at 8 bytes", k_at_8, ARG },
  { "o at an odd byte", o_at_1, ARG },
  { "lse at 2 bytes", lse_at_2, ARG },
  { "cu_q at 2 bytes", offsets_at_2, ARG },
  { "q with a last stride of 2", last_stride, ARG },
  { "k with a stride of 8 bytes more", odd_stride, ARG },
  { "q backwards", negative_stride, NSA_OK, NSA_E_UNSUPPORTED },
  { "q with one row for all", stride_zero, NSA_OK, NSA_E_UNSUPPORTED },
  { "v beyond the address space", far_stride, ARG },
  { "v with a row more than k", one_row_more, ARG },
  { "q of another type", other_dtype, ARG },
  { "more tokens than the plan's", too_long, ARG },
  { "more sequences than the plan's", too_many, ARG },
  { "no q", no_q, ARG },
  { "no o", no_o, ARG },
  { "a branch that does not exist", no_branch, ARG },
  { "a negative scale", bad_scale, ARG },
};

static void expect(const machine *m, const change *ch) {
  char what[128];
  nsa_caps caps = NSA_CAPS_INIT;
  machine_expect("nsa_plan_caps", nsa_plan_caps(m->plan, &caps), NSA_OK, NULL);
  assert_true(caps.workspace_bytes > 0);
  const uint64_t bytes = caps.workspace_bytes;
  const size_t room =
      (size_t)(bytes + 2 * caps.workspace_align) / caps.workspace_align * caps.workspace_align;
  void *workspace = aligned_alloc(caps.workspace_align, room);
  assert_non_null(workspace);
  call c = { m->exec, m->toy.batch, m->toy.io, bytes };
  c.exec.workspace = workspace;
  c.exec.workspace_bytes = bytes;
  ch->make(&c);
  snprintf(what, sizeof what, "%s on the %s", ch->name, m->gpu ? "GPU" : "CPU device");
  machine_expect(what, nsa_forward(m->plan, &c.exec, &c.batch, &c.io),
                 m->gpu && ch->sm90 ? ch->sm90 : ch->wanted, NULL);
  free(workspace);
}

static void test_forward(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    machine_init(&m, &(machine_request){ .gpu = gpu, .dtype = NSA_BF16 });
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) expect(&m, &changes[i]);
    machine_free(&m);
  }
}

/* A plan of the CPU device asks for workspace whatever it is for, and says the same before it is made. */
static void test_every_operation(void **state) {
  static const int32_t ops[] = { NSA_OP_FORWARD, NSA_OP_BACKWARD, NSA_OP_DENSE,
                                 NSA_OP_APPEND,  NSA_OP_PREFILL,  NSA_OP_DECODE };
  machine m;
  char story[1024], line[64];
  machine_init(&m, &(machine_request){ 0 });
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    nsa_problem problem =
        INIT(nsa_problem, .op = ops[i], .max_tokens = 64, .max_kv_len = 64, .max_seqs = 4,
             .page_size = ops[i] >= NSA_OP_PREFILL && ops[i] <= NSA_OP_APPEND ? 16 : 0);
    nsa_caps asked = NSA_CAPS_INIT, made = NSA_CAPS_INIT;
    machine_expect("nsa_query", nsa_query(m.ctx, &problem, &asked), NSA_OK, NULL);
    nsa_plan *plan = machine_plan(m.ctx, &problem);
    machine_expect("nsa_plan_caps", nsa_plan_caps(plan, &made), NSA_OK, NULL);
    assert_true(made.workspace_bytes > 0 && made.workspace_bytes % made.workspace_align == 0);
    assert_int_equal(asked.workspace_bytes, made.workspace_bytes);
    nsa_explain(m.ctx, &problem, story, sizeof story);
    snprintf(line, sizeof line, "workspace: %llu bytes", (unsigned long long)made.workspace_bytes);
    if (!strstr(story, line)) fail_msg("no \"%s\" in: %s", line, story);
    nsa_plan_destroy(plan);
  }
  machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_forward),
    cmocka_unit_test(test_every_operation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

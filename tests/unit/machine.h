/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A context with its plan and a toy forward, on the CPU device or on the GPU of the fake driver,
 * for tests of the public API. Everything unexpected ends the test.
 */
#ifndef TEST_MACHINE_H
#define TEST_MACHINE_H

#include "fake_cuda.h"
#include "toy.h"

#include <nsa/nsa.h>
#include <stdbool.h>

typedef struct machine {
  bool gpu;
  char dir[64]; /* cache folder of the GPU's kernels */
  nsa_ctx *ctx;
  nsa_plan *plan;
  toy toy;
  nsa_exec exec;
  void *workspace;
} machine;

/* Properties of a machine. Zero: a forward with phi mean and gate weights, on the CPU device. */
typedef struct machine_request {
  bool gpu;
  nsai_phi_kind phi;
  nsai_gate_kind gate;
  int32_t gate_hidden;
  bool per_branch;
  bool keys_only; /* compress.output: false */
  /* select.pool, and select.normalizer {block: 16, stride: 8} */
  nsai_pool_kind pool;
  bool normalized;
  bool indexed;  /* select.by: index, {heads: 2, dim: 40}, and pool max; `phi` is NSAI_PHI_NONE */
  int32_t dtype; /* of the model; 0: bf16 on the GPU, f32 on the CPU device */
  int32_t op, selection, max_probe_rows;
  const char *override; /* one additional override of the configuration; NULL: none */
  const char *also;     /* behind `override`, on the GPU: another one */
} machine_request;

/* The YAML text of the toy's model for a request. */
void machine_yaml(const machine_request *request, char *text, size_t size);

/* Plan of at most 64 tokens, 64 KV tokens, 2 sequences, and a toy of two sequences of 17 and 23
 * tokens whose tensors fit. */
void machine_init(machine *m, const machine_request *request);
void machine_free(machine *m);

/* The overrides of a GPU context: all NVIDIA libraries are the fake module, the cache is `dir`. */
typedef struct machine_overrides {
  char text[5][512];
  const char *list[7];
} machine_overrides;
void machine_overrides_init(machine_overrides *o, const char *dir, const char *extra);

/* A context from a YAML text; `gpu`: on GPU 1 of the fake driver. */
nsa_ctx *machine_context(const char *yaml, const char *const *overrides, bool gpu);

typedef struct machine_reopening {
  const char *yaml, *extra; /* extra: as for machine_overrides_init */
  nsa_log_fn log;
  void *log_user;
} machine_reopening;

/* Destroys `*ctx` and makes another one on the fake GPU with the cache folder `dir`, which is
 * not removed; "": a new folder. */
void machine_reopen(nsa_ctx **ctx, char dir[64], const machine_reopening *how);

/* The plan of a problem. */
nsa_plan *machine_plan(nsa_ctx *ctx, const nsa_problem *problem);

/* A workspace for the plan: `exec` has it, the caller frees it. */
void machine_add_workspace(const nsa_plan *plan, nsa_exec *exec);

/* The forward of a machine's toy. */
nsa_status machine_forward(const machine *m);

/* One sequence of at most `tokens` tokens. */
nsa_problem machine_problem(int32_t op, int64_t tokens, int32_t overlap);

/* The path of the fake module. */
const char *machine_module(void);

/* The record of the fake module; and a function that sets this thread's current context in it. */
fake_cuda_state *machine_record(void);
void machine_set_current(void *context);

/* Fails unless the status is `want` and, when `text` is given, the error text contains it. */
void machine_expect(const char *what, nsa_status got, nsa_status want, const char *text);

/* Fails unless the launches on record are these: names with a space between them. */
void machine_expect_launches(const char *names);

/* Fails unless nsa_explain says `part` of a problem. */
void machine_expect_story(nsa_ctx *ctx, const nsa_problem *problem, const char *part);

/* Removes a folder of files, one level deep. */
void machine_remove(const char *dir);

#endif /* TEST_MACHINE_H */

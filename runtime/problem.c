/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "problem.h"

/* Rows are counted in int32 on the device, with room for a tile and one tile per sequence beyond
 * the last. */
#define MAX_ROWS ((int64_t)2000000000)
/* Tiles of a launch: rows / 1 + sequences must stay an int32, too. */
#define MAX_SEQS 1000000

static nsa_status check_capacity(const char *name, const char *serving_key, int64_t value,
                                 int64_t limit) {
  if (value < 1)
    return nsai_fail(NSA_E_ARG,
                     "problem.%s is %lld: give at least 1, or set serving.%s in the configuration",
                     name, (long long)value, serving_key);
  if (value > limit)
    return nsai_fail(NSA_E_ARG, "problem.%s is %lld: at most %lld are supported", name,
                     (long long)value, (long long)limit);
  return NSA_OK;
}

static nsa_status check_choice(const char *name, int32_t value, int32_t low, int32_t high) {
  if (value < low || value > high)
    return nsai_fail(NSA_E_ARG, "problem.%s is %d: expected %d to %d, see include/nsa/attention.h",
                     name, value, low, high);
  return NSA_OK;
}

nsa_status nsai_problem_resolve(const nsai_config *config, const nsa_problem *problem,
                                nsai_problem *out) {
  if (!problem || !out) return nsai_fail(NSA_E_ARG, "problem is NULL");
  if (problem->struct_size != sizeof *problem)
    return nsai_fail(
        NSA_E_VERSION,
        "problem.struct_size is %u, this library expects %zu: use NSA_PROBLEM_INIT and the "
        "header of this library's version",
        problem->struct_size, sizeof *problem);
  for (size_t i = 0; i < sizeof problem->reserved / sizeof *problem->reserved; i++)
    if (problem->reserved[i])
      return nsai_fail(NSA_E_ARG, "problem.reserved[%zu] is %d, expected 0: use NSA_PROBLEM_INIT",
                       i, problem->reserved[i]);
  const nsai_geometry *m = &config->model;
  *out = (nsai_problem){
    .model = *m,
    .op = problem->op ? problem->op : NSA_OP_FORWARD,
    .selection = problem->selection,
    .overlap = problem->overlap ? problem->overlap : NSA_OVERLAP_LOW,
    .max_seqs = problem->max_seqs ? problem->max_seqs : config->serving.max_seqs,
    .max_probe_rows = problem->max_probe_rows,
    .max_tokens = problem->max_tokens ? problem->max_tokens : config->serving.max_tokens,
    .deterministic = problem->deterministic || config->runtime.deterministic,
    .parity = problem->parity || config->runtime.parity,
  };
  NSAI_TRY(check_choice("op", out->op, NSA_OP_FORWARD, NSA_OP_DENSE));
  NSAI_TRY(check_choice("selection", out->selection, NSA_SELECT_OWN, NSA_SELECT_RANGES));
  NSAI_TRY(check_choice("overlap", out->overlap, NSA_OVERLAP_LOW, NSA_OVERLAP_HIGH));
  NSAI_TRY(check_capacity("max_seqs", "max_seqs", out->max_seqs, MAX_SEQS));
  NSAI_TRY(check_capacity("max_tokens", "max_tokens", out->max_tokens, MAX_ROWS));
  out->max_kv_tokens = problem->max_kv_tokens ? problem->max_kv_tokens
                       : problem->max_tokens  ? problem->max_tokens
                                              : config->serving.max_kv_tokens;
  if (!out->max_kv_tokens) out->max_kv_tokens = out->max_tokens;
  NSAI_TRY(check_capacity("max_kv_tokens", "max_kv_tokens", out->max_kv_tokens, MAX_ROWS));
  out->max_kv_len = problem->max_kv_len ? problem->max_kv_len : config->serving.max_kv_len;
  if (!out->max_kv_len || out->max_kv_len > out->max_kv_tokens)
    out->max_kv_len = out->max_kv_tokens;
  NSAI_TRY(check_capacity("max_kv_len", "max_kv_len", out->max_kv_len, MAX_ROWS));
  if (out->max_probe_rows < 0 || out->max_probe_rows > out->max_tokens)
    return nsai_fail(NSA_E_ARG, "problem.max_probe_rows is %d: expected 0 to max_tokens (%lld)",
                     out->max_probe_rows, (long long)out->max_tokens);
  if (out->op == NSA_OP_DENSE && out->max_probe_rows)
    return nsai_fail(NSA_E_ARG,
                     "problem.max_probe_rows is %d, but NSA_OP_DENSE has no importance: leave it 0",
                     out->max_probe_rows);
  if (out->selection != NSA_SELECT_OWN && !m->select_count)
    return nsai_fail(
        NSA_E_ARG,
        "problem.selection is %d, but model.select.count is 0: the selected branch is off",
        out->selection);
  /* count * block tokens are at most `count` blocks, so every block is chosen. A larger threshold
   * would not be exact. */
  int64_t exact = (int64_t)m->select_count * m->select_block;
  int64_t wanted = config->thresholds.select_dense_below;
  out->select_dense_below = wanted < 0 || wanted > exact ? exact : wanted;
  return NSA_OK;
}

static const char *activation_name(nsai_activation activation) {
  static const char *const names[] = { "relu", "silu", "gelu" };
  return names[activation];
}

void nsai_problem_add_geometry(nsai_writer *text, const nsai_problem *p) {
  static const char *const phis[] = { "mean", "linear", "mlp", "external" };
  static const char *const gates[] = { "weights", "logits", "mlp" };
  static const char *const selections[] = { "own", "blocks", "ranges" };
  const nsai_geometry *m = &p->model;
  nsai_write(text, "%s:%s:h%d/%d:d%d/%d", p->op == NSA_OP_DENSE ? "dense" : "fwd",
             m->dtype == NSA_BF16  ? "bf16"
             : m->dtype == NSA_F16 ? "fp16"
                                   : "f32",
             m->heads, m->kv_heads, m->head_dim_qk, m->head_dim_v);
  if (p->op == NSA_OP_DENSE) return;
  nsai_write(text, ":l%d/%d:s%dx%d+%d+%d:w%d:phi=%s", m->block, m->stride, m->select_block,
             m->select_count, m->select_init, m->select_local, m->window, phis[m->phi]);
  if (m->phi == NSAI_PHI_MLP)
    nsai_write(text, ",%d,%s", m->phi_hidden, activation_name(m->phi_activation));
  nsai_write(text, ":kv=%s:gate=%s", m->per_branch ? "branch" : "shared", gates[m->gate]);
  if (m->gate == NSAI_GATE_MLP)
    nsai_write(text, ",%d,%d,%s", m->gate_channels, m->gate_hidden,
               activation_name(m->gate_activation));
  nsai_write(text, ":sel=%s", selections[p->selection]);
}

void nsai_problem_add_string(nsai_writer *text, const nsai_problem *p) {
  nsai_problem_add_geometry(text, p);
  nsai_write(text, ":ov=%s:tok%lld:kv%lld:len%lld:seq%d",
             p->overlap == NSA_OVERLAP_HIGH ? "high" : "low", (long long)p->max_tokens,
             (long long)p->max_kv_tokens, (long long)p->max_kv_len, p->max_seqs);
  if (p->max_probe_rows) nsai_write(text, ":probe%d", p->max_probe_rows);
  if (p->deterministic) nsai_write(text, ":det");
  if (p->parity) nsai_write(text, ":parity");
}

bool nsai_problem_selects_all(const nsai_problem *p) {
  return p->op == NSA_OP_FORWARD && p->selection == NSA_SELECT_OWN && p->model.select_count &&
         p->max_kv_len <= p->select_dense_below;
}

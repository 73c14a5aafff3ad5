/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/check_index.h"

#include "run/check_tensor.h"

/* Whether a call has no use for the tensor, and why. Calls over a cache may share one nsa_io, so that
 * each leaves alone what is another's, as with q and new_kv. */
static const char *no_use(const nsai_problem *p, bool new_keys) {
  if (p->model.by != NSAI_BY_INDEX)
    return "model.select.by is compressed, and the model has no index";
  if (p->op == NSA_OP_DENSE) return "NSA_OP_DENSE reads every key and chooses no blocks";
  return new_keys && !nsai_problem_is_cached(p) ? "there is no cache that nsa_kv_append writes"
                                                : NULL;
}

nsa_status nsai_check_no_index(const nsai_check *check, const nsa_io *io) {
  const struct {
    const char *name;
    const nsa_tensor *tensor;
  } fields[] = { { "index_q", &io->index_q },
                 { "k_idx", &io->k_idx },
                 { "new_k_idx", &io->new_k_idx } };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    const char *why = no_use(check->problem, fields[i].tensor == &io->new_k_idx);
    if (why && nsai_present(fields[i].tensor))
      return nsai_fail(NSA_E_ARG, "io.%s is given, but %s: leave it out", fields[i].name, why);
  }
  return NSA_OK;
}

/* Whether the call computes the LSE of the index, which reads queries and keys like a ranking. */
static bool sums_scores(const nsai_check *check, const nsa_io *io) {
  return check->problem->index_lse && nsai_present(&io->index_lse);
}

bool nsai_check_ranks(const nsai_check *check, const nsa_io *io) {
  const nsai_problem *p = check->problem;
  if (p->model.by != NSAI_BY_INDEX || p->op == NSA_OP_BACKWARD) return false;
  if (p->op == NSA_OP_INDEX_KL) return true; /* its loss is that of the scores */
  if (nsai_present(&io->probe_rows) || sums_scores(check, io)) return true;
  return p->selection == NSA_SELECT_TOPN &&
         (check->branches >> NSA_SEL & 1 || nsai_present(&io->block_idx));
}

nsa_status nsai_check_index_lse(const nsai_check *check, const nsa_io *io, int64_t tokens) {
  const nsai_problem *p = check->problem;
  const bool computes =
      p->op == NSA_OP_FORWARD || p->op == NSA_OP_PREFILL || p->op == NSA_OP_DECODE;
  const nsai_tensor_spec lse = {
    "io.index_lse", 2, { tokens, p->model.index_heads }, NSAI_DTYPE_F32
  };
  /* Other calls leave it alone: they may share one nsa_io. */
  if (!computes || !nsai_present(&io->index_lse)) return NSA_OK;
  if (!p->index_lse)
    return nsai_fail(NSA_E_ARG, "io.index_lse is wanted, but the plan has no kernel for it: set "
                                "problem.index_lse to 1, or leave it out");
  if (!nsai_present(&io->block_idx))
    return nsai_fail(NSA_E_ARG,
                     "io.index_lse is wanted, but io.block_idx is missing: it is the LSE "
                     "over these blocks; give both");
  NSAI_TRY(nsai_check_tensor(check, &io->index_lse, &lse));
  return nsai_check_tensor_memory(check, &io->index_lse, lse.name);
}

/* Over ranks every forward of the plan gathers the keys, whatever it computes. */
static bool gathers_keys(const nsai_problem *p) {
  return p->ranks && p->op == NSA_OP_FORWARD && (p->selection == NSA_SELECT_TOPN || p->index_lse);
}

nsa_status nsai_check_index(const nsai_check *check, const nsa_io *io,
                            const nsai_run_sizes *sizes) {
  const nsai_problem *p = check->problem;
  const nsai_model *m = &p->model;
  if (m->by != NSAI_BY_INDEX) return NSA_OK;
  const bool ranks = nsai_check_ranks(check, io);
  nsai_check unread = *check; /* what nobody reads has the same form, but may share memory */
  unread.tensors = NULL;
  nsa_status (*const check_one)(const nsai_check *, const nsa_tensor *, const nsai_tensor_spec *) =
      ranks ? nsai_check_tensor : nsai_check_optional_tensor;
  const nsai_check *const of_q = ranks ? check : &unread;
  const nsai_check *const of_k = ranks || gathers_keys(p) ? check : &unread;
  const nsai_tensor_spec q = {
    "io.index_q", 3, { sizes->tokens, m->index_heads, m->index_dim }, NSAI_DTYPE_MODEL
  };
  const nsai_tensor_spec k = {
    "io.k_idx", 3, { sizes->kv_tokens, 1, m->index_dim }, NSAI_DTYPE_MODEL
  };
  NSAI_TRY(check_one(of_q, &io->index_q, &q));
  return nsai_problem_is_cached(p) ? NSA_OK : check_one(of_k, &io->k_idx, &k);
}

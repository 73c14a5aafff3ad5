/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/check_index.h"

#include "run/check_tensor.h"

nsa_status nsai_check_no_index(const nsai_check *check, const nsa_io *io) {
  const struct {
    const char *name;
    const nsa_tensor *tensor;
  } fields[] = { { "index_q", &io->index_q },
                 { "k_idx", &io->k_idx },
                 { "new_k_idx", &io->new_k_idx } };
  if (check->problem->model.by == NSAI_BY_INDEX) return NSA_OK;
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (nsai_present(fields[i].tensor))
      return nsai_fail(NSA_E_ARG,
                       "io.%s is given, but model.select.by is compressed, and the model has no "
                       "index: leave it out",
                       fields[i].name);
  return NSA_OK;
}

/* A caller's selection needs no ranking, but for probes. What a backward pass is given was ranked by
 * its forward. */
static bool is_ranked(const nsai_problem *p, const nsa_io *io) {
  if (p->model.by != NSAI_BY_INDEX || p->op == NSA_OP_BACKWARD) return false;
  if (p->op == NSA_OP_INDEX_KL) return true; /* its loss is that of the scores */
  return p->selection == NSA_SELECT_TOPN || nsai_present(&io->probe_rows);
}

nsa_status nsai_check_index(const nsai_check *check, const nsa_io *io,
                            const nsai_run_sizes *sizes) {
  const nsai_problem *p = check->problem;
  const nsai_model *m = &p->model;
  if (!is_ranked(p, io)) return NSA_OK;
  const nsai_tensor_spec q = {
    "io.index_q", 3, { sizes->tokens, m->index_heads, m->index_dim }, NSAI_DTYPE_MODEL
  };
  const nsai_tensor_spec k = {
    "io.k_idx", 3, { sizes->kv_tokens, 1, m->index_dim }, NSAI_DTYPE_MODEL
  };
  NSAI_TRY(nsai_check_tensor(check, &io->index_q, &q));
  return nsai_problem_is_cached(p) ? NSA_OK : nsai_check_tensor(check, &io->k_idx, &k);
}

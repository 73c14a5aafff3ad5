/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/expanded_tokens.h"

#include "base/math.h"
#include "plan/expand.h"

#define THREADS 256
#define MIN_CTAS 4 /* of a multiprocessor; a thread holds eight loads */

void nsai_legal_expanded_tokens(const nsai_problem *p, int branch, nsai_reasons *reasons) {
  const int64_t length = nsai_expand_length(p, branch, p->max_tokens, p->max_kv_len);
  if (p->op != NSA_OP_PREFILL || !p->kv_dtype)
    nsai_refuse(reasons,
                "it expands raw tokens of a cache in e4m3, which problem.kv_dtype does not "
                "ask for");
  else if (nsai_expand_reach(p->max_tokens) < length)
    nsai_refuse(reasons,
                "problem.max_tokens (%lld) new tokens are too few to expand %lld of a sequence of "
                "problem.max_kv_len (%lld) for",
                (long long)p->max_tokens, (long long)length, (long long)p->max_kv_len);
  else if (nsai_expand_capacity(p, branch) < length)
    nsai_refuse(reasons,
                "%lld raw tokens of a sequence of problem.max_kv_len (%lld) take more than "
                "thresholds.prefill_expand_bytes (%lld) of workspace in 16 bits",
                (long long)length, (long long)p->max_kv_len, (long long)p->expand_bytes);
}

void nsai_expanded_reader_add(nsai_kernel_spec *reader) {
  nsai_constant_add(reader, "kScaled", true);
}

void nsai_expand_tokens_specify(const nsai_problem *p, int branch, nsai_kernel_spec *expand) {
  const nsai_model *m = &p->model;
  *expand = (nsai_kernel_spec){ .entry = "kv_cache_expand_tokens",
                                .dtype = m->dtype,
                                .threads = THREADS };
  const bool keys_alone = branch == NSAI_INDEX_KEYS;
  nsai_constant_add(expand, "kHeadDimQk", keys_alone ? m->index_dim : m->head_dim_qk);
  nsai_constant_add(expand, "kHeadDimV", keys_alone ? 0 : m->head_dim_v);
  nsai_constant_add(expand, "kPageRows",
                    branch == NSA_WIN ? nsai_window_page_rows(p) : p->page_size);
  nsai_constant_add(expand, "kMinBlocks", MIN_CTAS);
}

nsa_status nsai_expand_tokens_enqueue(const nsai_run *run, const nsai_kernel *kernel, int branch) {
  const nsai_problem *p = &run->plan->problem;
  const int64_t longest = nsai_longest_sequence(run);
  const int64_t behind = branch == NSA_WIN ? p->model.window - 1 : longest;
  /* The first may be moved to where a box begins. */
  const int64_t new = nsai_smaller(run->sizes.tokens, p->max_q_len);
  const int64_t most = nsai_smaller(longest, behind + new + NSAI_WINDOW_BOX_ROWS - 1);
  const int64_t pieces = nsai_ceil_div(most, NSAI_EXPANDED_TOKENS);
  const NsaiExpandTokens params = { .batch = nsai_cache_batch(run),
                                    .from = nsai_cache_pair(run, &run->io->kv, branch),
                                    .to = nsai_expanded_pair(run, branch),
                                    .kv_heads = p->model.kv_heads,
                                    .behind = (int)behind };
  return nsai_launch(run->queue, kernel, (uint64_t)(pieces * p->model.kv_heads),
                     (uint32_t)run->sizes.num_seqs, &params);
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/decode/params.h"

#include "base/math.h"

#include <stddef.h>

bool nsai_decode_probes(const nsai_run *run) { return nsai_present(&run->io->probe_rows); }

/* Whether they need the compressed branch's LSE, which is then kept. */
static bool keeps_lse(const nsai_run *run) {
  return nsai_decode_probes(run) && nsai_ranks_by_branch(&run->plan->problem.model);
}

static void set_outputs(const nsai_run *run, NsaiDecode *p) {
  for (int b = 0; b < NSA_BRANCHES; b++) {
    bool kept = b == NSA_CMP && keeps_lse(run);
    nsa_tensor lse = kept ? nsai_compressed_lse(run) : run->io->lse[b];
    NsaiEpilogue *out = &p->out[b];
    out->gate_branch = b;
    nsai_set_gate(run, out);
    out->lse = lse.data;
    out->lse_token_stride = lse.stride[0];
    out->lse_head_stride = lse.stride[1];
    if (nsai_present(&run->io->o_branch[b])) out->o_branch = nsai_view(&run->io->o_branch[b]);
  }
  p->out[0].o = nsai_view(&run->io->o);
}

/* KvTensors of decode/cluster/schedule.cuh takes the pairs as an array. */
_Static_assert(offsetof(NsaiDecode, selected) == offsetof(NsaiDecode, entries) +
                                                     NSAI_BRANCH_SELECTED * sizeof(NsaiCachePair) &&
                   offsetof(NsaiDecode, window) ==
                       offsetof(NsaiDecode, entries) + NSAI_BRANCH_WINDOW * sizeof(NsaiCachePair),
               "pairs lie in the order of branches");

NsaiCodedDecode nsai_decode_params(const nsai_run *run, const nsai_decode_split *split) {
  const nsai_problem *problem = &run->plan->problem;
  NsaiCodedDecode coded = { 0 };
  NsaiDecode *p = &coded.decode;
  *p = (NsaiDecode){ .batch = nsai_cache_batch(run),
                     .q = nsai_view(&run->io->q),
                     .entries = nsai_cache_entries(&run->io->kv),
                     .scan = { .splits = split->scan_splits, .min_granules = split->scan_least },
                     .attend = { .splits = split->window_splits + split->selected_splits },
                     .scale_log2 = nsai_run_scale_log2(run),
                     .kv_heads = problem->model.kv_heads,
                     .tiles = (int)split->tiles,
                     .seq_tiles = (int)split->seq_tiles,
                     .pooled_blocks = (int)nsai_decode_pooled_blocks(problem),
                     .window_splits = split->window_splits,
                     .branches = (int)run->branches,
                     .probes = keeps_lse(run),
                     .row_warps = split->row_warps };
  if (nsai_run_has(run, NSA_SEL)) p->selected = nsai_cache_pair(run, &run->io->kv, NSA_SEL);
  if (nsai_run_has(run, NSA_WIN)) p->window = nsai_cache_pair(run, &run->io->kv, NSA_WIN);
  if (nsai_run_selects(run)) {
    nsa_tensor idx = nsai_index_tensor(run);
    p->idx = idx.data;
    p->idx_token_stride = idx.stride[0];
    p->idx_head_stride = idx.stride[1];
  }
  if (problem->count_reads) p->kv_reads = nsai_kv_reads(run);
  set_outputs(run, p);
  coded.scales[NSA_CMP] = nsai_entry_scales(run);
  coded.scales[NSA_SEL] = nsai_pair_scales(run, NSA_SEL);
  coded.scales[NSA_WIN] = nsai_pair_scales(run, NSA_WIN);
  return coded;
}

void *nsai_decode_at(const nsai_run *run, nsai_buffer buffer) {
  return buffer.bytes ? nsai_buffer_at(run, buffer) : NULL;
}

nsai_decode_split nsai_decode_unsplit(const nsai_run *run, const nsai_kernel *kernel) {
  const nsai_step step = nsai_run_step(run);
  const nsai_step_tiles cover = nsai_step_tiles_of(&run->plan->problem, &step, kernel->tile_tokens);
  return (nsai_decode_split){
    .tiles = cover.tiles, .seq_tiles = cover.seq_tiles, .scan_splits = 1, .scan_least = 1
  };
}

nsa_status nsai_decode_launch_items(const nsai_run *run, const nsai_kernel *kernel,
                                    const nsai_kernel_spec *spec, const NsaiDecode *p) {
  const int64_t items = (int64_t)p->tiles * p->kv_heads;
  return nsai_launch(run->queue, kernel, (uint64_t)(items * nsai_larger(spec->cluster, 1)), 1, p);
}

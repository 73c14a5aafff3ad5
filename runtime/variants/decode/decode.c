/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The launches of nsa_kv_append and nsa_decode. Grids follow from the shapes of tensors alone; lengths
 * and page lists are read on the device, so that a captured graph serves whatever they become.
 */
#include "variants/decode/decode.h"

#include "plan/context.h"
#include "run/params.h"
#include "variants/select/importance.h"
#include "variants/select/sort.h"

#include <stddef.h>

static nsa_status launch(const nsai_run *run, nsai_role role, int64_t grid, const void *params) {
  return nsai_launch(run->queue, &run->plan->kernels[role], (uint64_t)grid, 1, params);
}

static bool has_branch(const nsai_run *run, int branch) { return run->branches >> branch & 1; }

static nsai_decode_split split_of(const nsai_run *run) {
  const nsai_kernel_spec *specs = run->plan->choice.specs;
  nsai_decode_sizes sizes = { .problem = &run->plan->problem,
                              .scan = nsai_decode_scan_spec(specs),
                              .attend = nsai_decode_attend_spec(specs),
                              .split_kv = specs[NSAI_KERNEL_DECODE_SCAN].entry,
                              .two_per_sm = specs[NSAI_KERNEL_DECODE_TWO_PER_SM].entry,
                              .one_per_sm = specs[NSAI_KERNEL_DECODE_ONE_PER_SM].entry,
                              .cluster_2 = specs[NSAI_KERNEL_DECODE_CLUSTER_2].entry,
                              .cluster_4 = specs[NSAI_KERNEL_DECODE_CLUSTER_4].entry,
                              .sms = run->plan->ctx->target.sms,
                              .tokens = run->sizes.tokens,
                              .num_seqs = run->sizes.num_seqs,
                              .packed = nsai_present(&run->batch->cu_q),
                              .branches = run->branches };
  return nsai_decode_split_make(&sizes);
}

static bool owns_lists(const nsai_run *run) {
  return run->plan->problem.selection == NSA_SELECT_OWN;
}

/* The library's own lists are wanted by the branch, or by the caller. */
static bool selects(const nsai_run *run) {
  if (!run->plan->problem.model.select_count || !owns_lists(run)) return false;
  return has_branch(run, NSA_SEL) || nsai_present(&run->io->block_idx);
}

static bool probes(const nsai_run *run) { return nsai_present(&run->io->probe_rows); }

static void set_outputs(const nsai_run *run, NsaiDecode *p) {
  for (int b = 0; b < NSA_BRANCHES; b++) {
    bool kept = b == NSA_CMP && probes(run);
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

static void set_workspace(const nsai_run *run, const nsai_decode_split *split, NsaiDecode *p) {
  const nsai_decode_workspace *l = &run->plan->workspace.decode;
  p->scan = (NsaiDecodeSplits){ .o = nsai_buffer_at(run, l->scan_o),
                                .stats = nsai_buffer_at(run, l->scan_stats),
                                .splits = split->scan_splits,
                                .min_granules = split->scan_least };
  p->attend = (NsaiDecodeSplits){ .o = nsai_buffer_at(run, l->attend_o),
                                  .stats = nsai_buffer_at(run, l->attend_stats),
                                  .splits = split->window_splits + split->selected_splits };
  p->window_splits = split->window_splits;
  p->pooled = nsai_buffer_at(run, l->pooled);
  p->carries = nsai_buffer_at(run, l->carries);
}

static NsaiKvReads reads_of(const nsai_run *run) {
  const nsa_tensor *t = &run->io->reads;
  return (NsaiKvReads){ t->data, t->stride[0], t->stride[1], t->stride[2] };
}

/* KvTensors of decode/cluster/schedule.cuh takes the pairs as an array. */
_Static_assert(offsetof(NsaiDecode, selected) == offsetof(NsaiDecode, entries) +
                                                     NSAI_BRANCH_SELECTED * sizeof(NsaiCachePair) &&
                   offsetof(NsaiDecode, window) ==
                       offsetof(NsaiDecode, entries) + NSAI_BRANCH_WINDOW * sizeof(NsaiCachePair),
               "pairs lie in the order of branches");

static NsaiDecode decode_params(const nsai_run *run, const nsai_decode_split *split) {
  const nsai_problem *problem = &run->plan->problem;
  NsaiDecode p = { .batch = nsai_cache_batch(run),
                   .q = nsai_view(&run->io->q),
                   .entries = nsai_cache_entries(&run->io->kv),
                   .scale_log2 = nsai_run_scale_log2(run),
                   .kv_heads = problem->model.kv_heads,
                   .tiles = (int)split->tiles,
                   .seq_tiles = (int)split->seq_tiles,
                   .pooled_blocks = (int)nsai_decode_pooled_blocks(problem),
                   .branches = (int)run->branches,
                   .probes = probes(run),
                   .row_warps = split->row_warps };
  if (has_branch(run, NSA_SEL)) p.selected = nsai_cache_pair(run, &run->io->kv, NSA_SEL);
  if (has_branch(run, NSA_WIN)) p.window = nsai_cache_pair(run, &run->io->kv, NSA_WIN);
  if (selects(run)) {
    nsa_tensor idx = nsai_index_tensor(run);
    p.idx = idx.data;
    p.idx_token_stride = idx.stride[0];
    p.idx_head_stride = idx.stride[1];
  }
  if (problem->count_reads) p.kv_reads = reads_of(run);
  set_outputs(run, &p);
  set_workspace(run, split, &p);
  return p;
}

/* A caller's lists, sorted. */
static nsa_status sort_lists(const nsai_run *run, NsaiDecode *p) {
  NsaiAttendSelected sorted;
  NSAI_TRY(nsai_sort_enqueue(run, &run->plan->kernels[NSAI_KERNEL_SORT], &sorted));
  p->idx = (int *)sorted.lists;
  p->idx_token_stride = sorted.list_token_stride;
  p->idx_head_stride = sorted.list_head_stride;
  return NSA_OK;
}

/* All of it by one launch: decode_cluster. */
static nsa_status enqueue_cluster(const nsai_run *run) {
  const nsai_kernel_spec *spec = &run->plan->choice.specs[NSAI_KERNEL_DECODE_CLUSTER];
  const nsai_decode_split split = { .tiles = run->sizes.tokens,
                                    .scan_splits = spec->cluster,
                                    .scan_least = 1 };
  const NsaiDecode p = decode_params(run, &split);
  return nsai_launch(run->queue, &run->plan->kernels[NSAI_KERNEL_DECODE_CLUSTER],
                     (uint64_t)(run->sizes.tokens * spec->cluster),
                     (uint32_t)run->plan->problem.model.kv_heads, &p);
}

/* By scan, select, attend and combine. */
static nsa_status enqueue_split_kv(const nsai_run *run) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_decode_split split = split_of(run);
  const int64_t tokens = run->sizes.tokens;
  const int64_t scans = split.tiles * m->kv_heads * split.scan_splits;
  NsaiDecode p = decode_params(run, &split);
  if (split.single != NSAI_ROLES) {
    const int32_t cluster = run->plan->choice.specs[split.single].cluster;
    return launch(run, split.single, split.tiles * m->kv_heads * (cluster ? cluster : 1), &p);
  }
  if (has_branch(run, NSA_CMP) || selects(run) || probes(run))
    NSAI_TRY(launch(run, NSAI_KERNEL_DECODE_SCAN, scans, &p));
  if (selects(run)) NSAI_TRY(launch(run, NSAI_KERNEL_DECODE_SELECT, tokens * m->kv_heads, &p));
  if (has_branch(run, NSA_SEL) && !owns_lists(run)) NSAI_TRY(sort_lists(run, &p));
  if (p.attend.splits)
    NSAI_TRY(launch(run, NSAI_KERNEL_DECODE_ATTEND, split.attend_items * m->kv_heads, &p));
  const int64_t rows_each = run->plan->kernels[NSAI_KERNEL_DECODE_COMBINE].threads / 32 *
                            nsai_decode_warp_rows(m) / split.row_warps;
  NSAI_TRY(
      launch(run, NSAI_KERNEL_DECODE_COMBINE, (tokens * m->heads + rows_each - 1) / rows_each, &p));
  return probes(run) ? nsai_probe_enqueue(run, &run->plan->kernels[NSAI_KERNEL_PROBE]) : NSA_OK;
}

nsa_status nsai_enqueue_decode(const nsai_run *run) {
  if (!run->sizes.tokens) return NSA_OK;
  NSAI_TRY(nsai_enqueue_gates(run));
  return run->plan->choice.specs[NSAI_KERNEL_DECODE_CLUSTER].entry ? enqueue_cluster(run)
                                                                   : enqueue_split_kv(run);
}

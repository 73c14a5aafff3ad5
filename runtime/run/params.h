/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the launches of several variants have in common. Arguments have been checked.
 */
#ifndef NSAI_RUN_PARAMS_H
#define NSAI_RUN_PARAMS_H

#include "params/kv_cache.h"
#include "plan/forms.h"
#include "run/run.h"

/* ---- the run ---- */

/* Whether the run has this branch. */
static inline bool nsai_run_has(const nsai_run *run, int branch) {
  return run->branches >> branch & 1;
}

/* Whether another stage's row does this stage. */
static inline bool nsai_run_fuses(const nsai_run *run, nsai_stage stage) {
  return nsai_is_fused(&run->plan->choice, stage);
}

/* Whether the library makes a selection: for the branch, or because the caller asks for its
 * indices. */
bool nsai_run_selects(const nsai_run *run);

/* Before the first kernel that reads K and V of other ranks. */
static inline nsa_status nsai_await_keys(const nsai_run *run) {
  nsai_awaited_keys *keys = run->piece ? run->piece->awaited : NULL;
  if (!keys || keys->received) return NSA_OK;
  keys->received = true;
  return keys->receive(keys->user);
}

/* Behind the last kernel that adds to sums of dK and dV, where others follow: sends them to ranks that wait. */
static inline nsa_status nsai_send_sums(const nsai_run *run) {
  const nsai_made_sums *sums = run->piece ? run->piece->sums : NULL;
  return sums ? sums->send(sums->user) : NSA_OK;
}

/* Whether the stage's last kernel is the last launch, so that a kernel may start beside its end. */
bool nsai_run_is_behind(const nsai_run *run, nsai_stage stage);

/* Softmax scale of this run; and times log2(e), as the kernels take it. */
double nsai_run_scale(const nsai_run *run);
float nsai_run_scale_log2(const nsai_run *run);

/* The new tokens of a run over a cache. */
nsai_step nsai_run_step(const nsai_run *run);

NsaiSequences nsai_run_sequences(const nsai_run *run);

/* ---- tensors ---- */

static inline void *nsai_buffer_at(const nsai_run *run, nsai_buffer buffer) {
  return run->workspace + buffer.offset;
}

/* A [tokens, heads, dim] tensor of the caller. */
NsaiView nsai_view(const nsa_tensor *tensor);

/* A contiguous one in the workspace. */
NsaiView nsai_buffer_view(const nsai_run *run, nsai_buffer buffer, int64_t heads, int64_t dim);

/* This run's compressed keys (side 0) or values (side 1), the sequences as compressed storage sees
 * them, and the rows of it that this run may touch. */
NsaiView nsai_compressed_view(const nsai_run *run, int side);
NsaiSequences nsai_compressed_sequences(const nsai_run *run);
int64_t nsai_compressed_rows(const nsai_run *run);

/* Rows of compressed storage that tensor maps may cover. For one sequence they end with its last
 * whole block: nothing was written behind it. */
int64_t nsai_present_blocks(const nsai_run *run);

/* The LSE of the compressed branch, and the top-n: the caller's tensors, or the workspace. */
nsa_tensor nsai_compressed_lse(const nsai_run *run);
nsa_tensor nsai_index_tensor(const nsai_run *run);

/* Where the gates lie; fills all but the branch. */
void nsai_set_gate(const nsai_run *run, NsaiEpilogue *out);

/* ---- launches ---- */

/* Tiles of `tokens` query tokens that cover every sequence (data/sequence.cuh); and those of a
 * kernel, times the KV heads. */
uint64_t nsai_tile_count(const nsai_run *run, int32_t tokens);
uint64_t nsai_grid_tiles(const nsai_run *run, const nsai_kernel *kernel);

/* Launches a CTA for each tile or, of a persistent kernel, no more than the device holds at once.
 * Such a kernel counts tiles in an int: nsai_launch refuses more. */
nsa_status nsai_launch_tiles(const nsai_run *run, const nsai_kernel *kernel, const void *params);

/* Launches a thread for each of `count` elements. */
nsa_status nsai_launch_elements(const nsai_run *run, const nsai_kernel *kernel, int64_t count,
                                const void *params);

/* Tensor maps of k and v for a kernel that takes them; `rows`: all that may be read. */
nsa_status nsai_map_keys(const nsai_run *run, const nsai_kernel *kernel, const NsaiView kv[2],
                         int64_t rows, NsaiTensorMap *k_map, NsaiTensorMap *v_map);
/* That of a tensor [T, Hq, dim] like q; errors call it `name`. */
nsa_status nsai_map_rows(const nsai_run *run, const nsai_kernel *kernel, const char *name,
                         const NsaiView *view, int32_t dim, NsaiTensorMap *map);
/* Those of q, k and v. */
nsa_status nsai_map_attend(const nsai_run *run, const nsai_kernel *kernel, int64_t rows,
                           NsaiAttendTma *p);

/* A branch's output, gate and LSE; and all that flash attention over the branch's K and V takes. */
NsaiEpilogue nsai_branch_epilogue(const nsai_run *run, int branch);
NsaiAttend nsai_attend_params(const nsai_run *run, int branch, const nsai_kernel *kernel);

/* Creates the tensor maps of the K and V that a branch reads from a cache. */
nsa_status nsai_map_pages(const nsai_run *run, int branch, int32_t box_rows, NsaiTensorMap *k_map,
                          NsaiTensorMap *v_map);

/* Flash attention over packed K and V, with tensor maps where the kernel takes them; `rows` as in
 * nsai_map_keys. And over a cache, of the branch's pair or, of NSA_CMP, its entries. */
nsa_status nsai_launch_attend(const nsai_run *run, const nsai_kernel *kernel, const NsaiAttend *p,
                              int64_t rows);
nsa_status nsai_launch_cached_attend(const nsai_run *run, const nsai_kernel *kernel, int branch,
                                     const NsaiAttend *p);
/* Over entries that were expanded, with tensor maps. */
nsa_status nsai_launch_expanded_attend(const nsai_run *run, const nsai_kernel *kernel,
                                       const NsaiAttend *p, const NsaiExpanded *expanded);

/* A product through cuBLASLt. */
nsa_status nsai_run_gemm(const nsai_run *run, const nsai_gemm *gemm, const void *a, const void *b,
                         void *c);

/* ---- a cache (data/cache_rows.cuh) ---- */

/* Tokens that no sequence has more of: the plan's, and those that a row of each table has pages for. */
int nsai_longest_sequence(const nsai_run *run);

/* The run's sequences and where their raw tokens lie; and where their compressed entries, coarse keys and
 * index keys do, which over ranks have pages of their own. */
NsaiCacheBatch nsai_cache_batch(const nsai_run *run);
NsaiCacheBatch nsai_entry_batch(const nsai_run *run);

/* A tensor of the cache: k, v, k_cmp or v_cmp. Strides of codes count words of two. */
NsaiCacheTensor nsai_cache_tensor(const nsa_tensor *tensor);

/* The caller's counters of a decode step (kv_reads). */
NsaiKvReads nsai_kv_reads(const nsai_run *run);

/* The pair of K and V that a branch reads: its own, or the one that all share. */
int nsai_run_pair(const nsai_run *run, int branch);

/* That pair of a cache. */
NsaiCachePair nsai_cache_pair(const nsai_run *run, const nsa_kv *kv, int branch);

/* The compressed entries, under the same pages. */
NsaiCachePair nsai_cache_entries(const nsa_kv *kv);

/* The scales of the pair that a branch reads, and of the compressed entries, or of the keys of an index.
 * Where there are none the kernels do not look. */
NsaiPairScales nsai_pair_scales(const nsai_run *run, int branch);
NsaiPairScales nsai_entry_scales(const nsai_run *run);

#endif /* NSAI_RUN_PARAMS_H */

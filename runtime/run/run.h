/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The launch lists of the GPU: what each run call enqueues. Arguments have been checked.
 */
#ifndef NSAI_RUN_RUN_H
#define NSAI_RUN_RUN_H

#include "params/attention.h"
#include "plan/plan.h"
#include "run/check_run.h"

#include <nsa/backward.h>

/* Called before and after what each stage enqueues; several times where it works in chunks. */
typedef struct nsai_stage_callbacks {
  nsa_status (*on_stage)(void *user, nsai_stage stage, bool begins);
  void *user;
} nsai_stage_callbacks;

/* nsa_forward, nsa_dense, nsa_prefill or nsa_backward, by the plan's problem, with marks; NSA_E_INTERNAL
 * with a plan of another. `grads`: of nsa_backward, else NULL. */
nsa_status nsai_run_with_callbacks(const nsa_plan *plan, const nsa_exec *exec,
                                   const nsa_batch *batch, const nsa_io *io, const nsa_grads *grads,
                                   const nsai_stage_callbacks *callbacks);

/* One run, resolved: where everything lies. */
typedef struct nsai_run {
  const nsa_plan *plan;
  const nsai_driver *driver;
  const nsa_batch *batch; /* NULL: one sequence */
  const nsa_io *io;
  char *workspace;
  uint64_t workspace_bytes;
  nsai_queue *queue; /* changes with every launch */
  uint32_t branches;
  nsai_run_sizes sizes;
  const nsai_stage_callbacks *callbacks; /* NULL: none */
  bool pushed;                           /* the device was made current by this run */
} nsai_run;

nsa_status nsai_enqueue_forward(const nsai_run *run);
nsa_status nsai_enqueue_dense(const nsai_run *run);
nsa_status nsai_enqueue_compress(const nsai_run *run);
nsa_status nsai_enqueue_select(const nsai_run *run, const nsa_tensor *importance);

/* Calls the run's marks, if it has any. */
nsa_status nsai_run_stage_event(const nsai_run *run, nsai_stage stage, bool begins);

/* Pieces that the launch lists share. */
static inline void *nsai_buffer_at(const nsai_run *run, nsai_buffer buffer) {
  return run->workspace + buffer.offset;
}
NsaiSequences nsai_run_sequences(const nsai_run *run);
/* A [tokens, heads, dim] tensor of the caller. */
NsaiView nsai_view(const nsa_tensor *tensor);
/* A contiguous one in the workspace. */
NsaiView nsai_buffer_view(const nsai_run *run, nsai_buffer buffer, int64_t heads, int64_t dim);

/* Where the gates lie; all but the branch. */
void nsai_set_gate(const nsai_run *run, NsaiEpilogue *out);
/* Where the top-n goes: the caller's tensor, or the workspace. */
nsa_tensor nsai_index_tensor(const nsai_run *run);

/* Where this run's compressed keys (side 0) or values (side 1) lie, and the sequences as compressed
 * storage sees them. */
NsaiView nsai_compressed_view(const nsai_run *run, int side);
NsaiSequences nsai_compressed_sequences(const nsai_run *run);
/* Rows of compressed storage that this run may touch. */
int64_t nsai_compressed_rows(const nsai_run *run);

/* Those that boxes may be read of. Of one sequence they end with its last whole block; behind it lies
 * nothing that was written. */
int64_t nsai_present_blocks(const nsai_run *run);

/* Maps of k and v for a kernel that asks for boxes of them; `rows`: all that may be read. */
nsa_status nsai_map_keys(const nsai_run *run, const nsai_kernel *kernel, const NsaiView kv[2],
                         int64_t rows, NsaiTensorMap *k_map, NsaiTensorMap *v_map);
/* That of a tensor [T, Hq, dim] like q, `name` for errors. */
nsa_status nsai_map_rows(const nsai_run *run, const nsai_kernel *kernel, const char *name,
                         const NsaiView *view, int32_t dim, NsaiTensorMap *map);

/* Softmax scale of this run; and times log2(e), as the kernels take it. */
double nsai_run_scale(const nsai_run *run);
float nsai_run_scale_log2(const nsai_run *run);

/* Where the LSE of the compressed branch goes, which importance needs: the caller's tensor, or the
 * workspace. */
nsa_tensor nsai_compressed_lse(const nsai_run *run);
/* Importance of the rows that io.probe_rows names, once that LSE is there. */
nsa_status nsai_enqueue_probe(const nsai_run *run);

/* Tiles of `tokens` query tokens that cover every sequence: data/sequence.cuh. */
uint64_t nsai_tile_count(const nsai_run *run, int32_t tokens);

/* A caller's selection into sorted lists; sets where they lie. */
nsa_status nsai_sort_selection(const nsai_run *run, NsaiAttendSelected *attend);

/* variants/attend/selected_kv_stationary_run.c: lists of tokens from the lists of blocks of tokens [begin, end), in items of at most
 * item_rows. Only seq and lists of `selected` are read. */
NsaiInvert nsai_invert_params(const nsai_run *run, const NsaiAttendSelected *selected,
                              int64_t begin, int64_t end, int64_t item_rows);
nsa_status nsai_enqueue_invert(const nsai_run *run, NsaiInvert p);

/* variants/attend/selected_kv_stationary_run.c: the selected branch by attend_selected_kv_stationary_sm90; `selected` with its lists. */
nsa_status nsai_enqueue_selected_kv(const nsai_run *run, const NsaiAttendSelected *selected);

/* backward.c: the backward pass. */
nsa_status nsai_enqueue_backward(const nsai_run *run, const nsa_grads *grads);
/* variants/decode/decode.c: nsa_decode, and nsa_kv_append. */
nsa_status nsai_enqueue_decode(const nsai_run *run);
nsa_status nsai_enqueue_append(const nsai_run *run, const nsa_kv *cache, const nsa_kv *new_kv,
                               const nsa_phi *phi);

/* variants/compress/phi.c: the products. */
nsa_status nsai_enqueue_phi(const nsai_run *run);
nsa_status nsai_enqueue_gate(const nsai_run *run);
nsa_status nsai_run_gemm(const nsai_run *run, const nsai_gemm *gemm, const void *a, const void *b,
                         void *c);

/* variants/backward/phi.c: the backward pass through phi linear and mlp, for the KV heads [head, head + heads), from
 * the compressed branch's partial sums. variants/backward/gate.c: through the gate MLP, from layers.d_logits. */
nsa_status nsai_enqueue_phi_back(const nsai_run *run, const nsa_grads *grads, int head, int heads);
nsa_status nsai_enqueue_gate_back(const nsai_run *run, const nsa_grads *grads);

/* Whether any of these gradients is wanted. */
bool nsai_wants_phi(const nsa_phi_side *out);
bool nsai_wants_gate(const nsa_gate *out);

#endif /* NSAI_RUN_RUN_H */

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the rows of backward_q and backward_kv share: their legality, constants and sizes of tiles,
 * and views of the tensors that the kernels of both stages read.
 */
#ifndef NSAI_VARIANTS_BACKWARD_BACKWARD_H
#define NSAI_VARIANTS_BACKWARD_BACKWARD_H

#include "params/backward.h"
#include "plan/spec.h"
#include "run/params.h"

/* Threads of the kernels through tensor maps: two warpgroups that compute, and the producers'. */
#define NSAI_BACKWARD_TMA_THREADS 384

/* Kernels that are bound by memory: enough loads in flight at any occupancy. */
#define NSAI_BACKWARD_ELEMENT_THREADS 256

/* ---- rows of the table ---- */

void nsai_backward_legal(const nsai_problem *, const nsai_target *, nsai_reasons *);
void nsai_backward_legal_sm90(const nsai_problem *, const nsai_target *, nsai_reasons *);
bool nsai_backward_sensible_sm90(const nsai_problem *, const nsai_target *);

/* ---- specs ---- */

/* Constants from which a kernel knows the keys of each branch. */
void nsai_backward_branches_add(nsai_kernel_spec *spec, const nsai_problem *problem);

/* Whether the lists of the query rows hold ranges. Kernels over keys read inverted lists, and have
 * a kernel of their own for ranges. */
void nsai_backward_lists_add(nsai_kernel_spec *spec, const nsai_problem *problem);

/* The shared memory that a CTA may take. */
uint32_t nsai_backward_most_shared(bool wgmma, const nsai_target *target);

/* CTAs per multiprocessor that the registers are divided for. With two CTAs of 128 threads each
 * thread has all the 255 registers that an instruction can name. */
int32_t nsai_backward_min_ctas(const nsai_target *target);

/* ---- clearing ---- */

/* backward_clear: sets counters in the workspace to 0. */
void nsai_backward_clear_specify(const nsai_problem *problem, nsai_kernel_spec *spec);
nsa_status nsai_backward_clear_enqueue(const nsai_run *run, const nsai_kernel *kernel, int *words,
                                       int64_t count);

/* ---- tensors of a run ---- */

/* d_o as the products take it: the caller's, or the rounded copy of an f32 one. That copy lies
 * behind everything that the plan has in the workspace, because plans do not know the dtype of
 * d_o. */
NsaiView nsai_backward_d_o(const nsai_run *run);

/* The gates of the run; *is_float: f32 values instead of the model's dtype. */
NsaiView nsai_backward_gate(const nsai_run *run, int *is_float);

/* Of the query rows: d_q and the gates'. Of K and V, and of weights, which a piece of a run over ranks
 * adds to the pieces before it, whatever grads.accumulate says of the whole. */
NsaiGradient nsai_backward_gradient(const nsai_run *run, const nsa_tensor *out);
NsaiGradient nsai_backward_kv_gradient(const nsai_run *run, const nsa_tensor *out);
NsaiGradient nsai_backward_weight_gradient(const nsai_run *run, const nsa_tensor *out);

/* Whether the caller asks for any gradient of the gate MLP. */
bool nsai_wants_gate(const nsa_gate *out);

/* K (side 0) or V (side 1) that a branch reads. */
NsaiView nsai_backward_keys(const nsai_run *run, int branch, int side);

/* Whether the selected branch and the window run and read the same pair. */
bool nsai_backward_joined(const nsai_run *run);

/* The sequences, and the sorted lists where the selected branch runs; all else is zero. */
NsaiAttendSelected nsai_backward_lists(const nsai_run *run);

#endif /* NSAI_VARIANTS_BACKWARD_BACKWARD_H */

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What variants share: the constants of their kernels, sizes of tiles, limits of the device, and
 * the reasons against a problem that many of them have.
 */
#ifndef NSAI_PLAN_SPEC_H
#define NSAI_PLAN_SPEC_H

#include "params/smem.h"
#include "plan/variant.h"

/* The shared memory that portable variants stay under: what sm_86, sm_89 and sm_120 give a CTA. */
#define NSAI_PORTABLE_SHARED_BYTES (99u * 1024u)

/* Compute capability major of the target: 9 for "sm_90a". */
int32_t nsai_target_major(const nsai_target *target);

/* A device that has rules of its own in some variants: its name, which nsai_named_device lists, and
 * the glob that matches the names of its models. */
#define NSAI_H200_NAME "NVIDIA H200"
#define NSAI_H200 NSAI_H200_NAME "*"

/* Whether the target is a device whose name matches the glob. */
bool nsai_target_is(const nsai_target *target, const char *pattern);

/* Adds one reason, a sentence without the final period. */
void nsai_refuse(nsai_reasons *reasons, const char *format, ...) NSAI_PRINTF(2, 3);

/* Appends a named constant to a kernel's Config. */
void nsai_constant_add(nsai_kernel_spec *spec, const char *name, int64_t value);

/* Append constants that attention kernels have: the size of a group, which nsai_heads_add precedes
 * with the head dimensions; and Config::kGate, how the epilogue reads a gate. A constant that a
 * kernel does not read costs another compilation where it differs, so each kernel asks for what it
 * reads. */
void nsai_group_add(nsai_kernel_spec *spec, const nsai_problem *problem);
void nsai_heads_add(nsai_kernel_spec *spec, const nsai_problem *problem);
void nsai_gate_add(nsai_kernel_spec *spec, const nsai_problem *problem);

/* Appends block and stride of compression, block and count of selection, and the numbers of forced
 * blocks. */
void nsai_blocks_add(nsai_kernel_spec *spec, const nsai_model *model);

/* Selected blocks of a token that are not forced; 0 where nothing is selected. */
static inline int32_t nsai_free_blocks(const nsai_model *m) {
  return m->select_count ? m->select_count - m->select_init - m->select_local : 0;
}

/* The least power of two that is not below the group size: a tile has so many rows for each
 * token. */
int32_t nsai_padded_group(const nsai_model *model);

/* Registers that O and Q of 16 rows take in each thread of a warp, by which kSharedQ of
 * decode/consumer_groups.cuh is decided. */
static inline int32_t nsai_row_registers(const nsai_model *m) {
  return nsai_padded_dim(m->head_dim_v) / 2 + nsai_padded_dim(m->head_dim_qk) / 4;
}

/* Registers of a multiprocessor, on every architecture from sm_80 on. */
#define NSAI_SM_REGISTERS 65536

/* Adds the reasons against every GPU kernel: the dtype. */
void nsai_legal_common(const nsai_problem *, nsai_reasons *);

/* Adds the reason against a kernel that ranks blocks by the sum of the compressed branch's own
 * probabilities; the kernel `instead` ranks them in every way. */
void nsai_legal_ranking(const nsai_problem *, const char *instead, nsai_reasons *);

/* Whether a decode step ranks blocks by the kernels of a prefill. */
static inline bool nsai_ranks_by_step(const nsai_problem *p) {
  return p->op == NSA_OP_DECODE && !nsai_ranks_by_branch(&p->model);
}

/* Appends how a kernel for packed tensors and caches finds its keys: Config::kCached and, with a
 * cache, kPageRows, the rows of a page where each row stands for `stride` tokens. */
void nsai_source_add(nsai_kernel_spec *spec, const nsai_problem *problem, int32_t stride);

/* The same for the window's tokens, which may lie in rings. */
void nsai_window_source_add(nsai_kernel_spec *spec, const nsai_problem *problem);

/* Appends Config::kCodes for a kernel that reads a part of a cache which may be in codes: `dtype` is
 * the problem's kv_dtype or cmp_dtype. */
void nsai_codes_add(nsai_kernel_spec *spec, int32_t dtype);

/* Tokens of a page of the window's pair; 0: rows or rings. */
int32_t nsai_window_page_rows(const nsai_problem *);

/* Adds the reason against a kernel that reads packed tensors only. */
void nsai_legal_packed(const nsai_problem *, nsai_reasons *);

/* Adds a reason against a CTA of so many bytes of shared memory, in a portable variant: more than
 * NSAI_PORTABLE_SHARED_BYTES are refused on every device. */
void nsai_fit_shared(const nsai_target *target, uint32_t bytes, nsai_reasons *reasons);

/* The same in a variant for some architectures: the device's limit alone counts. */
void nsai_fit_cta(const nsai_target *target, uint32_t bytes, nsai_reasons *reasons);

/* Whether a multiprocessor has shared memory for so many CTAs of `bytes` each. */
bool nsai_holds_ctas(const nsai_target *target, uint32_t bytes, int32_t ctas);

/* Adds a reason against tiles whose CTAs have more threads than a multiprocessor takes. */
void nsai_fit_threads(const nsai_tiles *tiles, nsai_reasons *reasons);

/* Registers that a thread may have where a multiprocessor holds this many threads. */
int32_t nsai_register_limit(int32_t threads);

#endif /* NSAI_PLAN_SPEC_H */

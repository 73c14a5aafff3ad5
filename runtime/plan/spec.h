/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What variants build their specs from: constants, sizes, and the reasons that many of them have.
 */
#ifndef NSAI_PLAN_SPEC_H
#define NSAI_PLAN_SPEC_H

#include "plan/variant.h"

/* The shared memory every portable variant stays under: what sm_86, sm_89 and sm_120 give a block.
 */
#define NSAI_PORTABLE_SHARED_BYTES (99u * 1024u)

/* Compute capability major of the target: 9 for "sm_90a". */
int32_t nsai_target_major(const nsai_target *target);

/* The devices with rules of their own: a name, which nsai_named_device lists, and the glob of all
 * that are of the kind. */
#define NSAI_H200_NAME "NVIDIA H200"
#define NSAI_H200 NSAI_H200_NAME "*"

/* Whether the target is a device whose name matches the glob. */
bool nsai_target_is(const nsai_target *target, const char *pattern);

/* Adds one reason, a sentence without the final period. */
void nsai_refuse(nsai_reasons *reasons, const char *format, ...) NSAI_PRINTF(2, 3);

/* Appends a named constant to a kernel's Config. */
void nsai_constant_add(nsai_kernel_spec *spec, const char *name, int64_t value);

/* Appends what every attention kernel has: head dims and groups, or the groups alone; and Config::kGate,
 * how its epilogue reads a gate. Constants that a kernel does not read only compile it once more. */
void nsai_group_add(nsai_kernel_spec *spec, const nsai_problem *problem);
void nsai_heads_add(nsai_kernel_spec *spec, const nsai_problem *problem);
void nsai_gate_add(nsai_kernel_spec *spec, const nsai_problem *problem);

/* Appends l, d, l', n and the forced blocks of either end. */
void nsai_blocks_add(nsai_kernel_spec *spec, const nsai_model *model);

/* Selection blocks that are searched, n_free; none where nothing is selected. */
static inline int32_t nsai_free_blocks(const nsai_model *m) {
  return m->select_count ? m->select_count - m->select_init - m->select_local : 0;
}

/* The next power of two at or above the group size: rows of a tile are token-major over that many
 * heads. */
int32_t nsai_padded_group(const nsai_model *model);

/* Columns of a head dim in products of 16: padded_dim() in core/tile.cuh. */
static inline int32_t nsai_padded_dim(int32_t dim) { return (dim + 15) / 16 * 16; }

/* Registers of a thread for O and Q of an m16 tile: those of kSharedQ in decode/consumer_groups.cuh. */
static inline int32_t nsai_row_registers(const nsai_model *m) {
  return nsai_padded_dim(m->head_dim_v) / 2 + nsai_padded_dim(m->head_dim_qk) / 4;
}

/* Panels of 64 columns, 128 bytes a row, that a head dim takes: core/tma.cuh. */
#define NSAI_PANEL_PITCH 128
static inline int32_t nsai_panels(int32_t dim) { return (dim + 63) / 64; }
static inline uint32_t nsai_panel_bytes(int32_t rows, int32_t dim) {
  return (uint32_t)rows * (uint32_t)nsai_panels(dim) * NSAI_PANEL_PITCH;
}

/* Registers of a multiprocessor, on every architecture from sm_80 on. */
#define NSAI_SM_REGISTERS 65536

/* Bytes of a Tile<rows, padded_dim(dim)> in shared memory: core/tile.cuh. */
uint32_t nsai_tile_bytes(int32_t rows, int32_t dim);

/* Reasons that hold for every GPU kernel: storage type and group size. */
void nsai_legal_common(const nsai_problem *, nsai_reasons *);

/* Appends how a kernel that serves packed tensors and caches finds its keys: Config::kCached and, with
 * a cache, kPageRows, the rows of a page that hold `stride` tokens each. */
void nsai_source_add(nsai_kernel_spec *spec, const nsai_problem *problem, int32_t stride);

/* Reasons against kernels of tensor maps, and others that know packed tensors alone. */
void nsai_legal_packed(const nsai_problem *, nsai_reasons *);

/* Adds a reason against a CTA of so many bytes of shared memory: portable variants stay under
 * NSAI_PORTABLE_SHARED_BYTES everywhere. */
void nsai_fit_shared(const nsai_target *target, uint32_t bytes, nsai_reasons *reasons);

/* The same for rows that only the limit of the device binds. */
void nsai_fit_block(const nsai_target *target, uint32_t bytes, nsai_reasons *reasons);

/* Whether a multiprocessor has shared memory for `blocks` of them. */
bool nsai_holds_blocks(const nsai_target *target, uint32_t bytes, int32_t blocks);

/* Adds a reason against more threads on a multiprocessor than any architecture takes. */
void nsai_fit_threads(const nsai_tiles *tiles, nsai_reasons *reasons);

/* Registers that a thread gets when a multiprocessor holds this many threads. */
int32_t nsai_register_limit(int32_t threads);

#endif /* NSAI_PLAN_SPEC_H */

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The bytes of shared memory that tiles and kernels take. The host computes a kernel's size by the
 * formula of its family, and hands it over as Config::kSharedBytes. The kernel asserts that the
 * size of what it lays out there is the same.
 *
 * Host and device share this header: integers alone, no configuration and no system headers.
 */
#ifndef NSAI_PARAMS_SMEM_H
#define NSAI_PARAMS_SMEM_H

#ifdef __CUDACC__
#define NSAI_SIZE constexpr __device__ __forceinline__ int
#else
#define NSAI_SIZE static inline int
#endif

/* ---- tiles: rows of 16-bit elements of a head dim ---- */

/* Columns of a head dim: products take 16 at a time. */
NSAI_SIZE nsai_padded_dim(int dim) { return (dim + 15) / 16 * 16; }

/* Bytes of a row of a Tile (core/tile.cuh): an odd number of 16-byte chunks, or a multiple of 8. */
NSAI_SIZE nsai_tile_pitch(int dim) {
  const int chunks = nsai_padded_dim(dim) / 8;
  return 16 * (chunks % 8 == 0 ? chunks : chunks | 1);
}
NSAI_SIZE nsai_tile_bytes(int rows, int dim) { return rows * nsai_tile_pitch(dim); }

/* Panels of 64 columns that a head dim takes, and bytes of a panel's row (core/tma.cuh). */
#define NSAI_PANEL_PITCH 128
NSAI_SIZE nsai_panels(int dim) { return (dim + 63) / 64; }
NSAI_SIZE nsai_panel_bytes(int rows, int dim) { return rows * nsai_panels(dim) * NSAI_PANEL_PITCH; }

/* A ProductTile (core/panel_tile.cuh): panels for wgmma, or a Tile for mma.sync. */
NSAI_SIZE nsai_product_tile_bytes(int panels, int rows, int dim) {
  return panels ? nsai_panel_bytes(rows, dim) : nsai_tile_bytes(rows, dim);
}

#endif /* NSAI_PARAMS_SMEM_H */

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * decode_pipelined: what serves steps of many sequences in plans of a token a sequence, on Hopper.
 */
#include "plan/spec.h"

#include "variants/decode/decode.h"

#define ROWS NSAI_DECODE_ROWS
#define STEP NSAI_DECODE_STEP
#define MOST_FREE 32 /* core/topn_warp.cuh */
#define STAGES 2
#define BARRIERS 9
#define PARTS 3

/* Selection blocks of a block of threads whose pooled values lie in shared memory, where it has the room. */
#define KEPT_BLOCKS 256

/* Registers of a consumer for O and Q of an m16 tile, and columns of O: it takes 190 at 128/128, and has 192.
 * (NVRTC 13.0; nor do 144/128, 208/96 and 256/64 spill.) */
#define MOST_ROW_REGISTERS 100
#define MOST_COLUMNS 128

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* A row of O in shared memory, floats. */
static int64_t pitch(const nsai_model *m) { return nsai_padded_dim(m->head_dim_v) + 8; }

/* Room for the selection blocks of a block of threads: its warps' runs, which are whole quanta, and one without
 * compressed keys behind the last one. Plans of many lengths have the same. */
#define LEAST_BLOCKS 256
#define SLACK_BLOCKS 16
static int64_t most_blocks(const nsai_problem *p, int64_t warps, int64_t cluster) {
  const nsai_model *m = &p->model;
  int64_t run = nsai_decode_run_blocks(p, warps * cluster);
  int64_t most = m->select_count ? LEAST_BLOCKS : 1;
  while (m->select_count && most + SLACK_BLOCKS < warps * run + 1) most *= 2;
  return most + SLACK_BLOCKS;
}

/* Of four columns of a row of O each, which the blocks of a cluster share out evenly. */
static int64_t places(const nsai_model *m) {
  return (int64_t)(m->heads / m->kv_heads) * m->head_dim_v / 4;
}

/* SharedStorage of decode/pipelined.cuh, member by member. */
static uint32_t shared_bytes(const nsai_problem *p, int64_t warps, int64_t cluster, int64_t kept) {
  const nsai_model *m = &p->model;
  int64_t stage =
      (int64_t)nsai_tile_bytes(STEP, m->head_dim_qk) + nsai_tile_bytes(STEP, m->head_dim_v);
  int64_t received = (cluster - 1) * NSA_BRANCHES * (places(m) / cluster * 16 + ROWS * 8);
  int64_t bytes = warps * (ceil_div(STAGES * stage, 128) * 128 + ROWS * pitch(m) * 4) +
                  larger(kept, 1) * ROWS * 4 + NSA_BRANCHES * warps * ROWS * 8 +
                  warps * PARTS * 16 + 32 * 8 + cluster * ROWS * 8 + (warps + 1) * ROWS * 4 +
                  NSA_BRANCHES * ROWS * 4 + cluster * larger(nsai_free_blocks(m), 1) * 8 +
                  warps * STAGES * 4 * 8 + BARRIERS * 8 + larger(received, 8) +
                  (m->select_count + 1) * 4 + most_blocks(p, warps, cluster) * 4;
  return (uint32_t)(ceil_div(bytes, 16) * 16);
}

static bool is_legal(const nsai_problem *p, const nsai_target *t, int32_t cluster) {
  const nsai_model *m = &p->model;
  return nsai_target_major(t) == 9 && p->max_q_len == 1 && p->selection == NSA_SELECT_OWN &&
         !p->max_probe_rows && !p->count_reads && nsai_padded_group(m) <= ROWS &&
         m->head_dim_v <= MOST_COLUMNS && nsai_row_registers(m) <= MOST_ROW_REGISTERS &&
         nsai_free_blocks(m) <= MOST_FREE && places(m) % cluster == 0;
}

/* The last selection blocks, which are always chosen, where they lie in the window: its keys are theirs.
 * (Rings are their own pair's, and there `per_branch` holds as well.) */
static int32_t window_selected_blocks(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  const bool both = m->select_count && !m->per_branch && !p->window_ring &&
                    m->select_local * m->select_block <= m->window;
  return both ? m->select_local : 0;
}

static bool has_room(const nsai_problem *p, const nsai_target *t, int32_t warps, int32_t blocks,
                     int32_t cluster, int32_t kept) {
  uint32_t bytes = shared_bytes(p, warps, cluster, kept);
  return bytes <= t->shared_bytes && nsai_holds_blocks(t, bytes, blocks);
}

bool nsai_specify_decode_pipelined(const nsai_problem *p, const nsai_target *t, int32_t warps,
                                   int32_t blocks, int32_t cluster, nsai_kernel_spec *spec) {
  const nsai_model *m = &p->model;
  int32_t kept = KEPT_BLOCKS;
  while (kept && !has_room(p, t, warps, blocks, cluster, kept)) kept = kept < 16 ? 0 : kept / 2;
  if (!is_legal(p, t, cluster) || !has_room(p, t, warps, blocks, cluster, kept)) return false;
  *spec = (nsai_kernel_spec){ .entry = "decode_pipelined",
                              .dtype = m->dtype,
                              .threads = 64 * warps,
                              .tile_tokens = ROWS / nsai_padded_group(m),
                              .cluster = cluster > 1 ? cluster : 0,
                              .shared_bytes = shared_bytes(p, warps, cluster, kept) };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_blocks_add(spec, m);
  nsai_constant_add(spec, "kWindow", m->window);
  nsai_constant_add(spec, "kRing", p->window_ring);
  nsai_constant_add(spec, "kWindowSelectedBlocks", window_selected_blocks(p));
  nsai_constant_add(spec, "kKvHeads", m->kv_heads);
  nsai_constant_add(spec, "kPageSize", p->page_size);
  nsai_constant_add(spec, "kScanRows", ROWS);
  nsai_constant_add(spec, "kWarps", warps);
  nsai_constant_add(spec, "kStages", STAGES);
  nsai_constant_add(spec, "kWgmma", 0);
  nsai_constant_add(spec, "kCluster", cluster);
  nsai_constant_add(spec, "kKeptBlocks", kept);
  nsai_constant_add(spec, "kMostBlocks", (int32_t)most_blocks(p, warps, cluster));
  nsai_constant_add(spec, "kMinBlocks", blocks);
  return true;
}

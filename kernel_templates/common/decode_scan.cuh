// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The compressed branch of a tile of tokens, for decode_scan and decode_whole: teams of warps stream their
// runs of keys (common/key_stream.cuh) and, beside the attention, pool what scores weigh in each
// selection block: common/decode.cuh.
//
// Config: those of common/key_stream.cuh and common/decode.cuh, kSelectCount (n of the library's own
// selection, 0: nothing is pooled), kPageSize (P; 0: none).
#pragma once
#include "common/cached.cuh"
#include "common/decode.cuh"
#include "common/key_stream.cuh"
#include "common/params_cache.h"

template <class C> using ScanStream = KeyStream<C, C::kScanRows / 16>;

// Probabilities of a step on their way from C fragments to rows: 16 keys, and the row's reference.
constexpr int kPoolPitch = kStepKeys + 4; // floats: 16-byte reads of 8 rows hit all banks
template <class C> struct ScanPool {
  float of[C::kWarps][16][kPoolPitch];
};

// The compressed keys of a run, and what they weigh. Lane l pools row l % 16 of its warp.
template <class C> struct ScanKeys {
  static constexpr int kRatio = Decode<C>::kRatio, kOverlap = Decode<C>::kOverlap;
  int limit;
  int ends[2];
  // ---- pooling
  bool pools;      // else the selection is all blocks, and nobody asks
  float *sP;       // [16, kPoolPitch] of the warp
  float *gPooled;  // [blocks from the run's first on, kScanRows], this lane's row
  float reference; // of own and spill
  float own, spill; // of the open selection block, and what the next one gets
  int phase;        // keys of the open block that are done, where steps do not end on block ends

  NSAI_DEVICE int index(int i) const { return entry_index<C::kBlock, C::kStride>(i); }
  NSAI_DEVICE int begin(int) const { return 0; }
  NSAI_DEVICE int end(int r) const { return ends[r]; }

  NSAI_DEVICE void close_block() {
    if (threadIdx.x % 32 < 16) *gPooled = reference + log2_approx(own);
    gPooled += C::kScanRows;
    own = spill;
    spill = 0.0f;
  }

  // A key of weight m, `at` keys from its selection block's begin.
  NSAI_DEVICE void add(float p, int at) {
    const int inside = min(kOverlap, kRatio - at);
    own = fmaf((float)inside, p, own);
    spill = fmaf((float)(kOverlap - inside), p, spill);
    if (at == kRatio - 1) close_block();
  }

  NSAI_DEVICE void pool(const float (&p)[2][4], const SoftmaxRows &rows) {
    if (!pools) return;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float *row = sP + (8 * r + lane / 4) * kPoolPitch;
#pragma unroll
      for (int j = 0; j < 2; ++j)
        *(float2 *)(row + 8 * j + lane % 4 * 2) = make_float2(p[j][2 * r], p[j][2 * r + 1]);
      if (lane % 4 == 0) row[kStepKeys] = rows.reference[r];
    }
    __syncwarp(); // the rows are written
    const float *row = sP + lane % 16 * kPoolPitch; // [16 keys]
    const float factor = exp2_approx(reference - row[kStepKeys]);
    reference = row[kStepKeys];
    own *= factor;
    spill *= factor;
#pragma unroll
    for (int x = 0; x < kStepKeys; x += 4) {
      const float4 v = *(const float4 *)(row + x);
      const float each[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kStepKeys % kRatio == 0) {
          add(each[i], (x + i) % kRatio);
        } else {
          add(each[i], phase);
          phase = phase + 1 == kRatio ? 0 : phase + 1;
        }
      }
    }
    __syncwarp(); // the rows are read
  }
};

// This warp's keys: visible to rows of `tile`, run `run` of its unit.
template <class C>
NSAI_DEVICE ScanKeys<C> scan_keys(const NsaiDecode &p, ScanPool<C> &pool, const ScanStream<C> &at,
                                  const DecodeTile &tile, int unit, int first_block) {
  ScanKeys<C> keys = {};
  const int last = last_position<C>(tile.seq, tile.first_query);
  keys.limit = visible_entries<C>(last);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = 16 * at.row_tile + 8 * r + at.lane / 4;
    keys.ends[r] =
        visible_entries<C>(tile.seq.position(tile.first_query + row / C::kGroupPadded));
  }
  if constexpr (C::kSelectCount > 0) keys.pools = last / C::kSelectBlock + 1 > C::kSelectCount;
  keys.sP = &pool.of[threadIdx.x / 32][0][0];
  keys.gPooled = p.pooled + ((long long)unit * p.pooled_blocks + first_block) * C::kScanRows +
                 16 * at.row_tile + at.lane % 16;
  keys.reference = kNoReference;
  return keys;
}

// Run `run` of the unit's keys onto o and rows; the pooled values and the spill go to global memory.
template <class C, int kO>
NSAI_DEVICE void scan_run(const NsaiDecode &p, typename ScanStream<C>::Shared &shared, ScanPool<C> &pool,
                          const ScanStream<C> &at, const DecodeTile &tile, int tokens, int unit, int group,
                          int run, const TeamRuns &runs, float (&o)[kO][4], SoftmaxRows &rows) {
  constexpr int kQuantumSteps = Decode<C>::kQuantum / kStepKeys;
  const int begin = min(run * runs.each, runs.quanta), end = min(begin + runs.each, runs.quanta); // quanta
  const QueryRows<C> query_rows = { p.q, tile.seq.q_begin + tile.first_query, tokens, group };
  const auto queries = load_row_queries<C, C::kScanRows / 16>(shared, at, query_rows); // [16, Dk]
  ScanKeys<C> keys = scan_keys<C>(p, pool, at, tile, unit, begin * Decode<C>::kQuantumBlocks);
  stream_keys<C, C::kScanRows / 16>(
      shared, at, p.entries, group, find_rows<C::kPageSize / C::kStride>(p.batch, tile.s, 0), keys,
      begin * kQuantumSteps, end * kQuantumSteps, queries, o, rows, p.scale_log2,
      find_reads<C>(p.reads, tile.s, group, NSAI_BRANCH_COMPRESSED), true);

  // ---- what the run's last keys weigh in the block behind it ----
  if (keys.pools && begin < end && at.lane < 16)
    p.spills[((long long)unit * p.scan.parts * ScanStream<C>::kTeams + run) * C::kScanRows +
             16 * at.row_tile + at.lane] = keys.reference + log2_approx(keys.own);
}

// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The compressed branch of a tile of tokens, for decode_split_kv_compressed and decode_single_cta:
// each consumer group streams its run of keys (decode/mainloop.cuh) and, beside the attention,
// pools the probabilities per selection block (decode/work.cuh). decode_pipelined and
// decode_cluster pool by ScanKeys as well.
//
// Config: those of decode/mainloop.cuh and decode/work.cuh, kSelectCount (n of the library's own
// selection; 0: no pooling), kPageSize (P; 0: no pages), kEntryCodes (entries are codes).
#pragma once
#include "data/cache_rows.cuh"
#include "decode/mainloop.cuh"
#include "decode/pool_quads.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

template <class C> using ScanStream = KeyStream<C, C::kScanRows / 16, (bool)C::kEntryCodes>;

// Passes a stage's probabilities from C fragments to rows: the keys of a row, and then its
// reference. The pitch is in floats; 16-byte reads of 8 rows touch all banks.
constexpr int kPoolPitch = ScanStream<Config>::kStageKeys + 4;
template <class C, bool kQuads = kPoolsQuads<C>> struct ScanPool {
  __align__(16) float of[C::kWarps][16][kPoolPitch];
  NSAI_DEVICE float *warp() { return &of[threadIdx.x / 32][0][0]; }
};
template <class C> struct ScanPool<C, true> { // pools in registers
  NSAI_DEVICE float *warp() { return nullptr; }
};

// The compressed keys of a run and their pooled probabilities. Lane l pools row l % 16 of its warp.
// If a stage has several steps and its second half begins with a block, lanes 0 to 15 pool the
// first half and lanes 16 to 31 the second. kPairs: the caller takes two steps at once, and pooled
// values may lie in shared memory.
template <class C, bool kPairs = false> struct ScanKeys {
  static constexpr bool kOwned = false, kPools = true;
  static constexpr int kRatio = Decode<C>::kRatio, kOverlap = Decode<C>::kOverlap;
  static constexpr int kHalf = kPairs ? kStepKeys : ScanStream<C>::kStageKeys / 2;
  static constexpr bool kHalves = (kPairs || ScanStream<C>::kAtOnce > 1) && kHalf % kRatio == 0;
  int limit;
  int ends[2];
  // ---- pooling
  bool pools;             // false: the selection takes all blocks and needs no importance
  float *sP;              // [16, kPoolPitch] of the warp
  float *gPooled;         // [blocks from the run's first on, 16], at this lane's row
  float reference;        // of block_sum and carry
  float block_sum, carry; // of the open selection block; its contribution to the next block
  // Keys of the open block that are done, if steps do not end at block ends.
  int phase;
  // Replaces all of the above where kPoolsQuads applies.
  QuadPool<C> quads;

  // Begins a run, whose blocks go to `gFirst` [blocks, 16].
  NSAI_DEVICE void begin_pool(float *sRows, float *gFirst) {
    sP = sRows;
    gPooled = gFirst + threadIdx.x % 16;
    reference = kNoReference;
  }
  // Contribution of the run's last keys to the block behind it, for row lane % 16.
  NSAI_DEVICE float carry_out() const { return reference + log2_approx(block_sum); }

  NSAI_DEVICE int index(int i) const { return entry_index<C::kBlock, C::kStride>(i); }
  NSAI_DEVICE int begin(int) const { return 0; }
  NSAI_DEVICE int end(int r) const { return ends[Decode<C>::half(r)]; }

  NSAI_DEVICE void close_block() {
    if (threadIdx.x % 32 < 16) *gPooled = reference + log2_approx(block_sum);
    gPooled += kPoolRows;
    block_sum = carry;
    carry = 0.0f;
  }

  // Adds a key of weight m that lies `at` keys after the begin of its selection block.
  NSAI_DEVICE void add(float p, int at) {
    const int inside = min(kOverlap, kRatio - at);
    block_sum = fmaf((float)inside, p, block_sum);
    carry = fmaf((float)(kOverlap - inside), p, carry);
    if (at == kRatio - 1) close_block();
  }

  // Passes probabilities to rows and returns this lane's row. block_sum and carry are rescaled to
  // the row's reference.
  template <int kN>
  NSAI_DEVICE const float *share(const float (&p)[kN][4], const SoftmaxRows &rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float *row = sP + (8 * r + lane / 4) * kPoolPitch;
#pragma unroll
      for (int j = 0; j < kN; ++j)
        *(float2 *)(row + 8 * j + lane % 4 * 2) = make_float2(p[j][2 * r], p[j][2 * r + 1]);
      if (lane % 4 == 0) row[8 * kN] = rows.reference[r];
    }
    __syncwarp();                                   // the rows are written
    const float *row = sP + lane % 16 * kPoolPitch; // [8 * kN keys]
    const float factor = exp2_approx(reference - row[8 * kN]);
    reference = row[8 * kN];
    block_sum *= factor;
    carry *= factor;
    return row;
  }

  // Offset of column `column` of a stage's row. The swizzle lets 8-byte writes of 4 rows and
  // 16-byte reads of 8 rows touch all banks.
  static NSAI_DEVICE int pool_offset(int row, int column) {
    const int rotated = (row & 3) << 1 | (row >> 2 & 1);
    return row * 2 * kHalf + (((column / 4) ^ rotated) * 4 | column % 4);
  }

  // Pools a stage, of which the first `steps` steps belong to the run.
  template <int kN>
  NSAI_DEVICE void pool_stage(const float (&p)[kN][4], const SoftmaxRows &rows, int steps) {
    if (!pools) return;
    if constexpr (kPoolsQuads<C>) {
      quads.pool(p, rows, steps);
    } else if constexpr (kHalves) {
      pool_halves(p, rows, steps);
    } else {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) {
        if (i >= steps) break;
        float step[2][4]; // [16, 16 keys]
#pragma unroll
        for (int c = 0; c < 4; ++c) step[0][c] = p[2 * i][c], step[1][c] = p[2 * i + 1][c];
        pool(step, rows);
      }
    }
  }

  // The same where kHalves applies.
  NSAI_DEVICE void pool_halves(const float (&p)[4][4], const SoftmaxRows &rows, int steps) {
    static_assert(kHalf == 16, "pool_offset() assumes 8 chunks per row");
    const int lane = threadIdx.x % 32;
    float *references = sP + 16 * 2 * kHalf; // [16]
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int first = pool_offset(8 * r + lane / 4, lane % 4 * 2);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        *(float2 *)(sP + (first ^ 8 * j)) = make_float2(p[j][2 * r], p[j][2 * r + 1]);
      if (lane % 4 == 0) references[8 * r + lane / 4] = rows.reference[r];
    }
    __syncwarp(); // the rows are written
    const bool second = lane >= 16, exists = !second || steps * kStepKeys > kHalf;
    const float higher = references[lane % 16];
    block_sum *= exp2_approx(reference - higher);
    reference = higher;
    if (second) {
      block_sum = 0.0f; // contribution of the first half's last keys
#pragma unroll
      for (int at = kRatio - kOverlap + 1; at < kRatio; ++at)
        block_sum = fmaf((float)(kOverlap - kRatio + at),
                         sP[pool_offset(lane % 16, kHalf - kRatio + at)], block_sum);
    }
    const int first = pool_offset(lane % 16, second ? kHalf : 0);
    float x[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      const float4 v = *(const float4 *)(sP + (first ^ i));
      x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
    float sums[kHalf / kRatio]; // of the blocks
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const int at = i % kRatio, inside = min(kOverlap, kRatio - at);
      if (at == 0) carry = 0.0f;
      block_sum = fmaf((float)inside, x[i], block_sum);
      if (inside < kOverlap) carry = fmaf((float)(kOverlap - inside), x[i], carry);
      if (at == kRatio - 1) sums[i / kRatio] = block_sum, block_sum = carry;
    }
    if (exists)
#pragma unroll
      for (int block = 0; block < kHalf / kRatio; ++block) {
        float *to = gPooled + block * kPoolRows;
        const float x = reference + log2_approx(sums[block]);
        if constexpr (kPairs)
          *to = x;
        else
          store_by(to, x, l2_keeping());
      }
    gPooled += 2 * kHalf / kRatio * kPoolRows;
    const float behind = __shfl_xor_sync(~0u, block_sum, 16);
    if (steps * kStepKeys > kHalf) block_sum = behind;
    __syncwarp(); // the rows were read
  }

  NSAI_DEVICE void pool(const float (&p)[2][4], const SoftmaxRows &rows) {
    if (!pools) return;
    const float *row = share(p, rows);
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
    __syncwarp(); // the rows were read
  }
};

// This warp's keys, visible to the rows of `tile`; pooling begins with block `first_block` of the
// work item.
template <class C>
NSAI_DEVICE ScanKeys<C> scan_keys(const NsaiDecode &p, ScanPool<C> &pool, const ScanStream<C> &at,
                                  const DecodeTile &tile, int tokens, int work_item,
                                  int first_block) {
  ScanKeys<C> keys = {};
  const int last = last_position<C>(tile.seq, tile.first_query);
  const bool has_token = 16 * at.row_tile < tokens * C::kGroupPadded; // this warp
  keys.limit = visible_entries<C>(last);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = min((16 * at.row_tile + 8 * r + at.lane / 4) / C::kGroupPadded, tokens - 1);
    keys.ends[r] = has_token ? visible_entries<C>(tile.seq.position(tile.first_query + token)) : 0;
  }
  if constexpr (C::kSelectCount > 0)
    keys.pools = has_token && last / C::kSelectBlock + 1 > C::kSelectCount;
  float *gFirst = pooled_row<C>(p, work_item, 16 * at.row_tile) + first_block * kPoolRows;
  if constexpr (kPoolsQuads<C>) keys.quads.begin(gFirst, at.lane);
  keys.begin_pool(pool.warp(), gFirst);
  if (ScanKeys<C>::kHalves && at.lane >= 16)
    keys.gPooled += ScanKeys<C>::kHalf / ScanKeys<C>::kRatio * kPoolRows;
  return keys;
}

// Processes run `run` of the work item's keys, accumulating onto o and rows. Pooled values and the
// carry go to global memory.
template <class C, int kO>
NSAI_DEVICE void scan_run(const NsaiDecode &p, typename ScanStream<C>::Shared &shared,
                          ScanPool<C> &pool, const ScanStream<C> &at, const DecodeTile &tile,
                          int tokens, int work_item, int group, int run,
                          const ConsumerGroupRuns &runs, float (&o)[kO][4], SoftmaxRows &rows) {
  constexpr int kGranuleSteps = Decode<C>::kSplitGranularity / kStepKeys;
  const int begin = min(run * runs.each, runs.granules),
            end = min(begin + runs.each, runs.granules); // granules
  const QueryRows<C> query_rows = { p.q, tile.seq.q_begin + tile.first_query, tokens, group };
  const auto queries = load_row_queries<C>(shared, at, query_rows); // [16, Dk]
  ScanKeys<C> keys =
      scan_keys<C>(p, pool, at, tile, tokens, work_item, begin * Decode<C>::kGranuleBlocks);
  stream_keys<C>(shared, at, p.entries, group,
                 find_rows<C::kPageSize / C::kStride>(p.batch, tile.s, 0), keys,
                 begin * kGranuleSteps, end * kGranuleSteps, queries, o, rows,
                 branch_scale_log2<C::kEntryCodes>(p, kCompressed, group),
                 find_kv_reads<C>(p.kv_reads, tile.s, group, NSAI_BRANCH_COMPRESSED), true);
  if constexpr (C::kEntryCodes) scale_columns(o, value_scale(p, kCompressed, group));

  // ---- the carry: what the run's last keys contribute to the block behind it
  if (!keys.pools || begin == end) return;
  float *gCarry = p.carries + 16 * at.row_tile +
                  ((long long)work_item * p.scan.splits * ScanStream<C>::kConsumerGroups + run) *
                      C::kScanRows; // [16]
  if constexpr (kPoolsQuads<C>)
    keys.quads.store_carry(gCarry, at.lane);
  else if (at.lane < 16)
    gCarry[at.lane] = keys.carry_out();
}

// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What the warps of decode_pipelined do between branches: store a branch's result for the others,
// compute the importance of the selection blocks, and select.
//
// Config: those of decode/pipelined/shared.cuh.
#pragma once
#include "core/barrier.cuh"
#include "core/cluster.cuh"
#include "core/topn_warp.cuh"
#include "decode/pipelined/shared.cuh"

// Stores O and statistics of a branch in shared memory (and after the compressed branch the carry
// behind the warp's last key), and resets o and rows. R: the tiles of the branch.
template <class C, class R, int kO>
NSAI_DEVICE void leave_branch(const NsaiDecode &p, SharedStorage &shared,
                              const PipelinedWorkItem &at, int b, float (&o)[kO][4],
                              SoftmaxRows &rows, PipelinedScanKeys<C> &keys) {
  __syncwarp(); // earlier contents were read
  if (b != kWindow || at.has_window(at.warp)) {
    float *to = b == kSelected ? (float *)shared.kv_stages[at.warp]
                               : &shared.exchange_buffer[at.warp].o[0][0];
    if constexpr (R::kCoded) {
      share_code_o<C>(to, o, value_scale(p, b, at.group), at.lane);
    } else {
      share_o<C>(to, o, at.lane);
    }
  }
  share_stats(shared.stats[b][at.warp], rows, at.lane);
  if (b == kCompressed && at.lane < 16) shared.carries[at.warp + 1][at.lane] = keys.carry_out();
  clear(o);
  rows = SoftmaxRows();
  keys.pools = false;
}

// Adds O and statistics of the window-selected keys to those of the window. The caller's o and rows
// remain valid for the selected branch.
template <class C, class R, int kO>
NSAI_DEVICE void add_to_window(const NsaiDecode &p, SharedStorage &shared,
                               const PipelinedWorkItem &at, const float (&o)[kO][4],
                               const SoftmaxRows &rows) {
  float *sO = &shared.exchange_buffer[at.warp].o[0][0];
  __syncwarp(); // the window's statistics are written
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float2 &stats = shared.stats[kWindow][at.warp][8 * r + at.lane / 4];
    const float2 own = make_float2(rows.reference[r], lanes_sum<4>(rows.sum[r])),
                 sum = add_stats(stats, own);
    const float before = exp2_approx(stats.x - sum.x), mine = exp2_approx(own.x - sum.x);
    __syncwarp(); // all lanes have read them
    if (at.lane % 4 == 0) stats = sum;
    if constexpr (R::kCoded) {
      const float scaled = mine * value_scale(p, kWindow, at.group);
      float *to = sO + (8 * r + at.lane / 4) * OutputVectors::kPitch + at.lane % 4 * 4;
#pragma unroll
      for (int j = 0; j < kO; j += 2) {
        float4 &x = *(float4 *)(to + 8 * j);
        x = add_scaled(make_float4(before * x.x, before * x.y, before * x.z, before * x.w), scaled,
                       code_columns(o[j], o[j + 1], r));
      }
      continue;
    }
    float *to = sO + (8 * r + at.lane / 4) * OutputVectors::kPitch + at.lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kO; ++j) {
      float2 &x = *(float2 *)(to + 8 * j);
      x = make_float2(fmaf(mine, o[j][2 * r], before * x.x),
                      fmaf(mine, o[j][2 * r + 1], before * x.y));
    }
  }
}

// Sends the CTA's statistics of the compressed branch to the other CTAs, and the carry behind its
// last key to the next CTA. 16 lanes.
template <class C>
NSAI_DEVICE void send_stats(SharedStorage &shared, const PipelinedWorkItem &at, int runs) {
  const int row = at.lane, rank = at.rank;
  const float2 stats = add_stats<C::kWarps>(&shared.stats[kCompressed][0][row]);
  const u32 barrier = shared_address(&shared.barriers[kStats]);
  for (int to = 0; to < C::kCluster; ++to)
    if (to != rank)
      cluster_send(cluster_address(shared_address(&shared.scan_stats[rank][row]), to), stats,
                   cluster_address(barrier, to));
  if (rank + 1 < C::kCluster)
    cluster_send(cluster_address(shared_address(&shared.carries[0][row]), rank + 1),
                 shared.carries[runs][row], cluster_address(barrier, rank + 1));
}

// log-sum-exp of head lane % 16 over all CTAs' compressed keys, base 2.
template <class C>
NSAI_DEVICE float find_scan_lse(const SharedStorage &shared, const PipelinedWorkItem &at) {
  const int row = at.lane % 16;
  float2 stats = add_stats<C::kWarps>(&shared.stats[kCompressed][0][row]);
#pragma unroll
  for (int i = 0; i < C::kCluster; ++i)
    if (i != at.rank) stats = add_stats(stats, shared.scan_stats[i][row]);
  return stats.x + log2_approx(stats.y);
}

// Adds up O and statistics of all warps' compressed keys; O replaces warp 0's. One warp.
template <class C> NSAI_DEVICE void add_scans(SharedStorage &shared, const PipelinedWorkItem &at) {
  float *sO = &shared.exchange_buffer[0].o[0][0];
#pragma unroll 2
  for (int i = at.lane; i < OutputVectors::kVectors; i += 32) {
    const PipelinedSum x = add_warps<C>(sO, kExchangeFloats, shared.stats[kCompressed], 0, i);
    const int row = i / OutputVectors::kRowVectors, column = i % OutputVectors::kRowVectors * 4;
    *(float4 *)(sO + row * OutputVectors::kPitch + column) = x.o;
    if (column == 0) shared.scan_stats[at.rank][row] = x.stats;
  }
}

// Sends entry `i` of the CTA's best keys to all CTAs.
template <class C>
NSAI_DEVICE void send_best(SharedStorage &shared, const PipelinedWorkItem &at, int i, u64 key) {
  const u32 best = shared_address(&shared.candidates[at.rank][i]);
  const u32 barrier = shared_address(&shared.barriers[kCandidates]);
#pragma unroll 1
  for (int to = 0; to < C::kCluster; ++to)
    cluster_send(cluster_address(best, to), key, cluster_address(barrier, to));
}

// Computes the importance of the warp's piece of the selection blocks.
template <class C>
NSAI_DEVICE void weigh_blocks(SharedStorage &shared, const PipelinedWorkItem &at,
                              const ClusterBlockRange &block_range, const float *pooled) {
  const u32 barriers = shared_address(shared.barriers);
  if constexpr (C::kCluster > 1) {
    if (at.warp == 0 && at.lane < 16) send_stats<C>(shared, at, block_range.runs);
    __syncwarp();
    cluster_receive(barriers + 8 * kStats, 0);
  }
  const SearchedBlocks all = find_searched<C>(block_range, at.candidates, at.rank);
  const PipelinedPiece piece = find_piece<C>(all, at.warp);
  weigh_piece<C>(shared.orders + (piece.begin - all.begin), piece, block_range, pooled,
                 shared.carries, find_scan_lse<C>(shared, at), at.lane);
  barrier_arrive(barriers + 8 * kWeighed);
  if (block_range.extent > C::kKeptBlocks) discard_piece(pooled, piece, block_range, at.lane);
}

// Finds the CTA's best blocks and, in a cluster, the best of all CTAs' candidates, and writes the
// list. Warp 0.
template <class C>
NSAI_DEVICE void find_list(const NsaiDecode &p, SharedStorage &shared, const PipelinedWorkItem &at,
                           const ClusterBlockRange &block_range) {
  const u32 barriers = shared_address(shared.barriers);
  if constexpr ((kFreeBlocks<C>) > 0) {
    if (at.searches) {
      barrier_wait(barriers + 8 * kWeighed, 0); // all pieces are written
      const SearchedBlocks all = find_searched<C>(block_range, at.candidates, at.rank);
#pragma unroll 1
      for (int round = 0; round < (C::kCluster > 1 ? 2 : 1); ++round) {
        if (round) cluster_receive(barriers + 8 * kCandidates, 0);
        const auto key_at = [&](int i) {
          if (C::kCluster > 1 && round) return (&shared.candidates[0][0])[i];
          return key_of(shared.orders[i], all.begin + i);
        };
        const int count = round ? C::kCluster * kBest : max(all.end - all.begin, 0);
        const BestKey best = warp_best<kBest>(key_at, count, shared.queue, at.lane);
        if (best.slot >= kBest) continue;
        if (C::kCluster > 1 && round == 0)
          send_best<C>(shared, at, best.slot, best.key);
        else
          shared.list[C::kSelectInit + best.slot] = (int)index_in(best.key);
      }
    }
  }
  write_forced<C>(shared.list, at.candidates, at.lane);
  barrier_arrive(barriers + 8 * kList); // each lane's part of the list is written
  __syncwarp();                         // the list is visible to this warp
  if (at.rank == 0) store_list<C>(p, shared.list, at.row, at.group, at.lane);
}

// The steps of the selected blocks, once the list is written; `windows` is the number of window
// steps.
template <class C>
NSAI_DEVICE PipelinedChosen<C> find_chosen(const int *sList, const PipelinedWorkItem &at,
                                           int windows) {
  PipelinedChosen<C> chosen(at.rank + C::kCluster * at.warp);
  const int count = min(at.candidates, C::kSelectCount) - at.window_selected;
  if (count <= 0) return chosen;
  chosen.set(listed_keys<C>(count, sList[count - 1], at.seen - 1), windows, at.scans);
  return chosen;
}

// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The selected branch on sm_90: a warp that walks the union of adjacent tokens' lists and has the
// copy engine bring its keys into a ring, for consumers of either instruction family
// (attend/selected_mma.cuh, attend/selected_wgmma.cuh). Where the kernel does the window's branch as well
// (attend/selected_window.cuh), its keys come through the same ring, before those of the lists.
//
// Work: tile i of p.tiles is tokens [kTokens * (i % per_group), ...) of KV head i / per_group, so
// that blocks of threads that run together read one head's keys. A block takes every gridDim.x-th
// tile. Its kWarps consumer warps hold 16 rows each, token-major over kGroupPadded heads: 16 /
// kGroupPadded tokens of a warp, or 16 heads of one.
//
// Keys are cut into tiles on a fixed grid of kKeys. The lanes of the producers hold cursors of the
// tokens' lists (data/list_cursor.cuh); the least next key of all gives the next tile, and the
// lists that have keys in it move on. So no list is ever stored, whatever n, l' and the alignment
// of ranges. One warp does it for up to 32 tokens, else four do. A stage of the ring holds
//
//   K, V    [kKeys, Dk], [kKeys, Dv]: panels with the 128-byte swizzle (core/tma.cuh)
//   bits    u64 [kTokens]: the keys that each token sees, selection and causality at once
//   seen    u32 [kProducers], to be united: bit w: a token of warp w sees one of the keys. kLast in
//           the first: it is the last stage of the tile of tokens. Nothing is told of the window's
//           stages: positions say who sees which key
//   partly  the same: not all of the keys are seen by all of the warp
//
//   producers: wait empty[s]; store what they know; start the copies of K and V; arrive full[s]
//   consumer:  wait full[s]; work, or nothing where its bit is not set; arrive empty[s]
//
// The producers go on to the next tile at once: while consumers store O, the ring fills.
//
// V behind a sequence's end may be anything where further sequences follow; such tiles are copied
// row by row, with zeros behind the end. (K may: its scores are masked.) Behind the tensor's end
// the copy engine brings zeros.
//
// Config: kHeadDimQk, kHeadDimV, kGroup, kGroupPadded, kWarps, kThreads = 32 * kWarps + 128,
//   kMinBlocks, kKeys, kStages, kSharedBytes, kSelectBlock, kSelectCount, kRanges; kWindow.
#pragma once
#include "attend/selected_branches.cuh"
#include "core/barrier.cuh"
#include "core/copy.cuh"
#include "core/epilogue.cuh"
#include "core/launch.cuh"
#include "core/tile.cuh"
#include "core/tma.cuh"
#include "core/types.cuh"
#include "core/wgmma.cuh"
#include "data/key_range.cuh"
#include "data/list_cursor.cuh"
#include "data/sequence.cuh"
#include "data/tile_position.cuh"
#include "params/attention.h"

template <class Config> struct SelectedPipeline {
  static constexpr int kWarps = Config::kWarps, kStages = Config::kStages, kKeys = Config::kKeys;
  static constexpr int kWarpgroups = kWarps / 4; // of consumers; the producer's is the last one
  static constexpr int kTokens = 16 * kWarps / Config::kGroupPadded;
  static constexpr int kProducers = kTokens <= 32 ? 1 : 4;          // warps
  static constexpr int kLists = ceil_div(kTokens, 32 * kProducers); // of a lane
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk),
                       kColsV = padded_dim(Config::kHeadDimV);
  static constexpr int kPanelBytes = kKeys * kPanelPitch;
  static constexpr int kKBytes = panels(Config::kHeadDimQk) * kPanelBytes;
  static constexpr int kVBytes = panels(Config::kHeadDimV) * kPanelBytes;

  // Registers of a thread. Of 65536 / kMinBlocks, a launch gives kLaunch to every thread; the
  // producer's threads hand on what they do not need. A cursor takes 8.
  static constexpr int kLaunch = 65536 / (Config::kThreads * Config::kMinBlocks) / 8 * 8;
  static constexpr int kProducerRegisters = kLists == 1 ? 32 : 40;
  static constexpr int kFair =
      (kLaunch * (kWarpgroups + 1) - kProducerRegisters) / kWarpgroups / 8 * 8;
  static constexpr int kConsumerRegisters = kFair < 240 ? kFair : 240;

  // Shared memory from a multiple of 1024 bytes on; offsets in bytes. Buffers are [kStages].
  static constexpr int kSK = 0;
  static constexpr int kSV = kSK + kStages * kKBytes;
  static constexpr int kSBits = kSV + kStages * kVBytes;             // u64 [kTokens]
  static constexpr int kSSeen = kSBits + 8 * kStages * kTokens;      // u32 [kProducers]
  static constexpr int kSPartly = kSSeen + 4 * kStages * kProducers; // u32 [kProducers]
  static constexpr int kFull = kSPartly + 4 * kStages * kProducers;  // barrier: can be read
  static constexpr int kEmpty = kFull + 8 * kStages;                 // barrier: can be filled
  static constexpr int kSLeast = kEmpty + 8 * kStages;               // int [2, kProducers], once
  static constexpr int kEnd = (kSLeast + 8 * kProducers + 15) / 16 * 16;
  static constexpr u32 kLast = 1u << 31; // of kSSeen

  static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0,
                "rows are copied 16 bytes at a time");
  static_assert(Config::kGroup <= Config::kGroupPadded &&
                    (Config::kGroupPadded & (Config::kGroupPadded - 1)) == 0,
                "rows are token-major over a power of two of heads");
  static_assert(kWarps % 4 == 0 && kWarps <= 12, "whole warpgroups, which share 65536 registers");
  static_assert(kWarps * Config::kMinBlocks >= 8, "one of four could not use its registers");
  static_assert(kKeys == 64, "the keys of a stage are the bits of a word");
  static_assert(Config::kGroupPadded <= 64, "a warpgroup holds whole tokens");
  static_assert(Config::kThreads == 32 * kWarps + 128, "one producer warpgroup");
  static_assert(kStages >= 2, "a stage is filled while another is read");
};

template <class Config>
NSAI_DEVICE TilePosition find_tile_position(const NsaiAttendSelected &p, int tile) {
  const int per_group = p.tiles / p.kv_heads, group = tile / per_group;
  const QueryTile at =
      find_query_tile<SelectedPipeline<Config>::kTokens>(p.seq, tile - group * per_group);
  return TilePosition{ at.seq, at.first_query, group };
}

// The window's keys of a tile fall into stages: a first one of kFirst keys, what w and the tile's
// tokens have beyond whole stages, and further ones of kKeys.
template <class Config> struct WindowStages {
  using R = SelectedPipeline<Config>;
  static constexpr int kRest = (Config::kWindow + R::kTokens - 1) % R::kKeys;
  static constexpr int kFirst = kRest ? kRest : R::kKeys;
  static constexpr int kFirstPadded = padded_dim(kFirst); // that are multiplied
};

// Keys [begin, end) that the window of any token of the tile holds; none where begin >= end.
template <class Config> NSAI_DEVICE KeyRange window_of_tile(const TilePosition &at) {
  const int next = min(at.first_query + SelectedPipeline<Config>::kTokens, at.seq.q_len);
  return KeyRange{ WindowKeys<Config>::visible(at.seq.position(at.first_query)).begin,
                   WindowKeys<Config>::visible(at.seq.position(next - 1)).end };
}

// One thread, before anyone else looks at a barrier.
template <class Config> NSAI_DEVICE void init_pipeline(u32 base) {
  using R = SelectedPipeline<Config>;
  for (int s = 0; s < R::kStages; ++s) {
    // Every lane arrives: one of each warp would do and is no faster, but racecheck does not follow
    // it.
    barrier_init(base + R::kFull + 8 * s, 32 * R::kProducers);
    barrier_init(base + R::kEmpty + 8 * s, 32 * R::kWarps);
  }
  barrier_init_fence();
}

// ---- producers

// Consumer warps that hold a token's rows.
template <class Config> NSAI_DEVICE u32 warps_of_token(int token) {
  constexpr int kWarpsOfToken = Config::kGroupPadded <= 16 ? 1 : Config::kGroupPadded / 16;
  return ((1u << kWarpsOfToken) - 1) << (token * Config::kGroupPadded / 16);
}

// Where a tile's keys lie, for the copies.
struct KeyLocation {
  int row;   // of k and v: key 0
  int group; // KV head
  int rest;  // keys from here on must not come with a box: rows of another sequence, or behind the
             // longest. Where none follow, the highest int
};

// Starts the copies of keys [first, first + kKeys) of a sequence into stage s, and arrives. By a
// whole warp, whose plain stores the arrival covers. `v`: what v_map maps.
template <class Config>
NSAI_DEVICE void fill_stage(const NsaiTensorMap &k_map, const NsaiTensorMap &v_map,
                            const NsaiView &k, const NsaiView &v, const KeyLocation &at, u32 base,
                            int s, int first) {
  using R = SelectedPipeline<Config>;
  const u32 full = base + R::kFull + 8 * s;
  const u32 sK = base + R::kSK + s * R::kKBytes; // [kKeys, Dk]
  const u32 sV = base + R::kSV + s * R::kVBytes; // [kKeys, Dv]
  const int row = at.row + first;
  const bool foreign = first + R::kKeys > at.rest;
  if (foreign) {
    const u16 *gV =
        (const u16 *)v.data + row * v.token_stride + at.group * v.head_stride; // [., Dv]
    copy_present_rows<R::kKeys, Config::kHeadDimV>(sV, gV, v.token_stride, at.rest - first);
  }
  if (threadIdx.x % 32 != 0) {
    barrier_arrive(full);
    return;
  }
  barrier_arrive_expecting(full, foreign ? R::kKBytes : R::kKBytes + R::kVBytes);
  tma_load_panels<Config::kHeadDimQk>(sK, k_map, full, R::kKeys, box_head(k, at.group), row);
  if (!foreign)
    tma_load_panels<Config::kHeadDimV>(sV, v_map, full, R::kKeys, box_head(v, at.group), row);
}

// The next stage of the window's keys, those from `first` on.
template <class Config>
NSAI_DEVICE void produce_window(const NsaiSelectedWindow &p, const KeyLocation &keys, int first,
                                unsigned char *shared, int producer,
                                PipelineState<Config::kStages> &step) {
  using R = SelectedPipeline<Config>;
  const u32 base = shared_address(shared);
  const int s = step.stage;
  barrier_wait(base + R::kEmpty + 8 * s, step.phase ^ 1); // by all consumer warps
  if (producer == 0)
    fill_stage<Config>(p.window_k_map, p.window_v_map, p.window_k, p.window_v, keys, base, s,
                       first);
  else
    barrier_arrive(base + R::kFull + 8 * s);
  step.advance();
}

// The kProducers warps, for all tiles of the block; `producer`: which of them.
template <class Config, class Params>
NSAI_DEVICE void produce_selected(const Params &params, unsigned char *shared, int producer) {
  using R = SelectedPipeline<Config>;
  using Cursor = ListCursor<Config>;
  const NsaiAttendSelectedTma &selected = selected_params(params);
  const NsaiAttendSelected &p = selected.attend;
  const int lane = threadIdx.x % 32;
  const u32 base = shared_address(shared);
  int buffer = 0; // of sLeast
  PipelineState<R::kStages> step;

  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const TilePosition at = find_tile_position<Config>(p, tile);
    if (at.empty()) continue;
    const int end = at.seq.kv_begin + at.seq.kv_len;
    const KeyLocation keys = { at.seq.kv_begin, at.group,
                               end < p.seq.kv_tokens ? at.seq.kv_len : 0x7fffffff };
    if constexpr (kCanWindow<Params>) {
      KeyRange window = {};
      if (first_branch(params) == NSAI_FUSED_WINDOW) window = window_of_tile<Config>(at);
      for (int count = WindowStages<Config>::kFirst; window.begin < window.end;
           window.begin += count, count = R::kKeys)
        produce_window<Config>(params, keys, window.begin, shared, producer, step);
      begin_kernel(); // for the lists
      if (end_branch(params) == NSAI_FUSED_SELECTED) continue;
    }
    Cursor cursors[R::kLists];
    auto token_of = [&](int j) { return (j * R::kProducers + producer) * 32 + lane; };
#pragma unroll
    for (int j = 0; j < R::kLists; ++j) {
      int token = token_of(j), query = at.first_query + token;
      const int *gList = p.lists + (at.seq.q_begin + query) * p.list_token_stride +
                         at.group * p.list_head_stride; // [n]
      cursors[j].open(gList, at.seq.position(query),
                      token < R::kTokens && query < at.seq.q_len &&
                          end_branch(params) > NSAI_FUSED_SELECTED);
    }
    auto next = [&]() { // the least key that is not taken, of all producers
      int least = cursors[0].begin;
#pragma unroll
      for (int j = 1; j < R::kLists; ++j) least = min(least, cursors[j].begin);
      least = __reduce_min_sync(~0u, least);
      if constexpr (R::kProducers > 1) {
        int *sLeast = (int *)(shared + R::kSLeast) + buffer * R::kProducers; // [kProducers]
        if (lane == 0) sLeast[producer] = least;
        threads_sync(15, 32 * R::kProducers); // everyone's is there, and the turn before was read
        const int4 all = *(const int4 *)sLeast;
        least = min(min(all.x, all.y), min(all.z, all.w));
        buffer ^= 1;
      }
      return least;
    };

    for (int begin = next(), last = 0; !last; step.advance()) {
      // Where no token sees a key, one stage without keys ends the tile.
      const bool any = begin != Cursor::kNever;
      const int first = begin / R::kKeys * R::kKeys;
      typename Cursor::KeyBits bits[R::kLists];
      u32 seen = 0, partly = 0;
#pragma unroll
      for (int j = 0; j < R::kLists; ++j) {
        bits[j] = any ? cursors[j].take(first) : 0;
        if (R::kTokens % (32 * R::kProducers) && token_of(j) >= R::kTokens) continue;
        if (bits[j]) seen |= warps_of_token<Config>(token_of(j));
        if (bits[j] != Cursor::kAllKeys) partly |= warps_of_token<Config>(token_of(j));
      }
      seen = __reduce_or_sync(~0u, seen);
      partly = __reduce_or_sync(~0u, partly);
      begin = next();
      last = begin == Cursor::kNever;

      // A fresh barrier lets the wait for the phase before its first one pass.
      const int s = step.stage;
      barrier_wait(base + R::kEmpty + 8 * s, step.phase ^ 1);    // by all consumer warps
      u64 *sBits = (u64 *)(shared + R::kSBits) + s * R::kTokens; // [kTokens]
#pragma unroll
      for (int j = 0; j < R::kLists; ++j)
        if (R::kTokens % (32 * R::kProducers) == 0 || token_of(j) < R::kTokens)
          sBits[token_of(j)] = bits[j];
      if (lane == 0) {
        const int i = s * R::kProducers + producer;
        ((u32 *)(shared + R::kSSeen))[i] = seen | (last ? R::kLast : 0);
        ((u32 *)(shared + R::kSPartly))[i] = partly;
      }
      if (producer == 0 && any) {
        fill_stage<Config>(selected.k, selected.v, p.k, p.v, keys, base, s, first);
      } else {
        barrier_arrive(base + R::kFull + 8 * s);
      }
    }
  }
}

// ---- body

// The kernel: `consume(shared)` is what its consumer warps do, for all tiles of the block.
template <class Config, class Params, class Consume>
NSAI_DEVICE void attend_pipeline(const Params &p, Consume consume) {
  using R = SelectedPipeline<Config>;
  extern __shared__ __align__(1024) unsigned char shared[];
  if (threadIdx.x == 0) {
    tma_prefetch_map(selected_params(p).k);
    tma_prefetch_map(selected_params(p).v);
    if constexpr (kCanWindow<Params>) {
      tma_prefetch_map(p.window_k_map);
      tma_prefetch_map(p.window_v_map);
    }
    init_pipeline<Config>(shared_address(shared));
  }
  // Neither the window's keys nor their products wait for the kernel before: lists and sum do.
  if (!kCanWindow<Params>) begin_kernel();
  __syncthreads(); // barriers are there
  const int warp = warp_uniform(threadIdx.x / 32);
  if (warp >= R::kWarps) {
    registers_drop<R::kProducerRegisters>();
    if (warp < R::kWarps + R::kProducers) produce_selected<Config>(p, shared, warp - R::kWarps);
    if (kCanWindow<Params>) begin_kernel(); // also where no tile has tokens
  } else {
    registers_raise<R::kConsumerRegisters>();
    consume(shared);
  }
}

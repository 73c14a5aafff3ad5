// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The producer side of the selected branch on sm_90: a warp walks the merged lists of adjacent
// tokens and loads their keys by TMA into a pipeline of stages. Consumers exist for mma.sync
// (attend/selected_mma.cuh) and wgmma (attend/selected_wgmma.cuh). If the kernel also computes the
// window branch (attend/selected_window.cuh), the window's keys pass through the same pipeline
// before those of the lists.
//
// Tiles: tile i of p.tiles is tokens [kTokens * (i % per_group), ...) of KV head i / per_group, so
// that CTAs that run at the same time read the keys of one head. A CTA takes every gridDim.x-th
// tile. Its kWarps consumer warps hold 16 rows each, token-major over kGroupPadded heads: 16 /
// kGroupPadded tokens, or 16 heads of one token.
//
// Merged list: keys are cut into tiles on a fixed grid of kKeys. The producers' lanes hold cursors
// into the tokens' lists (data/list_cursor.cuh). The smallest next key of all cursors determines
// the next key tile, and every list that has keys in it advances. No list is ever stored, whatever
// n, l' and the alignment of ranges are. One warp does this for up to 32 tokens, four warps for
// more.
//
// A stage holds
//
//   K, V    [kKeys, Dk], [kKeys, Dv]: panels with the 128-byte swizzle (core/tma.cuh)
//   bits    u64 [kTokens]: the keys that each token sees (selection and causality combined)
//   seen    u32 [kProducers], to be or-ed. Bit w: a token of warp w sees at least one key.
//           kLast in the first word: last stage of the tile. Window stages carry no flags:
//           positions say which row sees which key
//   partly  u32 [kProducers], to be or-ed. Bit w: a token of warp w does not see all keys
//
//   producers: wait empty[s]; store the flags; start the copies of K and V; arrive full[s]
//   consumer:  wait full[s]; multiply, unless its bit is 0; arrive empty[s]
//
// The producers move on to the next tile at once: while consumers store O, the stages fill.
//
// V rows behind a sequence's end may hold anything if further sequences follow; such key tiles are
// copied row by row, with zeros behind the end. (K needs no such care: its scores are masked.)
// Behind the end of the tensor TMA supplies zeros.
//
// With kCached K and V lie in a KV cache, and a stage consists of boxes of its pages
// (data/cached_boxes.cuh). The window then begins with a box, up to 15 keys earlier. Looking up
// pages and asking for the boxes of a stage takes a warp longer than the consumers take to multiply
// it, so that three further warps, the loaders, do it for every third stage each:
//
//   producer   wait empty[s]; store the flags and the task; arrive full[s], listed[s]
//   loaders    wait listed[s]; one of them starts the copies of K and V; arrive full[s]
//
//   task    int: the first key of the stage, and in its lowest bits kFromWindow, kLastTask (last
//           stage of the tile), kNoKeys
//
// All loaders arrive on full[s], or one that is late could read the task of the next round. Where
// four warps walk the lists, the first of them also loads.
//
// Config: kHeadDimQk, kHeadDimV, kGroup, kGroupPadded, kWarps, kThreads = 32 * kWarps + 128,
// kMinBlocks, kKeys, kStages, kSharedBytes, kSelectBlock, kSelectCount, kRanges; kWindow and, of a
// cache, kWindowPageRows: kPageRows of the window's pair; those of data/source.cuh.
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
#include "data/cached_boxes.cuh"
#include "data/key_range.cuh"
#include "data/list_cursor.cuh"
#include "data/sequence.cuh"
#include "data/source.cuh"
#include "data/tile_position.cuh"
#include "params/attention.h"

template <class Config> struct SelectedPipeline {
  static constexpr int kWarps = Config::kWarps, kStages = Config::kStages, kKeys = Config::kKeys;
  static constexpr int kWarpgroups = kWarps / 4; // consumers; the producers' comes last
  static constexpr int kTokens = 16 * kWarps / Config::kGroupPadded;
  static constexpr int kProducers = kTokens <= 32 ? 1 : 4;                    // producer warps
  static constexpr int kLists = ceil_div(kTokens, 32 * kProducers);           // lists per lane
  static constexpr int kLoaders = Config::kCached && kProducers == 1 ? 3 : 0; // further warps
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk),
                       kColsV = padded_dim(Config::kHeadDimV);
  static constexpr int kKBytes = nsai_panel_bytes(kKeys, Config::kHeadDimQk);
  static constexpr int kVBytes = nsai_panel_bytes(kKeys, Config::kHeadDimV);

  // Registers per thread. The launch gives kLaunch to each thread; the producer warpgroup hands its
  // surplus to the consumers. A cursor takes 8. Loaders get what consumers cannot share evenly.
  static constexpr int kLaunch = 65536 / (Config::kThreads * Config::kMinBlocks) / 8 * 8;
  static constexpr int kLeast = kLists == 1 ? 32 : 40;
  static constexpr int kFair = (kLaunch * (kWarpgroups + 1) - kLeast) / kWarpgroups / 8 * 8;
  static constexpr int kConsumerRegisters = kFair < 240 ? kFair : 240;
  static constexpr int kRest = kLaunch * (kWarpgroups + 1) - kWarpgroups * kConsumerRegisters;
  static constexpr int kProducerRegisters = kLoaders ? (kRest < 64 ? kRest : 64) : kLeast;

  // Shared memory layout from a multiple of 1024 bytes on; offsets in bytes. Buffers are [kStages].
  static constexpr int kSK = 0;
  static constexpr int kSV = kSK + kStages * kKBytes;
  static constexpr int kSBits = kSV + kStages * kVBytes;             // u64 [kTokens]
  static constexpr int kSSeen = kSBits + 8 * kStages * kTokens;      // u32 [kProducers]
  static constexpr int kSPartly = kSSeen + 4 * kStages * kProducers; // u32 [kProducers]
  static constexpr int kBarriers = kSPartly + 4 * kStages * kProducers;
  static constexpr int kSLeast = kBarriers + Barriers<kStages>::kBytes; // int [2, kProducers]
  static constexpr int kListed = kSLeast + 8 * kProducers; // u64 barriers, if there are loaders
  static constexpr int kSTask = kListed + (kLoaders ? 8 * kStages : 0); // int, likewise
  static constexpr int kEnd = nsai_smem_aligned(kSTask + (kLoaders ? 4 * kStages : 0), 16);
  static constexpr int kSQ = nsai_smem_aligned(kEnd, 1024); // Q of each warp or warpgroup, or empty
  static constexpr u32 kLast = 1u << 31;                    // flag in kSSeen

  NSAI_DEVICE static u32 listed(u32 base, int stage) { return base + kListed + 8 * stage; }

  static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0,
                "rows are copied 16 bytes at a time");
  static_assert(Config::kGroup <= Config::kGroupPadded &&
                    (Config::kGroupPadded & (Config::kGroupPadded - 1)) == 0,
                "rows are token-major over a power of two of heads");
  static_assert(kWarps % 4 == 0 && kWarps <= 12, "whole warpgroups, which share 65536 registers");
  static_assert(kWarps * Config::kMinBlocks >= 8,
                "four consumer warps alone would leave registers unused");
  static_assert(kKeys == 64, "the keys of a stage are the bits of a word");
  static_assert(Config::kGroupPadded <= 64, "a warpgroup holds whole tokens");
  static_assert(Config::kThreads == 32 * kWarps + 128, "one producer warpgroup");
  static_assert(kStages >= 2, "a stage is filled while another is read");
};

// The tile's sequence in *s, if it is wanted.
template <class Config, class Params>
NSAI_DEVICE TilePosition find_tile_position(const Params &params, int tile, int *s = nullptr) {
  const NsaiAttendSelected &p = selected_params(params).attend;
  const int per_group = p.tiles / p.kv_heads, group = tile / per_group;
  const QueryTile at = find_query_tile<SelectedPipeline<Config>::kTokens>(sequences_of(params),
                                                                          tile - group * per_group);
  if (s) *s = at.s;
  return TilePosition{ at.seq, at.first_query, group };
}

// How the window's keys of a tile fall into stages: a first stage of kFirst keys, the remainder of
// w + kTokens - 1 modulo kKeys, and then stages of kKeys. In a cache the window begins with a box:
// there are up to NSAI_WINDOW_BOX_ROWS - 1 more keys, and kFirst consists of boxes.
template <class Config> struct WindowStages {
  using R = SelectedPipeline<Config>;
  static constexpr int kBox = Config::kCached ? NSAI_WINDOW_BOX_ROWS : 1;
  static constexpr int kRest =
      ceil_div(Config::kWindow + R::kTokens - 1 + kBox - 1, kBox) * kBox % R::kKeys;
  static constexpr int kFirst = kRest ? kRest : R::kKeys;
  static constexpr int kFirstPadded = padded_dim(kFirst); // keys that are multiplied
};

// The first key of the window's first stage, where `begin` is the first one that any token sees.
template <class Config> NSAI_DEVICE int window_begin(int begin) {
  return begin / WindowStages<Config>::kBox * WindowStages<Config>::kBox;
}

// Keys [begin, end) in the window of any of the tile's tokens; none if begin >= end.
template <class Config> NSAI_DEVICE KeyRange window_of_tile(const TilePosition &at) {
  const int next = min(at.first_query + SelectedPipeline<Config>::kTokens, at.seq.q_len);
  return KeyRange{ window_begin<Config>(
                       WindowKeys<Config>::visible(at.seq.position(at.first_query)).begin),
                   WindowKeys<Config>::visible(at.seq.position(next - 1)).end };
}

// Initialises the barriers. One thread, before any other uses them.
template <class Config> NSAI_DEVICE void init_pipeline(u32 base) {
  using R = SelectedPipeline<Config>;
  // All lanes arrive. One lane per warp would suffice and is no faster, but racecheck does not
  // follow that.
  Barriers<R::kStages>{ base + R::kBarriers }.init(32 * (R::kProducers + R::kLoaders),
                                                   32 * R::kWarps);
  for (int s = 0; R::kLoaders && s < R::kStages; ++s) barrier_init(R::listed(base, s), 32);
  barrier_init_fence();
}

// ---- producers

// Bits of the consumer warps that hold a token's rows.
template <class Config> NSAI_DEVICE u32 warps_of_token(int token) {
  constexpr int kWarpsOfToken = Config::kGroupPadded <= 16 ? 1 : Config::kGroupPadded / 16;
  return ((1u << kWarpsOfToken) - 1) << (token * Config::kGroupPadded / 16);
}

// Where the copies find a tile's keys in packed tensors.
struct KeyLocation {
  int row;   // row of k and v that is key 0
  int group; // KV head
  // Keys from here on must not come by TMA: they are rows of another sequence or beyond the longest
  // one. The largest int if no sequence follows.
  int rest;
  NSAI_DEVICE int page_of_lane(int) const { return 0; }
};

// The same in a cache.
template <class Boxes> struct CachedKeyLocation {
  Boxes boxes;
  int group;
  NSAI_DEVICE int page_of_lane(int first) const { return boxes.page_of_lane(first); }
};

// Starts the copies of keys [first, first + kKeys) of a sequence into stage s and arrives on its
// full barrier. Called by a whole warp; the arrival also covers the warp's plain stores. `v` is the
// tensor that v_map describes.
template <class Config>
NSAI_DEVICE void fill_stage(const NsaiTensorMap &k_map, const NsaiTensorMap &v_map,
                            const NsaiView &k, const NsaiView &v, const KeyLocation &at, u32 base,
                            int s, int first, int) {
  using R = SelectedPipeline<Config>;
  const u32 full = Barriers<R::kStages>{ base + R::kBarriers }.full(s);
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

// The same from a cache; `page`: at.page_of_lane(first).
template <class Config, class Boxes>
NSAI_DEVICE void fill_stage(const NsaiTensorMap &k_map, const NsaiTensorMap &v_map,
                            const NsaiCacheTensor &k, const NsaiCacheTensor &v,
                            const CachedKeyLocation<Boxes> &at, u32 base, int s, int first,
                            int page) {
  using R = SelectedPipeline<Config>;
  const u32 full = Barriers<R::kStages>{ base + R::kBarriers }.full(s);
  const u32 sK = base + R::kSK + s * R::kKBytes; // [kKeys, Dk]
  const u32 sV = base + R::kSV + s * R::kVBytes; // [kKeys, Dv]
  const bool keys = at.boxes.boxed(), values = at.boxes.boxed_values(first);
  const bool announces = threadIdx.x % 32 == 0;
  if (!keys) at.boxes.template copy_present<Config::kHeadDimQk>(sK, k, at.group, first);
  if (!values) at.boxes.template copy_present<Config::kHeadDimV>(sV, v, at.group, first);
  if (announces)
    barrier_arrive_expecting(full, (keys ? R::kKBytes : 0) + (values ? R::kVBytes : 0));
  __syncwarp(); // the bytes are announced before any arrives
  if (keys) at.boxes.template load<Config::kHeadDimQk>(sK, k_map, full, k, at.group, first, page);
  if (values) at.boxes.template load<Config::kHeadDimV>(sV, v_map, full, v, at.group, first, page);
  if (!announces) barrier_arrive(full);
}

// Flags in the low bits of a task, whose first key is a multiple of 16.
constexpr int kFromWindow = 1, kLastTask = 2, kNoKeys = 4;

// Publishes the task of a stage to the loaders. A whole warp; the arrivals also cover its plain
// stores.
template <class Config> NSAI_DEVICE void list_stage(unsigned char *shared, int s, int task) {
  using R = SelectedPipeline<Config>;
  const u32 base = shared_address(shared);
  if (threadIdx.x % 32 == 0) ((int *)(shared + R::kSTask))[s] = task;
  barrier_arrive(R::listed(base, s));
  Barriers<R::kStages>{ base + R::kBarriers }.producer_commit(s);
}

// Fills stage s with the window's keys from `first` on.
template <class Config, class Params, class Location>
NSAI_DEVICE void fill_from_window(const Params &params, const Location &keys, u32 base, int s,
                                  int first, int page) {
  const NsaiSelectedWindow &p = window_params(params);
  fill_stage<Config>(p.window_k_map, p.window_v_map, window_keys(params), window_values(params),
                     keys, base, s, first, page);
}

// The same with the keys of the lists.
template <class Config, class Params, class Location>
NSAI_DEVICE void fill_from_lists(const Params &params, const Location &keys, u32 base, int s,
                                 int first, int page) {
  const NsaiAttendSelectedTma &p = selected_params(params);
  fill_stage<Config>(p.k, p.v, list_keys(params), list_values(params), keys, base, s, first, page);
}

// Where a tile's keys of the selected branch and of the window lie; s: its sequence.
template <class Config, class Params>
NSAI_DEVICE auto locate_lists(const Params &params, const TilePosition &at, int s) {
  if constexpr (Config::kCached) {
    const auto boxes =
        find_boxes<Config::kPageRows, nsai_list_box_rows(Config::kPageRows, Config::kKeys),
                   Config::kKeys>(params.batch, params.pair, s, 0, at.seq.kv_len);
    return CachedKeyLocation<decltype(boxes)>{ boxes, at.group };
  } else {
    const int end = at.seq.kv_begin + at.seq.kv_len;
    return KeyLocation{ at.seq.kv_begin, at.group,
                        end < sequences_of(params).kv_tokens ? at.seq.kv_len : 0x7fffffff };
  }
}
template <class Config, class Params>
NSAI_DEVICE auto locate_window(const Params &params, const TilePosition &at, int s) {
  if constexpr (Config::kCached) {
    const int first = WindowKeys<Config>::visible(at.seq.position(at.first_query)).begin;
    const auto boxes = find_boxes<Config::kWindowPageRows, NSAI_WINDOW_BOX_ROWS, Config::kKeys>(
        params.batch, params.window, s, first, at.seq.kv_len);
    return CachedKeyLocation<decltype(boxes)>{ boxes, at.group };
  } else {
    return locate_lists<Config>(params, at, s);
  }
}

// The loop of the kProducers producer warps over all tiles of the CTA; `producer` is this warp's
// index.
template <class Config, class Params>
NSAI_DEVICE void produce_selected(const Params &params, unsigned char *shared, int producer) {
  using R = SelectedPipeline<Config>;
  using Cursor = ListCursor<Config>;
  const NsaiAttendSelectedTma &selected = selected_params(params);
  const NsaiAttendSelected &p = selected.attend;
  const int lane = threadIdx.x % 32;
  const u32 base = shared_address(shared);
  const Barriers<R::kStages> barriers = { base + R::kBarriers };
  int buffer = 0; // index of sLeast
  PipelineState<R::kStages> step;

  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    int sequence;
    const TilePosition at = find_tile_position<Config>(params, tile, &sequence);
    if (at.empty()) continue;
    const auto keys = locate_lists<Config>(params, at, sequence);
    if constexpr (kCanWindow<Params>) {
      const auto window_at = locate_window<Config>(params, at, sequence);
      KeyRange window = {};
      if (first_branch(params) == NSAI_FUSED_WINDOW) window = window_of_tile<Config>(at);
      int page = R::kLoaders ? 0 : window_at.page_of_lane(window.begin);
      for (int count = WindowStages<Config>::kFirst; window.begin < window.end;
           window.begin += count, count = R::kKeys) {
        const int here = page, s = step.stage;
        const bool ends = window.begin + count >= window.end;
        if constexpr (!R::kLoaders) page = window_at.page_of_lane(window.begin + count);
        barriers.producer_acquire(step);
        if constexpr (R::kLoaders)
          list_stage<Config>(shared, s,
                             window.begin | kFromWindow |
                                 (ends && end_branch(params) == NSAI_FUSED_SELECTED ? kLastTask
                                                                                    : 0));
        else if (producer == 0)
          fill_from_window<Config>(params, window_at, base, s, window.begin, here);
        else
          barriers.producer_commit(s);
        step.advance();
      }
      begin_kernel(); // the lists come from the previous kernel
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
    auto next = [&]() { // smallest key not yet taken, over all producers
      int least = cursors[0].begin;
#pragma unroll
      for (int j = 1; j < R::kLists; ++j) least = min(least, cursors[j].begin);
      least = __reduce_min_sync(~0u, least);
      if constexpr (R::kProducers > 1) {
        int *sLeast = (int *)(shared + R::kSLeast) + buffer * R::kProducers; // [kProducers]
        if (lane == 0) sLeast[producer] = least;
        // All producers have written this round's value and read the previous round's.
        threads_sync(15, 32 * R::kProducers);
        const int4 all = *(const int4 *)sLeast;
        least = min(min(all.x, all.y), min(all.z, all.w));
        buffer ^= 1;
      }
      return least;
    };

    int begin = next();
    int page = R::kLoaders ? 0 : keys.page_of_lane(begin / R::kKeys * R::kKeys);
    for (int last = 0; !last; step.advance()) {
      // If no token sees any key, a single stage without keys ends the tile.
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
      const int here = page;
      if constexpr (!R::kLoaders) page = keys.page_of_lane(begin / R::kKeys * R::kKeys);

      const int s = step.stage;
      barriers.producer_acquire(step);
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
      if constexpr (R::kLoaders)
        list_stage<Config>(shared, s, (any ? first : kNoKeys) | (last ? kLastTask : 0));
      else if (producer == 0 && any)
        fill_from_lists<Config>(params, keys, base, s, first, here);
      else
        barriers.producer_commit(s);
    }
  }
}

// The loop of a loader over all tiles of the CTA.
template <class Config, class Params>
NSAI_DEVICE void load_stages(const Params &params, unsigned char *shared, int loader) {
  using R = SelectedPipeline<Config>;
  const NsaiAttendSelected &p = selected_params(params).attend;
  const u32 base = shared_address(shared);
  const Barriers<R::kStages> barriers = { base + R::kBarriers };
  PipelineState<R::kStages> step;
  int turn = 0; // whose stage this is

  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    int sequence;
    const TilePosition at = find_tile_position<Config>(params, tile, &sequence);
    if (at.empty()) continue;
    if constexpr (kCanWindow<Params>)
      if (end_branch(params) == NSAI_FUSED_SELECTED) {
        const KeyRange window = window_of_tile<Config>(at);
        if (window.begin >= window.end) continue; // no stages
      }
    const auto keys = locate_lists<Config>(params, at, sequence);
    for (int task = 0; !(task & kLastTask); step.advance(), turn = turn == 2 ? 0 : turn + 1) {
      const int s = step.stage;
      barrier_wait(R::listed(base, s), step.phase);
      task = (int)load_shared_word(base + R::kSTask + 4 * s);
      const int first = task & ~(NSAI_WINDOW_BOX_ROWS - 1);
      if (turn != loader || task & kNoKeys) {
        barriers.producer_commit(s);
      } else if (!kCanWindow<Params> || !(task & kFromWindow)) {
        fill_from_lists<Config>(params, keys, base, s, first, keys.page_of_lane(first));
      } else if constexpr (kCanWindow<Params>) {
        const auto window_at = locate_window<Config>(params, at, sequence);
        fill_from_window<Config>(params, window_at, base, s, first, window_at.page_of_lane(first));
      }
    }
  }
}

// ---- body

// The kernel body; `consume(shared)` is the loop of a consumer warp over all tiles of the CTA.
template <class Config, class Params, class Consume>
NSAI_DEVICE void attend_pipeline(const Params &p, Consume consume) {
  using R = SelectedPipeline<Config>;
  extern __shared__ __align__(1024) unsigned char shared[];
  if (threadIdx.x == 0) {
    // Over a cache, a branch that does not run has no maps.
    if (!kIsCached<Params> || end_branch(p) > NSAI_FUSED_SELECTED) {
      tma_prefetch_map(selected_params(p).k);
      tma_prefetch_map(selected_params(p).v);
    }
    if constexpr (kCanWindow<Params>)
      if (!kIsCached<Params> || first_branch(p) == NSAI_FUSED_WINDOW) {
        tma_prefetch_map(window_params(p).window_k_map);
        tma_prefetch_map(window_params(p).window_v_map);
      }
    init_pipeline<Config>(shared_address(shared));
  }
  // The window's keys and products need nothing from the previous kernel; the lists and the partial
  // sum do.
  if (!kCanWindow<Params>) begin_kernel();
  __syncthreads(); // barriers are initialised
  const int warp = warp_uniform(threadIdx.x / 32);
  if (warp >= R::kWarps) {
    registers_drop<R::kProducerRegisters>();
    if (warp < R::kWarps + R::kProducers)
      produce_selected<Config>(p, shared, warp - R::kWarps);
    else if constexpr (R::kLoaders)
      load_stages<Config>(p, shared, warp - R::kWarps - R::kProducers);
    if (kCanWindow<Params>) begin_kernel(); // also if no tile has tokens
  } else {
    registers_raise<R::kConsumerRegisters>();
    consume(shared);
  }
}

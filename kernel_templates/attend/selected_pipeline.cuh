// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The producer side of the selected branch on sm_90: a warp walks the merged lists of adjacent
// tokens and loads their keys by TMA into a pipeline of stages. Consumers exist for mma.sync
// (attend/selected_mma.cuh) and wgmma (attend/selected_wgmma.cuh). If the kernel also computes the
// window branch (attend/selected_window.cuh), the window's keys pass through the same pipeline
// before those of the lists.
//
// Tiles: kTokens adjacent tokens of one KV head. A CTA takes one of every gridDim.x tiles, in the
// order of attend/selected_tiles.cuh. Its kWarps consumer warps hold 16 rows each, token-major over
// kGroupPadded heads: 16 / kGroupPadded tokens, or 16 heads of one token.
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
// Tried without gain (H200, forwards of 4k and 8k tokens, 64/4 heads, less than 1 %): tiles by tickets from a
// counter that attend_compressed_topn_sm90 clears, handed to all warps through shared memory.
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
// Products on wgmma take elements from shared memory (kExpandsCodes). Codes then arrive on a barrier
// of the stage's own, arrived[s]. The loader that asked for them expands them
// (core/expand_codes.cuh) and only then arrives on full[s]. It has asked for its next stage by then,
// if that is listed, so that the copies of one stage fly while another is expanded. (All loaders
// expanding a third of each stage: 15 % slower at 64k, as each then waits for every stage.)
//
// Config: kHeadDimQk, kHeadDimV, kGroup, kGroupPadded, kWarps, kThreads = 32 * kWarps + 128,
// kMinBlocks, kKeys, kStages, kSharedBytes, kExpandsCodes, kSelectBlock, kSelectCount, kRanges;
// kWindow and, of a cache, kWindowPageRows: kPageRows of the window's pair; those of
// data/source.cuh.
#pragma once
#include "attend/selected_branches.cuh"
#include "attend/selected_stages.cuh"
#include "attend/selected_tiles.cuh"
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
#include "data/source.cuh"
#include "data/tile_position.cuh"
#include "params/attention.h"
// ---- producers

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

  for (TileWalk<Config> walk(p); walk.tile < p.tiles; walk.advance()) {
    const int tile = walk.tile;
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

// The stage whose codes a loader has asked for and not yet expanded.
template <class Config> struct AskedStage {
  int stage = -1; // none
  u32 phase;

  // Asks in turn: the stage before is expanded first.
  NSAI_DEVICE void replace(u32 base, const PipelineState<Config::kStages> &step) {
    expand(base);
    stage = step.stage;
    phase = step.phase;
  }
  NSAI_DEVICE void expand(u32 base) {
    if (stage >= 0) expand_stage<Config>(base, stage, phase);
    stage = -1;
  }
  // Expands it where there is nothing else to do, or nothing to wait for.
  NSAI_DEVICE void expand_before(u32 base, const PipelineState<Config::kStages> &step) {
    using R = SelectedPipeline<Config>;
    if (stage < 0) return;
    // One answer for the warp: lanes that expanded apart would write over what others have yet to read.
    const bool now = barrier_passed(R::arrived(base, stage), phase) ||
                     !barrier_passed(R::listed(base, step.stage), step.phase);
    if (__any_sync(~0u, now)) expand(base);
  }
};

// The loop of a loader over all tiles of the CTA.
template <class Config, class Params>
NSAI_DEVICE void load_stages(const Params &params, unsigned char *shared, int loader) {
  using R = SelectedPipeline<Config>;
  const NsaiAttendSelected &p = selected_params(params).attend;
  const u32 base = shared_address(shared);
  const Barriers<R::kStages> barriers = { base + R::kBarriers };
  PipelineState<R::kStages> step;
  AskedStage<Config> asked;
  int turn = 0; // whose stage this is

  for (TileWalk<Config> walk(p); walk.tile < p.tiles; walk.advance()) {
    const int tile = walk.tile;
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
      if constexpr (R::kExpands) asked.expand_before(base, step);
      barrier_wait(R::listed(base, s), step.phase);
      task = (int)load_shared_word(base + R::kSTask + 4 * s);
      const int first = task & ~(NSAI_WINDOW_BOX_ROWS - 1);
      if (turn != loader || task & kNoKeys) {
        if (R::kExpands && turn == loader)
          barrier_arrive(R::arrived(base, s)); // its phase follows the stage's
        barriers.producer_commit(s);
        continue;
      }
      if (!kCanWindow<Params> || !(task & kFromWindow)) {
        fill_from_lists<Config>(params, keys, base, s, first, keys.page_of_lane(first));
      } else if constexpr (kCanWindow<Params>) {
        const auto window_at = locate_window<Config>(params, at, sequence);
        fill_from_window<Config>(params, window_at, base, s, first, window_at.page_of_lane(first));
      }
      if constexpr (R::kExpands) asked.replace(base, step);
    }
  }
  if constexpr (R::kExpands) asked.expand(base);
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

// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The producer of keys of backward/pipelines/dq.cuh for groups of one or two heads, where a tile has more
// tokens than a warp has lanes: each lane has kLaneTokens adjacent tokens. It does what DqKeyWalk and
// produce_keys of backward/pipelines/dq_producer.cuh do for one token a lane, whose machine code with an
// array of one cursor is another (NVRTC 13.0).
#pragma once
#include "backward/pipelines/dq_producer.cuh"

// Cursors over the lists of blocks of the lane's tokens, as ListCursor, with as few registers as can be:
// the end of a block follows from a key in it.
template <class Config> struct LaneCursors {
  static constexpr int kTokens = DqPipeline<Config>::kLaneTokens, kKeys = Config::kKeys;
  static constexpr int kBlock = Config::kSelectBlock, kNever = 0x7fffffff;
  static_assert(!Config::kRanges, "the end of a range does not follow from its keys");
  // Blocks lie on the grid of tiles: a tile takes a whole entry or none.
  static constexpr bool kAligned = kBlock == kKeys;
  const int *gLists;  // of the first token
  long long stride;   // from one token's list to the next
  int limit;          // of the first token: keys from here on are not visible
  int index[kTokens]; // of the entry loaded ahead
  int next[kTokens];  // that entry
  int begin[kTokens]; // remaining keys of the current entry; kNever: no more

  // `tokens`: how many of the lane's tokens exist, 0 or less: none.
  NSAI_DEVICE void open(const int *lists, long long token_stride, int position, int tokens) {
    gLists = lists;
    stride = token_stride;
    limit = position + 1;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      index[i] = i < tokens && limit + i > 0 ? 0 : Config::kSelectCount;
      load_next(i);
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) advance(i);
  }

  NSAI_DEVICE int least() const {
    int x = begin[0];
#pragma unroll
    for (int i = 1; i < kTokens; ++i) x = min(x, begin[i]);
    return x;
  }

  // Returns the visible keys of tile [first, first + kKeys) of token i and moves behind it.
  NSAI_DEVICE u64 take(int i, int first) {
    const int stop = first + kKeys;
    u64 bits = 0;
    if constexpr (kAligned) {
      if (begin[i] != first) return 0;
      bits = ~0ull >> max(stop - limit - i, 0);
      advance(i);
      return bits;
    }
    while (begin[i] < stop) {
      const int end = min(begin[i] / kBlock * kBlock + kBlock, limit + i), until = min(end, stop);
      bits |= (~0ull >> (kKeys - (until - begin[i]))) << (begin[i] - first);
      if (end > stop)
        begin[i] = stop;
      else
        advance(i);
    }
    return bits;
  }

private:
  NSAI_DEVICE void load_next(int i) {
    next[i] = index[i] < Config::kSelectCount ? gLists[i * stride + index[i]] : -1;
  }
  NSAI_DEVICE void advance(int i) {
    const int key = next[i] * kBlock;
    // An invalid entry must not cause a read of keys: it ends the list.
    const bool valid = next[i] >= 0 && key >= 0 && key < limit + i;
    begin[i] = valid ? key : kNever;
    index[i] = valid ? index[i] + 1 : Config::kSelectCount;
    load_next(i);
  }
};

// As DqKeyWalk.
template <class Config, bool kJoins> struct DqLaneWalk {
  using R = DqPipeline<Config>;
  using Cursors = LaneCursors<Config>;
  static constexpr int kNever = Cursors::kNever, kTokens = R::kLaneTokens;
  static constexpr bool kCanJoin = kJoins && R::kCanJoin;
  const NsaiBackwardQ &p;
  const DqTile &at;
  const bool joined;
  int branch_index = 0; // index in the order of branches
  int branch = 0;
  int first = kNever, end; // next key of the range or of the lists
  int window = kNever;     // next window tile that joins the lists
  int window_end;
  Cursors cursors;

  NSAI_DEVICE DqLaneWalk(const NsaiBackwardQTma &params, const DqTile &tile)
      : p(params.rows), at(tile), joined(kCanJoin && params.joined) {
    next_branch();
  }

  // The position of the lane's token i; negative: no token.
  NSAI_DEVICE int position(int i) const {
    const int token = (int)(threadIdx.x % 32) * kTokens + i;
    return token < at.tokens ? at.position + token : -1;
  }
  template <class Keys> NSAI_DEVICE void open_range() {
    const KeyRange begin = Keys::visible(at.position),
                   until = Keys::visible(at.position + at.tokens - 1);
    first = begin.begin < until.end ? begin.begin / R::kKeys * R::kKeys : kNever;
    end = until.end;
  }
  NSAI_DEVICE void open_lists() {
    const int token = (int)(threadIdx.x % 32) * kTokens;
    const long long row = at.seq.q_begin + at.first_query + token;
    cursors.open(p.lists + at.group * p.list_head_stride +
                     (token < at.tokens ? row : 0) * p.list_token_stride,
                 p.list_token_stride, at.position + token, at.tokens - token);
    find_listed();
  }
  NSAI_DEVICE void find_listed() {
    const int least = __reduce_min_sync(~0u, cursors.least());
    first = least == kNever ? kNever : least / R::kKeys * R::kKeys;
    if constexpr (kCanJoin) first = min(first, window);
  }

  NSAI_DEVICE void next_branch() {
    first = kNever;
    while (first == kNever && branch_index < NSAI_BRANCH_COUNT) {
      branch = branch_index == 0   ? NSAI_BRANCH_COMPRESSED
               : branch_index == 1 ? NSAI_BRANCH_WINDOW
                                   : NSAI_BRANCH_SELECTED;
      ++branch_index;
      if (!(p.branches >> branch & 1)) continue;
      if (branch == NSAI_BRANCH_COMPRESSED) open_range<CompressedKeys<Config>>();
      if constexpr (Config::kWindow > 0)
        if (branch == NSAI_BRANCH_WINDOW) {
          open_range<WindowKeys<Config>>();
          if (joined) { // its tiles come together with the lists
            window = first;
            window_end = end;
            first = kNever;
          }
        }
      if constexpr (Config::kSelectCount > 0)
        if (branch == NSAI_BRANCH_SELECTED) open_lists();
    }
  }

  NSAI_DEVICE int branch_at_hand() const {
    return kCanJoin && first == window && first != kNever ? NSAI_BRANCH_WINDOW : branch;
  }

  // The keys of the range tile at `tile` that the lane's token i sees.
  template <class Keys> NSAI_DEVICE u64 range_bits(int i, int tile) const {
    const int t = position(i);
    const KeyRange seen = Keys::visible(t);
    const int a = max(seen.begin - tile, 0), b = min(seen.end - tile, R::kKeys);
    return t >= 0 && a < b ? (~0ull >> (R::kKeys - (b - a))) << a : 0;
  }
  NSAI_DEVICE u64 range_bits(int of, int i, int tile) const {
    u64 bits = 0;
    if (of == NSAI_BRANCH_COMPRESSED) bits = range_bits<CompressedKeys<Config>>(i, tile);
    if constexpr (Config::kWindow > 0)
      if (of == NSAI_BRANCH_WINDOW) bits = range_bits<WindowKeys<Config>>(i, tile);
    return bits;
  }

  // Finds the keys of the current tile that are on the lists of the lane's tokens, and moves on.
  NSAI_DEVICE void take(u64 (&listed)[kTokens]) {
    const int of = branch_at_hand();
    if (Config::kSelectCount > 0 && branch == NSAI_BRANCH_SELECTED) {
      if constexpr (Config::kSelectCount > 0)
#pragma unroll
        for (int i = 0; i < kTokens; ++i) listed[i] = cursors.take(i, first);
      if (of == NSAI_BRANCH_WINDOW) {
        window += R::kKeys;
        if (window >= window_end) window = kNever;
      }
      find_listed();
    } else {
      first += R::kKeys;
      if (first >= end) first = kNever;
    }
    if (first == kNever) next_branch();
  }
};

template <class Config, bool kJoins>
NSAI_DEVICE void produce_keys_of_lanes(const NsaiBackwardQTma &p, unsigned char *shared, u32 base) {
  using R = DqPipeline<Config>;
  constexpr int kWarpLanes = 16 / Config::kGroupPadded / R::kLaneTokens; // lanes of a warp's tokens
  const int lane = threadIdx.x % 32;
  const u32 mine = 1u << lane / kWarpLanes;
  PipelineState<R::kStages> step;
  for_dq_tiles<Config>(p, [&](const DqTile &at) {
    using Walk = DqLaneWalk<Config, kJoins>;
    Walk walk(p, at);
    for (bool last = false; !last; step.advance()) {
      const int s = step.stage, first = walk.first, branch = walk.branch_at_hand();
      const bool any = first != Walk::kNever;
      u64 listed[R::kLaneTokens] = {};
      if (any) walk.take(listed);
      last = walk.first == Walk::kNever;
      barrier_wait(base + R::kEmpty + 8 * s, step.phase ^ 1); // released by all consumer warps
      u64 some = 0, all = ~0ull, in_both = 0;                 // over the lane's tokens
      auto store = [&](int i, u64 bits, u64 joined) {
        const int to = s * R::kTokens + lane * R::kLaneTokens + i;
        ((u64 *)(shared + R::kSBits))[to] = bits;
        if (Walk::kCanJoin) ((u64 *)(shared + R::kSListed))[to] = joined;
        some |= bits | joined;
        all &= bits;
        in_both |= joined;
      };
      if (branch == NSAI_BRANCH_SELECTED) {
#pragma unroll
        for (int i = 0; i < R::kLaneTokens; ++i) store(i, listed[i], 0);
      } else {
#pragma unroll
        for (int i = 0; i < R::kLaneTokens; ++i)
          store(i, walk.range_bits(branch, i, first), listed[i]);
      }
      const u32 seen = __reduce_or_sync(~0u, some ? mine : 0);
      const u32 partly = __reduce_or_sync(~0u, ~all ? mine : 0);
      const u32 window_selected = Walk::kCanJoin ? __reduce_or_sync(~0u, in_both ? mine : 0) : 0;
      if (lane == 0) {
        if (Walk::kCanJoin) ((u32 *)(shared + R::kSWindowSelected))[s] = window_selected;
        ((u32 *)(shared + R::kSSeen))[s] =
            seen | (u32)branch << R::kBranchShift | (last ? R::kLast : 0);
        ((u32 *)(shared + R::kSPartly))[s] = partly;
      }
      if (any)
        fill_stage<Config>(p, at, branch, first, base, s);
      else
        barrier_arrive(base + R::kFull + 8 * s);
    }
  });
}

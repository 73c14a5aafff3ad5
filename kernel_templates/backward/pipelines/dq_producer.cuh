// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The producers of backward/pipelines/dq.cuh: one warp loads the rows of a tile, another one its keys.
#pragma once
#include "backward/pipelines/dq_stages.cuh"
#include "core/pipeline.cuh"
#include "data/key_range.cuh"
#include "data/list_cursor.cuh"

// kKnown: also loads the rows' statistics.
template <class Config, bool kKnown>
NSAI_DEVICE void produce_rows(const NsaiBackwardQTma &p, u32 base) {
  using R = DqPipeline<Config>;
  const NsaiBackwardQ &rows = p.rows;
  const int lane = threadIdx.x % 32, heads = Config::kGroup * rows.kv_heads;
  u32 phase = 0;
  for_dq_tiles<Config>(p, [&](const DqTile &at) {
    const u32 full = base + R::kRowsFull;
    barrier_wait(base + R::kRowsEmpty, phase ^ 1); // released by all consumer warps
    phase ^= 1;
    const int first = at.seq.q_begin + at.first_query, head = at.group * Config::kGroup;
    const u32 bytes = kKnown ? __popc(rows.branches) * at.tokens * (16 * Config::kGroup) : 0;
    if (lane == 0) {
      barrier_arrive_expecting(full, bytes + 2 * (R::Q::kBytes + R::DO::kBytes));
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        const int token = first + w * R::kBoxTokens;
        tma_load_panels<Config::kHeadDimQk>(base + R::kSQ + w * R::Q::kBytes, p.q, full, 64, head,
                                            token);
        tma_load_panels<Config::kHeadDimV>(base + R::kSDO + w * R::DO::kBytes, p.d_o, full, 64,
                                           head, token);
      }
    }
    __syncwarp(); // the expected bytes are set
#pragma unroll
    for (int i = 0; i < R::kLaneTokens; ++i) {
      const int token = lane + 32 * i;
      if (kKnown && token < at.tokens)
#pragma unroll
        for (int b = 0; b < NSAI_BRANCH_COUNT; ++b)
          if (rows.branches >> b & 1)
            bulk_load(base + R::kSStatistics + 16 * (b * R::kRows + token * Config::kGroupPadded),
                      (const RowStatistics *)rows.statistics +
                          statistics_at(b, rows.seq.q_tokens, first + token, heads, head),
                      full, 16 * Config::kGroup);
    }
    if (lane) barrier_arrive(full);
  });
}

// The keys of a tile of rows, branch by branch; each lane has one token. kJoins: if the branches
// share K and V (p.joined), the window's tiles serve the lists as well.
template <class Config, bool kJoins> struct DqKeyWalk {
  using R = DqPipeline<Config>;
  using Cursor = ListCursor<Config>;
  static constexpr int kNever = Cursor::kNever;
  static constexpr bool kCanJoin = kJoins && R::kCanJoin;
  const NsaiBackwardQ &p;
  const DqTile &at;
  const bool joined;
  int position;         // of the lane's token; negative: no token
  int branch_index = 0; // index in the order of branches
  int branch = 0;
  int first = kNever, end; // next key of the range or of the lists
  int window = kNever;     // next window tile that joins the lists
  int window_end;
  Cursor cursor;

  NSAI_DEVICE DqKeyWalk(const NsaiBackwardQTma &params, const DqTile &tile)
      : p(params.rows), at(tile), joined(kCanJoin && params.joined) {
    const int lane = threadIdx.x % 32;
    position = lane < at.tokens ? at.position + lane : -1;
    next_branch();
  }

  NSAI_DEVICE void open_range(KeyRange begin, KeyRange until) {
    first = begin.begin < until.end ? begin.begin / R::kKeys * R::kKeys : kNever;
    end = until.end;
  }
  NSAI_DEVICE void find_listed() {
    const int least = __reduce_min_sync(~0u, cursor.begin);
    first = least == kNever ? kNever : least / R::kKeys * R::kKeys;
    if constexpr (kCanJoin) first = min(first, window);
  }

  // Moves on to the next branch that has keys; sets `first` to kNever if there is none.
  NSAI_DEVICE void next_branch() {
    const int last = at.position + at.tokens - 1;
    first = kNever;
    while (first == kNever && branch_index < NSAI_BRANCH_COUNT) {
      branch = branch_index == 0   ? NSAI_BRANCH_COMPRESSED
               : branch_index == 1 ? NSAI_BRANCH_WINDOW
                                   : NSAI_BRANCH_SELECTED;
      ++branch_index;
      if (!(p.branches >> branch & 1)) continue;
      if (branch == NSAI_BRANCH_COMPRESSED) {
        using Keys = CompressedKeys<Config>;
        open_range(Keys::visible(at.position), Keys::visible(last));
      }
      if constexpr (Config::kWindow > 0)
        if (branch == NSAI_BRANCH_WINDOW) {
          using Keys = WindowKeys<Config>;
          open_range(Keys::visible(at.position), Keys::visible(last));
          if (joined) { // its tiles come together with the lists
            window = first;
            window_end = end;
            first = kNever;
          }
        }
      if constexpr (Config::kSelectCount > 0)
        if (branch == NSAI_BRANCH_SELECTED) {
          const long long row = at.seq.q_begin + at.first_query + threadIdx.x % 32;
          cursor.open(p.lists + at.group * p.list_head_stride +
                          (position >= 0 ? row : 0) * p.list_token_stride,
                      position, position >= 0);
          find_listed();
        }
    }
  }

  // The branch of the current tile. A window tile that joins the lists belongs to the window.
  NSAI_DEVICE int branch_at_hand() const {
    return kCanJoin && first == window && first != kNever ? NSAI_BRANCH_WINDOW : branch;
  }

  // Returns the keys of the current tile that the lane's token sees, and moves on. `listed`: the
  // keys of a window tile that are on its list.
  NSAI_DEVICE u64 take(u64 &listed) {
    u64 bits = 0;
    listed = 0;
    const int of = branch_at_hand();
    KeyRange seen = { 0, 0 };
    if (of == NSAI_BRANCH_COMPRESSED) seen = CompressedKeys<Config>::visible(position);
    if constexpr (Config::kWindow > 0)
      if (of == NSAI_BRANCH_WINDOW) seen = WindowKeys<Config>::visible(position);
    const int a = max(seen.begin - first, 0), b = min(seen.end - first, R::kKeys);
    if (position >= 0 && a < b) bits = (~0ull >> (R::kKeys - (b - a))) << a;
    if (Config::kSelectCount > 0 && branch == NSAI_BRANCH_SELECTED) {
      if constexpr (Config::kSelectCount > 0)
        (of == NSAI_BRANCH_WINDOW ? listed : bits) = cursor.take(first);
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
    return bits;
  }
};

// Bits of the consumer warps that hold rows of the lane's token.
template <class Config> NSAI_DEVICE u32 warps_of_lane() {
  constexpr int kWarpsOfToken = Config::kGroupPadded <= 16 ? 1 : Config::kGroupPadded / 16;
  return ((1u << kWarpsOfToken) - 1) << (threadIdx.x % 32 * Config::kGroupPadded / 16);
}

// Starts the copies of keys [first, first + kKeys) of a branch into stage s and arrives on its full
// barrier. Called by a whole warp; the arrival also covers the warp's plain stores.
template <class Config>
NSAI_DEVICE void fill_stage(const NsaiBackwardQTma &p, const DqTile &at, int branch, int first,
                            u32 base, int s) {
  using R = DqPipeline<Config>;
  const u32 full = base + R::kFull + 8 * s, sK = base + R::kSStage + s * R::kStageBytes,
            sV = sK + R::K::kBytes;
  const bool compressed = branch == NSAI_BRANCH_COMPRESSED;
  const int len =
      compressed ? block_count<Config::kBlock, Config::kStride>(at.seq.kv_len) : at.seq.kv_len;
  const int row =
      (compressed ? first_block_row<Config::kStride>(p.rows.seq, at.s) : at.seq.kv_begin) + first;
  const NsaiView &k = p.rows.k[branch], &v = p.rows.v[branch];
  if (p.rows.seq.cu_q && first + R::kKeys > len) {
    copy_present_rows<R::kKeys, Config::kHeadDimQk>(sK,
                                                    (const u16 *)k.data + row * k.token_stride +
                                                        at.group * k.head_stride,
                                                    k.token_stride, len - first);
    copy_present_rows<R::kKeys, Config::kHeadDimV>(sV,
                                                   (const u16 *)v.data + row * v.token_stride +
                                                       at.group * v.head_stride,
                                                   v.token_stride, len - first);
    barrier_arrive(full);
  } else if (threadIdx.x % 32) {
    barrier_arrive(full);
  } else {
    barrier_arrive_expecting(full, R::kStageBytes);
    tma_load_panels<Config::kHeadDimQk>(sK, p.k[branch], full, R::kKeys, box_head(k, at.group),
                                        row);
    tma_load_panels<Config::kHeadDimV>(sV, p.v[branch], full, R::kKeys, box_head(v, at.group), row);
  }
}

template <class Config, bool kJoins>
NSAI_DEVICE void produce_keys(const NsaiBackwardQTma &p, unsigned char *shared, u32 base) {
  using R = DqPipeline<Config>;
  const int lane = threadIdx.x % 32;
  PipelineState<R::kStages> step;
  for_dq_tiles<Config>(p, [&](const DqTile &at) {
    using Walk = DqKeyWalk<Config, kJoins>;
    Walk walk(p, at);
    for (bool last = false; !last; step.advance()) {
      const int s = step.stage, first = walk.first, branch = walk.branch_at_hand();
      const bool any = first != Walk::kNever;
      u64 listed = 0;
      const u64 bits = any ? walk.take(listed) : 0;
      last = walk.first == Walk::kNever;
      const bool exists = R::kTokens == 32 || lane < R::kTokens;
      const u32 mine = exists ? warps_of_lane<Config>() : 0;
      const u32 seen = __reduce_or_sync(~0u, bits | listed ? mine : 0);
      const u32 partly = __reduce_or_sync(~0u, ~bits ? mine : 0);
      const u32 window_selected = Walk::kCanJoin ? __reduce_or_sync(~0u, listed ? mine : 0) : 0;
      barrier_wait(base + R::kEmpty + 8 * s, step.phase ^ 1); // released by all consumer warps
      if (exists) {
        ((u64 *)(shared + R::kSBits))[s * R::kTokens + lane] = bits;
        if (Walk::kCanJoin) ((u64 *)(shared + R::kSListed))[s * R::kTokens + lane] = listed;
      }
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

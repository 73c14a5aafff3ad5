// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Tiles of query rows and the keys of every branch that they see, loaded into shared memory by TMA
// (sm_90a), for backward_dq_tma and backward_row_stats_tma. Two consumer warpgroups of 64 rows each
// share a tile of 128 rows and its keys.
//
// Tiles: kTokens tokens of one KV head, head-major, longest first. Persistent CTAs: each takes
// every gridDim.x-th tile, and every other round of the grid runs backwards, so that no CTA gets
// the longer tile each time.
//
// Rows: Q [2][64, Dk] and dO [2][64, Dv] of the current tile, and RowStatistics [3][128] of the
// branches; row r is head r % kGroupPadded of token r / kGroupPadded. One warp loads them as soon
// as the consumers have finished with the previous tile.
//
// Keys: kStages stages of kKeys keys on a fixed grid. Another warp fills them and runs ahead into
// the next tile. In the compressed and window branch they cover the range that the tile's tokens
// see, in the selected branch the merged lists of the tokens. A stage holds
//
//   K, V     [kKeys, Dk], [kKeys, Dv]: panels (core/tma.cuh)
//   bits     u64 [kTokens]: the keys that each token sees
//   seen     u32. Bit w: a token of consumer warp w sees at least one key. From kBranchShift on:
//            the branch. kLast: last stage of the tile
//   partly   u32. Bit w: a token of warp w does not see all keys
//   listed   u64 [kTokens], for a window tile: the keys of it that are on each token's list
//   window_selected
//            u32. Bit w: a token of warp w has such keys
//
// If window and selected branch share K and V, selected blocks within the window therefore need no
// products of their own (backward_dq_tma). A tile whose rows see no key has a single stage that no
// warp sees and that holds no copy.
//
// The stages' barriers are addressed here and not through core/pipeline.cuh's Barriers, with which
// the machine code of backward_row_stats_tma differs (NVRTC 13.0; not timed).
//
// Rows of K and V behind a sequence's end may hold anything if another sequence follows; such key
// tiles are copied row by row, with zeros behind the end.
//
// Config: kHeadDimQk, kHeadDimV, kGroup, kGroupPadded (4 .. 64), kKeys (64), kStages, kThreads,
// kMinBlocks, kSharedBytes, kBlock (l), kStride (d), kWindow (w; 0: no such branch), kSelectBlock
// (l'), kSelectCount (n; 0: no such branch), kRanges.
#pragma once
#include "backward/products.cuh"
#include "core/barrier.cuh"
#include "core/launch.cuh"
#include "data/key_range.cuh"
#include "data/list_cursor.cuh"
#include "data/sequence.cuh"
#include "data/tile_position.cuh"

template <class Config> struct DqPipeline {
  static constexpr int kWarps = 8; // consumer warps
  static constexpr int kRows = 128, kKeys = Config::kKeys, kStages = Config::kStages;
  static constexpr int kTokens = kRows / Config::kGroupPadded; // per tile
  static constexpr int kBoxTokens = 64 / Config::kGroupPadded; // per warpgroup
  static constexpr int kN = kKeys / 8;                         // n8 tiles of S
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk),
                       kColsV = padded_dim(Config::kHeadDimV);
  using Q = PanelTile<64, kColsQk>;
  using DO = PanelTile<64, kColsV>;
  using K = PanelTile<kKeys, kColsQk>;
  using V = PanelTile<kKeys, kColsV>;

  // The launch gives 168 registers to each thread; the producer warpgroup hands its surplus to the
  // consumers.
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

  // Shared memory layout: offsets in bytes.
  static constexpr int kSQ = 0, kSDO = kSQ + 2 * Q::kBytes, kSStage = kSDO + 2 * DO::kBytes;
  static constexpr int kStageBytes = K::kBytes + V::kBytes;            // K, then V
  static constexpr int kSStatistics = kSStage + kStages * kStageBytes; // [3][kRows]
  static constexpr int kSBits = kSStatistics + NSAI_BRANCH_COUNT * kRows * 16;
  static constexpr int kSListed = kSBits + 8 * kStages * kTokens;
  static constexpr int kSSeen = kSListed + 8 * kStages * kTokens, kSPartly = kSSeen + 4 * kStages,
                       kSWindowSelected = kSPartly + 4 * kStages;
  static constexpr int kFull = (kSWindowSelected + 4 * kStages + 7) / 8 * 8; // barrier: filled
  static constexpr int kEmpty = kFull + 8 * kStages; // barrier: stage is free
  static constexpr int kRowsFull = kEmpty + 8 * kStages, kRowsEmpty = kRowsFull + 8;
  static constexpr int kBytes = kRowsEmpty + 8;

  static constexpr bool kCanJoin = Config::kWindow > 0 && Config::kSelectCount > 0;
  static constexpr int kBranchShift = 8;
  static constexpr u32 kLast = 1u << 31;

  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
  static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0,
                "tensor maps need strides of whole 16 bytes");
  static_assert(Config::kGroupPadded >= 4 && Config::kGroupPadded <= 64,
                "each token has its own lane, and a warpgroup holds whole tokens");
  static_assert(kKeys == 64, "the keys of a stage are the bits of a word");
  static_assert(kStages >= 3, "one stage is held, one is read and one is filled");
  static_assert(Config::kThreads == 384, "two consumer warpgroups and one producer warpgroup");
};

// A tile of query rows.
struct DqTile {
  Sequence seq;
  int s;           // sequence
  int first_query; // within the sequence
  int group;       // KV head
  int tokens;      // of the tile
  int position;    // of the first token; negative before the sequence's first key
};

// Calls take(tile) for every tile of this CTA.
template <class Config, class Take>
NSAI_DEVICE void for_dq_tiles(const NsaiBackwardQTma &p, Take take) {
  using R = DqPipeline<Config>;
  const int per_head = p.tiles / p.rows.kv_heads;
  int cta = blockIdx.x;
  for (int round = 0; round < p.tiles; round += gridDim.x) {
    const int index = round + cta;
    cta = gridDim.x - 1 - cta;
    if (index >= p.tiles) continue;
    const int group = index / per_head;
    const QueryTile at =
        find_query_tile<R::kTokens>(p.rows.seq, per_head - 1 - (index - group * per_head));
    const DqTile tile = { at.seq,
                          at.s,
                          at.first_query,
                          group,
                          min(R::kTokens, at.seq.q_len - at.first_query),
                          at.seq.position(at.first_query) };
    if (tile.tokens > 0 && tile.first_query >= 0) take(tile);
  }
}

// Initialises the barriers. One thread, before any other uses them.
template <class Config> NSAI_DEVICE void init_dq_pipeline(u32 base) {
  using R = DqPipeline<Config>;
  for (int s = 0; s < R::kStages; ++s) {
    barrier_init(base + R::kFull + 8 * s, 32);
    barrier_init(base + R::kEmpty + 8 * s, 32 * R::kWarps); // all lanes arrive: racecheck needs it
  }
  barrier_init(base + R::kRowsFull, 32);
  barrier_init(base + R::kRowsEmpty, 32 * R::kWarps);
  barrier_init_fence();
}

// ---- rows, by one producer warp

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
    if (kKnown && lane < at.tokens)
#pragma unroll
      for (int b = 0; b < NSAI_BRANCH_COUNT; ++b)
        if (rows.branches >> b & 1)
          bulk_load(base + R::kSStatistics + 16 * (b * R::kRows + lane * Config::kGroupPadded),
                    (const RowStatistics *)rows.statistics +
                        statistics_at(b, rows.seq.q_tokens, first + lane, heads, head),
                    full, 16 * Config::kGroup);
    if (lane) barrier_arrive(full);
  });
}

// ---- keys, by another producer warp

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

// ---- consumers

// Q of the warpgroup's 64 rows: in registers as fragments, if they fit beside dQ. A product that
// reads Q and K from shared memory spends as long on the reads as on the product.
template <class Config> struct DqQuery {
  using R = DqPipeline<Config>;
  static constexpr bool kHeld = R::kColsQk <= 128;
  static constexpr int kSteps = R::kColsQk / 16;
  u32 sQ;
  u32 rQ[kHeld ? kSteps : 1][4]; // [64, Dk]

  NSAI_DEVICE DqQuery(u32 base) {
    sQ = base + R::kSQ + warp_uniform(threadIdx.x / 128) * R::Q::kBytes;
    if constexpr (kHeld) {
      const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        ldmatrix_x4(rQ[i], sQ + R::Q::offset(row, 2 * i + lane / 16));
    }
  }

  // Issues S = Q K^T of a stage: s [64, kKeys].
  NSAI_DEVICE void start(float (&s)[R::kN][4], u32 sK) const {
    using E = typename Config::Element;
    if constexpr (kHeld) {
      const u64 k = wgmma_k_major(sK);
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        wgmma_qk<E, R::kKeys>(s[0], rQ[i], k + wgmma_k_step<R::kKeys>(i), i > 0);
    } else {
      start_rows<E, typename R::Q, typename R::K, Config::kHeadDimQk>(s, sQ, sK);
    }
  }
};

// How a warpgroup walks through the stages; uniform over its threads.
template <class Config> struct DqStageReader {
  using R = DqPipeline<Config>;
  const unsigned char *shared;
  u32 base;
  PipelineState<R::kStages> step; // next stage
  u32 seen = 0;                   // flags of the last stage

  NSAI_DEVICE void release(int stage) { barrier_arrive(base + R::kEmpty + 8 * stage); }

  // Returns the next stage that the warpgroup's rows see, among the next `most` stages of the tile;
  // -1 if there is none.
  NSAI_DEVICE int find(int most) {
    const int group = warp_uniform(threadIdx.x / 128);
    for (; most > 0 && !(seen & R::kLast); --most) {
      const int s = warp_uniform(step.stage);
      barrier_wait(base + R::kFull + 8 * s, step.phase); // filled by the producer
      seen = warp_uniform(((const u32 *)(shared + R::kSSeen))[s]);
      step.advance();
      if (seen >> (4 * group) & 15) return s;
      release(s);
    }
    return -1;
  }
};

// The kernel body; consume(shared, base) is the loop of a consumer warp. kKnown: rows come with
// their statistics. kJoins: see DqKeyWalk.
template <class Config, bool kKnown, bool kJoins, class Consume>
NSAI_DEVICE void run_dq_pipeline(const NsaiBackwardQTma &p, Consume consume) {
  using R = DqPipeline<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const u32 base = shared_address(shared_bytes);
  if (threadIdx.x == 0) init_dq_pipeline<Config>(base);
  begin_kernel();
  __syncthreads(); // barriers are initialised
  const int warp = warp_uniform(threadIdx.x / 32);
  if (warp >= R::kWarps) {
    registers_drop<R::kProducerRegisters>();
    if (warp == R::kWarps) produce_keys<Config, kJoins>(p, shared_bytes, base);
    if (warp == R::kWarps + 1) produce_rows<Config, kKnown>(p, base);
  } else {
    registers_raise<R::kConsumerRegisters>();
    consume(shared_bytes, base);
  }
}

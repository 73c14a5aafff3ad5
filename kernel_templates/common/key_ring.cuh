// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The KV-stationary half of the backward pass by two warpgroups and the copy engine (sm_90a): what
// common/gradient_keys.cuh computes, for backward_compressed_tma, backward_selected_tma and
// backward_window_tma, which differ in the tile's rows (`Rows`, common/key_tiles.cuh).
//
// CTA      Two warpgroups of consumers with dK and dV of 64 keys each in registers, and one of which a
//          warp asks for boxes and another tells what is known of each row. Query rows pass by in
//          stages of 64: row r is head r % G of token r / G of those that see the keys.
// kKeys    128: each warpgroup has 64 keys of its own, and both read every stage.
//          64: both have the same keys, and each reads every other stage; at the end their sums are
//          added, the first one's first.
// Shared   K [kKeys, Dk] | V [kKeys, Dv] | kStages * (Q [64, Dk] | dO [64, Dv]) |
//          kStages * (LSE, u (and gates) of pairs of rows | u32 [64]: which keys the row sees | u32:
//          what all rows see)
//
// Of a stage S and dU are multiplied behind the products of the stage before, which so run beside its
// exponentials:
//
//   S(i) | dU(i)    | dV(i) dK(i) | S(i+1) | dU(i+1) ...
//          P'(i)    dS(i)                    P'(i+1)
//
// Rows that do not exist, behind the last, have Q = dO = 0 and see no key; stages that have such are
// copied row by row.
//
// kJoins   1, of backward_window_tma: where p.joined, blocks that are on a token's list and begin within its
//          window are of both branches here, by the same S and dU: the row has the statistics of the sum.
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup (1 .. 64, a power of two; of backward_selected_tma 4
//   and more), kKeys (64, 128), kStages,
//   kThreads, kMinBlocks, kSharedBytes, kGate, kEntries, kJoins, kBlock (l), kStride (d),
//   kWindow (w), kSelectBlock (l'), kSelectCount (n).
#pragma once
#include "common/barrier.cuh"
#include "common/gradient.cuh"
#include "common/key_tiles.cuh"
#include "common/launch.cuh"
#include "common/union_rows.cuh"

template <class Config> struct KeyRing {
  static constexpr int kRows = 64, kStages = Config::kStages;
  static constexpr int kTiles = Config::kKeys / 64;     // of 64 keys
  static constexpr int kTokens = kRows / Config::kGroup; // of a stage
  static constexpr int kN = kRows / 8;                   // n8 tiles of S^T
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk),
                       kColsV = padded_dim(Config::kHeadDimV);
  using K = PanelTile<Config::kKeys, kColsQk>;
  using V = PanelTile<Config::kKeys, kColsV>;
  using Q = PanelTile<kRows, kColsQk>;
  using DO = PanelTile<kRows, kColsV>;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240; // of 3 * 168

  // Shared memory, offsets in bytes.
  static constexpr int kSK = 0, kSV = kSK + K::kBytes, kSStage = kSV + V::kBytes;
  static constexpr int kStageBytes = Q::kBytes + DO::kBytes; // Q, then dO
  static constexpr int kSKnown = kSStage + kStages * kStageBytes;
  // Within what is known of a stage: float2 (LSE, u) of each row, with kJoins for each tile of keys; its
  // gate, which keys it sees; u32 [kTiles]: what all rows see.
  static constexpr int kKnownWarps = Config::kJoins ? kTiles : 1;
  static constexpr int kGates = 8 * kRows * kKnownWarps, kSeen = kGates + 4 * kRows,
                       kAll = kSeen + 4 * kRows;
  static constexpr int kKnownBytes = kAll + 16;
  static constexpr int kFull = kSKnown + kStages * kKnownBytes; // barrier: can be read
  static constexpr int kEmpty = kFull + 8 * kStages;            // barrier: can be filled
  static constexpr int kKeysFull = kEmpty + 8 * kStages;        // barrier: K and V are there
  static constexpr int kSListed = kKeysFull + 8; // u8 [kKnownWarps][kTokens]: kJoins
  static constexpr int kBytes = kSListed + (Config::kJoins ? kKnownWarps * kTokens : 0);
  static constexpr int kSumBytes = 64 * (kColsQk + kColsV) * 4; // of a warpgroup

  static_assert(kBytes == Config::kSharedBytes, "the host's formula for shared memory");
  static_assert(kTiles == 1 || kTiles == 2, "two warpgroups");
  static_assert(Config::kThreads == 384, "two warpgroups of consumers and the producers'");
  static_assert(kTokens * Config::kGroup == kRows, "a stage holds whole tokens");
  static_assert(!Config::kEntries || kTokens <= 16, "a lane for each token of a list");
  static_assert(kTiles == 2 || kStages * kStageBytes >= kSumBytes, "the stages hold the sums");
  static_assert(!Config::kJoins || (kTiles == 2 && Config::kSelectBlock % 64 == 0 && kGateInLse<Config>),
                "a tile of keys lies in one block, and gates are never negative");
  static_assert(kStages >= 3, "each warpgroup may hold one while another is filled");
};

// Words of kAll: some row sees a key of the tile; not every row sees all of them.
constexpr u32 kSomeSeen = 1, kPartlySeen = 2;

template <class Config> NSAI_DEVICE void init_key_ring(u32 base) {
  using R = KeyRing<Config>;
  for (int s = 0; s < R::kStages; ++s) {
    barrier_init(base + R::kFull + 8 * s, 32 + 32 * R::kKnownWarps); // all producer warps
    barrier_init(base + R::kEmpty + 8 * s, 128 * R::kTiles);
  }
  barrier_init(base + R::kKeysFull, 1);
  barrier_init_fence();
}

// The stages of a tile's rows, in the order in which they come: take(first token).
template <class Config, class Take> NSAI_DEVICE void for_stages(const KeyTile &tile, Take take) {
  constexpr int kTokens = KeyRing<Config>::kTokens;
  const int stages = ceil_div(tile.tokens, kTokens);
  int stage = tile.turn / kTokens;
#pragma unroll 1
  for (int i = 0; i < stages; ++i) {
    take(stage * kTokens);
    if (++stage == stages) stage = 0;
  }
}

// ---- producers: a warp each

// Rows [0, present) of a stage of a tensor, zeros behind; visible to products on return.
template <class Config, int kDim, class Rows>
NSAI_DEVICE void copy_rows(u32 to, const NsaiView &x, const Rows &rows, int head, int first, int present) {
  constexpr int kRows = KeyRing<Config>::kRows, kChunks = panels(kDim) * 8;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < kRows * kChunks; i += 32) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool is = row < present && chunk * 8 < kDim;
    const long long token = is ? rows.token(first + row / Config::kGroup) : 0;
    copy_async_16(to + chunk / 8 * kRows * kPanelPitch + panel_offset(row, chunk),
                  (const u16 *)x.data + token * x.token_stride +
                      (head * Config::kGroup + row % Config::kGroup) * x.head_stride + chunk * 8,
                  is);
  }
}

// Boxes of the tokens of a stage: one where they lie side by side, else one for each.
template <class Config, int kDim, class Rows>
NSAI_DEVICE void load_boxes(u32 to, const NsaiTensorMap &map, u32 barrier, const Rows &rows, int head,
                            int first) {
  using R = KeyRing<Config>;
  if constexpr (Rows::kBranch != NSAI_BRANCH_SELECTED) {
    if (threadIdx.x % 32 == 0)
      tma_load_panels<kDim>(to, map, barrier, R::kRows, head * Config::kGroup, rows.token(first));
  } else {
    const int token = threadIdx.x % 32;
    if (token < R::kTokens)
#pragma unroll
      for (int i = 0; i < panels(kDim); ++i)
        tma_load(to + (i * R::kRows + token * Config::kGroup) * kPanelPitch, map, barrier,
                 i * kPanelColumns, head * Config::kGroup, rows.token(first + token));
  }
}

template <class Config, class Rows>
NSAI_DEVICE void produce_boxes(const NsaiBackwardKvTma &p, const KeyTile &tile, const Rows &rows, u32 base) {
  using R = KeyRing<Config>;
  const NsaiBackwardKv &kv = p.kv;
  if (threadIdx.x % 32 == 0) {
    const u32 full = base + R::kKeysFull;
    barrier_arrive_expecting(full, R::K::kBytes + R::V::kBytes);
    tma_load_panels<Config::kHeadDimQk>(base + R::kSK, p.k, full, Config::kKeys, box_head(kv.k, tile.head),
                                        (int)tile.key_row);
    tma_load_panels<Config::kHeadDimV>(base + R::kSV, p.v, full, Config::kKeys, box_head(kv.v, tile.head),
                                       (int)tile.key_row);
  }
  RingStep<R::kStages> step;
  for_stages<Config>(tile, [&](int first) {
    const u32 full = base + R::kFull + 8 * step.stage,
              sQ = base + R::kSStage + step.stage * R::kStageBytes, sDO = sQ + R::Q::kBytes;
    barrier_wait(base + R::kEmpty + 8 * step.stage, step.parity ^ 1); // by its readers
    if (first + R::kTokens <= tile.tokens) {
      if (threadIdx.x % 32 == 0) barrier_arrive_expecting(full, R::kStageBytes);
      __syncwarp(); // the bytes to come are known
      load_boxes<Config, Config::kHeadDimQk>(sQ, p.q, full, rows, tile.head, first);
      load_boxes<Config, Config::kHeadDimV>(sDO, p.d_o, full, rows, tile.head, first);
      if (threadIdx.x % 32) barrier_arrive(full);
    } else {
      const int present = (tile.tokens - first) * Config::kGroup;
      copy_rows<Config, Config::kHeadDimQk>(sQ, kv.q, rows, tile.head, first, present);
      copy_rows<Config, Config::kHeadDimV>(sDO, kv.d_o, rows, tile.head, first, present);
      copy_async_commit();
      copy_async_wait<0>();
      shared_proxy_fence();
      barrier_arrive(full);
    }
    step.advance();
  });
}

// What is known of a lane's two rows of a stage.
struct KnownRows {
  float4 x[2]; // RowStatistics
  u32 seen[2];
};

// The window's statistics of a row become those of its sum with the selected branch, of keys that it sees
// in both: P' + P'_sel = 2^(S - LSE), dS + dS_sel = (P' + P'_sel) (dU - u) with LSE and u of the sum.
NSAI_DEVICE void join_statistics(float4 &x, const float4 &y) {
  const float low = fminf(x.x, y.x);
  if (low == kPlusInf) return; // neither sees a key
  const float a = exp2_approx(low - x.x), b = exp2_approx(low - y.x), sum = a + b;
  x.z = (a * x.z + b * y.z) / sum;
  x.x = low - log2_approx(sum);
}

// Which tokens of a stage have the block of tile t on their lists, and begin to see it within their
// windows: those leave it to the window's kernel (NsaiInvert.near). sListed [kTokens], by a warp.
template <class Config, class Rows>
NSAI_DEVICE void find_listed(const NsaiBackwardKv &p, const KeyTile &tile, const Rows &rows, int first,
                             int t, unsigned char *sListed) {
  using R = KeyRing<Config>;
  const int lane = threadIdx.x % 32, wanted = (rows.first_key + 64 * t) / Config::kSelectBlock;
  __syncwarp(); // those of the stage before have been read
  for (int i = lane; i < R::kTokens; i += 32) sListed[i] = 0;
  __syncwarp();
#pragma unroll 2
  for (int i = lane; i < R::kTokens * Config::kSelectCount; i += 32) {
    const int place = i / Config::kSelectCount, token = first + place;
    if (token >= tile.tokens) break;
    const int block = p.lists[rows.token(token) * p.list_token_stride +
                              tile.head * p.list_head_stride + i % Config::kSelectCount];
    const int ahead = rows.seq.position(rows.first_query + token) - wanted * Config::kSelectBlock;
    if (block == wanted && ahead >= 0 && ahead < Config::kWindow) sListed[place] = 1;
  }
  __syncwarp();
}

template <class Config, class Rows>
NSAI_DEVICE void load_known(KnownRows &known, const NsaiBackwardKv &p, const KeyTile &tile,
                            const Rows &rows, int first, int t, unsigned char *sListed) {
  if constexpr (Config::kJoins)
    if (p.joined) find_listed<Config>(p, tile, rows, first, t, sListed);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = threadIdx.x % 32 + 32 * i, token = first + row / Config::kGroup;
    known.x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    known.seen[i] = 0;
    if (token >= tile.tokens) continue;
    auto load = [&](int branch) {
      return ((const float4 *)p.statistics)[statistics_at(
          branch, p.seq.q_tokens, rows.token(token), Config::kGroup * p.kv_heads,
          tile.head * Config::kGroup + row % Config::kGroup)];
    };
    known.x[i] = load(Rows::kBranch);
    known.seen[i] = rows.seen(token);
    if constexpr (Config::kJoins)
      if (p.joined && sListed[row / Config::kGroup])
        join_statistics(known.x[i], load(NSAI_BRANCH_SELECTED));
  }
}

// Of tile t of 64 keys: a word of kAll.
template <class Config> NSAI_DEVICE u32 seen_of_tile(const KnownRows &known, int t) {
  bool some = false, all = true;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int begin = (int)(known.seen[i] & 0xffff), end = (int)(known.seen[i] >> 16);
    some |= max(begin, 64 * t) < min(end, 64 * t + 64);
    all &= begin <= 64 * t && end >= 64 * t + 64;
  }
  return (__any_sync(~0u, some) ? kSomeSeen : 0) | (__all_sync(~0u, all) ? 0 : kPartlySeen);
}

// By kKnownWarps warps; warp t > 0 for tile t alone.
template <class Config, class Rows>
NSAI_DEVICE void produce_known(const NsaiBackwardKv &p, const KeyTile &tile, const Rows &rows,
                               unsigned char *shared, u32 base, int t) {
  using R = KeyRing<Config>;
  unsigned char *sListed = shared + R::kSListed + t * R::kTokens; // [kTokens]
  RingStep<R::kStages> step;
  KnownRows known;
  auto store = [&]() {
    const u32 to = base + R::kSKnown + step.stage * R::kKnownBytes;
    u32 all[R::kTiles];
#pragma unroll
    for (int i = 0; i < R::kTiles; ++i) all[i] = seen_of_tile<Config>(known, i);
    barrier_wait(base + R::kEmpty + 8 * step.stage, step.parity ^ 1); // by its readers
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = threadIdx.x % 32 + 32 * i;
      store_shared_word(to + 8 * (t * R::kRows + row), __float_as_uint(known.x[i].x));
      store_shared_word(to + 8 * (t * R::kRows + row) + 4, __float_as_uint(known.x[i].z));
      if (t > 0) continue;
      if constexpr (!kGateInLse<Config>)
        store_shared_word(to + R::kGates + 4 * row, __float_as_uint(known.x[i].y));
      store_shared_word(to + R::kSeen + 4 * row, known.seen[i]);
    }
    if (threadIdx.x % 32 == 0 && t == 0)
#pragma unroll
      for (int i = 0; i < R::kTiles; ++i) store_shared_word(to + R::kAll + 4 * i, all[i]);
    barrier_arrive(base + R::kFull + 8 * step.stage);
    step.advance();
  };
  bool any = false;
  for_stages<Config>(tile, [&](int first) {
    if (any) store(); // the stage before: what is loaded now arrives while this one waits
    load_known<Config>(known, p, tile, rows, first, t, sListed);
    any = true;
  });
  if (any) store();
}

// ---- consumers

// S^T [16 keys, 8 rows] from row `first` on becomes P'. `rows`: LSE and u of the stage's. kMasked 0: every
// row sees every key.
template <class Config, bool kMasked>
NSAI_DEVICE void ring_probability(float (&s)[4], u32 rows, u32 known, int first, int key,
                                  float scale_log2) {
  using R = KeyRing<Config>;
  const int row = first + 2 * (threadIdx.x & 3);
  const Chunk x = load_shared(rows + 8 * row); // LSE, u of two rows
  uint2 gate = make_uint2(0, 0), seen = make_uint2(0, 0);
  if constexpr (!kGateInLse<Config>) gate = load_shared_pair(known + R::kGates + 4 * row);
  if constexpr (kMasked) seen = load_shared_pair(known + R::kSeen + 4 * row);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const u32 range = c ? seen.y : seen.x;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float e = gated_probability<Config>(s[2 * r + c], scale_log2, __uint_as_float(x.w[2 * c]),
                                                __uint_as_float(c ? gate.y : gate.x));
      const bool sees =
          !kMasked || (key + 8 * r >= (int)(range & 0xffff) && key + 8 * r < (int)(range >> 16));
      s[2 * r + c] = sees ? e : 0.0f;
    }
  }
}

// dU becomes dS.
template <class Config>
NSAI_DEVICE void ring_score_gradient(float (&du)[4], const float (&s)[4], u32 rows, int first) {
  const Chunk x = load_shared(rows + 8 * (first + 2 * (int)(threadIdx.x & 3)));
#pragma unroll
  for (int c = 0; c < 2; ++c)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      du[2 * r + c] = s[2 * r + c] * (du[2 * r + c] - __uint_as_float(x.w[2 * c + 1]));
}

// dK and dV of the warpgroup's 64 keys, zeros before.
template <class Config, int kK, int kV>
NSAI_DEVICE void multiply_keys(float (&dk)[kK][4], float (&dv)[kV][4], int stages, u32 base,
                               float scale_log2) {
  using R = KeyRing<Config>;
  using E = typename Config::Element;
  const int group = warp_uniform(threadIdx.x / 128), tile = R::kTiles == 2 ? group : 0;
  const int key = 64 * tile + recomputed(threadIdx.x) % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const u32 sK = base + R::kSK + 64 * tile * kPanelPitch, sV = base + R::kSV + 64 * tile * kPanelPitch;
  float s[R::kN][4], du[R::kN][4]; // [64 keys, kRows]
  RingStep<R::kStages> step;
  int held = -1; // the stage whose products are still on their way
  auto release = [&](int stage) { barrier_arrive(base + R::kEmpty + 8 * stage); };
  int i = 0;
  if (R::kTiles == 1 && group == 1) { // the other one's
    ++i;
    step.advance();
  }
  barrier_wait(base + R::kKeysFull, 0);
  hold(dk);
  hold(dv);
  for (; i < stages; i += R::kTiles == 1 ? 2 : 1) {
    const int now = warp_uniform(step.stage);
    const u32 sQ = base + R::kSStage + now * R::kStageBytes, sDO = sQ + R::Q::kBytes;
    const u32 known = base + R::kSKnown + now * R::kKnownBytes;
    const u32 in_rows = known + (R::kKnownWarps > 1 ? 8 * R::kRows * tile : 0);
    barrier_wait(base + R::kFull + 8 * now, step.parity); // by the producers
    step.advance();
    if (R::kTiles == 1) step.advance();
    const u32 all = warp_uniform(load_shared_word(known + R::kAll + 4 * tile));
    if (!(all & kSomeSeen)) { // nobody sees the keys: at the ends of a range
      if (held >= 0) { // else it would be the one that a later stage takes
        wgmma_wait<0>();
        hold(dv);
        hold(dk);
        release(held);
        held = -1;
      }
      release(now);
      continue;
    }
    wgmma_fence();
    start_rows<E, typename R::K, typename R::Q, Config::kHeadDimQk>(s, sK, sQ);
    wgmma_commit();
    wgmma_wait<1>(); // for the sums of the stage before: its P' and dS make room for dU
    hold(dv);
    hold(dk);
    if (held >= 0) release(held);
    held = now;
    wgmma_fence();
    start_rows<E, typename R::V, typename R::DO, Config::kHeadDimV>(du, sV, sDO);
    wgmma_commit();
    wgmma_wait<1>();
    hold(s);
    if (all & kPartlySeen) {
#pragma unroll
      for (int j = 0; j < R::kN; ++j)
        ring_probability<Config, true>(s[j], in_rows, known, 8 * j, key, scale_log2);
    } else {
#pragma unroll
      for (int j = 0; j < R::kN; ++j)
        ring_probability<Config, false>(s[j], in_rows, known, 8 * j, key, scale_log2);
    }
    wgmma_wait<0>();
    hold(du);
    u32 rP[R::kN / 2][4], rDS[R::kN / 2][4]; // [64 keys, 16 rows] each
#pragma unroll
    for (int j = 0; j < R::kN; ++j) ring_score_gradient<Config>(du[j], s[j], in_rows, 8 * j);
    pack_all<E>(rP, s);
    pack_all<E>(rDS, du);
    wgmma_fence();
    start_fragments<E, typename R::DO>(dv, rP, sDO);
    start_fragments<E, typename R::Q>(dk, rDS, sQ);
    wgmma_commit();
  }
  wgmma_wait<0>();
  hold(dv);
  hold(dk);
}

// Columns from `column` on of the partial sums of the warpgroup's keys.
template <class Config, int kDim, int kN>
NSAI_DEVICE void store_sums(const KeyTile &tile, int first_key, int column, const float (&acc)[kN][4],
                            float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = first_key + (int)threadIdx.x % 128 / 32 * 16 + r * 8 + (int)(threadIdx.x & 31) / 4;
    float *to = tile.partial + (long long)key * kPartialWidth<Config> + column;
    for_columns<kDim>(acc, r, scale, [&](int at, const float4 &x) {
      if (key < tile.keys) *(float4 *)(to + at) = x;
    });
  }
}

// The second warpgroup's sums onto the first one's, through the stages' memory.
template <int kN> NSAI_DEVICE void leave_sums(float4 *to, const float (&acc)[kN][4]) {
#pragma unroll
  for (int j = 0; j < kN; ++j)
    to[128 * j + threadIdx.x % 128] = make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
}
template <int kN> NSAI_DEVICE void take_sums(const float4 *from, float (&acc)[kN][4]) {
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    const float4 x = from[128 * j + threadIdx.x % 128];
    acc[j][0] += x.x;
    acc[j][1] += x.y;
    acc[j][2] += x.z;
    acc[j][3] += x.w;
  }
}

template <class Config>
NSAI_DEVICE void consume_keys(const NsaiBackwardKv &p, const KeyTile &tile, unsigned char *shared, u32 base) {
  using R = KeyRing<Config>;
  constexpr int kK = R::kColsQk / 8, kV = R::kColsV / 8;
  const int group = warp_uniform(threadIdx.x / 128);
  float dk[kK][4] = {}, dv[kV][4] = {}; // [64, Dk], [64, Dv]
  multiply_keys<Config>(dk, dv, ceil_div(tile.tokens, R::kTokens), base, p.scale_log2);
  if constexpr (R::kTiles == 1) {
    float4 *sSums = (float4 *)(shared + R::kSStage); // [kK + kV][128]
    threads_sync(1, 256);                            // nobody reads the stages any more
    if (group == 1) {
      leave_sums(sSums, dk);
      leave_sums(sSums + 128 * kK, dv);
    }
    threads_sync(1, 256); // they are there
    if (group == 1) return;
    take_sums(sSums, dk);
    take_sums(sSums + 128 * kK, dv);
  }
  const int first_key = R::kTiles == 2 ? 64 * group : 0;
  store_sums<Config, Config::kHeadDimQk>(tile, first_key, 0, dk, p.scale);
  store_sums<Config, Config::kHeadDimV>(tile, first_key, Config::kHeadDimQk, dv, 1.0f);
}

// The kernel: `rows` is found for the tile of this block of threads.
template <class Config, class Rows> NSAI_DEVICE void run_key_ring(const NsaiBackwardKvTma &p) {
  using R = KeyRing<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const u32 base = shared_address(shared_bytes);
  if (threadIdx.x == 0) init_key_ring<Config>(base);
  begin_kernel();
  __syncthreads(); // barriers are there
  Rows rows;
  KeyTile tile;
  if (!find_rows<Config>(p.kv, rows, tile)) return;
  const int warp = warp_uniform(threadIdx.x / 32);
  if (warp >= 8) {
    registers_drop<R::kProducerRegisters>();
    if (warp == 8) produce_boxes<Config>(p, tile, rows, base);
    if (warp >= 9 && warp < 9 + R::kKnownWarps)
      produce_known<Config>(p.kv, tile, rows, shared_bytes, base, warp - 9);
  } else {
    registers_raise<R::kConsumerRegisters>();
    consume_keys<Config>(p.kv, tile, shared_bytes, base);
  }
}

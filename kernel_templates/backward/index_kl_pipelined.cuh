// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_index_kl_pipelined: backward_index_kl (backward/index_kl.cuh: formulas, tensors, grid) with
// warpgroups of their own for the attention's side and the index's (sm_90a).
//
//   warpgroups 0, 1   64 keys each, K in registers: S^T = K Q^T by wgmma, of stage n + 1 while P and the
//                     sums over heads of stage n are computed -> Pm of a tile, in one of two buffers
//   warpgroup 2       32 keys per warp: Si^T = Ki Qi^T, dS -> dK in registers, dQ = dS Ki -> q_partial,
//                     of the tile before
//
// The exponentials, which take as long as wgmma's products, overlap with both products. Each side copies
// what it reads: rows of Q and LSE, or Ki, Qi and what is known of the tokens.
//
// H200, MiniMax-M3, 64k tokens: 8.6 ms, backward_index_kl 13.1 ms. dQ with two products at a time: 8.8 ms.
//
// Named barriers: Pm of buffer b is complete (kFull + b), has been read (kEmpty + b); among the threads of
// each side (kTeachers, kStudents).
//
// Shared memory: nsai_smem_index_kl() of params/smem.h.
//
// Config: as in backward/index_kl.cuh, with kKeys = 128, kWarps = 8 (of the first two warpgroups), kRows =
// an even part of a tile's, kStages > 3, kMeans = 2, kWgmma = kKeyRegisters = 1, kThreads = 384.
#pragma once
#include "backward/index_kl_items.cuh"
#include "backward/index_kl_student.cuh"
#include "backward/index_kl_teacher.cuh"
#include "backward/products.cuh"
#include "core/launch.cuh"

namespace pipelined {

enum { kFull = 1, kEmpty = 3, kTeachers = 5, kStudents = 6, kRound = 7 };
constexpr int kTeacherThreads = 256, kStudentThreads = 128;
constexpr int kAllThreads = kTeacherThreads + kStudentThreads;
// 2 * 144 + 216 = 3 * 168. K is 32 of a teacher's, two stages' scores 64; dK [32, 128] 128 of a student's.
constexpr int kTeacherRegisters = 144, kStudentRegisters = 216;
constexpr int kStudentWarps = kStudentThreads / 32;

// The attention's side as backward/index_kl_teacher.cuh sees it.
template <class Base> struct TeacherConfig : Base {
  static constexpr int kThreads = kTeacherThreads;
  static_assert(Base::kThreads == kAllThreads && Base::kKeys == 128 && Base::kWgmma &&
                    Base::kKeyRegisters,
                "two warpgroups of 64 keys, whose K is in registers, and one for the index");
  static_assert(Base::kStages > 3 && Base::kMeans == 2,
                "a stage is copied while another is multiplied and a third summed");
};

// The copies of query rows: each thread has the same chunks of the same rows of every stage. What of
// their addresses does not depend on the token is computed once.
//
// Rows of no token are copies of the last token's, and those of no head of the last head's: an LSE of
// +inf makes their P 0.
template <class Config> struct RowCopies {
  using F = IndexKlTraits<Config>;
  using Lanes = CopyLanes<typename F::Q, kTeacherThreads>;
  static constexpr int kGroup = Config::kGroupPadded, kPass = Lanes::kPass;
  static_assert(kPass % kGroup == 0 || kGroup % kPass == 0, "heads repeat, or rows do");
  static_assert(Config::kRows % kPass == 0 && kPass % 8 == 0,
                "passes are whole, and their swizzle is");
  static_assert(Config::kRows <= kTeacherThreads, "one LSE per thread");
  const NsaiIndexKl &p;
  const u32 *sEntries; // [tiles * kTokens]
  int count, row;      // of the first pass
  u32 to;              // its chunk of stage 0
  const u16 *gChunk;   // of row 0 of q
  const float *gLse;   // of row 0, of the row threadIdx.x

  NSAI_DEVICE RowCopies(const NsaiIndexKl &p, const IndexItem &at, const u32 *sEntries, u32 base)
      : p(p), sEntries(sEntries), count(at.item.count), row(Lanes::row(threadIdx.x)) {
    const int chunk = Lanes::chunk(threadIdx.x), head = (p.head_begin + at.head) * Config::kGroup;
    to = F::q(base, 0) + F::Q::offset(row, chunk);
    gChunk = (const u16 *)p.q.data + head * p.q.head_stride + chunk * 8;
    gLse = p.lse + head * p.lse_head_stride;
  }

  NSAI_DEVICE long long token(int i) const { return IndexItem::token(p, sEntries[i]); }

  // Starts the copies of a part of a tile to a pipeline stage. Returns the LSE of row threadIdx.x.
  NSAI_DEVICE float start(int tile, int part, int stage) const {
    const int first = tile * F::kTokens;
    const u32 sRows = to + stage * F::Q::kBytes;
#pragma unroll
    for (int pass = 0; pass < Config::kRows / kPass; ++pass) {
      const int from_row = part * Config::kRows + pass * kPass; // of the tile
      const int head = min(from_row % kGroup + row % kGroup, Config::kGroup - 1);
      const u16 *from = gChunk + head * p.q.head_stride +
                        token(first + from_row / kGroup + row / kGroup) * p.q.token_stride;
#pragma unroll
      for (int c = 0; c < F::Q::kChunks; c += Lanes::kLanes) {
        const int chunk = c + Lanes::chunk(threadIdx.x);
        if (c + Lanes::kLanes <= F::Q::kChunks || chunk < F::Q::kChunks)
          copy_async_16(sRows + F::Q::offset(pass * kPass, c), from + c * 8,
                        chunk * 8 < Config::kHeadDimQk);
      }
    }
    const int at_row = part * Config::kRows + threadIdx.x, entry = first + at_row / kGroup;
    if (threadIdx.x >= Config::kRows || entry >= count || at_row % kGroup >= Config::kGroup)
      return kPlusInf;
    return gLse[token(entry) * p.lse_token_stride + at_row % kGroup * p.lse_head_stride];
  }
  // Stores what start() has returned, when a step between has hidden the load.
  NSAI_DEVICE void finish(u32 base, int stage, float lse) const {
    if (threadIdx.x < Config::kRows)
      store_shared_word(base + F::kSLse + stage * (4 * Config::kRows) + 4 * threadIdx.x,
                        __float_as_uint(fmaf(lse, kLog2e, -p.teacher_shift)));
  }
};

// Pm of a round's tiles.
template <class Config>
NSAI_DEVICE void teach(const NsaiIndexKl &p, const IndexItem &at, const u32 *sEntries, int first,
                       u32 base) {
  using F = IndexKlTraits<Config>;
  constexpr int kParts = F::kParts, kStages = Config::kStages;
  constexpr int kAhead = kStages - 2; // of the copies, before two stages that are in use
  const int tiles = ceil_div(at.item.count, F::kTokens);
  const RowCopies<Config> copies(p, at, sEntries, base);
  // A pipeline stage behind another.
  auto behind = [](int stage, int steps) {
    return stage + steps - (stage + steps >= kStages ? kStages : 0);
  };
  float begin[kAhead], lse[2]; // of the first stages; of parts by parity
#pragma unroll
  for (int n = 0; n < kAhead; ++n) {
    if (n / kParts < tiles) begin[n] = copies.start(n / kParts, n % kParts, n);
    copy_async_commit();
  }
  TeacherKeys<Config> keys;
  keys.load(p, at, first, min(at.item.keys - first, Config::kKeys), base);
#pragma unroll
  for (int n = 0; n < kAhead; ++n)
    if (n / kParts < tiles) copies.finish(base, n, begin[n]);

  for (int tile = 0, stage = 0; tile < tiles; ++tile) {
    float s[2][F::kM][F::kN][4]; // [64 keys, kRows] of a warpgroup: parts by parity
    // Waits for a part, starts the copies of a later one, and starts the product.
    auto start = [&](int part, int stage) {
      const int later = part + kAhead;
      copy_async_wait<kAhead - 1>();
      shared_proxy_fence();
      threads_sync(kTeachers, kTeacherThreads); // the part has arrived, that of two before is free
      keys.start(s[part % 2], base, base + F::kSQ + stage * F::Q::kBytes);
      if (tile + later / kParts < tiles)
        lse[part % 2] = copies.start(tile + later / kParts, later % kParts, behind(stage, kAhead));
      copy_async_commit();
    };
    auto finish = [&](int part, int stage) {
      if (tile + (part + kAhead) / kParts < tiles)
        copies.finish(base, behind(stage, kAhead), lse[part % 2]);
    };
    start(0, stage);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int next = behind(stage, 1);
      if (part + 1 < kParts) {
        start(part + 1, next);
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      hold(s[part % 2][0]);
      if (part == 0 && tile >= 2)
        threads_sync(kEmpty + tile % 2, kAllThreads); // from students: tile - 2 has been read
      keys.add_scores(s[part % 2], p.scale_log2, base + F::kSLse + stage * (4 * Config::kRows),
                      F::means(base, tile), part * Config::kRows);
      if (part == 0) finish(0, stage);
      if (part + 1 < kParts) finish(part + 1, next);
      stage = next;
    }
    threads_arrive(kFull + tile % 2, kAllThreads); // to students
  }
  copy_async_wait<0>();
}

// Loss and gradients of a round's tiles. Returns the thread's loss.
template <class Config>
NSAI_DEVICE float learn(const NsaiIndexKl &p, const IndexItem &at, const u32 *sEntries, int first,
                        u32 base) {
  using F = IndexKlTraits<Config>;
  using E = typename Config::Element;
  constexpr int kM = 2; // m16 tiles of keys of a warp
  const int thread = threadIdx.x - kTeacherThreads, warp = thread / 32;
  const int warp_key = 16 * kM * warp, round_keys = min(at.item.keys - first, Config::kKeys);
  const TokenStages<Config> stages = { p, at, sEntries, first, base };
  const int tiles = stages.tiles();
  TokenWords words;
  load_index_keys<Config, kStudentThreads>(p, at, first, round_keys, base, thread);
  for (int tile = 0; tile < 2; ++tile) {
    if (tile < tiles) {
      stages.template start_index<kStudentThreads>(tile, words, thread);
      stages.finish_index(tile, words, thread);
    }
    copy_async_commit();
  }
  float dk[kM][F::kIndexCols / 8][4] = {}; // [32 keys, Di]
  float loss = 0.0f;
  for (int tile = 0; tile < tiles; ++tile) {
    copy_async_wait<1>();
    threads_sync(kStudents,
                 kStudentThreads); // the tile's Qi has arrived, dS of the tile before is free
    if (tile + 2 < tiles) stages.template start_index<kStudentThreads>(tile + 2, words, thread);
    copy_async_commit();
    float s[kM][2][4]; // [32 keys, 16 tokens]
    multiply_rows<E, typename F::IndexK, typename F::IndexQ, Config::kIndexDim>(
        s, base + F::kSIndexK, warp_key, F::index_q(base, tile));
    threads_sync(kFull + tile % 2, kAllThreads); // from teachers: Pm of the tile
#pragma unroll
    for (int m = 0; m < kM; ++m) loss += compare<Config>(p, s[m], base, tile, warp_key + 16 * m);
    if (tile + 2 < tiles) threads_arrive(kEmpty + tile % 2, kAllThreads); // to teachers
    u32 x[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) softmax_pack<E>(x[m], s[m][0], s[m][1]);
    if (p.q_partial) {
#pragma unroll
      for (int m = 0; m < kM; ++m) store_scores<Config>(x[m], base, warp_key + 16 * m);
    }
    if (p.k_partial) multiply_fragments<E, typename F::IndexQ>(dk, x, F::index_q(base, tile), 0);
    if (p.q_partial) {
      threads_sync(kStudents, kStudentThreads); // dS of all keys
      multiply_scores<Config, kStudentWarps>(p, at, base, tile, first > 0, warp);
    }
    if (tile + 2 < tiles) stages.finish_index(tile + 2, words, thread);
  }
  copy_async_wait<0>();
  if (p.k_partial) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
      store_key_sums<Config>(p, at, dk[m], first, round_keys, warp_key + 16 * m);
  }
  return loss;
}

template <class Base> NSAI_DEVICE void run_item(const NsaiIndexKl &p) {
  using Config = TeacherConfig<Base>;
  using F = IndexKlTraits<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const u32 base = shared_address(shared_bytes);
  u32 *sEntries = (u32 *)(shared_bytes + F::kSEntries); // [kEntries]
  float *sLoss =
      (float *)(shared_bytes + F::kSMean); // [kStudentWarps], when Pm is no longer needed
  IndexItem at;
  if (!find_item(p, at)) return;
  at.item.count = min(at.item.count, Config::kEntries);
  const int last = at.item.count - 1;
  for (int i = threadIdx.x; i < ceil_div(at.item.count, F::kTokens) * F::kTokens; i += kAllThreads)
    sEntries[i] = at.gEntries[min(i, last)];
  if (threadIdx.x < kTeacherThreads) {
    registers_drop<kTeacherRegisters>();
    for (int first = 0; first < at.item.keys; first += Config::kKeys) {
      threads_sync(kRound, kAllThreads); // the entries; all have finished with the round before
      teach<Config>(p, at, sEntries, first, base);
    }
    return;
  }
  registers_raise<kStudentRegisters>();
  float loss = 0.0f;
  for (int first = 0; first < at.item.keys; first += Config::kKeys) {
    threads_sync(kRound, kAllThreads); // the entries; all have finished with the round before
    loss += learn<Config>(p, at, sEntries, first, base);
  }
  loss = warp_sum(loss);
  threads_sync(kStudents, kStudentThreads); // all have read Pm
  if (threadIdx.x % 32 == 0) sLoss[threadIdx.x / 32 - kTeacherThreads / 32] = loss;
  threads_sync(kStudents, kStudentThreads);
  if (threadIdx.x != kTeacherThreads) return;
  for (int warp = 1; warp < kStudentWarps; ++warp) loss += sLoss[warp];
  p.item_loss[(long long)at.head * p.item_capacity + at.number] = loss;
}

} // namespace pipelined

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_index_kl_pipelined(const __grid_constant__ NsaiIndexKl p) {
  begin_kernel();
  pipelined::run_item<Config>(p);
}

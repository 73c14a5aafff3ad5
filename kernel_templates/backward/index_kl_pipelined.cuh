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
// what it reads: rows of Q, in boxes, and LSE, or Ki, Qi and what is known of the tokens.
//
// H200, MiniMax-M3, 64k tokens: 8.4 ms, backward_index_kl 13.1 ms. In one run with it: rows of Q by cp.async,
// behind a fence for wgmma, 8.5; without a wait between tiles (the first product of a tile started during
// the last exponentials of the tile before) 8.75, and with two products of dQ at a time on top of that 8.73.
// So neither the copies of Q nor the gap between tiles is what a tile waits for.
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
#include "core/barrier.cuh"
#include "core/launch.cuh"
#include "core/tma.cuh"

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

// A pipeline stage, and the parity of the phase in which its barrier counts the boxes that arrive.
template <int kStages> struct StageOfRows {
  int stage = 0;
  u32 parity = 0;
  // Less than kStages steps on.
  NSAI_DEVICE int behind(int steps) const {
    return stage + steps - (stage + steps >= kStages ? kStages : 0);
  }
  NSAI_DEVICE void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// The query rows of a stage: a box per token and panel, of which the warps start as many each, and the
// LSE of one row per thread.
//
// Rows of no token are the last token's: an LSE of +inf makes their P 0. That of rows of no head, too,
// which clear_padding() has made 0.
template <class Config> struct RowBoxes {
  using F = IndexKlTraits<Config>;
  static constexpr int kGroup = Config::kGroupPadded,
                       kTokens = Config::kRows / kGroup; // of a stage
  static constexpr int kBoxes = kTokens * panels(Config::kHeadDimQk);
  static constexpr int kWarps = kTeacherThreads / 32, kIssuers = kBoxes < kWarps ? kBoxes : kWarps;
  static constexpr int kBoxBytes = Config::kGroup * kPanelPitch;
  static_assert(Config::kRows % kGroup == 0 && kBoxes % kIssuers == 0,
                "stages have whole tokens, warps as many boxes each");
  static_assert(Config::kRows <= kTeacherThreads, "one LSE per thread");
  const NsaiIndexKlTma &p;
  const u32 *sEntries; // [tiles * 16]
  int count, head;     // of the item; the first of q
  const float *gLse;   // of token 0, of the row threadIdx.x

  NSAI_DEVICE RowBoxes(const NsaiIndexKlTma &p, const IndexItem &at, const u32 *sEntries)
      : p(p), sEntries(sEntries), count(at.item.count),
        head((p.kl.head_begin + at.head) * Config::kGroup) {
    gLse = p.kl.lse +
           (head + min((int)threadIdx.x % kGroup, Config::kGroup - 1)) * p.kl.lse_head_stride;
  }

  static NSAI_DEVICE void init_barriers(u32 base) {
    for (int stage = 0; stage < Config::kStages; ++stage)
      barrier_init(base + F::kSArrived + 8 * stage, kIssuers);
    barrier_init_fence();
  }
  // Rows that no box has.
  static NSAI_DEVICE void clear_padding(u32 base) {
    if constexpr (kGroup != Config::kGroup) {
      for (u32 at = 16 * threadIdx.x; at < Config::kStages * F::Q::kBytes;
           at += 16 * kTeacherThreads)
        store_shared(base + F::kSQ + at, Chunk{});
      shared_proxy_fence();
    }
  }

  // Starts the boxes of a part of a tile. All warps, when the stage is free.
  NSAI_DEVICE void start(int tile, int part, int stage, u32 base) const {
    const int warp = warp_uniform(threadIdx.x / 32);
    if (warp < kIssuers && threadIdx.x % 32 == 0) {
      const u32 sRows = base + F::kSQ + stage * F::Q::kBytes,
                barrier = base + F::kSArrived + 8 * stage;
      barrier_arrive_expecting(barrier, kBoxes / kIssuers * kBoxBytes);
#pragma unroll
      for (int i = 0; i < kBoxes; i += kIssuers) {
        const int token = (warp + i) % kTokens, panel = (warp + i) / kTokens;
        const int entry = tile * F::kTokens + part * kTokens + token;
        tma_load(sRows + (panel * Config::kRows + token * kGroup) * kPanelPitch, p.q, barrier,
                 panel * kPanelColumns, head, IndexItem::token(p.kl, sEntries[entry]));
      }
    }
    __syncwarp();
  }
  // The LSE of row threadIdx.x, which finish() stores when a step between has hidden the load.
  NSAI_DEVICE float load(int tile, int part) const {
    const int entry = tile * F::kTokens + part * kTokens + threadIdx.x / kGroup;
    if (threadIdx.x >= Config::kRows || entry >= count || threadIdx.x % kGroup >= Config::kGroup)
      return kPlusInf;
    return gLse[IndexItem::token(p.kl, sEntries[entry]) * p.kl.lse_token_stride];
  }
  NSAI_DEVICE void finish(u32 base, int stage, float lse) const {
    if (threadIdx.x < Config::kRows)
      store_shared_word(base + F::kSLse + stage * (4 * Config::kRows) + 4 * threadIdx.x,
                        __float_as_uint(fmaf(lse, kLog2e, -p.kl.teacher_shift)));
  }
};

// Pm of a round's tiles; `now`: the stage of the first part.
template <class Config>
NSAI_DEVICE void teach(const NsaiIndexKlTma &p, const IndexItem &at, const u32 *sEntries, int first,
                       u32 base, StageOfRows<Config::kStages> &now) {
  using F = IndexKlTraits<Config>;
  constexpr int kParts = F::kParts;
  constexpr int kAhead =
      Config::kStages - 1; // a stage is copied before those that are on their way
  const int tiles = ceil_div(at.item.count, F::kTokens);
  const RowBoxes<Config> boxes(p, at, sEntries);
#pragma unroll
  for (int n = 0; n < kAhead; ++n) {
    if (n / kParts >= tiles) break;
    boxes.start(n / kParts, n % kParts, now.behind(n), base);
    boxes.finish(base, now.behind(n), boxes.load(n / kParts, n % kParts));
  }
  TeacherKeys<Config> keys;
  keys.load(p.kl, at, first, min(at.item.keys - first, Config::kKeys), base);

  for (int tile = 0; tile < tiles; ++tile) {
    float s[2][F::kM][F::kN][4]; // [64 keys, kRows] of a warpgroup: parts by parity
    StageOfRows<Config::kStages> issued = now;
    auto multiply = [&](int part) { // `part` of the stage `issued`
      barrier_wait(base + F::kSArrived + 8 * issued.stage, issued.parity);
      keys.start(s[part % 2], base, base + F::kSQ + issued.stage * F::Q::kBytes);
      issued.advance();
    };
    multiply(0);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part + 1 < kParts) {
        multiply(part + 1);
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      hold(s[part % 2][0]);
      // The LSE of this part is complete, and the stage before is free: it takes a later part.
      threads_sync(kTeachers, kTeacherThreads);
      const int later = part + kAhead, to = now.behind(kAhead);
      const bool copies = tile + later / kParts < tiles;
      float lse = 0.0f;
      if (copies) {
        boxes.start(tile + later / kParts, later % kParts, to, base);
        lse = boxes.load(tile + later / kParts, later % kParts);
      }
      if (part == 0 && tile >= 2)
        threads_sync(kEmpty + tile % 2, kAllThreads); // from students: tile - 2 has been read
      keys.add_scores(s[part % 2], p.kl.scale_log2,
                      base + F::kSLse + now.stage * (4 * Config::kRows), F::means(base, tile),
                      part * Config::kRows);
      if (copies) boxes.finish(base, to, lse);
      now.advance();
    }
    threads_arrive(kFull + tile % 2, kAllThreads); // to students
  }
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

template <class Base> NSAI_DEVICE void run_item(const NsaiIndexKlTma &boxes) {
  const NsaiIndexKl &p = boxes.kl;
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
    if (threadIdx.x == 0) RowBoxes<Config>::init_barriers(base);
    RowBoxes<Config>::clear_padding(base);
    StageOfRows<Config::kStages> now;
    for (int first = 0; first < at.item.keys; first += Config::kKeys) {
      threads_sync(kRound, kAllThreads); // the entries; all have finished with the round before
      teach<Config>(boxes, at, sEntries, first, base, now);
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
    backward_index_kl_pipelined(const __grid_constant__ NsaiIndexKlTma p) {
  begin_kernel();
  pipelined::run_item<Config>(p);
}

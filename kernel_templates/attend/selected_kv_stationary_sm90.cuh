// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_selected_kv_stationary_sm90: KV-stationary attention over selected blocks on wgmma
// (sm_90a). A CTA takes one block and the tokens that selected it.
//
//   partial[h, t, i] = sum over keys p of block list[t, g, i], p <= t, of
//                      softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//   lse[h, e]        = log2 sum over the same keys of 2^(scale log2(e) q . k)
//
// Here e is the position of (t, i) in the inverted list. An LSE indexed by token would need
// scattered 4-byte stores, which cost L2 as much as whole sectors (0.5 ms of the times below).
//
//   q [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv]
//
// The lists come inverted and cut into chunks (`items`) of up to kRows tokens of one block
// (data/invert_scan.cuh). attend_selected_combine turns the partial results into O.
//
// No row is computed in vain, however much the lists of adjacent tokens differ. The kernel is meant
// for few query heads per KV head, where a 64-row tile of query-stationary kernels would merge the
// lists of up to 64 tokens.
//
// Grid: x = heads * item_capacity, head-major, so that Q of one head, which is read n times, stays
// in L2 while K, V and the partial results pass through it. CTAs beyond item_counts exit at once.
//
// The CTA copies the block's K and V once and keeps them in shared memory. The warpgroups take
// tiles of 64 rows in turn; each warp reads and writes its own 16 rows, without a barrier:
//
//   Q from shared memory to registers; gather Q of the next tile; S = Q K^T; P = softmax; O = P V;
//   O to shared memory, and from there in whole rows to `partial`
//
// Rows of Q and of `partial` pass through shared memory so that a warp accesses whole lines of L2.
// (Direct register accesses of 64 bytes each are 20 % slower.)
//
// Bound by L2: at D 128 a tile reads 16 KB of Q and writes 16 KB of O, so two, three and four
// warpgroups per SM are equally fast. H200, 64k tokens, 64 heads, D 128, l' 64, n 16: 7.8 ms at G 1
// and 2, 8.1 ms at G 4, with the link between the L2 partitions 77 % busy. attend_selected_combine
// takes 5.0 to 5.3 ms, and inverting the lists 1.8 ms (G 1), 0.9 ms (G 2), 0.5 ms (G 4).
//
// Tried (same case): Q as a shared-memory operand of wgmma, with barriers, 8.3 to 8.5 ms. Chunks of
// 8k, 16k and 32k tokens, whose partial results come closer to fitting into L2, 11.2, 9.6 and
// 8.8 ms. L2 policies (Q evict_last, the rest evict_first): equal. Forced blocks computed in the
// combining kernel for 64 tokens at once: 6.5 ms here, but 6.6 ms there instead of 5.1, because it
// lacks warps that read while others compute. Local blocks in attend_window_combine_sm90: see there.
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup, kSelectBlock (l', a multiple of 16 up to 128),
// kSelectCount (n), kRows (a multiple of 64), kWarps (4, 8, 12), kThreads = 32 * kWarps,
// kMinBlocks, kSharedBytes.
#pragma once
#include "core/launch.cuh"
#include "core/mma.cuh"
#include "core/softmax.cuh"
#include "core/tile.cuh"
#include "core/tma.cuh"
#include "core/types.cuh"
#include "core/wgmma.cuh"
#include "data/inverted_lists.cuh"
#include "params/attention.h"

static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0,
              "rows are read and written 16 bytes at a time");
static_assert(Config::kSelectBlock % 16 == 0 && Config::kSelectBlock <= 128,
              "the scores of a block's keys are one product, held in registers");
static_assert(Config::kWarps % 4 == 0 && Config::kThreads == 32 * Config::kWarps,
              "whole warpgroups");
static_assert(Config::kRows % 64 == 0, "whole tiles");

// Whether P V takes P as the sum of two Elements (see kSplitP in core/softmax.cuh). `partial`
// rounds O once more, so the rounding of P is avoided whenever fewer than 128 columns average it
// out. The kernel is bound by memory, so this costs nothing.
template <class Config>
constexpr bool kSplitBlockP = Config::Element::kPrecision < 11 && Config::kHeadDimV < 128;

template <class Config> struct KernelTraits {
  static constexpr int kKeys = Config::kSelectBlock;
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk),
                       kColsV = padded_dim(Config::kHeadDimV);
  using QTile = Tile<16, kColsQk>; // of one warp
  using OTile = Tile<16, kColsV>;

  // Shared memory layout: offsets in bytes; K and V as panels (core/tma.cuh).
  static constexpr int kSK = 0;                                                 // [kKeys, Dk]
  static constexpr int kSV = kSK + nsai_panel_bytes(kKeys, Config::kHeadDimQk); // [kKeys, Dv]
  static constexpr int kSQ = kSV + nsai_panel_bytes(kKeys, Config::kHeadDimV);
  static constexpr int kSO = kSQ + Config::kWarps * QTile::kBytes; // [kWarps] OTile
  static constexpr int kSEntries = kSO + Config::kWarps * OTile::kBytes;
  static constexpr int kBytes = kSEntries + 4 * Config::kRows; // [kRows]
  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
};

// Starts the copy of the block's rows of one head. Rows beyond the sequence and columns beyond kDim
// become zero.
template <class Config, int kDim>
NSAI_DEVICE void copy_block(u32 to_shared, const NsaiView &view, const NsaiKvItem &item, int head) {
  constexpr int kRows = Config::kSelectBlock, kChunks = padded_dim(kDim) / 8;
  const u16 *gRows = (const u16 *)view.data + item.kv_row * view.token_stride +
                     head * view.head_stride; // [keys, kDim]
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kChunks; i += Config::kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    copy_async_16(to_shared + (chunk / 8 * kRows + row) * kPanelPitch + ((chunk ^ row) & 7) * 16,
                  gRows + row * view.token_stride + 8 * chunk, row < item.keys && 8 * chunk < kDim);
  }
}

// How a warp copies 16 rows of kCols columns, 16 bytes per lane and step: step i of the lane is
// chunk `chunk(i)` of row `row(i)`.
template <int kCols> struct Share {
  static constexpr int kChunks = kCols / 8, kSteps = ceil_div(16 * kChunks, 32);
  static NSAI_DEVICE int at(int i) { return 32 * i + (int)(threadIdx.x & 31); }
  static NSAI_DEVICE int row(int i) { return at(i) / kChunks; }
  static NSAI_DEVICE int chunk(int i) { return at(i) % kChunks; }
  static NSAI_DEVICE bool exists(int i) { return 32 * i + 32 <= 16 * kChunks || row(i) < 16; }
};

// Starts the gather of the warp's 16 rows of a Q tile, given their entries sEntries [16]. Padding
// entries read token 0's row.
template <class Config>
NSAI_DEVICE void gather_rows(u32 sQ, const NsaiAttendKv &p, const u16 *gHead, const u32 *sEntries) {
  using S = KernelTraits<Config>;
  using At = Share<S::kColsQk>;
  u32 rEntry[At::kSteps];
#pragma unroll
  for (int i = 0; i < At::kSteps; ++i) rEntry[i] = At::exists(i) ? sEntries[At::row(i)] : kNoEntry;
#pragma unroll
  for (int i = 0; i < At::kSteps; ++i) {
    const int token = rEntry[i] == kNoEntry ? 0 : entry_token(rEntry[i]);
    if (At::exists(i))
      copy_async_16(sQ + S::QTile::offset(At::row(i), At::chunk(i)),
                    gHead + token * p.q.token_stride + 8 * At::chunk(i),
                    8 * At::chunk(i) < Config::kHeadDimQk);
  }
}

// Loads the warp's 16 rows of Q as A fragments.
template <class Config>
NSAI_DEVICE void load_query(u32 (&rQ)[KernelTraits<Config>::kColsQk / 16][4], u32 sQ) {
  using T = typename KernelTraits<Config>::QTile;
  const int lane = threadIdx.x & 31;
  const u32 at = sQ + T::offset(lane & 15, lane >> 4);
#pragma unroll
  for (int k = 0; k < KernelTraits<Config>::kColsQk / 16; ++k)
    ldmatrix_x4(rQ[k], T::along(at, 2 * k));
}

// S = Q K^T: rS [64, kKeys], complete on return.
template <class Config>
NSAI_DEVICE void score(float (&rS)[Config::kSelectBlock / 8][4],
                       const u32 (&rQ)[KernelTraits<Config>::kColsQk / 16][4], u32 sK) {
  using S = KernelTraits<Config>;
  float *d = &rS[0][0];
  const u64 k = wgmma_k_major(sK);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < S::kColsQk / 16; ++i)
    wgmma_qk<typename Config::Element, S::kKeys>(d, rQ[i], k + wgmma_k_step<S::kKeys>(i), i > 0);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_hold((float(&)[S::kKeys / 2]) rS);
}

// Masks scores of keys that a row's token does not see: those beyond last[r] become -inf.
template <int kN> NSAI_DEVICE void mask_scores(float (&rS)[kN][4], const int (&last)[2]) {
  const int column = 2 * (threadIdx.x & 3);
#pragma unroll
  for (int j = 0; j < kN; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (8 * j + column + c % 2 > last[c / 2]) rS[j][c] = kMinusInf;
  }
}

// Softmax over each row's keys in one pass: P = 2^(scale (s - highest)), not yet divided by the
// sum.
template <int kN>
NSAI_DEVICE void softmax_block(SoftmaxRows &rows, float (&rS)[kN][4], float scale_log2) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top0 = rS[0][2 * r], top1 = rS[0][2 * r + 1]; // two dependency chains shorten the latency
#pragma unroll
    for (int j = 1; j < kN; ++j) {
      top0 = fmaxf(top0, rS[j][2 * r]);
      top1 = fmaxf(top1, rS[j][2 * r + 1]);
    }
    rows.reference[r] = fmaxf(quad_max(fmaxf(top0, top1)) * scale_log2, kNoReference);
  }
  SoftmaxRows odd = rows;
#pragma unroll
  for (int j = 0; j < kN; j += 2) {
    softmax_exponentiate(rows, rS[j], scale_log2);
    softmax_exponentiate(odd, rS[j + 1], scale_log2);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.sum[r] = lanes_sum<4>(rows.sum[r] + odd.sum[r]);
}

// O = P V: rO [64, Dv], complete on return.
template <class Config>
NSAI_DEVICE void weigh(float (&rO)[KernelTraits<Config>::kColsV / 8][4],
                       const float (&rP)[Config::kSelectBlock / 8][4], u32 sV) {
  using S = KernelTraits<Config>;
  using E = typename Config::Element;
  constexpr int kSteps = S::kKeys / 16;
  u32 a[kSteps][4]; // P
  u32 rest[kSplitBlockP<Config> ? kSteps : 1][4];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    softmax_pack<E>(a[k], rP[2 * k], rP[2 * k + 1]);
    if constexpr (kSplitBlockP<Config>)
      softmax_pack_rest<E>(rest[k], a[k], rP[2 * k], rP[2 * k + 1]);
  }
  float *d = &rO[0][0];
  const u64 v = wgmma_mn_major<S::kKeys>(sV);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    wgmma_pv<E, S::kColsV, S::kKeys>(d, a[k], v + wgmma_mn_step(k), k > 0);
    if constexpr (kSplitBlockP<Config>)
      wgmma_pv<E, S::kColsV, S::kKeys>(d, rest[k], v + wgmma_mn_step(k), 1);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_hold((float(&)[S::kColsV / 2]) rO);
}

// Row of an entry in `partial`, counted from (head, token 0, slot 0).
template <class Config> NSAI_DEVICE int slot_row(u32 entry) {
  return entry_token(entry) * Config::kSelectCount + entry_slot(entry);
}

// Stores the warp's 16 rows of O to gPartial [rows, Dv] by way of its shared-memory tile sO. Their
// entries are sEntries [16].
template <class Config>
NSAI_DEVICE void store_rows(u16 *gPartial, const float (&rO)[KernelTraits<Config>::kColsV / 8][4],
                            const SoftmaxRows &rows, u32 sO, const u32 *sEntries) {
  using E = typename Config::Element;
  using T = typename KernelTraits<Config>::OTile;
  using At = Share<KernelTraits<Config>::kColsV>;
  constexpr int kDim = Config::kHeadDimV;
  const int lane = threadIdx.x & 31;
  const float inverse[2] = { __fdividef(1.0f, rows.sum[0]), __fdividef(1.0f, rows.sum[1]) };
  const u32 to = sO + T::offset(lane & 15, lane >> 4);
#pragma unroll
  for (int j = 0; j < KernelTraits<Config>::kColsV / 8; j += 2) {
    // The four matrices: rows 0..7 and 8..15 of columns 8j.., then both of columns 8j + 8...
    const u32 c[4] = { E::pack(rO[j][0] * inverse[0], rO[j][1] * inverse[0]),
                       E::pack(rO[j][2] * inverse[1], rO[j][3] * inverse[1]),
                       E::pack(rO[j + 1][0] * inverse[0], rO[j + 1][1] * inverse[0]),
                       E::pack(rO[j + 1][2] * inverse[1], rO[j + 1][3] * inverse[1]) };
    stmatrix_x4(T::along(to, j), c);
  }
  __syncwarp();
  u32 rEntry[At::kSteps];
  Chunk rChunk[At::kSteps];
#pragma unroll
  for (int i = 0; i < At::kSteps; ++i) {
    rEntry[i] = kNoEntry;
    if (!At::exists(i)) continue;
    rEntry[i] = sEntries[At::row(i)];
    rChunk[i] = load_shared(sO + T::offset(At::row(i), At::chunk(i)));
  }
#pragma unroll
  for (int i = 0; i < At::kSteps; ++i)
    if (rEntry[i] != kNoEntry && 8 * At::chunk(i) < kDim)
      store_once(gPartial + (long long)slot_row<Config>(rEntry[i]) * kDim + 8 * At::chunk(i),
                 rChunk[i]);
  __syncwarp();
}

template <class Config> NSAI_DEVICE void attend_item(const NsaiAttendKv &p) {
  using S = KernelTraits<Config>;
  constexpr int kGroups = Config::kWarps / 4; // warpgroups
  extern __shared__ __align__(1024) unsigned char shared[];
  const u32 base = shared_address(shared);
  u32 *sEntries = (u32 *)(shared + S::kSEntries); // [kRows]
  const int head = p.head_begin + blockIdx.x / p.item_capacity;
  const int kv_head = head / Config::kGroup, list_head = p.shared_lists ? 0 : kv_head;
  const int number = blockIdx.x % p.item_capacity;
  if (number >= p.item_counts[list_head]) return;
  const NsaiKvItem item = p.items[(long long)list_head * p.item_capacity + number];

  // ---- load the block's keys and the entries
  copy_block<Config, Config::kHeadDimQk>(base + S::kSK, p.k, item, kv_head);
  copy_block<Config, Config::kHeadDimV>(base + S::kSV, p.v, item, kv_head);
  copy_async_commit();
  const unsigned *gEntries = p.entries + list_head * p.entry_capacity + item.begin; // [count]
  const int tiles = ceil_div(item.count, 64);
  for (int i = threadIdx.x; i < 64 * tiles; i += Config::kThreads)
    sEntries[i] = i < item.count ? gEntries[i] : kNoEntry;
  __syncthreads();
  const int warp = warp_uniform(threadIdx.x / 32), lane = threadIdx.x & 31;
  const u32 *sMine = sEntries + warp % 4 * 16;            // this warp's rows of tile 0
  const u32 sQ = base + S::kSQ + warp * S::QTile::kBytes; // [16, Dk]
  const u32 sO = base + S::kSO + warp * S::OTile::kBytes; // [16, Dv]
  const u16 *gHead = (const u16 *)p.q.data + p.token_begin * p.q.token_stride +
                     head * p.q.head_stride; // [tokens of the chunk, Dk]
  int tile = warp / 4;
  if (tile < tiles) gather_rows<Config>(sQ, p, gHead, sMine + 64 * tile);
  copy_async_commit();
  copy_async_wait<1>();
  shared_proxy_fence();
  __syncthreads(); // all warps' copies of K and V have arrived

  // ---- tiles
  const long long row0 =
      (long long)(head - p.head_begin) * p.chunk_tokens * Config::kSelectCount; // of `partial`
  u16 *gPartial = (u16 *)p.partial + row0 * Config::kHeadDimV;                  // [.., Dv]
  float *gLse = p.partial_lse + (head - p.head_begin) * p.entry_capacity + item.begin; // [count]
  for (; tile < tiles; tile += kGroups) {
    const u32 *sRows = sMine + 64 * tile; // [16]
    u32 rQ[S::kColsQk / 16][4];           // [64, Dk]
    copy_async_wait<0>();
    __syncwarp();
    load_query<Config>(rQ, sQ);
    __syncwarp();
    if (tile + kGroups < tiles) gather_rows<Config>(sQ, p, gHead, sRows + 64 * kGroups);
    copy_async_commit();

    float rS[S::kKeys / 8][4]; // [64, kKeys]
    score<Config>(rS, rQ, base + S::kSK);
    const u32 entry[2] = { sRows[lane / 4], sRows[lane / 4 + 8] }; // of the lane's rows
    const int last[2] = { p.token_begin + entry_token(entry[0]) + item.shift,
                          p.token_begin + entry_token(entry[1]) + item.shift };
    if (__any_sync(~0u, min(last[0], last[1]) < S::kKeys - 1)) mask_scores(rS, last);
    SoftmaxRows rows;
    softmax_block(rows, rS, p.scale_log2);
    if (lane % 4 < 2) { // lane 0 of a quad has row `group`, lane 1 row `group + 8`
      const u32 mine = lane % 2 ? entry[1] : entry[0];
      const float sum = lane % 2 ? rows.sum[1] : rows.sum[0];
      const float reference = lane % 2 ? rows.reference[1] : rows.reference[0];
      if (mine != kNoEntry)
        gLse[64 * tile + warp % 4 * 16 + lane / 4 + lane % 2 * 8] =
            sum == 0.0f ? kMinusInf : reference + log2_approx(sum);
    }
    float rO[S::kColsV / 8][4]; // [64, Dv]
    weigh<Config>(rO, rS, base + S::kSV);
    store_rows<Config>(gPartial, rO, rows, sO, sRows);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_selected_kv_stationary_sm90(const __grid_constant__ NsaiAttendKv p) {
  begin_kernel();
  attend_item<Config>(p);
}

// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_selected_sm80: each token attends to its own selection, on mma.sync and cp.async (sm_80
// and later).
//
//   O[t, h] = sum over keys p in list[t, g], p <= t, of softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//
//   q     [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv]
//   lists [T, Hkv, n] blocks of l' tokens, or [T, Hkv, n, 2] token ranges: ascending, disjoint, -1
//
// Grid: x = kv_heads * tiles, group-major, so that CTAs that run at the same time read the keys of
// one group. tiles = cu_q ? q_tokens / kTokens + num_seqs : ceil(q_tokens / kTokens)
// (data/sequence.cuh). A CTA has kTokens = 16 * kWarps / kGroupPadded adjacent tokens. A consumer
// warp has one m16 tile: 16 / kGroupPadded tokens with their heads, token-major, or 16 heads of one
// token.
//
// Merged list: keys are cut into tiles on a fixed grid of kKeys. The producer (the last warp) walks
// the merged lists of the CTA's tokens: its lanes hold cursors into the lists
// (data/list_cursor.cuh), the smallest next key of all cursors determines the next key tile, and
// every list that has keys in it advances. No list is ever stored, whatever n, l' and the alignment
// of ranges are. With each key tile the producer stores the keys that each token sees as bits
// (selection and causality combined). A consumer warp whose tokens see none of them releases the
// stage untouched; if all bits are set, nothing is masked.
//
//   producer: wait empty[s]; copy K and V; store bits; arrive full[s]
//   consumer: wait full[s]; S = Q K^T; P = softmax; O += P V; arrive empty[s]
//
// Stages s = 0 .. kStages - 1 are used in turn; a stage whose `more` flag is 0 ends the consumers.
//
// Of a cache of codes the stages hold codes, which the consumers convert (core/code_fragments.cuh).
//
// Bound by L2 reads if the lists of adjacent tokens differ (8 tokens of 16 blocks: up to 128 tiles
// of 32 KB), otherwise by ldmatrix, because every warp reads the whole key tile for its 16 rows.
// Registers: the compiler has 168 for 9 warps, and up to 255 for 8 warps (kWarps 7) or fewer.
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup, kGroupPadded (power of two >= kGroup), kWarps
// (consumers), kThreads = 32 * (kWarps + 1), kMinBlocks, kKeys (16, 32, 64), kStages (2 or more),
// kSharedBytes, kSelectBlock (l'), kSelectCount (n), kRanges (lists hold ranges), kGate; those of
// data/source.cuh.
//
// Shared memory: nsai_smem_selected_sm80() of params/smem.h.
#pragma once
#include "attend/selected_codes.cuh"
#include "core/barrier.cuh"
#include "core/code_fragments.cuh"
#include "core/copy.cuh"
#include "core/epilogue.cuh"
#include "core/launch.cuh"
#include "core/mma.cuh"
#include "core/softmax.cuh"
#include "core/tile.cuh"
#include "core/types.cuh"
#include "data/list_cursor.cuh"
#include "data/sequence.cuh"
#include "data/source.cuh"
#include "data/tile_position.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0,
              "rows are copied 16 bytes at a time");
static_assert(Config::kGroup <= Config::kGroupPadded &&
                  (Config::kGroupPadded & (Config::kGroupPadded - 1)) == 0,
              "rows are token-major over a power of two of heads");
static_assert(16 * Config::kWarps % Config::kGroupPadded == 0, "a CTA holds whole tokens");
static_assert(Config::kThreads == 32 * (Config::kWarps + 1), "one producer warp");
static_assert(Config::kStages >= 2, "a stage is filled while another is read");

// The tile position lies in shared memory and is read again after the main loop, so that it holds
// no registers during the loop.
template <class Config> struct KernelTraits {
  static constexpr int kKeys = Config::kKeys, kStages = Config::kStages, kWarps = Config::kWarps;
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk),
                       kColsV = padded_dim(Config::kHeadDimV);
  static constexpr int kTokens = 16 * kWarps / Config::kGroupPadded;

  // Q stays in registers as fragments, which saves a fifth of the shared memory reads. Beyond 320
  // columns of Q and O together the compiler would spill.
  static constexpr bool kQueryInRegisters = kColsQk + kColsV <= NSAI_SELECTED_REGISTER_COLUMNS;

  // Keys per softmax step, at most 32: with 64, the 168 registers of nine warps spill at D 128.
  static constexpr int kStepKeys = kKeys < 32 ? kKeys : 32;
  static constexpr int kParts = kKeys / kStepKeys; // steps per key tile
  static constexpr u32 kAllBits = ~0u >> (32 - kStepKeys);

  static constexpr bool kCoded = kReadsCodes<Config>;
  static constexpr int kWordsK = nsai_row_words(kCoded, Config::kHeadDimQk),
                       kWordsV = nsai_row_words(kCoded, Config::kHeadDimV);
  static_assert(!kCoded || (Config::kHeadDimQk % 16 == 0 && Config::kHeadDimV % 16 == 0),
                "a chunk of 16 bytes holds 16 codes");
  using KTile = Tile<kKeys, padded_dim(kWordsK)>;
  using VTile = Tile<kKeys, padded_dim(kWordsV)>;
  using QTile = Tile<16, kColsQk>; // of one warp

  // Shared memory layout: offsets in bytes. The buffers of the pipeline are [kStages].
  static constexpr int kSQ = 0; // [kWarps] QTile, or empty
  static constexpr int kSK = kSQ + (kQueryInRegisters ? 0 : kWarps * QTile::kBytes); // KTile
  static constexpr int kSV = kSK + kStages * KTile::kBytes;                          // VTile
  static constexpr int kBarriers = kSV + kStages * VTile::kBytes;
  static constexpr int kSBits = kBarriers + Barriers<kStages>::kBytes;   // u32 [kTokens, kParts]
  static constexpr int kSMore = kSBits + 4 * kStages * kTokens * kParts; // int: more
  static constexpr int kSPosition = kSMore + 4 * kStages;                // TilePosition
  static constexpr int kBytes = (kSPosition + (int)sizeof(TilePosition) + 15) / 16 * 16;
  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
};

// ---- producer: the walk over the lists

// How a warp shares the copy of rows: eight lanes take a row's 128 bytes, so that the warp reads
// whole lines. Narrow rows take fewer lanes.
template <int kDim> struct RowLanes {
  static constexpr int kChunks = Tile<1, padded_dim(kDim)>::kChunks;
  static constexpr int kLanes = kChunks >= 6 ? 8 : kChunks;
  static constexpr int kRows = 32 / kLanes; // rows at once
  static NSAI_DEVICE int row(int lane) { return lane / kLanes; }
  static NSAI_DEVICE int chunk(int lane) { return lane % kLanes; }
};

// Starts the copy of kCount consecutive rows into a tile from row `to` on. `gRow`: this lane's
// first chunk of them. The first row is key `first`; keys from kv_len on and columns beyond kDim
// become zero.
template <int kKeys, int kCount, int kDim>
NSAI_DEVICE void copy_rows(u32 sTile, int to, const u16 *gRow, long long stride, int first,
                           int kv_len) {
  using T = Tile<kKeys, padded_dim(kDim)>;
  using L = RowLanes<kDim>;
  const int lane = threadIdx.x & 31, chunk = L::chunk(lane);
#pragma unroll 4
  for (int r = 0; r < kCount; r += L::kRows, gRow += L::kRows * stride) {
    int row = r + L::row(lane);
    bool present = first + row < kv_len;
#pragma unroll
    for (int c = 0; c < T::kChunks; c += L::kLanes)
      if (T::kChunks % L::kLanes == 0 || c + chunk < T::kChunks)
        copy_async_16(sTile + T::offset(to + row, c + chunk), gRow + 8 * c,
                      present && 8 * (c + chunk) < kDim);
  }
}

// Rows of K or V of one sequence and head in packed tensors.
struct PackedRows {
  const NsaiView &x;
  const u16 *gRows; // [kv_len, kDim]
  // Starts the copy of keys [first, first + kKeys) into a tile.
  template <class Config, int kDim> NSAI_DEVICE void copy(u32 sTile, int first, int kv_len) const {
    using L = RowLanes<kDim>;
    const int lane = threadIdx.x & 31;
    const u16 *gRow =
        gRows + (first + L::row(lane)) * x.token_stride + 8 * L::chunk(lane); // [kDim]
    copy_rows<Config::kKeys, Config::kKeys, kDim>(sTile, 0, gRow, x.token_stride, first, kv_len);
  }
};

template <class Config>
NSAI_DEVICE Sides<PackedRows> find_sides(const NsaiAttendSelected &p, const TilePosition &at) {
  return { { p.k, (const u16 *)p.k.data + at.seq.kv_begin * p.k.token_stride +
                      at.group * p.k.head_stride },
           { p.v, (const u16 *)p.v.data + at.seq.kv_begin * p.v.token_stride +
                      at.group * p.v.head_stride } };
}

// The same in a KV cache. A key tile lies within one page or covers whole pages, because both sizes
// are powers of two.
template <class C> struct CachedTileRows {
  static constexpr int kRun = C::kPageRows && C::kPageRows < C::kKeys ? C::kPageRows : C::kKeys;
  static constexpr int kRuns = C::kKeys / kRun; // runs of consecutive rows
  const NsaiCacheTensor &x;
  CachedRows<C::kPageRows> rows;
  int group;
  template <class, int kDim> NSAI_DEVICE void copy(u32 sTile, int first, int kv_len) const {
    using L = RowLanes<kDim>;
    const int lane = threadIdx.x & 31;
    const CachedRun<C::kPageRows, C::kKeys, kRun> runs(rows, first, 0, kv_len - first);
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const u16 *gRow = (const u16 *)x.data + group * x.head_stride + runs.offset(x, i) +
                        L::row(lane) * x.row_stride + 8 * L::chunk(lane); // [kDim]
      copy_rows<C::kKeys, kRun, kDim>(sTile, i * kRun, gRow, x.row_stride, first + i * kRun,
                                      kv_len);
    }
  }
};

template <class C>
NSAI_DEVICE Sides<CachedTileRows<C>> find_sides(const NsaiCachedAttendSelected &p,
                                                const TilePosition &at) {
  const int tiles = gridDim.x / p.packed.kv_heads;
  const int s = find_query_tile<KernelTraits<C>::kTokens>(p.batch, blockIdx.x % tiles).s;
  const CachedRows<C::kPageRows> rows = find_rows<C::kPageRows>(p.batch, s, 0);
  return { { p.pair.k, rows, at.group }, { p.pair.v, rows, at.group } };
}

template <class C>
NSAI_DEVICE Sides<CachedTileRows<C>> find_sides(const NsaiCodedAttendSelected &p,
                                                const TilePosition &at) {
  return find_sides<C>(p.cached, at);
}

template <class Config, class Params>
NSAI_DEVICE void produce(const Params &params, const TilePosition &at, unsigned char *shared) {
  using S = KernelTraits<Config>;
  const NsaiAttendSelected &p = packed_of(params);
  constexpr int kLists = (S::kTokens + 31) / 32; // lists per lane: tokens lane, lane + 32, ...
  const int lane = threadIdx.x & 31;
  const u32 base = shared_address(shared);
  const auto sides = find_sides<Config>(params, at);

  ListCursor<Config> cursors[kLists];
#pragma unroll
  for (int j = 0; j < kLists; ++j) {
    int token = 32 * j + lane, query = at.first_query + token;
    const int *gList = p.lists + (at.seq.q_begin + query) * p.list_token_stride +
                       at.group * p.list_head_stride; // [n]
    cursors[j].open(gList, at.seq.position(query), token < S::kTokens && query < at.seq.q_len);
  }

  const Barriers<S::kStages> barriers = { base + S::kBarriers };
  PipelineState<S::kStages> step;
  for (;; step.advance()) {
    int least = cursors[0].begin;
#pragma unroll
    for (int j = 1; j < kLists; ++j) least = min(least, cursors[j].begin);
    const int begin = __reduce_min_sync(~0u, least);
    const bool more = begin != ListCursor<Config>::kNever;

    barriers.producer_acquire(step);
    if (more) {
      const int first = begin / S::kKeys * S::kKeys;
      sides.k.template copy<Config, S::kWordsK>(base + S::kSK + step.stage * S::KTile::kBytes,
                                                first, at.seq.kv_len);
      sides.v.template copy<Config, S::kWordsV>(base + S::kSV + step.stage * S::VTile::kBytes,
                                                first, at.seq.kv_len);
      // sBits [kTokens, kParts]
      u32 *sBits = (u32 *)(shared + S::kSBits) + step.stage * S::kTokens * S::kParts;
#pragma unroll
      for (int j = 0; j < kLists; ++j) {
        const typename ListCursor<Config>::KeyBits bits = cursors[j].take(first);
        if (32 * j + lane >= S::kTokens) continue;
#pragma unroll
        for (int part = 0; part < S::kParts; ++part)
          sBits[(32 * j + lane) * S::kParts + part] = (u32)(bits >> (32 * part));
      }
    }
    if (lane == 0) ((int *)(shared + S::kSMore))[step.stage] = more;
    barrier_arrive_after_copies(barriers.full(step.stage)); // each lane, for its own copies
    __syncwarp();
    if (lane == 0) barriers.producer_commit(step.stage); // for the warp's plain stores
    if (!more) break;
  }
  copy_async_commit();
  copy_async_wait<0>();
}

// ---- consumers

// Copies the warp's Q into its own tile of shared memory; complete on return. Padding is zero.
template <class Config>
NSAI_DEVICE void copy_query(u32 sQ, const NsaiView &q, const TilePosition &at, int warp) {
  using T = typename KernelTraits<Config>::QTile;
  for (int i = threadIdx.x & 31; i < 16 * T::kChunks; i += 32) {
    int row = i / T::kChunks, chunk = i % T::kChunks;
    OutputRow output_row = find_output_row<Config>(at, 16 * warp + row);
    const u16 *gRow = (const u16 *)q.data + output_row.token * q.token_stride +
                      output_row.head * q.head_stride; // [Dk]
    copy_async_16(sQ + T::offset(row, chunk), gRow + 8 * chunk,
                  output_row.present && 8 * chunk < Config::kHeadDimQk);
  }
  copy_async_commit();
  copy_async_wait<0>();
  __syncwarp();
}

// S = Q K^T: rS [16, kStepKeys]. Q comes from rQ, or from sQ if registers cannot hold it.
template <class Config, int kSteps>
NSAI_DEVICE void score(float (&rS)[KernelTraits<Config>::kStepKeys / 8][4],
                       const u32 (&rQ)[kSteps][4], u32 sQ, u32 sK) {
  using S = KernelTraits<Config>;
  const int lane = threadIdx.x & 31;
  const u32 q_at = sQ + S::QTile::offset(lane & 15, lane >> 4);
  const u32 k_at = sK + S::KTile::offset((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
#pragma unroll
  for (int j = 0; j < S::kStepKeys / 8; ++j) rS[j][0] = rS[j][1] = rS[j][2] = rS[j][3] = 0.0f;
  if constexpr (S::kCoded) {
    score_codes<S>(rS, rQ, q_at, k_at);
    return;
  }
#pragma unroll
  for (int k = 0; k < S::kColsQk / 16; ++k) {
    u32 a[4]; // [16, 16]
    if constexpr (S::kQueryInRegisters)
      a[0] = rQ[k][0], a[1] = rQ[k][1], a[2] = rQ[k][2], a[3] = rQ[k][3];
    else
      ldmatrix_x4(a, S::QTile::along(q_at, 2 * k));
#pragma unroll
    for (int j = 0; j < S::kStepKeys / 8; j += 2) {
      // The four matrices: keys 8j.. of columns 16k.. and 16k + 8.., then keys 8j + 8.. of both.
      u32 b[4];
      ldmatrix_x4(b, S::KTile::along(k_at, 2 * k) + 8 * j * S::KTile::kPitch);
      mma_m16n16k16(typename Config::Element{}, rS[j], rS[j + 1], a, b);
    }
  }
}

// Masks scores of keys that the row's token does not see to -inf; bits[r] belongs to the lane's row
// r.
template <int kN> NSAI_DEVICE void mask_scores(float (&rS)[kN][4], const u32 (&bits)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Bit 8j + c is column c of this lane in n8 tile j.
    u32 mine = bits[r] >> (2 * (threadIdx.x & 3));
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c)
        if (!(mine >> (8 * j + c) & 1)) rS[j][2 * r + c] = kMinusInf;
    }
  }
}

// O += P V: rO [16, Dv], rP [16, kStepKeys].
template <class Config, int kM>
NSAI_DEVICE void accumulate(float (&rO)[kM][4],
                            const float (&rP)[KernelTraits<Config>::kStepKeys / 8][4], u32 sV) {
  using S = KernelTraits<Config>;
  using T = typename S::VTile;
  const int lane = threadIdx.x & 31;
  const u32 v_at = sV + T::offset(lane & 15, lane >> 4);
  if constexpr (S::kCoded) {
    accumulate_codes<S>(rO, rP, v_at);
    return;
  }
#pragma unroll
  for (int k = 0; k < S::kStepKeys / 16; ++k) {
    u32 a[4], rest[4]; // P [16, 16]
    softmax_pack<typename Config::Element>(a, rP[2 * k], rP[2 * k + 1]);
    if constexpr (kSplitP<Config>)
      softmax_pack_rest<typename Config::Element>(rest, a, rP[2 * k], rP[2 * k + 1]);
#pragma unroll
    for (int j = 0; j < kM; j += 2) {
      // The four matrices, transposed: keys 16k.. and 16k + 8.. of columns 8j.., then of columns 8j
      // + 8...
      u32 b[4];
      ldmatrix_x4_trans(b, T::along(v_at, j) + 16 * k * T::kPitch);
      mma_m16n16k16(typename Config::Element{}, rO[j], rO[j + 1], a, b);
      if constexpr (kSplitP<Config>) {
        mma_m16n16k16(typename Config::Element{}, rO[j], rO[j + 1], rest, b);
      }
    }
  }
}

template <class Config, class Params>
NSAI_DEVICE void consume(const Params &params, const TilePosition &at, int warp,
                         const unsigned char *shared) {
  using S = KernelTraits<Config>;
  const NsaiAttendSelected &p = packed_of(params);
  const int lane = threadIdx.x & 31;
  const u32 base = shared_address(shared);
  const u32 sQ = base + S::kSQ + warp * S::QTile::kBytes; // [16, Dk]
  const int row = 16 * warp + (lane >> 2);                // this lane's rows: row, row + 8
  // The rows' tokens within the CTA: token, and token + kTokenStep.
  constexpr int kTokenStep = Config::kGroupPadded < 16 ? 8 / Config::kGroupPadded : 0;
  const int token = (Config::kGroupPadded < 16 ? row : 16 * warp) / Config::kGroupPadded;

  u32 rQ[S::kQueryInRegisters ? S::kColsQk / 16 : 1][4]; // [16, Dk]
  float scale_log2 = p.scale_log2;
  if constexpr (S::kCoded)
    scale_log2 *=
        scale_of(params.scales.k, at.group) * load_coded_query<Config, S>(rQ, sQ, p.q, at, row);
  else if constexpr (S::kQueryInRegisters)
    load_query<Config>(rQ, p.q, at, row);
  else
    copy_query<Config>(sQ, p.q, at, warp);
  float rO[S::kColsV / 8][4] = {}; // [16, Dv]
  SoftmaxRows rows;

  const Barriers<S::kStages> barriers = { base + S::kBarriers };
  for (PipelineState<S::kStages> step;; step.advance()) {
    barriers.consumer_wait(step.stage, step.phase);
    if (!((const int *)(shared + S::kSMore))[step.stage]) break;
    const u32 sK = base + S::kSK + step.stage * S::KTile::kBytes; // [kKeys, Dk]
    const u32 sV = base + S::kSV + step.stage * S::VTile::kBytes; // [kKeys, Dv]
    // sBits [kTokens, kParts], from `token` on
    const u32 *sBits =
        (const u32 *)(shared + S::kSBits) + (step.stage * S::kTokens + token) * S::kParts;
#pragma unroll 1
    for (int part = 0; part < S::kParts; ++part) {
      const u32 bits[2] = { sBits[part], sBits[kTokenStep * S::kParts + part] };
      if (!__any_sync(~0u, bits[0] | bits[1])) continue; // no token of the warp sees these keys
      float rS[S::kStepKeys / 8][4];                     // [16, kStepKeys]
      score<Config>(rS, rQ, sQ, sK + part * S::kStepKeys * S::KTile::kPitch);
      if (__any_sync(~0u, (bits[0] & bits[1]) != S::kAllBits)) mask_scores(rS, bits);
      softmax_step(rows, rS, rO, scale_log2);
      accumulate<Config>(rO, rS, sV + part * S::kStepKeys * S::VTile::kPitch);
    }
    // Each lane arrives for its own reads. One lane after __syncwarp would also be correct and is
    // no faster (H200), but racecheck does not follow that.
    barriers.consumer_release(step.stage);
  }
  if constexpr (S::kCoded) {
    scale_by_values<Config>(rO, params, at.group);
    restore_columns(rO);
  }
  const OutputRow output_row[2] = { find_output_row<Config>(at, row),
                                    find_output_row<Config>(at, row + 8) };
  store_output<Config, false>(p.out, p.kv_heads, rO, rows, output_row);
}

// ---- body

template <class Config, class Params> NSAI_DEVICE void attend_selected(const Params &params) {
  using S = KernelTraits<Config>;
  const NsaiAttendSelected &p = packed_of(params);
  extern __shared__ __align__(128) unsigned char shared[];

  TilePosition &at = *(TilePosition *)(shared + S::kSPosition);
  if (threadIdx.x == 0) {
    const int tiles = gridDim.x / p.kv_heads;
    const QueryTile tile = find_query_tile<S::kTokens>(sequences_of(params), blockIdx.x % tiles);
    at = TilePosition{ tile.seq, tile.first_query, (int)blockIdx.x / tiles };
    // Arrivals of the producer: its lanes for their copies, and lane 0 for plain stores.
    Barriers<S::kStages>{ shared_address(shared) + S::kBarriers }.init(32 + 1, 32 * S::kWarps);
  }
  __syncthreads();
  if (at.first_query < 0 || at.first_query >= at.seq.q_len) return; // an empty tile
  const int warp = threadIdx.x / 32;
  if (warp == S::kWarps)
    produce<Config>(params, at, shared);
  else
    consume<Config>(params, at, warp, shared);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_selected_sm80(
        const __grid_constant__ CodedParamsOf<Config, NsaiAttendSelected, NsaiCachedAttendSelected,
                                              NsaiCodedAttendSelected>
            p) {
  begin_kernel();
  attend_selected<Config>(p);
}

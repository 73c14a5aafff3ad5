// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_selected_mma: attention of every token over its own selection, on mma.sync (sm_80 and up).
//
//   O[t, h] = sum over keys p in list[t, g], p <= t, of softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//
//   q [T, Hq, Dk]  k [tokens, Hkv, Dk]  v [tokens, Hkv, Dv]  lists [T, Hkv, n] blocks of l' tokens, or [T, Hkv, n, 2]
//   token ranges; ascending and disjoint, then -1
//
// Grid: x = kv_heads * tiles, group-major, so that the CTAs that run together read one group's keys out of L2.
//   tiles = cu_q ? q_tokens / kTokens + num_seqs : ceil(q_tokens / kTokens), see common/sequence.cuh;
//   kTokens = 16 * kWarps / kGroupPadded adjacent tokens a CTA. A warp has one m16 tile: 16 / kGroupPadded tokens and
//   their heads, token-major, or 16 of one token's heads.
//
// Keys are cut into tiles on a fixed grid of kKeys. The producer warp (the last one) walks the union of the CTA's lists:
// its lanes hold the heads of the tokens' lists, the least head is the next tile, and the lists that begin there advance.
// So nothing is stored of a list, whatever n, l' and the alignment of ranges are. With each tile go the keys that each
// token sees, as bits: selection, causality and the end of the sequence all at once. Consumer warps whose tokens see none
// release the stage untouched; where all bits are set, nothing is masked.
//
//   producer                                             consumer warps
//   wait empty[s], copy K and V, store bits, arrive full[s] --> wait full[s], S = Q K^T, softmax, O += P V, arrive empty[s]
//
// Bound by L2 reads where the lists of adjacent tokens differ (8 tokens: up to 128 tiles of 32 KB for 16 blocks each), else
// by ldmatrix reads of shared memory: every warp reads the whole tile for 16 rows.
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup, kGroupPadded (power of two >= kGroup), kWarps (consumers), kThreads =
//   32 * (kWarps + 1), kMinBlocks, kKeys (16, 32, 64), kStages (2 and more), kSharedBytes, kSelectBlock (l'), kSelectCount
//   (n), kRanges, kGate.
// kSharedBytes = kStages * (kKeys * (pitch(Dk) + pitch(Dv)) + kTokens * max(4, kKeys / 8) + 20)
//   + (Dk and Dv padded to 16 exceed 320 together ? 16 * kWarps * pitch(Dk) : 0), rounded up to 16;
//   pitch(D) = Tile::kPitch: c = padded_dim(D) / 8 chunks, 16 * (c % 8 == 0 ? c : c + 1) bytes.
#pragma once
#include "common/barrier.cuh"
#include "common/copy.cuh"
#include "common/epilogue.cuh"
#include "common/mma.cuh"
#include "common/params.h"
#include "common/sequence.cuh"
#include "common/softmax.cuh"
#include "common/tile.cuh"
#include "common/types.cuh"

static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0, "rows are copied 16 bytes at a time");
static_assert(Config::kGroup <= Config::kGroupPadded && (Config::kGroupPadded & (Config::kGroupPadded - 1)) == 0,
              "rows are token-major over a power of two of heads");
static_assert(16 * Config::kWarps % Config::kGroupPadded == 0, "a CTA holds whole tokens");
static_assert(Config::kThreads == 32 * (Config::kWarps + 1), "one producer warp");
static_assert(Config::kKeys == 16 || Config::kKeys == 32 || Config::kKeys == 64, "a tile's keys are the bits of a word");
static_assert(Config::kStages >= 2, "a stage is filled while another is read");

// Where the CTA works. Lies in shared memory: read again behind the main loop, it holds no registers there.
struct Place {
  Sequence seq;
  int first_query; // of the tile, within the sequence
  int group;       // KV head
};

template <int kKeys> struct KeyBitsOf { using Word = u32; };
template <> struct KeyBitsOf<64> { using Word = u64; };

template <class Config> struct Plan {
  static constexpr int kKeys = Config::kKeys, kStages = Config::kStages, kWarps = Config::kWarps;
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk), kColsV = padded_dim(Config::kHeadDimV);
  static constexpr int kTokens = 16 * kWarps / Config::kGroupPadded;

  // Q as fragments in registers saves a fifth of the reads of shared memory. Beyond 320 columns of Q and O together they
  // do not fit beside each other (measured by the compiler's spills).
  static constexpr bool kQueryInRegisters = kColsQk + kColsV <= 320;

  // Keys of one softmax step. 64 would not leave nine warps enough registers at D = 128.
  static constexpr int kStepKeys = kKeys < 32 ? kKeys : 32;

  using KTile = Tile<kKeys, kColsQk>;
  using VTile = Tile<kKeys, kColsV>;
  using QTile = Tile<16, kColsQk>;               // of one warp
  using KeyBits = typename KeyBitsOf<kKeys>::Word; // bit i: the token sees key i of the tile
  static constexpr int kParts = kKeys / kStepKeys;
  static constexpr u32 kAllBits = ~0u >> (32 - kStepKeys);
  static constexpr KeyBits kAllKeys = (KeyBits)~0ull >> (8 * sizeof(KeyBits) - kKeys);

  // Shared memory, in bytes. Ring buffers are [kStages].
  static constexpr int kSQ = 0;                                                       // [kWarps] QTile, or nothing
  static constexpr int kSK = kSQ + (kQueryInRegisters ? 0 : kWarps * QTile::kBytes);  // KTile
  static constexpr int kSV = kSK + kStages * KTile::kBytes;                           // VTile
  static constexpr int kFull = kSV + kStages * VTile::kBytes;                         // barrier: the stage can be read
  static constexpr int kEmpty = kFull + 8 * kStages;                                  // barrier: it can be overwritten
  static constexpr int kSBits = kEmpty + 8 * kStages;                                 // KeyBits [kTokens]
  static constexpr int kSMore = kSBits + kStages * kTokens * (int)sizeof(KeyBits);    // int: 0 ends the ring
  static constexpr int kSPlace = kSMore + 4 * kStages;                                // Place
  static constexpr int kBytes = (kSPlace + (int)sizeof(Place) + 15) / 16 * 16;
  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
};

// A stage of the ring and the parity that its barriers have this time round.
template <int kStages> struct RingStep {
  int stage = 0;
  u32 parity = 0;
  NSAI_DEVICE void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// ---- producer: the walk over the lists ----

// The rest of one token's list. Entries are loaded one ahead of their use.
template <class Config> struct ListCursor {
  static constexpr int kNever = 0x7fffffff;
  using KeyBits = typename Plan<Config>::KeyBits;

  const int *gList;         // [n] or [n, 2]
  int limit;                // keys from here on are not visible: t + 1
  int index;                // of the entry loaded ahead
  int next_begin, next_end; // that entry as stored
  int begin, end;           // keys not yet taken of the current entry; begin kNever: no more

  NSAI_DEVICE void load_next() {
    next_begin = next_end = -1;
    if (index >= Config::kSelectCount) return;
    if constexpr (Config::kRanges) {
      next_begin = gList[2 * index];
      next_end = gList[2 * index + 1];
    } else {
      next_begin = gList[index];
    }
  }

  NSAI_DEVICE void advance() {
    if (next_begin < 0) {
      begin = end = kNever;
      return;
    }
    begin = Config::kRanges ? next_begin : next_begin * Config::kSelectBlock;
    end = min(Config::kRanges ? next_end : begin + Config::kSelectBlock, limit);
    ++index;
    load_next();
  }

  // A token that is not present or stands before the first key has an empty list.
  NSAI_DEVICE void open(const int *list, int position, bool present) {
    gList = list;
    limit = position + 1;
    index = present && limit > 0 ? 0 : Config::kSelectCount;
    load_next();
    advance();
  }

  // The visible keys of tile [first, first + kKeys), as bits; the cursor moves behind it. Nothing of the list lies before
  // `first`.
  NSAI_DEVICE KeyBits take(int first) {
    const int stop = first + Config::kKeys;
    KeyBits bits = 0;
    while (begin < stop) {
      int until = min(end, stop);
      // Bits [begin - first, until - first), until > begin.
      bits |= (Plan<Config>::kAllKeys >> (Config::kKeys - (until - begin))) << (begin - first);
      if (end > stop) begin = stop;
      else advance();
    }
    return bits;
  }
};

// Starts the copy of rows [first, first + kKeys) of one head into a tile; rows from kv_len on become zero, as do columns
// behind kDim.
template <int kKeys, int kDim>
NSAI_DEVICE void copy_keys(u32 sTile, const u16 *gRows, long long token_stride, int first, int kv_len) {
  using T = Tile<kKeys, padded_dim(kDim)>;
  // Eight lanes take a row's 128 bytes, so that a warp reads whole lines; narrow rows take fewer.
  constexpr int kLanes = T::kChunks >= 6 ? 8 : T::kChunks;
  constexpr int kRowsPerStep = 32 / kLanes;
  const int lane = threadIdx.x & 31, chunk = lane % kLanes;
  const u16 *gRow = gRows + (first + lane / kLanes) * token_stride + 8 * chunk; // [kDim]
#pragma unroll 4
  for (int r = 0; r < kKeys; r += kRowsPerStep, gRow += kRowsPerStep * token_stride) {
    int row = r + lane / kLanes;
    bool present = first + row < kv_len;
#pragma unroll
    for (int c = 0; c < T::kChunks; c += kLanes)
      if (T::kChunks % kLanes == 0 || c + chunk < T::kChunks)
        copy_async_16(sTile + T::offset(row, c + chunk), gRow + 8 * c, present && 8 * (c + chunk) < kDim);
  }
}

template <class Config> NSAI_DEVICE void produce(const NsaiAttendSelected &p, const Place &at, unsigned char *shared) {
  using S = Plan<Config>;
  constexpr int kLists = (S::kTokens + 31) / 32; // a lane's: tokens lane, lane + 32, ...
  const int lane = threadIdx.x & 31;
  const u32 base = shared_address(shared);
  const u16 *gK = (const u16 *)p.k.data + at.seq.kv_begin * p.k.token_stride + at.group * p.k.head_stride; // [kv_len, Dk]
  const u16 *gV = (const u16 *)p.v.data + at.seq.kv_begin * p.v.token_stride + at.group * p.v.head_stride; // [kv_len, Dv]

  ListCursor<Config> cursors[kLists];
#pragma unroll
  for (int j = 0; j < kLists; ++j) {
    int token = 32 * j + lane, query = at.first_query + token;
    const int *gList = p.lists + (at.seq.q_begin + query) * p.list_token_stride + at.group * p.list_head_stride; // [n]
    cursors[j].open(gList, at.seq.position(query), token < S::kTokens && query < at.seq.q_len);
  }

  RingStep<S::kStages> step;
  for (;; step.advance()) {
    int least = cursors[0].begin;
#pragma unroll
    for (int j = 1; j < kLists; ++j) least = min(least, cursors[j].begin);
    const int begin = __reduce_min_sync(~0u, least);
    const bool more = begin != ListCursor<Config>::kNever;

    // A fresh barrier lets the wait for the phase before its first one pass.
    barrier_wait(base + S::kEmpty + 8 * step.stage, step.parity ^ 1); // by all consumer warps
    if (more) {
      const int first = begin / S::kKeys * S::kKeys;
      copy_keys<S::kKeys, Config::kHeadDimQk>(base + S::kSK + step.stage * S::KTile::kBytes, gK, p.k.token_stride, first,
                                              at.seq.kv_len);
      copy_keys<S::kKeys, Config::kHeadDimV>(base + S::kSV + step.stage * S::VTile::kBytes, gV, p.v.token_stride, first,
                                             at.seq.kv_len);
      typename S::KeyBits *sBits = (typename S::KeyBits *)(shared + S::kSBits) + step.stage * S::kTokens; // [kTokens]
#pragma unroll
      for (int j = 0; j < kLists; ++j) {
        typename S::KeyBits bits = cursors[j].take(first);
        if (32 * j + lane < S::kTokens) sBits[32 * j + lane] = bits;
      }
    }
    if (lane == 0) ((int *)(shared + S::kSMore))[step.stage] = more;
    const u32 full = base + S::kFull + 8 * step.stage;
    barrier_arrive_after_copies(full); // every lane, for its own copies
    __syncwarp();
    if (lane == 0) barrier_arrive(full); // for the warp's plain stores
    if (!more) break;
  }
  copy_async_commit();
  copy_async_wait<0>();
}

// ---- consumers ----

// Row `row` of the CTA's rows, token-major over the padded heads.
template <class Config> NSAI_DEVICE OutputRow place_row(const Place &at, int row) {
  int query = at.first_query + row / Config::kGroupPadded, head = row % Config::kGroupPadded;
  return OutputRow{ at.seq.q_begin + query, at.group * Config::kGroup + head,
                    head < Config::kGroup && query < at.seq.q_len };
}

// A fragments of Q, straight from global memory, two columns a load; the lane holds rows `row` and `row + 8`. Padding is
// zero.
template <class Config, int kSteps>
NSAI_DEVICE void load_query(u32 (&rQ)[kSteps][4], const NsaiView &q, const Place &at, int row) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const OutputRow place = place_row<Config>(at, row + 8 * r);
    const u16 *gRow = (const u16 *)q.data + place.token * q.token_stride + place.head * q.head_stride; // [Dk]
    const u32 *gPair = (const u32 *)gRow + (threadIdx.x & 3);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      rQ[k][r] = place.present ? gPair[8 * k] : 0;
      rQ[k][r + 2] = place.present && 16 * k + 8 < Config::kHeadDimQk ? gPair[8 * k + 4] : 0;
    }
  }
}

// The warp's Q into its own tile of shared memory, complete on return. Padding is zero.
template <class Config> NSAI_DEVICE void copy_query(u32 sQ, const NsaiView &q, const Place &at, int warp) {
  using T = typename Plan<Config>::QTile;
  for (int i = threadIdx.x & 31; i < 16 * T::kChunks; i += 32) {
    int row = i / T::kChunks, chunk = i % T::kChunks;
    OutputRow place = place_row<Config>(at, 16 * warp + row);
    const u16 *gRow = (const u16 *)q.data + place.token * q.token_stride + place.head * q.head_stride; // [Dk]
    copy_async_16(sQ + T::offset(row, chunk), gRow + 8 * chunk, place.present && 8 * chunk < Config::kHeadDimQk);
  }
  copy_async_commit();
  copy_async_wait<0>();
  __syncwarp();
}

// S = Q K^T: rS [16, kStepKeys]. Q comes from rQ, or from sQ where registers do not hold it.
template <class Config, int kSteps>
NSAI_DEVICE void score(float (&rS)[Plan<Config>::kStepKeys / 8][4], const u32 (&rQ)[kSteps][4], u32 sQ, u32 sK) {
  using S = Plan<Config>;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int j = 0; j < S::kStepKeys / 8; ++j) rS[j][0] = rS[j][1] = rS[j][2] = rS[j][3] = 0.0f;
#pragma unroll
  for (int k = 0; k < S::kColsQk / 16; ++k) {
    u32 a[4]; // [16, 16]
    if constexpr (S::kQueryInRegisters) a[0] = rQ[k][0], a[1] = rQ[k][1], a[2] = rQ[k][2], a[3] = rQ[k][3];
    else ldmatrix_x4(a, sQ + S::QTile::offset(lane & 15, 2 * k + (lane >> 4)));
#pragma unroll
    for (int j = 0; j < S::kStepKeys / 8; j += 2) {
      // Matrices: keys 8j.. of columns 16k.. and 16k + 8.., then keys 8j + 8.. of both.
      u32 b[4];
      int key = 8 * j + (lane & 7) + ((lane >> 4) << 3);
      ldmatrix_x4(b, sK + S::KTile::offset(key, 2 * k + ((lane >> 3) & 1)));
      mma_m16n8k16(typename Config::Element{}, rS[j], a, b[0], b[1]);
      mma_m16n8k16(typename Config::Element{}, rS[j + 1], a, b[2], b[3]);
    }
  }
}

// Scores of keys that the row's token does not see become -inf. bits[r] belongs to row `group + 8 * r`.
template <int kN> NSAI_DEVICE void mask_scores(float (&rS)[kN][4], const u32 (&bits)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    u32 mine = bits[r] >> (2 * (threadIdx.x & 3)); // bit 8j + c is column c of this lane in n8 tile j
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
NSAI_DEVICE void accumulate(float (&rO)[kM][4], const float (&rP)[Plan<Config>::kStepKeys / 8][4], u32 sV) {
  using S = Plan<Config>;
  using T = typename S::VTile;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < S::kStepKeys / 16; ++k) {
    u32 a[4]; // [16, 16]
    softmax_pack<typename Config::Element>(a, rP[2 * k], rP[2 * k + 1]);
#pragma unroll
    for (int j = 0; j < kM; j += 2) {
      // Matrices, transposed: keys 16k.. and 16k + 8.. of columns 8j.., then both of columns 8j + 8...
      u32 b[4];
      ldmatrix_x4_trans(b, sV + T::offset(16 * k + (lane & 15), j + (lane >> 4)));
      mma_m16n8k16(typename Config::Element{}, rO[j], a, b[0], b[1]);
      mma_m16n8k16(typename Config::Element{}, rO[j + 1], a, b[2], b[3]);
    }
  }
}

template <class Config>
NSAI_DEVICE void consume(const NsaiAttendSelected &p, const Place &at, int warp, const unsigned char *shared) {
  using S = Plan<Config>;
  const int lane = threadIdx.x & 31;
  const u32 base = shared_address(shared);
  const u32 sQ = base + S::kSQ + warp * S::QTile::kBytes; // [16, Dk]
  const int row = 16 * warp + (lane >> 2);                // this lane's rows: row, row + 8
  // Their tokens, within the CTA: token, token + kTokensApart.
  constexpr int kTokensApart = Config::kGroupPadded < 16 ? 8 / Config::kGroupPadded : 0;
  const int token = (Config::kGroupPadded < 16 ? row : 16 * warp) / Config::kGroupPadded;

  u32 rQ[S::kQueryInRegisters ? S::kColsQk / 16 : 1][4]; // [16, Dk]
  if constexpr (S::kQueryInRegisters) load_query<Config>(rQ, p.q, at, row);
  else copy_query<Config>(sQ, p.q, at, warp);
  float rO[S::kColsV / 8][4] = {}; // [16, Dv]
  SoftmaxRows rows;

  for (RingStep<S::kStages> step;; step.advance()) {
    barrier_wait(base + S::kFull + 8 * step.stage, step.parity); // by the producer
    if (!((const int *)(shared + S::kSMore))[step.stage]) break;
    const u32 sK = base + S::kSK + step.stage * S::KTile::kBytes; // [kKeys, Dk]
    const u32 sV = base + S::kSV + step.stage * S::VTile::kBytes; // [kKeys, Dv]
    const u32 *sBits = (const u32 *)(shared + S::kSBits) + (step.stage * S::kTokens + token) * S::kParts; // [kParts]
#pragma unroll 1
    for (int part = 0; part < S::kParts; ++part) {
      const u32 bits[2] = { sBits[part], sBits[kTokensApart * S::kParts + part] };
      if (!__any_sync(~0u, bits[0] | bits[1])) continue; // no token of the warp sees these keys
      float rS[S::kStepKeys / 8][4];                     // [16, kStepKeys]
      score<Config>(rS, rQ, sQ, sK + part * S::kStepKeys * S::KTile::kPitch);
      if (__any_sync(~0u, (bits[0] & bits[1]) != S::kAllBits)) mask_scores(rS, bits);
      softmax_step(rows, rS, rO, p.scale_log2);
      accumulate<Config>(rO, rS, sV + part * S::kStepKeys * S::VTile::kPitch);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(base + S::kEmpty + 8 * step.stage); // for the producer
  }
  const OutputRow place[2] = { place_row<Config>(at, row), place_row<Config>(at, row + 8) };
  store_output<Config>(p.out, p.kv_heads, rO, rows, place);
}

// ---- body ----

template <class Config> NSAI_DEVICE void attend_selected(const NsaiAttendSelected &p) {
  using S = Plan<Config>;
  extern __shared__ __align__(128) unsigned char shared[];

  Place &at = *(Place *)(shared + S::kSPlace);
  if (threadIdx.x == 0) {
    const int tiles = gridDim.x / p.kv_heads;
    const QueryTile tile = find_query_tile<S::kTokens>(p.seq, blockIdx.x % tiles);
    at = Place{ tile.seq, tile.first_query, (int)blockIdx.x / tiles };
    for (int s = 0; s < S::kStages; ++s) {
      barrier_init(shared_address(shared) + S::kFull + 8 * s, 32 + 1); // the producer's copies by lane, its stores
      barrier_init(shared_address(shared) + S::kEmpty + 8 * s, S::kWarps);
    }
  }
  __syncthreads();
  if (at.first_query >= at.seq.q_len) return; // an empty tile
  const int warp = threadIdx.x / 32;
  if (warp == S::kWarps) produce<Config>(p, at, shared);
  else consume<Config>(p, at, warp, shared);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_selected_mma(const __grid_constant__ NsaiAttendSelected p) { attend_selected<Config>(p); }

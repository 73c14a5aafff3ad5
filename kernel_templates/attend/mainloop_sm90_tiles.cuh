// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What the producers and the consumers of attend/mainloop_sm90.cuh share: sizes and shared memory,
// and the tiles of a CTA.
#pragma once
#include "core/tile.cuh"
#include "core/tma.cuh"
#include "core/types.cuh"
#include "data/key_range.cuh"
#include "data/sequence.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"
#include "params/smem.h"

// Of a cache: addresses of the compressed entries of a tile of K and of one of V. Kernels of raw
// tokens in codes have barriers there instead (code_barrier).
template <bool kCached, int kKeys> struct EntryAddresses {};
template <int kKeys> struct EntryAddresses<true, kKeys> { u64 entry_addresses[2 * kKeys]; };

// A tile of queries and the keys that it sees. The producer writes it for the consumers.
struct __align__(16) FlashTile {
  int group;       // KV head
  int tokens;      // tokens of this tile; 0 ends the consumers
  int first_token; // row of q and o of the tile's first token
  int position;    // of the first token
  int begin, end;  // keys that any of its tokens sees; none when begin >= end
  int first_row;   // row of k and v of key `begin`; in a cache, the sequence
  int rows_left;   // rows of the sequence's k and v from there on
};

template <class Config> struct Flash {
  static constexpr int kConsumers = Config::kRows / 64;                // consumer warpgroups
  static constexpr int kTokens = Config::kRows / Config::kGroupPadded; // tokens of a tile
  static constexpr int kBoxTokens = 64 / Config::kGroupPadded;         // tokens of 64 rows
  static constexpr int kN = Config::kKeys / 8;                         // n8 tiles of S
  static constexpr int kO = padded_dim(Config::kHeadDimV) / 8;         // n8 tiles of O
  static constexpr int kSteps = padded_dim(Config::kHeadDimQk) / 16;   // k16 steps of Q K^T
  static constexpr int kQueryBytes = nsai_panel_bytes(64, Config::kHeadDimQk);
  static constexpr int kKeyBytes = nsai_panel_bytes(Config::kKeys, Config::kHeadDimQk);
  static constexpr int kValueBytes = nsai_panel_bytes(Config::kKeys, Config::kHeadDimV);
  // The launch gives every thread 65536 / kThreads registers, rounded down to a multiple of 8. The
  // producer warpgroup hands its surplus to the consumers. Over a cache it needs more itself.
  static constexpr bool kWide = kConsumers == 2; // consumers with more registers
  static constexpr int kProducerRegisters = kReadsCodes<Config> && kWide ? 72
                                            : Config::kCached            ? 56
                                            : kWide                      ? 24
                                                                         : 32;
  static constexpr int kConsumerRegisters = kReadsCodes<Config> && kWide ? 216
                                            : Config::kCached            ? (kWide ? 224 : 152)
                                            : kWide                      ? 240
                                                                         : 160;

  struct Tiles {
    unsigned char q[Config::kQueryStages][kConsumers][kQueryBytes];
    unsigned char k[Config::kStages][kKeyBytes];
    unsigned char v[Config::kStages][kValueBytes];
    FlashTile tile[Config::kQueryStages]; // of each stage of q
    u64 q_full[Config::kQueryStages], q_empty[Config::kQueryStages];
    u64 k_full[Config::kStages], k_empty[Config::kStages];
    u64 v_full[Config::kStages], v_empty[Config::kStages];
  };
  struct Shared : Tiles, EntryAddresses<Config::kCached, Config::kKeys> {};

  static_assert(kConsumers == 2 || kConsumers == 3,
                "registers are divided between two or three consumer warpgroups");
  static_assert(kConsumers * 64 == Config::kRows, "whole warpgroups");
  static_assert(Config::kThreads == 128 * (kConsumers + 1),
                "consumer warpgroups and one producer warpgroup");
  static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0,
                "tensor maps need strides of whole 16 bytes");
  static_assert((Config::kGroupPadded & (Config::kGroupPadded - 1)) == 0 &&
                    Config::kGroup <= Config::kGroupPadded && Config::kGroupPadded <= 64,
                "kGroupPadded is the next power of two");
  static_assert(Config::kKeys % 16 == 0, "P V takes 16 keys at a time");
  static_assert(sizeof(Shared) == Config::kSharedBytes,
                "the host computes another size of shared memory");
};

// The barrier on which the codes of a stage of K (side 0) or V (side 1) arrive.
template <class Config, class Shared>
NSAI_DEVICE u32 code_barrier(Shared &shared, int side, int stage) {
  return shared_address(&shared.entry_addresses[side * Config::kStages + stage]);
}

// ---- tiles

template <class Keys>
NSAI_DEVICE int first_row_of(const NsaiSequences &seqs, const QueryTile &tile, int begin) {
  return Keys::first_row(seqs, tile) + begin;
}
template <class Keys>
NSAI_DEVICE int first_row_of(const NsaiCacheBatch &, const QueryTile &tile, int) {
  return tile.s;
}

template <class Config, class Keys, class Sequences>
NSAI_DEVICE FlashTile flash_tile(const Sequences &seqs, int group, int number) {
  QueryTile tile = find_query_tile<Flash<Config>::kTokens>(seqs, number);
  FlashTile t;
  t.group = group;
  t.tokens =
      tile.first_query < 0 ? 0 : min(Flash<Config>::kTokens, tile.seq.q_len - tile.first_query);
  t.first_token = tile.seq.q_begin + tile.first_query;
  t.position = tile.seq.position(tile.first_query);
  t.begin = Keys::visible(t.position).begin;
  if constexpr (Config::kCached) t.begin = t.begin / NSAI_WINDOW_BOX_ROWS * NSAI_WINDOW_BOX_ROWS;
  t.end = t.tokens > 0 ? Keys::visible(t.position + t.tokens - 1).end : 0;
  t.first_row = first_row_of<Keys>(seqs, tile, t.begin);
  t.rows_left = Keys::visible(tile.seq.kv_len - 1).end - t.begin;
  return t;
}

// Whether successive tiles are of successive KV heads. Otherwise all tiles of a head come before those of
// the next, so that CTAs that run at the same time read the keys of one head.
//
// In a run over ranks, a head has the tiles of several pieces: long ones, then short ones. When there are
// few, the fixed order above gives some CTAs the long tiles of every head. Measured on an H200, rank 5 of
// 64 at 128k (2048 tokens, 64/4 heads, D 128): attend_compressed_topn_sm90 takes 1.02 ms with head after
// head, 0.74 ms with alternating heads, and its longer piece alone 0.69 ms. A long sequence gains nothing
// (128k: 1 to 2 % slower in two runs that timed it second, so that heat may have a part in it).
template <class C, class = void> struct AlternationOf { static constexpr bool kValue = false; };
template <class C> struct AlternationOf<C, decltype((void)C::kHeadsAlternate)> {
  static constexpr bool kValue = C::kHeadsAlternate;
};

// Kernels whose later tiles have more keys also alternate where there are few tiles: of a whole sequence,
// as many as have raw keys and values that fit into a part of L2. The same number of tiles counts for a chunk
// over a long cache and for a rank's pieces. Then the tiles get ever shorter to the end, and the CTAs end at about the same time.
// Head after head, some CTAs get a long tile of every head, and the last head's short tiles come too late
// to make up for it. Chunks over long caches were not timed. Whole sequences, H200, bf16, 64/4 heads,
// D 128, head after head / alternating, sustained: dense attention, which is also the selected branch of
// short sequences, 1k 0.0597 / 0.0391 ms, 4k 0.459 / 0.435, 8k 1.69 / 1.60; a whole forward at 1k 0.1235 /
// 0.1037, at 4k and 8k the same within 1 %.
template <class Config, class Keys> NSAI_DEVICE bool heads_alternate(const NsaiAttendTma &p) {
  constexpr int kTileBytes = 2 * Flash<Config>::kTokens * (Config::kHeadDimQk + Config::kHeadDimV);
  if constexpr (AlternationOf<Config>::kValue) return true;
  return Keys::kLongestFirst && p.attend.tiles <= kBytesOfL2 / kTileBytes;
}

// Calls take(tile) for every tile of this CTA. Every other round of the grid runs backwards: when
// tiles get ever shorter, no CTA gets the longer one each time.
template <class Config, class Keys, class Sequences, class Take>
NSAI_DEVICE void for_each_tile(const NsaiAttendTma &p, const Sequences &seqs, Take take) {
  int tiles = p.attend.tiles / p.attend.kv_heads; // tiles of one head
  int group = 0, first = 0;                       // first: number of the head's first tile
  int output_row = blockIdx.x;
  for (int round = 0; round < p.attend.tiles; round += gridDim.x) {
    int index = round + output_row;
    output_row = gridDim.x - 1 - output_row;
    if (index >= p.attend.tiles) continue;
    int number;
    if (heads_alternate<Config, Keys>(p)) {
      number = index / p.attend.kv_heads;
      group = index - number * p.attend.kv_heads;
    } else {
      for (; index - first >= tiles; first += tiles) ++group;
      number = index - first;
    }
    FlashTile tile =
        flash_tile<Config, Keys>(seqs, group, Keys::kLongestFirst ? tiles - 1 - number : number);
    if (tile.tokens > 0) take(tile);
  }
}

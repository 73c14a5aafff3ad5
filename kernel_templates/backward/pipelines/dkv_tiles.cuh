// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Tiles of keys of a branch and the query rows that see them, for backward/dkv_mainloop.cuh,
// backward/pipelines/dkv.cuh and backward/pipelines/dkv_items.cuh. CTAs are numbered as described in
// backward_dkv_compressed, backward_dkv_selected and backward_dkv_window.
//
// Config: kHeadDimQk, kHeadDimV, kKeys (of a tile), kBlock (l), kStride (d), kWindow (w),
// kSelectBlock (l').
#pragma once
#include "backward/products.cuh"
#include "data/inverted_lists.cuh"
#include "data/key_range.cuh"
#include "data/sequence.cuh"

// A tile of keys and its query rows.
struct KeyTile {
  int head;          // KV head
  long long key_row; // row of k and v of the tile's first key
  int keys;          // existing keys; for a selected block, those of this tile of it
  int tokens;        // tokens that may see some of them
  // The first `rotation` tokens come last: CTAs that run at the same time then read the same rows.
  int rotation = 0;
  float *partial; // [keys, Dk + Dv]
};

// The next number from 0 on. `tickets` counts those that CTAs of the grid have taken.
NSAI_DEVICE int take_ticket(int *tickets) { return atomicAdd(tickets, 1); }

// The keys of the tile that a row sees, [begin, end), packed into the halves of a word.
NSAI_DEVICE u32 pack_seen(int begin, int end, int keys) {
  begin = max(begin, 0);
  end = min(end, keys);
  return begin < end ? (u32)begin | (u32)end << 16 : 0;
}

// Consecutive tokens of a sequence: window and compressed branch.
template <class Config, class Keys, int kBranchOf> struct RangeRows {
  static constexpr int kBranch = kBranchOf;
  Sequence seq;
  int first_key;   // of the tile, within the sequence
  int first_query; // first token that may see a key of the tile
  int keys;

  NSAI_DEVICE int token(int i) const { return seq.q_begin + first_query + i; }
  NSAI_DEVICE u32 seen(int i) const {
    const KeyRange range = Keys::visible(seq.position(first_query + i));
    return pack_seen(range.begin - first_key, range.end - first_key, keys);
  }
  // The same of a token.
  NSAI_DEVICE u32 seen_by(int token) const { return seen(token - seq.q_begin - first_query); }
  static NSAI_DEVICE bool next(int &) { return false; }
};

// Tokens of an item: selected branch.
template <class Config> struct ListRows {
  static constexpr int kBranch = NSAI_BRANCH_SELECTED;
  const u32 *entries; // [tokens]
  int shift;          // token t sees the tile's key i if i <= t + shift
  int keys;

  NSAI_DEVICE int token(int i) const { return entry_token(entries[i]); }
  NSAI_DEVICE u32 seen(int i) const { return seen_by(token(i)); }
  NSAI_DEVICE u32 seen_by(int token) const { return pack_seen(0, token + shift + 1, keys); }
  static NSAI_DEVICE bool next(int &) { return false; }
};

template <class Config>
using CompressedRows = RangeRows<Config, CompressedKeys<Config>, NSAI_BRANCH_COMPRESSED>;
template <class Config>
using WindowRows = RangeRows<Config, WindowKeys<Config>, NSAI_BRANCH_WINDOW>;

template <class Config> constexpr int kPartialWidth = Config::kHeadDimQk + Config::kHeadDimV;

// Finds the tile of this CTA; returns false if there is none.
template <class Config>
NSAI_DEVICE bool find_rows(const NsaiBackwardKv &p, CompressedRows<Config> &rows, KeyTile &tile) {
  const int number = blockIdx.x % p.tiles, head = blockIdx.x / p.tiles / p.splits;
  // Later tokens see more tiles: longest first.
  const int split = p.splits - 1 - blockIdx.x / p.tiles % p.splits;
  const KeyTileAt at = find_block_tile<Config::kKeys, Config::kStride>(p.seq, number);
  const int blocks = block_count<Config::kBlock, Config::kStride>(at.seq.kv_len);
  rows.seq = at.seq;
  rows.first_key = at.first_key;
  tile.keys = rows.keys = min(Config::kKeys, blocks - at.first_key);
  if (tile.keys <= 0 || at.first_key < 0) return false;
  const int shift = at.seq.position(0);
  const int begin = max(at.first_key * Config::kStride + Config::kBlock - 1 - shift, 0);
  const int from = (int)((long long)at.seq.q_len * split / p.splits),
            until = (int)((long long)at.seq.q_len * (split + 1) / p.splits);
  rows.first_query = max(begin, from);
  tile.tokens = max(until - rows.first_query, 0);
  const long long row = at.first_row + at.first_key; // row of `partial`
  tile.head = p.head_begin + head;
  tile.key_row = first_block_row<Config::kStride>(p.seq, at.s) + at.first_key;
  tile.partial =
      p.partial + (((long long)head * p.splits + split) * p.rows + row) * kPartialWidth<Config>;
  return true;
}

// The window's tile of a number; the CTAs of a grid have the numbers from 0 on.
template <class Config>
NSAI_DEVICE bool find_window_tile(const NsaiBackwardKv &p, u32 index, WindowRows<Config> &rows,
                                  KeyTile &tile) {
  const int head = index / p.tiles, number = index % p.tiles;
  const KeyTileAt at = find_key_tile<Config::kKeys>(p.seq, number);
  rows.seq = at.seq;
  rows.first_key = at.first_key;
  tile.keys = rows.keys = min(Config::kKeys, at.seq.kv_len - at.first_key);
  if (tile.keys <= 0 || at.first_key < 0) return false;
  // Query i stands at position(i). The rows go from the tile's first key to the last query that
  // sees its last key.
  const int shift = at.seq.position(0);
  rows.first_query = max(at.first_key - shift, 0);
  const int end = min(at.first_key + tile.keys - 1 + Config::kWindow - shift, at.seq.q_len);
  tile.tokens = max(end - rows.first_query, 0);
  constexpr int kPeriod = Config::kKeys + Config::kWindow; // tokens of a tile, plus one
  tile.rotation = (kPeriod - rows.first_query % kPeriod) % kPeriod;
  if (tile.rotation >= tile.tokens) tile.rotation = 0;
  tile.head = p.head_begin + head;
  tile.key_row = at.seq.kv_begin + at.first_key;
  tile.partial = p.partial + (head * p.rows + tile.key_row) * kPartialWidth<Config>;
  return true;
}

template <class Config>
NSAI_DEVICE bool find_rows(const NsaiBackwardKv &p, WindowRows<Config> &rows, KeyTile &tile) {
  return find_window_tile<Config>(p, blockIdx.x, rows, tile);
}

// Part `part` of the keys of item `number` of a head, which exists; `head` counts from head_begin.
// `rows` reads the entries from global memory.
template <class Config>
NSAI_DEVICE bool find_item_tile(const NsaiBackwardKv &p, int head, int list_head, int number,
                                int part, ListRows<Config> &rows, KeyTile &tile) {
  const NsaiKvItem item = p.items[(long long)list_head * p.item_capacity + number];
  const int first_key = part * Config::kKeys;
  tile.keys = rows.keys = min(Config::kKeys, item.keys - first_key);
  if (tile.keys <= 0) return false;
  tile.tokens = min(item.count, Config::kEntries);
  tile.head = p.head_begin + head;
  tile.key_row = item.kv_row + first_key;
  tile.partial = p.partial +
                 (((long long)head * p.item_capacity + number) * Config::kSelectBlock + first_key) *
                     kPartialWidth<Config>;
  rows.entries = p.entries + list_head * p.entry_capacity + item.begin;
  rows.shift = item.shift - first_key;
  return true;
}

template <class Config>
NSAI_DEVICE bool find_rows(const NsaiBackwardKv &p, ListRows<Config> &rows, KeyTile &tile) {
  const int part = blockIdx.x % p.tiles, number = blockIdx.x / p.tiles % p.item_capacity,
            head = blockIdx.x / p.tiles / p.item_capacity;
  const int list_head = p.shared_lists ? 0 : p.head_begin + head;
  if (number >= p.item_counts[list_head]) return false;
  return find_item_tile<Config>(p, head, list_head, number, part, rows, tile);
}

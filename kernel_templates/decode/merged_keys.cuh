// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The merged list of a tile: all blocks that its tokens selected, each once, as a policy of
// decode/mainloop.cuh. Tokens of one sequence select mostly the same blocks, and shared blocks are
// read only once.
//
//   lists [tokens, n] ascending, then -1  ->  blocks ascending, each with the set of tokens that
//   own it
//
// An entry is counted for the first token that lists its block. The index of a block in the merged
// list is the number of counted entries below it, which a binary search in every list finds. No
// entry has to wait for another one.
//
// Config: those of decode/work.cuh, kSelectCount (n), kMaxQLen (most new tokens of a sequence).
#pragma once
#include "core/types.cuh"
#include "decode/raw_keys.cuh"
#include "decode/work.cuh"

struct MergedBlock {
  int block;
  u32 tokens; // bit i: token i of the tile
};

// Which of the listed blocks a tile attends to: all of them, or those that lie on this rank.
struct EveryBlock {
  static constexpr bool kEvery = true;
};
struct OwnBlocks {
  static constexpr bool kEvery = false;
  int unit; // successive blocks of a sequence on one rank
  int rank, ranks;
  NSAI_DEVICE bool has(int block) const { return block >= 0 && block / unit % ranks == rank; }
};

template <class C> struct MergedListStorage {
  static constexpr int kTokens =
      Decode<C>::kTileTokens < C::kMaxQLen ? Decode<C>::kTileTokens : C::kMaxQLen;
  static constexpr int kCount = C::kSelectCount > 0 ? C::kSelectCount : 1;
  static constexpr int kEntries = kTokens * kCount, kWords = (kCount + 31) / 32;
  static_assert(kTokens <= 32, "a word has a bit for each token of the tile");
  MergedBlock blocks[kEntries];
  u32 counted[kTokens][kWords]; // one bit per entry
  int ends[kTokens];            // end of the keys that each token sees
};

template <class C> struct BlocksOfTile : NoPool {
  static constexpr bool kOwned = MergedListStorage<C>::kTokens > 1;
  static constexpr int kOwnedKeys = C::kSelectBlock;
  int limit;
  const MergedBlock *sBlocks;
  int ends[2];     // of the lane's two rows
  u32 warp_tokens; // bits of the warp's existing tokens
  NSAI_DEVICE int index(int i) const {
    return sBlocks[i / C::kSelectBlock].block * C::kSelectBlock + i % C::kSelectBlock;
  }
  NSAI_DEVICE u32 owners(int i) const { return sBlocks[i / C::kSelectBlock].tokens; }
  // The token bit of the lane's row `group + 8 * r`.
  static NSAI_DEVICE u32 row_token(int r) {
    const int row = 16 * (threadIdx.x / 32 % (C::kScanRows / 16)) + 8 * r + threadIdx.x % 32 / 4;
    return 1u << row / C::kGroupPadded;
  }
  NSAI_DEVICE int begin(int) const { return 0; }
  NSAI_DEVICE int end(int r) const { return ends[Decode<C>::half(r)]; }
};

struct FoundBlock {
  int below; // entries of the list below the block
  bool exists;
};

// Finds a block in an ascending list that is padded with -1.
template <int kCount> NSAI_DEVICE FoundBlock find_block(const int *sList, int block) {
  constexpr int kTop = kCount > 128  ? 256
                       : kCount > 64 ? 128
                       : kCount > 32 ? 64
                       : kCount > 16 ? 32
                                     : 16;
  int below = 0;
#pragma unroll
  for (int half = kTop; half; half /= 2)
    if (below + half <= kCount && (u32)sList[below + half - 1] < (u32)block) below += half;
  return FoundBlock{ below, below < kCount && sList[below] == block };
}

// Number of keys in the first `count` blocks. The last block may extend beyond the tile's last
// position `last`.
template <class C>
NSAI_DEVICE int count_keys(const MergedListStorage<C> &shared, int count, int last) {
  return count ? listed_keys<C>(count, shared.blocks[count - 1].block, last) : 0;
}

// Calls store(i, block) for the i-th of a list's own blocks and returns their number. One warp.
template <class C, class Store>
NSAI_DEVICE int load_own_blocks(const int *gList, const OwnBlocks &taken, Store store) {
  const int lane = threadIdx.x % 32;
  int count = 0;
  for (int i = 0; i < C::kSelectCount; i += 32) {
    const int block = i + lane < C::kSelectCount ? gList[i + lane] : -1;
    const u32 own = __ballot_sync(~0u, taken.has(block));
    if (own >> lane & 1) store(count + __popc(own & ((1u << lane) - 1)), block);
    count += __popc(own);
  }
  return count;
}

// Loads the list of a tile with a single token and returns its number of blocks. All threads take
// part.
template <class C, class Taken>
NSAI_DEVICE int load_blocks(const int *gList, const Taken &taken, MergedListStorage<C> &shared) {
  if constexpr (Taken::kEvery) {
    int count = 0;
    for (int i = 0; i < C::kSelectCount; i += C::kThreads) {
      const int at = i + (int)threadIdx.x;
      const int block = at < C::kSelectCount ? gList[at] : -1;
      if (at < C::kSelectCount) shared.blocks[at] = MergedBlock{ block, 1 };
      count += __syncthreads_count(block >= 0);
    }
    return count;
  } else {
    if (threadIdx.x < 32)
      shared.ends[0] = load_own_blocks<C>(gList, taken, [&](int i, int block) {
        shared.blocks[i] = MergedBlock{ block, 1 };
      });
    __syncthreads(); // the blocks and, in `ends`, their number are written
    return shared.ends[0];
  }
}

// Copies the lists of a tile to shared memory; -1 stands behind a token's last block, and for tokens that
// do not exist. All threads take part.
template <class C, class Taken>
NSAI_DEVICE void copy_lists(const int *gLists, long long stride, int tokens, const Taken &taken,
                            int *sLists) {
  using U = MergedListStorage<C>;
  constexpr int kCount = U::kCount;
  if constexpr (Taken::kEvery) {
    for (int i = threadIdx.x; i < U::kEntries; i += C::kThreads)
      sLists[i] = i / kCount < tokens ? gLists[i / kCount * stride + i % kCount] : -1;
  } else {
    for (int token = threadIdx.x / 32; token < U::kTokens; token += C::kThreads / 32) {
      int *sList = sLists + token * kCount, count = 0;
      if (token < tokens)
        count = load_own_blocks<C>(gLists + token * stride, taken,
                                   [&](int i, int block) { sList[i] = block; });
      for (int i = count + (int)threadIdx.x % 32; i < kCount; i += 32) sList[i] = -1;
    }
  }
}

// Merges the lists of a tile, which lie `stride` ints apart, and finds each token's end; the first
// token is at position `first`. Returns the number of blocks. `sLists` is free again on return. All
// threads take part.
template <class C, class Taken>
NSAI_DEVICE int merge_lists(const int *gLists, long long stride, int tokens, int first,
                            const Taken &taken, MergedListStorage<C> &shared, int *sLists) {
  using U = MergedListStorage<C>;
  constexpr int kCount = U::kCount, kTokens = U::kTokens, kEntries = U::kEntries,
                kWords = U::kWords;
  copy_lists<C>(gLists, stride, tokens, taken, sLists);
  for (int i = threadIdx.x; i < kTokens * kWords; i += C::kThreads)
    shared.counted[i / kWords][i % kWords] = 0;
  for (int i = threadIdx.x; i < kTokens; i += C::kThreads) shared.ends[i] = 0;
  __syncthreads(); // lists and zeros are written

  for (int i = threadIdx.x; i < kEntries; i += C::kThreads) {
    bool counts = sLists[i] >= 0;
// Searches several lists at once.
#pragma unroll 4
    for (int t = 0; t < kTokens; ++t)
      counts &= t >= i / kCount || !find_block<kCount>(sLists + t * kCount, sLists[i]).exists;
    if (counts) atomicOr(&shared.counted[i / kCount][i % kCount / 32], 1u << i % kCount % 32);
  }
  __syncthreads(); // `counted` is complete

  for (int i = threadIdx.x; i < kEntries; i += C::kThreads) {
    const int block = sLists[i], token = i / kCount, entry = i % kCount;
    if (block < 0) continue;
    int merged_index = 0;
    u32 owners = 0;
#pragma unroll 4
    for (int t = 0; t < kTokens; ++t) {
      const FoundBlock found = find_block<kCount>(sLists + t * kCount, block);
      owners |= (u32)found.exists << t;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const int below = min(max(found.below - 32 * w, 0), 32); // of this word
        merged_index += __popc(shared.counted[t][w] & (below < 32 ? (1u << below) - 1 : ~0u));
      }
    }
    if (shared.counted[token][entry / 32] >> entry % 32 & 1)
      shared.blocks[merged_index] = MergedBlock{ block, owners };
    if (entry + 1 == kCount || sLists[i + 1] < 0)
      shared.ends[token] = listed_keys<C>(merged_index + 1, block, first + token);
  }
  __syncthreads(); // blocks and ends are written

  int count = 0;
  for (int t = 0; t < kTokens; ++t)
#pragma unroll
    for (int w = 0; w < kWords; ++w) count += __popc(shared.counted[t][w]);
  return count;
}

// The keys that a tile's tokens attend to. `gLists`: the list of its first token and this KV head.
// All threads take part.
template <class C, class Taken = EveryBlock>
NSAI_DEVICE BlocksOfTile<C> merge_blocks(const DecodeTile &tile, int tokens, const int *gLists,
                                         long long stride, MergedListStorage<C> &shared,
                                         int *sLists, int row_tile, int lane,
                                         const Taken &taken = {}) {
  const int first = tile.seq.position(tile.first_query);
  BlocksOfTile<C> keys;
  keys.sBlocks = shared.blocks;
  if constexpr (!BlocksOfTile<C>::kOwned) {
    keys.limit = count_keys<C>(shared, load_blocks<C>(gLists, taken, shared), first);
    keys.ends[0] = keys.ends[1] = keys.limit;
  } else {
    const int count = merge_lists<C>(gLists, stride, tokens, first, taken, shared, sLists);
    keys.limit = count_keys<C>(shared, count, first + tokens - 1);
    u32 present = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = (16 * row_tile + 8 * r + lane / 4) / C::kGroupPadded;
      keys.ends[r] = shared.ends[min(token, tokens - 1)];
      if (token < tokens) present |= 1u << token;
    }
    keys.warp_tokens = __reduce_or_sync(~0u, present);
  }
  return keys;
}

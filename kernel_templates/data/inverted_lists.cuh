// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The inverted lists of blocks [T, heads, n] for KV-stationary kernels. The selection blocks of all
// sequences share one numbering: sequence s owns the numbers from cu_kv[s] / l' + s on, which
// leaves enough room (see data/sequence.cuh). Left-over numbers have no block.
#pragma once
#include "core/types.cuh"
#include "data/sequence.cuh"

// An entry of an inverted list: a token, counted from the chunk's first, and the slot 0 .. n - 1 of
// its list that holds the block.
constexpr int kEntryTokenBits = 24;
constexpr u32 kNoEntry = ~0u;

NSAI_DEVICE u32 make_entry(int token, int slot) {
  return (u32)token | (u32)slot << kEntryTokenBits;
}
NSAI_DEVICE int entry_token(u32 entry) { return (int)(entry & ((1u << kEntryTokenBits) - 1)); }
NSAI_DEVICE int entry_slot(u32 entry) { return (int)(entry >> kEntryTokenBits); }

// Stored instead of an entry index: the token does not see the slot's block, or the token does not
// exist.
constexpr int kNoEntryIndex = -1;
constexpr int kNoToken = -2;

template <int kSelectBlock> NSAI_DEVICE int first_block_number(const NsaiSequences &seqs, int s) {
  return seqs.cu_q ? seqs.cu_kv[s] / kSelectBlock + s : 0;
}

// The first token of the chunk that sees a block of its sequence, where tokens see every block up to their own.
template <int kSelectBlock>
NSAI_DEVICE int first_token_of_block(const NsaiInvert &p, const Sequence &seq, int block) {
  const int first = block * kSelectBlock - seq.position(-seq.q_begin); // position t = token + shift
  return max(max(p.token_begin, seq.q_begin), first);
}

// Walks over tokens in ascending order and tracks the position of each. Looks up a sequence only
// when the previous one has ended.
template <class Config> struct TokenCursor {
  int begin = 0, end = 0; // tokens of the current sequence
  int shift;              // position t = token + shift
  int first_block;        // block number of the sequence's first block
  int position;           // of the token; negative if it sees no key
  bool exists;            // false behind the last sequence

  NSAI_DEVICE void move(const NsaiSequences &seqs, int token) {
    if (token >= end || token < begin) {
      int s =
          seqs.cu_q ? find_sequence(seqs.num_seqs, token, [&](int i) { return seqs.cu_q[i]; }) : 0;
      Sequence seq = load_sequence(seqs, s);
      begin = seq.q_begin;
      end = seq.q_begin + seq.q_len;
      shift = seq.position(-seq.q_begin);
      first_block = first_block_number<Config::kSelectBlock>(seqs, s);
    }
    exists = token < end;
    position = exists ? token + shift : -1;
  }

  // Whether the current token attends to block `block` of its list. Blocks that begin less than
  // `near` keys before the token do not count.
  NSAI_DEVICE bool sees(int block, int near) const {
    return block >= 0 && position >= 0 && block <= position / Config::kSelectBlock &&
           position - block * Config::kSelectBlock >= near;
  }
};

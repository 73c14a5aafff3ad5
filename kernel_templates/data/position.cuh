// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The position of a row of q in its sequence, for kernels that process rows one by one.
#pragma once
#include "data/sequence.cuh"

// Position t of row `token` of q. Negative if the sequence has more queries than keys, and for rows
// behind the last sequence. `seqs`: NsaiSequences or, with data/source.cuh, NsaiCacheBatch.
template <class Sequences> NSAI_DEVICE int token_position(const Sequences &seqs, int token) {
  Sequence seq = load_sequence(seqs, find_row_sequence(seqs, token));
  int i = token - seq.q_begin;
  return i < seq.q_len ? seq.position(i) : -1;
}

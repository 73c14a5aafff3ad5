// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Where a row of q stands in its sequence, for kernels that take rows one by one.
#pragma once
#include "data/sequence.cuh"

// `seqs`: NsaiSequences or, with data/source.cuh, NsaiCacheBatch. Position t of row `token` of q: negative
// where the sequence has more queries than keys, and for rows behind the last sequence.
template <class Sequences> NSAI_DEVICE int token_position(const Sequences &seqs, int token) {
  Sequence seq = load_sequence(seqs, find_row_sequence(seqs, token));
  int i = token - seq.q_begin;
  return i < seq.q_len ? seq.position(i) : -1;
}

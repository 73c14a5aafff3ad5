// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Where a row of q stands in its sequence, for kernels that take rows one by one.
#pragma once
#include "common/sequence.cuh"

// Position t of row `token` of q: negative where the sequence has more queries than keys, and for
// rows behind the last sequence.
NSAI_DEVICE int token_position(const NsaiSequences &seqs, int token) {
  int s = seqs.cu_q ? find_sequence(seqs.num_seqs, token, [&](int i) { return seqs.cu_q[i]; }) : 0;
  Sequence seq = load_sequence(seqs, s);
  int i = token - seq.q_begin;
  return i < seq.q_len ? seq.position(i) : -1;
}

// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dkv_window: dK and dV of the window branch. Tokens p <= t < p + w see key p.
//
//   q [T, Hq, Dk], d_o [T, Hq, Dv], RowStatistics [3, T, Hq], k, v [rows, Hkv, D]
//   -> partial [heads, rows, Dk + Dv], read by backward_dkv_sum
//
// Grid: x = heads * tiles, head-major, where tiles = seq.cu_q ? kv_tokens / kKeys + num_seqs :
// ceil(kv_tokens / kKeys), numbered like tiles of query tokens in data/sequence.cuh; y = 1 +
// kSplit. Every tile but the first and the last of a sequence has equally many rows: kKeys + w - 1
// tokens. Main loop, shared memory and Config: backward/dkv_mainloop.cuh.
#pragma once
#include "backward/dkv_mainloop.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dkv_window(const __grid_constant__ NsaiBackwardKv p) {
  begin_kernel();
  attend_found_keys<Config, WindowRows<Config>>(p);
}

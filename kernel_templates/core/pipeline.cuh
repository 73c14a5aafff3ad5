// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Where a producer or a consumer stands in a pipeline of kStages buffers.
//
// Every stage has two barriers (core/barrier.cuh): `full`, on which consumers wait for the data, and
// `empty`, on which the producer waits before it writes again. A barrier's phase alternates with
// every round through the stages; whoever waits passes the phase of its own round.
#pragma once
#include "core/types.cuh"

template <int kStages> struct PipelineState {
  int stage = 0;
  u32 phase = 0;
  NSAI_DEVICE void advance() {
    if (++stage < kStages) return;
    stage = 0;
    phase ^= 1;
  }
  // As advance(), `count` times.
  NSAI_DEVICE void advance(int count) {
    phase ^= (stage + count) / kStages & 1;
    stage = (stage + count) % kStages;
  }
};

// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The position of a producer or a consumer in a pipeline of kStages buffers.
//
// Each stage has two barriers (core/barrier.cuh): consumers wait on `full` for the data, and the
// producer waits on `empty` before it overwrites them. The phase of a barrier alternates with each
// round through the stages; a waiting thread passes the phase of its own round.
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
  // advance(), `count` times.
  NSAI_DEVICE void advance(int count) {
    phase ^= (stage + count) / kStages & 1;
    stage = (stage + count) % kStages;
  }
};

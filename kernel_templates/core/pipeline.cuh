// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// A pipeline of kStages buffers between producers and consumers: its barriers, and the position of
// a producer or a consumer in it.
//
// Each stage has two barriers (core/barrier.cuh): consumers wait on `full` for the data, and the
// producers wait on `empty` before they overwrite them. The phase of a barrier alternates with each
// round through the stages; a waiting thread passes the phase of its own round.
#pragma once
#include "core/barrier.cuh"
#include "core/types.cuh"
#include "params/smem.h"

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

// The barriers u64 [2, kStages] of a pipeline, `full` and then `empty`, at `base` in shared memory.
template <int kStages> struct Barriers {
  static constexpr int kBytes = nsai_barrier_bytes(kStages);
  u32 base;

  NSAI_DEVICE u32 full(int stage) const { return base + 8 * stage; }
  NSAI_DEVICE u32 empty(int stage) const { return base + 8 * kStages + 8 * stage; }

  // Sets the arrivals that complete a phase: of all producers on `full`, of all consumers on
  // `empty`. One thread.
  NSAI_DEVICE void init(int producer_arrivals, int consumer_arrivals) const {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full(stage), producer_arrivals);
      barrier_init(empty(stage), consumer_arrivals);
    }
  }

  // Waits until all consumers have released the stage. In the first round it returns at once: a
  // fresh barrier lets the wait for the phase before its first one pass.
  NSAI_DEVICE void producer_acquire(const PipelineState<kStages> &at) const {
    barrier_wait(empty(at.stage), at.phase ^ 1);
  }
  // One arrival of a producer whose writes to the stage are complete. (Copies arrive on full() by
  // themselves: core/barrier.cuh.)
  NSAI_DEVICE void producer_commit(int stage) const { barrier_arrive(full(stage)); }

  // Waits until all producers have filled the stage.
  NSAI_DEVICE void consumer_wait(int stage, u32 phase) const { barrier_wait(full(stage), phase); }
  // One arrival of a consumer that no longer reads the stage.
  NSAI_DEVICE void consumer_release(int stage) const { barrier_arrive(empty(stage)); }
};

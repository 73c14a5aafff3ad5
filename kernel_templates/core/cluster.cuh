// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Clusters of CTAs (sm_90 and later), one instruction per function: CTAs that run at the same time
// and write to each other's shared memory. Bytes that are sent count on an mbarrier of the receiver
// (core/barrier.cuh), which is all that the receiver waits for. A cluster-wide barrier that orders
// memory would make each thread wait for all of its earlier reads and writes.
#pragma once
#include "core/types.cuh"

// Rank of this CTA in its cluster.
NSAI_DEVICE int cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return (int)rank;
}

// The barrier of all threads of the cluster, in two halves. It orders execution but not writes;
// reads whose values have arrived are complete. Whole warps take part.
NSAI_DEVICE void cluster_arrive() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
NSAI_DEVICE void cluster_wait() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address in CTA `rank` of what this CTA has at `address` of its shared memory.
NSAI_DEVICE u32 cluster_address(u32 address, int rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// Sends x to another CTA, where its bytes count on `barrier`. Both addresses are addresses of that
// CTA.
NSAI_DEVICE void cluster_send(u32 remote, float x, u32 barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
          remote),
      "f"(x), "r"(barrier)
      : "memory");
}
NSAI_DEVICE void cluster_send(u32 remote, u64 x, u32 barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];" ::"r"(
          remote),
      "l"(x), "r"(barrier)
      : "memory");
}
NSAI_DEVICE void cluster_send(u32 remote, const float2 &x, u32 barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, "
               "[%3];" ::"r"(remote),
               "f"(x.x), "f"(x.y), "r"(barrier)
               : "memory");
}
NSAI_DEVICE void cluster_send(u32 remote, const float4 &x, u32 barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, "
      "%4}, [%5];" ::"r"(remote),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}

// barrier_wait() of core/barrier.cuh for messages from other CTAs of the cluster.
NSAI_DEVICE void cluster_receive(u32 barrier, u32 phase) {
  u32 done;
  do {
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(barrier), "r"(phase)
        : "memory");
  } while (!done);
}

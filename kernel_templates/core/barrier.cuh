// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// mbarrier (sm_80 and later; transaction bytes: sm_90), one instruction per function. A barrier is
// 8 bytes of shared memory.
#pragma once
#include "core/types.cuh"

NSAI_DEVICE void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

NSAI_DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier)
               : "memory");
}

// Arrives once all earlier cp.async of this thread are complete; counts as one of the barrier's
// arrivals.
NSAI_DEVICE void barrier_arrive_after_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and the phase completes only after `bytes` bytes of bulk copies have also arrived.
NSAI_DEVICE void barrier_arrive_expecting(u32 barrier, u32 bytes) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;}" ::"r"(
                   barrier),
               "r"(bytes)
               : "memory");
}

// Makes initialised barriers visible to copies of the asynchronous proxy (sm_90).
NSAI_DEVICE void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Whether the given phase has completed. On sm_90 and later the hardware may suspend the thread for
// a short time before it answers no.
NSAI_DEVICE bool barrier_test(u32 barrier, u32 phase) {
  u32 done;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(barrier), "r"(phase)
      : "memory");
#else
  asm volatile(
      "{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(barrier), "r"(phase)
      : "memory");
#endif
  return done;
}

// Whether the given phase has completed, without ever suspending the thread.
NSAI_DEVICE bool barrier_passed(u32 barrier, u32 phase) {
  u32 done;
  asm volatile(
      "{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(barrier), "r"(phase)
      : "memory");
  return done;
}

// Spins until the given phase has completed.
NSAI_DEVICE void barrier_wait(u32 barrier, u32 phase) {
  while (!barrier_test(barrier, phase)) {}
}

// A counter in shared memory that one thread publishes and others poll. All reads and writes of the
// publishing thread before publish(), and those of its warp before a __syncwarp(), are complete for
// a thread that has seen the new value. (racecheck follows barriers only and reports a race between
// the two.)
NSAI_DEVICE void publish(u32 address, int number) {
  asm volatile("st.release.cta.shared.s32 [%0], %1;" ::"r"(address), "r"(number) : "memory");
}
NSAI_DEVICE int published(u32 address) {
  int number;
  asm volatile("ld.acquire.cta.shared.s32 %0, [%1];" : "=r"(number) : "r"(address) : "memory");
  return number;
}

// The same for a counter in global memory, between CTAs.
NSAI_DEVICE void release_word(int *to, int x) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
NSAI_DEVICE int acquire_word(const int *from) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}

// The same for a word that another GPU of the host, or the host, writes or reads. The release covers
// what threads of the CTA stored before a __syncthreads() that this thread has passed.
NSAI_DEVICE void release_word_system(int *to, int x) {
  asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
NSAI_DEVICE int acquire_word_system(const int *from) {
  int x;
  asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}

// A clock of the whole GPU, in nanoseconds; it advances by up to a microsecond at a time.
NSAI_DEVICE u64 global_nanoseconds() {
  u64 x;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(x));
  return x;
}

// __syncthreads() for kThreads threads of the CTA (whole warps) on named barrier kBarrier;
// __syncthreads() itself uses barrier 0.
template <int kBarrier, int kThreads> NSAI_DEVICE void sync_some() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

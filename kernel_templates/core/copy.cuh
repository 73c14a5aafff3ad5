// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Copies between global and shared memory, one instruction per function.
#pragma once
#include "core/types.cuh"

NSAI_DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Copies 16 bytes from global to shared memory, bypassing L1. If `present` is false nothing is read
// and zeros are written.
NSAI_DEVICE void copy_async_16(u32 to_shared, const void *from_global, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from_global),
               "r"(present ? 16 : 0)
               : "memory");
}

// An L2 policy for loads: evict_first if the data are read only once, otherwise evict_normal.
NSAI_DEVICE u64 l2_policy(bool once) {
  u64 normal, first;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  return once ? first : normal;
}

// The same address in shared memory, in a form that the compiler does not recognise as
// warp-uniform. With a uniform address, a copy with an L2 policy may add a uniform register to a
// lane's register, and ptxas up to 13.3 loses that register's number
// (runtime/compile/sass_check.h).
NSAI_DEVICE u32 lane_address(u32 shared) { return (u32)max((int)shared, (int)~threadIdx.x); }

// copy_async_16() with an L2 policy, to an address made from lane_address().
NSAI_DEVICE void copy_async_16(u32 to_shared, const void *from_global, bool present, u64 policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to_shared),
               "l"(from_global), "r"(present ? 16 : 0), "l"(policy)
               : "memory");
}

NSAI_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's newest groups are in flight.
template <int kPending> NSAI_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads 16 bytes of shared memory.
NSAI_DEVICE Chunk load_shared(u32 from_shared) {
  Chunk x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])
               : "r"(from_shared)
               : "memory");
  return x;
}

// Loads 8 bytes of shared memory.
NSAI_DEVICE uint2 load_shared_pair(u32 from_shared) {
  uint2 x;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(x.x), "=r"(x.y)
               : "r"(from_shared)
               : "memory");
  return x;
}

// Loads 4 bytes of shared memory.
NSAI_DEVICE u32 load_shared_word(u32 from_shared) {
  u32 x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from_shared) : "memory");
  return x;
}

NSAI_DEVICE void store_shared_word(u32 to_shared, u32 x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to_shared), "r"(x) : "memory");
}

// Stores 16 bytes into shared memory.
NSAI_DEVICE void store_shared(u32 to_shared, const Chunk &x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to_shared), "r"(x.w[0]),
               "r"(x.w[1]), "r"(x.w[2]), "r"(x.w[3])
               : "memory");
}

// Stores 8 bytes into shared memory.
NSAI_DEVICE void store_shared_pair(u32 to_shared, uint2 x) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to_shared), "r"(x.x), "r"(x.y) : "memory");
}

// Stores 16 bytes to global memory, bypassing L1.
NSAI_DEVICE void store_once(void *to_global, const Chunk &x) {
  asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to_global),
               "r"(x.w[0]), "r"(x.w[1]), "r"(x.w[2]), "r"(x.w[3])
               : "memory");
}

// Loads 8 bytes that are not read again.
NSAI_DEVICE uint2 load_streaming(const void *from_global) {
  uint2 x;
  asm volatile("ld.global.cs.v2.b32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from_global));
  return x;
}

// An L2 policy for data to keep in preference to all other: evict_last.
NSAI_DEVICE u64 l2_keeping() {
  u64 last;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
  return last;
}

// Stores a float to global memory with an L2 policy.
NSAI_DEVICE void store_by(float *to_global, float x, u64 policy) {
  asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(to_global), "f"(x), "l"(policy)
               : "memory");
}

// Discards the 128-byte line at a global address from L2 without writing it back. Its contents are
// undefined until it is written again.
NSAI_DEVICE void discard_line(const void *global) {
  asm volatile("discard.global.L2 [%0], 128;" ::"l"(global) : "memory");
}

// Prefetches the 128-byte line at a global address into L2.
NSAI_DEVICE void prefetch_line(const void *global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

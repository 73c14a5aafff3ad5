// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// stream_read: reads memory and does nothing else, 8 times 16 bytes of a thread on their way: what
// a kernel that is bound by reading is held against. bandwidth.c launches it.
//
//   *seen |= every word of from[0 .. count)

struct StreamRead {
  const uint4 *from;
  unsigned long long count;
  unsigned *seen;
};

static __device__ __forceinline__ unsigned read(const uint4 *from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x.x | x.y | x.z | x.w;
}

extern "C" __global__ void __launch_bounds__(256)
    stream_read(const __grid_constant__ StreamRead p) {
  constexpr int kAtOnce = 8;
  const unsigned long long step = gridDim.x * 256ull;
  unsigned long long at = blockIdx.x * 256ull + threadIdx.x;
  unsigned seen = 0;
  for (; at + (kAtOnce - 1) * step < p.count; at += kAtOnce * step) {
    unsigned x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) x[i] = read(p.from + at + i * step);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) seen |= x[i];
  }
  for (; at < p.count; at += step) seen |= read(p.from + at);
  seen = __reduce_or_sync(~0u, seen);
  if (threadIdx.x % 32 == 0) atomicOr(p.seen, seen);
}

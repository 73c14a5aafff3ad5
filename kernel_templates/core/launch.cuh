// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Kernels that overlap (sm_90 and up): a kernel of a run may begin before the one right before it in
// the stream has ended, and use the multiprocessors that this one leaves. Two rules, of every kernel:
//
//   - every block of threads waits for the kernel before, whatever it has to do or not: so a kernel
//     that has ended has all those before it ended;
//   - it lets the next one begin only when it has waited. So when a kernel begins, all kernels have
//     ended but the one right before it.
//
// Before it has waited, a kernel may read and write what the one right before it neither writes nor
// reads, and nothing else. Launched without overlap (runtime/driver/launch.h), it does not wait for
// anything.
//
// Measured on an H200, forward of 64/4 heads, D 128, in a long run: 1k tokens 0.144 -> 0.130 ms, 4k
// 0.802 -> 0.785; 64k the same. Two thirds of it come from what begins before it
// waits (NsaiAttend.early). Tried without gain: consumers of attend_selected_sm90 that read their
// queries before the producers have waited (0).
#pragma once
#include "core/types.cuh"

// Until the kernel before has ended; its writes are visible to the threads that have waited.
NSAI_DEVICE void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The kernel behind may begin once a thread of every block has said so, or ended.
NSAI_DEVICE void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Both, at the start of a kernel that reads first what the one before has written.
NSAI_DEVICE void begin_kernel() {
  wait_for_kernel_before();
  let_next_kernel_begin();
}

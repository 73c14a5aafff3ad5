// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Programmatic dependent launch (sm_90 and later): a kernel may begin before the previous kernel in
// the stream has ended, and use the SMs that it no longer occupies. Every kernel obeys two rules:
//
//   - Each CTA waits for the previous kernel, whether it has work or not. When a kernel has ended,
//   all earlier kernels have therefore ended too.
//   - It lets the next kernel begin only after it has waited itself. When a kernel begins, all
//   earlier kernels except the previous one have therefore ended.
//
// Before it has waited, a kernel may read only what the previous kernel does not write, and may
// write only what it neither reads nor writes. Launched without overlap (runtime/driver/launch.h),
// a kernel does not wait.
//
// Measured on an H200, forward pass with 64/4 heads, D 128, in a long run: 1k tokens 0.144 ->
// 0.130 ms, 4k 0.802 -> 0.785 ms, 64k unchanged. Two thirds of it come from work that precedes the
// wait (NsaiAttend.early). Tried without gain: consumers of attend_selected_sm90 that read their
// queries before the producers have waited.
#pragma once
#include "core/types.cuh"

// Waits until the previous kernel has ended; its writes are then visible to the waiting threads.
NSAI_DEVICE void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel begin, once a thread of every CTA has called this or exited.
NSAI_DEVICE void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Both, for kernels that first read what the previous kernel has written.
NSAI_DEVICE void begin_kernel() {
  wait_for_kernel_before();
  let_next_kernel_begin();
}

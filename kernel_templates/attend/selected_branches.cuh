// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What kernels of the selected branch on the ring of attend/selected_pipeline.cuh have to do: that branch
// alone, or the window's as well.
#pragma once
#include "core/types.cuh"
#include "params/attention.h"

// Params of a kernel are NsaiAttendSelectedTma or, where it does the window's branch as well,
// NsaiSelectedWindow.
template <class Params> constexpr bool kCanWindow = false;
template <> constexpr bool kCanWindow<NsaiSelectedWindow> = true;

NSAI_DEVICE const NsaiAttendSelectedTma &selected_params(const NsaiAttendSelectedTma &p) {
  return p;
}
NSAI_DEVICE const NsaiAttendSelectedTma &selected_params(const NsaiSelectedWindow &p) {
  return p.selected;
}

// A part's epilogue.
NSAI_DEVICE const NsaiEpilogue &epilogue_of(const NsaiAttendSelectedTma &p, int) {
  return p.attend.out;
}
NSAI_DEVICE const NsaiEpilogue &epilogue_of(const NsaiSelectedWindow &p, int branch) {
  return p.out[branch];
}

// The parts of a run: [first_branch, end_branch) of NSAI_PART_*.
template <class Params> NSAI_DEVICE int first_branch(const Params &p) {
  if constexpr (kCanWindow<Params>) return p.first_branch;
  return NSAI_FUSED_SELECTED;
}
template <class Params> NSAI_DEVICE int end_branch(const Params &p) {
  if constexpr (kCanWindow<Params>) return p.end_branch;
  return NSAI_FUSED_BRANCHES;
}

// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Which branches a kernel on the pipeline of attend/selected_pipeline.cuh computes: the selected
// branch alone, or the window branch as well.
#pragma once
#include "core/types.cuh"
#include "params/attention.h"

// A kernel takes NsaiAttendSelectedTma, or NsaiSelectedWindow if it can also compute the window
// branch.
template <class Params> constexpr bool kCanWindow = false;
template <> constexpr bool kCanWindow<NsaiSelectedWindow> = true;

NSAI_DEVICE const NsaiAttendSelectedTma &selected_params(const NsaiAttendSelectedTma &p) {
  return p;
}
NSAI_DEVICE const NsaiAttendSelectedTma &selected_params(const NsaiSelectedWindow &p) {
  return p.selected;
}

// The epilogue of a branch.
NSAI_DEVICE const NsaiEpilogue &epilogue_of(const NsaiAttendSelectedTma &p, int) {
  return p.attend.out;
}
NSAI_DEVICE const NsaiEpilogue &epilogue_of(const NsaiSelectedWindow &p, int branch) {
  return p.out[branch];
}

// The branches of a launch: [first_branch, end_branch) of NSAI_FUSED_*.
template <class Params> NSAI_DEVICE int first_branch(const Params &p) {
  if constexpr (kCanWindow<Params>) return p.first_branch;
  return NSAI_FUSED_SELECTED;
}
template <class Params> NSAI_DEVICE int end_branch(const Params &p) {
  if constexpr (kCanWindow<Params>) return p.end_branch;
  return NSAI_FUSED_BRANCHES;
}

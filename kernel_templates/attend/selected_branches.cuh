// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Which branches a kernel on the pipeline of attend/selected_pipeline.cuh computes: the selected
// branch alone, or the window branch as well.
#pragma once
#include "core/types.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

// A kernel takes NsaiAttendSelectedTma, or NsaiSelectedWindow if it can also compute the window
// branch; over a cache the structs that contain them.
template <class Params> constexpr bool kCanWindow = false;
template <> constexpr bool kCanWindow<NsaiSelectedWindow> = true;
template <> constexpr bool kCanWindow<NsaiCachedSelectedWindow> = true;
template <> constexpr bool kCanWindow<NsaiCodedSelectedWindow> = true;

template <class Params> constexpr bool kIsCached = false;
template <> constexpr bool kIsCached<NsaiCachedAttendSelectedTma> = true;
template <> constexpr bool kIsCached<NsaiCachedSelectedWindow> = true;
template <> constexpr bool kIsCached<NsaiCodedAttendSelectedTma> = true;
template <> constexpr bool kIsCached<NsaiCodedSelectedWindow> = true;

NSAI_DEVICE const NsaiAttendSelectedTma &selected_params(const NsaiAttendSelectedTma &p) {
  return p;
}
NSAI_DEVICE const NsaiAttendSelectedTma &selected_params(const NsaiSelectedWindow &p) {
  return p.selected;
}
NSAI_DEVICE const NsaiAttendSelectedTma &selected_params(const NsaiCachedAttendSelectedTma &p) {
  return p.packed;
}
NSAI_DEVICE const NsaiAttendSelectedTma &selected_params(const NsaiCachedSelectedWindow &p) {
  return p.packed.selected;
}

NSAI_DEVICE const NsaiAttendSelectedTma &selected_params(const NsaiCodedAttendSelectedTma &p) {
  return p.cached.packed;
}
NSAI_DEVICE const NsaiAttendSelectedTma &selected_params(const NsaiCodedSelectedWindow &p) {
  return p.cached.packed.selected;
}

NSAI_DEVICE const NsaiSelectedWindow &window_params(const NsaiSelectedWindow &p) { return p; }
NSAI_DEVICE const NsaiSelectedWindow &window_params(const NsaiCachedSelectedWindow &p) {
  return p.packed;
}
NSAI_DEVICE const NsaiSelectedWindow &window_params(const NsaiCodedSelectedWindow &p) {
  return p.cached.packed;
}

// K and V of the lists and of the window.
template <class Params> NSAI_DEVICE const auto &list_keys(const Params &p) {
  if constexpr (kIsCached<Params>)
    return cached_of(p).pair.k;
  else
    return selected_params(p).attend.k;
}
template <class Params> NSAI_DEVICE const auto &list_values(const Params &p) {
  if constexpr (kIsCached<Params>)
    return cached_of(p).pair.v;
  else
    return selected_params(p).attend.v;
}
template <class Params> NSAI_DEVICE const auto &window_keys(const Params &p) {
  if constexpr (kIsCached<Params>)
    return cached_of(p).window.k;
  else
    return p.window_k;
}
template <class Params> NSAI_DEVICE const auto &window_values(const Params &p) {
  if constexpr (kIsCached<Params>)
    return cached_of(p).window.v;
  else
    return p.window_v;
}

// The epilogue of a branch.
template <class Params> NSAI_DEVICE const NsaiEpilogue &epilogue_of(const Params &p, int branch) {
  if constexpr (kCanWindow<Params>)
    return window_params(p).out[branch];
  else
    return selected_params(p).attend.out;
}

// The branches of a launch: [first_branch, end_branch) of NSAI_FUSED_*.
template <class Params> NSAI_DEVICE int first_branch(const Params &p) {
  if constexpr (kCanWindow<Params>) return window_params(p).first_branch;
  return NSAI_FUSED_SELECTED;
}
template <class Params> NSAI_DEVICE int end_branch(const Params &p) {
  if constexpr (kCanWindow<Params>) return window_params(p).end_branch;
  return NSAI_FUSED_BRANCHES;
}

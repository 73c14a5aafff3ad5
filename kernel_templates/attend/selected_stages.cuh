// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Fills the stages of attend/selected_pipeline.cuh, from packed tensors or a cache: where a tile's
// keys lie, the copies of a stage, and the tasks of loaders.
#pragma once
#include "attend/selected_branches.cuh"
#include "attend/selected_tiles.cuh"
#include "core/barrier.cuh"
#include "core/copy.cuh"
#include "core/expand_codes.cuh"
#include "core/tma.cuh"
#include "data/cached_boxes.cuh"

// Bits of the consumer warps that hold a token's rows.
template <class Config> NSAI_DEVICE u32 warps_of_token(int token) {
  constexpr int kWarpsOfToken = Config::kGroupPadded <= 16 ? 1 : Config::kGroupPadded / 16;
  return ((1u << kWarpsOfToken) - 1) << (token * Config::kGroupPadded / 16);
}

// Where the copies find a tile's keys in packed tensors.
struct KeyLocation {
  int row;   // row of k and v that is key 0
  int group; // KV head
  // Keys from here on must not come by TMA: they are rows of another sequence or beyond the longest
  // one. The largest int if no sequence follows.
  int rest;
  NSAI_DEVICE int page_of_lane(int) const { return 0; }
};

// The same in a cache.
template <class Boxes> struct CachedKeyLocation {
  Boxes boxes;
  int group;
  NSAI_DEVICE int page_of_lane(int first) const { return boxes.page_of_lane(first); }
};

// Starts the copies of keys [first, first + kKeys) of a sequence into stage s and arrives on its
// full barrier. Called by a whole warp; the arrival also covers the warp's plain stores. `v` is the
// tensor that v_map describes.
template <class Config>
NSAI_DEVICE void fill_stage(const NsaiTensorMap &k_map, const NsaiTensorMap &v_map,
                            const NsaiView &k, const NsaiView &v, const KeyLocation &at, u32 base,
                            int s, int first, int) {
  using R = SelectedPipeline<Config>;
  const u32 full = Barriers<R::kStages>{ base + R::kBarriers }.full(s);
  const u32 sK = base + R::kSK + s * R::kKBytes; // [kKeys, Dk]
  const u32 sV = base + R::kSV + s * R::kVBytes; // [kKeys, Dv]
  const int row = at.row + first;
  const bool foreign = first + R::kKeys > at.rest;
  if (foreign) {
    const u16 *gV =
        (const u16 *)v.data + row * v.token_stride + at.group * v.head_stride; // [., Dv]
    copy_present_rows<R::kKeys, Config::kHeadDimV>(sV, gV, v.token_stride, at.rest - first);
  }
  if (threadIdx.x % 32 != 0) {
    barrier_arrive(full);
    return;
  }
  barrier_arrive_expecting(full, foreign ? R::kKBytes : R::kKBytes + R::kVBytes);
  tma_load_panels<Config::kHeadDimQk>(sK, k_map, full, R::kKeys, box_head(k, at.group), row);
  if (!foreign)
    tma_load_panels<Config::kHeadDimV>(sV, v_map, full, R::kKeys, box_head(v, at.group), row);
}

// The same from a cache; `page`: at.page_of_lane(first). Codes that are expanded arrive on a barrier
// of their own, and expand_stage() continues.
template <class Config, class Boxes>
NSAI_DEVICE void fill_stage(const NsaiTensorMap &k_map, const NsaiTensorMap &v_map,
                            const NsaiCacheTensor &k, const NsaiCacheTensor &v,
                            const CachedKeyLocation<Boxes> &at, u32 base, int s, int first,
                            int page) {
  using R = SelectedPipeline<Config>;
  constexpr int kDk = kRowWords<Config, Config::kHeadDimQk>,
                kDv = kRowWords<Config, Config::kHeadDimV>;
  const u32 full =
      R::kExpands ? R::arrived(base, s) : Barriers<R::kStages>{ base + R::kBarriers }.full(s);
  const u32 sK = base + R::kSK + s * R::kKBytes; // [kKeys, Dk]
  const u32 sV = base + R::kSV + s * R::kVBytes; // [kKeys, Dv]
  const bool keys = at.boxes.boxed(), values = at.boxes.boxed_values(first);
  const bool announces = threadIdx.x % 32 == 0;
  if (!keys) at.boxes.template copy_present<kDk>(sK, k, at.group, first);
  if (!values) at.boxes.template copy_present<kDv>(sV, v, at.group, first);
  if (announces)
    barrier_arrive_expecting(full, (keys ? nsai_panel_bytes(R::kKeys, kDk) : 0) +
                                       (values ? nsai_panel_bytes(R::kKeys, kDv) : 0));
  __syncwarp(); // the bytes are announced before any arrives
  if (keys) at.boxes.template load<kDk>(sK, k_map, full, k, at.group, first, page);
  if (values) at.boxes.template load<kDv>(sV, v_map, full, v, at.group, first, page);
  if (!announces) barrier_arrive(full);
}

// Waits for the codes of stage s, expands them, and arrives on its full barrier. A whole warp.
template <class Config> NSAI_DEVICE void expand_stage(u32 base, int s, u32 phase) {
  using R = SelectedPipeline<Config>;
  using Element = typename ProductConfig<Config>::Element;
  barrier_wait(R::arrived(base, s), phase);
  expand_code_share<Element, Config::kHeadDimQk, R::kKeys, 1>(base + R::kSK + s * R::kKBytes, 0);
  expand_code_share<Element, Config::kHeadDimV, R::kKeys, 1>(base + R::kSV + s * R::kVBytes, 0);
  Barriers<R::kStages>{ base + R::kBarriers }.producer_commit(s);
}

// Flags in the low bits of a task, whose first key is a multiple of 16.
constexpr int kFromWindow = 1, kLastTask = 2, kNoKeys = 4;

// Publishes the task of a stage to the loaders. A whole warp; the arrivals also cover its plain
// stores.
template <class Config> NSAI_DEVICE void list_stage(unsigned char *shared, int s, int task) {
  using R = SelectedPipeline<Config>;
  const u32 base = shared_address(shared);
  if (threadIdx.x % 32 == 0) ((int *)(shared + R::kSTask))[s] = task;
  barrier_arrive(R::listed(base, s));
  Barriers<R::kStages>{ base + R::kBarriers }.producer_commit(s);
}

// Fills stage s with the window's keys from `first` on.
template <class Config, class Params, class Location>
NSAI_DEVICE void fill_from_window(const Params &params, const Location &keys, u32 base, int s,
                                  int first, int page) {
  const NsaiSelectedWindow &p = window_params(params);
  fill_stage<Config>(p.window_k_map, p.window_v_map, window_keys(params), window_values(params),
                     keys, base, s, first, page);
}

// The same with the keys of the lists.
template <class Config, class Params, class Location>
NSAI_DEVICE void fill_from_lists(const Params &params, const Location &keys, u32 base, int s,
                                 int first, int page) {
  const NsaiAttendSelectedTma &p = selected_params(params);
  fill_stage<Config>(p.k, p.v, list_keys(params), list_values(params), keys, base, s, first, page);
}

// Where a tile's keys of the selected branch and of the window lie; s: its sequence.
template <class Config, class Params>
NSAI_DEVICE auto locate_lists(const Params &params, const TilePosition &at, int s) {
  if constexpr (Config::kCached) {
    const auto boxes =
        find_boxes<Config::kPageRows, nsai_list_box_rows(Config::kPageRows, Config::kKeys),
                   Config::kKeys>(sequences_of(params), cached_of(params).pair, s, 0,
                                  at.seq.kv_len);
    return CachedKeyLocation<decltype(boxes)>{ boxes, at.group };
  } else {
    const int end = at.seq.kv_begin + at.seq.kv_len;
    return KeyLocation{ at.seq.kv_begin, at.group,
                        end < sequences_of(params).kv_tokens ? at.seq.kv_len : 0x7fffffff };
  }
}
template <class Config, class Params>
NSAI_DEVICE auto locate_window(const Params &params, const TilePosition &at, int s) {
  if constexpr (Config::kCached) {
    const int first = WindowKeys<Config>::visible(at.seq.position(at.first_query)).begin;
    const auto boxes = find_boxes<Config::kWindowPageRows, NSAI_WINDOW_BOX_ROWS, Config::kKeys>(
        sequences_of(params), cached_of(params).window, s, first, at.seq.kv_len);
    return CachedKeyLocation<decltype(boxes)>{ boxes, at.group };
  } else {
    return locate_lists<Config>(params, at, s);
  }
}

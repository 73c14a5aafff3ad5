// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The producers of backward/pipelines/dkv.cuh: one warp fills the stages with rows of q and d_o.
// Another one writes for each row its statistics and the keys that it sees. Persistent CTAs
// (backward/pipelines/dkv_items_producer.cuh) use the steps of the first one.
#pragma once
#include "backward/pipelines/dkv_stages.cuh"

// Starts the copy of rows [0, present) of a stage of a tensor, with kBefore of rows [before,
// present); the others are zeros.
template <class Config, int kDim, bool kBefore = false, class Rows>
NSAI_DEVICE void copy_rows(u32 to, const NsaiView &x, const Rows &rows, int head, int first,
                           int present, int before = 0) {
  constexpr int kRows = DkvPipeline<Config>::kRows, kChunks = panels(kDim) * 8;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < kRows * kChunks; i += 32) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool is = row < present && chunk * 8 < kDim && (!kBefore || row >= before);
    const long long token = is ? rows.token(first + row / Config::kGroup) : 0;
    copy_async_16(to + chunk / 8 * kRows * kPanelPitch + panel_offset(row, chunk),
                  (const u16 *)x.data + token * x.token_stride +
                      (head * Config::kGroup + row % Config::kGroup) * x.head_stride + chunk * 8,
                  is);
  }
}

// Issues the TMA loads of a stage: one for tokens that are adjacent in memory, otherwise one per
// token.
template <class Config, int kDim, class Rows>
NSAI_DEVICE void load_boxes(u32 to, const NsaiTensorMap &map, u32 barrier, const Rows &rows,
                            int head, int first) {
  using R = DkvPipeline<Config>;
  if constexpr (Rows::kBranch != NSAI_BRANCH_SELECTED) {
    if (threadIdx.x % 32 == 0)
      tma_load_panels<kDim>(to, map, barrier, R::kRows, head * Config::kGroup, rows.token(first));
  } else {
    const int token = threadIdx.x % 32;
    if (token < R::kTokens)
#pragma unroll
      for (int i = 0; i < panels(kDim); ++i)
        tma_load(to + (i * R::kRows + token * Config::kGroup) * kPanelPitch, map, barrier,
                 i * kPanelColumns, head * Config::kGroup, rows.token(first + token));
  }
}

// Issues the TMA loads of K and V. One thread.
template <class Config>
NSAI_DEVICE void load_key_boxes(const NsaiBackwardKvTma &p, const KeyTile &tile, u32 base) {
  using R = DkvPipeline<Config>;
  const NsaiBackwardKv &kv = p.kv;
  const u32 full = base + R::kKeysFull;
  barrier_arrive_expecting(full, R::K::kBytes + R::V::kBytes);
  tma_load_panels<Config::kHeadDimQk>(base + R::kSK, p.k, full, Config::kKeys,
                                      box_head(kv.k, tile.head), (int)tile.key_row);
  tma_load_panels<Config::kHeadDimV>(base + R::kSV, p.v, full, Config::kKeys,
                                     box_head(kv.v, tile.head), (int)tile.key_row);
}

// Fills the stages with rows of q and d_o, from stage `step` on, and leaves it behind the last one.
// kBefore: the first `before` tokens of the first stage are zeros. find_boxes(first) is called for
// each stage: `rows`, or what a lane needs of them to load boxes.
template <class Config, bool kBefore = false, class Rows, class FindBoxes>
NSAI_DEVICE void produce_stages(const NsaiBackwardKvTma &p, const KeyTile &tile, const Rows &rows,
                                u32 base, int before,
                                PipelineState<DkvPipeline<Config>::kStages> &step,
                                FindBoxes find_boxes) {
  using R = DkvPipeline<Config>;
  const NsaiBackwardKv &kv = p.kv;
  const Barriers<R::kStages> barriers = { base + R::kBarriers };
  for_stages<Config>(tile, [&](int first) {
    const u32 full = barriers.full(step.stage),
              sQ = base + R::kSStage + step.stage * R::kStageBytes, sDO = sQ + R::Q::kBytes;
    const auto boxes = find_boxes(first);
    barriers.producer_acquire(step);
    if (first + R::kTokens <= tile.tokens && (!kBefore || first >= before)) {
      if (threadIdx.x % 32 == 0) barrier_arrive_expecting(full, R::kStageBytes);
      __syncwarp(); // the expected bytes are set
      load_boxes<Config, Config::kHeadDimQk>(sQ, p.q, full, boxes, tile.head, first);
      load_boxes<Config, Config::kHeadDimV>(sDO, p.d_o, full, boxes, tile.head, first);
      if (threadIdx.x % 32) barrier_arrive(full);
    } else {
      const int present = (tile.tokens - first) * Config::kGroup;
      const int absent = kBefore ? (before - first) * Config::kGroup : 0;
      copy_rows<Config, Config::kHeadDimQk, kBefore>(sQ, kv.q, rows, tile.head, first, present,
                                                     absent);
      copy_rows<Config, Config::kHeadDimV, kBefore>(sDO, kv.d_o, rows, tile.head, first, present,
                                                    absent);
      copy_async_commit();
      copy_async_wait<0>();
      shared_proxy_fence();
      barrier_arrive(full);
    }
    step.advance();
  });
}

// The same in a CTA of one tile.
template <class Config, bool kBefore = false, class Rows>
NSAI_DEVICE void produce_stages(const NsaiBackwardKvTma &p, const KeyTile &tile, const Rows &rows,
                                u32 base, int before = 0) {
  PipelineState<DkvPipeline<Config>::kStages> step;
  produce_stages<Config, kBefore>(p, tile, rows, base, before, step, [&](int) { return rows; });
}

template <class Config, class Rows>
NSAI_DEVICE void produce_boxes(const NsaiBackwardKvTma &p, const KeyTile &tile, const Rows &rows,
                               u32 base) {
  if (threadIdx.x % 32 == 0) load_key_boxes<Config>(p, tile, base);
  produce_stages<Config>(p, tile, rows, base);
}

// Statistics and visible keys of a lane's rows of a stage.
template <class Config> struct KnownRows {
  static constexpr int kRows = DkvPipeline<Config>::kRows / 32;
  float4 x[kRows]; // RowStatistics
  u32 seen[kRows];
};

template <class Config, class Rows>
NSAI_DEVICE void load_known(KnownRows<Config> &known, const NsaiBackwardKv &p, const KeyTile &tile,
                            const Rows &rows, int first) {
  using R = DkvPipeline<Config>;
#pragma unroll
  for (int i = 0; i < R::kRows / 32; ++i) {
    const int row = threadIdx.x % 32 + 32 * i, token = first + row / Config::kGroup;
    known.x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    known.seen[i] = 0;
    if (token >= tile.tokens) continue;
    known.x[i] = ((const float4 *)p.statistics)[statistics_at(
        Rows::kBranch, p.seq.q_tokens, rows.token(token), Config::kGroup * p.kv_heads,
        tile.head * Config::kGroup + row % Config::kGroup)];
    known.seen[i] = rows.seen(token);
  }
}

// The word of kAll for tile t of 64 keys.
template <class Config> NSAI_DEVICE u32 seen_of_tile(const KnownRows<Config> &known, int t) {
  using R = DkvPipeline<Config>;
  bool some = false, all = true;
#pragma unroll
  for (int i = 0; i < R::kRows / 32; ++i) {
    const int begin = (int)(known.seen[i] & 0xffff), end = (int)(known.seen[i] >> 16);
    some |= max(begin, 64 * t) < min(end, 64 * t + 64);
    all &= begin <= 64 * t && end >= 64 * t + 64;
  }
  return (__any_sync(~0u, some) ? kSomeSeen : 0) | (__all_sync(~0u, all) ? 0 : kPartlySeen);
}

// The loop of the warp that writes what is known of the rows. `t` is 0: the number of the warp, from the
// caller. (Without it the machine code of backward_dkv_compressed_tma with kRows 32 would differ, NVRTC 13.0.)
template <class Config, class Rows>
NSAI_DEVICE void produce_known(const NsaiBackwardKv &p, const KeyTile &tile, const Rows &rows,
                               u32 base, int t) {
  using R = DkvPipeline<Config>;
  static_assert(!Config::kJoins, "one warp writes the statistics of one branch");
  const Barriers<R::kStages> barriers = { base + R::kBarriers };
  PipelineState<R::kStages> step;
  KnownRows<Config> known;
  auto store = [&]() {
    const u32 to = base + R::kSKnown + step.stage * R::kKnownBytes;
    u32 all[R::kTiles];
#pragma unroll
    for (int i = 0; i < R::kTiles; ++i) all[i] = seen_of_tile<Config>(known, i);
    barriers.producer_acquire(step);
#pragma unroll
    for (int i = 0; i < R::kRows / 32; ++i) {
      const int row = threadIdx.x % 32 + 32 * i;
      store_shared_word(to + 8 * (t * R::kRows + row), __float_as_uint(known.x[i].x));
      store_shared_word(to + 8 * (t * R::kRows + row) + 4, __float_as_uint(known.x[i].z));
      if (t > 0) continue;
      if constexpr (!kGateInLse<Config>)
        store_shared_word(to + R::kGates + 4 * row, __float_as_uint(known.x[i].y));
      store_shared_word(to + R::kSeen + 4 * row, known.seen[i]);
    }
    if (threadIdx.x % 32 == 0 && t == 0)
#pragma unroll
      for (int i = 0; i < R::kTiles; ++i) store_shared_word(to + R::kAll + 4 * i, all[i]);
    barriers.producer_commit(step.stage);
    step.advance();
  };
  bool any = false;
  for_stages<Config>(tile, [&](int first) {
    // Stores the previous stage first: the loads of the current one overlap with the wait.
    if (any) store();
    load_known<Config>(known, p, tile, rows, first);
    any = true;
  });
  if (any) store();
}

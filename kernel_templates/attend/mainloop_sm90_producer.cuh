// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The producers of attend/mainloop_sm90.cuh: one warp, or four where they copy compressed entries of
// a cache. Raw tokens in codes arrive on barriers of their own, and the three other warps expand
// them (core/expand_codes.cuh).
#pragma once
#include "attend/mainloop_sm90_tiles.cuh"
#include "core/barrier.cuh"
#include "core/copy.cuh"
#include "core/expand_codes.cuh"
#include "core/pipeline.cuh"
#include "core/tma.cuh"
#include "core/wgmma.cuh"
#include "data/cached_boxes.cuh"
#include "data/cached_entries.cuh"
#include "data/expanded_entries.cuh"
#include "params/kv_cache.h"

// Starts the copies of the keys of a tile of queries.
template <class Config, class Keys>
NSAI_DEVICE void produce_keys(const NsaiAttendTma &p, const FlashTile &tile,
                              typename Flash<Config>::Shared &shared,
                              PipelineState<Config::kStages> &keys) {
  using F = Flash<Config>;
  constexpr int kKeys = Config::kKeys, kDk = Config::kHeadDimQk, kDv = Config::kHeadDimV;
  const bool asks = threadIdx.x % 32 == 0;
  const bool packed = p.attend.seq.cu_q; // other sequences' rows follow a sequence's own
  for (int first = 0; first < tile.end - tile.begin; first += kKeys) {
    int row = tile.first_row + first;
    u32 k_full = shared_address(&shared.k_full[keys.stage]);
    barrier_wait(shared_address(&shared.k_empty[keys.stage]), keys.phase ^ 1);
    if (asks) {
      barrier_arrive_expecting(k_full, F::kKeyBytes);
      tma_load_panels<kDk>(shared_address(shared.k[keys.stage]), p.k, k_full, kKeys,
                           box_head(p.attend.k, tile.group), row);
    }

    u32 sV = shared_address(shared.v[keys.stage]);
    u32 v_full = shared_address(&shared.v_full[keys.stage]);
    barrier_wait(shared_address(&shared.v_empty[keys.stage]), keys.phase ^ 1);
    if (packed && first + kKeys > tile.rows_left) {
      // P is 0 for the keys behind the sequence, but their V may be NaN, so copy zeros instead.
      // (K needs no such care: its scores are overwritten by the mask.)
      const NsaiView &v = p.attend.v;
      copy_present_rows<kKeys, kDv>(sV,
                                    (const u16 *)v.data + row * v.token_stride +
                                        tile.group * v.head_stride,
                                    v.token_stride, tile.rows_left - first);
      if (asks) barrier_arrive(v_full);
    } else if (asks) {
      barrier_arrive_expecting(v_full, F::kValueBytes);
      tma_load_panels<kDv>(sV, p.v, v_full, kKeys, box_head(p.attend.v, tile.group), row);
    }
    keys.advance();
  }
}

// Where the compressed entries of a tile's sequence lie: in the cache, or expanded in the workspace.
template <class Config> struct CacheEntries {
  static constexpr bool kCodes = kReadsCodes<Config>;
  const NsaiCacheBatch &batch;
  const NsaiCachePair &pair;
  NSAI_DEVICE auto rows(int s) const { return find_rows<Config::kPageRows>(batch, s, 0); }
};
struct WorkspaceEntries {
  static constexpr bool kCodes = false;
  NsaiCachePair pair;
  NSAI_DEVICE auto rows(int) const { return expanded_rows(0); }
};

// Copies `tiles` tiles of entries of K or V, x, into the stages `to`, as elements. Two warps.
template <class Config, class Keys, class Order, int kDim, class From, class Shared, int kBytes>
NSAI_DEVICE void produce_entries(const From &from, const NsaiCacheTensor &x, const FlashTile &tile,
                                 int tiles, Shared &shared,
                                 unsigned char (&to)[Config::kStages][kBytes],
                                 u64 (&full)[Config::kStages], u64 (&empty)[Config::kStages],
                                 PipelineState<Config::kStages> &keys) {
  constexpr int kKeys = Config::kKeys;
  constexpr bool kLate = kReadsExpanded<Config>; // see below
  using Rows = decltype(from.rows(0));
  using Entries = EntryTiles<Rows, Keys::kFirstIndex, kKeys, Order, kLate>;
  const Entries entries = { from.rows(tile.first_row), tile.rows_left,
                            shared_address(shared.entry_addresses +
                                           threadIdx.x / 32 * Entries::kOwn) };
  if (tiles > 0) entries.keep(entries.find_pages(0), x, tile.group, 0);
#pragma unroll 1
  for (int first = 0; first < tiles * kKeys; first += kKeys, keys.advance()) {
    barrier_wait(shared_address(&empty[keys.stage]), keys.phase ^ 1);
    // The pages of the next tile are looked up before the copies of this one. With two places of
    // entries there are no registers for that: they are looked up, and used, while the copies arrive.
    typename Entries::Pages next;
    if constexpr (!kLate) next = entries.find_pages(first + kKeys);
    auto keep_next = [&] {
      entries.keep(entries.find_pages(first + kKeys), x, tile.group, first + kKeys);
    };
    const u32 stage = shared_address(to[keys.stage]);
    if constexpr (From::kCodes) {
      entries.template copy<kRowWords<Config, kDim>, Entries::kCodeParts>(stage, first);
      if constexpr (kLate) keep_next();
      entries.template expand<typename ProductConfig<Config>::Element, kDim>(stage);
    } else {
      entries.template copy<kDim, 1>(stage, first);
      if constexpr (kLate) keep_next();
      copy_async_wait<0>();
    }
    shared_proxy_fence();
    barrier_arrive(shared_address(&full[keys.stage]));
    if constexpr (!kLate) entries.keep(next, x, tile.group, first + kKeys);
  }
}

// The same of K and V by four warps.
template <class Config, class Keys, class Order, class From, class Shared>
NSAI_DEVICE void produce_pair(const From &from, const FlashTile &tile, int tiles, Shared &shared,
                              PipelineState<Config::kStages> &keys) {
  if (warp_uniform(threadIdx.x / 64))
    produce_entries<Config, Keys, Order, Config::kHeadDimV>(from, from.pair.v, tile, tiles, shared,
                                                            shared.v, shared.v_full, shared.v_empty,
                                                            keys);
  else
    produce_entries<Config, Keys, Order, Config::kHeadDimQk>(from, from.pair.k, tile, tiles, shared,
                                                             shared.k, shared.k_full,
                                                             shared.k_empty, keys);
}

// The same from where the entries of the tile's sequence lie.
template <class Config, class Keys, class Order, class Params, class Shared>
NSAI_DEVICE void produce_entries(const Params &params, const FlashTile &tile, int tiles,
                                 Shared &shared, PipelineState<Config::kStages> &keys) {
  const auto &p = cached_of(params);
  if constexpr (kReadsExpanded<Config>) {
    const int slot = expanded_slot(params.expanded, p.batch, tile.first_row);
    if (slot >= 0) {
      const WorkspaceEntries from = {
        expanded_pair<Config::kHeadDimQk, Config::kHeadDimV>(params.expanded, slot, tile.group)
      };
      produce_pair<Config, Keys, Order>(from, tile, tiles, shared, keys);
      return;
    }
  }
  const CacheEntries<Config> from = { p.batch, p.pair };
  produce_pair<Config, Keys, Order>(from, tile, tiles, shared, keys);
}

template <class Config, class Keys>
NSAI_DEVICE void produce_keys(const NsaiCachedAttendTma &p, const FlashTile &tile,
                              typename Flash<Config>::Shared &shared,
                              PipelineState<Config::kStages> &keys) {
  constexpr int kKeys = Config::kKeys;
  constexpr int kDk = kRowWords<Config, Config::kHeadDimQk>,
                kDv = kRowWords<Config, Config::kHeadDimV>;
  const bool asks = threadIdx.x % 32 == 0;
  // Where a stage's K and V arrive. They may also have been copied by this warp, of which all lanes
  // arrive for codes: other warps read those.
  auto arrives = [&](u64 *full, int side) {
    if constexpr (kReadsCodes<Config>) return code_barrier<Config>(shared, side, keys.stage);
    return shared_address(&full[keys.stage]);
  };
  const auto boxes =
      find_boxes<Config::kPageRows, NSAI_WINDOW_BOX_ROWS, kKeys>(p.batch, p.pair, tile.first_row,
                                                                 Keys::visible(tile.position).begin,
                                                                 tile.begin + tile.rows_left);
  int page = boxes.page_of_lane(tile.begin);
  for (int first = tile.begin; first < tile.end; first += kKeys) {
    const int here = page;
    page = boxes.page_of_lane(first + kKeys);
    u32 sK = shared_address(shared.k[keys.stage]);
    u32 k_full = arrives(shared.k_full, 0);
    barrier_wait(shared_address(&shared.k_empty[keys.stage]), keys.phase ^ 1);
    if (boxes.boxed()) {
      if (asks) barrier_arrive_expecting(k_full, nsai_panel_bytes(kKeys, kDk));
      __syncwarp();
      boxes.template load<kDk>(sK, p.packed.k, k_full, p.pair.k, tile.group, first, here);
    } else {
      boxes.template copy_present<kDk>(sK, p.pair.k, tile.group, first);
      if (asks) barrier_arrive(k_full);
    }
    if (kReadsCodes<Config> && !asks) barrier_arrive(k_full);

    u32 sV = shared_address(shared.v[keys.stage]);
    u32 v_full = arrives(shared.v_full, 1);
    barrier_wait(shared_address(&shared.v_empty[keys.stage]), keys.phase ^ 1);
    if (boxes.boxed_values(first)) {
      if (asks) barrier_arrive_expecting(v_full, nsai_panel_bytes(kKeys, kDv));
      __syncwarp();
      boxes.template load<kDv>(sV, p.packed.v, v_full, p.pair.v, tile.group, first, here);
    } else {
      boxes.template copy_present<kDv>(sV, p.pair.v, tile.group, first);
      if (asks) barrier_arrive(v_full);
    }
    if (kReadsCodes<Config> && !asks) barrier_arrive(v_full);
    keys.advance();
  }
}

// Whether keys are compressed entries of a cache, which the whole producer warpgroup copies.
template <class Config, class Keys>
constexpr bool kCachedEntries = Config::kCached &&Keys::kEntries;

// Warps that expand the codes of raw tokens.
template <class Config, class Keys>
constexpr int kExpanders = kReadsCodes<Config> && !kCachedEntries<Config, Keys> ? 3 : 0;

// Expands the stages of the CTA's tiles, as one of kExpanders warps.
template <class Config, class Keys, class Params>
NSAI_DEVICE void flash_expand(const Params &params, typename Flash<Config>::Shared &shared,
                              int expander) {
  constexpr int kKeys = Config::kKeys, kWarps = kExpanders<Config, Keys>;
  using Element = typename ProductConfig<Config>::Element;
  PipelineState<Config::kStages> keys;
  for_each_tile<Config, Keys>(packed_of(params), sequences_of(params), [&](const FlashTile &tile) {
    for (int first = tile.begin; first < tile.end; first += kKeys, keys.advance()) {
      barrier_wait(code_barrier<Config>(shared, 0, keys.stage), keys.phase);
      expand_code_share<Element, Config::kHeadDimQk, kKeys, kWarps>(shared_address(
                                                                        shared.k[keys.stage]),
                                                                    expander);
      barrier_arrive(shared_address(&shared.k_full[keys.stage]));
      barrier_wait(code_barrier<Config>(shared, 1, keys.stage), keys.phase);
      expand_code_share<Element, Config::kHeadDimV, kKeys, kWarps>(shared_address(
                                                                       shared.v[keys.stage]),
                                                                   expander);
      barrier_arrive(shared_address(&shared.v_full[keys.stage]));
    }
  });
}

template <class Config, class Keys, class Params>
NSAI_DEVICE void flash_produce(const Params &params, typename Flash<Config>::Shared &shared) {
  using F = Flash<Config>;
  constexpr int kDk = Config::kHeadDimQk;
  const NsaiAttendTma &p = packed_of(params);
  bool asks = kCachedEntries<Config, Keys> ? threadIdx.x == 0 : threadIdx.x % 32 == 0;
  PipelineState<Config::kQueryStages> queries;
  PipelineState<Config::kStages> keys;
  for_each_tile<Config, Keys>(p, sequences_of(params), [&](const FlashTile &tile) {
    u32 q_full = shared_address(&shared.q_full[queries.stage]);
    // Of the warps that copy entries, those that do not ask for Q must not wait for its stages: the
    // consumers release a tile without keys before they need these warps, so that a late one would
    // find the barrier a phase ahead.
    if (asks || !kCachedEntries<Config, Keys>)
      barrier_wait(shared_address(&shared.q_empty[queries.stage]), queries.phase ^ 1);
    if (asks) {
      shared.tile[queries.stage] = tile;
      if (tile.begin < tile.end) {
        barrier_arrive_expecting(q_full, sizeof shared.q[0]);
#pragma unroll
        for (int w = 0; w < F::kConsumers; ++w)
          tma_load_panels<kDk>(shared_address(shared.q[queries.stage][w]), p.q, q_full, 64,
                               tile.group * Config::kGroup, tile.first_token + w * F::kBoxTokens);
      } else {
        barrier_arrive(q_full);
      }
    }
    queries.advance();

    if constexpr (kCachedEntries<Config, Keys>)
      produce_entries<Config, Keys, NaturalOrder>(params, tile,
                                                  ceil_div(max(tile.end, 0), Config::kKeys), shared,
                                                  keys);
    else if constexpr (Config::kCached)
      produce_keys<Config, Keys>(cached_of(params), tile, shared, keys);
    else
      produce_keys<Config, Keys>(params, tile, shared, keys);
  });
  if (asks || !kCachedEntries<Config, Keys>)
    barrier_wait(shared_address(&shared.q_empty[queries.stage]), queries.phase ^ 1);
  if (asks) {
    shared.tile[queries.stage].tokens = 0;
    barrier_arrive(shared_address(&shared.q_full[queries.stage]));
  }
}

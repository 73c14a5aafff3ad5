// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Copies the compressed or coarse keys of one sequence and KV head from packed tensors or a KV cache
// into the tiles of select_importance and select_normalizer.
//
// Codes of a cache (core/e4m3.cuh) are converted to elements on their way.
//
// Config: Element, kHeadDimQk, kKeys, kThreads, kBlock (l), kStride (d), kStep (a decode step); those of
// data/source.cuh.
#pragma once
#include "core/copy.cuh"
#include "core/e4m3.cuh"
#include "core/tile.cuh"
#include "core/types.cuh"
#include "data/sequence.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

// The parameters of the kernels, and those that are not of a decode step.
template <class C>
using RowParams = CodedParamsOf<C, NsaiImportance, NsaiCachedImportance, NsaiCodedImportance>;
template <class C>
using StepRowParams = typename ParamsOf<C::kStep, RowParams<C>, NsaiStepImportance>::Type;

template <class C> struct KeyCopy {
  using KeyTile = Tile<C::kKeys, padded_dim(C::kHeadDimQk)>;
  // Lanes that copy one key: a power of two rather than the number of chunks. A thread thus keeps
  // one column, and its addresses need no divisions and no registers for their results over the
  // loop.
  static constexpr int kLanes = C::kHeadDimQk > 128  ? 32
                                : C::kHeadDimQk > 64 ? 16
                                : C::kHeadDimQk > 32 ? 8
                                : C::kHeadDimQk > 16 ? 4
                                                     : 2;
  static constexpr int kStep = C::kThreads / kLanes; // keys between two copies of a thread
  static NSAI_DEVICE int key() { return threadIdx.x / kLanes; }
  static NSAI_DEVICE int chunk() { return threadIdx.x % kLanes; }
  // Starts the copy of chunk chunk() of the tile's key i; zeros, without a read, if it is not
  // present.
  static NSAI_DEVICE void copy(u32 to, int i, const u16 *from, bool present) {
    if (C::kKeys % kStep == 0 || i < C::kKeys)
      copy_async_16(to + KeyTile::offset(i, chunk()), from, present && chunk() * 8 < C::kHeadDimQk);
  }
};

// Starts the copy of keys [first, first + kKeys) to shared memory; those from `end` on become zeros
// and are not read.
template <class C>
NSAI_DEVICE void load_keys(u32 to, const u16 *gK, long long token_stride, int first, int end) {
  using Copy = KeyCopy<C>;
  constexpr int kLanes = Copy::kLanes;
  constexpr int kStep = Copy::kStep;
  const int key = threadIdx.x / kLanes, chunk = threadIdx.x % kLanes;
  if (chunk >= Copy::KeyTile::kChunks) return;
  const u16 *from = gK + (first + key) * token_stride + chunk * 8;
#pragma unroll
  for (int i = 0; i < C::kKeys; i += kStep) {
    bool present = first + key + i < end && chunk * 8 < C::kHeadDimQk;
    if (C::kKeys % kStep == 0 || key + i < C::kKeys)
      copy_async_16(to + Copy::KeyTile::offset(key + i, chunk), from, present);
    from += kStep * token_stride;
  }
}

template <class C> struct PackedKeys {
  const NsaiView &k;
  const u16 *gK; // [N, Dk]
  NSAI_DEVICE void load(u32 to, int first, int end) const {
    load_keys<C>(to, gK, k.token_stride, first, end);
  }
};

template <class C> struct CachedKeys {
  using Copy = KeyCopy<C>;
  CachedRows<C::kPageRows> rows;
  const NsaiCacheTensor &k;
  int group;
  NSAI_DEVICE void load(u32 to, int first, int end) const {
    const int key = Copy::key(), chunk = Copy::chunk();
    if (chunk >= Copy::KeyTile::kChunks) return;
    const CachedRun<C::kPageRows, C::kKeys, Copy::kStep> run(
        rows, first + entry_index<C::kBlock, C::kStride>(0), key, end - first);
    if constexpr (kReadsCodes<C>) {
      load_codes(to, run, key, chunk, end - first);
      return;
    }
    const u16 *gHead = (const u16 *)k.data + group * k.head_stride + chunk * 8; // [entries, Dk]
#pragma unroll
    for (int i = 0; i < run.kCount; ++i)
      Copy::copy(to, key + i * Copy::kStep, gHead + run.offset(k, i),
                 first + key + i * Copy::kStep < end);
  }

  // Copies the thread's codes of a tile of which `left` keys exist; four rows are in flight together.
  template <class Run>
  NSAI_DEVICE void load_codes(u32 to, const Run &run, int key, int chunk, int left) const {
    constexpr int kAtOnce = 4;
    const u16 *gHead = (const u16 *)k.data + group * k.head_stride + chunk * 4; // [entries, Dk / 2]
#pragma unroll
    for (int begin = 0; begin < run.kCount; begin += kAtOnce) {
      uint2 codes[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        codes[i] = make_uint2(0, 0);
        if (begin + i < run.kCount && key + (begin + i) * Copy::kStep < left &&
            chunk * 8 < C::kHeadDimQk)
          codes[i] = *(const uint2 *)(gHead + run.offset(k, begin + i));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = key + (begin + i) * Copy::kStep;
        if (begin + i < run.kCount && (C::kKeys % Copy::kStep == 0 || row < C::kKeys))
          store_shared(to + Copy::KeyTile::offset(row, chunk),
                       expand_eight<typename C::Element>(codes[i]));
      }
    }
  }
};

template <class C> NSAI_DEVICE PackedKeys<C> find_keys(const NsaiImportance &p, int s, int group) {
  return PackedKeys<C>{ p.k, (const u16 *)p.k.data + group * p.k.head_stride +
                                 first_block_row<C::kStride>(p.seq, s) * p.k.token_stride };
}

template <class C>
NSAI_DEVICE CachedKeys<C> find_keys(const NsaiCachedImportance &p, int s, int group) {
  return CachedKeys<C>{ find_rows<C::kPageRows>(p.batch, s, 0), p.k, group };
}

template <class C>
NSAI_DEVICE CachedKeys<C> find_keys(const NsaiCodedImportance &p, int s, int group) {
  return find_keys<C>(p.cached, s, group);
}

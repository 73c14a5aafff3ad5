// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// dK and dV of the selected branch and of the window with persistent CTAs (sm_90a), for
// backward_dkv_selected_persistent and backward_dkv_window_persistent, which differ in the query rows
// of a tile (`Rows`, backward/pipelines/dkv_tiles.cuh). A CTA works as in backward/pipelines/dkv.cuh, but
// its producers fill stages of the next tile while the consumers finish the present one.
//
// Timings beside kernels of a CTA for each tile, lengths and order of items: runtime/variants/backward/kv.c.
// No gain: kAskAhead of 8 in the place of 4 (64k tokens, D 128, H200).
//
// kKeys 128 (kTiles 2), of the window: each warpgroup has 64 keys of its own, and both read every
// stage. kKeys 64 (kTiles 1), of lists: both warpgroups have the same keys, and each reads every other
// stage; at the end their sums are added.
//
// kJoins: 1, of the window: if p.joined, a block that is on a token's list and begins within its window
// is computed here for both branches with the same S and dU, using the statistics of the branches'
// sum.
//
// Grid: as many CTAs as the device holds, or fewer. A CTA takes tiles by tickets: the next number of
// a counter in global memory, which another kernel clears in every run. Tiles are numbered as the CTAs
// of backward_dkv_selected and backward_dkv_window, without the items that a head does not have; with
// p.item_order a head's items are taken in that order (data/invert_order.cuh). The sums of a tile go to a
// place of their own, and its stages have a fixed order: the bits of the results do not depend on which
// CTA takes it.
//
// Warps 0 .. 7 multiply, warp 8 loads rows, and warp 9 (with kJoins 10, too) writes what is known of
// them, as in backward/pipelines/dkv.cuh. Warp 11 takes tickets, describes the tile in shared memory
// and loads its keys:
//
//   warp 11      waits for a request | takes a ticket, hands out the tile | waits until the keys of
//                the tile before are free | loads the keys
//   producers    wait for the tile | fill its stages; kAskAhead stages before its end warp 8 asks for
//                the next tile
//   consumers    wait for the tile | multiply | free the keys | add up and store the sums
//
// The earlier a CTA takes a ticket, the less evenly the work ends; the later, the longer its producers
// wait. They run ahead by one tile at most, because there is room for the keys of one.
//
// Barriers. No role counts what another one has done. All learn from the tile how many stages it has.
// Behind its last stage the pipeline goes on with the next tile, and phases alternate as in one long
// tile.
//
//   - Stages: a tile without rows has none, and no role waits or arrives for one. At a tile's end a
//   warpgroup releases the stage that it still holds: the producers may need all stages before the
//   next tile's first one is read.
//   - kTiles 1: a warpgroup takes the even or the odd stages of each tile, so that the order of a
//   tile's sums does not depend on the tiles before it. It does not wait for the stages of the other
//   warpgroup, and would not notice that a barrier is a phase short of the one before its own:
//   such a wait returns too early. So kStages is even: within a tile, a place of the pipeline has the
//   same reader in every round. It may have the other one in the next tile, because both meet between
//   tiles, when all stages have been filled and read.
//   - Keys: one phase of kKeysFull and one of kKeysEmpty for each tile, with or without rows.
//   - Tiles: two places, with one phase of `full` and one of `empty` for each use. All readers release
//   a place; the one that says that there is no further tile stays.
//   - Requests (kAsked): warp 8 asks for a tile after it has received the one before, which warp 11
//   hands out after it has seen the request for that one: no phase is missed.
//   - Named barrier 1 (kTiles 1): all 256 consumers meet four times in each tile, with or without rows.
//
// Nobody waits in a circle: warp 11 waits for consumers of a tile only after it has handed out the
// next one, and consumers wait only for stages and keys of tiles that have been handed out.
//
// The end: every bulk copy fills a stage or keys for which consumers wait, so that none is in flight
// when the CTA ends.
//
// Overlapping launches (core/launch.cuh): CTAs take tickets behind begin_kernel(), when the kernel that
// clears the counter has ended. That one has waited for the kernels of the run before.
//
// kTiles 1: the sums of the two warpgroups cannot pass through the stages, which hold rows of the next
// tile. They have memory of their own, for half of the columns at a time. Warpgroup 1 gives dK and
// warpgroup 0 dV; each stores what it has completed.
//
// Config: as in backward/pipelines/dkv.cuh; kKeys (64, 128), kGroup (of lists kRows / 16 or more),
// kEntries (of lists: the most tokens of an item; 0), kJoins, kWindow (w), kSelectBlock (l'), kSelectCount (n).
#pragma once
#include "backward/pipelines/dkv_consumer.cuh"
#include "backward/pipelines/dkv_items_producer.cuh"
#include "core/launch.cuh"

// leave_sums, take_sums: add sums of one warpgroup to those of the other one, through shared memory.
template <int kN> NSAI_DEVICE void leave_sums(float4 *to, const float (&acc)[kN][4]) {
#pragma unroll
  for (int j = 0; j < kN; ++j)
    to[128 * j + threadIdx.x % 128] = make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
}
template <int kN> NSAI_DEVICE void take_sums(const float4 *from, float (&acc)[kN][4]) {
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    const float4 x = from[128 * j + threadIdx.x % 128];
    acc[j][0] += x.x;
    acc[j][1] += x.y;
    acc[j][2] += x.z;
    acc[j][3] += x.w;
  }
}

// Half of the columns of sums.
template <int kN> NSAI_DEVICE float (&half_of(float (&acc)[kN][4], int half))[kN / 2][4] {
  return *(float(*)[kN / 2][4]) & acc[half * (kN / 2)];
}

// kTiles 1: adds up the sums of both warpgroups: dK in warpgroup 0, dV in warpgroup 1.
template <class Config, int kK, int kV>
NSAI_DEVICE void exchange_sums(float (&dk)[kK][4], float (&dv)[kV][4], unsigned char *shared) {
  using R = DkvItems<Config>;
  const int group = warp_uniform(threadIdx.x / 128);
  float4 *sDK = (float4 *)(shared + R::kSSums), *sDV = sDK + 128 * (kK / 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    threads_sync(1, 256); // the sums that were there have been read
    if (group == 1)
      leave_sums(sDK, half_of(dk, half));
    else
      leave_sums(sDV, half_of(dv, half));
    threads_sync(1, 256); // the sums are written
    if (group == 1)
      take_sums(sDV, half_of(dv, half));
    else
      take_sums(sDK, half_of(dk, half));
  }
}

// The loop of the consumer warps.
template <class Config, class Rows>
NSAI_DEVICE void consume_tiles(const NsaiBackwardKv &p, unsigned char *shared, u32 base) {
  using R = DkvItems<Config>;
  using C = DkvTile<Config>;
  const Barriers<R::kStages> barriers = { base + R::kBarriers };
  const int group = warp_uniform(threadIdx.x / 128);
  DkvPlace<Config, Rows> place = { shared, base };
  PipelineState<R::kStages> step;
#pragma unroll 1
  for (;;) {
    const DkvItem<Rows> &item = place.wait();
    if (!item.exists) return;
    float dk[R::kColsQk / 8][4] = {}, dv[R::kColsV / 8][4] = {}; // [64, Dk], [64, Dv]
    const int stages = warp_uniform(ceil_div(item.tile.tokens, R::kTokens));
    const int held = multiply_keys<C>(dk, dv, stages, base, p.scale_log2, step, place.phase());
    if (held >= 0) barriers.consumer_release(held);
    barrier_arrive(base + R::kKeysEmpty);
    step.advance(stages);
    if constexpr (R::kTiles == 1) exchange_sums<Config>(dk, dv, shared);
    const int first_key = R::kTiles == 2 ? 64 * group : 0;
    if (R::kTiles == 2 || group == 0)
      store_sums<C, Config::kHeadDimQk>(item.tile, first_key, 0, dk, p.scale);
    if (R::kTiles == 2 || group == 1)
      store_sums<C, Config::kHeadDimV>(item.tile, first_key, Config::kHeadDimQk, dv, 1.0f);
    place.release();
  }
}

// The kernel body; `Rows` finds the query rows of a tile.
template <class Config, class Rows>
NSAI_DEVICE void run_dkv_items(const NsaiBackwardDkvPersistent &p) {
  using R = DkvItems<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const u32 base = shared_address(shared_bytes);
  if (threadIdx.x == 0) {
    Barriers<2>{ base + R::kItemBarriers }.init(1, R::kReaders);
    barrier_init(base + R::kKeysEmpty, 256);
    barrier_init(base + R::kAsked, 1);
    init_dkv_pipeline<DkvTile<Config>>(base);
  }
  begin_kernel();
  __syncthreads(); // barriers are initialised
  const int warp = warp_uniform(threadIdx.x / 32);
  if (warp >= 8) {
    registers_drop<R::kProducerRegisters>();
    if (warp == 8) produce_tiles<Config, Rows>(p.keys, shared_bytes, base);
    if (warp >= 9 && warp < 9 + R::kKnownWarps)
      know_tiles<Config, Rows>(p.keys.kv, shared_bytes, base, warp - 9);
    if (warp == 11 && threadIdx.x % 32 == 0) hand_out_tiles<Config, Rows>(p, shared_bytes, base);
  } else {
    registers_raise<R::kConsumerRegisters>();
    consume_tiles<Config, Rows>(p.keys.kv, shared_bytes, base);
  }
}

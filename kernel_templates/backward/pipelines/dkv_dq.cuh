// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// dK, dV and dQ of the compressed branch in one kernel of five products (sm_90a):
//
//   S^T = K Q^T   dU^T = V dO^T   dV += P'^T dO   dK += dS^T Q   dQ += dS K
//
// It is backward/pipelines/dkv.cuh with tiles of 128 keys, of whose five products two would be
// repeated by a kernel for dQ. Each warpgroup has dK and dV of 64 keys in registers. dS of all 128
// keys passes through shared memory, as operand of dK and of dQ. A warpgroup multiplies half of the
// columns of a stage's dQ in the registers of dU, and leaves it in shared memory. From there one
// thread adds it to dQ of the branch in global memory by a bulk copy.
//
// Stages, called blocks there, begin at multiples of 64 rows of each sequence. dQ of a block lies
// as the threads hold it: f32 [2 halves][Dk / 16][128 threads][4].
//
// The order of the sums, and thus their bits, is the same in every run: a tile of a sequence's keys
// adds to a block after the tile before it; the first one stores. A counter for each half of a block
// says how many tiles have added. CTAs number themselves by tickets as they start. Of the tiles that
// see a block, one that adds earlier has an earlier ticket, so that a CTA waits for running CTAs only.
// All walk the rows in the same order: each tile stays behind the one that adds before it by a stage
// or more.
//
// kLaterFirst 0: tiles add in the order of their keys. At the first block that a tile sees it waits for
// the tiles before it, which begin far ahead of that block. All then read the same rows at a time.
// kLaterFirst 1: the other way round. No tile waits there, but those of the last keys run ahead, and L2
// must have room for all the rows of a run. H200, 64k tokens, D 128: 23.7 ms for 24.8 of groups of 4
// (runs of 256 stages), but 22.4 for 20.4 of groups of 16 (runs of 1024).
//
// Products of stage i; those in a line overlap with what stands below them:
//
//   dU(i)                 dV(i)        | dQ(i) dK(i) S(i+1)
//   P'(i)                 dS(i), stored | dQ(i) stored
//
// Shared memory: backward/pipelines/dkv_stages.cuh, then, aligned to 1024 bytes, dS [128 keys, 64
// rows] | dQ of a stage f32 [64, Dk] | barriers.
//
// Config: as in backward/pipelines/dkv.cuh, with kRows 64, kKeys 128, kEntries and kJoins 0;
// kHeadDimQk 64 or 128; kLaterFirst.
#pragma once
#include "backward/pipelines/dkv_consumer.cuh"
#include "backward/pipelines/dkv_producer.cuh"
#include "backward/pipelines/dq_sums.cuh"
#include "core/launch.cuh"

// The Config of the pipeline that this one extends: the same but for the shared memory.
template <class Config> struct DkvPart : Config {
  static constexpr int kSharedBytes =
      nsai_smem_dkv_tma(Config::kKeys, Config::kRows, Config::kStages, 0, 64 / Config::kGroup,
                        Config::kHeadDimQk, Config::kHeadDimV);
};

template <class Config> struct DkvDqPipeline : DkvPipeline<DkvPart<Config>> {
  using DS = PanelTile<128, 64>;                       // [keys, rows]
  static constexpr int kHalf = Config::kHeadDimQk / 2; // columns of dQ of a warpgroup
  static constexpr int kHalfBytes = 64 * kHalf * 4, kHalfFloats = 64 * kHalf;
  static constexpr int kSDS = nsai_smem_aligned(DkvPart<Config>::kSharedBytes, 1024),
                       kSDQ = kSDS + DS::kBytes;
  static constexpr int kDqFull = kSDQ + 2 * kHalfBytes, kDqEmpty = kDqFull + 16;
  static constexpr int kTicket = kDqEmpty + 16;
  static constexpr int kBytes = kTicket + 8;
  // Named barriers: dS of all keys is written; the other warpgroup has read warpgroup g's dS.
  static constexpr int kWritten = 1, kRead = 2;

  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
  static_assert(Config::kKeys == 128, "each warpgroup has 64 keys");
  static_assert(Config::kRows == 64, "dS and dQ of a stage have 64 rows");
  static_assert(Config::kHeadDimQk == 64 || Config::kHeadDimQk == 128,
                "dQ of a warpgroup is a product of 32 or 64 columns");
};

// The blocks of dQ that a tile of keys adds to, in the order of its stages.
struct DqBlocks {
  float *sums; // of the first one
  int *added;  // [2]
  int tile;    // of keys, within the sequence
  int last;    // position of the first block's last token
  int most;    // of the sequence's last token
  int before;  // tokens of the first block that see no key of the tile: q and d_o may hold anything
};

// Finds the tile of a CTA; returns false if there is none.
template <class Config>
NSAI_DEVICE bool find_blocks(const NsaiBackwardDkvDq &p, int cta, CompressedRows<Config> &rows,
                             KeyTile &tile, DqBlocks &dq) {
  using R = DkvDqPipeline<Config>;
  const NsaiBackwardKv &kv = p.keys.kv;
  const int index = cta % kv.tiles, head = cta / kv.tiles / kv.splits;
  const int number = Config::kLaterFirst ? kv.tiles - 1 - index : index;
  // Later tokens see more tiles: longest first.
  const int split = kv.splits - 1 - cta / kv.tiles % kv.splits;
  const KeyTileAt at = find_block_tile<Config::kKeys, Config::kStride>(kv.seq, number);
  rows.seq = at.seq;
  rows.first_key = at.first_key;
  tile.keys = rows.keys =
      min(Config::kKeys,
          block_count<Config::kBlock, Config::kStride>(at.seq.kv_len) - at.first_key);
  if (tile.keys <= 0 || at.first_key < 0) return false;
  const int begin =
      max(at.first_key * Config::kStride + Config::kBlock - 1 - at.seq.position(0), 0);
  const int blocks = ceil_div(at.seq.q_len, R::kTokens);
  const int from = (int)((long long)blocks * split / kv.splits),
            until = (int)((long long)blocks * (split + 1) / kv.splits);
  const int first = max(begin / R::kTokens, from);
  rows.first_query = first * R::kTokens;
  dq.before = max(begin - rows.first_query, 0);
  tile.tokens = max(min(until * R::kTokens, at.seq.q_len) - rows.first_query, 0);
  tile.head = kv.head_begin + head;
  tile.key_row = first_block_row<Config::kStride>(kv.seq, at.s) + at.first_key;
  const long long row = at.first_row + at.first_key; // row of `partial`
  tile.partial =
      kv.partial + (((long long)head * kv.splits + split) * kv.rows + row) * kPartialWidth<Config>;
  const long long block = tile.head * p.blocks + first_dq_block<R::kTokens>(at.seq, at.s) + first;
  dq.sums = p.sums + block * 2 * R::kHalfFloats;
  dq.added = p.order + kv.kv_heads + 2 * block;
  dq.tile = at.first_key / Config::kKeys;
  dq.last = at.seq.position(rows.first_query + R::kTokens - 1);
  dq.most = at.seq.kv_len - 1;
  return true;
}

// ---- producers

// Adds a half of each stage's dQ. One thread.
template <class Config>
NSAI_DEVICE void add_halves(const KeyTile &tile, const DqBlocks &dq, u32 base, int half) {
  using R = DkvDqPipeline<Config>;
  const u32 from = base + R::kSDQ + half * R::kHalfBytes;
  const int stages = ceil_div(tile.tokens, R::kTokens);
  float *to = dq.sums + half * R::kHalfFloats;
  int *added = dq.added + half;
#pragma unroll 1
  for (int i = 0; i < stages; ++i, to += 2 * R::kHalfFloats, added += 2) {
    barrier_wait(base + R::kDqFull + 8 * half, i & 1);
    int before = dq.tile; // tiles that add before this one
    if constexpr (Config::kLaterFirst) {
      const int last = min(dq.last + i * R::kTokens, dq.most); // of the block's tokens
      before = (CompressedKeys<Config>::visible(last).end - 1) / Config::kKeys - dq.tile;
    }
    if (before > 0) {
      while (acquire_word(added) != before) {}
      async_proxy_fence(); // what the earlier tiles have added is there for the copy
      bulk_add(to, from, R::kHalfBytes);
    } else {
      bulk_store(to, from, R::kHalfBytes);
    }
    bulk_commit();
    bulk_wait_read();
    barrier_arrive(base + R::kDqEmpty + 8 * half);
    bulk_wait();
    async_proxy_fence();
    release_word(added, before + 1);
  }
}

// Loads K and V. Rows behind the sequence's end may hold anything if another sequence follows: they
// become zeros, because dQ sums over all rows.
template <class Config>
NSAI_DEVICE void load_keys(const NsaiBackwardKvTma &p, const KeyTile &tile, u32 base) {
  using R = DkvDqPipeline<Config>;
  const NsaiBackwardKv &kv = p.kv;
  const u32 full = base + R::kKeysFull;
  if (kv.seq.cu_q && tile.keys < Config::kKeys) {
    copy_present_rows<Config::kKeys, Config::kHeadDimQk>(base + R::kSK,
                                                         (const u16 *)kv.k.data +
                                                             tile.key_row * kv.k.token_stride +
                                                             tile.head * kv.k.head_stride,
                                                         kv.k.token_stride, tile.keys);
    copy_present_rows<Config::kKeys, Config::kHeadDimV>(base + R::kSV,
                                                        (const u16 *)kv.v.data +
                                                            tile.key_row * kv.v.token_stride +
                                                            tile.head * kv.v.head_stride,
                                                        kv.v.token_stride, tile.keys);
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
  } else if (threadIdx.x % 32 == 0) {
    load_key_boxes<DkvPart<Config>>(p, tile, base);
  }
}

// ---- consumers

// Issues dK [64 keys, Dk] += dS^T Q of the warpgroup's keys.
template <class Config, int kK> NSAI_DEVICE void start_dk(float (&dk)[kK][4], u32 sDS, u32 sQ) {
  using R = DkvDqPipeline<Config>;
  const u64 a = wgmma_k_major(sDS), b = wgmma_mn_major<R::kRows>(sQ);
#pragma unroll
  for (int k = 0; k < R::kRows / 16; ++k)
    Wgmma<typename Config::Element, 8 * kK>::template shared_as<0, 1>(&dk[0][0],
                                                                      a + wgmma_k_step<128>(k),
                                                                      b + wgmma_mn_step(k), 1);
}

// Issues dQ [64 rows, kHalf] = dS K of the warpgroup's columns.
template <class Config> NSAI_DEVICE void start_dq(float *dq, u32 sDS, u32 sK, int group) {
  using R = DkvDqPipeline<Config>;
  const int column = group * R::kHalf;
  const u64 a = wgmma_mn_major<128>(sDS),
            b = wgmma_mn_major<128>(sK + column / 64 * 128 * kPanelPitch + column % 64 * 2);
#pragma unroll
  for (int k = 0; k < Config::kKeys / 16; ++k)
    Wgmma<typename Config::Element, R::kHalf>::template shared_as<1, 1>(dq, a + wgmma_mn_step(k),
                                                                        b + wgmma_mn_step(k),
                                                                        k > 0);
}

// Computes dK and dV of the warpgroup's 64 keys, zeros on entry, and hands over dQ of each stage.
template <class Config, int kK, int kV>
NSAI_DEVICE void multiply_all(float (&dk)[kK][4], float (&dv)[kV][4], int stages, u32 base,
                              float scale_log2) {
  using R = DkvDqPipeline<Config>;
  using E = typename Config::Element;
  const int group = warp_uniform(threadIdx.x / 128);
  const int key = 64 * group + recomputed(threadIdx.x) % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const u32 sK = base + R::kSK + 64 * group * kPanelPitch,
            sV = base + R::kSV + 64 * group * kPanelPitch;
  const u32 sDS = base + R::kSDS, sHalf = base + R::kSDQ + group * R::kHalfBytes;
  // S^T, P'^T [64 keys, kRows]; dU^T, dS^T likewise, and then dQ [kRows, kHalf]: three arrays would
  // not fit into the registers.
  float s[R::kN][4], du[R::kN][4];
  PipelineState<R::kStages> step;
  const Barriers<R::kStages> barriers = { base + R::kBarriers };
  barrier_wait(base + R::kKeysFull, 0);
  if (stages <= 0) return;
  auto start_s = [&](u32 sQ) {
    wgmma_fence();
    start_rows<E, typename R::K, typename R::Q, Config::kHeadDimQk>(s, sK, sQ);
    wgmma_commit();
  };
  auto start_du = [&](u32 sDO) {
    wgmma_fence();
    start_rows<E, typename R::V, typename R::DO, Config::kHeadDimV>(du, sV, sDO);
    wgmma_commit();
  };
  threads_arrive(R::kRead + 1 - group, 256); // nothing to read yet
  barriers.consumer_wait(0, 0);
  hold(dk);
  hold(dv);
  start_s(base + R::kSStage);
  start_du(base + R::kSStage + R::Q::kBytes);
  wgmma_wait<1>();
  hold(s);
#pragma unroll 1
  for (int i = 0; i < stages; ++i) {
    const int now = warp_uniform(step.stage);
    const u32 sQ = base + R::kSStage + now * R::kStageBytes, sDO = sQ + R::Q::kBytes;
    const u32 known = base + R::kSKnown + now * R::kKnownBytes;
    const u32 all = warp_uniform(load_shared_word(known + R::kAll + 4 * group));
    if (i + 1 < stages) step.advance();
    if (all & kPartlySeen) {
#pragma unroll
      for (int j = 0; j < R::kN; ++j)
        stage_probability<DkvPart<Config>, true>(s[j], known, known, 8 * j, key, scale_log2);
    } else {
#pragma unroll
      for (int j = 0; j < R::kN; ++j)
        stage_probability<DkvPart<Config>, false>(s[j], known, known, 8 * j, key, scale_log2);
    }
    u32 rP[R::kN / 2][4], rDS[R::kN / 2][4]; // [64 keys, 16 rows] each
    pack_all<E>(rP, s);
    // dU must be complete before dV is issued: ptxas serialises all products where a product that
    // was in flight at the loop's head is waited for behind a newer one (C7514).
    wgmma_wait<0>();
    hold(du);
    wgmma_fence();
    start_fragments<E, typename R::DO>(dv, rP, sDO);
    wgmma_commit();
#pragma unroll
    for (int j = 0; j < R::kN; ++j)
      stage_score_gradient<DkvPart<Config>>(du[j], s[j], known, 8 * j);
    pack_all<E>(rDS, du);
    threads_sync(R::kRead + group, 256); // the other warpgroup has read this one's previous dS
    const int lane = recomputed(threadIdx.x) % 32;
    const u32 to =
        sDS + R::DS::offset(64 * group + threadIdx.x / 32 % 4 * 16 + lane % 16, lane / 16);
#pragma unroll
    for (int j = 0; j < R::kN / 2; ++j) stmatrix_x4(R::DS::along(to, 2 * j), rDS[j]);
    shared_proxy_fence();
    threads_sync(R::kWritten, 256); // dS of all keys is written
    wgmma_fence();
    start_dq<Config>(&du[0][0], sDS, base + R::kSK, group);
    wgmma_commit();
    start_dk<Config>(dk, sDS + 64 * group * kPanelPitch, sQ);
    wgmma_commit();
    // The next stage's S; at the end the last one's once more, which nobody reads.
    const int next = warp_uniform(step.stage);
    const u32 sNext = base + R::kSStage + next * R::kStageBytes;
    barriers.consumer_wait(next, step.phase);
    start_s(sNext);
    wgmma_wait<2>();
    hold(du);
    hold(dv);
    threads_arrive(R::kRead + 1 - group, 256); // the other warpgroup's dS was read
    barrier_wait(base + R::kDqEmpty + 8 * group, i & 1 ^ 1);
#pragma unroll
    for (int j = 0; j < R::kHalf / 8; ++j)
      store_shared(sHalf + 16 * (128 * j + recomputed(threadIdx.x) % 128),
                   Chunk{ { __float_as_uint(du[j][0]), __float_as_uint(du[j][1]),
                            __float_as_uint(du[j][2]), __float_as_uint(du[j][3]) } });
    shared_proxy_fence();
    barrier_arrive(base + R::kDqFull + 8 * group);
    start_du(sNext + R::Q::kBytes);
    wgmma_wait<1>(); // of dU
    hold(dk);
    hold(s);
    barriers.consumer_release(now);
  }
  wgmma_wait<0>();
  hold(du);
  threads_sync(R::kRead + group, 256); // takes the other warpgroup's last arrival
}

template <class Config>
NSAI_DEVICE void consume_all(const NsaiBackwardKv &p, const KeyTile &tile, u32 base) {
  using R = DkvDqPipeline<Config>;
  const int first_key = 64 * warp_uniform(threadIdx.x / 128);
  float dk[R::kColsQk / 8][4] = {}, dv[R::kColsV / 8][4] = {}; // [64, Dk], [64, Dv]
  multiply_all<Config>(dk, dv, ceil_div(tile.tokens, R::kTokens), base, p.scale_log2);
  store_sums<Config, Config::kHeadDimQk, false>(tile, first_key, 0, dk, p.scale);
  store_sums<Config, Config::kHeadDimV, false>(tile, first_key, Config::kHeadDimQk, dv, 1.0f);
}

template <class Config> NSAI_DEVICE void run_dkv_dq(const NsaiBackwardDkvDq &p) {
  using R = DkvDqPipeline<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const u32 base = shared_address(shared_bytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(base + R::kDqFull + 8 * i, 128);
      barrier_init(base + R::kDqEmpty + 8 * i, 1);
    }
    init_dkv_pipeline<DkvPart<Config>>(base);
  }
  begin_kernel();
  if (threadIdx.x == 0)
    store_shared_word(base + R::kTicket, take_ticket(p.order + p.keys.kv.head_begin));
  __syncthreads(); // barriers are initialised, and the ticket is there
  const int cta = warp_uniform(load_shared_word(base + R::kTicket));
  CompressedRows<Config> rows;
  KeyTile tile;
  DqBlocks dq;
  if (!find_blocks<Config>(p, cta, rows, tile, dq)) return;
  const int warp = warp_uniform(threadIdx.x / 32);
  if (warp >= 8) {
    registers_drop<R::kProducerRegisters>();
    if (warp == 8) {
      load_keys<Config>(p.keys, tile, base);
      produce_stages<DkvPart<Config>, true>(p.keys, tile, rows, base, dq.before);
    }
    if (warp == 9) produce_known<DkvPart<Config>>(p.keys.kv, tile, rows, base, 0);
    if (warp >= 10 && threadIdx.x % 32 == 0) add_halves<Config>(tile, dq, base, warp - 10);
  } else {
    registers_raise<R::kConsumerRegisters>();
    consume_all<Config>(p.keys.kv, tile, base);
  }
}

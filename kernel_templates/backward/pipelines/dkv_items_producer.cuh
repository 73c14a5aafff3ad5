// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The producers of backward/pipelines/dkv_items.cuh: one warp takes tiles and loads their keys, one
// loads rows of q and d_o, and one (with kJoins, one per tile of 64 keys) writes for each row its
// statistics and the keys that it sees.
#pragma once
#include "backward/pipelines/dkv_items_stages.cuh"
#include "backward/pipelines/dkv_producer.cuh"

// Tiles of the window in the order of their numbers.
template <class Config> struct DkvWalk {
  NSAI_DEVICE bool next(const NsaiBackwardDkvPersistent &p, WindowRows<DkvTile<Config>> &rows,
                        KeyTile &tile) {
    const NsaiBackwardKv &kv = p.keys.kv;
    for (;;) {
      const int number = take_ticket(p.tickets);
      if (number >= kv.heads * kv.tiles) return false;
      if (find_window_tile<DkvTile<Config>>(kv, number, rows, tile)) return true;
    }
  }

  int head = 0, before = 0; // the head of the last ticket; tickets of the heads before it
  // Items of the lists, head by head, by their first tokens or by their blocks.
  NSAI_DEVICE bool next(const NsaiBackwardDkvPersistent &p, ListRows<DkvTile<Config>> &rows,
                        KeyTile &tile) {
    const NsaiBackwardKv &kv = p.keys.kv;
    for (;;) {
      const int number = take_ticket(p.tickets);
      for (;; ++head) { // tickets of a CTA ascend
        if (head >= kv.heads) return false;
        const int own = kv.item_counts[list_head(kv)] * kv.tiles;
        if (number - before < own) break;
        before += own;
      }
      const int part = (number - before) % kv.tiles;
      int item = (number - before) / kv.tiles;
      if (p.item_order) item = p.item_order[(long long)list_head(kv) * kv.item_capacity + item];
      if (find_item_tile<DkvTile<Config>>(kv, head, list_head(kv), item, part, rows, tile))
        return true;
    }
  }
  NSAI_DEVICE int list_head(const NsaiBackwardKv &kv) const {
    return kv.shared_lists ? 0 : kv.head_begin + head;
  }
};

// The loop of warp 11; one thread.
template <class Config, class Rows>
NSAI_DEVICE void hand_out_tiles(const NsaiBackwardDkvPersistent &p, unsigned char *shared,
                                u32 base) {
  using R = DkvItems<Config>;
  DkvPlace<Config, Rows> place = { shared, base };
  DkvWalk<Config> walk;
#pragma unroll 1
  for (;; ++place.number) {
    // The tile is written where it stays: a producer has few registers.
    DkvItem<Rows> &item = place.item();
    barrier_wait(base + R::kAsked, place.phase());
    place.barriers().producer_acquire(place.at());
    item.tile.rotation = 0;
    item.exists = walk.next(p, item.rows, item.tile);
    place.barriers().producer_commit(place.at().stage);
    if (!item.exists) return;
    barrier_wait(base + R::kKeysEmpty, place.phase() ^ 1); // the first time it returns at once
    load_key_boxes<DkvTile<Config>>(p.keys, item.tile, base);
  }
}

// The token that a lane loads, which was read a stage ago.
template <class Rows> struct LoadedToken {
  static constexpr int kBranch = Rows::kBranch;
  int loaded;
  NSAI_DEVICE int token(int) const { return loaded; }
};

// Fills the stages of a tile; calls ask() kAskAhead stages before the last one, or at once.
template <class Config, class Rows, class Ask>
NSAI_DEVICE void produce_tile(const NsaiBackwardKvTma &p, const KeyTile &tile, const Rows &rows,
                              u32 base, PipelineState<Config::kStages> &step, Ask ask) {
  using R = DkvItems<Config>;
  int left = max(ceil_div(tile.tokens, R::kTokens), R::kAskAhead);
  if (left == R::kAskAhead) ask();
  auto count = [&]() {
    if (--left == R::kAskAhead) ask();
  };
  if constexpr (Rows::kBranch == NSAI_BRANCH_SELECTED) {
    const int lane = threadIdx.x % 32;
    int next = lane < min(R::kTokens, tile.tokens) ? rows.token(lane) : 0;
    produce_stages<DkvTile<Config>>(p, tile, rows, base, 0, step, [&](int first) {
      const LoadedToken<Rows> now = { next };
      const int token = first + R::kTokens + lane;
      if (lane < R::kTokens && token < tile.tokens) next = rows.token(token);
      count();
      return now;
    });
  } else {
    produce_stages<DkvTile<Config>>(p, tile, rows, base, 0, step, [&](int) {
      count();
      return rows;
    });
  }
}

// The loop of warp 8.
template <class Config, class Rows>
NSAI_DEVICE void produce_tiles(const NsaiBackwardKvTma &p, unsigned char *shared, u32 base) {
  using R = DkvItems<Config>;
  DkvPlace<Config, Rows> place = { shared, base };
  PipelineState<R::kStages> step;
  auto ask = [&]() {
    if (threadIdx.x % 32 == 0) barrier_arrive(base + R::kAsked);
  };
  ask();
#pragma unroll 1
  for (;;) {
    const DkvItem<Rows> &item = place.wait();
    if (!item.exists) return;
    const KeyTile tile = item.tile;
    const Rows rows = item.rows;
    place.release();
    produce_tile<Config>(p, tile, rows, base, step, ask);
  }
}

// The stages of a tile, one by one, in the order of for_stages().
template <class Config> struct StageWalk {
  static constexpr int kTokens = DkvItems<Config>::kTokens;
  int stages, stage, left;
  NSAI_DEVICE explicit StageWalk(const KeyTile &tile)
      : stages(ceil_div(tile.tokens, kTokens)), stage(tile.rotation / kTokens), left(stages) {}
  NSAI_DEVICE int first() const { return stage * kTokens; }
  NSAI_DEVICE void next() {
    --left;
    if (++stage == stages) stage = 0;
  }
};

// The statistics of row `row` of a stage, which belongs to a token.
template <class Config>
NSAI_DEVICE float4 load_statistics(const NsaiBackwardKv &p, int branch, int head, int token,
                                   int row) {
  return ((const float4 *)p
              .statistics)[statistics_at(branch, p.seq.q_tokens, token, Config::kGroup * p.kv_heads,
                                         head * Config::kGroup + row % Config::kGroup)];
}

// Stores what is known of the rows of stage `step`, and steps on. (produce_known() of
// backward/pipelines/dkv_producer.cuh does the same; if it called this function, its machine code would
// differ, NVRTC 13.0.)
template <class Config>
NSAI_DEVICE void store_known(const KnownRows<Config> &known, u32 base,
                             PipelineState<DkvPipeline<Config>::kStages> &step, int t) {
  using R = DkvPipeline<Config>;
  const Barriers<R::kStages> barriers = { base + R::kBarriers };
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
}

// For keys that a row sees in both the window and the selected branch, turns the window's
// statistics into those of the sum: P' + P'_sel = 2^(S - LSE), dS + dS_sel = (P' + P'_sel)
// (dU - u), with LSE and u of the sum.
NSAI_DEVICE void join_statistics(float4 &x, const float4 &y) {
  const float low = fminf(x.x, y.x);
  if (low == kPlusInf) return; // neither branch sees a key
  const float a = exp2_approx(low - x.x), b = exp2_approx(low - y.x), sum = a + b;
  x.z = (a * x.z + b * y.z) / sum;
  x.x = low - log2_approx(sum);
}

// Finds the tokens of a stage that have the block of tile t on their lists and whose window
// contains the block's first key. They leave the block to the window's kernel (NsaiInvert.near).
// Writes sListed [kTokens]; one warp.
template <class Config, class Rows>
NSAI_DEVICE void find_listed(const NsaiBackwardKv &p, const KeyTile &tile, const Rows &rows,
                             int first, int t, unsigned char *sListed) {
  using R = DkvPipeline<Config>;
  const int lane = threadIdx.x % 32, wanted = (rows.first_key + 64 * t) / Config::kSelectBlock;
  __syncwarp(); // the previous stage's flags were read
  for (int i = lane; i < R::kTokens; i += 32) sListed[i] = 0;
  __syncwarp();
#pragma unroll 2
  for (int i = lane; i < R::kTokens * Config::kSelectCount; i += 32) {
    const int token_index = i / Config::kSelectCount, token = first + token_index;
    if (token >= tile.tokens) break;
    const int block = p.lists[rows.token(token) * p.list_token_stride +
                              tile.head * p.list_head_stride + i % Config::kSelectCount];
    const int ahead = rows.seq.position(rows.first_query + token) - wanted * Config::kSelectBlock;
    if (block == wanted && ahead >= 0 && ahead < Config::kWindow) sListed[token_index] = 1;
  }
  __syncwarp();
}

// Writes what is known of a tile's rows. Tokens are read a stage before their statistics, which are
// read two stages before they are stored: a stage takes less time than two reads one after the other.
template <class Config, class Rows>
NSAI_DEVICE void know_tile(const NsaiBackwardKv &p, const KeyTile &tile, const Rows &rows, u32 base,
                           int t, PipelineState<Config::kStages> &step) {
  using R = DkvItems<Config>;
  constexpr int kPerLane = R::kRows / 32;
  StageWalk<Config> walk(tile);
  int tokens[kPerLane]; // of the lane's rows of the walk's stage; -1: none
  auto load_tokens = [&]() {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int at = walk.first() + (threadIdx.x % 32 + 32 * i) / Config::kGroup;
      tokens[i] = walk.left > 0 && at < tile.tokens ? rows.token(at) : -1;
    }
  };
  auto load = [&](KnownRows<DkvTile<Config>> &known) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      known.x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      known.seen[i] = 0;
      if (tokens[i] < 0) continue;
      known.x[i] = load_statistics<Config>(p, Rows::kBranch, tile.head, tokens[i],
                                           threadIdx.x % 32 + 32 * i);
      known.seen[i] = rows.seen_by(tokens[i]);
    }
    walk.next();
    load_tokens();
  };
  KnownRows<DkvTile<Config>> known[2]; // of the even and of the odd stages
  load_tokens();
  load(known[0]);
  load(known[1]);
#pragma unroll 1
  for (int left = walk.stages; left > 0; left -= 2) {
    store_known<DkvTile<Config>>(known[0], base, step, t);
    load(known[0]);
    if (left == 1) break;
    store_known<DkvTile<Config>>(known[1], base, step, t);
    load(known[1]);
  }
}

// The same with kJoins: the lists of a stage are read while the statistics of the stage before it
// arrive.
template <class Config, class Rows>
NSAI_DEVICE void know_joined_tile(const NsaiBackwardKv &p, const KeyTile &tile, const Rows &rows,
                                  unsigned char *shared, u32 base, int t,
                                  PipelineState<Config::kStages> &step) {
  using R = DkvItems<Config>;
  constexpr int kPerLane = R::kRows / 32;
  StageWalk<Config> walk(tile);
  unsigned char *sListed = shared + R::kSListed + t * R::kTokens; // [kTokens]
  auto find = [&]() {
    if (p.joined && walk.left > 0)
      find_listed<DkvTile<Config>>(p, tile, rows, walk.first(), t, sListed);
  };
  find();
#pragma unroll 1
  while (walk.left > 0) {
    const int first = walk.first();
    KnownRows<DkvTile<Config>> known;
    float4 y[kPerLane]; // of the selected branch
    bool joins[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int row = threadIdx.x % 32 + 32 * i, at = first + row / Config::kGroup;
      known.x[i] = y[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      known.seen[i] = 0;
      joins[i] = at < tile.tokens && p.joined && sListed[row / Config::kGroup];
      if (at >= tile.tokens) continue;
      known.x[i] = load_statistics<Config>(p, Rows::kBranch, tile.head, rows.token(at), row);
      if (joins[i])
        y[i] = load_statistics<Config>(p, NSAI_BRANCH_SELECTED, tile.head, rows.token(at), row);
      known.seen[i] = rows.seen(at);
    }
    walk.next();
    find();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (joins[i]) join_statistics(known.x[i], y[i]);
    store_known<DkvTile<Config>>(known, base, step, t);
  }
}

// The loop of the warps that write what is known of the rows.
template <class Config, class Rows>
NSAI_DEVICE void know_tiles(const NsaiBackwardKv &p, unsigned char *shared, u32 base, int t) {
  using R = DkvItems<Config>;
  DkvPlace<Config, Rows> place = { shared, base };
  PipelineState<R::kStages> step;
#pragma unroll 1
  for (;;) {
    const DkvItem<Rows> &item = place.wait();
    if (!item.exists) return;
    const KeyTile tile = item.tile;
    const Rows rows = item.rows;
    place.release();
    if constexpr (Config::kJoins)
      know_joined_tile<Config>(p, tile, rows, shared, base, t, step);
    else
      know_tile<Config>(p, tile, rows, base, t, step);
  }
}

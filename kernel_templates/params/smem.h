/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The bytes of shared memory that tiles and kernels take. The host computes a kernel's size by the
 * formula of its family, and hands it over as Config::kSharedBytes. The kernel asserts that the
 * size of what it lays out there is the same.
 *
 * Host and device share this header: integers alone, no configuration and no system headers.
 */
#ifndef NSAI_PARAMS_SMEM_H
#define NSAI_PARAMS_SMEM_H

#ifdef __CUDACC__
#define NSAI_SIZE constexpr __device__ __forceinline__ int
#else
#define NSAI_SIZE static inline int
#endif

/* ---- tiles: rows of 16-bit elements of a head dim ---- */

/* Columns of a head dim: products take 16 at a time. */
NSAI_SIZE nsai_padded_dim(int dim) { return (dim + 15) / 16 * 16; }

/* Bytes of a row of a Tile (core/tile.cuh): an odd number of 16-byte chunks, or a multiple of 8. */
NSAI_SIZE nsai_tile_pitch(int dim) {
  return nsai_padded_dim(dim) % 64 ? 16 * (nsai_padded_dim(dim) / 8 | 1) : 2 * nsai_padded_dim(dim);
}
NSAI_SIZE nsai_tile_bytes(int rows, int dim) { return rows * nsai_tile_pitch(dim); }

/* 16-bit elements in which a row of a head dim is copied: the row itself or, of codes
 * (core/e4m3.cuh), words of two, 16 bytes at a time; a Tile has a multiple of 32 codes. */
NSAI_SIZE nsai_row_words(int codes, int dim) { return codes ? dim / 2 : dim; }

/* Panels of 64 columns that a head dim takes, and bytes of a panel's row (core/tma.cuh). */
#define NSAI_PANEL_PITCH 128
NSAI_SIZE nsai_panels(int dim) { return (dim + 63) / 64; }
NSAI_SIZE nsai_panel_bytes(int rows, int dim) { return rows * nsai_panels(dim) * NSAI_PANEL_PITCH; }

/* A ProductTile (core/panel_tile.cuh): panels for wgmma, or a Tile for mma.sync. */
NSAI_SIZE nsai_product_tile_bytes(int panels, int rows, int dim) {
  return panels ? nsai_panel_bytes(rows, dim) : nsai_tile_bytes(rows, dim);
}

/* K [keys, Dk] and V [keys, Dv]; Q and dO alike. */
NSAI_SIZE nsai_product_pair(int panels, int rows, int dk, int dv) {
  return nsai_product_tile_bytes(panels, rows, dk) + nsai_product_tile_bytes(panels, rows, dv);
}
NSAI_SIZE nsai_tile_pair(int rows, int dk, int dv) { return nsai_product_pair(0, rows, dk, dv); }
NSAI_SIZE nsai_panel_pair(int rows, int dk, int dv) { return nsai_product_pair(1, rows, dk, dv); }

/* The barriers `full` and `empty` of a pipeline (core/pipeline.cuh). */
NSAI_SIZE nsai_barrier_bytes(int stages) { return 16 * stages; }

NSAI_SIZE nsai_smem_aligned(int bytes, int to) { return (bytes + to - 1) / to * to; }
NSAI_SIZE nsai_smem_larger(int a, int b) { return a > b ? a : b; }

/* ---- attend: what lies in shared memory, in this order ---- */

/* attend/mainloop_sm80.cuh: Q [rows, Dk] | K [keys, Dk] | V [keys, Dv]. */
NSAI_SIZE nsai_smem_flash_sm80(int rows, int keys, int dk, int dv) {
  return nsai_tile_bytes(rows, dk) + nsai_tile_pair(keys, dk, dv);
}

/* attend/mainloop_sm90.cuh: Q [queries, rows, Dk] | K [stages, keys, Dk] | V [stages, keys, Dv] |
 * FlashTile [queries] of 32 bytes | barriers of Q, of K, of V | with `cached`, u64 [2, keys]:
 * addresses of compressed entries. `queries`: stages of Q. */
NSAI_SIZE nsai_smem_flash_sm90(int rows, int keys, int queries, int stages, int dk, int dv,
                               int cached) {
  return queries * (nsai_panel_bytes(rows, dk) + 32) + stages * nsai_panel_pair(keys, dk, dv) +
         nsai_barrier_bytes(queries + 2 * stages) + (cached ? 16 * keys : 0);
}

/* attend/compressed_topn_sm90.cuh: the above | TopnStorage of attend/topn_pool.cuh, which is
 *   an ExchangeBuffer for each of 4 selectors | int [work items] | barrier
 * and an ExchangeBuffer
 *   Piece [depth, mine], or u64 [159] in the same memory | f32 [mine, 16] |
 *   u32 [tokens, 34] | barriers [depth]
 * `mine`: work items of a selector, with `tokens` tokens in all. A Piece has 16 rows of f32, of up
 * to 32 blocks and a reference each. `blocks`: of a tile of 128 keys; `group`: padded. Of groups of
 * one head the storage is
 *   {int [4, 128] | f32 [2, 128]} [2] | f32 [2, 256, 4] | int [16, 128] | int [4] | barriers [2, 4] */
NSAI_SIZE nsai_smem_compressed_topn(int queries, int depth, int blocks, int group, int dk, int dv,
                                    int cached) {
  const int work_items = group > 16 ? 128 / group : 8, mine = (work_items + 3) / 4;
  const int tokens = mine * (group < 16 ? 16 / group : 1);
  const int pieces = depth * mine * 64 * ((blocks < 32 ? blocks : 32) + 1);
  const int first = nsai_smem_aligned(nsai_smem_larger(pieces, 159 * 8), 16);
  const int buffer = nsai_smem_aligned(first + 64 * mine + 136 * tokens + 8 * depth, 16);
  const int storage = group == 1 ? 2 * 6 * 512 + 2 * 256 * 16 + 16 * 512 + 16 + 64
                                 : 4 * buffer + 4 * work_items + 8;
  return nsai_smem_flash_sm90(128, 128, queries, 2, dk, dv, cached) +
         nsai_smem_aligned(storage, 16);
}

/* attend/selected_sm80.cuh: Q [warps, 16, Dk], unless registers hold it |
 * K [stages, keys, Dk] | V [stages, keys, Dv], elements or codes | barriers |
 * u32 [stages, tokens, max(1, keys / 32)]: keys that each token sees | int [stages] |
 * TilePosition of 24 bytes. */
#define NSAI_SELECTED_REGISTER_COLUMNS 320 /* padded Dk + Dv up to which they do; more spill */
NSAI_SIZE nsai_smem_selected_sm80(int warps, int keys, int stages, int tokens, int dk, int dv,
                                  int codes) {
  const int columns = nsai_padded_dim(dk) + nsai_padded_dim(dv);
  const int q = columns <= NSAI_SELECTED_REGISTER_COLUMNS ? 0 : nsai_tile_bytes(16 * warps, dk);
  const int pair = nsai_tile_pair(keys, nsai_row_words(codes, dk), nsai_row_words(codes, dv));
  const int stage = pair + 4 * tokens * nsai_smem_larger(1, keys / 32) + 4;
  return nsai_smem_aligned(q + stages * stage + nsai_barrier_bytes(stages) + 24, 16);
}

/* attend/selected_pipeline.cuh: K [stages, 64, Dk] | V [stages, 64, Dv], elements or words of codes |
 * u64 [stages, tokens]: keys that each token sees | u32 [2, stages, producers] | barriers |
 * int [2, producers] | with `cached`, for the loaders: barriers [stages] | where they expand codes
 * barriers [stages] | int [stages] | where they expand codes f32 [expanded_warps], the consumers;
 * 0: they do not | from a multiple of 1024 on: q_bytes of Q that registers do not hold. */
NSAI_SIZE nsai_smem_selected_pipeline(int stages, int tokens, int q_bytes, int dk, int dv,
                                      int cached, int expanded_warps) {
  const int producers = tokens <= 32 ? 1 : 4, loaders = cached && producers == 1;
  const int stage = nsai_panel_pair(64, dk, dv) + 8 * tokens + 8 * producers;
  const int end = stages * stage + nsai_barrier_bytes(stages) + 8 * producers +
                  (loaders ? (expanded_warps ? 20 : 12) * stages : 0) + 4 * expanded_warps;
  return q_bytes ? nsai_smem_aligned(end, 1024) + q_bytes : nsai_smem_aligned(end, 16);
}

/* attend/selected_kv_stationary_sm90.cuh: K [keys, Dk] | V [keys, Dv] as panels |
 * Q [warps, 16, Dk] | O [warps, 16, Dv] | u32 [rows]: an item's entries. */
NSAI_SIZE nsai_smem_kv_stationary(int keys, int rows, int warps, int dk, int dv) {
  return nsai_panel_pair(keys, dk, dv) + nsai_tile_pair(16 * warps, dk, dv) + 4 * rows;
}

/* attend/window_combine_sm90.cuh: as attend/mainloop_sm90.cuh | [ring, n, Dv] | barriers [ring], two
 * stages of them between combiners and consumers. `count`: n. */
NSAI_SIZE nsai_smem_window_combine(int keys, int queries, int ring, int count, int dk, int dv) {
  return nsai_smem_flash_sm90(128, keys, queries, 2, dk, dv, 0) +
         nsai_smem_aligned(ring * count * dv * 2 + nsai_barrier_bytes(ring + 2), 16);
}

/* data/invert_fill.cuh: int [counters] | u16 [warps, counters]. */
NSAI_SIZE nsai_smem_invert_fill(int warps, int counters) { return (4 + 2 * warps) * counters; }

/* ---- select ---- */

/* select/importance.cuh: K [2, keys, Dk] | for each of warps * tokens: f32 [(history + keys) | 1],
 * sums over heads | f32 [2, 2], carries. `tokens`: of a warp. `history`: keys before a tile that
 * weigh in its first block. Sums have an odd pitch, so that tokens fall on different banks. */
NSAI_SIZE nsai_smem_importance(int keys, int warps, int tokens, int history, int dk) {
  return 2 * nsai_tile_bytes(keys, dk) + 4 * warps * tokens * (((history + keys) | 1) + 4);
}

/* select/scores_sm90.cuh: Q [rows, Dk] | K [stages, 128, Dk] | u64 [128], addresses of keys |
 * barriers. */
NSAI_SIZE nsai_smem_scores_sm90(int rows, int stages, int dk) {
  return nsai_panel_bytes(rows, dk) + stages * nsai_panel_bytes(128, dk) + 1024 +
         nsai_barrier_bytes(stages);
}

/* select/normalizer.cuh: K [2, keys, Dk]. */
NSAI_SIZE nsai_smem_normalizer(int keys, int dk) { return 2 * nsai_tile_bytes(keys, dk); }

/* select/index_scores.cuh: K [stages, keys, Di]. */
NSAI_SIZE nsai_smem_index_scores(int stages, int keys, int di) {
  return stages * nsai_tile_bytes(keys, di);
}

/* select/index_scores_sm90.cuh: Q [rows, Di] | K [stages, keys, Di] | barriers of K, of Q. */
NSAI_SIZE nsai_smem_index_scores_sm90(int rows, int keys, int stages, int di) {
  return nsai_panel_bytes(rows, di) + stages * nsai_panel_bytes(keys, di) +
         nsai_barrier_bytes(stages) + 8;
}

/* ---- decode ---- */

/* decode/consumer_groups.cuh, KeyStream: Q [rows, Dk], unless registers hold it |
 * K [keys, Dk] and V [keys, Dv] [groups, stages], elements or codes. At the end, in the same memory:
 * O f32 [groups, rows, padded Dv + 8] | statistics f32 [groups, rows, 2]. */
NSAI_SIZE nsai_smem_key_stream(int panels, int shared_q, int rows, int groups, int stages, int keys,
                               int dk, int dv, int codes) {
  const int q = shared_q ? nsai_product_tile_bytes(panels, rows, dk) : 0;
  const int pipelines =
      groups * stages *
      nsai_product_pair(panels, keys, nsai_row_words(codes, dk), nsai_row_words(codes, dv));
  const int o = groups * rows * 4 * (nsai_padded_dim(dv) + 8 + 2);
  return nsai_smem_larger(q + pipelines, o);
}

/* decode/compressed_scan.cuh, ScanPool: f32 [warps, 16, keys + 4]. `keys`: of a stage. */
NSAI_SIZE nsai_smem_scan_pool(int warps, int keys) { return warps * 16 * (keys + 4) * 4; }

/* decode/merged_keys.cuh, MergedListStorage: blocks of 8 bytes [tokens, count] |
 * u32 [tokens, ceil(count / 32)] | int [tokens]. */
NSAI_SIZE nsai_smem_merged_list(int tokens, int count) {
  return tokens * (8 * count + (count + 31) / 32 * 4 + 4);
}

/* decode/topn_token.cuh, SelectShared, for each warp: f32 [kept_blocks / warps] | u64 [159] |
 * u32 [32] | int | int [free]. `free`: blocks to be searched; `kept_blocks`: those whose importance
 * lies in shared memory, a multiple of `warps`. */
NSAI_SIZE nsai_smem_topn_token(int warps, int free, int kept_blocks) {
  return 4 * kept_blocks + warps * (8 * 159 + 4 * 32 + 4 + 4 * nsai_smem_larger(free, 1));
}

/* decode/split_kv_select.cuh: f32 [warps, group], LSE | SelectShared. `group`: padded. */
NSAI_SIZE nsai_smem_split_kv_select(int warps, int group, int free, int kept_blocks) {
  return nsai_smem_aligned(nsai_smem_aligned(4 * warps * group, 8) +
                               nsai_smem_aligned(nsai_smem_topn_token(warps, free, kept_blocks), 8),
                           16);
}

/* decode/split_kv_attend.cuh: the key stream, or int [tokens, count] before it | the merged list.
 * If the caller gives ranges: the key stream | int [count + 1, 2]. */
NSAI_SIZE nsai_smem_split_kv_attend(int stream, int tokens, int count) {
  const int first = nsai_smem_aligned(nsai_smem_larger(stream, 4 * tokens * count), 8);
  return nsai_smem_aligned(first + nsai_smem_merged_list(tokens, count), 8);
}
NSAI_SIZE nsai_smem_split_kv_ranges(int stream, int count) { return stream + 8 * (count + 1); }

/* decode/single_cta.cuh: the key stream, or the search | the pool, or the merged list |
 * sum f32 [rows, Dv] | gates f32 [3, rows] | LSE f32 [rows]. */
NSAI_SIZE nsai_smem_single_cta(int stream, int search, int pool, int list, int rows, int dv) {
  return nsai_smem_aligned(nsai_smem_larger(stream, search), 16) +
         nsai_smem_aligned(nsai_smem_larger(pool, list), 16) + 4 * rows * (dv + 4);
}

/* decode/rank_blocks.cuh: groups of candidates, about twice as many as blocks are `free`; and most
 * candidates of so many `blocks` that may be chosen, those of `free` groups, in multiples that are ranked at
 * once. */
NSAI_SIZE nsai_smem_rank_groups(int free) { return free <= 20 ? 32 : free <= 40 ? 64 : 128; }
#define NSAI_RANKED_AT_ONCE 16
NSAI_SIZE nsai_smem_rank_passing(int free, int blocks) {
  const int groups = nsai_smem_rank_groups(free);
  return nsai_smem_aligned(nsai_smem_larger(free, 1) * ((blocks + groups - 1) / groups),
                           NSAI_RANKED_AT_ONCE);
}

/* decode/select_attend.cuh: the key stream, or before it RankShared, which is
 *   u64 [groups], [passing], key | int [free], count;
 * received O f32 [cluster, slice, 4] and statistics f32 [cluster, rows of a slice, 2], of a cluster of one
 * a vector | barrier | int [count]. A slice is a CTA's share of O, in vectors of four columns. */
NSAI_SIZE nsai_smem_select_attend(int stream, int free, int blocks, int cluster, int group, int dv,
                                  int count) {
  const int keys = nsai_smem_rank_groups(free) + nsai_smem_rank_passing(free, blocks) + 1;
  const int rank = nsai_smem_aligned(8 * keys + 4 * (nsai_smem_larger(free, 1) + 1), 16);
  const int slice = (group * (dv / 4) + cluster - 1) / cluster;
  const int rows = (slice + dv / 4 - 2) / (dv / 4) + 1;
  const int received = cluster > 1 ? cluster * (16 * slice + 8 * rows) : 24;
  return nsai_smem_aligned(nsai_smem_aligned(nsai_smem_larger(stream, rank), 16) + received + 8 +
                               4 * count,
                           16);
}

/* decode/score_blocks.cuh: importance f32 [blocks] | statistics f32 [cluster + warps, 16, 2] | sums f32
 * [warps, 32] | barriers. */
NSAI_SIZE nsai_smem_block_scores(int blocks, int cluster, int warps) {
  return nsai_smem_aligned(4 * blocks + 128 * (cluster + 2 * warps) + 16, 128);
}

/* decode/cluster.cuh: K and V [stages, warps] of 16 keys, elements or codes | Q [16, Dk] |
 * ExchangeBuffer: P [terms, warps] of 512 bytes, f32 [4 * warps + 3, 16] | KvTensors of 160 bytes |
 * received O f32 [3, cluster, slice | 1, 4] and statistics f32 [3, cluster, 16, 2] |
 * weights and gates f32 [3, rows of a slice, cluster + 1] | ScanPool |
 * Search: f32 [kept_blocks, 16], carries f32 [warps + 1, 16], FewBest (core/topn_cta.cuh),
 *   u64 [cluster * free + most_blocks + 2], int [n + 1] | barriers | int [pages].
 * A slice is a CTA's share of O, in vectors of four columns. `warps`: those that attend; `free`:
 * blocks to be searched; `kept_blocks`: those whose pooled values lie in shared memory;
 * `most_blocks`: of a CTA; `terms`: of P (kSplitP). */
NSAI_SIZE nsai_smem_decode_cluster(int dk, int dv, int group, int warps, int stages, int cluster,
                                   int free, int select_count, int kept_blocks, int most_blocks,
                                   int terms, int pages, int codes) {
  const int row = dv / 4, slice = (group * row + cluster - 1) / cluster;
  const int rows = slice % row == 0 ? slice / row : (slice - 2) / row + 2;
  const int exchange = 512 * terms * warps + 64 * (4 * warps + 3);
  const int received = 3 * cluster * (16 * (slice | 1) + 128);
  const int weights = nsai_smem_aligned(12 * rows * (cluster + 1), 16);
  const int most = nsai_smem_larger(free, 1); /* that a CTA sends */
  const int best = nsai_smem_aligned(8 * 256 + 4 * 32 + 8 * most + 4, 16);
  const int keys = 8 * (cluster * most + most_blocks + 2);
  const int search = 64 * (kept_blocks + warps + 1) + best + keys + 4 * (select_count + 1);
  const int pair = nsai_tile_pair(16, nsai_row_words(codes, dk), nsai_row_words(codes, dv));
  const int tiles = stages * warps * pair + nsai_tile_bytes(16, dk);
  const int barriers = 8 * (13 + 3 * stages);
  return nsai_smem_aligned(tiles + exchange + 160 + received + weights +
                               nsai_smem_scan_pool(warps, 16) + nsai_smem_aligned(search, 16) +
                               barriers + 4 * pages,
                           16);
}

/* decode/pipelined/shared.cuh: for each warp K and V [stages] of 16 keys, elements or codes, or
 * later O f32 [16, padded Dv + 8] | for each warp
 * O f32 [16, padded Dv + 8] | pooled f32 [kept_blocks, 16] | segments of 16 bytes [warps, 3] |
 * carries f32 [warps + 1, 16] | u64 [32] |
 * received O f32 [cluster - 1, 3, slice, 4] and statistics f32 [cluster - 1, 3, 16, 2] |
 * statistics f32 [3, warps, 16, 2] | and [cluster, 16, 2] | gates f32 [3, 16] |
 * u64 [cluster, free] | barriers [warps, 4 * stages] | and [9] | int [n + 1] |
 * u32 [most_blocks]. */
NSAI_SIZE nsai_smem_decode_pipelined(int dk, int dv, int group, int warps, int stages, int cluster,
                                     int free, int select_count, int kept_blocks, int most_blocks,
                                     int codes) {
  const int pair = nsai_tile_pair(16, nsai_row_words(codes, dk), nsai_row_words(codes, dv));
  const int o = 64 * (nsai_padded_dim(dv) + 8), segments = 48, carry = 64;
  const int tiles =
      nsai_smem_aligned(codes ? nsai_smem_larger(stages * pair, o) : stages * pair, 128);
  const int received = (cluster - 1) * 3 * (group * dv / 4 / cluster * 16 + 128);
  const int statistics = 128 * (3 * warps + cluster), gates = 192;
  const int best = 8 * cluster * nsai_smem_larger(free, 1);
  const int barriers = 8 * (warps * 4 * stages + 9);
  const int lists = 4 * (select_count + 1 + most_blocks);
  return nsai_smem_aligned(warps * (tiles + o + segments + carry) + carry +
                               64 * nsai_smem_larger(kept_blocks, 1) + 8 * 32 +
                               nsai_smem_larger(received, 8) + statistics + gates + best +
                               barriers + lists,
                           16);
}

/* ---- backward ---- */

/* backward/dq_mainloop.cuh: Q [rows, Dk] | dO [rows, Dv] | K [keys, Dk] and V [keys, Dv] [stages] |
 * int [2, warps]. */
NSAI_SIZE nsai_smem_dq(int panels, int rows, int keys, int warps, int stages, int dk, int dv) {
  return nsai_product_pair(panels, rows, dk, dv) +
         stages * nsai_product_pair(panels, keys, dk, dv) + 8 * warps;
}

/* backward/dkv_mainloop.cuh: K [keys, Dk] | V [keys, Dv] |
 * [stages], each aligned: Q [rows, Dk], dO [rows, Dv], RowStatistics [rows] of 16 bytes,
 * u32 [rows]: the keys that each row sees | u32 [entries]. */
NSAI_SIZE nsai_smem_dkv(int panels, int keys, int rows, int stages, int entries, int dk, int dv) {
  const int stage = nsai_product_pair(panels, rows, dk, dv) + (16 + 4) * rows;
  return nsai_product_pair(panels, keys, dk, dv) +
         stages * nsai_smem_aligned(stage, panels ? 1024 : 128) + 4 * entries;
}

/* backward/dkv_dq_selected.cuh: the above of 64 keys and 64 rows, aligned | dS [64, 64]. */
NSAI_SIZE nsai_smem_dkv_slots(int stages, int entries, int dk, int dv) {
  return nsai_smem_aligned(nsai_smem_dkv(1, 64, 64, stages, entries, dk, dv), 1024) +
         64 * NSAI_PANEL_PITCH;
}

/* backward/pipelines/dq.cuh: Q [128, Dk] | dO [128, Dv] | K [64, Dk] and V [64, Dv] [stages] |
 * RowStatistics [3, 128] of 16 bytes | u64 [2, stages, tokens]: keys that each token sees, and
 * those of lists | u32 [3, stages]: flags | barriers | barriers of the rows. */
NSAI_SIZE nsai_smem_dq_tma(int stages, int tokens, int dk, int dv) {
  return nsai_panel_pair(128, dk, dv) + stages * nsai_panel_pair(64, dk, dv) + 3 * 128 * 16 +
         nsai_smem_aligned(stages * (16 * tokens + 12), 8) + nsai_barrier_bytes(stages + 1);
}

/* backward/pipelines/dkv_stages.cuh: K [keys, Dk] | V [keys, Dv] |
 * Q [rows, Dk] and dO [rows, Dv] [stages] | [stages]: LSE and u f32 [warps, rows, 2], gates f32 [rows],
 * u32 [rows]: the keys that each row sees, flags of 16 bytes | barriers | barrier of K and V |
 * if branches are joined (backward/pipelines/dkv_items.cuh): u8 [warps, tokens]. `warps`: those that write
 * row statistics, one for each 64 keys if branches are joined, else one. */
NSAI_SIZE nsai_smem_dkv_tma(int keys, int rows, int stages, int joins, int tokens, int dk, int dv) {
  const int warps = joins ? keys / 64 : 1;
  const int stage = nsai_panel_pair(rows, dk, dv) + rows * (8 * warps + 4 + 4) + 16;
  return nsai_panel_pair(keys, dk, dv) + stages * stage + nsai_barrier_bytes(stages) + 8 +
         (joins ? warps * tokens : 0);
}

/* backward/pipelines/dkv_items.cuh: nsai_smem_dkv_tma, aligned | of 64 keys: half of the sums of a
 * warpgroup, f32 [64, Dk + Dv] / 2 | two tiles of NSAI_DKV_ITEM_BYTES | their barriers | two barriers. */
#define NSAI_DKV_ITEM_BYTES 80
NSAI_SIZE nsai_smem_dkv_items(int keys, int rows, int stages, int joins, int tokens, int dk,
                              int dv) {
  const int sums = 64 * (nsai_padded_dim(dk) + nsai_padded_dim(dv)) * 4 / 2;
  return nsai_smem_aligned(nsai_smem_dkv_tma(keys, rows, stages, joins, tokens, dk, dv), 16) +
         (keys == 64 ? sums : 0) + 2 * NSAI_DKV_ITEM_BYTES + nsai_barrier_bytes(2) + 2 * 8;
}

/* backward/pipelines/dkv_dq.cuh: nsai_smem_dkv_tma of 128 keys and 64 rows, aligned | dS [128, 64] |
 * f32 [64, Dk]: dQ of a stage | 4 barriers | ticket. */
NSAI_SIZE nsai_smem_dkv_dq(int stages, int tokens, int dk, int dv) {
  return nsai_smem_aligned(nsai_smem_dkv_tma(128, 64, stages, 0, tokens, dk, dv), 1024) +
         128 * NSAI_PANEL_PITCH + 64 * dk * 4 + 4 * 8 + 8;
}

/* backward/index_kl_lse.cuh: Ki [keys, Di]. */
NSAI_SIZE nsai_smem_index_kl_lse(int keys, int di) { return nsai_tile_bytes(keys, di); }

/* backward/index_kl_teacher.cuh: Q [stages, rows, Dk] | K [keys, Dk], unless registers hold it |
 * Ki [keys, Di] | Qi [stages, 16, Di] | f32 [means, keys, NSAI_INDEX_KL_MEAN_WORDS]: Pm of 16 tokens |
 * dS [keys, 16] | LSE and keys seen [stages, 16] of 8 bytes | f32 [stages, rows]: LSE | u32 [entries] |
 * with two tiles of means, which boxes of Q go with, barriers [stages]. */
#define NSAI_INDEX_KL_MEAN_WORDS 24
NSAI_SIZE nsai_smem_index_kl(int panels, int registers, int keys, int rows, int stages, int means,
                             int entries, int dk, int di) {
  const int stage =
      nsai_product_tile_bytes(panels, rows, dk) + nsai_tile_bytes(16, di) + 8 * 16 + 4 * rows;
  return stages * stage + (registers ? 0 : nsai_product_tile_bytes(panels, keys, dk)) +
         nsai_tile_bytes(keys, di) + 4 * NSAI_INDEX_KL_MEAN_WORDS * keys * means +
         nsai_tile_bytes(keys, 16) + 4 * entries + (means > 1 ? 8 * stages : 0);
}

#endif /* NSAI_PARAMS_SMEM_H */

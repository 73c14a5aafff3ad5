/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A soak: one captured graph of append and decode, launched for as many steps as are wanted, while
 * sequences come, share prefixes, draft, take drafts back and go. Pages are kept on the host. Free ones are
 * NaN on the device; a page that several sequences share is copied before one of them writes to it.
 *
 * Rows of Q, gates, K and V come of pools on both sides: a call's are POOL_ROWS' from any row on, copied
 * within the device, so that a token is known by its row. From check to check nothing waits for the device:
 * integers lie in pinned memory, a slot for each step.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define POOL_ROWS 4096

typedef struct pool {
  int what; /* CHK_KV_Q ... */
  size_t row, bytes;
  uint8_t *host;
  void *device;
} pool;

#define MOST_POOLS 8

typedef struct soak {
  chk_kv_scenario w;
  const chk_kv_soak_request *request;
  chk_kv_soak_counts *counts;
  pool pools[MOST_POOLS];
  int pool_count;
  uint16_t *history[CHK_KV_MOST_SEQS]; /* [max_kv_len]: each token's row of the pools */
  int32_t *users;                      /* [pages] */
  int32_t solid[CHK_KV_MOST_SEQS];     /* tokens that lie in the cache before the call */
  int32_t resent[CHK_KV_MOST_SEQS];    /* new tokens of the call that must not be written */
  int64_t base;                        /* the call's first row of the pools */
  uint8_t *slots;                      /* [every, slot_bytes] */
  size_t slot_bytes;
  int64_t slot;
  bool spoilt;
} soak;

static uint64_t below(soak *k, uint64_t n) { return chk_kv_next(&k->w) % n; }

static void fail(soak *k, const char *what, int64_t at) {
  chk_kv_result *r = k->w.result;
  if (!r->failure[0]) snprintf(r->failure, sizeof r->failure, "%s %lld", what, (long long)at);
}

/* ---- pages ---- */

static size_t page_bytes(const chk_kv_tensor *t) { return (size_t)t->view.stride[0] * 2; }

static void *page_at(const chk_kv_tensor *t, int32_t page) {
  return t->gpu.device + NSAI_VERIFY_GUARD + (size_t)page * page_bytes(t);
}

static bool injects(soak *k, int what) {
  if (k->request->inject != what || k->spoilt) return false;
  return k->spoilt = true;
}

/* The page is NaN before anybody can take it. */
static nsa_status release(soak *k, int32_t page) {
  chk_kv_scenario *w = &k->w;
  if (--k->users[page]) return NSA_OK;
  w->free_page[w->free_count++] = page;
  k->counts->poisoned++;
  for (int what = CHK_KV_K; what <= CHK_KV_V_CMP; what++) {
    const chk_kv_tensor *t = &w->tensor[what];
    if (t->host) NSAI_TRY(nsai_verify_device_set(w->device, page_at(t, page), 0xff, page_bytes(t)));
  }
  return NSA_OK;
}

static int32_t take(soak *k) {
  int32_t page = k->w.free_page[--k->w.free_count];
  k->users[page] = 1;
  return page;
}

/* Leaves a sequence the pages of `len` tokens. */
static nsa_status keep(soak *k, int s, int32_t len) {
  chk_kv_scenario *w = &k->w;
  w->len[s] = len;
  while ((int64_t)(w->page_count[s] - 1) * w->opts.page_size >= len && w->page_count[s])
    NSAI_TRY(release(k, w->page[s][--w->page_count[s]]));
  return NSA_OK;
}

static nsa_status copy_page(soak *k, int s, int32_t i) {
  chk_kv_scenario *w = &k->w;
  int32_t from = w->page[s][i], to = take(k);
  k->counts->copies++;
  for (int what = CHK_KV_K; what <= CHK_KV_V_CMP; what++) {
    const chk_kv_tensor *t = &w->tensor[what];
    if (t->host)
      NSAI_TRY(nsai_verify_device_copy(w->device, page_at(t, to), page_at(t, from), page_bytes(t)));
  }
  w->page[s][i] = to;
  return release(k, from);
}

/* The sequence alone has the pages of its tokens from position `first` on. */
static nsa_status own_pages(soak *k, int s, int32_t first) {
  chk_kv_scenario *w = &k->w;
  for (int32_t i = first / w->opts.page_size; i * w->opts.page_size < w->len[s]; i++) {
    if (i == w->page_count[s])
      w->page[s][w->page_count[s]++] = take(k);
    else if (k->users[w->page[s][i]] > 1 && k->request->inject != CHK_KV_SOAK_INJECT_COPY)
      NSAI_TRY(copy_page(k, s, i));
  }
  return NSA_OK;
}

/* ---- the course ---- */

/* A new sequence, with the beginning of another one where there is one. */
static void arrive(soak *k, int s) {
  chk_kv_scenario *w = &k->w;
  int from = (int)below(k, (uint64_t)w->opts.seqs);
  k->counts->arrivals++;
  if (!k->solid[from] || below(k, 3) == 0) return;
  k->counts->forks++;
  w->len[s] = 1 + (int32_t)below(k, (uint64_t)k->solid[from]);
  for (int32_t i = 0; i * w->opts.page_size < w->len[s]; i++) {
    w->page[s][w->page_count[s]++] = w->page[from][i];
    k->users[w->page[from][i]]++;
  }
  memcpy(k->history[s], k->history[from], (size_t)w->len[s] * sizeof **k->history);
}

static nsa_status roll_back(soak *k, int s) {
  chk_kv_scenario *w = &k->w;
  int32_t most = w->len[s] < w->opts.max_q_len ? w->len[s] : w->opts.max_q_len;
  k->counts->rollbacks++;
  return keep(k, s, w->len[s] - (int32_t)below(k, (uint64_t)most));
}

/* The call's new tokens of a sequence, which `token` of the call are before. */
static nsa_status draft(soak *k, int s, bool arrived, int64_t token) {
  chk_kv_scenario *w = &k->w;
  uint64_t most = (uint64_t)w->opts.max_q_len;
  int32_t count = below(k, 2) ? 1 : (int32_t)below(k, most + 1), first = w->len[s];
  if (!first && !count) count = 1;
  w->q_len[s] = count;
  k->solid[s] = first;
  if (!first && count > 1 && below(k, 2)) { /* rows before its first token */
    w->len[s] = 1 + (int32_t)below(k, (uint64_t)count - 1);
  } else {
    if (arrived && w->opts.mapping) k->resent[s] = first < count ? first : count;
    w->len[s] = first + count - k->resent[s];
  }
  for (int32_t i = 0; i < count; i++) {
    int32_t position = w->len[s] - count + i;
    if (position >= first) k->history[s][position] = (uint16_t)(k->base + token + i);
  }
  return own_pages(k, s, first);
}

static nsa_status choose(soak *k, int s, int64_t token) {
  chk_kv_scenario *w = &k->w;
  int32_t most = w->opts.max_q_len;
  bool arrives = !w->len[s] && below(k, 8) == 0;
  k->resent[s] = 0;
  if (w->len[s] && (w->len[s] + most > w->opts.max_kv_len || below(k, 300) == 0)) {
    k->counts->exits++;
    NSAI_TRY(keep(k, s, 0));
    k->solid[s] = 0;
  }
  if (arrives) {
    arrive(k, s);
    if (w->len[s] + most > w->opts.max_kv_len) NSAI_TRY(keep(k, s, w->opts.max_kv_len - most));
  } else if (!w->len[s]) { /* a padded row, of any number of tokens */
    w->q_len[s] = below(k, 4) ? 0 : (int32_t)below(k, (uint64_t)most + 1);
    return NSA_OK;
  } else if (below(k, 4) == 0) {
    NSAI_TRY(roll_back(k, s));
  }
  return draft(k, s, arrives, token);
}

/* ---- a step ---- */

static const int integers[] = { CHK_KV_CU_Q,   CHK_KV_LEN,   CHK_KV_TABLE,
                                CHK_KV_STARTS, CHK_KV_LISTS, CHK_KV_MAPPING };
#define INTEGERS (sizeof integers / sizeof *integers)

/* The call's integers on the host. */
static void write_call(soak *k) {
  chk_kv_scenario *w = &k->w;
  chk_kv_write_call(w);
  w->rows = (int64_t)w->opts.seqs * w->opts.max_q_len; /* the graph's */
  int64_t *mapping = (int64_t *)(void *)w->tensor[CHK_KV_MAPPING].host;
  for (int s = 0, token = 0; s < w->opts.seqs; token += w->q_len[s++])
    for (int32_t i = 0; i < k->resent[s]; i++) mapping[token + i] = -1;
}

static nsa_status send_integers(soak *k, bool checked) {
  uint8_t *slot = k->slots + (size_t)k->slot++ * k->slot_bytes;
  bool spoilt = checked && k->w.q_len[0] && k->w.len[0] > 1 && injects(k, CHK_KV_SOAK_INJECT_LEN);
  for (size_t i = 0; i < INTEGERS; i++) {
    chk_kv_tensor *t = &k->w.tensor[integers[i]];
    memcpy(slot, t->host, t->bytes);
    if (spoilt && integers[i] == CHK_KV_LEN) ((int32_t *)(void *)slot)[0]--;
    NSAI_TRY(
        nsai_verify_device_send(k->w.device, t->gpu.device + NSAI_VERIFY_GUARD, slot, t->bytes));
    slot += t->bytes;
  }
  return NSA_OK;
}

static nsa_status copy_rows(soak *k) {
  for (int i = 0; i < k->pool_count; i++) {
    const pool *p = &k->pools[i];
    NSAI_TRY(nsai_verify_device_copy(k->w.device,
                                     k->w.tensor[p->what].gpu.device + NSAI_VERIFY_GUARD,
                                     (uint8_t *)p->device + (size_t)k->base * p->row,
                                     (size_t)k->w.tokens * p->row));
  }
  return NSA_OK;
}

/* ---- a check ---- */

/* What the host's pools say of `count` rows, whose numbers `rows` has or which begin at `base`. */
static void fill_rows(soak *k, const uint16_t *rows, int64_t count) {
  for (int i = 0; i < k->pool_count; i++) {
    const pool *p = &k->pools[i];
    uint8_t *to = k->w.tensor[p->what].host;
    for (int64_t row = 0; row < count; row++)
      memcpy(to + (size_t)row * p->row,
             p->host + (size_t)(rows ? rows[row] : k->base + row) * p->row, p->row);
  }
}

/* The host's caches, from the histories alone. */
static nsa_status rebuild(soak *k) {
  chk_kv_scenario *w = &k->w;
  int32_t len[CHK_KV_MOST_SEQS], q_len[CHK_KV_MOST_SEQS];
  memcpy(len, w->len, sizeof len);
  memcpy(q_len, w->q_len, sizeof q_len);
  memset(w->q_len, 0, sizeof w->q_len);
  for (int what = CHK_KV_K; what <= CHK_KV_V_CMP; what++)
    if (w->tensor[what].host) memset(w->tensor[what].host, 0xff, w->tensor[what].bytes);
  for (int s = 0; s < w->opts.seqs; s++) {
    for (int32_t at = 0; at < len[s]; at = w->len[s]) {
      w->q_len[s] = len[s] - at < w->chunk ? len[s] - at : w->chunk;
      w->len[s] = at + w->q_len[s];
      chk_kv_write_call(w);
      fill_rows(k, k->history[s] + at, w->q_len[s]);
      NSAI_TRY(chk_kv_append(w, false));
    }
    w->q_len[s] = 0;
  }
  memcpy(w->q_len, q_len, sizeof q_len);
  write_call(k);
  fill_rows(k, NULL, w->tokens);
  return NSA_OK;
}

/* Rows [0, count) of a page: tokens bit by bit, or entries. */
static void compare_page(soak *k, int what, int32_t page, int32_t begin, int32_t count) {
  chk_kv_scenario *w = &k->w;
  const chk_kv_tensor *t = &w->tensor[what];
  int64_t dim = t->view.shape[3];
  for (int32_t row = begin; row < count; row++)
    for (int32_t head = 0; head < w->opts.model.kv_heads; head++) {
      int64_t at = page * t->view.stride[0] + row * t->view.stride[1] + head * t->view.stride[2];
      if (what >= CHK_KV_K_CMP)
        chk_kv_compare_entries(w, what, at, dim);
      else if (memcmp(chk_kv_fetched(t) + 2 * at, t->host + 2 * at, 2 * (size_t)dim))
        fail(k, "a token differs in page", page);
    }
}

/* What sequences see of their pages; and that free ones are as they were left. */
static void compare_pages(soak *k) {
  chk_kv_scenario *w = &k->w;
  const nsai_model *g = &w->opts.model;
  int32_t size = w->opts.page_size;
  for (int s = 0; s < w->opts.seqs; s++)
    for (int32_t i = 0; i * size < w->len[s]; i++) {
      int32_t tokens = w->len[s] - i * size < size ? w->len[s] - i * size : size;
      int32_t begin = i * size < g->block - g->stride ? (g->block - g->stride - i * size) : 0;
      for (int what = CHK_KV_K; what <= CHK_KV_V_CMP; what++) {
        if (!w->tensor[what].host) continue;
        if (what < CHK_KV_K_CMP)
          compare_page(k, what, w->page[s][i], 0, tokens);
        else
          compare_page(k, what, w->page[s][i], begin / g->stride, tokens / g->stride);
      }
    }
  for (int32_t i = 0; i < w->free_count; i++)
    for (int what = CHK_KV_K; what <= CHK_KV_V_CMP; what++) {
      const chk_kv_tensor *t = &w->tensor[what];
      const uint8_t *page = chk_kv_fetched(t) + (size_t)w->free_page[i] * page_bytes(t);
      for (size_t x = 0; t->host && x < page_bytes(t); x++)
        if (page[x] != 0xff) fail(k, "written: free page", w->free_page[i]);
    }
}

static nsa_status check(soak *k) {
  chk_kv_scenario *w = &k->w;
  k->counts->checks++;
  k->slot = 0; /* the device has read them: it is waited for here */
  for (int what = CHK_KV_K; what <= CHK_KV_V_CMP; what++) {
    if (!w->tensor[what].host) continue;
    NSAI_TRY(chk_kv_fetch(w, what));
    chk_kv_check_guards(w, &w->tensor[what].gpu, "cache");
    if (w->free_count && injects(k, CHK_KV_SOAK_INJECT_FREE))
      chk_kv_fetched(&w->tensor[what])[(size_t)w->free_page[0] * page_bytes(&w->tensor[what])] = 0;
  }
  NSAI_TRY(rebuild(k));
  compare_pages(k);
  if (w->result->failure[0]) return NSA_OK;
  return chk_kv_compare_step(w);
}

static nsa_status repeat(soak *k) {
  int inject = CHK_KV_INJECT_AGAIN;
  k->w.inject = k->w.tokens && injects(k, CHK_KV_SOAK_INJECT_AGAIN) ? &inject : NULL;
  nsa_status status = chk_kv_repeat(&k->w);
  k->w.inject = NULL;
  return status;
}

static nsa_status step(soak *k, bool checked) {
  chk_kv_scenario *w = &k->w;
  int64_t token = 0;
  k->base = (int64_t)below(k, POOL_ROWS);
  for (int s = 0; s < w->opts.seqs; token += w->q_len[s++]) {
    NSAI_TRY(choose(k, s, token));
    k->counts->tokens += w->len[s] ? w->q_len[s] : 0;
  }
  write_call(k);
  NSAI_TRY(send_integers(k, checked));
  NSAI_TRY(copy_rows(k));
  if (checked) NSAI_TRY(chk_kv_poison_outputs(w));
  NSAI_TRY(chk_kv_run_gpu(w));
  if (checked) NSAI_TRY(repeat(k));
  memcpy(k->solid, w->len, sizeof k->solid);
  k->counts->steps++;
  return checked && !w->result->failure[0] ? check(k) : NSA_OK;
}

/* ---- memory ---- */

static nsa_status make_pool(soak *k, int what) {
  chk_kv_scenario *w = &k->w;
  const chk_kv_tensor *t = &w->tensor[what];
  int64_t rows = POOL_ROWS + (int64_t)w->opts.seqs * w->opts.max_q_len;
  if (!t->host) return NSA_OK;
  pool *p = &k->pools[k->pool_count++];
  p->what = what;
  p->row = (size_t)t->view.stride[0] * 2;
  p->bytes = (size_t)rows * p->row;
  p->host = malloc(p->bytes);
  if (!p->host) return nsai_fail_nomem("a pool", p->bytes);
  for (int64_t row = 0, some; row < rows; row += some) {
    some = rows - row < w->most_tokens ? rows - row : w->most_tokens;
    chk_kv_fill(w, what, some);
    memcpy(p->host + (size_t)row * p->row, t->host, (size_t)some * p->row);
  }
  NSAI_TRY(nsai_verify_device_alloc(w->device, p->bytes, &p->device));
  return nsai_verify_device_upload(w->device, p->device, p->host, p->bytes);
}

static nsa_status create(soak *k) {
  chk_kv_scenario *w = &k->w;
  NSAI_TRY(chk_kv_create(w, k->request->cache_dir));
  w->packed = true;
  k->users = calloc((size_t)w->pages, sizeof *k->users);
  if (!k->users) return nsai_fail_nomem("pages", (size_t)w->pages);
  for (int s = 0; s < w->opts.seqs; s++) {
    k->history[s] = calloc((size_t)w->opts.max_kv_len, sizeof **k->history);
    if (!k->history[s]) return nsai_fail_nomem("a history", (size_t)w->opts.max_kv_len);
  }
  NSAI_TRY(make_pool(k, CHK_KV_Q));
  NSAI_TRY(make_pool(k, CHK_KV_GATE));
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    NSAI_TRY(make_pool(k, CHK_KV_NEW_K + pair));
    NSAI_TRY(make_pool(k, CHK_KV_NEW_V + pair));
  }
  for (size_t i = 0; i < INTEGERS; i++) k->slot_bytes += w->tensor[integers[i]].bytes;
  void *slots = NULL;
  NSAI_TRY(
      nsai_verify_device_alloc_host(w->device, k->slot_bytes * (size_t)k->request->every, &slots));
  k->slots = slots;
  return NSA_OK;
}

static void destroy(soak *k) {
  nsai_verify_device_wait(k->w.device, NULL);
  for (int i = 0; i < k->pool_count; i++) {
    free(k->pools[i].host);
    nsai_verify_device_free(k->w.device, k->pools[i].device);
  }
  nsai_verify_device_free_host(k->w.device, k->slots);
  for (int s = 0; s < CHK_KV_MOST_SEQS; s++) free(k->history[s]);
  free(k->users);
  chk_kv_destroy(&k->w);
}

nsa_status chk_kv_soak(const nsai_verify_device *device, const chk_kv_soak_request *request,
                       chk_kv_soak_counts *counts, chk_kv_result *result) {
  soak *k = calloc(1, sizeof *k);
  if (!k) return nsai_fail_nomem("a soak", sizeof *k);
  *result = (chk_kv_result){ 0 };
  *counts = (chk_kv_soak_counts){ 0 };
  k->request = request;
  k->counts = counts;
  k->w = (chk_kv_scenario){
    .opts = *request->opts, .device = device, .random = request->opts->seed, .result = result
  };
  nsa_status status = create(k);
  for (int64_t i = 1; !status && !result->failure[0] && i <= request->steps; i++)
    status = step(k, i % request->every == 0 || i == request->steps);
  if (!status) chk_kv_verify(&k->w);
  destroy(k);
  free(k);
  return status;
}

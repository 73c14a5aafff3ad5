/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A soak: one captured graph of append and decode, launched for any number of steps, while
 * sequences begin, share prefixes, draft, reject drafts and end. The host manages pages. Free
 * pages are NaN on the device; a page that several sequences share is copied before one of them
 * writes to it.
 *
 * Rows of Q, gates, K and V come from pools on both sides. A call uses consecutive rows of the
 * pools' POOL_ROWS from any row on, copied within the device, so that a token is identified by
 * its row. Between checks nothing waits for the device: integers are in pinned memory, with one
 * slot per step.
 */
#include "scenario.h"

#include <stdlib.h>
#include <string.h>

#define POOL_ROWS 4096

typedef struct pool {
  int what; /* CHK_CACHE_Q ... */
  size_t row, bytes;
  uint8_t *host;
  void *device;
} pool;

#define MOST_POOLS 10

typedef struct soak {
  chk_scenario sc;
  const chk_soak_request *request;
  chk_soak_counts *counts;
  pool pools[MOST_POOLS];
  int pool_count;
  uint16_t *history[CHK_CACHE_MOST_SEQS]; /* [max_kv_len]: the pool row of each token */
  int32_t *users;                         /* [pages] */
  int32_t solid[CHK_CACHE_MOST_SEQS];     /* tokens that are in the cache before the call */
  int32_t resent[CHK_CACHE_MOST_SEQS];    /* new tokens of the call that must not be written */
  int64_t base;                           /* the call's first row in the pools */
  uint8_t *slots;                         /* [every, slot_bytes] */
  size_t slot_bytes;
  int64_t slot;
  bool injected;
} soak;

static uint64_t below(soak *k, uint64_t n) { return chk_cache_next(&k->sc) % n; }

static void fail(soak *k, const char *what, int64_t at) {
  chk_cache_result *r = k->sc.result;
  if (!r->failure[0]) snprintf(r->failure, sizeof r->failure, "%s %lld", what, (long long)at);
}

/* ---- pages ---- */

/* On the GPU. */
static size_t page_bytes(const chk_cache_tensor *t) {
  return (size_t)t->view.stride[0] * (t->codes ? 1 : 2);
}

static void *page_at(const chk_cache_tensor *t, int32_t page) {
  return t->gpu.device + NSAI_VERIFY_GUARD + (size_t)page * page_bytes(t);
}

static bool injects(soak *k, int what) {
  if (k->request->inject != what || k->injected) return false;
  return k->injected = true;
}

/* Fills the page with NaN before it can be assigned. */
static nsa_status release(soak *k, int32_t page) {
  chk_scenario *sc = &k->sc;
  if (--k->users[page]) return NSA_OK;
  sc->free_page[sc->free_count++] = page;
  k->counts->poisoned++;
  for (int what = CHK_CACHE_K; what <= CHK_CACHE_K_NORM; what++) {
    const chk_cache_tensor *t = &sc->tensor[what];
    if (t->host)
      NSAI_TRY(nsai_verify_device_set(sc->device, page_at(t, page), 0xff, page_bytes(t)));
  }
  return NSA_OK;
}

static int32_t take(soak *k) {
  int32_t page = k->sc.free_page[--k->sc.free_count];
  k->users[page] = 1;
  return page;
}

/* Reduces a sequence to the pages of `len` tokens. */
static nsa_status keep(soak *k, int s, int32_t len) {
  chk_scenario *sc = &k->sc;
  sc->len[s] = len;
  while ((int64_t)(sc->page_count[s] - 1) * sc->options.page_size >= len && sc->page_count[s])
    NSAI_TRY(release(k, sc->page[s][--sc->page_count[s]]));
  return NSA_OK;
}

static nsa_status copy_page(soak *k, int s, int32_t i) {
  chk_scenario *sc = &k->sc;
  int32_t from = sc->page[s][i], to = take(k);
  k->counts->copies++;
  for (int what = CHK_CACHE_K; what <= CHK_CACHE_K_NORM; what++) {
    const chk_cache_tensor *t = &sc->tensor[what];
    if (t->host)
      NSAI_TRY(
          nsai_verify_device_copy(sc->device, page_at(t, to), page_at(t, from), page_bytes(t)));
  }
  sc->page[s][i] = to;
  return release(k, from);
}

/* Copies shared pages, so that the sequence alone owns those of its tokens from position `first`
 * on. */
static nsa_status own_pages(soak *k, int s, int32_t first) {
  chk_scenario *sc = &k->sc;
  for (int32_t i = first / sc->options.page_size; i * sc->options.page_size < sc->len[s]; i++) {
    if (i == sc->page_count[s])
      sc->page[s][sc->page_count[s]++] = take(k);
    else if (k->users[sc->page[s][i]] > 1 && k->request->inject != CHK_SOAK_INJECT_COPY)
      NSAI_TRY(copy_page(k, s, i));
  }
  return NSA_OK;
}

/* ---- the steps ---- */

/* Begins a new sequence, with the prefix of another one if there is one. */
static void arrive(soak *k, int s) {
  chk_scenario *sc = &k->sc;
  int from = (int)below(k, (uint64_t)sc->options.seqs);
  k->counts->arrivals++;
  if (!k->solid[from] || below(k, 3) == 0) return;
  k->counts->forks++;
  sc->len[s] = 1 + (int32_t)below(k, (uint64_t)k->solid[from]);
  for (int32_t i = 0; i * sc->options.page_size < sc->len[s]; i++) {
    sc->page[s][sc->page_count[s]++] = sc->page[from][i];
    k->users[sc->page[from][i]]++;
  }
  memcpy(k->history[s], k->history[from], (size_t)sc->len[s] * sizeof **k->history);
}

static nsa_status roll_back(soak *k, int s) {
  chk_scenario *sc = &k->sc;
  int32_t most = sc->len[s] < sc->options.max_q_len ? sc->len[s] : sc->options.max_q_len;
  k->counts->rollbacks++;
  return keep(k, s, sc->len[s] - (int32_t)below(k, (uint64_t)most));
}

/* Chooses the call's new tokens of a sequence; `token` tokens of the call come before them. */
static nsa_status draft(soak *k, int s, bool arrived, int64_t token) {
  chk_scenario *sc = &k->sc;
  uint64_t most = (uint64_t)sc->options.max_q_len;
  int32_t count = below(k, 2) ? 1 : (int32_t)below(k, most + 1), first = sc->len[s];
  if (!first && !count) count = 1;
  sc->q_len[s] = count;
  k->solid[s] = first;
  if (!first && count > 1 && below(k, 2)) { /* rows before the sequence's first token */
    sc->len[s] = 1 + (int32_t)below(k, (uint64_t)count - 1);
  } else {
    if (arrived && sc->options.mapping) k->resent[s] = first < count ? first : count;
    sc->len[s] = first + count - k->resent[s];
  }
  for (int32_t i = 0; i < count; i++) {
    int32_t position = sc->len[s] - count + i;
    if (position >= first) k->history[s][position] = (uint16_t)(k->base + token + i);
  }
  return own_pages(k, s, first);
}

static nsa_status choose(soak *k, int s, int64_t token) {
  chk_scenario *sc = &k->sc;
  int32_t most = sc->options.max_q_len;
  bool arrives = !sc->len[s] && below(k, 8) == 0;
  k->resent[s] = 0;
  if (sc->len[s] && (sc->len[s] + most > sc->options.max_kv_len || below(k, 300) == 0)) {
    k->counts->exits++;
    NSAI_TRY(keep(k, s, 0));
    k->solid[s] = 0;
  }
  if (arrives) {
    arrive(k, s);
    if (sc->len[s] + most > sc->options.max_kv_len)
      NSAI_TRY(keep(k, s, sc->options.max_kv_len - most));
  } else if (!sc->len[s]) { /* a padded sequence, with any number of rows */
    sc->q_len[s] = below(k, 4) ? 0 : (int32_t)below(k, (uint64_t)most + 1);
    return NSA_OK;
  } else if (below(k, 4) == 0) {
    NSAI_TRY(roll_back(k, s));
  }
  return draft(k, s, arrives, token);
}

/* ---- a step ---- */

static const int integers[] = { CHK_CACHE_CU_Q,   CHK_CACHE_LEN,   CHK_CACHE_TABLE,
                                CHK_CACHE_STARTS, CHK_CACHE_LISTS, CHK_CACHE_MAPPING };
#define INTEGERS (sizeof integers / sizeof *integers)

/* Writes the call's integers on the host. */
static void write_call(soak *k) {
  chk_scenario *sc = &k->sc;
  chk_cache_write_call(sc);
  sc->rows = (int64_t)sc->options.seqs * sc->options.max_q_len; /* the graph's grid */
  int64_t *mapping = (int64_t *)(void *)sc->tensor[CHK_CACHE_MAPPING].host;
  for (int s = 0, token = 0; s < sc->options.seqs; token += sc->q_len[s++])
    for (int32_t i = 0; i < k->resent[s]; i++) mapping[token + i] = -1;
}

static nsa_status send_integers(soak *k, bool checked) {
  uint8_t *slot = k->slots + (size_t)k->slot++ * k->slot_bytes;
  bool injected = checked && k->sc.q_len[0] && k->sc.len[0] > 1 && injects(k, CHK_SOAK_INJECT_LEN);
  for (size_t i = 0; i < INTEGERS; i++) {
    chk_cache_tensor *t = &k->sc.tensor[integers[i]];
    memcpy(slot, t->host, t->bytes);
    if (injected && integers[i] == CHK_CACHE_LEN) ((int32_t *)(void *)slot)[0]--;
    NSAI_TRY(
        nsai_verify_device_send(k->sc.device, t->gpu.device + NSAI_VERIFY_GUARD, slot, t->bytes));
    slot += t->bytes;
  }
  return NSA_OK;
}

static nsa_status copy_rows(soak *k) {
  for (int i = 0; i < k->pool_count; i++) {
    const pool *p = &k->pools[i];
    NSAI_TRY(nsai_verify_device_copy(k->sc.device,
                                     k->sc.tensor[p->what].gpu.device + NSAI_VERIFY_GUARD,
                                     (uint8_t *)p->device + (size_t)k->base * p->row,
                                     (size_t)k->sc.tokens * p->row));
  }
  return NSA_OK;
}

/* ---- a check ---- */

/* Fills `count` rows from the host's pools: those numbered in `rows`, or those from `base` on. */
static void fill_rows(soak *k, const uint16_t *rows, int64_t count) {
  for (int i = 0; i < k->pool_count; i++) {
    const pool *p = &k->pools[i];
    uint8_t *to = k->sc.tensor[p->what].host;
    for (int64_t row = 0; row < count; row++)
      memcpy(to + (size_t)row * p->row,
             p->host + (size_t)(rows ? rows[row] : k->base + row) * p->row, p->row);
  }
}

/* Recomputes the host's caches from the histories alone. */
static nsa_status rebuild(soak *k) {
  chk_scenario *sc = &k->sc;
  int32_t len[CHK_CACHE_MOST_SEQS], q_len[CHK_CACHE_MOST_SEQS];
  memcpy(len, sc->len, sizeof len);
  memcpy(q_len, sc->q_len, sizeof q_len);
  memset(sc->q_len, 0, sizeof sc->q_len);
  for (int what = CHK_CACHE_K; what <= CHK_CACHE_K_NORM; what++)
    if (sc->tensor[what].host) memset(sc->tensor[what].host, 0xff, sc->tensor[what].bytes);
  for (int s = 0; s < sc->options.seqs; s++) {
    for (int32_t at = 0; at < len[s]; at = sc->len[s]) {
      sc->q_len[s] = len[s] - at < sc->chunk ? len[s] - at : sc->chunk;
      sc->len[s] = at + sc->q_len[s];
      chk_cache_write_call(sc);
      fill_rows(k, k->history[s] + at, sc->q_len[s]);
      NSAI_TRY(chk_cache_append(sc, false));
    }
    sc->q_len[s] = 0;
  }
  memcpy(sc->q_len, q_len, sizeof q_len);
  write_call(k);
  fill_rows(k, NULL, sc->tokens);
  return NSA_OK;
}

/* Compares rows [0, count) of a page: tokens bit by bit, or entries. */
static void compare_page(soak *k, int what, int32_t page, int32_t begin, int32_t count) {
  chk_scenario *sc = &k->sc;
  const chk_cache_tensor *t = &sc->tensor[what];
  int64_t dim = t->view.shape[3], where;
  for (int32_t row = begin; row < count; row++)
    for (int64_t head = 0; head < t->view.shape[2]; head++) {
      int64_t at = page * t->view.stride[0] + row * t->view.stride[1] + head * t->view.stride[2];
      if (what >= CHK_CACHE_K_CMP)
        chk_cache_compare_entries(sc, what, at, dim);
      else if (!chk_cache_same(sc, what, at, dim, &where))
        fail(k, "a token differs in page", page);
    }
}

/* Compares the entries of blocks of `block` tokens, `stride` apart, that end among the first `tokens`
 * of page i of sequence s. */
static void compare_entries(soak *k, int what, int s, int32_t i, int32_t block, int32_t stride,
                            int32_t tokens) {
  const int32_t before = i * k->sc.options.page_size;
  const int32_t begin = before < block - stride ? block - stride - before : 0;
  compare_page(k, what, k->sc.page[s][i], begin / stride, tokens / stride);
}

/* Compares the visible part of all sequences' pages, and checks that free pages are unchanged. */
static void compare_pages(soak *k) {
  chk_scenario *sc = &k->sc;
  const nsai_model *g = &sc->options.model;
  int32_t size = sc->options.page_size;
  for (int s = 0; s < sc->options.seqs; s++)
    for (int32_t i = 0; i * size < sc->len[s]; i++) {
      int32_t tokens = sc->len[s] - i * size < size ? sc->len[s] - i * size : size;
      for (int what = CHK_CACHE_K; what <= CHK_CACHE_K_NORM; what++) {
        if (!sc->tensor[what].host) continue;
        if (what < CHK_CACHE_K_CMP)
          compare_page(k, what, sc->page[s][i], 0, tokens);
        else if (what == CHK_CACHE_K_NORM)
          compare_entries(k, what, s, i, g->norm_block, g->norm_stride, tokens);
        else
          compare_entries(k, what, s, i, g->block, g->stride, tokens);
      }
    }
  for (int32_t i = 0; i < sc->free_count; i++)
    for (int what = CHK_CACHE_K; what <= CHK_CACHE_K_NORM; what++) {
      const chk_cache_tensor *t = &sc->tensor[what];
      if (!t->host) continue;
      const uint8_t *page = chk_cache_fetched(t) + (size_t)sc->free_page[i] * page_bytes(t);
      for (size_t x = 0; x < page_bytes(t); x++)
        if (page[x] != 0xff) fail(k, "written: free page", sc->free_page[i]);
    }
}

static nsa_status check(soak *k) {
  chk_scenario *sc = &k->sc;
  k->counts->checks++;
  k->slot = 0; /* the device has been waited for, so it has read them */
  for (int what = CHK_CACHE_K; what <= CHK_CACHE_K_NORM; what++) {
    if (!sc->tensor[what].host) continue;
    NSAI_TRY(chk_cache_fetch(sc, what));
    chk_cache_check_guards(sc, &sc->tensor[what].gpu, "cache");
    if (sc->free_count && injects(k, CHK_SOAK_INJECT_FREE))
      chk_cache_fetched(
          &sc->tensor[what])[(size_t)sc->free_page[0] * page_bytes(&sc->tensor[what])] = 0;
  }
  NSAI_TRY(rebuild(k));
  compare_pages(k);
  if (sc->result->failure[0]) return NSA_OK;
  return chk_cache_compare_step(sc);
}

static nsa_status repeat(soak *k) {
  int inject = CHK_CACHE_INJECT_AGAIN;
  k->sc.inject = k->sc.tokens && injects(k, CHK_SOAK_INJECT_AGAIN) ? &inject : NULL;
  nsa_status status = chk_cache_repeat(&k->sc);
  k->sc.inject = NULL;
  return status;
}

static nsa_status step(soak *k, bool checked) {
  chk_scenario *sc = &k->sc;
  int64_t token = 0;
  k->base = (int64_t)below(k, POOL_ROWS);
  for (int s = 0; s < sc->options.seqs; token += sc->q_len[s++]) {
    NSAI_TRY(choose(k, s, token));
    k->counts->tokens += sc->len[s] ? sc->q_len[s] : 0;
  }
  write_call(k);
  NSAI_TRY(send_integers(k, checked));
  NSAI_TRY(copy_rows(k));
  if (checked) NSAI_TRY(chk_cache_poison_outputs(sc));
  NSAI_TRY(chk_cache_run_gpu(sc));
  if (checked) NSAI_TRY(repeat(k));
  memcpy(k->solid, sc->len, sizeof k->solid);
  k->counts->steps++;
  return checked && !sc->result->failure[0] ? check(k) : NSA_OK;
}

/* ---- memory ---- */

static nsa_status make_pool(soak *k, int what) {
  chk_scenario *sc = &k->sc;
  const chk_cache_tensor *t = &sc->tensor[what];
  int64_t rows = POOL_ROWS + (int64_t)sc->options.seqs * sc->options.max_q_len;
  if (!t->host) return NSA_OK;
  pool *p = &k->pools[k->pool_count++];
  p->what = what;
  p->row = (size_t)t->view.stride[0] * 2;
  p->bytes = (size_t)rows * p->row;
  p->host = malloc(p->bytes);
  if (!p->host) return nsai_fail_nomem("a pool", p->bytes);
  for (int64_t row = 0, some; row < rows; row += some) {
    some = rows - row < sc->most_tokens ? rows - row : sc->most_tokens;
    chk_cache_fill(sc, what, some);
    memcpy(p->host + (size_t)row * p->row, t->host, (size_t)some * p->row);
  }
  NSAI_TRY(nsai_verify_device_alloc(sc->device, p->bytes, &p->device));
  NSAI_TRY(nsai_verify_device_upload(sc->device, p->device, p->host, p->bytes));
  if (what >= CHK_CACHE_FRESH_K) chk_cache_round_rows(sc, what, p->host, rows);
  return NSA_OK;
}

static nsa_status create(soak *k) {
  chk_scenario *sc = &k->sc;
  NSAI_TRY(chk_cache_create(sc, k->request->given));
  sc->packed = true;
  k->users = calloc((size_t)sc->pages, sizeof *k->users);
  if (!k->users) return nsai_fail_nomem("pages", (size_t)sc->pages);
  for (int s = 0; s < sc->options.seqs; s++) {
    k->history[s] = calloc((size_t)sc->options.max_kv_len, sizeof **k->history);
    if (!k->history[s]) return nsai_fail_nomem("a history", (size_t)sc->options.max_kv_len);
  }
  NSAI_TRY(make_pool(k, CHK_CACHE_Q));
  NSAI_TRY(make_pool(k, CHK_CACHE_GATE));
  NSAI_TRY(make_pool(k, CHK_CACHE_INDEX_Q));
  NSAI_TRY(make_pool(k, CHK_CACHE_FRESH_INDEX));
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    NSAI_TRY(make_pool(k, CHK_CACHE_FRESH_K + pair));
    NSAI_TRY(make_pool(k, CHK_CACHE_FRESH_V + pair));
  }
  for (size_t i = 0; i < INTEGERS; i++) k->slot_bytes += sc->tensor[integers[i]].bytes;
  void *slots = NULL;
  NSAI_TRY(
      nsai_verify_device_alloc_host(sc->device, k->slot_bytes * (size_t)k->request->every, &slots));
  k->slots = slots;
  return NSA_OK;
}

static void destroy(soak *k) {
  nsai_verify_device_wait(k->sc.device, NULL);
  for (int i = 0; i < k->pool_count; i++) {
    free(k->pools[i].host);
    nsai_verify_device_free(k->sc.device, k->pools[i].device);
  }
  nsai_verify_device_free_host(k->sc.device, k->slots);
  for (int s = 0; s < CHK_CACHE_MOST_SEQS; s++) free(k->history[s]);
  free(k->users);
  chk_cache_destroy(&k->sc);
}

nsa_status chk_cache_soak(const nsai_verify_device *device, const chk_soak_request *request,
                          chk_soak_counts *counts, chk_cache_result *result) {
  soak *k = calloc(1, sizeof *k);
  if (!k) return nsai_fail_nomem("a soak", sizeof *k);
  *result = (chk_cache_result){ 0 };
  *counts = (chk_soak_counts){ 0 };
  k->request = request;
  k->counts = counts;
  k->sc = (chk_scenario){ .options = *request->options,
                          .device = device,
                          .random = request->options->seed,
                          .result = result };
  nsa_status status = create(k);
  for (int64_t i = 1; !status && !result->failure[0] && i <= request->steps; i++)
    status = step(k, i % request->every == 0 || i == request->steps);
  if (!status) chk_cache_verify(&k->sc);
  destroy(k);
  free(k);
  return status;
}

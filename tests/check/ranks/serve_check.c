/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The record of one rank alone, and what ranks computed against it.
 *
 * block_idx, index_lse, lse of the compressed branch and every page have its bits. The selected branch is
 * a sum of the ranks' parts, in fp32: it, and what contains it, differs by roundings. All ranks have the
 * same bits.
 */
#include "base/math.h"
#include "check.h"
#include "ranks/gather.h"
#include "ranks/serve.h"
#include "run/check_tensor.h"
#include "verify/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* On the CPU device, whose sums are float64, a rank's part is rounded to fp32 once, and the result to
 * its own type. Relative to the greatest element of a row; of an LSE absolute below 1. */
#define ROUNDING 2e-6
/* A GPU rounds probabilities to the model's dtype, relative to the greatest that a part has seen. A
 * single row may have several times the error that many have together. */
#define ROW_LIMIT 4

/* ---- plans ----------------------------------------------------------------------------------- */

static nsa_status plan_of(chk_plans *plans, const nsai_verify_case *c, const chk_serve *s,
                          int32_t op, int32_t ranks, nsai_trial_plan *out) {
  const nsa_problem problem = chk_serve_problem(s, op, ranks);
  return chk_plans_get_problem(plans, c, &problem, out);
}

/* The bits of one rank are those of the same variant: the one that serves the problem over ranks. */
static const nsai_variant *find_variant(const nsai_trial_plan *plan) {
  const char *at = strstr(plan->caps.variants, "decode=");
  char name[64] = "";
  if (at) sscanf(at, "decode=%63[^ ]", name);
  return name[0] ? nsai_variant_find(name) : NULL;
}

nsa_status chk_serve_make_plans(chk_plans *plans, const chk_serve *s, chk_memory *m) {
  nsai_verify_case c = { .model = s->o.model };
  nsai_trial_plan over;
  NSAI_TRY(plan_of(plans, &c, s, NSA_OP_DECODE, s->ranks, &over));
  if (m->rank < 0 && m->device->driver) c.force = find_variant(&over);
  if (chk_serve_prefills(s)) {
    const nsai_verify_case any = { .model = s->o.model };
    NSAI_TRY(plan_of(plans, &any, s, NSA_OP_PREFILL, m->rank < 0 ? 0 : s->ranks, &m->prefill));
  }
  NSAI_TRY(plan_of(plans, &c, s, NSA_OP_APPEND, m->rank < 0 ? 0 : s->ranks, &m->append));
  return plan_of(plans, &c, s, NSA_OP_DECODE, m->rank < 0 ? 0 : s->ranks, &m->decode);
}

nsa_status chk_serve_context(chk_plans *plans, const chk_ranks_problem *p, nsa_ctx **ctx) {
  chk_serve s;
  nsai_trial_plan plan;
  if (!chk_serve_make(p, &s)) return nsai_fail(NSA_E_INTERNAL, "the model has no pages");
  const nsai_verify_case c = { .model = s.o.model };
  NSAI_TRY(plan_of(plans, &c, &s, NSA_OP_DECODE, s.ranks, &plan));
  *ctx = plan.ctx;
  return NSA_OK;
}

/* ---- hashes ---------------------------------------------------------------------------------- */

static uint64_t hash_of(const void *data, size_t bytes) {
  uint64_t hash = bytes, word;
  for (size_t i = 0; i < bytes; i += sizeof word) {
    word = 0;
    memcpy(&word, (const char *)data + i, bytes - i < sizeof word ? bytes - i : sizeof word);
    hash = nsai_verify_mix((hash + 0x9e3779b97f4a7c15u) ^ word);
  }
  return hash;
}

/* ---- one call -------------------------------------------------------------------------------- */

/* A walk through the script, which records or compares. */
typedef struct walk {
  chk_memory *m;
  const chk_rank *rank; /* NULL: one rank alone, which records */
  chk_serve_record *record;
  const chk_serve_record *one; /* else what that one has computed */
  int64_t page, output;        /* of `one`, that come next */
  int damage;                  /* CHK_SERVE_DAMAGE_* that is still to be done */
  nsai_verify_result *result;
} walk;

static bool failed(const walk *k) { return k->result->outcome == NSAI_VERIFY_FAILED; }

static nsa_status note_page(walk *k, uint64_t hash) {
  chk_serve_record *r = k->record;
  if (r->pages == r->page_capacity) {
    const int64_t capacity = 2 * r->page_capacity + 1024;
    uint64_t *grown = realloc(r->page, (size_t)capacity * sizeof *grown);
    if (!grown) return nsai_fail_nomem("hashes of pages", (size_t)capacity);
    r->page = grown;
    r->page_capacity = capacity;
  }
  r->page[r->pages++] = hash;
  return NSA_OK;
}

static const uint8_t *page_of(const chk_serve_tensor *t, int64_t page, size_t *bytes) {
  *bytes = (size_t)t->view.stride[0] * (size_t)nsai_dtype_bytes(t->view.dtype);
  return t->memory.image + NSAI_VERIFY_GUARD + (size_t)page * *bytes;
}

static const char *const cache_names[NSAI_VERIFY_CACHE_TENSORS] = {
  "k[0]", "k[1]", "k[2]", "v[0]", "v[1]", "v[2]", "k_idx", "k_cmp", "v_cmp", "k_norm"
};

/* The page of a sequence that the tensor has; -1: this rank does not hold it. */
static nsa_status take_page(walk *k, const chk_script *call, int what, int s, int64_t index,
                            int64_t page) {
  size_t bytes;
  const uint8_t *data = page_of(&k->m->cache[what], page < 0 ? 0 : page, &bytes);
  if (!k->rank) return note_page(k, hash_of(data, bytes));
  const int64_t at = k->page++;
  if (page >= 0 && (at >= k->one->pages || hash_of(data, bytes) != k->one->page[at]) && !failed(k))
    nsai_verify_fail(k->result,
                     "rank %d: call %lld: %s: page %lld of sequence %d is another than one rank's",
                     k->m->rank, (long long)call->call, cache_names[what], (long long)index, s);
  return NSA_OK;
}

static void check_free_pages(walk *k, const chk_script *call, int what) {
  const chk_pool *pool = chk_memory_pool(k->m, what);
  size_t bytes;
  for (int32_t i = 0; pool && i < pool->free_count && !failed(k); i++) {
    const uint8_t *data = page_of(&k->m->cache[what], pool->free_page[i], &bytes);
    for (size_t b = 0; b < bytes; b++)
      if (data[b] != 0xff) {
        nsai_verify_fail(k->result,
                         "rank %d: call %lld: %s: a page was written that no sequence has",
                         k->m->rank, (long long)call->call, cache_names[what]);
        break;
      }
  }
}

static bool guards_are_well(const nsai_verify_buffer *b) {
  for (size_t i = 0; i < NSAI_VERIFY_GUARD; i++)
    if (b->image[i] != 0xff || b->image[NSAI_VERIFY_GUARD + b->bytes + i] != 0xff) return false;
  return true;
}

static nsa_status take_cache(walk *k, const chk_script *call) {
  for (int what = 0; what < NSAI_VERIFY_CACHE_TENSORS; what++) {
    const chk_serve_tensor *t = &k->m->cache[what];
    const chk_pool *pool = chk_memory_pool(k->m, what);
    if (!t->memory.device) continue;
    for (int s = 0; s < k->m->s->o.seqs; s++)
      for (int64_t i = 0; pool && i < pool->count[s]; i++)
        NSAI_TRY(take_page(k, call, what, s, i, pool->held[s][i]));
    for (int64_t row = 0; !pool && row < t->view.shape[0]; row++)
      NSAI_TRY(take_page(k, call, what, (int)row, 0, row));
    check_free_pages(k, call, what);
    if (!guards_are_well(&t->memory) && !failed(k))
      nsai_verify_fail(k->result, "rank %d: call %lld: %s: memory beside the pool was written",
                       k->m->rank, (long long)call->call, cache_names[what]);
  }
  return NSA_OK;
}

/* ---- outputs --------------------------------------------------------------------------------- */

size_t chk_serve_row_bytes(const chk_serve_tensor *t) {
  return (size_t)t->view.stride[0] * (size_t)nsai_dtype_bytes(t->view.dtype);
}

/* The row of an output that differs first; -1: none. */
static int64_t first_other(const chk_serve_tensor *t, const uint8_t *one, int64_t rows) {
  const uint8_t *mine = t->memory.image + NSAI_VERIFY_GUARD;
  for (int64_t i = 0; i < rows; i++)
    if (memcmp(mine + (size_t)i * chk_serve_row_bytes(t), one + (size_t)i * chk_serve_row_bytes(t),
               chk_serve_row_bytes(t)) != 0)
      return i;
  return -1;
}

/* The greatest magnitude of a row of a head in all branches and in o. */
static double scale_of(const walk *k, int64_t at, int64_t width) {
  double most = 0;
  for (int what = CHK_SERVE_O_BRANCH; what <= CHK_SERVE_O; what++) {
    if (!k->m->tensor[what].memory.device) continue;
    const nsa_tensor t = chk_serve_image(&k->m->tensor[what]);
    for (int64_t i = 0; i < width; i++) {
      const double x = fabs((double)nsai_verify_load(&t, at + i));
      if (x > most) most = x; /* a branch that did not run is NaN */
    }
  }
  return most;
}

/* The difference of a row of a head divided by its limit. */
static double row_error(const walk *k, int what, const nsa_tensor *one, int64_t at, int64_t width) {
  const nsa_tensor mine = chk_serve_image(&k->m->tensor[what]);
  const bool whole = what == CHK_SERVE_O, gpu = k->m->device->driver != NULL;
  const double unit = mine.dtype == NSA_BF16 ? 0x1p-7 : 0x1p-10;
  const double scale = ROUNDING * scale_of(k, at, width);
  double worst = 0, squares = 0, norm = 0;
  for (int64_t i = 0; i < width; i++) {
    const double x = (double)nsai_verify_load(&mine, at + i),
                 y = (double)nsai_verify_load(one, at + i);
    const double off = fabs(x - y), limit = unit * fmax(fabs(x), fabs(y)) + scale;
    if (off > 0 && !(off / limit <= worst)) worst = off / limit;
    if (isnan(off)) return INFINITY;
    squares += off * off;
    norm += y * y;
  }
  if (!gpu) return worst;
  const double relative =
      nsai_verify_tolerance_of(whole ? NSAI_VERIFY_WHOLE : NSAI_VERIFY_STAGE, mine.dtype).relative;
  return squares > 0 ? sqrt(squares / norm) / (ROW_LIMIT * relative) : 0;
}

static double lse_error(const walk *k, double x, double y) {
  if (x == y) return 0;
  const double limit = k->m->device->driver ? NSAI_VERIFY_LSE_TOLERANCE : ROUNDING;
  const double error = fabs(x - y) / (limit * fmax(1, fabs(y)));
  return isnan(error) ? INFINITY : error;
}

/* An output that is one rank's up to roundings. */
static void compare_rounded(walk *k, const chk_script *call, int what, uint8_t *recorded) {
  const chk_serve_tensor *t = &k->m->tensor[what];
  const nsa_tensor mine = chk_serve_image(t);
  nsa_tensor one = mine;
  one.data = recorded;
  const bool lse = mine.dtype == NSA_F32;
  const int64_t width = lse ? 1 : mine.shape[2], heads = mine.shape[1];
  double worst = 0;
  for (int64_t i = 0; i < call->tokens * heads; i++) {
    const double error =
        lse ? lse_error(k, (double)nsai_verify_load(&mine, i), (double)nsai_verify_load(&one, i))
            : row_error(k, what, &one, i * width, width);
    if (error > 1 && worst <= 1 && !failed(k))
      nsai_verify_fail(
          k->result, "rank %d: call %lld: %s of token %lld, head %lld: error %.3g times its limit",
          k->m->rank, (long long)call->call, chk_serve_names[what], (long long)(i / heads),
          (long long)(i % heads), error);
    if (error > worst) worst = error;
  }
  nsai_verify_add_figure(k->result, chk_serve_names[what], worst, 1);
}

static bool ran(const chk_script *call, int what) {
  if (what < CHK_SERVE_LSE_CMP || what == CHK_SERVE_O) return true;
  const int branch = (what - (what < CHK_SERVE_O_BRANCH ? CHK_SERVE_LSE_CMP : CHK_SERVE_O_BRANCH));
  return call->branches >> branch & 1;
}

static void check_behind(walk *k, const chk_script *call, int what) {
  const chk_serve_tensor *t = &k->m->tensor[what];
  const size_t begin = ran(call, what) ? (size_t)call->tokens * chk_serve_row_bytes(t) : 0;
  bool well = guards_are_well(&t->memory);
  for (size_t i = begin; well && i < t->memory.bytes; i++)
    well = t->memory.image[NSAI_VERIFY_GUARD + i] == 0xff;
  if (!well && !failed(k))
    nsai_verify_fail(k->result, "rank %d: call %lld: %s was written outside its rows", k->m->rank,
                     (long long)call->call, chk_serve_names[what]);
}

/* All of an output in a hash, for the comparison of ranks. */
static void leave_hash(walk *k, int64_t at, const chk_serve_tensor *t) {
  const uint64_t hash = hash_of(t->memory.image, t->memory.bytes + 2 * (size_t)NSAI_VERIFY_GUARD);
  if (2 * (at + 1) < (int64_t)CHK_SHARED_PARTIALS)
    memcpy(k->rank->shared->partials[k->m->rank] + 2 * at, &hash, sizeof hash);
}

static nsa_status record_outputs(walk *k) {
  chk_serve_record *r = k->record;
  uint8_t **grown = realloc(r->output, (size_t)(r->outputs + CHK_SERVE_OUTPUTS) * sizeof *grown);
  if (!grown) return nsai_fail_nomem("outputs", sizeof *grown);
  r->output = grown;
  for (int what = 0; what < CHK_SERVE_OUTPUTS; what++) {
    const nsai_verify_buffer *b = &k->m->tensor[what].memory;
    uint8_t *copy = b->device ? malloc(b->bytes) : NULL;
    if (b->device && !copy) return nsai_fail_nomem("an output", b->bytes);
    if (copy) memcpy(copy, b->image + NSAI_VERIFY_GUARD, b->bytes);
    r->output_bytes[what] = b->bytes;
    r->output[r->outputs++] = copy;
  }
  return NSA_OK;
}

static nsa_status take_outputs(walk *k, const chk_script *call) {
  for (int what = 0; what < CHK_SERVE_OUTPUTS; what++)
    if (k->m->tensor[what].memory.device) check_behind(k, call, what);
  if (!k->rank) return record_outputs(k);
  if (k->output + CHK_SERVE_OUTPUTS > k->one->outputs)
    return nsai_fail(NSA_E_INTERNAL, "one rank made no step %lld", (long long)call->step);
  for (int what = 0; what < CHK_SERVE_OUTPUTS; what++) {
    const chk_serve_tensor *t = &k->m->tensor[what];
    uint8_t *one = k->one->output[k->output + what];
    if (!t->memory.device || !ran(call, what)) continue;
    leave_hash(k, k->output + what, t);
    const int64_t other = what < CHK_SERVE_SAME ? first_other(t, one, call->tokens) : -1;
    if (other >= 0 && !failed(k))
      nsai_verify_fail(k->result, "rank %d: call %lld: %s of token %lld is another than one rank's",
                       k->m->rank, (long long)call->call, chk_serve_names[what], (long long)other);
    if (what >= CHK_SERVE_SAME) compare_rounded(k, call, what, one);
  }
  k->output += CHK_SERVE_OUTPUTS;
  return NSA_OK;
}

/* On a GPU how many tokens a call has decides whether codes of raw tokens are expanded first, which
 * rounds otherwise. A rank has fewer than one rank alone. */
static bool rounds_codes(const walk *k) { return k->m->device->driver && k->m->s->o.kv_codes; }

/* A prefill has rows of its own on each rank: `call` has as many tokens. */
static nsa_status take_rows(walk *k, const chk_script *call, const nsa_shard *shard) {
  for (int what = 0; what < CHK_SERVE_OUTPUTS; what++)
    if (k->m->tensor[what].memory.device) check_behind(k, call, what);
  if (!k->rank) return record_outputs(k);
  if (k->output + CHK_SERVE_OUTPUTS > k->one->outputs)
    return nsai_fail(NSA_E_INTERNAL, "one rank made no prefill %lld", (long long)call->call);
  for (int what = 0; what < CHK_SERVE_OUTPUTS; what++) {
    const chk_serve_tensor *t = &k->m->tensor[what];
    if (!t->memory.device || !ran(call, what)) continue;
    uint8_t *one = malloc(t->memory.bytes + 1);
    if (!one) return nsai_fail_nomem("rows of a prefill", t->memory.bytes);
    chk_prefill_take_rows(shard, k->m->rank, k->one->output[k->output + what],
                          chk_serve_row_bytes(t), one);
    const bool same = what < CHK_SERVE_SAME || !rounds_codes(k);
    const int64_t other = same ? first_other(t, one, call->tokens) : -1;
    if (!same) compare_rounded(k, call, what, one);
    if (other >= 0 && !failed(k))
      nsai_verify_fail(k->result,
                       "rank %d: call %lld: %s of row %lld of a prefill is another than one rank's",
                       k->m->rank, (long long)call->call, chk_serve_names[what], (long long)other);
    free(one);
  }
  k->output += CHK_SERVE_OUTPUTS;
  return NSA_OK;
}

nsa_status chk_serve_compare_call(const chk_rank *r, chk_memory *m, const chk_script *call,
                                  const nsa_shard *shard, int64_t output) {
  walk k = { .m = m, .rank = r, .one = r->record, .output = output, .result = r->result };
  return shard ? take_rows(&k, call, shard) : take_outputs(&k, call);
}

/* ---- repetitions ----------------------------------------------------------------------------- */

/* A hash of all that a call writes. */
static uint64_t hash_all(const chk_memory *m, const chk_script *call) {
  uint64_t hash = 0;
  for (int i = 0; i < CHK_SERVE_OUTPUTS && call->decodes; i++)
    if (m->tensor[i].memory.device)
      hash = nsai_verify_mix(hash ^
                             hash_of(m->tensor[i].memory.image,
                                     m->tensor[i].memory.bytes + 2 * (size_t)NSAI_VERIFY_GUARD));
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++)
    if (m->cache[i].memory.device)
      hash =
          nsai_verify_mix(hash ^ hash_of(m->cache[i].memory.image,
                                         m->cache[i].memory.bytes + 2 * (size_t)NSAI_VERIFY_GUARD));
  return hash;
}

static nsa_status run_prefill(walk *k, const chk_script *call) {
  chk_memory *m = k->m;
  nsa_comm *comm = k->rank ? k->rank->comm : NULL;
  nsa_shard *shard = NULL;
  chk_script own = *call;
  nsa_status status = k->rank ? chk_prefill_shard(m, call, &shard) : NSA_OK;
  if (!status && shard) {
    const nsa_plan *plan = m->prefill.plan;
    own.tokens = nsa_shard_tokens(shard, m->rank);
    status = nsa_comm_agree(comm, &plan, 1, shard, k->rank->options->timeout_ms);
    if (!status) status = chk_prefill_keep_rows(m, shard);
  }
  if (!status) status = chk_memory_prefill(m, &own, comm, shard);
  if (!status) status = chk_memory_fetch(m, &own, comm);
  if (!status && chk_serve_damage_prefill(m, &own, k->damage)) k->damage = CHK_SERVE_DAMAGE_NONE;
  if (!status) status = take_rows(k, &own, shard);
  nsa_shard_destroy(shard);
  return status;
}

static nsa_status run_call(walk *k, const chk_script *call) {
  chk_memory *m = k->m;
  nsa_comm *comm = k->rank ? k->rank->comm : NULL;
  const int repeat = k->rank && call->decodes ? k->rank->options->repeat : 1;
  uint64_t first = 0;
  NSAI_TRY(chk_memory_move_pages(m, call));
  NSAI_TRY(chk_memory_fill(m, call));
  for (int run = 0; run < repeat; run++) {
    NSAI_TRY(chk_memory_append(m, call, comm));
    if (chk_serve_damage_inputs(m, call, k->damage)) k->damage = CHK_SERVE_DAMAGE_NONE;
    if (call->decodes)
      NSAI_TRY(chk_memory_decode(m, call, comm));
    else if (m->prefill.plan && call->tokens)
      NSAI_TRY(run_prefill(k, call));
    NSAI_TRY(chk_memory_fetch(m, call, comm));
    if (run == (k->damage == CHK_SERVE_DAMAGE_AGAIN) &&
        chk_serve_damage_results(m, call, k->damage))
      k->damage = CHK_SERVE_DAMAGE_NONE;
    const uint64_t hash = hash_all(m, call);
    if (!run) first = hash;
    if (hash != first && !failed(k))
      nsai_verify_fail(k->result, "rank %d: call %lld: run %d differs from run 1", m->rank,
                       (long long)call->call, run + 1);
  }
  for (size_t i = 0; i < NSAI_VERIFY_GUARD; i++)
    if ((m->workspace.image[i] != 0xff ||
         m->workspace.image[NSAI_VERIFY_GUARD + m->workspace.bytes + i] != 0xff) &&
        !failed(k))
      nsai_verify_fail(k->result, "rank %d: call %lld: memory beside the workspace was written",
                       m->rank, (long long)call->call);
  if (call->decodes) NSAI_TRY(take_outputs(k, call));
  return take_cache(k, call);
}

/* Other ranks take part in every step, so that one with a failure goes on. */
static nsa_status walk_script(walk *k) {
  chk_script script;
  chk_script_begin(k->m->s, &script);
  while (chk_script_next(&script)) NSAI_TRY(run_call(k, &script));
  return NSA_OK;
}

/* ---- one rank alone, and over ranks ---------------------------------------------------------- */

nsa_status chk_serve_record_create(chk_plans *plans, const nsai_verify_device *device,
                                   const chk_ranks_problem *p, chk_serve_record *record,
                                   nsai_verify_result *result) {
  chk_serve s;
  chk_memory m = { .s = &s, .rank = -1, .device = device };
  *record = (chk_serve_record){ 0 };
  if (!chk_serve_make(p, &s)) {
    nsai_verify_skip(result, "the model has no pages");
    return NSA_OK;
  }
  walk k = { .m = &m, .record = record, .result = result };
  nsa_status status = chk_serve_make_plans(plans, &s, &m);
  if (!status) status = chk_memory_create(&m);
  if (!status) status = walk_script(&k);
  chk_memory_destroy(&m);
  return status;
}

void chk_serve_record_destroy(chk_serve_record *record) {
  for (int64_t i = 0; i < record->outputs; i++) free(record->output[i]);
  free(record->output);
  free(record->page);
  *record = (chk_serve_record){ 0 };
}

static void describe(const chk_serve *s, nsai_verify_result *result) {
  char text[512] = "";
  FILE *out = fmemopen(text, sizeof text, "w");
  if (!out) return;
  chk_cache_options_print(&s->o, out);
  fprintf(out, " unit%d chunk%d", s->unit_tokens, s->chunk);
  fclose(out);
  nsai_verify_note(result, "%s", text);
}

static nsa_status check(chk_rank *r, const chk_serve *s, chk_memory *m) {
  walk k = { .m = m,
             .rank = r,
             .one = r->record,
             .damage = r->rank ? CHK_SERVE_DAMAGE_NONE : r->options->serve_damage,
             .result = r->result };
  NSAI_TRY(chk_serve_make_plans(r->plans, s, m));
  memcpy(r->result->variants, m->decode.caps.variants, sizeof r->result->variants);
  NSAI_TRY(chk_memory_create(m));
  const nsa_plan *decode = m->decode.plan;
  NSAI_TRY(nsa_comm_agree(r->comm, &decode, 1, NULL, r->options->timeout_ms));
  NSAI_TRY(chk_gather_check(r));
  NSAI_TRY(walk_script(&k));
  if (k.page != r->record->pages || k.output != r->record->outputs)
    nsai_verify_fail(r->result, "rank %d has made other calls than one rank", r->rank);
  if (k.damage) nsai_verify_skip(r->result, "no step allowed the damage");
  return NSA_OK;
}

void chk_serve_check(chk_rank *r) {
  chk_serve s;
  chk_memory m = { .s = &s, .rank = r->rank, .device = r->device };
  *r->result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  if (!chk_serve_make(r->p, &s)) return;
  if (!r->rank) describe(&s, r->result);
  nsa_status status = nsai_verify_device_enter(r->device);
  if (!status) status = check(r, &s, &m);
  chk_conclude(status, true, r->result);
  chk_memory_destroy(&m);
}

void chk_serve_compare_ranks(const chk_shared *shared, const chk_serve_record *record,
                             nsai_verify_result *result) {
  for (int32_t rank = 1; rank < shared->size; rank++)
    for (int64_t i = 0; i < record->outputs && 2 * (i + 1) < (int64_t)CHK_SHARED_PARTIALS; i++) {
      uint64_t one, other;
      memcpy(&one, shared->partials[0] + 2 * i, sizeof one);
      memcpy(&other, shared->partials[rank] + 2 * i, sizeof other);
      if (one == other) continue;
      nsai_verify_fail(result, "step %lld: %s of rank %d has other bits than that of rank 0",
                       (long long)i / CHK_SERVE_OUTPUTS, chk_serve_names[i % CHK_SERVE_OUTPUTS],
                       rank);
      break;
    }
}

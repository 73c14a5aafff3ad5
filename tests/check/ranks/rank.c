/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tensors of a rank are made as those of a case of its tokens are, so that they lie between guard
 * bands in every layout; then the rows of inputs are replaced by the whole's, where there is one.
 */
#include "ranks/rank.h"

#include "base/math.h"
#include "check.h"
#include "plan/plan.h"
#include "plan/ranks_pieces.h"
#include "ranks/shard.h"
#include "run/check_tensor.h"
#include "run/ranks.h"
#include "verify/tensors_fill.h"

#include <stdlib.h>
#include <string.h>

/* Above this many elements of o the outputs of single branches are left out: they would be most of
 * the time. */
#define BRANCH_ELEMENTS ((int64_t)1 << 27)

/* ---- slots ----------------------------------------------------------------------------------- */

bool chk_slot_has_entries(int slot) {
  return slot == NSAI_VERIFY_K_CMP_IN || slot == NSAI_VERIFY_V_CMP_IN ||
         slot == NSAI_VERIFY_D_K_CMP || slot == NSAI_VERIFY_D_V_CMP;
}

bool chk_slot_has_rows(int slot) {
  if (chk_slot_has_entries(slot)) return true;
  switch (slot) {
  case NSAI_VERIFY_Q:
  case NSAI_VERIFY_GATE_VALUE:
  case NSAI_VERIFY_GATE_X:
  case NSAI_VERIFY_INDEX_IN:
  case NSAI_VERIFY_RANGES:
  case NSAI_VERIFY_D_O:
  case NSAI_VERIFY_INDEX_Q:
  case NSAI_VERIFY_K_IDX:
  case NSAI_VERIFY_O:
  case NSAI_VERIFY_INDEX_LSE:
  case NSAI_VERIFY_INDEX:
  case NSAI_VERIFY_D_Q:
  case NSAI_VERIFY_D_GATE_VALUE:
  case NSAI_VERIFY_D_GATE_X: return true;
  default: break;
  }
  return (slot >= NSAI_VERIFY_K0 && slot < NSAI_VERIFY_PHI_K) ||
         (slot >= NSAI_VERIFY_O_BRANCH_IN && slot < NSAI_VERIFY_INDEX_Q) ||
         (slot >= NSAI_VERIFY_O_BRANCH && slot < NSAI_VERIFY_INDEX_LSE) ||
         (slot >= NSAI_VERIFY_D_K0 && slot < NSAI_VERIFY_D_K_CMP);
}

bool chk_slot_is_sum(int slot) {
  return (slot >= NSAI_VERIFY_D_PHI_K && slot < NSAI_VERIFY_D_GATE_VALUE) ||
         (slot >= NSAI_VERIFY_D_GATE_W1 && slot < NSAI_VERIFY_SLOTS);
}

/* Removes a slot. */
static void drop(nsai_verify_tensors *d, int slot) {
  if (d->buffer[slot].device) nsai_verify_buffer_destroy(d->device, &d->buffer[slot]);
  d->view[slot].ndim = 0;
}

static int64_t elements_of(const nsai_verify_case *c) {
  return nsai_verify_total(c->q_len, c->num_seqs) * c->model.heads * c->model.head_dim_v;
}

/* What neither the whole nor the ranks compute: probes, and of many tokens the branches' outputs.
 */
static void drop_optional(nsai_verify_tensors *d, const nsai_verify_case *all) {
  drop(d, NSAI_VERIFY_PROBE_ROWS);
  drop(d, NSAI_VERIFY_PROBE);
  for (int b = 0; b < NSA_BRANCHES && elements_of(all) > BRANCH_ELEMENTS; b++)
    drop(d, NSAI_VERIFY_O_BRANCH + b);
}

/* ---- rows ------------------------------------------------------------------------------------ */

int64_t chk_view_row(const nsa_tensor *t) {
  int64_t count = 1;
  for (int32_t i = 1; i < t->ndim; i++) count *= t->shape[i];
  return count;
}

int64_t chk_view_offset(const nsa_tensor *t, int64_t row, int64_t i) {
  int64_t offset = row * t->stride[0];
  for (int32_t d = t->ndim - 1; d > 0; d--) {
    offset += i % t->shape[d] * t->stride[d];
    i /= t->shape[d];
  }
  return offset;
}

/* Copies a row between views of the same shape but for the first dimension. */
static void copy_row(const nsa_tensor *to, int64_t to_row, const nsa_tensor *from,
                     int64_t from_row) {
  const int64_t width = to->shape[to->ndim - 1], count = chk_view_row(to) / width;
  const size_t size = (size_t)nsai_dtype_bytes(to->dtype);
  for (int64_t i = 0; i < count; i++)
    memcpy((char *)to->data + (size_t)chk_view_offset(to, to_row, i * width) * size,
           (const char *)from->data + (size_t)chk_view_offset(from, from_row, i * width) * size,
           (size_t)width * size);
}

chk_rows chk_piece_rows(const chk_ranks_problem *p, int slot, const nsa_piece *piece) {
  const nsai_verify_case *c = &p->c;
  if (!chk_slot_has_entries(slot))
    return (chk_rows){ nsai_verify_total(c->q_len, piece->sequence) + piece->begin, piece->length };
  const int64_t begin = nsai_block_count(&c->model, piece->begin),
                end = nsai_block_count(&c->model, piece->begin + piece->length);
  int64_t before = 0;
  for (int32_t s = 0; s < piece->sequence; s++) before += nsai_block_count(&c->model, c->kv_len[s]);
  return (chk_rows){ before + begin, end - begin };
}

/* Fills the rows of a slot's image from another image of the whole's slot. */
static void gather(chk_rank *r, int slot, const nsa_tensor *whole) {
  const nsa_tensor local = nsai_verify_tensors_view(&r->data, slot, NSAI_VERIFY_HOST);
  const nsa_piece *pieces;
  int32_t count = 0;
  int64_t row = 0;
  if (nsa_shard_pieces(r->shard, r->rank, &pieces, &count)) return;
  for (int32_t i = 0; i < count; i++) {
    const chk_rows rows = chk_piece_rows(r->p, slot, &pieces[i]);
    for (int64_t j = 0; j < rows.count; j++) copy_row(&local, row++, whole, rows.first + j);
  }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static nsa_status plan_of(chk_plans *plans, const nsai_verify_case *c, nsai_trial_plan *out) {
  nsa_problem problem = chk_case_problem(c, chk_case_op(c));
  problem.max_probe_rows = 0;
  return chk_plans_get_problem(plans, c, &problem, out);
}

static nsa_status run_case(chk_plans *plans, const nsai_verify_case *c, nsai_trial_run *trial) {
  nsai_trial_plan plan;
  *trial = (nsai_trial_run){ 0 };
  NSAI_TRY(plan_of(plans, c, &plan));
  NSAI_TRY(nsai_trial_run_prepare(chk_plans_device(plans), c, &plan, chk_plans_opts(plans)->threads,
                                  trial));
  drop_optional(&trial->data, c);
  return NSA_OK;
}

/* Keeps what gradients hold before an accumulating pass. */
static nsa_status keep_before(chk_whole *whole) {
  nsai_verify_tensors *d = &whole->trial.data;
  NSAI_TRY(nsai_verify_tensors_begin_sums(d, d->c->seed));
  for (int slot = NSAI_VERIFY_FIRST_GRADIENT; slot < NSAI_VERIFY_SLOTS; slot++) {
    if (!d->buffer[slot].device) continue;
    const size_t bytes = d->buffer[slot].bytes + 2 * (size_t)NSAI_VERIFY_GUARD;
    whole->before[slot] = malloc(bytes);
    if (!whole->before[slot]) return nsai_fail_nomem("a gradient's image", bytes);
    memcpy(whole->before[slot], d->buffer[slot].image, bytes);
  }
  return NSA_OK;
}

nsa_status chk_whole_create(chk_plans *plans, const chk_ranks_problem *p, chk_whole *whole) {
  memset(whole, 0, sizeof *whole);
  whole->c = p->c;
  if (p->c.kind == NSAI_VERIFY_BACKWARD) {
    /* With `saved` the forward's outputs, not those of the float64 reference: of long sequences it
     * takes hours. */
    if (whole->c.saved) whole->c.saved = 2;
    if (elements_of(&p->c) > BRANCH_ELEMENTS) whole->c.saved = 0;
    nsai_verify_case *f = &whole->forward_case;
    *f = p->c;
    f->kind = NSAI_VERIFY_FORWARD;
    f->saved = f->accumulate = f->d_o_f32 = f->grads_f32 = f->mma = f->recompute = 0;
    f->wanted = 0;
    NSAI_TRY(run_case(plans, f, &whole->forward));
    NSAI_TRY(nsai_trial_run_execute(&whole->forward));
  }
  NSAI_TRY(run_case(plans, &whole->c, &whole->trial));
  if (p->c.kind == NSAI_VERIFY_BACKWARD)
    NSAI_TRY(nsai_trial_run_hand_over(&whole->forward, &whole->trial));
  if (p->c.accumulate) NSAI_TRY(keep_before(whole));
  return nsai_trial_run_execute(&whole->trial);
}

void chk_whole_destroy(chk_whole *whole) {
  nsai_trial_run_destroy(&whole->trial);
  nsai_trial_run_destroy(&whole->forward);
  for (int slot = 0; slot < NSAI_VERIFY_SLOTS; slot++) free(whole->before[slot]);
  chk_partials_destroy(whole);
  memset(whole, 0, sizeof *whole);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

nsa_status chk_rank_nccl(chk_shared *shared, int32_t rank, nsa_status mine, nsa_ctx *ctx,
                         const nsa_comm_options *options, nsa_comm **comm) {
  if (!mine && !rank) mine = nsa_comm_nccl_id(ctx, shared->nccl_id);
  if (!chk_shared_all_well(shared, rank, mine))
    return mine ? mine : nsai_fail(NSA_E_RANKS, CHK_SHARED_OTHER);
  return nsa_comm_nccl_init(ctx, shared->nccl_id, rank, shared->size, options, comm);
}

nsa_status chk_rank_plan(chk_plans *plans, const chk_ranks_problem *p, const nsa_shard *shard,
                         nsai_trial_plan *out) {
  nsa_problem problem = chk_case_problem(&p->c, chk_case_op(&p->c));
  problem.ranks = p->ranks;
  problem.max_pieces = (int32_t)nsai_larger(nsa_shard_max_pieces(shard), 1);
  problem.max_tokens = nsai_larger(nsa_shard_tokens(shard, -1), 1) + p->c.slack;
  problem.max_probe_rows = 0;
  return chk_plans_get_problem(plans, &p->c, &problem, out);
}

/* Entries of the rank's own, where it has no whole from which to take them. */
static nsa_status make_entry_values(chk_rank *r, int64_t entries) {
  nsai_verify_tensors_fill_entries(&r->data, entries, chk_plans_opts(r->plans)->threads);
  for (int slot = NSAI_VERIFY_K_CMP_IN; slot <= NSAI_VERIFY_V_CMP_IN; slot++)
    if (r->data.buffer[slot].device)
      NSAI_TRY(nsai_verify_buffer_upload(r->device, &r->data.buffer[slot]));
  return NSA_OK;
}

/* Compressed entries of the caller, and their gradients: those whose last token is in a piece.
 * Other models keep theirs in the workspace. */
static nsa_status make_entries(chk_rank *r) {
  static const int slots[] = { NSAI_VERIFY_K_CMP_IN, NSAI_VERIFY_V_CMP_IN, NSAI_VERIFY_D_K_CMP,
                               NSAI_VERIFY_D_V_CMP,  NSAI_VERIFY_K_CMP,    NSAI_VERIFY_V_CMP };
  const nsa_piece *pieces;
  int32_t count = 0;
  int64_t entries = 0;
  NSAI_TRY(nsa_shard_pieces(r->shard, r->rank, &pieces, &count));
  for (int32_t i = 0; i < count; i++)
    entries += chk_piece_rows(r->p, NSAI_VERIFY_K_CMP_IN, &pieces[i]).count;
  for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
    nsa_tensor *view = &r->data.view[slots[i]];
    const int64_t shape[3] = { entries, view->shape[1], view->shape[2] };
    const bool there = view->ndim > 0 && r->c.model.phi == NSAI_PHI_EXTERNAL;
    const int32_t dtype = view->dtype;
    drop(&r->data, slots[i]);
    if (!there) continue;
    *view = nsai_verify_tensor(dtype, 3, shape);
    NSAI_TRY(nsai_verify_buffer_create(r->device, nsai_verify_tensor_bytes(view),
                                       NSAI_VERIFY_FLOAT_FILL, &r->data.buffer[slots[i]]));
    if (!nsai_verify_buffer_image(&r->data.buffer[slots[i]]))
      return nsai_fail_nomem("an image of compressed entries", (size_t)entries);
  }
  return r->whole ? NSA_OK : make_entry_values(r, entries);
}

/* Replaces the rows of inputs by the whole's, and uploads them. */
static nsa_status take_inputs(chk_rank *r) {
  for (int slot = 0; slot < NSAI_VERIFY_FIRST_OUTPUT; slot++) {
    if (!nsai_verify_tensors_has(&r->data, slot) || !chk_slot_has_rows(slot)) continue;
    const nsa_tensor whole =
        nsai_verify_tensors_view(&r->whole->trial.data, slot, NSAI_VERIFY_HOST);
    gather(r, slot, &whole);
  }
  for (int slot = 0; slot < NSAI_VERIFY_FIRST_OUTPUT; slot++)
    if (r->data.buffer[slot].device)
      NSAI_TRY(nsai_verify_buffer_upload(r->device, &r->data.buffer[slot]));
  return NSA_OK;
}

/* Makes the tensors of the rank's case. Without a whole the blocks of a backward pass are any: those
 * that a forward could choose take a time that is quadratic in the tokens. */
static nsa_status make_tensors(chk_rank *r) {
  const nsai_verify_case c = r->c;
  const int threads = r->whole ? 1 : chk_plans_opts(r->plans)->threads;
  if (!r->whole && c.kind == NSAI_VERIFY_BACKWARD && c.selection == NSA_SELECT_TOPN)
    r->c.selection = NSA_SELECT_BLOCKS;
  nsa_status status = nsai_verify_tensors_create(r->device, &r->c, threads, NULL, 0, &r->data);
  r->c = c;
  return status;
}

/* Sets least_alignment. */
static nsa_status find_least_alignment(chk_rank *r, nsa_ctx *ctx) {
  chk_ranks_problem p = *r->p;
  nsa_shard *shard;
  r->least_alignment = 0;
  if (!r->device->driver || !p.alignment) return NSA_OK;
  p.layout = NSA_SHARD_ZIGZAG;
  p.alignment = 0;
  NSAI_TRY(chk_ranks_shard(&p, ctx, &shard));
  if (r->p->alignment % shard->alignment) r->least_alignment = shard->alignment;
  nsa_shard_destroy(shard);
  return NSA_OK;
}

/* The shard and the plan, and the rank's case in place of the whole's. */
static nsa_status divide(chk_rank *r) {
  nsai_trial_plan one;
  NSAI_TRY(plan_of(r->plans, &r->p->c, &one));
  NSAI_TRY(chk_ranks_shard(r->p, one.ctx, &r->shard));
  NSAI_TRY(find_least_alignment(r, one.ctx));
  NSAI_TRY(chk_rank_plan(r->plans, r->p, r->shard, &r->plan));
  r->c.num_seqs = 1;
  r->c.no_batch = 0;
  r->c.slack = 0; /* tensors have the shard's rows, and no more */
  r->c.q_len[0] = r->c.kv_len[0] = nsa_shard_tokens(r->shard, r->rank);
  return NSA_OK;
}

nsa_status chk_rank_prepare(chk_rank *r) {
  r->c = r->whole ? r->whole->c : r->p->c;
  if (!r->whole) r->c.seed += 2 * (uint64_t)r->rank; /* odd seeds leave out optional weights */
  NSAI_TRY(r->p->ranks > 1 || r->whole ? divide(r) : plan_of(r->plans, &r->c, &r->plan));
  NSAI_TRY(make_tensors(r));
  drop_optional(&r->data, &r->p->c);
  if (r->shard) NSAI_TRY(make_entries(r));
  if (r->whole) NSAI_TRY(take_inputs(r));
  uint64_t bytes = r->plan.caps.workspace_bytes;
  if (r->c.kind == NSAI_VERIFY_BACKWARD && r->c.d_o_f32)
    bytes += nsai_d_o_bytes(&r->c.model, r->data.token_capacity);
  NSAI_TRY(nsai_verify_tensors_workspace_anew(&r->data, bytes));
  return nsai_verify_device_wait(r->device, NULL);
}

void chk_rank_release(chk_rank *r) {
  if (r->data.device) nsai_verify_tensors_destroy(&r->data);
  nsa_shard_destroy(r->shard);
  r->shard = NULL;
}

/* Gradients before an accumulating run: the whole's rows, and its weights on rank 0 alone, since
 * the sum over ranks is compared. */
static nsa_status begin_sums(chk_rank *r) {
  NSAI_TRY(nsai_verify_tensors_begin_sums(&r->data, r->c.seed));
  for (int slot = NSAI_VERIFY_FIRST_GRADIENT; slot < NSAI_VERIFY_SLOTS; slot++) {
    nsai_verify_buffer *buffer = &r->data.buffer[slot];
    if (!buffer->device) continue;
    nsa_tensor local = nsai_verify_tensors_view(&r->data, slot, NSAI_VERIFY_HOST);
    nsa_tensor whole = r->whole->trial.data.view[slot];
    if (!r->whole->before[slot]) continue;
    whole.data = r->whole->before[slot] + NSAI_VERIFY_GUARD;
    if (chk_slot_has_rows(slot)) {
      gather(r, slot, &whole);
    } else if (r->rank) {
      for (int64_t row = 0; row < local.shape[0]; row++)
        for (int64_t i = 0; i < chk_view_row(&local); i++)
          nsai_verify_store(&local, chk_view_offset(&local, row, i), 0);
    }
    NSAI_TRY(nsai_verify_buffer_upload(r->device, buffer));
  }
  return NSA_OK;
}

nsa_status chk_rank_enqueue(const chk_rank *r) {
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch;
  nsa_io io;
  nsa_grads grads;
  exec.branches = r->c.branches;
  exec.workspace = r->data.workspace;
  exec.workspace_bytes = r->data.workspace_bytes;
  exec.stream = r->device->stream;
  exec.comm = r->comm;
  nsai_verify_tensors_io(&r->data, NSAI_VERIFY_ON_DEVICE, &batch, &io);
  if (r->shard) {
    batch = (nsa_batch)NSA_BATCH_INIT;
    batch.num_seqs = r->p->c.num_seqs;
    batch.shard = r->shard;
  }
  const nsa_batch *given = nsai_verify_tensors_batch(&r->data, &batch);
  if (r->c.kind != NSAI_VERIFY_BACKWARD) return nsa_forward(r->plan.plan, &exec, given, &io);
  nsai_verify_tensors_grads(&r->data, NSAI_VERIFY_ON_DEVICE, &grads);
  return nsa_backward(r->plan.plan, &exec, given, &io, &grads);
}

nsa_status chk_rank_execute(chk_rank *r) {
  NSAI_TRY(nsai_verify_tensors_poison(&r->data));
  if (r->c.accumulate) NSAI_TRY(begin_sums(r));
  NSAI_TRY(chk_rank_enqueue(r));
  NSAI_TRY(nsa_comm_wait(r->comm, r->device->stream, 0));
  return nsai_verify_tensors_fetch(&r->data);
}

/* ---- the check ------------------------------------------------------------------------------- */

/* Takes from this rank's rows what the last rank adds to them. */
static void lose(chk_rank *r, int slot, const nsa_tensor *t) {
  const float *last = r->whole->last[chk_partials_of(slot)];
  const int64_t width = chk_view_row(t);
  const nsa_piece *pieces;
  int32_t count = 0;
  int64_t row = 0;
  if (nsa_shard_pieces(r->shard, r->rank, &pieces, &count)) return;
  for (int32_t i = 0; i < count; i++) {
    const chk_rows rows = chk_piece_rows(r->p, slot, &pieces[i]);
    for (int64_t j = 0; j < rows.count; j++, row++)
      for (int64_t k = 0; k < width; k++) {
        const int64_t at = chk_view_offset(t, row, k);
        nsai_verify_store(t, at, nsai_verify_load(t, at) - last[(rows.first + j) * width + k]);
      }
  }
}

void chk_rank_damage(chk_rank *r, int run) {
  const chk_ranks_damage *d = r->options->damage;
  if (r->rank || !d || d->run != run) return;
  nsa_tensor t = nsai_verify_tensors_view(&r->data, d->slot, NSAI_VERIFY_HOST);
  if (!t.ndim || !t.shape[0]) return;
  if (d->lost) {
    lose(r, d->slot, &t);
    return;
  }
  const int64_t at = chk_view_offset(&t, t.shape[0] / 2, chk_view_row(&t) / 2);
  if (t.dtype == NSA_I32)
    ((int32_t *)t.data)[at] ^= 1;
  else
    nsai_verify_store(&t, at, nsai_verify_load(&t, at) * d->factor + d->add);
}

/* The images of outputs of the first run. */
typedef struct images {
  uint8_t *of[NSAI_VERIFY_SLOTS];
} images;

static nsa_status keep(const chk_rank *r, images *first) {
  for (int slot = NSAI_VERIFY_FIRST_OUTPUT; slot < NSAI_VERIFY_SLOTS; slot++) {
    const nsai_verify_buffer *buffer = &r->data.buffer[slot];
    const size_t bytes = buffer->bytes + 2 * (size_t)NSAI_VERIFY_GUARD;
    if (!buffer->device) continue;
    first->of[slot] = malloc(bytes);
    if (!first->of[slot]) return nsai_fail_nomem("an output's image", bytes);
    memcpy(first->of[slot], buffer->image, bytes);
  }
  return NSA_OK;
}

static void compare_repeat(chk_rank *r, const images *first, int run) {
  for (int slot = NSAI_VERIFY_FIRST_OUTPUT; slot < NSAI_VERIFY_SLOTS; slot++) {
    const nsai_verify_buffer *buffer = &r->data.buffer[slot];
    if (buffer->device && memcmp(first->of[slot], buffer->image,
                                 buffer->bytes + 2 * (size_t)NSAI_VERIFY_GUARD) != 0) {
      nsai_verify_fail(r->result, "rank %d: %s of run %d differs from run 1", r->rank,
                       nsai_verify_slot_name(slot), run + 1);
      return;
    }
  }
}

bool chk_rank_misses_copies(chk_rank *r) {
  const nsa_plan *plan = r->plan.plan;
  const uint64_t bytes = nsai_ranks_room_bytes(&plan->problem, &plan->workspace);
  if (!r->options->copy_bytes || r->p->ranks == 1 || nsai_comm_room(r->comm, bytes)) return false;
  nsai_verify_skip(r->result, "the transport moves K and V: %s",
                   nsai_comm_copies(r->comm)
                       ? "they need more of --copy-bytes"
                       : "ranks do not map each other's memory, or play hosts");
  return true;
}

/* A forward that does not overlap as --overlap-sms asks is no check of that. All ranks find the same. */
static bool misses_overlap(chk_rank *r) {
  const nsa_plan *plan = r->plan.plan;
  if (!r->options->overlap_sms || r->c.kind != NSAI_VERIFY_FORWARD || r->p->ranks == 1 ||
      nsai_ranks_overlap(r->comm, plan, r->shard))
    return false;
  const char *why = nsai_no_overlap(&plan->problem, &plan->choice);
  nsai_verify_skip(r->result, "K and V travel first: %s", why ? why : "pieces are too short");
  return true;
}

static nsa_status check(chk_rank *r, images *first) {
  const nsa_plan *plan;
  NSAI_TRY(chk_rank_prepare(r));
  plan = r->plan.plan;
  memcpy(r->result->variants, r->plan.caps.variants, sizeof r->result->variants);
  NSAI_TRY(nsa_comm_agree(r->comm, &plan, 1, r->shard, r->options->timeout_ms));
  if (chk_rank_misses_copies(r) || misses_overlap(r)) return NSA_OK;
  for (int run = 0; run < r->options->repeat; run++) {
    NSAI_TRY(chk_rank_execute(r));
    chk_rank_damage(r, run);
    if (run) {
      compare_repeat(r, first, run);
      continue;
    }
    const char *damaged = nsai_verify_tensors_damaged(&r->data);
    if (damaged)
      nsai_verify_fail(r->result, "rank %d: %s: memory outside the written rows changed", r->rank,
                       damaged);
    chk_rank_compare(r);
    if (r->options->repeat > 1) NSAI_TRY(keep(r, first));
  }
  return NSA_OK;
}

void chk_rank_check(chk_rank *r) {
  images first = { { 0 } };
  *r->result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  nsa_status status = nsai_verify_device_enter(r->device);
  if (!status) status = check(r, &first);
  chk_conclude(status, chk_plans_opts(r->plans)->overrides != NULL, r->result);
  for (int slot = 0; slot < NSAI_VERIFY_SLOTS; slot++) free(first.of[slot]);
}

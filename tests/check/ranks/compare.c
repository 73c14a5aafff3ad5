/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What ranks computed against what one rank computed. Rows of queries have the same bits. Sums over
 * queries are added in another order, in fp32: they differ by SUM_LIMIT of the greatest element,
 * and where the result has a smaller type by its roundings.
 */
#include "ranks/rank.h"

#include "run/check_tensor.h"

#include <math.h>
#include <string.h>

/* Differences relative to the greatest element of the tensor. On the CPU device, whose sums are
 * float64, only the rounding to f32 is left: 1.2e-7. On a GPU tensor cores cut each addition to
 * fp32, so that two orders of a sum over S queries are apart in proportion to S: 1.3e-6 at
 * 4k, 1.5e-6 at 16k, 1.2e-5 at 64k tokens, and with the compressed branch alone 1.0e-4 at 64k,
 * where one rank's own sums are 7e-4 off float64 (H200, 64/4 heads, 2026-11-27). Terms of one sign, of
 * correlated inputs, are all cut in one direction: 6.1e-6 at 711 tokens over four ranks. Sums over tokens by
 * cuBLASLt, for weights of the gate, are one chain: 1e-5 at 7685 tokens. */
#define SUM_LIMIT 1e-6
#define SUM_LIMIT_GPU(tokens) (2e-6 + 2e-9 * (double)(tokens))
#define CHAIN_LIMIT_GPU 1e-5

/* The self-test measures what ranks add on the CPU device, too, and gets a GPU's bounds. */
static bool is_by_gpu(const chk_whole *whole) {
  return whole->trial.data.device->driver || whole->squares[0] || whole->squares[1];
}

/* `chain`: each rank's sum is one chain of additions. */
static double sum_limit(const chk_whole *whole, bool chain) {
  if (!is_by_gpu(whole)) return SUM_LIMIT;
  chain |= whole->c.fill == NSAI_VERIFY_FILL_CORRELATED;
  return SUM_LIMIT_GPU(whole->trial.data.tokens) + (chain ? CHAIN_LIMIT_GPU : 0);
}

/* On a GPU phi linear and mlp take the gradients of compressed entries, and of the hidden layer,
 * rounded to the model's dtype; each rank rounds its partial sums of them, one rank the whole sum.
 * A rounding is 1.6e-3 of its operand in the norm (bf16; an eighth of it in fp16), roundings are
 * independent of each other, and phi's weights keep the variance. So the error of a row is this
 * part of the root of the sum of squares of what each rank adds to the row and of the row itself,
 * whatever the ranks' number: what a rank adds may be missing where it is about 1 % of the row, not
 * where it is 1 % of the greatest. Rows of few elements scatter. With roundings of random sums the
 * worst of some 1000 rows had 3.1 times this in the norm with 16 elements, 1.6 times with 128, and
 * 7.6 times in an element (simulated); twice as much is allowed. */
#define ROUNDING 1.6e-3
#define NORM_MARGIN(width) (2 + 16 / sqrt((double)(width)))
#define ELEMENT_MARGIN 15.0
/* Of a weight, relative to the greatest, by which it is at most 1.5 times without and 5.1 times
 * with keys whose mean is 3 times their deviation (simulated). */
#define WEIGHT_MARGIN 5.0
/* fp16 below 2^-14 is rounded by up to 2^-25, however small it is. */
#define LEAST_F16 0x1p-25

static double entry_rounding(const nsai_model *g) {
  return (g->dtype == NSA_BF16 ? ROUNDING : ROUNDING / 8) * (g->phi == NSAI_PHI_MLP ? M_SQRT2 : 1);
}

/* Of one element, if all roundings had the same sign: never more than this part of the greatest. */
static double coarse_rounding(const nsai_model *g, int32_t ranks) {
  return ranks * (g->dtype == NSA_BF16 ? 0x1p-8 : 0x1p-11);
}

/* The distance of two neighbours, relative to the smaller: two sums that are nearly equal may be
 * rounded to either. */
static double unit_of(int32_t dtype) {
  return dtype == NSA_BF16 ? 0x1p-7 : dtype == NSA_F16 ? 0x1p-10 : 0;
}

/* The greatest magnitude of a slot's written rows. */
static double greatest(const nsa_tensor *t, int64_t rows) {
  double most = 0;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = 0; i < chk_view_row(t); i++)
      most = fmax(most, fabs((double)nsai_verify_load(t, chk_view_offset(t, row, i))));
  return most;
}

/* The larger difference, which is a NaN that was seen before, too. */
static double worse(double most, double here) { return isnan(most) || here <= most ? most : here; }

static bool same_bits(const nsa_tensor *a, int64_t a_row, const nsa_tensor *b, int64_t b_row) {
  const int64_t width = a->shape[a->ndim - 1], count = chk_view_row(a) / width;
  const size_t size = (size_t)nsai_dtype_bytes(a->dtype);
  for (int64_t i = 0; i < count; i++)
    if (memcmp((const char *)a->data + (size_t)chk_view_offset(a, a_row, i * width) * size,
               (const char *)b->data + (size_t)chk_view_offset(b, b_row, i * width) * size,
               (size_t)width * size) != 0)
      return false;
  return true;
}

/* The largest difference of a row beyond the roundings of its type. NaN: one is NaN. `norm`: the
 * root of the mean of the squares of such differences. */
static double distance(const nsa_tensor *a, int64_t a_row, const nsa_tensor *b, int64_t b_row,
                       double *norm) {
  const double unit = unit_of(a->dtype);
  double most = 0, squares = 0;
  for (int64_t i = 0; i < chk_view_row(a); i++) {
    const double x = (double)nsai_verify_load(a, chk_view_offset(a, a_row, i)),
                 y = (double)nsai_verify_load(b, chk_view_offset(b, b_row, i));
    const double off = fabs(x - y) - unit * fmin(fabs(x), fabs(y));
    most = worse(most, off);
    if (off > 0) squares += off * off;
  }
  *norm = sqrt(squares / (double)chk_view_row(a));
  return most;
}

/* The difference of a row beyond all roundings, those of entries included. `top`: the greatest
 * element of all rows. */
static double row_distance(const chk_rank *r, int slot, const nsa_tensor *local, int64_t row,
                           const nsa_tensor *whole, int64_t whole_row, double top) {
  const int which = chk_partials_of(slot);
  double norm;
  const double most = distance(local, row, whole, whole_row, &norm);
  if (which < 0 || !r->whole->squares[which]) return most;
  const nsai_model *g = &r->p->c.model;
  const int64_t width = chk_view_row(whole);
  double squares = r->whole->squares[which][whole_row];
  for (int64_t i = 0; i < width; i++) {
    const double x = (double)nsai_verify_load(whole, chk_view_offset(whole, whole_row, i));
    squares += x * x;
  }
  double rounding = entry_rounding(g) * sqrt(squares / (double)width);
  if (g->dtype == NSA_F16) rounding += LEAST_F16 * sqrt(r->p->ranks + 1.0);
  /* NaN in `most` stays. */
  const double element =
                   most - fmin(ELEMENT_MARGIN * rounding, top * coarse_rounding(g, r->p->ranks)),
               row_off = norm - NORM_MARGIN(width) * rounding;
  return row_off > element ? row_off : element;
}

static bool is_summed(int slot) { return slot >= NSAI_VERIFY_D_K0 && slot <= NSAI_VERIFY_D_V_CMP; }

/* One output with a row for each token. */
static void compare_rows(chk_rank *r, int slot) {
  const nsai_verify_tensors *all = &r->whole->trial.data;
  const nsa_tensor local = nsai_verify_tensors_view(&r->data, slot, NSAI_VERIFY_HOST),
                   whole = nsai_verify_tensors_view(all, slot, NSAI_VERIFY_HOST);
  const nsa_piece *pieces;
  int32_t count = 0;
  int64_t row = 0, wrong = 0;
  double off = 0;
  if (nsa_shard_pieces(r->shard, r->rank, &pieces, &count)) return;
  const double most =
      is_summed(slot) ? greatest(&whole, chk_slot_has_entries(slot) ? all->blocks : all->kv_tokens)
                      : 0;
  for (int32_t i = 0; i < count; i++) {
    const chk_rows rows = chk_piece_rows(r->p, slot, &pieces[i]);
    for (int64_t j = 0; j < rows.count; j++, row++) {
      if (is_summed(slot)) {
        const double here = row_distance(r, slot, &local, row, &whole, rows.first + j, most);
        off = worse(off, here);
      } else if (!same_bits(&local, row, &whole, rows.first + j) && !wrong++) {
        nsai_verify_fail(r->result, "rank %d: %s: token %lld of sequence %d differs", r->rank,
                         nsai_verify_slot_name(slot), (long long)(pieces[i].begin + j),
                         pieces[i].sequence);
      }
    }
  }
  if (wrong > 1)
    nsai_verify_note(r->result, "and %lld of %lld rows", (long long)(wrong - 1), (long long)row);
  if (wrong && r->least_alignment)
    nsai_verify_note(r->result,
                     "pieces begin at multiples of %lld, and one rank's bits are promised from "
                     "multiples of %lld: leave out align",
                     (long long)r->p->alignment, (long long)r->least_alignment);
  if (!is_summed(slot) || !row) return;
  nsai_verify_add_figure(r->result, nsai_verify_slot_name(slot), most > 0 ? off / most : off,
                         sum_limit(r->whole, false));
}

/* The weights' slots follow each other in shared memory, in their order. */
static void leave_sums(chk_rank *r) {
  float *at = r->shared->partials[r->rank], *end = at + CHK_SHARED_PARTIALS;
  for (int slot = NSAI_VERIFY_FIRST_GRADIENT; slot < NSAI_VERIFY_SLOTS; slot++) {
    if (!nsai_verify_tensors_has(&r->data, slot) || !chk_slot_is_sum(slot)) continue;
    const nsa_tensor t = nsai_verify_tensors_view(&r->data, slot, NSAI_VERIFY_HOST);
    const int64_t row = t.ndim > 1 ? chk_view_row(&t) : 1;
    if (t.shape[0] * row > end - at) {
      nsai_verify_fail(r->result, "rank %d: %s is too large to be compared", r->rank,
                       nsai_verify_slot_name(slot));
      return;
    }
    for (int64_t i = 0; i < t.shape[0]; i++)
      for (int64_t j = 0; j < row; j++) *at++ = nsai_verify_load(&t, chk_view_offset(&t, i, j));
  }
}

void chk_rank_compare(chk_rank *r) {
  for (int slot = NSAI_VERIFY_FIRST_OUTPUT; slot < NSAI_VERIFY_SLOTS; slot++)
    if (nsai_verify_tensors_has(&r->data, slot) && chk_slot_has_rows(slot)) compare_rows(r, slot);
  leave_sums(r);
}

/* What a gradient's difference is relative to. A shift of all compressed keys changes no softmax,
 * so that the gradients of phi.k.pe and phi.k.b2 vanish but for rounding: that of the weights
 * beside them. */
static double scale_of(const nsai_verify_tensors *d, int slot) {
  const nsa_tensor t = nsai_verify_tensors_view(d, slot, NSAI_VERIFY_HOST);
  double most = greatest(&t, t.shape[0]);
  if (slot != NSAI_VERIFY_D_PHI_K && slot != NSAI_VERIFY_D_PHI_K + 5) return most;
  for (int i = 1; i <= 4; i++) {
    const nsa_tensor beside =
        nsai_verify_tensors_view(d, NSAI_VERIFY_D_PHI_K + i, NSAI_VERIFY_HOST);
    if (beside.ndim) most = fmax(most, greatest(&beside, beside.shape[0]));
  }
  return most;
}

/* The bound of the sum of a weight's gradients. `squares`: the sum of those of the ranks' greatest
 * elements. */
static double weight_limit(const chk_whole *whole, int slot, int32_t ranks, double most,
                           double squares) {
  const nsai_model *g = &whole->c.model;
  const bool by_phi = nsai_phi_has_weights(g) && slot < NSAI_VERIFY_D_GATE_VALUE;
  if (!by_phi || !is_by_gpu(whole) || !(most > 0)) return sum_limit(whole, true);
  return sum_limit(whole, true) +
         fmin(WEIGHT_MARGIN * entry_rounding(g) * sqrt(1 + squares / (most * most)),
              coarse_rounding(g, ranks));
}

/* The sum of the squares of the ranks' greatest elements, of `count` partial sums from `at` on. */
static double squares_of(const chk_shared *shared, size_t at, size_t count) {
  double sum = 0;
  for (int32_t rank = 0; rank < shared->size; rank++) {
    double most = 0;
    for (size_t i = at; i < at + count && i < CHK_SHARED_PARTIALS; i++)
      most = fmax(most, fabs((double)shared->partials[rank][i]));
    sum += most * most;
  }
  return sum;
}

void chk_rank_compare_sums(const chk_shared *shared, const chk_ranks_problem *p,
                           const chk_whole *whole, nsai_verify_result *result) {
  const nsai_verify_tensors *d = &whole->trial.data;
  size_t at = 0;
  for (int slot = NSAI_VERIFY_FIRST_GRADIENT; slot < NSAI_VERIFY_SLOTS; slot++) {
    if (!nsai_verify_tensors_has(d, slot) || !chk_slot_is_sum(slot)) continue;
    const nsa_tensor t = nsai_verify_tensors_view(d, slot, NSAI_VERIFY_HOST);
    const int64_t row = t.ndim > 1 ? chk_view_row(&t) : 1;
    /* A partial sum is rounded on its rank, by half a unit, and the whole once. */
    const double unit = unit_of(t.dtype) / 2, most = scale_of(d, slot);
    const double squares = squares_of(shared, at, (size_t)(t.shape[0] * row));
    double off = 0;
    for (int64_t i = 0; i < t.shape[0]; i++)
      for (int64_t j = 0; j < row; j++, at++) {
        const double one = (double)nsai_verify_load(&t, chk_view_offset(&t, i, j));
        double sum = 0, size = fabs(one);
        for (int32_t rank = 0; rank < p->ranks && at < CHK_SHARED_PARTIALS; rank++) {
          sum += (double)shared->partials[rank][at];
          size += fabs((double)shared->partials[rank][at]);
        }
        const double here = fabs(sum - one) - unit * size;
        off = worse(off, here);
      }
    nsai_verify_add_figure(result, nsai_verify_slot_name(slot), most > 0 ? off / most : off,
                           weight_limit(whole, slot, p->ranks, most, squares));
  }
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Prompts through the KV cache as CSV, one line a cell. A time over the cache includes
 * nsa_kv_append of the new tokens. Columns:
 *   date, commit, device, problem   as in csv.h; the problem is the packed prompt
 *   page_size       tokens of a page; 0: no pages
 *   rows            sequences of the same length that decode, a new token each
 *   S               tokens of the prompt
 *   chunk           tokens of a chunk; S: the prompt in one piece
 *   ms_prompt       all chunks of the prompt, one after the other
 *   ms_last         the last `chunk` tokens of the prompt alone
 *   ms_mixed        the same beside the rows, in one nsa_prefill
 *   ms_added        ms_mixed minus ms_last
 *   ms_rows         the rows alone, by the plan of the mixed call
 *   ms_decode       the rows alone, by nsa_decode
 *   ms_forward, ms_dense   nsa_forward and nsa_dense of the packed prompt
 *   prompt_over_forward    ms_prompt over ms_forward
 *   dense_over_prompt      ms_dense over ms_prompt
 *   kv_dtype, cmp_dtype    of raw K and V, and of compressed entries, in the cache: model or e4m3
 *   note            why there is no time
 */
#include "csv.h"
#include "prefill/prefill.h"

#include <math.h>

const char *const bench_prefill_value_names[BENCH_PREFILL_VALUES] = {
  "ms_prompt",        "ms_last",  "ms_mixed",
  "ms_added",         "ms_rows",  "ms_decode",
  "ms_forward",       "ms_dense", "prompt_over_forward",
  "dense_over_prompt"
};

void bench_prefill_csv_header(FILE *out) {
  fputs("date,commit,device,problem,page_size,rows,S,chunk", out);
  for (int i = 0; i < BENCH_PREFILL_VALUES; i++) fprintf(out, ",%s", bench_prefill_value_names[i]);
  fputs(",kv_dtype,cmp_dtype,note\n", out);
}

void bench_prefill_csv_line(FILE *out, const bench_prefill_sheet *s, const bench_prefill_cell *c) {
  const bench_prefill_options *o = &s->options;
  double value[BENCH_PREFILL_VALUES];
  bench_prefill_values(c, value);
  bench_csv_begin(out, s->commit, s->device, &c->c);
  fprintf(out, ",%d,%d,%lld,%lld", o->page_size > 0 ? o->page_size : 0, o->rows,
          (long long)c->context, (long long)c->chunk);
  for (int i = 0; i < BENCH_PREFILL_VALUES; i++)
    if (isnan(value[i]))
      fputc(',', out);
    else
      fprintf(out, ",%.5g", value[i]);
  fprintf(out, ",%s,%s,", bench_cached_dtype_name(o->dtypes.kv),
          bench_cached_dtype_name(o->dtypes.cmp));
  if (c->note[0]) bench_csv_quoted(out, c->note);
  fputc('\n', out);
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "decode/decode.h"
#include "plot/figures.h"

typedef struct curve {
  double x[BENCH_SIZES], y[BENCH_SIZES];
  char name[48];
} curve;

/* One line per batch, with a dashed one for dense attention. */
static int make_curves(const bench_decode_options *o, const bench_decode_cell *cells,
                       int cell_count, curve *curves, bench_line *lines) {
  int count = 0;
  for (int b = 0; b < o->batch_count; b++)
    for (int dense = 0; dense < 2; dense++) {
      curve *c = &curves[count];
      bench_line line = { .name = c->name,
                          .x = c->x,
                          .y = c->y,
                          .color = b % BENCH_COLORS,
                          .marker = b % BENCH_COLORS,
                          .dashed = dense };
      for (int i = 0; i < o->context_count; i++) {
        const bench_decode_cell *cell =
            bench_decode_find(cells, cell_count, o->contexts[i], o->batches[b]);
        double us = cell ? cell->us[dense ? BENCH_DECODE_DENSE : BENCH_DECODE_TOTAL] : 0;
        if (us <= 0) continue;
        c->x[line.count] = (double)o->contexts[i];
        c->y[line.count++] = us;
      }
      snprintf(c->name, sizeof c->name, "%lld sequence%s%s", (long long)o->batches[b],
               o->batches[b] > 1 ? "s" : "", dense ? ", dense" : "");
      if (line.count) lines[count++] = line;
    }
  return count;
}

nsa_status bench_decode_draw(const bench_decode_sheet *sheet, const char *dir, const char *stem) {
  const bench_decode_options *o = &sheet->options;
  curve curves[2 * BENCH_SIZES];
  bench_line lines[2 * BENCH_SIZES];
  char subtitle[BENCH_SUBTITLE], note[128], pages[32] = "without pages";
  bench_figure_subtitle(subtitle, sheet->device, sheet->date, &o->c.model);
  if (o->page_size > 0) snprintf(pages, sizeof pages, "pages of %d", o->page_size);
  snprintf(note, sizeof note,
           "%d new token%s a sequence, %s, %s inputs; dashed: attention over all keys", o->q_len,
           o->q_len > 1 ? "s" : "", pages, nsai_verify_fill_name(o->c.fill));
  const bench_plot plot = { .title =
                                "A decode step against the context, in a CUDA graph, nothing in L2",
                            .subtitle = subtitle,
                            .note = note,
                            .x = { .label = "context in tokens (k = 1024)", .scale = BENCH_LOG2 },
                            .y = { .label = "time in microseconds", .scale = BENCH_LOG10 },
                            .lines = lines,
                            .line_count =
                                make_curves(o, sheet->cells, sheet->count, curves, lines) };
  return bench_figure_write(&plot, dir, stem, "speed");
}

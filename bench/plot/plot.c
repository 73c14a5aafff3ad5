/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plot/plot.h"

#include <math.h>
#include <string.h>

/* In pixels: the picture, and the rectangle of the data in it. The legend is to its right. */
#define WIDTH 900
#define HEIGHT 480
#define LEFT 80.0
#define RIGHT 680.0
#define TOP 70.0
#define BOTTOM 400.0
#define LEGEND (RIGHT + 20)
#define MARGIN 8 /* between text and the picture's edge */

/* Assumed mean width of a character over the font's size. Texts drawn here take 0.50 to 0.57 in DejaVu
 * Sans, the widest of the usual sans-serif fonts. */
#define CHARACTER 0.6

#define MAX_TICKS 64
#define TICKS_WANTED 6 /* on a linear axis, roughly */

/* Okabe and Ito's palette without its yellow, which is hard to see on white. */
static const char *const palette[BENCH_COLORS] = { "#0072B2", "#D55E00", "#009E73", "#E69F00",
                                                   "#CC79A7", "#56B4E9", "#000000" };

/* ---- text ------------------------------------------------------------------------------------ */

/* Text between tags: XML's own characters replaced, control characters dropped. */
static void put_escaped(FILE *out, const char *text) {
  for (; *text; text++) {
    switch (*text) {
    case '&': fputs("&amp;", out); break;
    case '<': fputs("&lt;", out); break;
    case '>': fputs("&gt;", out); break;
    default:
      if ((unsigned char)*text >= 0x20) fputc(*text, out);
    }
  }
}

/* `anchor`: start, middle, end. */
static void put_text(FILE *out, double x, double y, int size, const char *anchor,
                     const char *text) {
  fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\">", x, y, size,
          anchor);
  put_escaped(out, text);
  fputs("</text>\n", out);
}

/* The same with at most `width` pixels, from x on. Bytes that continue a character of UTF-8 have no
 * width of their own. */
static void put_fitted(FILE *out, double x, double y, int size, double width, const char *text) {
  int count = 0;
  for (const char *c = text; *c; c++)
    count += (unsigned char)*c >= 0x20 && ((unsigned char)*c & 0xc0) != 0x80;
  double wanted = count * CHARACTER * size;
  if (wanted <= width) {
    put_text(out, x, y, size, "start", text);
    return;
  }
  fprintf(out,
          "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.1f\" textLength=\"%.1f\" "
          "lengthAdjust=\"spacingAndGlyphs\">",
          x, y, size * width / wanted, width);
  put_escaped(out, text);
  fputs("</text>\n", out);
}

static void put_rule(FILE *out, double x1, double y1, double x2, double y2, const char *color) {
  fprintf(out,
          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
          "stroke-width=\"1\"/>\n",
          x1, y1, x2, y2, color);
}

/* ---- axes ------------------------------------------------------------------------------------ */

/* A scale with its range and ticks. */
typedef struct ruler {
  bench_scale scale;
  double from, to;
  double tick[MAX_TICKS];
  int ticks;
} ruler;

static int can_show(bench_scale scale, double value) {
  return isfinite(value) && (scale == BENCH_LINEAR || value > 0);
}

/* Position of `value`: 0 at `from`, 1 at `to`. */
static double place(const ruler *r, double value) {
  if (r->scale == BENCH_LINEAR) return (value - r->from) / (r->to - r->from);
  return log(value / r->from) / log(r->to / r->from);
}

static double place_x(const ruler *r, double value) {
  return LEFT + (RIGHT - LEFT) * place(r, value);
}

static double place_y(const ruler *r, double value) {
  return BOTTOM - (BOTTOM - TOP) * place(r, value);
}

/* The n-th of 1, 2, 5, 10, 20, 50 ...; n may be negative. */
static double step125(int n) {
  static const double digit[3] = { 1, 2, 5 };
  int third = ((n % 3) + 3) % 3;
  return digit[third] * pow(10, (n - third) / 3);
}

/* The largest n with step125(n) <= value, up to rounding. */
static int floor125(double value) {
  int n = 3 * (int)floor(log10(value)) + 3;
  while (step125(n) > value * (1 + 1e-9)) n--;
  return n;
}

static void add_tick(ruler *r, double value) {
  if (r->ticks < MAX_TICKS) r->tick[r->ticks++] = value;
}

/* Chooses the range and its ticks: powers of 2; 1, 2, 5 of each decade; or round steps. A range
 * given by the axis is kept; one from the data (low .. high) is widened to ticks. */
static void make_ruler(const bench_axis *axis, double low, double high, ruler *r) {
  int given = axis->from != 0 || axis->to != 0;
  *r = (ruler){ .scale = axis->scale,
                .from = given ? axis->from : low,
                .to = given ? axis->to : high };
  if (axis->scale == BENCH_LINEAR) {
    if (!given && r->from > 0) r->from = 0;
    if (r->to <= r->from) r->to = r->from + 1;
    double step = step125(floor125((r->to - r->from) / TICKS_WANTED) + 1);
    int64_t first = (int64_t)(given ? ceil(r->from / step - 1e-9) : floor(r->from / step + 1e-9));
    int64_t last = (int64_t)(given ? floor(r->to / step + 1e-9) : ceil(r->to / step - 1e-9));
    for (int64_t i = first; i <= last; i++) add_tick(r, (double)i * step);
  } else {
    int base2 = axis->scale == BENCH_LOG2;
    int first = base2 ? (int)floor(log2(r->from) + 1e-9) : floor125(r->from);
    double end = given ? r->to * (1 + 1e-9) : r->to * (1 - 1e-9);
    for (int n = first;; n++) {
      double value = base2 ? exp2(n) : step125(n), previous = base2 ? exp2(n - 1) : step125(n - 1);
      if (given ? value > end : n > first + 1 && previous >= end) break;
      if (!given || value >= r->from * (1 - 1e-9)) add_tick(r, value);
      if (r->ticks == MAX_TICKS) break;
    }
  }
  if (given || !r->ticks) return;
  r->from = r->tick[0];
  r->to = r->tick[r->ticks - 1];
}

/* Writes "64k" for powers of 2 from 1024 on, else the number unchanged. */
static void put_tick(FILE *out, const ruler *r, double value, double x, double y,
                     const char *anchor) {
  char text[32];
  if (r->scale == BENCH_LOG2 && value >= 1024)
    snprintf(text, sizeof text, "%gk", value / 1024);
  else
    snprintf(text, sizeof text, "%.10g", value);
  put_text(out, x, y, 12, anchor, text);
}

static void put_x_ticks(FILE *out, const ruler *r) {
  for (int i = 0; i < r->ticks; i++) {
    double x = place_x(r, r->tick[i]);
    put_rule(out, x, TOP, x, BOTTOM, "#dddddd");
    put_tick(out, r, r->tick[i], x, BOTTOM + 18, "middle");
  }
}

static void put_y_ticks(FILE *out, const ruler *r) {
  for (int i = 0; i < r->ticks; i++) {
    double y = place_y(r, r->tick[i]);
    put_rule(out, LEFT, y, RIGHT, y, "#dddddd");
    put_tick(out, r, r->tick[i], LEFT - 8, y + 4, "end");
  }
}

static void put_frame(FILE *out, const bench_plot *plot) {
  fprintf(out,
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" "
          "stroke=\"#000000\" stroke-width=\"1\"/>\n",
          LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP);
  put_text(out, (LEFT + RIGHT) / 2, HEIGHT - 20, 14, "middle", plot->x.label);
  fprintf(out, "<g transform=\"rotate(-90 24 %.1f)\">\n", (TOP + BOTTOM) / 2);
  put_text(out, 24, (TOP + BOTTOM) / 2, 14, "middle", plot->y.label);
  fputs("</g>\n", out);
}

static void put_begin(FILE *out, const bench_plot *plot) {
  fprintf(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
          "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\">\n<title>",
          WIDTH, HEIGHT, WIDTH, HEIGHT);
  put_escaped(out, plot->title);
  fprintf(out, "</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", WIDTH, HEIGHT);
  double width = WIDTH - MARGIN - LEFT;
  put_fitted(out, LEFT, plot->note ? 25 : 30, 18, width, plot->title);
  put_fitted(out, LEFT, plot->note ? 44 : 52, 13, width, plot->subtitle);
  if (plot->note) put_fitted(out, LEFT, 61, 13, width, plot->note);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static int shown(const bench_plot *plot, const bench_line *line, int i) {
  return can_show(plot->x.scale, line->x[i]) && can_show(plot->y.scale, line->y[i]);
}

/* The range of the points that can be shown. Returns their number. */
static int lines_range(const bench_plot *plot, double x[2], double y[2]) {
  int points = 0;
  for (int l = 0; l < plot->line_count; l++)
    for (int i = 0; i < plot->lines[l].count; i++) {
      if (!shown(plot, &plot->lines[l], i)) continue;
      double px = plot->lines[l].x[i], py = plot->lines[l].y[i];
      x[0] = points ? fmin(x[0], px) : px;
      x[1] = points ? fmax(x[1], px) : px;
      y[0] = points ? fmin(y[0], py) : py;
      y[1] = points ? fmax(y[1], py) : py;
      points++;
    }
  return points;
}

/* Circle, square, triangle, diamond; hollow for dashed lines; none for bold ones. */
static void put_marker(FILE *out, const bench_line *line, double x, double y) {
  const char *color = palette[line->color % BENCH_COLORS];
  const char *fill = line->dashed ? "#ffffff" : color;
  if (line->bold) return;
  switch (line->marker % 4) {
  case 0: fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"", x, y); break;
  case 1:
    fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\"", x - 3.5, y - 3.5);
    break;
  case 2:
    fprintf(out, "<polygon points=\"%.1f,%.1f %.1f,%.1f %.1f,%.1f\"", x, y - 5, x + 4.5, y + 3.5,
            x - 4.5, y + 3.5);
    break;
  default:
    fprintf(out, "<polygon points=\"%.1f,%.1f %.1f,%.1f %.1f,%.1f %.1f,%.1f\"", x, y - 5, x + 5, y,
            x, y + 5, x - 5, y);
  }
  fprintf(out, " fill=\"%s\" stroke=\"%s\" stroke-width=\"1.5\"/>\n", fill, color);
}

static void begin_stroke(FILE *out, const bench_line *line) {
  fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%d\"%s points=\"",
          palette[line->color % BENCH_COLORS], line->bold ? 4 : 2,
          line->dashed ? " stroke-dasharray=\"6 4\"" : "");
}

static void put_line(FILE *out, const bench_plot *plot, const bench_line *line, const ruler *rx,
                     const ruler *ry) {
  const char *gap = "";
  begin_stroke(out, line);
  for (int i = 0; i < line->count; i++) {
    if (!shown(plot, line, i)) continue;
    fprintf(out, "%s%.1f,%.1f", gap, place_x(rx, line->x[i]), place_y(ry, line->y[i]));
    gap = " ";
  }
  fputs("\"/>\n", out);
  for (int i = 0; i < line->count; i++)
    if (shown(plot, line, i))
      put_marker(out, line, place_x(rx, line->x[i]), place_y(ry, line->y[i]));
}

static nsa_status write_lines(FILE *out, const bench_plot *plot) {
  double x[2] = { 0 }, y[2] = { 0 };
  ruler rx, ry;
  if (!lines_range(plot, x, y))
    return nsai_fail(NSA_E_ARG, "%s: no point can be shown", plot->title);
  make_ruler(&plot->x, x[0], x[1], &rx);
  make_ruler(&plot->y, y[0], y[1], &ry);
  put_begin(out, plot);
  put_x_ticks(out, &rx);
  put_y_ticks(out, &ry);
  put_frame(out, plot);
  double pitch = fmin(22, (HEIGHT - MARGIN - TOP - 12) / (double)plot->line_count);
  for (int l = 0; l < plot->line_count; l++) {
    const bench_line *line = &plot->lines[l];
    double at = TOP + 12 + pitch * l;
    put_line(out, plot, line, &rx, &ry);
    begin_stroke(out, line);
    fprintf(out, "%.1f,%.1f %.1f,%.1f\"/>\n", LEGEND, at, LEGEND + 30, at);
    put_marker(out, line, LEGEND + 15, at);
    put_fitted(out, LEGEND + 38, at + 4, 12, WIDTH - MARGIN - LEGEND - 38, line->name);
  }
  fputs("</svg>\n", out);
  return NSA_OK;
}

/* ---- bars ------------------------------------------------------------------------------------ */

static double bar_part(const bench_bar *bar, int part) {
  return isfinite(bar->value[part]) && bar->value[part] > 0 ? bar->value[part] : 0;
}

static double bar_sum(const bench_plot *plot, const bench_bar *bar) {
  double sum = 0;
  for (int i = 0; i < plot->part_count; i++) sum += bar_part(bar, i);
  return sum;
}

static void put_box(FILE *out, double x, double y, double width, double height, int color) {
  fprintf(out,
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" "
          "stroke=\"#ffffff\" stroke-width=\"1\"/>\n",
          x, y, width, height, palette[color % BENCH_COLORS]);
}

static void put_bar(FILE *out, const bench_plot *plot, int index, const ruler *ry) {
  const bench_bar *bar = &plot->bars[index];
  double slot = (RIGHT - LEFT) / plot->bar_count, middle = LEFT + slot * (index + 0.5);
  double width = fmin(0.7 * slot, 60), sum = 0;
  for (int i = 0; i < plot->part_count; i++) {
    double low = place_y(ry, sum);
    sum += bar_part(bar, i);
    double high = place_y(ry, sum);
    if (low - high > 0.05)
      put_box(out, middle - width / 2, high, width, low - high, plot->part_colors[i]);
  }
  if (bar->note) put_text(out, middle, place_y(ry, sum) - 5, 11, "middle", bar->note);
  put_text(out, middle, BOTTOM + 18, 12, "middle", bar->label);
  if (bar->sublabel) put_text(out, middle, BOTTOM + 33, 10, "middle", bar->sublabel);
}

static nsa_status write_bars(FILE *out, const bench_plot *plot) {
  ruler ry;
  double high = 0;
  for (int i = 0; i < plot->bar_count; i++) high = fmax(high, bar_sum(plot, &plot->bars[i]));
  if (high <= 0) return nsai_fail(NSA_E_ARG, "%s: no bar can be shown", plot->title);
  bench_axis linear = plot->y;
  linear.scale = BENCH_LINEAR;
  make_ruler(&linear, 0, high, &ry);
  put_begin(out, plot);
  put_y_ticks(out, &ry);
  for (int i = 0; i < plot->bar_count; i++) put_bar(out, plot, i, &ry);
  put_frame(out, plot);
  /* In the order of the stack: the last part is on top. */
  for (int i = 0; i < plot->part_count; i++) {
    double at = TOP + 12 + 22 * (plot->part_count - 1 - i);
    put_box(out, LEGEND, at - 8, 16, 16, plot->part_colors[i]);
    put_fitted(out, LEGEND + 24, at + 4, 12, WIDTH - MARGIN - LEGEND - 24, plot->part_names[i]);
  }
  fputs("</svg>\n", out);
  return NSA_OK;
}

nsa_status bench_plot_write(FILE *out, const bench_plot *plot) {
  return plot->bar_count ? write_bars(out, plot) : write_lines(out, plot);
}

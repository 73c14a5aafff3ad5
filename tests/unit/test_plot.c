/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-bench's plots and its crossover.
 */
#include "support/cmocka_all.h"

#include "plot/crossover.h"
#include "plot/plot.h"

#include <math.h>

/* The document as a string, which the caller frees. */
static char *draw(const bench_plot *plot, nsa_status expected) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  assert_non_null(out);
  assert_int_equal(bench_plot_write(out, plot), expected);
  fclose(out);
  return text;
}

static int occurrences(const char *text, const char *what) {
  int count = 0;
  for (; (text = strstr(text, what)); text++) count++;
  return count;
}

static const double tokens[] = { 1024, 2048, 4096 }, ms[] = { 1, 10, 100 };

static bench_plot line_plot(const bench_line *lines, int count) {
  return (bench_plot){ .title = "a <b> & \"c\"",
                       .subtitle = "device\x01",
                       .x = { .label = "tokens", .scale = BENCH_LOG2 },
                       .y = { .label = "ms", .scale = BENCH_LOG10 },
                       .lines = lines,
                       .line_count = count };
}

/* Places follow from the rectangle of plot.c: x 80 to 680, y 400 to 70. */
static void test_lines(void **state) {
  bench_line line = { .name = "one", .x = tokens, .y = ms, .count = 3 };
  bench_plot plot = line_plot(&line, 1);
  char *text = draw(&plot, NSA_OK), *again = draw(&plot, NSA_OK);
  assert_string_equal(text, again);
  assert_non_null(strstr(text, "points=\"80.0,400.0 380.0,235.0 680.0,70.0\""));
  assert_non_null(strstr(text, ">a &lt;b&gt; &amp; \"c\"</text>"));
  assert_non_null(strstr(text, ">device</text>"));
  assert_non_null(strstr(text, ">1k</text>"));
  assert_non_null(strstr(text, ">4k</text>"));
  assert_non_null(strstr(text, ">50</text>"));
  assert_int_equal(occurrences(text, "<circle"), 4); /* three points and the legend */
  assert_int_equal(occurrences(text, "<svg"), occurrences(text, "</svg>"));
  free(text);
  free(again);
}

/* What is too wide for its place is set smaller, and keeps the width of the place. */
static void test_wide_text(void **state) {
  char wide[201];
  memset(wide, 'm', 200);
  wide[200] = 0;
  bench_line lines[] = { { .name = wide, .x = tokens, .y = ms, .count = 3 } };
  bench_plot plot = line_plot(lines, 1);
  plot.title = plot.subtitle = plot.note = wide;
  char *text = draw(&plot, NSA_OK);
  /* From the left edge of the data, and beside the legend's line, to 8 pixels before the edge. */
  assert_int_equal(occurrences(text, "textLength=\"812.0\""), 3);
  assert_int_equal(occurrences(text, "textLength=\"154.0\""), 1);
  assert_int_equal(occurrences(text, "font-size=\"18\""), 0);
  free(text);
  wide[20] = 0;
  text = draw(&plot, NSA_OK);
  assert_null(strstr(text, "textLength"));
  assert_int_equal(occurrences(text, "font-size=\"13\""), 2); /* subtitle and note */
  free(text);
}

/* A legend of many lines ends in the picture, which is 480 pixels high. */
static void test_long_legend(void **state) {
  enum { MANY = 40 };
  bench_line lines[MANY];
  for (int i = 0; i < MANY; i++)
    lines[i] = (bench_line){ .name = "same", .x = tokens, .y = ms, .count = 3 };
  bench_plot plot = line_plot(lines, MANY);
  char *text = draw(&plot, NSA_OK), *at = text;
  int names = 0;
  double last = 0;
  while ((at = strstr(at, "<text x=\"738.0\" y=\""))) {
    double y = strtod(at + strlen("<text x=\"738.0\" y=\""), NULL);
    assert_true(y > last && y < 480);
    last = y, names++, at++;
  }
  assert_int_equal(names, MANY);
  free(text);
}

static void test_bold_line(void **state) {
  bench_line line = { .name = "bold", .x = tokens, .y = ms, .count = 3, .bold = 1 };
  bench_plot plot = line_plot(&line, 1);
  char *text = draw(&plot, NSA_OK);
  assert_int_equal(occurrences(text, "stroke-width=\"4\""), 2); /* the line and the legend's */
  assert_int_equal(occurrences(text, "<circle"), 0);
  free(text);
}

static void test_hidden_points(void **state) {
  const double broken[] = { 0, NAN, 10 }, none[] = { -1, INFINITY, 0 };
  bench_line lines[] = { { .name = "some", .x = tokens, .y = broken, .count = 3 },
                         { .name = "none", .x = tokens, .y = none, .count = 3 } };
  bench_plot plot = line_plot(lines, 2);
  char *text = draw(&plot, NSA_OK);
  assert_null(strstr(text, "nan"));
  assert_null(strstr(text, "inf"));
  assert_int_equal(occurrences(text, "<circle"), 3); /* one point, two legends */
  free(text);
  plot = line_plot(&lines[1], 1);
  free(draw(&plot, NSA_E_ARG));
}

/* One point: the axes still have a width. */
static void test_single_point(void **state) {
  static const bench_scale scales[] = { BENCH_LINEAR, BENCH_LOG2, BENCH_LOG10 };
  bench_line line = { .name = "one", .x = tokens, .y = tokens, .count = 1 };
  for (int i = 0; i < 3; i++) {
    bench_plot plot = line_plot(&line, 1);
    plot.x.scale = plot.y.scale = scales[i];
    char *text = draw(&plot, NSA_OK);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    free(text);
  }
}

static void test_linear_axis(void **state) {
  const double x[] = { 0, 10 }, y[] = { 3, 47 };
  bench_line line = { .name = "one", .x = x, .y = y, .count = 2 };
  bench_plot plot = line_plot(&line, 1);
  plot.x.scale = plot.y.scale = BENCH_LINEAR;
  char *text = draw(&plot, NSA_OK);
  /* From 0 to 50 in steps of 10. */
  assert_non_null(strstr(text, "points=\"80.0,380.2 680.0,89.8\""));
  assert_non_null(strstr(text, ">50</text>"));
  free(text);
  plot.y.from = 0, plot.y.to = 94; /* a given range is kept */
  text = draw(&plot, NSA_OK);
  assert_non_null(strstr(text, "680.0,235.0\""));
  assert_null(strstr(text, ">100</text>"));
  free(text);
}

static void test_bars(void **state) {
  static const char *const names[] = { "low", "high" };
  static const int colors[] = { 0, 1 };
  const double first[] = { 25, 75 }, second[] = { 50, NAN };
  bench_bar bars[] = { { .label = "a", .note = "sum", .value = first },
                       { .label = "b", .sublabel = "c", .value = second } };
  bench_plot plot = { .title = "bars",
                      .subtitle = "",
                      .x = { .label = "what" },
                      .y = { .label = "share in %", .to = 100 },
                      .bars = bars,
                      .bar_count = 2,
                      .part_names = names,
                      .part_colors = colors,
                      .part_count = 2 };
  char *text = draw(&plot, NSA_OK);
  assert_non_null(strstr(text, "y=\"317.5\" width=\"60.0\" height=\"82.5\" fill=\"#0072B2\""));
  assert_non_null(strstr(text, "y=\"70.0\" width=\"60.0\" height=\"247.5\" fill=\"#D55E00\""));
  assert_non_null(strstr(text, "y=\"235.0\" width=\"60.0\" height=\"165.0\" fill=\"#0072B2\""));
  assert_int_equal(occurrences(text, "#D55E00"), 2); /* the second bar has no such part */
  free(text);
  bars[0].value = bars[1].value = (const double[]){ 0, 0 };
  free(draw(&plot, NSA_E_ARG));
}

static void test_crossover(void **state) {
  double at;
  /* Dense grows with the square, sparse linearly: they meet at 3000, on the line between. */
  const bench_point power[] = { { 1000, 1, 1 / 3.0 }, { 2000, 2, 4 / 3.0 }, { 8000, 8, 64 / 3.0 } };
  assert_int_equal(bench_crossover(power, 3, &at), BENCH_CROSS_FOUND);
  assert_float_equal((float)at, 3000.0f, 0.01f);
  /* A lead that is lost again does not count. */
  const bench_point twice[] = { { 1, 1, 2 }, { 2, 2, 1 }, { 8, 1, 2 } };
  assert_int_equal(bench_crossover(twice, 3, &at), BENCH_CROSS_FOUND);
  assert_float_equal((float)at, 4.0f, 1e-5f);
  /* Equal times at a length: from there on. */
  const bench_point touch[] = { { 1, 2, 1 }, { 4, 1, 1 }, { 8, 1, 2 } };
  assert_int_equal(bench_crossover(touch, 3, &at), BENCH_CROSS_FOUND);
  assert_float_equal((float)at, 4.0f, 1e-5f);
  assert_int_equal(bench_crossover(power + 2, 1, &at), BENCH_CROSS_BELOW);
  assert_float_equal((float)at, 8000.0f, 0);
  assert_int_equal(bench_crossover(power, 2, &at), BENCH_CROSS_ABOVE);
  assert_float_equal((float)at, 2000.0f, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_lines),        cmocka_unit_test(test_hidden_points),
    cmocka_unit_test(test_single_point), cmocka_unit_test(test_linear_axis),
    cmocka_unit_test(test_bars),         cmocka_unit_test(test_crossover),
    cmocka_unit_test(test_wide_text),    cmocka_unit_test(test_long_legend),
    cmocka_unit_test(test_bold_line),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

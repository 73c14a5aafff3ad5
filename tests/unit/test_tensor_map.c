/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tensor maps, with a driver that has no hardware (fake_cuda.c) and refuses what the real one does.
 */
#include "support/cmocka_all.h"

#include "driver/tensor_map.h"
#include "machine.h"

static _Alignas(16) unsigned char memory[64]; /* nothing is read of it */

static const nsai_driver *open_fake(void) {
  const nsai_driver *driver;
  if (nsai_driver_open(machine_module(), NULL, &driver) != NSA_OK) fail_msg("%s", nsa_last_error());
  return driver;
}

/* k [1000, 4, 128], contiguous, in boxes of 80 tokens of a head. */
static nsai_boxed usual(void) {
  return (nsai_boxed){ .name = "k",
                       .view = { memory, 512, 128 },
                       .tokens = 1000,
                       .heads = 4,
                       .dim = 128,
                       .dtype = NSA_BF16,
                       .tma_box_heads = 1,
                       .tma_box_tokens = 80 };
}

static void expect(const nsai_boxed *boxed, nsa_status status, const char *text) {
  NsaiTensorMap map;
  nsa_status got = nsai_tensor_map(open_fake(), boxed, &map);
  if (got != status)
    fail_msg("%s, expected %s: %s", nsa_status_name(got), nsa_status_name(status),
             got ? nsa_last_error() : "");
  if (text && !strstr(nsa_last_error(), text))
    fail_msg("the error does not say \"%s\": %s", text, nsa_last_error());
}

static void test_usual(void **state) {
  NsaiTensorMap map;
  nsai_boxed k = usual();
  assert_int_equal(nsai_tensor_map(open_fake(), &k, &map), NSA_OK);
  uintptr_t at = (uintptr_t)memory;
  assert_memory_equal(&map, &at, sizeof at);
  k.dtype = NSA_F16;
  k.dim = 16; /* narrower than a box */
  expect(&k, NSA_OK, NULL);
  k.heads = 64;
  k.tma_box_heads = 64;
  k.tma_box_tokens = 1;
  expect(&k, NSA_OK, NULL);
}

/* A sequence shorter than a compression block has no compressed keys, and perhaps no memory. */
static void test_no_tokens(void **state) {
  NsaiTensorMap map;
  static const NsaiTensorMap empty;
  nsai_boxed k = usual();
  k.tokens = 0;
  k.view = (NsaiView){ 0 };
  memset(&map, 0xff, sizeof map);
  assert_int_equal(nsai_tensor_map(open_fake(), &k, &map), NSA_OK);
  assert_memory_equal(&map, &empty, sizeof map);
}

/* Strides of a dimension of one are never followed, whatever they are. */
static void test_strides(void **state) {
  static const struct {
    int64_t tokens, token_stride, head_stride;
    int32_t heads;
    nsa_status status;
    const char *text;
  } cases[] = {
    { 1000, 128, 128000, 4, NSA_OK, NULL }, /* head by head */
    { 1000, 0, 128, 4, NSA_E_UNSUPPORTED, "k: the copy engine" },
    { 1000, -512, 128, 4, NSA_E_UNSUPPORTED, "no stride of -512 elements (token)" },
    { 1000, 512, 0, 4, NSA_E_UNSUPPORTED, "no stride of 0 elements (head)" },
    { 1000, 512, 0, 1, NSA_OK, NULL },
    { 1, -8, 128, 4, NSA_OK, NULL },
    { 1000, 1ll << 38, 128, 4, NSA_OK, NULL },
    { 1000, 1ll << 39, 128, 4, NSA_E_UNSUPPORTED, "below 2^39" },
    { 1000, 1ll << 62, 128, 4, NSA_E_UNSUPPORTED, "variants.disable" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    nsai_boxed k = usual();
    k.tokens = cases[i].tokens;
    k.heads = cases[i].heads;
    k.view.token_stride = cases[i].token_stride;
    k.view.head_stride = cases[i].head_stride;
    expect(&k, cases[i].status, cases[i].text);
  }
}

/* One head for all is a map of one, of a tensor whose kernel asks for no other. */
static void test_repeated_head(void **state) {
  NsaiTensorMap map;
  nsai_boxed k = usual();
  k.view.head_stride = 0;
  assert_int_equal(nsai_tensor_map_interleaved(open_fake(), &k, &map), NSA_E_UNSUPPORTED);
  k.repeats = true;
  expect(&k, NSA_OK, NULL);
  assert_int_equal(nsai_tensor_map_interleaved(open_fake(), &k, &map), NSA_OK);
  k.view.head_stride = -128;
  expect(&k, NSA_E_UNSUPPORTED, "no stride of -128 elements (head)");
  assert_int_equal(nsai_tensor_map_interleaved(open_fake(), &k, &map), NSA_E_UNSUPPORTED);
}

/* What the library's own checks have let through by mistake, the driver refuses. */
static void test_refused(void **state) {
  nsai_boxed k = usual();
  k.view.data = memory + 8;
  expect(&k, NSA_E_CUDA, "cuTensorMapEncodeTiled");
  k = usual();
  k.tma_box_tokens = 257;
  expect(&k, NSA_E_CUDA, "cuTensorMapEncodeTiled");
}

static void expect_interleaved(const nsai_boxed *boxed, nsa_status status, const char *text) {
  NsaiTensorMap map;
  assert_int_equal(nsai_tensor_map_interleaved(open_fake(), boxed, &map), status);
  if (text && !strstr(nsa_last_error(), text))
    fail_msg("the error does not say \"%s\": %s", text, nsa_last_error());
}

/* Spread tiles: all heads in a row, 32 tokens to the next lane of a quad. */
static void test_interleaved(void **state) {
  nsai_boxed k = usual();
  expect_interleaved(&k, NSA_OK, NULL);
  k.view.head_stride = 128000; /* head by head */
  k.view.token_stride = 128;
  expect_interleaved(&k, NSA_OK, NULL);
  k.view.head_stride = 1ll << 30; /* the last one's columns end behind 2^31 */
  expect_interleaved(&k, NSA_E_UNSUPPORTED, "k: 4 heads 1073741824 elements apart");
  k.heads = 1; /* whatever its stride */
  expect_interleaved(&k, NSA_OK, NULL);
  k.view.token_stride = 1ll << 34;
  expect_interleaved(&k, NSA_E_UNSUPPORTED, "below 2^34");
  k.view.token_stride = 0;
  expect_interleaved(&k, NSA_E_UNSUPPORTED, "no stride of 0 elements (token)");
  k.view = (NsaiView){ 0 };
  k.tokens = 0;
  expect_interleaved(&k, NSA_OK, NULL);
}

/* k [40 pages, 64 tokens, 4 heads, 128] in boxes of 16 tokens. */
static nsai_boxed_pages usual_pages(void) {
  return (nsai_boxed_pages){ .name = "k",
                             .view = { memory, 64 * 512, 512, 128 },
                             .pages = 40,
                             .page_rows = 64,
                             .heads = 4,
                             .dim = 128,
                             .dtype = NSA_BF16,
                             .box_rows = 16 };
}

static void expect_pages(const nsai_boxed_pages *boxed, nsa_status status, const char *text) {
  NsaiTensorMap map;
  assert_int_equal(nsai_tensor_map_pages(open_fake(), boxed, &map), status);
  if (text && !strstr(nsa_last_error(), text))
    fail_msg("the error does not say \"%s\": %s", text, nsa_last_error());
}

/* Pages of a cache. As above, a dimension of one has any stride. */
static void test_pages(void **state) {
  static const struct {
    int64_t pages, page_rows, page_stride, row_stride, head_stride;
    int32_t heads;
    nsa_status status;
    const char *text;
  } cases[] = {
    { 40, 64, 64 * 512, 512, 128, 4, NSA_OK, NULL },
    { 40, 64, 64 * 512, 128, 64 * 128, 4, NSA_OK, NULL }, /* head by head */
    { 40, 8, 8 * 512, 512, 128, 4, NSA_OK, NULL },        /* fewer rows than a box */
    { 40, 64, 64 * 512, 512, 0, 4, NSA_OK, NULL },        /* one head for all */
    { 1, 64, -8, 512, 128, 4, NSA_OK, NULL },
    { 40, 1, 512, -8, 128, 4, NSA_OK, NULL },
    { 40, 64, 64 * 512, 512, -8, 1, NSA_OK, NULL },
    { 40, 64, 0, 512, 128, 4, NSA_E_UNSUPPORTED, "no stride of 0 elements (page)" },
    { 40, 64, -64 * 512, 512, 128, 4, NSA_E_UNSUPPORTED, "k: the copy engine" },
    { 40, 64, 64 * 512, -512, 128, 4, NSA_E_UNSUPPORTED, "no stride of -512 elements (token)" },
    { 40, 64, 64 * 512, 512, -128, 4, NSA_E_UNSUPPORTED, "no stride of -128 elements (head)" },
    { 40, 64, 1ll << 38, 512, 128, 4, NSA_OK, NULL },
    { 40, 64, 1ll << 39, 512, 128, 4, NSA_E_UNSUPPORTED, "below 2^39" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    nsai_boxed_pages k = usual_pages();
    k.pages = cases[i].pages;
    k.page_rows = cases[i].page_rows;
    k.heads = cases[i].heads;
    k.view.page_stride = cases[i].page_stride;
    k.view.row_stride = cases[i].row_stride;
    k.view.head_stride = cases[i].head_stride;
    expect_pages(&k, cases[i].status, cases[i].text);
  }
}

static void test_no_pages(void **state) {
  static const NsaiTensorMap empty;
  NsaiTensorMap map;
  nsai_boxed_pages k = usual_pages();
  k.pages = 0;
  k.view = (NsaiCacheTensor){ 0 };
  memset(&map, 0xff, sizeof map);
  assert_int_equal(nsai_tensor_map_pages(open_fake(), &k, &map), NSA_OK);
  assert_memory_equal(&map, &empty, sizeof map);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_usual),       cmocka_unit_test(test_no_tokens),
    cmocka_unit_test(test_strides),     cmocka_unit_test(test_refused),
    cmocka_unit_test(test_interleaved), cmocka_unit_test(test_repeated_head),
    cmocka_unit_test(test_pages),       cmocka_unit_test(test_no_pages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Two tensors of a call with any fields, and the tensor map of one. What is accepted lies within the
 * address space, as computed in 128 bits; each element of an output has its own bytes, and none of
 * them belongs to the other tensor; a map's extents and strides are those that the driver takes.
 *
 * Input: for each tensor ndim, dtype, and what it should be, a byte each; then numbers: a byte below
 * 0xe0 that stands for itself, or another one and eight bytes.
 */
#include "driver/tensor_map.h"
#include "fuzz.h"
#include "run/check_overlap.h"
#include "run/check_tensor.h"

__extension__ typedef __int128 wide;

enum { MAX_ELEMENTS = 1 << 12, MAP_BYTES = 1 << 16 };

/* ---- the input ---- */

typedef struct input {
  const uint8_t *data;
  size_t size;
} input;

static uint8_t take_byte(input *in) { return in->size ? (in->size--, *in->data++) : 0; }

static int64_t take_number(input *in) {
  uint8_t first = take_byte(in);
  if (first < 0xe0) return first;
  uint64_t bits = 0;
  for (int i = 0; i < 8; i++) bits |= (uint64_t)take_byte(in) << 8 * i;
  return (int64_t)bits;
}

static nsa_tensor take_tensor(input *in, nsai_tensor_spec *spec) {
  static const int types[] = { NSAI_DTYPE_MODEL, NSAI_DTYPE_F32,    NSAI_DTYPE_I32,
                               NSAI_DTYPE_I64,   NSAI_DTYPE_WEIGHT, NSAI_DTYPE_ROWS };
  nsa_tensor t = { .ndim = (int8_t)take_byte(in), .dtype = (int8_t)take_byte(in) };
  uint8_t kind = take_byte(in);
  spec->types = types[kind % (sizeof types / sizeof *types)];
  spec->ndim = 1 + kind / 8 % NSA_MAX_DIMS;
  for (int i = 0; i < NSA_MAX_DIMS; i++) spec->shape[i] = NSAI_ANY;
  for (int i = 0; i < NSA_MAX_DIMS; i++) t.shape[i] = take_number(in);
  for (int i = 0; i < NSA_MAX_DIMS; i++) t.stride[i] = take_number(in);
  t.data = (void *)(uintptr_t)take_number(in); /* nothing is read of it */
  return t;
}

/* ---- what must hold ---- */

static wide element_bytes(const nsa_tensor *t) {
  return t->dtype == NSA_I64 ? 8 : t->dtype == NSA_F32 || t->dtype == NSA_I32 ? 4 : 2;
}

static bool has_elements(const nsa_tensor *t) {
  for (int i = 0; i < t->ndim; i++)
    if (!t->shape[i]) return false;
  return true;
}

static void check_range(const nsa_tensor *t, const nsai_address_range *range) {
  wide begin = (wide)(uintptr_t)t->data, end = begin + element_bytes(t);
  for (int i = 0; i < t->ndim; i++) {
    /* below 2^126 each: compared before more than one of them is added up */
    wide reach = (wide)t->stride[i] * (t->shape[i] - 1);
    FUZZ_REQUIRE(reach <= INT64_MAX && reach >= INT64_MIN);
    *(reach < 0 ? &begin : &end) += reach * element_bytes(t);
  }
  FUZZ_REQUIRE(begin >= 0 && end <= UINTPTR_MAX);
  FUZZ_REQUIRE(range->begin == (uintptr_t)begin && range->end == (uintptr_t)end);
}

/* Counts each element's bytes in `map`, whose first byte has the address `base`. False: the tensor
 * has too many elements, or reaches beyond the map. */
static bool mark(const nsa_tensor *t, const nsai_address_range *range, uintptr_t base,
                 uint8_t *map) {
  int64_t count = 1, index[NSA_MAX_DIMS] = { 0 };
  if (range->begin < base || range->end - base > MAP_BYTES) return false;
  for (int i = 0; i < t->ndim; i++)
    if (__builtin_mul_overflow(count, t->shape[i], &count) || count > MAX_ELEMENTS) return false;
  for (int64_t n = 0; n < count; n++) {
    int64_t at = (int64_t)((uintptr_t)t->data - base);
    for (int i = 0; i < t->ndim; i++) at += index[i] * t->stride[i] * (int64_t)element_bytes(t);
    for (int64_t b = 0; b < element_bytes(t); b++)
      if (map[at + b] < UINT8_MAX) map[at + b]++;
    for (int i = t->ndim - 1; i >= 0 && ++index[i] == t->shape[i]; i--) index[i] = 0;
  }
  return true;
}

/* ---- a call with two tensors, of which the first is written ---- */

static bool check_one(const nsai_check *check, const nsa_tensor *t, const nsai_tensor_spec *spec) {
  int32_t before = check->tensors->count;
  if (nsai_check_tensor(check, t, spec) != NSA_OK) {
    FUZZ_REQUIRE(strstr(nsa_last_error(), spec->name) && check->tensors->count == before);
    return false;
  }
  FUZZ_REQUIRE(t->ndim == spec->ndim);
  for (int i = 0; i < t->ndim; i++) FUZZ_REQUIRE(t->shape[i] >= 0);
  FUZZ_REQUIRE(check->tensors->count == before + has_elements(t));
  if (!has_elements(t)) return false;
  check_range(t, &check->tensors->item[before].range);
  return true;
}

static void try_call(const nsa_tensor t[2], const nsai_tensor_spec spec[2]) {
  static uint8_t map[2][MAP_BYTES];
  nsai_problem problem = { .model.dtype = NSA_BF16 };
  nsai_call_tensors tensors = { 0 };
  const nsai_check check = { .problem = &problem, .level = NSAI_CHECK_BASIC, .tensors = &tensors };
  if (!check_one(&check, &t[0], &spec[0])) return;
  bool nests = nsai_check_tensor_memory(&check, &t[0], "output") == NSA_OK;
  const nsai_address_range *range[] = { &tensors.item[0].range, &tensors.item[1].range };
  memset(map, 0, sizeof map);
  bool marked = mark(&t[0], range[0], range[0]->begin, map[0]);
  for (int i = 0; nests && marked && i < MAP_BYTES; i++) FUZZ_REQUIRE(map[0][i] <= 1);
  if (!nests || !check_one(&check, &t[1], &spec[1])) return;
  if (nsai_check_overlap(&tensors) != NSA_OK) {
    FUZZ_REQUIRE(strstr(nsa_last_error(), "output") && strstr(nsa_last_error(), "input"));
    return;
  }
  uintptr_t base = range[range[1]->begin < range[0]->begin]->begin;
  memset(map, 0, sizeof map);
  if (!mark(&t[0], range[0], base, map[0]) || !mark(&t[1], range[1], base, map[1])) return;
  for (int i = 0; i < MAP_BYTES; i++) FUZZ_REQUIRE(!map[0][i] || !map[1][i]);
}

/* ---- a tensor map ---- */

/* The limits of cuTensorMapEncodeTiled in the driver's documentation. */
static nsai_cu_result encode(void *map, int32_t type, uint32_t rank, void *address,
                             const uint64_t *extents, const uint64_t *strides, const uint32_t *box,
                             const uint32_t *steps, int32_t interleave, int32_t swizzle,
                             int32_t promotion, int32_t fill) {
  (void)map, (void)type, (void)address, (void)steps, (void)interleave, (void)swizzle;
  (void)promotion, (void)fill;
  FUZZ_REQUIRE(rank >= 3 && rank <= 5);
  for (uint32_t i = 0; i < rank; i++) {
    FUZZ_REQUIRE(extents[i] >= 1 && extents[i] <= UINT64_C(1) << 32);
    FUZZ_REQUIRE(box[i] >= 1 && box[i] <= 256);
    if (i + 1 < rank) FUZZ_REQUIRE(strides[i] < UINT64_C(1) << 40);
  }
  return NSAI_CUDA_SUCCESS;
}

static void try_map(const nsa_tensor *t) {
  static const nsai_driver driver = { .cuTensorMapEncodeTiled = encode };
  NsaiTensorMap map;
  if (t->shape[1] < 1 || t->shape[1] > 4096 || t->shape[2] < 1 || t->shape[2] > 256) return;
  if (t->shape[0] < 0) return;
  for (int repeats = 0; repeats < 2; repeats++) {
    const nsai_boxed boxed = { .name = "k",
                               .view = { t->data, t->stride[0], t->stride[1] },
                               .tokens = t->shape[0],
                               .heads = (int32_t)t->shape[1],
                               .dim = (int32_t)t->shape[2],
                               .dtype = NSA_BF16,
                               .tma_box_heads = 1,
                               .tma_box_tokens = 64,
                               .repeats = repeats };
    if (nsai_tensor_map(&driver, &boxed, &map)) fuzz_check_message(nsa_last_error());
    if (nsai_tensor_map_interleaved(&driver, &boxed, &map)) fuzz_check_message(nsa_last_error());
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  input in = { data, size };
  nsai_tensor_spec spec[] = { { .name = "output" }, { .name = "input" } };
  const nsa_tensor t[] = { take_tensor(&in, &spec[0]), take_tensor(&in, &spec[1]) };
  try_call(t, spec);
  try_map(&t[0]);
  return 0;
}

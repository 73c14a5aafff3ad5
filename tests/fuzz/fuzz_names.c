/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any text as what records name: a candidate of any stage, which is written again as it was but for
 * the order of its tiles; the key of a problem; and a glob, which matches as fnmatch would.
 */
#include "cli/tune_results.h"
#include "fuzz.h"
#include "plan/spec.h"
#include "records/decide.h"

#include <fnmatch.h>

static void try_candidate(const char *text, nsai_stage stage) {
  static const nsai_candidate none;
  nsai_candidate first, again;
  memset(&first, 0xff, sizeof first);
  if (!nsai_candidate_parse(text, stage, &first)) {
    FUZZ_REQUIRE(memcmp(&first, &none, sizeof none) == 0);
    return;
  }
  char written[512];
  nsai_writer writer = nsai_writer_open(written, sizeof written);
  nsai_candidate_print(&first, &writer);
  FUZZ_REQUIRE(writer.used < sizeof written && writer.used == strlen(text));
  FUZZ_REQUIRE(first.variant->stage == stage);
  FUZZ_REQUIRE(nsai_candidate_parse(written, stage, &again));
  FUZZ_REQUIRE(first.variant == again.variant);
  FUZZ_REQUIRE(memcmp(&first.tiles, &again.tiles, sizeof first.tiles) == 0);
}

static void check_key(const nsai_tune_key_parts *key, const char *text) {
  FUZZ_REQUIRE(key->kv_heads >= 1 && key->heads >= key->kv_heads && key->tokens >= 0);
  FUZZ_REQUIRE(key->seqs >= 0);
  FUZZ_REQUIRE(!key->overlap || key->overlap == NSA_OVERLAP_LOW ||
               key->overlap == NSA_OVERLAP_HIGH);
  FUZZ_REQUIRE(strnlen(key->rest, sizeof key->rest) <= strlen(text));
}

static void try_key(const char *text) {
  nsai_tune_key_parts first, again;
  char inputs[NSAI_TUNE_INPUTS_BYTES], written[2 * NSAI_TUNE_KEY_BYTES];
  FUZZ_REQUIRE(nsai_tune_same_series(text, text));
  FUZZ_REQUIRE(strlen(nsai_tune_inputs(text, inputs)) < sizeof inputs);
  if (!nsai_tune_key_parse(text, &first)) return;
  check_key(&first, text);
  nsai_writer w = nsai_writer_open(written, sizeof written);
  nsai_write(&w, "h%d/%d:len%lld", first.heads, first.kv_heads, (long long)first.tokens);
  if (first.overlap) nsai_write(&w, ":ov=%s", first.overlap == NSA_OVERLAP_HIGH ? "high" : "low");
  if (first.seqs) nsai_write(&w, ":seq%d", first.seqs);
  if (*first.rest) nsai_write(&w, ":%s", first.rest);
  if (w.used >= NSAI_TUNE_KEY_BYTES) return;
  FUZZ_REQUIRE(nsai_tune_key_parse(written, &again));
  FUZZ_REQUIRE(first.heads == again.heads && first.kv_heads == again.kv_heads);
  FUZZ_REQUIRE(first.overlap == again.overlap && first.seqs == again.seqs);
  FUZZ_REQUIRE(first.tokens == again.tokens && strcmp(first.rest, again.rest) == 0);
}

/* The first line is the glob, the rest what it may match. */
static void try_glob(char *text) {
  char *other = text, *pattern = strsep(&other, "\n");
  if (!other) other = text + strlen(text);
  if (!strpbrk(pattern, "[\\"))
    FUZZ_REQUIRE(nsai_glob_match(pattern, other) == !fnmatch(pattern, other, 0));
  FUZZ_REQUIRE(nsai_glob_match("*", other));
  FUZZ_REQUIRE(nsai_tune_same_series(pattern, other) == nsai_tune_same_series(other, pattern));
  uint32_t least = UINT32_MAX;
  bool nearer = nsai_is_nearer(pattern, other, &least);
  FUZZ_REQUIRE(nearer == (least != UINT32_MAX));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = fuzz_text(data, size);
  for (int stage = 0; stage < NSAI_STAGE_COUNT; stage++) try_candidate(text, (nsai_stage)stage);
  const nsai_variant *variant = nsai_variant_find(text);
  FUZZ_REQUIRE(!variant || strcmp(variant->name, text) == 0);
  try_key(text);
  if (size < 200) try_glob(text); /* fnmatch takes exponential time */
  free(text);
  return 0;
}

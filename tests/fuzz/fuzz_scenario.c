/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any text as a case of the KV cache: refused with a sentence, or written as a text that reads as the
 * same case; and the scenario that it describes is one that a plan can be made for.
 */
#include "cache/options.h"
#include "fuzz.h"

static void check_options(const chk_cache_case *c) {
  chk_cache_options o;
  char line[1024];
  chk_cache_options_make(c, &o);
  const nsai_model *m = &o.model;
  FUZZ_REQUIRE(m->kv_heads > 0 && m->heads % m->kv_heads == 0);
  FUZZ_REQUIRE(m->heads / m->kv_heads <= NSAI_MAX_GROUP);
  FUZZ_REQUIRE(m->stride > 0 && m->block % m->stride == 0 && m->select_block % m->stride == 0);
  FUZZ_REQUIRE(m->select_count >= 0 && m->select_count <= NSAI_MAX_SELECTED);
  FUZZ_REQUIRE(m->select_init + m->select_local <= m->select_count || !m->select_count);
  FUZZ_REQUIRE(o.seqs >= 1 && o.seqs <= CHK_CACHE_MOST_SEQS && o.max_q_len >= 1);
  FUZZ_REQUIRE(o.max_kv_len >= 1 && o.least_kv_len <= o.max_kv_len);
  FUZZ_REQUIRE(o.page_size == NSA_NONE || (o.page_size >= 16 && o.page_size % m->stride == 0));
  const bool codes = o.kv_codes || o.cmp_codes;
  FUZZ_REQUIRE(!codes || (m->head_dim_qk % 16 == 0 && m->head_dim_v % 16 == 0));
  FUZZ_REQUIRE(o.chunk >= 0 && o.steps >= 0 && o.repeats >= 0);
  FILE *out = fmemopen(line, sizeof line, "w");
  FUZZ_REQUIRE(out != NULL);
  chk_cache_options_print(&o, out);
  FUZZ_REQUIRE(fclose(out) == 0 && strlen(line) < sizeof line - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = fuzz_text(data, size), error[256] = "";
  char written[CHK_CACHE_CASE_TEXT], twice[CHK_CACHE_CASE_TEXT];
  chk_cache_case c, again;
  if (chk_cache_case_parse(text, &c, error, sizeof error)) {
    fuzz_check_message(error);
  } else {
    chk_cache_case_print(&c, written, sizeof written);
    FUZZ_REQUIRE(strlen(written) < sizeof written - 1 && chk_cache_case_is(written));
    FUZZ_REQUIRE(chk_cache_case_parse(written, &again, error, sizeof error) == 0);
    chk_cache_case_print(&again, twice, sizeof twice);
    FUZZ_REQUIRE(strcmp(written, twice) == 0);
    check_options(&c);
  }
  free(text);
  return 0;
}

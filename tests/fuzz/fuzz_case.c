/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any text as a problem of nsacheck and nsa-bench: refused with a sentence, or written as a text that
 * reads as the same problem.
 */
#include "fuzz.h"
#include "verify/case.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = fuzz_text(data, size), error[256] = "";
  char written[NSAI_VERIFY_CASE_TEXT], twice[NSAI_VERIFY_CASE_TEXT];
  nsai_verify_case c, again;
  if (nsai_verify_case_parse(text, &c, error, sizeof error)) {
    fuzz_check_message(error);
  } else {
    FUZZ_REQUIRE(c.num_seqs >= 1 && c.num_seqs <= NSAI_VERIFY_MAX_SEQS);
    FUZZ_REQUIRE(nsai_verify_total(c.q_len, c.num_seqs) >= 0);
    FUZZ_REQUIRE(nsai_verify_total(c.kv_len, c.num_seqs) >= 0);
    FUZZ_REQUIRE(c.model.kv_heads > 0 && c.model.heads % c.model.kv_heads == 0);
    nsai_verify_case_print(&c, written, sizeof written);
    FUZZ_REQUIRE(strlen(written) < sizeof written - 1);
    if (nsai_verify_case_parse(written, &again, error, sizeof error)) {
      fprintf(stderr, "%s: %s\n", written, error);
      abort();
    }
    nsai_verify_case_print(&again, twice, sizeof twice);
    FUZZ_REQUIRE(strcmp(written, twice) == 0);
  }
  free(text);
  return 0;
}

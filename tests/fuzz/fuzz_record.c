/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any bytes as a tuning record and as an export of several: refused with one line in valid UTF-8,
 * or accepted, and then written again to a text that reads as the same. The checksum is put right
 * first, so that what stands behind it is reached.
 */
#include "base/text.h"
#include "fuzz.h"
#include "records/internal.h"

#include <stdlib.h>
#include <string.h>

static void require(int condition) {
  if (!condition) abort();
}

static char *write_record(const nsai_record *record, size_t *size) {
  nsai_writer writer = nsai_writer_open(NULL, 0);
  nsai_record_write(record, &writer);
  char *text = malloc(writer.used + 1);
  require(text != NULL);
  writer = nsai_writer_open(text, writer.used + 1);
  nsai_record_write(record, &writer);
  *size = writer.used;
  return text;
}

static void write_again(const nsai_record *record) {
  nsai_record *again;
  size_t size, other_size;
  require(nsai_record_check(record) == NSA_OK);
  char *text = write_record(record, &size);
  require(nsai_record_parse(text, size, &again) == NSA_OK);
  char *other = write_record(again, &other_size);
  require(size == other_size && memcmp(text, other, size) == 0);
  nsai_record_destroy(again);
  free(text);
  free(other);
}

static void check_fault(const char *fault) {
  require(fault[0] && !strchr(fault, '\n') && nsai_utf8_valid(fault, strlen(fault)));
}

static void try_list(const char *text, size_t size) {
  nsai_record_document document;
  char fault[NSAI_RECORD_FAULT_CHARS] = "";
  if (nsai_record_read(text, size, true, &document, fault) != NSA_OK) {
    check_fault(fault);
    require(document.count == 0);
    return;
  }
  for (int32_t i = 0; i < document.count; i++) write_again(document.records[i]);
  nsai_record_document_fini(&document);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char digits[NSAI_DIGEST_CHARS], fault[NSAI_RECORD_FAULT_CHARS] = "";
  nsai_record *record;
  if (nsai_record_decode((const char *)data, size, &record, fault) != NSA_OK) check_fault(fault);
  nsai_record_destroy(record);
  nsai_writer writer;
  char *sealed = malloc(size + NSAI_RECORD_CHECKSUM_BYTES + 2);
  if (!sealed) return 0;
  /* In place of a closing line, if there is one. */
  while (nsai_record_check_seal((const char *)data, size) != NSAI_SEAL_MISSING) {
    if (data[size - 1] == '\n') size--;
    while (size && data[size - 1] != '\n') size--;
  }
  if (size) memcpy(sealed, data, size);
  if (size && sealed[size - 1] != '\n') sealed[size++] = '\n';
  nsai_digest_hex(sealed, size, digits);
  writer = nsai_writer_open(sealed + size, NSAI_RECORD_CHECKSUM_BYTES + 1);
  nsai_write(&writer, NSAI_RECORD_CHECKSUM "%s\n", digits);
  size += writer.used;
  if (nsai_record_decode(sealed, size, &record, fault) == NSA_OK)
    write_again(record);
  else
    check_fault(fault);
  nsai_record_destroy(record);
  try_list(sealed, size);
  free(sealed);
  return 0;
}

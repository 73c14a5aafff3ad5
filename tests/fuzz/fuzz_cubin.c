/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any bytes as a cubin: what is found in its code stands there, and a hostile section table does not
 * multiply the work. The input as the code of a well-formed cubin gives what a search of it gives.
 * The check of imported cubins takes only bytes that have the kernel's name, and for one architecture;
 * it is also tried on a good cubin in which the input has changed some bytes.
 */
#include "../support/elf_cubin.h"
#include "cache/cubin.h"
#include "compile/sass_check.h"
#include "driver/arch.h"
#include "fuzz.h"

#include <elf.h>

enum { INSTRUCTION_BYTES = 16, MAX_CODE = 4096, MUCH_CODE = 4 << 20 };

static bool is_lost(const uint8_t *x) { return x[0] == 0xae && (x[1] & 15) == 0xd && !(x[8] & 63); }

static int64_t search(const uint8_t *code, size_t size, size_t step) {
  for (size_t at = 0; at + INSTRUCTION_BYTES <= size; at += step)
    if (is_lost(code + at)) return (int64_t)at;
  return -1;
}

static void check_any(const uint8_t *data, size_t size) {
  int64_t at = nsai_find_lost_register(data, size);
  if (at == -1) return;
  FUZZ_REQUIRE(at >= 0 && at % INSTRUCTION_BYTES == 0);
  FUZZ_REQUIRE((size_t)at + INSTRUCTION_BYTES <= size && search(data, size, 1) >= 0);
}

/* `sections` sections, all of which have the same code. */
static int64_t find_in(const uint8_t *code, size_t size, uint16_t sections) {
  size_t table = sizeof(Elf64_Ehdr), bytes = table + sections * sizeof(Elf64_Shdr);
  uint8_t *cubin = calloc(1, bytes + size);
  FUZZ_REQUIRE(cubin != NULL);
  Elf64_Ehdr header = { .e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64 },
                        .e_shoff = table,
                        .e_shentsize = sizeof(Elf64_Shdr),
                        .e_shnum = sections };
  Elf64_Shdr section = {
    .sh_type = SHT_PROGBITS, .sh_flags = SHF_EXECINSTR, .sh_offset = bytes, .sh_size = size
  };
  memcpy(cubin, &header, sizeof header);
  for (size_t i = 0; i < sections; i++)
    memcpy(cubin + table + i * sizeof section, &section, sizeof section);
  if (size) memcpy(cubin + bytes, code, size);
  int64_t found = nsai_find_lost_register(cubin, bytes + size);
  free(cubin);
  return found;
}

static const char kernel[] = "tiny";

static void check_import(const uint8_t *data, size_t size) {
  const nsai_arch *arch;
  int taken = 0;
  for (int32_t i = 0; (arch = nsai_arch_at(i)) != NULL; i++)
    taken += !nsai_cubin_check(data, size, arch->name, kernel);
  FUZZ_REQUIRE(taken <= 1);
  if (taken) FUZZ_REQUIRE(size > sizeof(Elf64_Ehdr) && memmem(data, size, kernel, sizeof kernel));
}

/* The input as pairs of a place and a value. */
static void check_changed(const uint8_t *data, size_t size) {
  uint8_t *cubin = calloc(1, CUBIN_LEAST);
  FUZZ_REQUIRE(cubin != NULL);
  cubin_write(cubin, CUBIN_LEAST, 90, true, kernel);
  FUZZ_REQUIRE(!nsai_cubin_check(cubin, CUBIN_LEAST, "sm_90a", kernel));
  for (; size >= 3; data += 3, size -= 3)
    cubin[(data[0] | (size_t)data[1] << 8) % CUBIN_LEAST] = data[2];
  check_import(cubin, CUBIN_LEAST);
  free(cubin);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  check_any(data, size);
  check_import(data, size);
  check_changed(data, size);
  if (size > MAX_CODE) size = MAX_CODE;
  FUZZ_REQUIRE(find_in(data, size, 1) == search(data, size, INSTRUCTION_BYTES));
  /* One input: this file has 8 MB. Searching it for each of its sections would take minutes. */
  if (size == 2 && !memcmp(data, "\xff\xff", 2)) {
    uint8_t *code = calloc(1, MUCH_CODE);
    FUZZ_REQUIRE(code && find_in(code, MUCH_CODE, UINT16_MAX) == -1);
    free(code);
  }
  return 0;
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * An instruction has 16 bytes. The bits of LDGSTS with a uniform register in its address (sm_90
 * to sm_120, from nvdisasm 13.5 on the output of ptxas 13.0 and 13.4 for the same text):
 *
 *   bits  0 .. 11  0xdae
 *   bits 64 .. 69  the uniform register
 */
#include "compile/sass_check.h"

#include <elf.h>
#include <string.h>

#define INSTRUCTION_BYTES 16
#define COPY_BY_UNIFORM 0xdae

static int64_t find_in_function(const unsigned char *code, uint64_t size) {
  for (uint64_t at = 0; size - at >= INSTRUCTION_BYTES; at += INSTRUCTION_BYTES) {
    const unsigned char *x = code + at;
    if ((x[0] | (x[1] & 15) << 8) == COPY_BY_UNIFORM && !(x[8] & 63)) return (int64_t)at;
  }
  return -1;
}

int64_t nsai_find_lost_register(const void *cubin, size_t size) {
  Elf64_Ehdr header;
  if (size < sizeof header) return -1;
  memcpy(&header, cubin, sizeof header);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > size ||
      (size - header.e_shoff) / sizeof(Elf64_Shdr) < header.e_shnum)
    return -1;
  /* Sections of a cubin lie apart, so that together they are no larger than the file: more of them,
   * which lie on each other, would cost up to 65535 searches of it. */
  uint64_t left = size;
  for (uint64_t i = 0; i < header.e_shnum; i++) {
    Elf64_Shdr section;
    memcpy(&section, (const char *)cubin + header.e_shoff + i * sizeof section, sizeof section);
    if (section.sh_type != SHT_PROGBITS || !(section.sh_flags & SHF_EXECINSTR) ||
        section.sh_offset > size || size - section.sh_offset < section.sh_size)
      continue;
    if (section.sh_size > left) return -1;
    left -= section.sh_size;
    int64_t at =
        find_in_function((const unsigned char *)cubin + section.sh_offset, section.sh_size);
    if (at >= 0) return at;
  }
  return -1;
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Small cubins: ELF images with one kernel whose instructions are any bytes.
 *
 *   0    header
 *   64   section table: none, .strtab, .symtab, .text
 *   320  symbol table: none, the kernel
 *   368  names: "", the kernel's
 *        code up to the end
 */
#ifndef NSA_TEST_ELF_CUBIN_H
#define NSA_TEST_ELF_CUBIN_H

#include <elf.h>
#include <stdbool.h>
#include <string.h>

#ifndef EM_CUDA
#define EM_CUDA 190
#endif

enum {
  CUBIN_SECTIONS = 4,
  CUBIN_TABLE_AT = sizeof(Elf64_Ehdr),
  CUBIN_SYMBOLS_AT = CUBIN_TABLE_AT + CUBIN_SECTIONS * sizeof(Elf64_Shdr),
  CUBIN_NAMES_AT = CUBIN_SYMBOLS_AT + 2 * sizeof(Elf64_Sym),
  CUBIN_LEAST = 512 /* bytes, with a name of at most 100 characters */
};

/* As CUDA 12 (before sm_100) or CUDA 13 writes the header. */
static inline Elf64_Ehdr cubin_header(unsigned sm, bool cuda13) {
  Elf64_Ehdr header = {
    .e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT,
                 cuda13 ? 0x41 : 0x33, cuda13 ? 8 : 7 },
    .e_type = ET_EXEC,
    .e_machine = EM_CUDA,
    .e_version = EV_CURRENT,
    .e_shoff = CUBIN_TABLE_AT,
    .e_flags = cuda13 ? 0x6000004 | sm << 8 : sm << 16 | 0x500 | sm,
    .e_ehsize = sizeof(Elf64_Ehdr),
    .e_shentsize = sizeof(Elf64_Shdr),
    .e_shnum = CUBIN_SECTIONS,
  };
  return header;
}

/* Turns `size` bytes at `out`, at least CUBIN_LEAST, into a cubin; the last ones stay as they are and
 * are its code. */
static inline void cubin_write(void *out, size_t size, unsigned sm, bool cuda13,
                               const char *entry) {
  char *bytes = out;
  const Elf64_Ehdr header = cubin_header(sm, cuda13);
  const size_t names = 1 + strlen(entry) + 1, code_at = CUBIN_NAMES_AT + names;
  const Elf64_Shdr sections[CUBIN_SECTIONS] = {
    [1] = { .sh_type = SHT_STRTAB, .sh_offset = CUBIN_NAMES_AT, .sh_size = names },
    [2] = { .sh_type = SHT_SYMTAB,
            .sh_offset = CUBIN_SYMBOLS_AT,
            .sh_size = 2 * sizeof(Elf64_Sym),
            .sh_link = 1,
            .sh_entsize = sizeof(Elf64_Sym) },
    [3] = { .sh_type = SHT_PROGBITS,
            .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
            .sh_offset = code_at,
            .sh_size = size - code_at },
  };
  const Elf64_Sym symbols[2] = { [1] = { .st_name = 1,
                                         .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                                         .st_other = 0x10, /* a kernel */
                                         .st_shndx = 3,
                                         .st_size = size - code_at } };
  memcpy(bytes, &header, sizeof header);
  memcpy(bytes + CUBIN_TABLE_AT, sections, sizeof sections);
  memcpy(bytes + CUBIN_SYMBOLS_AT, symbols, sizeof symbols);
  bytes[CUBIN_NAMES_AT] = '\0';
  memcpy(bytes + CUBIN_NAMES_AT + 1, entry, strlen(entry) + 1);
}

#endif /* NSA_TEST_ELF_CUBIN_H */

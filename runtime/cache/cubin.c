/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Where a cubin says its architecture (from the output of NVRTC 12.1, 12.9 and 13.0, and from LLVM's
 * BinaryFormat/ELF.h):
 *
 *   EI_OSABI  EI_ABIVERSION  made by                       e_flags
 *   0x33      7              CUDA 12 before sm_100         bits 0..7 sm, bit 11 "a"
 *   0x41      8              CUDA 12 from sm_100, CUDA 13  bits 8..15 sm, bit 3 "a", not set by CUDA 13
 */
#include "cache/cubin.h"

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef EM_CUDA
#define EM_CUDA 190
#endif

enum {
  OSABI_1 = 0x33,
  ABI_VERSION_1 = 7,
  SUFFIX_1 = 1 << 11,
  OSABI_2 = 0x41,
  ABI_VERSION_2 = 8,
  SM_SHIFT_2 = 8,
  SUFFIX_2 = 1 << 3,
  SM_MASK = 0xff
};

typedef struct image {
  const unsigned char *bytes;
  size_t size;
  Elf64_Ehdr header;
} image;

static bool lies_within(const image *m, uint64_t offset, uint64_t length) {
  return offset <= m->size && length <= m->size - offset;
}

static const char *check_header(image *m) {
  if (m->size < sizeof m->header) return "is no ELF file";
  memcpy(&m->header, m->bytes, sizeof m->header);
  const unsigned char *ident = m->header.e_ident;
  if (memcmp(ident, ELFMAG, SELFMAG) != 0) return "is no ELF file";
  if (ident[EI_CLASS] != ELFCLASS64 || ident[EI_DATA] != ELFDATA2LSB ||
      m->header.e_machine != EM_CUDA)
    return "is no machine code of NVIDIA's GPUs";
  if (m->header.e_shentsize != sizeof(Elf64_Shdr) ||
      !lies_within(m, m->header.e_shoff, m->header.e_shnum * (uint64_t)sizeof(Elf64_Shdr)))
    return "is a damaged ELF file";
  return NULL;
}

static const char *check_arch(const image *m, const char *arch) {
  const uint32_t flags = m->header.e_flags;
  const unsigned char abi = m->header.e_ident[EI_OSABI], version = m->header.e_ident[EI_ABIVERSION];
  uint32_t sm;
  bool marked;
  char *suffix;
  if (abi == OSABI_1 && version == ABI_VERSION_1) {
    sm = flags & SM_MASK;
    marked = flags & SUFFIX_1;
  } else if (abi == OSABI_2 && version == ABI_VERSION_2) {
    sm = flags >> SM_SHIFT_2 & SM_MASK;
    marked = flags & SUFFIX_2;
  } else {
    return "is machine code in a form that this version does not know";
  }
  if (strncmp(arch, "sm_", 3) != 0 || strtoul(arch + 3, &suffix, 10) != sm ||
      (marked && *suffix != 'a'))
    return "is machine code of another architecture than its key names";
  return NULL;
}

static Elf64_Shdr section_at(const image *m, uint32_t index) {
  Elf64_Shdr section;
  memcpy(&section, m->bytes + m->header.e_shoff + index * sizeof section, sizeof section);
  return section;
}

/* Whether the symbol's section has the symbol's instructions. */
static bool has_code(const image *m, const Elf64_Sym *symbol) {
  if (symbol->st_shndx == SHN_UNDEF || symbol->st_shndx >= m->header.e_shnum) return false;
  const Elf64_Shdr section = section_at(m, symbol->st_shndx);
  return section.sh_type == SHT_PROGBITS && section.sh_flags & SHF_EXECINSTR &&
         lies_within(m, section.sh_offset, section.sh_size) && symbol->st_size > 0 &&
         symbol->st_value <= section.sh_size &&
         symbol->st_size <= section.sh_size - symbol->st_value;
}

static bool is_entry(const image *m, const Elf64_Sym *symbol, const Elf64_Shdr *names,
                     const char *entry, size_t length) {
  return ELF64_ST_TYPE(symbol->st_info) == STT_FUNC &&
         ELF64_ST_BIND(symbol->st_info) == STB_GLOBAL && symbol->st_name < names->sh_size &&
         length <= names->sh_size - symbol->st_name &&
         !memcmp(m->bytes + names->sh_offset + symbol->st_name, entry, length) &&
         has_code(m, symbol);
}

static const char *check_entry(const image *m, const char *entry) {
  const size_t length = strlen(entry) + 1; /* the NUL is compared, too */
  for (uint32_t i = 0; i < m->header.e_shnum; i++) {
    const Elf64_Shdr table = section_at(m, i);
    if (table.sh_type != SHT_SYMTAB) continue;
    if (table.sh_link >= m->header.e_shnum || !lies_within(m, table.sh_offset, table.sh_size))
      return "is a damaged ELF file";
    const Elf64_Shdr names = section_at(m, table.sh_link);
    if (!lies_within(m, names.sh_offset, names.sh_size)) return "is a damaged ELF file";
    for (uint64_t at = 0; table.sh_size - at >= sizeof(Elf64_Sym); at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      memcpy(&symbol, m->bytes + table.sh_offset + at, sizeof symbol);
      if (is_entry(m, &symbol, &names, entry, length)) return NULL;
    }
    break; /* A file has one symbol table. Reading more would let a small file cost much time. */
  }
  return "has no code for the kernel that its launch data names";
}

const char *nsai_cubin_check(const void *cubin, size_t size, const char *arch, const char *entry) {
  image m = { .bytes = cubin, .size = size };
  const char *problem = check_header(&m);
  if (!problem) problem = check_arch(&m, arch);
  return problem ? problem : check_entry(&m, entry);
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The check of machine code that comes from another machine: good cubins of both forms, and every way
 * in which bytes are not the kernel that an entry promises. tests/cli/cache.bats imports real ones.
 */
#include "../cache_fixture.h"

#include "cache/cubin.h"
#include "driver/arch.h"

#include <stdlib.h>

enum { SIZE = 600 };

static const char entry[] = "attend_window_sm80";

#define FLAGS_AT offsetof(Elf64_Ehdr, e_flags)
#define SECTION_AT(i, field)                                                                       \
  (CUBIN_TABLE_AT + (i) * sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, field))
#define SYMBOL_AT(field) (CUBIN_SYMBOLS_AT + sizeof(Elf64_Sym) + offsetof(Elf64_Sym, field))

/* In memory of exactly this size, so that ASan sees a byte read beyond it. */
static const char *check(const void *bytes, size_t size, const char *arch, const char *name) {
  void *exact = malloc(size ? size : 1);
  assert_non_null(exact);
  memcpy(exact, bytes, size);
  const char *problem = nsai_cubin_check(exact, size, arch, name);
  free(exact);
  return problem;
}

static void assert_problem(const char *problem, const char *part) {
  assert_non_null(problem);
  if (!strstr(problem, part)) fail_msg("\"%s\" does not say \"%s\"", problem, part);
}

/* Every architecture that kernels are compiled for, and no other, in both forms. */
static void test_architectures(void **state) {
  char cubin[SIZE] = { 0 };
  const nsai_arch *arch, *other;
  for (int i = 0; (arch = nsai_arch_at(i)) != NULL; i++) {
    for (int cuda13 = 0; cuda13 < 2; cuda13++) {
      cubin_write(cubin, SIZE, (unsigned)(10 * arch->major + arch->minor), cuda13, entry);
      for (int k = 0; (other = nsai_arch_at(k)) != NULL; k++) {
        const char *problem = check(cubin, SIZE, other->name, entry);
        if (k == i)
          assert_null(problem);
        else
          assert_problem(problem, "another architecture");
      }
    }
  }
}

/* A cubin with instructions of exactly one architecture does not run on those that follow. */
static void test_suffix(void **state) {
  static const struct {
    bool cuda13;
    uint32_t bit;
  } forms[] = { { false, 1 << 11 }, { true, 1 << 3 } };
  for (int i = 0; i < 2; i++) {
    char cubin[SIZE] = { 0 };
    cubin_write(cubin, SIZE, 90, forms[i].cuda13, entry);
    uint32_t flags;
    memcpy(&flags, cubin + FLAGS_AT, sizeof flags);
    flags |= forms[i].bit;
    memcpy(cubin + FLAGS_AT, &flags, sizeof flags);
    assert_null(check(cubin, SIZE, "sm_90a", entry));
    assert_problem(check(cubin, SIZE, "sm_90", entry), "another architecture");
  }
}

static void test_entry(void **state) {
  char cubin[SIZE] = { 0 };
  cubin_write(cubin, SIZE, 90, true, entry);
  assert_problem(check(cubin, SIZE, "sm_90a", "attend_window_sm90"), "no code for the kernel");
  assert_problem(check(cubin, SIZE, "sm_90a", "attend_window_sm8"), "no code for the kernel");
  assert_problem(check(cubin, SIZE, "sm_90a", "attend_window_sm80x"), "no code for the kernel");
  assert_problem(check(cubin, SIZE, "sm_90a", ""), "no code for the kernel");
}

typedef struct damage {
  const char *what;
  size_t at, bytes;
  uint64_t value;
  const char *problem;
} damage;

static void test_damage(void **state) {
  static const damage damages[] = {
    { "text", 0, 1, 'x', "no ELF file" },
    { "32 bits", EI_CLASS, 1, ELFCLASS32, "no machine code of NVIDIA" },
    { "big-endian", EI_DATA, 1, ELFDATA2MSB, "no machine code of NVIDIA" },
    { "x86", offsetof(Elf64_Ehdr, e_machine), 2, EM_X86_64, "no machine code of NVIDIA" },
    { "unknown ABI", EI_OSABI, 1, 0, "does not know" },
    { "unknown version", EI_ABIVERSION, 1, 9, "does not know" },
    { "table beyond the file", offsetof(Elf64_Ehdr, e_shoff), 8, SIZE - 100, "damaged" },
    { "table far away", offsetof(Elf64_Ehdr, e_shoff), 8, UINT64_MAX, "damaged" },
    { "many sections", offsetof(Elf64_Ehdr, e_shnum), 2, UINT16_MAX, "damaged" },
    { "no section", offsetof(Elf64_Ehdr, e_shnum), 2, 0, "no code" },
    { "other sections", offsetof(Elf64_Ehdr, e_shentsize), 2, 32, "damaged" },
    { "symbols beyond", SECTION_AT(2, sh_size), 8, SIZE, "damaged" },
    { "symbols far away", SECTION_AT(2, sh_offset), 8, UINT64_MAX - 8, "damaged" },
    { "no symbols", SECTION_AT(2, sh_size), 8, 23, "no code" },
    { "names beyond", SECTION_AT(1, sh_size), 8, SIZE, "damaged" },
    { "names cut", SECTION_AT(1, sh_size), 8, sizeof entry - 1, "no code" },
    { "names of no section", SECTION_AT(2, sh_link), 4, 99, "damaged" },
    { "a name beyond", SYMBOL_AT(st_name), 4, UINT32_MAX, "no code" },
    { "data", SYMBOL_AT(st_info), 1, ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), "no code" },
    { "local", SYMBOL_AT(st_info), 1, ELF64_ST_INFO(STB_LOCAL, STT_FUNC), "no code" },
    { "undefined", SYMBOL_AT(st_shndx), 2, SHN_UNDEF, "no code" },
    { "absolute", SYMBOL_AT(st_shndx), 2, SHN_ABS, "no code" },
    { "in the names", SYMBOL_AT(st_shndx), 2, 1, "no code" },
    { "no instructions", SYMBOL_AT(st_size), 8, 0, "no code" },
    { "beyond the code", SYMBOL_AT(st_value), 8, 1, "no code" },
    { "code beyond the file", SECTION_AT(3, sh_size), 8, SIZE, "no code" },
    { "not executable", SECTION_AT(3, sh_flags), 8, SHF_ALLOC, "no code" },
  };
  for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
    const damage *d = &damages[i];
    char cubin[SIZE] = { 0 };
    cubin_write(cubin, SIZE, 90, true, entry);
    memcpy(cubin + d->at, &d->value, d->bytes); /* little-endian, as GPUs and their hosts are */
    const char *problem = check(cubin, SIZE, "sm_90a", entry);
    if (!problem) fail_msg("%s: taken", d->what);
    assert_problem(problem, d->problem);
  }
  char cubin[SIZE] = { 0 };
  cubin_write(cubin, SIZE, 90, true, entry);
  for (size_t size = 0; size < SIZE; size++) assert_non_null(check(cubin, size, "sm_90a", entry));
}

/* ---- entries of the cache ---- */

/* Encodes an entry of the image and decodes it again. */
static const char *check_entry(const nsai_kernel_key *key, const nsai_kernel_image *image) {
  unsigned char *data;
  size_t size;
  nsai_cache_entry decoded;
  assert_int_equal(nsai_cache_entry_encode(key, image, 0, &data, &size), NSA_OK);
  assert_null(nsai_cache_entry_decode(data, size, &decoded));
  const char *problem = nsai_cache_entry_check_code(&decoded);
  free(data);
  return problem;
}

/* The names beside the key are what a launch uses, so they must be the key's. */
static void test_names_of_entry(void **state) {
  nsai_kernel_key key;
  nsai_kernel_image image;
  fixture_key(1, FIXTURE_COMPILER, &key);
  fixture_image(1, SIZE, &image);
  assert_null(check_entry(&key, &image));
  strcpy(key.arch, "sm_90");
  assert_problem(check_entry(&key, &image), "than its key");
  strcpy(key.arch, "sm_90a");
  strcpy(key.entry, "attend_window_sm8");
  assert_problem(check_entry(&key, &image), "than its key");
  strcpy(key.entry, FIXTURE_ENTRY);
  const size_t length = key.length;
  for (key.length = 0; key.length < length; key.length++) {
    /* A cut key is read within its bounds. It has the entry's name once it has the whole field. */
    const bool whole = key.length >= (size_t)(strstr(key.text, "templates ") - key.text);
    assert_true(whole == !check_entry(&key, &image));
  }
  nsai_kernel_image_fini(&image);
  nsai_kernel_key_fini(&key);
}

/* Import refuses what this machine's own compiler could store. */
static void test_import(void **state) {
  fixture *f = *state;
  nsai_kernel_key key;
  nsai_kernel_image image;
  unsigned char *data;
  size_t size;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  fixture_key(1, FIXTURE_COMPILER, &key);
  fixture_image(1, SIZE, &image);
  for (int good = 0; good < 2; good++) {
    cubin_write(image.cubin, SIZE, good ? 90 : 80, true, FIXTURE_ENTRY);
    assert_int_equal(nsai_cache_entry_encode(&key, &image, 0, &data, &size), NSA_OK);
    assert_int_equal(nsai_cache_import(cache, &(nsai_cache_bytes){ data, size }, 1),
                     good ? NSA_OK : NSA_E_CACHE);
    if (!good) assert_non_null(strstr(nsa_last_error(), "another architecture"));
    assert_int_equal(fixture_count(f, ""), good);
    free(data);
  }
  nsai_cache_close(cache);
  nsai_kernel_image_fini(&image);
  nsai_kernel_key_fini(&key);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_architectures),  cmocka_unit_test(test_suffix),
    cmocka_unit_test(test_entry),          cmocka_unit_test(test_damage),
    cmocka_unit_test(test_names_of_entry), FIXTURE_TEST(test_import),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

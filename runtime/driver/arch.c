/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "driver/arch.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

/* Shared memory: the CUDA programming guide's table of technical specifications, "maximum amount of
 * shared memory per thread block". Multiprocessors: an RTX A400 has 6, a Jetson Orin Nano of 4 GB 4;
 * a seventh of an A100 or H100 PCIe 14, which is taken for the least of the others. */
#define ARCH_LIST(X)                                                                               \
  X("sm_80", 8, 0, 163, 14)                                                                        \
  X("sm_86", 8, 6, 99, 6)                                                                          \
  X("sm_87", 8, 7, 163, 4)                                                                         \
  X("sm_89", 8, 9, 99, 14)                                                                         \
  X("sm_90a", 9, 0, 227, 14)                                                                       \
  X("sm_100a", 10, 0, 227, 14)                                                                     \
  X("sm_103a", 10, 3, 227, 14)                                                                     \
  X("sm_120", 12, 0, 99, 14)

static const nsai_arch archs[] = {
#define ARCH_ENTRY(name, major, minor, shared_kib, fewest_sms)                                     \
  { name, major, minor, (shared_kib)*1024, fewest_sms },
  ARCH_LIST(ARCH_ENTRY)
#undef ARCH_ENTRY
};
enum { ARCH_COUNT = sizeof archs / sizeof archs[0] };

const char *nsai_arch_names(void) {
#define ARCH_NAME(name, major, minor, shared_kib, fewest_sms) ", " name
  return &ARCH_LIST(ARCH_NAME)[2]; /* behind the first comma */
#undef ARCH_NAME
}

const nsai_arch *nsai_arch_at(int32_t index) {
  return index >= 0 && index < ARCH_COUNT ? &archs[index] : NULL;
}

const nsai_arch *nsai_arch_find(const char *name) {
  for (int32_t i = 0; i < ARCH_COUNT; i++)
    if (strcmp(archs[i].name, name) == 0) return &archs[i];
  return NULL;
}

/* The GPUs that people name. */
static const struct {
  const char *part, *arch;
} gpus[] = {
  { "h100", "sm_90a" },  { "h200", "sm_90a" },       { "gh200", "sm_90a" }, { "hopper", "sm_90a" },
  { "a100", "sm_80" },   { "a800", "sm_80" },        { "ampere", "sm_80" }, { "a10", "sm_86" },
  { "a40", "sm_86" },    { "a6000", "sm_86" },       { "3090", "sm_86" },   { "orin", "sm_87" },
  { "l40", "sm_89" },    { "l4", "sm_89" },          { "ada", "sm_89" },    { "4090", "sm_89" },
  { "b300", "sm_103a" }, { "gb300", "sm_103a" },     { "b200", "sm_100a" }, { "gb200", "sm_100a" },
  { "b100", "sm_100a" }, { "blackwell", "sm_100a" }, { "5090", "sm_120" },  { "5080", "sm_120" },
};

const char *nsai_arch_meant(const char *name) {
  const char *digits = !strncasecmp(name, "sm_", 3)        ? name + 3
                       : !strncasecmp(name, "compute_", 8) ? name + 8
                       : !strncasecmp(name, "sm", 2)       ? name + 2
                                                           : name;
  size_t length = strspn(digits, "0123456789");
  for (int32_t i = 0; length && i < ARCH_COUNT; i++)
    if (!strncmp(archs[i].name + 3, digits, length) &&
        !isdigit((unsigned char)archs[i].name[3 + length]))
      return archs[i].name;
  for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++)
    if (strcasestr(name, gpus[i].part)) return gpus[i].arch;
  return NULL;
}

const nsai_arch *nsai_arch_of_capability(int32_t major, int32_t minor) {
  const nsai_arch *best = NULL;
  for (int32_t i = 0; i < ARCH_COUNT; i++) {
    const nsai_arch *arch = &archs[i];
    if (arch->major != major || arch->minor > minor) continue;
    if (arch->minor == minor) return arch;
    /* A cubin with the suffix runs on its own architecture only. */
    if (!strchr(arch->name, 'a') && (!best || arch->minor > best->minor)) best = arch;
  }
  return best;
}

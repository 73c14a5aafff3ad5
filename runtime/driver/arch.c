/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "driver/arch.h"

#include "base/error.h"
#include "base/text.h"

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

/* ---- what was meant ---- */

/* Names of GPUs and of their generations, as plain_name leaves them. The first that matches
 * counts. */
static const struct {
  const char *glob, *arch;
} products[] = {
  { "a100*", "sm_80" },          { "a800*", "sm_80" },       { "a30*", "sm_80" },
  { "ampere", "sm_80" },         { "a10*", "sm_86" },        { "a16*", "sm_86" },
  { "a40*", "sm_86" },           { "a5000*", "sm_86" },      { "a6000*", "sm_86" },
  { "30?0*", "sm_86" },          { "*orin*", "sm_87" },      { "l4*", "sm_89" },
  { "l20*", "sm_89" },           { "40?0*", "sm_89" },       { "ada", "sm_89" },
  { "*adageneration", "sm_89" }, { "h100*", "sm_90a" },      { "h200*", "sm_90a" },
  { "h800*", "sm_90a" },         { "h20*", "sm_90a" },       { "gh200*", "sm_90a" },
  { "hopper", "sm_90a" },        { "b100*", "sm_100a" },     { "b200*", "sm_100a" },
  { "gb200*", "sm_100a" },       { "blackwell", "sm_100a" }, { "b300*", "sm_103a" },
  { "gb300*", "sm_103a" },       { "50?0*", "sm_120" },      { "pro6000*", "sm_120" },
};

/* Copies `text` in small letters, without spaces, hyphens and underscores, and without what stands
 * before the name of a GPU or the number of an architecture. A text that is too long is cut: it
 * names nothing. */
static void plain_name(const char *text, char *out, size_t size) {
  static const char *const before[] = { "nvidia", "geforce", "tesla", "quadro", "rtx",
                                        "sm",     "compute", "cc",    NULL };
  size_t used = 0;
  for (; *text && used + 1 < size; text++)
    if (!strchr(" -_", *text))
      out[used++] = *text >= 'A' && *text <= 'Z' ? (char)(*text - 'A' + 'a') : *text;
  out[used] = '\0';
  for (int i = 0; before[i]; i++) {
    size_t length = strlen(before[i]);
    if (strncmp(out, before[i], length) == 0) memmove(out, out + length, used - length + 1);
    used = strlen(out);
  }
}

/* Whether `name` is a compute capability, as 90, 90a, 9.0 or 100; *out is the architecture that runs
 * there, or NULL. */
static bool read_capability(const char *name, const nsai_arch **out) {
  size_t digits = strspn(name, "0123456789");
  const char *end = name + digits;
  int32_t number = 0;
  for (size_t i = 0; i < digits && i < 4; i++) number = number * 10 + (name[i] - '0');
  if (*end == '.' && digits && digits <= 2 && end[1] >= '0' && end[1] <= '9') {
    number = number * 10 + (end[1] - '0');
    end += 2;
  } else if (digits < 2 || digits > 3) {
    return false;
  }
  if (*end == 'a' || *end == 'f') end++;
  *out = nsai_arch_of_capability(number / 10, number % 10);
  return !*end;
}

const char *nsai_arch_meant(const char *text) {
  char name[48]; /* longer than a GPU's name */
  plain_name(text, name, sizeof name);
  const nsai_arch *found = NULL;
  if (read_capability(name, &found)) return found ? found->name : NULL;
  for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
    if (nsai_glob_match(products[i].glob, name)) return products[i].arch;
  const char *meant = NULL;
  uint32_t least = UINT32_MAX;
  for (int32_t i = 0; i < ARCH_COUNT; i++)
    if (nsai_is_nearer(text, archs[i].name, &least)) meant = archs[i].name;
  return meant;
}

nsa_status nsai_arch_demand(const char *name, const nsai_arch **out) {
  static const char *const gpus[] = { "gpu", "cuda", "cuda:0", "auto", "native", NULL };
  *out = nsai_arch_find(name);
  if (*out) return NSA_OK;
  const char *meant = nsai_arch_meant(name);
  nsai_excerpt_text shown;
  nsai_excerpt(name, strlen(name), &shown);
  if (meant)
    return nsai_fail(NSA_E_UNSUPPORTED,
                     "unknown architecture \"%s\"; did you mean \"%s\"? This library has kernels "
                     "for %s.",
                     shown.text, meant, nsai_arch_names());
  if (strcasecmp(name, "cpu") == 0)
    return nsai_fail(
        NSA_E_UNSUPPORTED,
        "unknown architecture \"%s\": the CPU device has none; did you mean the device "
        "cpu (runtime.device)? This library has kernels for %s.",
        shown.text, nsai_arch_names());
  for (int i = 0; gpus[i]; i++)
    if (strcasecmp(name, gpus[i]) == 0)
      return nsai_fail(NSA_E_UNSUPPORTED,
                       "unknown architecture \"%s\": without one, the GPU's own is taken. This "
                       "library has kernels for %s.",
                       shown.text, nsai_arch_names());
  return nsai_fail(NSA_E_UNSUPPORTED,
                   "unknown architecture \"%s\": this library has kernels for %s.", shown.text,
                   nsai_arch_names());
}

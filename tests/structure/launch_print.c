/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "launch_print.h"

#include "compile/templates.h"
#include "machine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- buffers ---- */

#define MAX_BUFFERS 96
#define FIRST_ADDRESS UINT64_C(0x5ab0000000000000) /* implausible as a pair of integers or floats */
#define ADDRESS_STEP (BUFFER_BYTES + 1)

static char buffer_names[MAX_BUFFERS][24];
static int buffer_count;

void *buffer_new(const char *name) {
  if (buffer_count == MAX_BUFFERS) abort();
  snprintf(buffer_names[buffer_count], sizeof *buffer_names, "%s", name);
  return (void *)(uintptr_t)(FIRST_ADDRESS + ADDRESS_STEP * (uint64_t)buffer_count++);
}

const char *buffer_name(const void *address) {
  return buffer_names[((uintptr_t)address - FIRST_ADDRESS) / ADDRESS_STEP];
}

void buffers_forget(void) { buffer_count = 0; }

/* Prints "name" or "name+offset"; false: not an address of a buffer. */
static bool print_address(uint64_t value) {
  if (value < FIRST_ADDRESS) return false;
  uint64_t index = (value - FIRST_ADDRESS) / ADDRESS_STEP,
           offset = (value - FIRST_ADDRESS) % ADDRESS_STEP;
  if (index >= (uint64_t)buffer_count) return false;
  printf("%s+%llu", buffer_names[index], (unsigned long long)offset);
  return true;
}

/* ---- sizes of kernel parameters ---- */

static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The bytes of a parameter struct, from NSAI_SIZE_IS in a header that host and device share; 0:
 * none. */
static int size_of_type(const char *name, size_t length) {
  char text[96];
  snprintf(text, sizeof text, "NSAI_SIZE_IS(%.*s, ", (int)length, name);
  for (size_t i = 0; i < nsai_embedded_template_count; i++) {
    const char *at = strstr(nsai_embedded_templates[i].text, text);
    if (at) return atoi(at + strlen(text));
  }
  return 0;
}

/* The size of the first type named in a declaration that ends with `end`, or of the last one: of
 * two, the second is for runs over a cache. Follows aliases. */
static int size_of_declared(const char *at, char end, bool last) {
  int size = 0;
  for (size_t length; *at && *at != end; at += length) {
    for (length = 0; in_word(at[length]);) length++;
    int found = length ? size_of_type(at, length) : 0;
    if (found && (last || !size)) size = found;
    char alias[96];
    snprintf(alias, sizeof alias, "using %.*s =", (int)length, at);
    for (size_t i = 0; length && !size && i < nsai_embedded_template_count; i++) {
      const char *text = strstr(nsai_embedded_templates[i].text, alias);
      if (text) size = size_of_declared(text + strlen(alias), ';', last);
    }
    if (!length) length = 1;
  }
  return size;
}

static int size_of_params(const char *entry, bool cached) {
  static const char qualifiers[] = "const __grid_constant__";
  size_t length = strlen(entry);
  for (size_t i = 0; i < nsai_embedded_template_count; i++) {
    const char *text = nsai_embedded_templates[i].text;
    for (const char *at = text; (at = strstr(at, entry)) != NULL; at += length) {
      const char *in = at + length;
      if ((at > text && in_word(at[-1])) || *in++ != '(') continue;
      while (isspace((unsigned char)*in)) in++;
      if (strncmp(in, qualifiers, sizeof qualifiers - 1) != 0) continue;
      return size_of_declared(in + sizeof qualifiers - 1, ')', cached);
    }
  }
  return 0;
}

/* ---- launches ---- */

bool print_cached;

static void print_matrix(const char *name, const fake_matrix *m) {
  printf("    %s ", name);
  if (!print_address((uintptr_t)m->data)) printf("?");
  printf(" [%llu, %llu]%s leading %lld batch %d stride %lld type %d\n", (unsigned long long)m->rows,
         (unsigned long long)m->columns, m->transposed ? "^T" : "", (long long)m->leading, m->batch,
         (long long)m->stride, m->type);
}

static void print_product(const fake_product *p) {
  printf("    alpha %g beta %g workspace ", (double)p->alpha, (double)p->beta);
  if (!print_address((uintptr_t)p->workspace)) printf("?");
  printf(" of %llu bytes\n", (unsigned long long)p->workspace_bytes);
  print_matrix("a", &p->a);
  print_matrix("b", &p->b);
  print_matrix("c", &p->c);
  print_matrix("d", &p->d);
}

double print_launch(const fake_cuda_launch *l, const void *params) {
  if (!params) {
    printf("  %s\n", l->name);
    print_product(&machine_record()->product);
    return 1;
  }
  int size = size_of_params(l->name, print_cached);
  printf("  %s grid %u x %u, %u threads, %u bytes shared%s, %d bytes of parameters\n", l->name,
         l->grid_x, l->grid_y, l->threads, l->shared_bytes, l->overlaps ? ", overlaps" : "", size);
  for (int at = 0; at < size; at += 8) {
    uint64_t word = 0;
    memcpy(&word, (const char *)params + at, (size_t)(size - at < 8 ? size - at : 8));
    if (!word) continue;
    printf("    %d ", at);
    if (!print_address(word)) printf("0x%llx", (unsigned long long)word);
    printf("\n");
  }
  return 1;
}

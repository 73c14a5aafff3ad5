/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "driver/build_id.h"

#include "base/digest.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A note segment has a few dozen bytes; a larger one than this is not read. */
#define NOTE_BYTES_MAX 65536

/* Real libraries have about a dozen program headers. */
#define PROGRAM_HEADERS_MAX 64

static size_t align4(size_t n) { return (n + 3) & ~(size_t)3; }

bool nsai_build_id_in_notes(const unsigned char *notes, size_t size, char id[NSAI_BUILD_ID_CHARS]) {
  size_t at = 0;
  while (size - at >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    memcpy(&note, notes + at, sizeof note);
    at += sizeof note;
    if (note.n_namesz > size - at || align4(note.n_namesz) > size - at) return false;
    const unsigned char *name = notes + at;
    at += align4(note.n_namesz);
    if (note.n_descsz > size - at) return false;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(name, "GNU", 4) == 0 &&
        note.n_descsz > 0 && note.n_descsz <= (NSAI_BUILD_ID_CHARS - 1) / 2) {
      static const char digits[] = "0123456789abcdef";
      for (size_t i = 0; i < note.n_descsz; i++) {
        id[2 * i] = digits[notes[at + i] >> 4];
        id[2 * i + 1] = digits[notes[at + i] & 15];
      }
      id[2 * note.n_descsz] = '\0';
      return true;
    }
    if (align4(note.n_descsz) > size - at) return false;
    at += align4(note.n_descsz);
  }
  return false;
}

static bool read_at(int fd, void *data, size_t size, uint64_t offset) {
  return offset <= INT64_MAX && pread(fd, data, size, (off_t)offset) == (ssize_t)size;
}

static bool read_notes(int fd, const ElfW(Phdr) * segment, char id[NSAI_BUILD_ID_CHARS]) {
  unsigned char notes[1024]; /* the build-id's segment holds 36 to 100 bytes */
  size_t size = segment->p_filesz < sizeof notes ? segment->p_filesz : sizeof notes;
  return segment->p_filesz <= NOTE_BYTES_MAX && read_at(fd, notes, size, segment->p_offset) &&
         nsai_build_id_in_notes(notes, size, id);
}

bool nsai_build_id_of_file(const char *path, char id[NSAI_BUILD_ID_CHARS]) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return false;
  bool found = false;
  struct stat st;
  ElfW(Ehdr) header;
  ElfW(Phdr) segments[PROGRAM_HEADERS_MAX];
  if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && read_at(fd, &header, sizeof header, 0) &&
      memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
      header.e_ident[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) &&
      header.e_phentsize == sizeof segments[0] && header.e_phnum <= PROGRAM_HEADERS_MAX &&
      read_at(fd, segments, header.e_phnum * sizeof segments[0], header.e_phoff)) {
    for (int i = 0; i < header.e_phnum && !found; i++)
      if (segments[i].p_type == PT_NOTE) found = read_notes(fd, &segments[i], id);
  }
  close(fd);
  return found;
}

bool nsai_build_sample_of_file(const char *path, char id[NSAI_BUILD_ID_CHARS]) {
  enum { SAMPLE_BYTES = 16384 };
  unsigned char sample[SAMPLE_BYTES];
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return false;
  struct stat st;
  nsai_digest_state digest;
  bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= SAMPLE_BYTES;
  nsai_digest_begin(&digest);
  if (good) {
    uint64_t size = (uint64_t)st.st_size;
    nsai_digest_field(&digest, "size", &size, sizeof size);
    good = read_at(fd, sample, sizeof sample, 0);
    if (good) nsai_digest_field(&digest, "head", sample, sizeof sample);
    good = good && read_at(fd, sample, sizeof sample, size - sizeof sample);
    if (good) nsai_digest_field(&digest, "tail", sample, sizeof sample);
  }
  close(fd);
  if (good) nsai_digest_end(&digest, id);
  return good;
}

typedef struct loaded_query {
  const struct link_map *map;
  char *id;
} loaded_query;

static int match_loaded(struct dl_phdr_info *info, size_t size, void *user) {
  (void)size;
  const loaded_query *query = user;
  if (info->dlpi_addr != query->map->l_addr || strcmp(info->dlpi_name, query->map->l_name) != 0)
    return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    if (segment->p_type != PT_NOTE || segment->p_memsz > NOTE_BYTES_MAX) continue;
    const unsigned char *notes =
        (const unsigned char *)(uintptr_t)(info->dlpi_addr + segment->p_vaddr);
    if (nsai_build_id_in_notes(notes, segment->p_memsz, query->id)) return 1;
  }
  return -1; /* the library was found but has no build-id: stop looking */
}

bool nsai_build_id_of_loaded(void *handle, char id[NSAI_BUILD_ID_CHARS]) {
  loaded_query query = { NULL, id };
  if (dlinfo(handle, RTLD_DI_LINKMAP, &query.map) != 0) return false;
  return dl_iterate_phdr(match_loaded, &query) == 1;
}

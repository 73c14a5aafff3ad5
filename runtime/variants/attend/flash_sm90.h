/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the rows over attend/mainloop_sm90.cuh share: their tiles, their legality, and the part of
 * their kernel spec that does not depend on which keys a query sees.
 */
#ifndef NSAI_VARIANTS_ATTEND_FLASH_SM90_H
#define NSAI_VARIANTS_ATTEND_FLASH_SM90_H

#include "plan/spec.h"

extern const nsai_space nsai_flash_sm90_space;
extern const nsai_space nsai_flash_sm90_compressed_space; /* of compressed keys */

#define NSAI_FLASH_SM90_RANGES                                                                     \
  {                                                                                                \
    { NSAI_TILE_ROWS, { 128, 192 }, "two warpgroups with 240 registers, or three with 160" },      \
        { NSAI_TILE_KEYS,                                                                          \
          { 64, 80, 96, 112, 128 },                                                                \
          "waits of a tile against waste at its edges" },                                          \
        { NSAI_TILE_STAGES, { 2, 3, 4 }, "how far the producer runs ahead" },                      \
  }

/* Legal for packed tensors and for caches. */
void nsai_flash_sm90_legal(const nsai_problem *problem, const nsai_target *target,
                           nsai_reasons *reasons);
bool nsai_flash_sm90_sensible(const nsai_problem *problem, const nsai_target *target);
void nsai_flash_sm90_specify(const nsai_request *request, const char *entry,
                             nsai_kernel_spec *spec);

#endif /* NSAI_VARIANTS_ATTEND_FLASH_SM90_H */

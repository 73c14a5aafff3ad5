/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the rows over attend/mainloop_sm80.cuh share: their tiles, and the part of their kernel spec
 * that does not depend on which keys a query sees.
 */
#ifndef NSAI_VARIANTS_ATTEND_FLASH_SM80_H
#define NSAI_VARIANTS_ATTEND_FLASH_SM80_H

#include "plan/spec.h"

extern const nsai_space nsai_flash_sm80_space;

void nsai_flash_sm80_specify(const nsai_request *request, const char *entry,
                             nsai_kernel_spec *spec);

#endif /* NSAI_VARIANTS_ATTEND_FLASH_SM80_H */

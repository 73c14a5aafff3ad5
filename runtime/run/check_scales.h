/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The scales of a cache in NSA_E4M3.
 */
#ifndef NSAI_RUN_CHECK_SCALES_H
#define NSAI_RUN_CHECK_SCALES_H

#include "run/check_run.h"

/* Checks the scales of `io`: their shapes, and that each belongs to something that the plan's problem
 * has in codes. On the CPU device, which can read them, also that they are positive and finite. */
nsa_status nsai_check_scales(const nsai_check *check, const nsa_io *io);

#endif /* NSAI_RUN_CHECK_SCALES_H */

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the rows of the compressed branch share.
 */
#ifndef NSAI_VARIANTS_ATTEND_COMPRESSED_H
#define NSAI_VARIANTS_ATTEND_COMPRESSED_H

#include "plan/spec.h"
#include "run/params.h"

/* Adds l and d, from which the kernel finds the compressed keys of a row. */
void nsai_compressed_specify(const nsai_problem *problem, nsai_kernel_spec *spec);

/* Adds the order of tiles of a plan over ranks, whose runs have several pieces:
 * attend/mainloop_sm90_tiles.cuh. Without it heads come one after the other. */
void nsai_tile_order_add(const nsai_problem *problem, nsai_kernel_spec *spec);

NsaiAttend nsai_compressed_params(const nsai_run *run, const nsai_kernel *kernel);

/* The whole stage by its first kernel. */
nsa_status nsai_compressed_enqueue(const nsai_run *run, const nsai_form *form,
                                   const nsai_span *span);

#endif /* NSAI_VARIANTS_ATTEND_COMPRESSED_H */

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Parameters of the kernels of decode. Grids follow from the shapes of tensors alone; lengths
 * and page lists are read on the device, so that a captured graph serves whatever they become.
 */
#ifndef NSAI_VARIANTS_DECODE_PARAMS_H
#define NSAI_VARIANTS_DECODE_PARAMS_H

#include "run/params.h"
#include "variants/decode/split.h"

/* Whether the caller wants the importance of rows. */
bool nsai_decode_probes(const nsai_run *run);

/* All but where the rows' own buffers lie. Kernels without codes take its first member alone. */
NsaiCodedDecode nsai_decode_params(const nsai_run *run, const nsai_decode_split *split);

/* Where a buffer lies; NULL: the plan has none, and no kernel looks. */
void *nsai_decode_at(const nsai_run *run, nsai_buffer buffer);

/* A step whose tiles each go to one CTA, or to one cluster. */
nsai_decode_split nsai_decode_unsplit(const nsai_run *run, const nsai_kernel *kernel);

/* Launches a CTA, or a cluster, for each tile and KV head. `params` is the first member of an
 * NsaiCodedDecode. */
nsa_status nsai_decode_launch_items(const nsai_run *run, const nsai_kernel *kernel,
                                    const nsai_kernel_spec *spec, const NsaiDecode *params);

#endif /* NSAI_VARIANTS_DECODE_PARAMS_H */

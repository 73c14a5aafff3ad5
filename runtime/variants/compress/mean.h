/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel of phi mean, which also makes the coarse keys of a forward: means of raw rows of packed
 * tensors.
 */
#ifndef NSAI_VARIANTS_COMPRESS_MEAN_H
#define NSAI_VARIANTS_COMPRESS_MEAN_H

#include "plan/spec.h"
#include "run/params.h"

/* The blocks of which it takes means. */
typedef struct nsai_mean {
  int32_t block, stride;
  int32_t dim_v; /* 0: of K alone */
} nsai_mean;

void nsai_mean_specify(const nsai_model *model, const nsai_mean *mean, const nsai_tiles *tiles,
                       nsai_kernel_spec *spec);

/* With tiles that any model takes. */
nsai_tiles nsai_mean_tiles(void);

nsa_status nsai_mean_launch(const nsai_run *run, const nsai_kernel *kernel, const nsai_mean *mean,
                            const NsaiCompress *params);

#endif /* NSAI_VARIANTS_COMPRESS_MEAN_H */

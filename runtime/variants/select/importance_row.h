/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the rows of importance share: the kernels of probed rows and of the LSE beside their own, and
 * their launches.
 */
#ifndef NSAI_VARIANTS_SELECT_IMPORTANCE_ROW_H
#define NSAI_VARIANTS_SELECT_IMPORTANCE_ROW_H

#include "variants/select/importance.h"
#include "variants/select/normalizer.h"

/* Kernels of a row; its buffers are those of the normaliser. */
enum {
  NSAI_IMPORTANCE,
  NSAI_IMPORTANCE_PROBE,
  NSAI_IMPORTANCE_NORMALIZER,
  NSAI_IMPORTANCE_KERNELS = NSAI_IMPORTANCE_NORMALIZER + NSAI_NORMALIZER_KERNELS
};

/* Adds the reasons against all of them: the dtype, and blocks that an index ranks. */
void nsai_importance_legal(const nsai_problem *problem, nsai_reasons *reasons);

/* Whether a plan's row ever ranks blocks, or one that stands alone; it always may be asked for probed
 * rows. */
bool nsai_importance_ranks(const nsai_request *request);

/* All kernels but the first. `probe`: tiles of that of probed rows. `wgmma_rows`: as of
 * nsai_normalizer_specify(). */
void nsai_importance_specify_rest(const nsai_request *request, const nsai_tiles *probe,
                                  int32_t wgmma_rows, nsai_kernel_spec kernel[]);

void nsai_importance_workspace(const nsai_request *request, const nsai_kernel_spec kernel[],
                               nsai_form_sizes *out);
nsa_status nsai_importance_run(const nsai_run *run, const nsai_form *form, const nsai_span *span);

#endif /* NSAI_VARIANTS_SELECT_IMPORTANCE_ROW_H */

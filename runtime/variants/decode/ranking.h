/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Importance in a decode step that ranks blocks by the kernels of a prefill: select_importance or, of an
 * index, select_index_scores.
 */
#ifndef NSAI_VARIANTS_DECODE_RANKING_H
#define NSAI_VARIANTS_DECODE_RANKING_H

#include "variants/select/importance.h"

/* `probe`: of the rows that io.probe_rows names. */
void nsai_step_scores_specify(const nsai_request *request, bool probe, nsai_kernel_spec *spec);

/* Importance of the span's tokens into the workspace. `lse`: not read of an index. */
nsa_status nsai_step_scores_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                                    const nsai_split_lse *lse, const nsai_span *span);

#endif /* NSAI_VARIANTS_DECODE_RANKING_H */

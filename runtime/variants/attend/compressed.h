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

NsaiAttend nsai_compressed_params(const nsai_run *run, const nsai_kernel *kernel);

/* The whole stage by its first kernel. */
nsa_status nsai_compressed_enqueue(const nsai_run *run, const nsai_form *form,
                                   const nsai_span *span);

#endif /* NSAI_VARIANTS_ATTEND_COMPRESSED_H */

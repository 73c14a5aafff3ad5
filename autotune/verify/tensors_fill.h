/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#ifndef NSAI_VERIFY_TENSORS_FILL_H
#define NSAI_VERIFY_TENSORS_FILL_H

#include "verify/tensors.h"

#define NSAI_VERIFY_FLOAT_FILL 0xff /* NaN in bf16, fp16 and f32 */

/* Writes the contents of all inputs into their host images. `probes`: rows of
 * NSAI_VERIFY_PROBE_ROWS. */
void nsai_verify_tensors_fill(nsai_verify_tensors *data, int threads, const int64_t *probes);

/* Writes `rows` compressed entries of the caller into their host images, where the case has them. */
void nsai_verify_tensors_fill_entries(const nsai_verify_tensors *data, int64_t rows, int threads);

#endif /* NSAI_VERIFY_TENSORS_FILL_H */

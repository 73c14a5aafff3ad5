/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#ifndef NSAI_VERIFY_TENSORS_FILL_H
#define NSAI_VERIFY_TENSORS_FILL_H

#include "verify/tensors.h"

/* Writes the contents of all inputs into their host images. `probes`: rows of NSAI_TRIAL_PROBE_ROWS. */
void nsai_trial_data_fill(nsai_trial_data *data, int threads, const int64_t *probes);

#endif /* NSAI_VERIFY_TENSORS_FILL_H */

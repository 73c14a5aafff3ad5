/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#ifndef CHK_DATA_FILL_H
#define CHK_DATA_FILL_H

#include "trial/data.h"

/* Writes the contents of all inputs into their host images. `probes`: rows of CHK_PROBE_ROWS. */
void chk_data_fill(chk_data *data, int threads, const int64_t *probes);

#endif /* CHK_DATA_FILL_H */

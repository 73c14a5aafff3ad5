/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Times of the whole forward, of each branch alone, of phi, and of dense attention beside them,
 * through the calls that are checked.
 *
 * Two figures, because a power-capped GPU gives two: `burst` is the median of launches that each
 * follow a pause and a flushed L2; `sustained` the median of the last third of 0.3 s of launches
 * back to back.
 *
 * The roofline needs the device's figures: `--config configs/devices/h200.yaml` brings them.
 *
 * CSV columns:
 *   date            UTC, ISO 8601
 *   commit          as given by --commit
 *   device          its name
 *   problem         as --problem takes it; its fill says random or correlated
 *   part            forward, compressed, selected, window, compress, dense, sdpa_gemm
 *   burst_ms, sustained_ms
 *   tflops, gbps    useful operations and compulsory bytes over burst_ms
 *   roofline        share: the device's bound for these operations and bytes over burst_ms; empty
 *                   when the configuration's device section does not know the device
 *   r, u4, u8       overlap of adjacent selections (inputs.h)
 *   workspace       bytes
 *   plan_cold_ms, plan_warm_ms   nsa_plan_create with an empty and with a filled cache folder
 */
#ifndef CHK_TIME_CASES_H
#define CHK_TIME_CASES_H

#include "session.h"

typedef struct chk_time_options {
  const char *problem; /* one problem; NULL: the speed targets' geometry, 4k to 64k */
  const char *csv;     /* file to append to; NULL: none */
  const char *commit;  /* NULL: unknown */
  int json;
} chk_time_options;

nsa_status chk_time_cases(chk_session *session, const chk_time_options *options);

#endif /* CHK_TIME_CASES_H */

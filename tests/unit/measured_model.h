/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The model of most measurements: bf16, 64/4 heads of 128, l 32, d 16, l' 64, n 16, w 512.
 */
#ifndef MEASURED_MODEL_H
#define MEASURED_MODEL_H

#include "model/model.h"

#include <nsa/base.h>

static const nsai_model measured_model = { .heads = 64,
                                           .kv_heads = 4,
                                           .head_dim_qk = 128,
                                           .head_dim_v = 128,
                                           .dtype = NSA_BF16,
                                           .block = 32,
                                           .stride = 16,
                                           .select_block = 64,
                                           .select_count = 16,
                                           .select_init = 1,
                                           .select_local = 2,
                                           .window = 512,
                                           .phi = NSAI_PHI_MEAN,
                                           .gate = NSAI_GATE_LOGITS };

#endif /* MEASURED_MODEL_H */

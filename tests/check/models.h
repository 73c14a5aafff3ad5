/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Whole random models, for problems and for scenarios of the KV cache.
 */
#ifndef CHK_MODELS_H
#define CHK_MODELS_H

#include "model/model.h"

/* The model of a seed: every field of the configuration's section `model`, within the library's
 * limits. Three times of four a field has one of its usual values, else any that is small enough
 * for the float64 reference. */
void chk_model_random(uint64_t seed, nsai_model *out);

#endif /* CHK_MODELS_H */

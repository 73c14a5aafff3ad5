/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What attend_selected_sm90 shares with attend_selected_window_sm90, which fuses the window:
 * products by wgmma.
 */
#ifndef NSAI_VARIANTS_ATTEND_SELECTED_SM90_H
#define NSAI_VARIANTS_ATTEND_SELECTED_SM90_H

#include "variants/attend/selected_pipeline.h"

extern const nsai_selected_products nsai_selected_sm90_products;
extern const nsai_space nsai_selected_sm90_space;

bool nsai_selected_sm90_sensible(const nsai_problem *problem, const nsai_target *target);

#endif /* NSAI_VARIANTS_ATTEND_SELECTED_SM90_H */

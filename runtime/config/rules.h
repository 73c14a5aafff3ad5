/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Rules between keys, checked after all layers are merged.
 */
#ifndef NSAI_CONFIG_RULES_H
#define NSAI_CONFIG_RULES_H

#include "config/diag.h"

/* Reports every broken rule with both keys, their values and the remedy. Skips keys whose own
 * value was refused. `main` is the position at which a missing model is reported. */
void nsai_config_check_rules(const nsai_config *config, nsai_mark main, nsai_diag *diag);

#endif /* NSAI_CONFIG_RULES_H */

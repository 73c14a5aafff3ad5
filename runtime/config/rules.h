/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What no single key can tell: rules between keys, after all layers are merged.
 */
#ifndef NSAI_CONFIG_RULES_H
#define NSAI_CONFIG_RULES_H

#include "config/diag.h"

/* Reports every broken rule with both keys, their values and the remedy. Keys that were refused by
 * themselves are passed over. `main` is where a missing model is reported. */
void nsai_config_check_rules(const nsai_config *config, nsai_mark main, nsai_diag *diag);

#endif /* NSAI_CONFIG_RULES_H */

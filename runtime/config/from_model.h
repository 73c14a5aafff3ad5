/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The `model` section from a host's nsa_model. It becomes a YAML text, which is read as every
 * other: ranges, rules and diagnostics exist once.
 */
#ifndef NSAI_CONFIG_FROM_MODEL_H
#define NSAI_CONFIG_FROM_MODEL_H

#include "base/writer.h"
#include "config/config.h"

#include <nsa/context.h>

/* Writes a configuration that has the section `model` alone. Fields at their default are left out.
 * NSA_E_ARG: a field holds a value that its enumeration does not have. */
nsa_status nsai_model_write(const nsa_model *model, nsai_writer *writer);

#endif /* NSAI_CONFIG_FROM_MODEL_H */

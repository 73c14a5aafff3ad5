/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The config.json that stands beside the weights of a model of Hugging Face's transformers.
 */
#ifndef NSAI_CLI_HF_CONFIG_H
#define NSAI_CLI_HF_CONFIG_H

#include "base/arena.h"
#include "base/error.h"

#define NSAI_HF_MOST 20 /* more than are read */

/* What it says about attention, as overrides of a configuration: "model.heads=32". */
typedef struct nsai_hf_config {
  const char *overrides[NSAI_HF_MOST];
  int count;
  const char *note; /* what a reader should know about them; NULL: nothing */
} nsai_hf_config;

/* Reads the file ("-": standard input); strings are allocated in `arena`.
 *
 * NSA_E_CONFIG: it is no JSON, or lacks heads. NSA_E_UNSUPPORTED: the model's attention or dtype is
 * none that the library computes. NSA_E_IO, NSA_E_NOMEM. */
nsa_status nsai_hf_config_read(const char *file, nsai_arena *arena, nsai_hf_config *out);

#endif /* NSAI_CLI_HF_CONFIG_H */

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The layout of the public structs, as base/struct.h and the ABI need it. Nothing is compiled from
 * this file.
 */
#include <nsa/nsa.h>

/* The struct begins with its size and ends with its last field: it has no padding behind it, where
 * a field of a later version would come to lie. */
#define GROWS(type, last)                                                                          \
  _Static_assert(offsetof(type, struct_size) == 0, #type " begins with struct_size");              \
  _Static_assert(offsetof(type, last) + sizeof(((type *)0)->last) == sizeof(type),                 \
                 #type " ends with " #last)

GROWS(nsa_model, index_dim);
GROWS(nsa_options, log_user);
GROWS(nsa_problem, unit_tokens);
GROWS(nsa_caps, variants);
GROWS(nsa_exec, comm);
GROWS(nsa_batch, entry_table);
GROWS(nsa_io, index_lse);
GROWS(nsa_grads, d_gate);
GROWS(nsa_index_grads, d_k_idx);
GROWS(nsa_tune_options, user);
GROWS(nsa_tune_event, note);
GROWS(nsa_shard_options, given_count);
GROWS(nsa_comm_ops, abort);
GROWS(nsa_comm_options, copy_bytes);

/* These lie inside others and never change. */
_Static_assert(sizeof(nsa_tensor) == 96, "nsa_tensor is frozen");
_Static_assert(sizeof(nsa_kv) == 8 * sizeof(nsa_tensor), "nsa_kv is frozen");
_Static_assert(sizeof(nsa_phi_side) == 6 * sizeof(nsa_tensor), "nsa_phi_side is frozen");
_Static_assert(sizeof(nsa_phi) == 2 * sizeof(nsa_phi_side), "nsa_phi is frozen");
_Static_assert(sizeof(nsa_gate) == 6 * sizeof(nsa_tensor), "nsa_gate is frozen");

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Umbrella header of libnsa: Native Sparse Attention (arXiv 2502.11089) with kernels compiled at
 * run time.
 */
#ifndef NSA_NSA_H
#define NSA_NSA_H

#include <nsa/attention.h>
#include <nsa/backward.h>
#include <nsa/base.h>
#include <nsa/context.h>
#include <nsa/index_kl.h>
#include <nsa/kv_cache.h>
#include <nsa/log.h>
#include <nsa/problem.h>
#include <nsa/ranks.h>
#include <nsa/shard.h>
#include <nsa/tune.h>

#endif /* NSA_NSA_H */

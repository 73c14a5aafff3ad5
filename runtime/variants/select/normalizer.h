/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernels select_normalizer and, on wgmma, select_normalizer_sm90: the LSE of importance where the
 * compressed branch does not give it. They read the coarse keys of model.select.normalizer, which a
 * forward makes first and a cache has, or without a normaliser the compressed keys. Rows that rank
 * blocks have one of them and its buffers among their own.
 */
#ifndef NSAI_VARIANTS_SELECT_NORMALIZER_H
#define NSAI_VARIANTS_SELECT_NORMALIZER_H

#include "variants/compress/mean.h"
#include "variants/select/importance.h"

enum { NSAI_NORMALIZER_LSE, NSAI_NORMALIZER_MEAN, NSAI_NORMALIZER_KERNELS };
enum {
  NSAI_NORMALIZER_OUT,  /* f32 [parts, T, Hq] */
  NSAI_NORMALIZER_KEYS, /* dtype [rows, Hkv, Dk]: coarse keys of a forward */
  NSAI_NORMALIZER_BUFFERS
};

/* The keys whose LSE it takes: every `stride` tokens the mean of `block`. */
nsai_mean nsai_normalizer_keys(const nsai_model *model);

/* `wgmma_rows`: of a tile of select_normalizer_sm90, where importance_sm90 is legal; 0:
 * select_normalizer. */
void nsai_normalizer_specify(const nsai_problem *problem, const nsai_target *target,
                             int32_t wgmma_rows, nsai_kernel_spec kernel[]);

void nsai_normalizer_workspace(const nsai_request *request, const nsai_kernel_spec kernel[],
                               int64_t bytes[]);

/* Of all tokens of the run. */
nsa_status nsai_normalizer_enqueue(const nsai_run *run, const nsai_kernel kernel[],
                                   const nsai_buffer buffer[]);

/* Where the LSE lies. */
nsai_split_lse nsai_normalizer_lse(const nsai_run *run, const nsai_kernel kernel[],
                                   const nsai_buffer buffer[]);

#endif /* NSAI_VARIANTS_SELECT_NORMALIZER_H */

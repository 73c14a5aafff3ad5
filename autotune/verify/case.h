/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A case: everything that determines one check, as a struct and as one line of text. The text is
 * complete: `nsacheck --problem TEXT` repeats the case anywhere.
 *
 *   fwd:bf16:h64/4:d128/128:l32/16:s64x16+1+2:w512:phi=mean:gate=logits:kv=shared:sel=topn:
 *   q=5,0,130:kv=9,0,130:seed=7:fill=random:layout=plain      (one line, no spaces)
 *
 * h heads/KV heads, d Dk/Dv, l block/stride, s block x count + initial + local, w window. Only
 * the first field, the kind, has a fixed position. Omitted fields have the defaults of
 * nsai_verify_case_init. Further fields: phi=mlp.H.act, gate=weights.f32, gate=mlp.C.H.act,
 * kv=branches, pool=max, norm=BLOCK/STRIDE (of coarse keys), cmp=keys (no compressed branch),
 * index=DIM (an index chooses blocks; with phi=none and pool=max, which it implies),
 * sel=blocks.shared, sel=ranges, layout=strided|packed|heads|shared, slack=N
 * (capacity beyond the actual lengths), branches=MASK, scale=X (softmax), overlap,
 * nobatch (no batch struct: one sequence), gemm (dense by plain matrix products), lists
 * (selected by lists, also when every block is selected), f32grads, f32dout, accumulate, saved,
 * recompute=always|never, mma, wanted=MASK and again=N (bwd), force=NAME (a row of the variant
 * table).
 */
#ifndef NSAI_VERIFY_CASE_H
#define NSAI_VERIFY_CASE_H

#include "config/config.h"

#include <nsa/nsa.h>

#define NSAI_VERIFY_MAX_SEQS 16

typedef enum nsai_verify_kind {
  NSAI_VERIFY_FORWARD, /* every output of nsa_forward, stage by stage and whole */
  NSAI_VERIFY_COMPRESS,
  NSAI_VERIFY_SELECT,
  NSAI_VERIFY_DENSE,
  NSAI_VERIFY_BACKWARD, /* every gradient of nsa_backward, and the same bits when run again */
  NSAI_VERIFY_REPEAT,   /* this and the following kinds: properties that need no reference */
  NSAI_VERIFY_ALL_BLOCKS,
  NSAI_VERIFY_WIDE_WINDOW,
  NSAI_VERIFY_FUTURE,
  NSAI_VERIFY_PERMUTE,
  NSAI_VERIFY_SCALE_V,
  NSAI_VERIFY_ZERO_GATE,
  NSAI_VERIFY_INFINITE,
  NSAI_VERIFY_SPLIT,
  NSAI_VERIFY_GRAPH,
  NSAI_VERIFY_STREAMS,
  NSAI_VERIFY_NEEDLE,
  NSAI_VERIFY_INDEX_KL, /* every output of nsa_index_kl, and the same bits when run again */
  NSAI_VERIFY_KINDS
} nsai_verify_kind;

typedef enum nsai_verify_fill {
  NSAI_VERIFY_FILL_RANDOM, /* unit-variance normal */
  /* like trained models: adjacent tokens mostly select the same blocks */
  NSAI_VERIFY_FILL_CORRELATED,
  NSAI_VERIFY_FILL_LARGE,    /* logits of tens: a single key gets almost all the weight */
  NSAI_VERIFY_FILL_CONSTANT, /* all keys equal: every block ties */
  NSAI_VERIFY_FILL_TINY,     /* 2^-10 */
  NSAI_VERIFY_FILLS
} nsai_verify_fill;

typedef enum nsai_verify_layout {
  NSAI_VERIFY_LAYOUT_PLAIN,   /* contiguous [T, H, D] */
  NSAI_VERIFY_LAYOUT_STRIDED, /* gaps after every head and every token */
  NSAI_VERIFY_LAYOUT_PACKED,  /* q, k[0], v[0] are slices of one [T, heads, D] buffer */
  NSAI_VERIFY_LAYOUT_HEADS,   /* [H, T, D] in memory */
  NSAI_VERIFY_LAYOUT_SHARED,  /* k and v: all heads are one (stride 0) */
  NSAI_VERIFY_LAYOUTS
} nsai_verify_layout;

typedef struct nsai_verify_case {
  nsai_verify_kind kind;
  nsai_model model;
  int32_t num_seqs;
  int64_t q_len[NSAI_VERIFY_MAX_SEQS], kv_len[NSAI_VERIFY_MAX_SEQS];
  int64_t slack; /* capacity beyond the lengths; those rows hold NaN or must not be written */
  int32_t selection, index_shared; /* NSA_SELECT_*; 1: tensors without the Hkv axis */
  int32_t gate_f32, no_batch, overlap;
  int32_t gemm;      /* dense: by plain matrix products (the variant dense_gemm) */
  int32_t index_lse; /* fwd: with io.index_lse, where the model has an index that chooses blocks */
  int32_t lists;     /* selected: by attend_selected_sm80, never by dense attention */
  int32_t grads_f32; /* bwd: gradients in f32 */
  int32_t d_o_f32;   /* bwd: d_o in f32 */
  int32_t recompute; /* bwd: NSAI_RECOMPUTE_* */
  int32_t saved;     /* bwd: 1: with the forward's o_branch, lse, k_cmp; 2: with room for them */
  int32_t mma;       /* bwd: use the portable variants */
  /* bwd: gradients to compute, as bits: 1 d_q, 2 d_k, 4 d_v, 8 d_gate, 16 d_phi; 0: all */
  uint32_t wanted;
  int32_t again;      /* bwd: number of further runs, which must give the same bits; 0: one */
  int32_t accumulate; /* bwd: add to what the outputs hold */
  uint32_t branches;  /* exec.branches; 0: all */
  float softmax_scale;
  /* a row of the variant table that must run; NULL: the library chooses */
  const struct nsai_variant *force;
  uint64_t seed;
  nsai_verify_fill fill;
  nsai_verify_layout layout;
} nsai_verify_case;

/* The paper's setting at small size: bf16, h4/2 d64/64 l32/16 s64x4+1+2 w64, one sequence of
 * 200. */
void nsai_verify_case_init(nsai_verify_case *c);

/* Returns 0, or -1 with a sentence in `error`. */
int nsai_verify_case_parse(const char *text, nsai_verify_case *c, char *error, size_t size);

void nsai_verify_case_print(const nsai_verify_case *c, char *text, size_t size);

/* "random", "correlated" ... */
const char *nsai_verify_fill_name(nsai_verify_fill fill);

/* Totals over sequences. */
int64_t nsai_verify_total(const int64_t *len, int32_t count);

#define NSAI_VERIFY_CASE_TEXT 768

#endif /* NSAI_VERIFY_CASE_H */

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A case: everything that determines one check, as a struct and as one line of text. The text is
 * complete: `nsacheck --problem TEXT` repeats the case anywhere.
 *
 *   fwd:bf16:h64/4:d128/128:l32/16:s64x16+1+2:w512:phi=mean:gate=logits:kv=shared:sel=own:
 *   q=5,0,130:kv=9,0,130:seed=7:fill=random:layout=plain      (one line, no spaces)
 *
 * h heads/KV heads, d Dk/Dv, l block/stride, s block x count + initial + local, w window. Only the
 * first field, the kind, has a fixed place; what is left out has the defaults of chk_case_init.
 * Further fields: phi=mlp.H.act, gate=weights.f32, gate=mlp.C.H.act, kv=branches,
 * sel=blocks.shared, sel=ranges, layout=strided|packed|heads, slack=N (capacity beyond the true
 * lengths), branches=MASK, scale=X (softmax), parity, overlap, nobatch (no batch struct: one
 * sequence), gemm (dense by plain matrix products), lists (selected by lists, also where every block is chosen).
 */
#ifndef CHK_CASE_H
#define CHK_CASE_H

#include "geometry.h"

#include <nsa/nsa.h>

#define CHK_MAX_SEQS 16

typedef enum chk_kind {
  CHK_FORWARD, /* every output of nsa_forward, stage by stage and whole */
  CHK_COMPRESS,
  CHK_SELECT,
  CHK_DENSE,
  CHK_REPEAT, /* from here on: properties that need no reference */
  CHK_ALL_BLOCKS,
  CHK_WIDE_WINDOW,
  CHK_FUTURE,
  CHK_PERMUTE,
  CHK_SCALE_V,
  CHK_ZERO_GATE,
  CHK_SPLIT,
  CHK_GRAPH,
  CHK_STREAMS,
  CHK_NEEDLE,
  CHK_KINDS
} chk_kind;

typedef enum chk_fill {
  CHK_FILL_RANDOM,     /* unit-variance normal */
  CHK_FILL_CORRELATED, /* as trained models: adjacent tokens select mostly the same blocks */
  CHK_FILL_LARGE,      /* logits of tens: one key takes all */
  CHK_FILL_CONSTANT,   /* all keys equal: every block ties */
  CHK_FILL_TINY,       /* 2^-10 */
  CHK_FILLS
} chk_fill;

typedef enum chk_layout {
  CHK_LAYOUT_PLAIN,   /* contiguous [T, H, D] */
  CHK_LAYOUT_STRIDED, /* gaps after every head and every token */
  CHK_LAYOUT_PACKED,  /* q, k[0], v[0] are slices of one [T, heads, D] buffer */
  CHK_LAYOUT_HEADS,   /* [H, T, D] in memory */
  CHK_LAYOUTS
} chk_layout;

typedef struct chk_case {
  chk_kind kind;
  nsai_geometry geometry;
  int32_t num_seqs;
  int64_t q_len[CHK_MAX_SEQS], kv_len[CHK_MAX_SEQS];
  int64_t slack; /* capacity beyond the lengths; those rows hold NaN or must stay untouched */
  int32_t selection, index_shared; /* NSA_SELECT_*; 1: rank without the Hkv axis */
  int32_t gate_f32, no_batch, parity, overlap;
  int32_t gemm;      /* dense: by plain matrix products (the variant sdpa_gemm) */
  int32_t lists;     /* selected: by attend_selected_mma, never by dense attention */
  uint32_t branches; /* exec.branches; 0: all */
  float softmax_scale;
  uint64_t seed;
  chk_fill fill;
  chk_layout layout;
} chk_case;

/* The paper's setting in small: bf16, h4/2 d64/64 l32/16 s64x4+1+2 w64, one sequence of 200. */
void chk_case_init(chk_case *c);

/* Returns 0, or -1 with a sentence in `error`. */
int chk_case_parse(const char *text, chk_case *c, char *error, size_t size);

void chk_case_print(const chk_case *c, char *text, size_t size);

/* "fwd", "dense" ... */
const char *chk_kind_name(chk_kind kind);

/* "random", "correlated" ... */
const char *chk_fill_name(chk_fill fill);

/* Totals over sequences. */
int64_t chk_total(const int64_t *len, int32_t count);

#define CHK_CASE_TEXT 768

#endif /* CHK_CASE_H */

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A case of the KV cache as one line of text, and the options of the random scenario that it
 * describes.
 *
 *   cache:decode:seed=7:longest=1500      cache:soak:seed=1:longest=1500:steps=100000:every=250
 *
 * The kind is decode or prefill (steps of that attention), split (one prefill compared with
 * arbitrary pieces of it) or soak. Further fields: searched, large, spread, steps=N, repeats=N,
 * codes=NAME, force=NAME; arguments.c explains them. model=N: the scenario has the model that chk_model_random
 * draws from N, unchanged (but a split, which compares bits, has phi mean).
 */
#ifndef CHK_CACHE_OPTIONS_H
#define CHK_CACHE_OPTIONS_H

#include "plan/variant.h"

#include <nsa/nsa.h>
#include <stdbool.h>
#include <stdio.h>

typedef enum chk_cache_kind {
  CHK_CACHE_DECODE,
  CHK_CACHE_PREFILL,
  CHK_CACHE_SPLIT,
  CHK_CACHE_SOAK,
  CHK_CACHE_KINDS /* none of the above; any kind */
} chk_cache_kind;

/* What of the cache is in e4m3. */
typedef enum chk_cache_codes {
  CHK_CACHE_CODES_NONE,
  CHK_CACHE_CODES_KV,
  CHK_CACHE_CODES_CMP,
  CHK_CACHE_CODES_BOTH,
  CHK_CACHE_CODES_ANY /* each scenario draws one of these */
} chk_cache_codes;

/* "none", "kv" ...; NULL behind the last. */
extern const char *const chk_cache_codes_names[];

typedef struct chk_cache_case {
  chk_cache_kind kind;
  uint64_t seed;
  uint64_t model; /* of chk_model_random; 0: another one */
  const nsai_model
      *given;            /* the model, which the text does not tell; NULL: the scenario draws one */
  int32_t longest;       /* approximate length of the longest sequences, in tokens */
  int64_t steps;         /* -1: the scenario's default; a soak requires a number */
  int64_t every;         /* number of soak steps between two checks */
  int32_t repeats;       /* repetitions of a step on a GPU; -1: the scenario's default */
  bool searched;         /* many blocks to select from, with some thousands of tokens */
  bool large;            /* hundreds of sequences, or up to 2^20 tokens */
  bool spread;           /* pages far apart in memory */
  chk_cache_codes codes; /* with any, head dims are rounded up to multiples of 16 */
  const nsai_variant *force; /* a row of the table that must run; NULL: the library chooses */
} chk_cache_case;

#define CHK_CACHE_CASE_INIT                                                                        \
  ((chk_cache_case){ .seed = 1, .longest = 1500, .steps = -1, .every = 250, .repeats = -1 })
#define CHK_CACHE_CASE_TEXT 192
#define CHK_CACHE_LEAST_LONGEST 64
#define CHK_CACHE_MOST_STEPS 1000 /* of a scenario that is no soak */

/* The kind with the name "decode", "prefill" ...; CHK_CACHE_KINDS for an unknown name. */
chk_cache_kind chk_cache_kind_find(const char *name);

/* Whether a text describes a case of the cache. */
bool chk_cache_case_is(const char *text);

/* Returns 0, or -1 with a sentence in `error`. */
int chk_cache_case_parse(const char *text, chk_cache_case *c, char *error, size_t size);
void chk_cache_case_print(const chk_cache_case *c, char *text, size_t size);

/* The kind of a random case with unspecified kind. */
chk_cache_kind chk_cache_case_kind(const chk_cache_case *c);

#define CHK_CACHE_SEQS 8         /* of a random scenario */
#define CHK_CACHE_MOST_SEQS 1024 /* of a large one */
#define CHK_CACHE_PROBES 7       /* rows whose importance the GPU is asked for */

/* Which scales a cache in e4m3 has. */
typedef enum chk_cache_scales {
  CHK_CACHE_SCALES_ALL,
  CHK_CACHE_SCALES_RAW, /* none of the entries: those of the first pair, if it has some */
  CHK_CACHE_SCALES_NONE /* all are 1 */
} chk_cache_scales;

/* The properties of a scenario. */
typedef struct chk_cache_options {
  uint64_t seed;
  nsai_model model;
  int32_t op;        /* of its steps' attention: NSA_OP_DECODE or NSA_OP_PREFILL */
  int32_t selection; /* NSA_SELECT_* */
  int32_t page_size; /* NSA_NONE: rows */
  bool hnd, lists, ring, slots, mapping, graph, ragged;
  bool shared_lists; /* a selection supplied by the caller has no axis of KV heads */
  bool probed;       /* the importance of some rows is requested */
  int32_t seqs, max_q_len, max_kv_len;
  /* of a sequence that begins; the first sequence begins with it in one step; 0: any length */
  int32_t least_kv_len;
  int32_t short_kv_len; /* longest length of any sequence, in pages; 0: the plan's maximum */
  int32_t steps;
  int32_t repeats; /* repetitions of a step on a GPU, which must give the same bits */
  /* new tokens of a sequence in one append; 0: any number, or the ring's capacity */
  int32_t chunk;
  float softmax_scale;
  bool masks;                /* steps run only some of the branches */
  bool counted;              /* decode steps count what they read */
  const nsai_variant *force; /* on the GPU; NULL: the library chooses */
  bool kv_codes, cmp_codes;  /* raw pairs, and entries or index keys, in e4m3 */
  bool head_scales;          /* a scale for each KV head */
  chk_cache_scales scales;
  /* the GPU's pages are more than 2^31 elements apart: 4.3 GB per tensor, up to eight tensors */
  bool spread;
} chk_cache_options;

/* The scenario of a case, which determines all of it. */
void chk_cache_options_make(const chk_cache_case *c, chk_cache_options *out);

/* One line that describes it. */
void chk_cache_options_print(const chk_cache_options *options, FILE *out);

#endif /* CHK_CACHE_OPTIONS_H */

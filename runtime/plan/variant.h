/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The interface of variants. A variant is one way to do one stage, and one row of the variant
 * table. Everything about it lies in its own file: whether it is legal (whether it can serve this
 * problem on this device) and sensible (whether the heuristic may choose it), which tile sizes it
 * has, its kernels, its part of the workspace, and its launches.
 *
 * The table is ordered by stage and preference. Without a record, the first legal and sensible row
 * of a stage serves, with the tiles that its heuristic chooses.
 *
 * A row may fuse later stages into its own. It is chosen at its own stage, where the
 * configuration's force and disable lists count as always. Once chosen, it also does the stages
 * that it fuses, whatever was decided for them.
 */
#ifndef NSAI_PLAN_VARIANT_H
#define NSAI_PLAN_VARIANT_H

#include "base/writer.h"
#include "config/config.h"
#include "plan/problem.h"

/* What kernels are made for: a device or, without one, an architecture. */
typedef struct nsai_target {
  const char *arch;      /* "sm_90a" */
  const char *device;    /* "NVIDIA H200"; NULL: unknown */
  uint32_t shared_bytes; /* of a CTA at most, opt-in */
  /* 0: the fastest tiles, which just fit the registers with the compiler that they were tried with.
   * Up to NSAI_SMALLEST_TILES: smaller tiles, for other models and compilers. NSAI_LAST_RESORT: the
   * smallest tiles by mma.sync, with all registers that a thread can have, where kernels may spill:
   * no legal model is refused for registers. */
  int32_t register_fallback;
  /* Multiprocessors. They bound the grids of persistent kernels, and decide which rows and forms
   * take a decode step (variants/decode/batch.h) and how many consumer groups decode_split_kv has.
   * 0: unknown. */
  int32_t sms;
} nsai_target;
#define NSAI_SMALLEST_TILES 2
#define NSAI_LAST_RESORT 3

#define NSAI_MAX_CONSTANTS 30
typedef struct nsai_constant {
  const char *name; /* "kHeadDimQk" */
  int64_t value;
} nsai_constant;

/* One kernel of a plan. */
typedef struct nsai_kernel_spec {
  const char *entry; /* entry point, which is the template's path with '_'; NULL: no such kernel */
  int32_t dtype;     /* Config::Element */
  int32_t threads;   /* of a CTA */
  uint32_t shared_bytes; /* dynamic */
  int32_t tile_tokens;   /* query tokens of a CTA; 0: not tiled by tokens */
  /* Of a persistent kernel: most CTAs of a multiprocessor, which take tile after tile. 0: a CTA for
   * each tile. */
  int32_t ctas_per_sm;
  int32_t cluster;                       /* CTAs of a cluster; 0: none */
  int32_t tma_box_heads, tma_box_tokens; /* of the tensor map of q */
  int32_t tma_box_keys; /* of the tensor maps of k and v; 0: the kernel takes no tensor maps */
  /* Boxes of k and v are ordered as tma_load_interleaved() of core/tma.cuh says. */
  bool interleaved_keys;
  /* Milliseconds of a core, about (D 128, sm_90a): the costly kernels compile first. */
  int32_t compile_cost;
  int32_t constant_count;
  nsai_constant constants[NSAI_MAX_CONSTANTS];
} nsai_kernel_spec;

/* Collects reasons, one per line, while `legal` runs. */
typedef struct nsai_reasons {
  nsai_writer text;
  int count;
} nsai_reasons;

/* The constants of kernels that may be chosen. */
typedef enum nsai_tile {
  NSAI_TILE_ROWS,    /* query rows of a CTA */
  NSAI_TILE_KEYS,    /* keys of a pipeline stage */
  NSAI_TILE_WARPS,   /* warps that compute */
  NSAI_TILE_STAGES,  /* pipeline stages */
  NSAI_TILE_CTAS,    /* CTAs that share the registers of a multiprocessor */
  NSAI_TILE_CLUSTER, /* CTAs of a cluster */
  NSAI_TILE_COUNT
} nsai_tile;

/* "keys". Static storage. */
const char *nsai_tile_name(nsai_tile tile);

/* A value for each; 0 where the variant has no such constant. */
typedef struct nsai_tiles {
  int32_t of[NSAI_TILE_COUNT];
} nsai_tiles;

/* What chose the variant or the tiles of a stage, from the most to the least particular. */
typedef enum nsai_decider {
  NSAI_BY_FORCE,        /* variants.force */
  NSAI_BY_RECORD,       /* a record of this device and problem */
  NSAI_BY_OTHER_RECORD, /* ... of this device and the problem with another number of heads */
  NSAI_BY_DEVICE,       /* the heuristic's rule for this device */
  NSAI_BY_ARCHITECTURE, /* ... for its architecture */
  NSAI_BY_DEFAULT       /* ... for any */
} nsai_decider;

/* The values a tile may take, and why those. */
#define NSAI_MAX_RANGE 6
typedef struct nsai_range {
  nsai_tile tile;
  int32_t values[NSAI_MAX_RANGE]; /* ascending; 0 behind the last */
  const char *why;
} nsai_range;

/* The tiles a variant may have. */
typedef struct nsai_space {
  int count;
  nsai_range range[NSAI_TILE_COUNT];
  /* The heuristic's choice; it fits every legal problem. */
  nsai_tiles (*choose)(const nsai_problem *, const nsai_target *, nsai_decider *by);
  /* Adds a sentence for everything that keeps these tiles from being compiled and launched. */
  void (*fit)(const nsai_problem *, const nsai_target *, const nsai_tiles *, nsai_reasons *);
  /* A guess at the time, relative to that of other tiles of the variant; infinite where the
   * registers cannot do. */
  double (*cost)(const nsai_problem *, const nsai_target *, const nsai_tiles *);
} nsai_space;

/* Bytes of the workspace. */
typedef struct nsai_buffer {
  uint64_t offset, bytes; /* bytes 0: the plan has no such buffer */
} nsai_buffer;

/* What a row makes its kernels and workspace for. */
typedef struct nsai_request {
  const nsai_problem *problem;
  const nsai_target *target;
  const nsai_tiles *tiles;
  bool standalone; /* another row fuses the stage: only what nsa_select and probed rows need */
} nsai_request;

#define NSAI_MAX_FORM_KERNELS 28
#define NSAI_MAX_FORM_BUFFERS 28
#define NSAI_MAX_FORM_NUMBERS 5

/* The workspace of a form, and the sizes that its launches share with it. */
typedef struct nsai_form_sizes {
  int64_t bytes[NSAI_MAX_FORM_BUFFERS];  /* by the row's enum of buffers */
  int64_t number[NSAI_MAX_FORM_NUMBERS]; /* by the row's enum of numbers */
} nsai_form_sizes;

/* A row with its tile sizes, in a plan. */
typedef struct nsai_form {
  const struct nsai_variant *variant;
  nsai_tiles tiles;
  bool standalone;                  /* as in nsai_request */
  const nsai_kernel_spec *spec;     /* by the row's enum of kernels; entry NULL: none needed */
  const struct nsai_kernel *kernel; /* likewise, loaded; no function where the spec has no entry */
  const nsai_buffer *buffer;        /* by the row's enum of buffers */
  const int64_t *number;            /* by the row's enum of numbers */
} nsai_form;

/* The part of a stage that one call enqueues. */
typedef struct nsai_span {
  int64_t token_begin, token_end; /* query tokens */
  /* Of the backward pass: only what other stages need from this one first. Of importance: only the LSE
   * of all tokens that it takes, unless the compressed branch gives it. */
  bool prepare;
  /* Of a branch over a cache: only what need not wait for another branch's kernel; and that it has been
   * done. */
  bool ahead, done_ahead;
  bool gate;  /* of backward_kv: the backward pass of the gate MLP, and nothing else */
  bool probe; /* of importance: the rows that io.probe_rows names, and nothing else */
  /* Of backward_kv over ranks: this sum, and nothing else. NULL: none. */
  const struct NsaiRanksSum *ranks_sum;
} nsai_span;

struct nsai_run; /* run/run.h */
struct nsai_choice;

#define NSAI_MAX_STAGE_FORMS 8 /* of one row */

typedef struct nsai_variant {
  const char *name;
  nsai_stage stage;
  const char *why;               /* what it is good for, for `nsa-autotune show` and nsa_explain */
  uint32_t fuses;                /* 1 << stage for each later stage that it does itself */
  int kernels, buffers, numbers; /* of the enums in its own file */
  bool needs_gemm;               /* runs products through cuBLASLt */
  bool reads_no_lists; /* attend_selected: every block is chosen, so the run makes no selection */
  /* A KV cache in NSA_E4M3 is fine for it: it reads codes, or nothing of the cache at all. Without it
   * the row is not legal for such a cache, whatever `legal` says. */
  bool takes_codes;
  bool goes_ahead; /* attend_*, of a prefill: takes calls with span.ahead */
  /* attend_selected, attend_window: has k_raw and v_raw of the workspace, and `space` sees the problem over
   * these, in 16 bits */
  bool expands_tokens;
  /* Its kernels look up the sequence of a key, so that sequences must not share keys: pieces of a sequence
   * (ranks/shard.h) run one by one. */
  bool finds_sequences_of_keys;
  bool awaits_keys;  /* of a backward pass: waits by itself, late, for K and V that travel */
  bool stands_alone; /* calls may ask for the stage by itself, even where another row fuses it */
  /* Adds a sentence for everything that forbids it here. No sentence: it is legal. */
  void (*legal)(const nsai_problem *, const nsai_target *, nsai_reasons *);
  /* Whether the heuristic may choose it. NULL: always. */
  bool (*sensible)(const nsai_problem *, const nsai_target *);
  const nsai_space *space; /* NULL: nothing to choose */
  /* The next two are of a row that is the fastest for some batch sizes only; else both are NULL.
   * Such a row adds forms to the plan, before the form of the chosen row that follows it in the
   * table. Forced or timed, it stands alone. A record gives it the steps of more than half the
   * plan's batch. An item is a tile of tokens of a KV head. */
  /* Writes the tiles of its forms: each suits some number of items that a run of the plan can have
   * and that no form of `before` suits. Returns how many. */
  int (*forms)(const nsai_problem *, const nsai_target *, const struct nsai_choice *before,
               nsai_tiles out[NSAI_MAX_STAGE_FORMS]);
  /* Whether the form takes so many items, in tiles of its first kernel. */
  bool (*suits)(const nsai_request *, int64_t items);
  /* Fills the specs of its kernels, which are zero before. Called for legal rows, with tiles that
   * fit. */
  void (*specify)(const nsai_request *, nsai_kernel_spec kernel[]);
  /* Fills in what the form needs of the workspace; all is zero before. NULL: nothing. */
  void (*workspace)(const nsai_request *, const nsai_kernel_spec kernel[], nsai_form_sizes *);
  /* Enqueues its stage, and those that it fuses. Arguments have been checked. */
  nsa_status (*enqueue)(const struct nsai_run *, const nsai_form *, const nsai_span *);
  /* Writes lines for nsa_explain. NULL: none. */
  void (*describe)(const nsai_form *, nsai_writer *);
} nsai_variant;

static inline bool nsai_fuses(const nsai_variant *variant, nsai_stage stage) {
  return variant->fuses >> stage & 1;
}

/* The rows of all stages, ordered by stage and preference; NULL ends them: variants/table.c. */
extern const nsai_variant *const nsai_variants[];

/* Names of the library's variants for the configuration (config/config.h). */
bool nsai_variant_name_at(int32_t index, nsai_variant_name *out);

/* The row of a name; NULL: none. */
const nsai_variant *nsai_variant_find(const char *name);

/* The devices of an architecture for which some heuristic has a rule; NULL behind the last. */
const char *nsai_named_device(const char *arch, int index);

/* Whether the problem runs the stage at all (phi external has no compress, n = 0 no select, ...).
 */
bool nsai_stage_needed(const nsai_problem *problem, nsai_stage stage);

/* A variant of a stage with its tiles. */
typedef struct nsai_candidate {
  const nsai_variant *variant; /* NULL: none */
  nsai_tiles tiles;
} nsai_candidate;

/* What a record or the tuner has decided. */
typedef struct nsai_decisions {
  nsai_candidate stage[NSAI_STAGE_COUNT]; /* variant NULL: nothing */
  bool other_heads;                       /* by records of another number of heads */
  bool alone;    /* of a timed run: no row adds forms beside the decided one */
  char why[256]; /* "record of 65536 tokens, ...", "record of G 16, 65536 tokens, ..."; "" */
} nsai_decisions;

/* A form of a choice. */
typedef struct nsai_chosen_form {
  const nsai_variant *variant;
  nsai_tiles tiles;
  bool standalone;
  int64_t least_items; /* > 0: a record's form, for every step of at least so many items */
  int32_t first_kernel, first_buffer,
      first_number; /* in the arrays of choice, plan and workspace */
} nsai_chosen_form;

#define NSAI_MAX_FORMS 20
#define NSAI_MAX_KERNELS 64
#define NSAI_MAX_BUFFERS 80
#define NSAI_MAX_NUMBERS 32

/* The choice for one problem: a row per needed stage, NULL for the others. A fused stage has the
 * row and the tiles of the one that fuses it. */
typedef struct nsai_choice {
  const nsai_variant *variant[NSAI_STAGE_COUNT];
  nsai_tiles tiles[NSAI_STAGE_COUNT];
  nsai_decider decider[NSAI_STAGE_COUNT]; /* of the tiles, or of the variant where there are none */
  int32_t form_count, kernel_count, buffer_count, number_count;
  nsai_chosen_form forms[NSAI_MAX_FORMS]; /* by stage */
  nsai_kernel_spec specs[NSAI_MAX_KERNELS];
} nsai_choice;

/* The form that does the stage, or that stands alone for it; of several, the last, which serves
 * every number of items. NULL: none. */
const nsai_chosen_form *nsai_choice_form(const nsai_choice *choice, nsai_stage stage);

/* The kernel of this entry point, for tests and reports; NULL: the choice has none. */
const nsai_kernel_spec *nsai_choice_kernel(const nsai_choice *choice, const char *entry);

/* Whether the variant of another stage does this one. */
static inline bool nsai_is_fused(const nsai_choice *choice, nsai_stage stage) {
  return choice->variant[stage] && choice->variant[stage]->stage != stage;
}

/* Chooses by the configuration's force and disable lists, then by `decisions` (NULL: none) where
 * they are legal, then by the table's order and its heuristics. When `explain` is not NULL, writes
 * every stage's variants with all reasons. NSA_E_UNSUPPORTED (every reason in the error text) when
 * a stage has none. */
nsa_status nsai_choose(const nsai_config *config, const nsai_problem *problem,
                       const nsai_target *target, const nsai_decisions *decisions,
                       nsai_writer *explain, nsai_choice *out);

/* The first candidate of a stage, by the table and its heuristics, that covers no other stage;
 * variant NULL: none can serve. */
nsai_candidate nsai_choose_unfused(const nsai_config *config, const nsai_problem *problem,
                                   const nsai_target *target, nsai_stage stage);

/* Adds every reason against one variant: the configuration's, the problem's wishes, what keeps it
 * from covering its stages, and `legal`'s. */
void nsai_variant_reasons(const nsai_config *config, const nsai_problem *problem,
                          const nsai_target *target, const nsai_variant *variant,
                          nsai_reasons *reasons);

/* The heuristic's tiles, all 0 for a variant without. `by` may be NULL. */
nsai_tiles nsai_variant_tiles(const nsai_variant *variant, const nsai_problem *problem,
                              const nsai_target *target, nsai_decider *by);

/* The guess of the variant's space at these tiles' time. */
double nsai_tiles_cost(const nsai_variant *variant, const nsai_problem *problem,
                       const nsai_target *target, const nsai_tiles *tiles);

/* Adds every reason against these tiles of a variant: one that the ranges do not hold, and `fit`'s.
 */
void nsai_tiles_reasons(const nsai_variant *variant, const nsai_problem *problem,
                        const nsai_target *target, const nsai_tiles *tiles, nsai_reasons *reasons);

/* Steps through all combinations of the ranges, whether they fit or not, from one that is all zero;
 * false behind the last. */
bool nsai_tiles_next(const nsai_space *space, nsai_tiles *tiles);

/* "attend_window_sm80 rows=128 keys=64 warps=4 ctas=2", and back; false, and `out` is all zero:
 * no such variant of the stage, no such tile, or one is missing. */
void nsai_candidate_print(const nsai_candidate *candidate, nsai_writer *out);
bool nsai_candidate_parse(const char *text, nsai_stage stage, nsai_candidate *out);

/* Writes the generated unit of a kernel: problem line, Config, include of the template. The first
 * line is a comment and not part of the kernel's identity: what the code depends on is in Config.
 */
void nsai_kernel_unit(const nsai_kernel_spec *spec, const nsai_problem *problem, nsai_writer *out);

#endif /* NSAI_PLAN_VARIANT_H */

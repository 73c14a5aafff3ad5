/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The variant table: every way to do every stage, in one place.
 *
 * A variant has a stable name, says whether it is legal (can it serve this problem on this device:
 * all reasons against it) and, apart from that, whether it is sensible (is it worth timing), and
 * turns a problem into the kernels it launches: template, named constants, threads, shared bytes.
 * Some of the constants, its tiles, may be chosen: the variant's space says from which values and
 * why, which combinations fit, and what they might cost. The table is ordered by preference: with no
 * record, the first legal and sensible variant of a stage is taken, with its heuristic's tiles.
 *
 * A variant may cover stages behind its own: one kernel does them all. It is chosen at its own stage,
 * where forcing, disabling and preference count as always; once chosen it takes the stages it covers,
 * whatever was decided for them. What stands in the table for those stages alone goes on to serve
 * wherever the covering variant does not.
 */
#ifndef NSAI_PLAN_VARIANT_H
#define NSAI_PLAN_VARIANT_H

#include "base/writer.h"
#include "config/config.h"
#include "plan/problem.h"

/* Kernels a plan can hold, by what they do in it. */
typedef enum nsai_role {
  NSAI_KERNEL_COMPRESS,
  NSAI_KERNEL_GATHER_K,
  NSAI_KERNEL_GATHER_V,
  NSAI_KERNEL_PHI_ACTIVATION,
  NSAI_KERNEL_PHI_BIAS,
  NSAI_KERNEL_GATE_ACTIVATION,
  NSAI_KERNEL_GATE_BIAS,
  NSAI_KERNEL_ATTEND_COMPRESSED,
  NSAI_KERNEL_IMPORTANCE,
  NSAI_KERNEL_PROBE,
  NSAI_KERNEL_SELECT,
  NSAI_KERNEL_SORT,
  NSAI_KERNEL_INVERT_COUNT,
  NSAI_KERNEL_INVERT_SCAN,
  NSAI_KERNEL_INVERT_FILL,
  NSAI_KERNEL_ATTEND_SELECTED,
  NSAI_KERNEL_COMBINE,
  NSAI_KERNEL_ATTEND_WINDOW,
  NSAI_KERNEL_DENSE,
  NSAI_KERNEL_SOFTMAX,
  NSAI_KERNEL_KV_APPEND,
  NSAI_KERNEL_SCATTER,
  NSAI_KERNEL_DECODE_SCAN,
  NSAI_KERNEL_DECODE_SELECT,
  NSAI_KERNEL_DECODE_ATTEND,
  NSAI_KERNEL_DECODE_COMBINE,
  NSAI_KERNEL_DECODE_TWO_PER_SM,
  NSAI_KERNEL_DECODE_ONE_PER_SM,
  NSAI_KERNEL_DECODE_CLUSTER_2,
  NSAI_KERNEL_DECODE_CLUSTER_4,
  NSAI_KERNEL_BACKWARD_ROUND,
  NSAI_KERNEL_DECODE_CLUSTER,
  NSAI_KERNEL_BACKWARD_SAVED,
  NSAI_KERNEL_BACKWARD_STATISTICS,
  NSAI_KERNEL_BACKWARD_Q,
  NSAI_KERNEL_BACKWARD_COMPRESSED,
  NSAI_KERNEL_BACKWARD_SELECTED,
  NSAI_KERNEL_BACKWARD_WINDOW,
  NSAI_KERNEL_BACKWARD_SUM,
  NSAI_KERNEL_PHI_OUT_BACK,
  NSAI_KERNEL_PHI_HIDDEN_BACK,
  NSAI_KERNEL_GATE_OUT_BACK,
  NSAI_KERNEL_GATE_HIDDEN_BACK,
  NSAI_KERNEL_COLUMN_SUMS,
  NSAI_KERNEL_STORE_GRADIENT,
  NSAI_KERNEL_PRESENT_ROWS,
  NSAI_ROLES
} nsai_role;

/* Blocks whose entries one block of threads counts; beyond, others read the lists again: 73,000 tokens
 * of 64. Four blocks of 16 warps fit on a multiprocessor. */
#define NSAI_KV_COUNTERS 1152

/* Most tokens whose lists are inverted at once: kEntryTokenBits of data/inverted_lists.cuh. */
#define NSAI_KV_MOST_TOKENS ((int64_t)1 << 24)

/* Whether dK and dV of a tile of keys are made by a block of threads each. 16 keys of a warp have (Dk +
 * Dv) / 2 floats in every thread; up to 128 of them fit beside the scores. */
static inline bool nsai_backward_is_split(const nsai_model *m) {
  return m->head_dim_qk + m->head_dim_v > 256;
}

/* Whether backward_dkv_window_tma may do the selected branch within the window: backward/pipelines/dkv.cuh. */
static inline bool nsai_backward_joins(const nsai_model *m) {
  return !m->per_branch && m->window && m->select_count > 0 && m->select_block % 64 == 0 &&
         m->gate != NSAI_GATE_WEIGHTS && m->heads / m->kv_heads >= 8;
}

/* Rows of k and v that a thread of backward_dkv_sum adds up: as many as follow each other under the same
 * compressed blocks, at most 8, whose sums it holds. */
static inline int32_t nsai_sum_run(const nsai_model *m) { return m->stride < 8 ? m->stride : 8; }

/* What kernels are made for: a device or, without one, an architecture. */
typedef struct nsai_target {
  const char *arch;      /* "sm_90a" */
  const char *device;    /* "NVIDIA H200"; NULL: unknown */
  uint32_t shared_bytes; /* per block, opt-in */
  int32_t
      register_fallback; /* 0: the fastest tiles, which just fit the registers with the compiler they were
                      tried with; up to NSAI_MAX_REGISTER_FALLBACK: smaller ones, for other compilers */
  int32_t sms; /* multiprocessors, which bound the grids of persistent kernels; no kernel's code
                      depends on them. 0: unknown */
} nsai_target;
#define NSAI_MAX_REGISTER_FALLBACK 2

#define NSAI_MAX_CONSTANTS 26
typedef struct nsai_constant {
  const char *name; /* "kHeadDimQk" */
  int64_t value;
} nsai_constant;

/* One kernel of a plan. */
typedef struct nsai_kernel_spec {
  const char
      *entry; /* template file, entry point and variant name; NULL: the plan has no such kernel */
  int32_t dtype; /* Config::Element */
  int32_t threads;
  uint32_t shared_bytes;  /* dynamic */
  int32_t tile_tokens;    /* query tokens a block of threads takes; 0: not tiled by tokens */
  int32_t ctas_per_sm;    /* persistent, tiled by tokens: at most so many blocks of threads for each
                             multiprocessor, which go on to further tiles; 0: one for each tile */
  int32_t cluster;        /* blocks of threads of a cluster; 0: none */
  uint64_t scratch_bytes; /* of workspace for each block of threads of a persistent kernel */
  int32_t tma_box_heads,
      tma_box_tokens;   /* of a box of q in shared memory; its tensor map has them */
  int32_t tma_box_keys; /* of a box of k or v; 0: the kernel takes no tensor maps (NsaiAttendTma,
                       NsaiAttendSelectedTma) */
  bool
      interleaved_keys; /* boxes of k and v have the order of tma_load_interleaved() in core/tma.cuh */
  bool reads_no_lists; /* attend_selected: dense attention, which reads no lists (NsaiAttend) */
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
  NSAI_TILE_ROWS,    /* query rows of a block of threads */
  NSAI_TILE_KEYS,    /* keys at a time */
  NSAI_TILE_WARPS,   /* that compute */
  NSAI_TILE_STAGES,  /* of the ring of keys */
  NSAI_TILE_CTAS,    /* per multiprocessor that the registers are divided for */
  NSAI_TILE_CLUSTER, /* blocks of threads of a cluster */
  NSAI_TILE_COUNT
} nsai_tile;

/* "keys". Static storage. */
const char *nsai_tile_name(nsai_tile tile);

/* A value for each; 0 where the variant has no such constant. */
typedef struct nsai_tiles {
  int32_t of[NSAI_TILE_COUNT];
} nsai_tiles;

/* Who chose a stage's variant or tiles, from the most to the least particular. */
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

typedef struct nsai_variant {
  const char *name;
  nsai_stage stage;
  const char *why;      /* what it is good for, for `nsa-autotune show` and nsa_explain */
  bool deterministic;   /* bit-identical from run to run */
  bool fp32_importance; /* importance is computed and compared in fp32, or not at all */
  /* Adds a sentence for everything that forbids it here. No sentence: it is legal. */
  void (*legal)(const nsai_problem *, const nsai_target *, nsai_reasons *);
  /* Whether the heuristic may choose it. NULL: always. */
  bool (*sensible)(const nsai_problem *, const nsai_target *);
  /* Fills the specs of its kernels. Called for legal variants and tiles that fit only. */
  void (*specify)(const nsai_problem *, const nsai_target *, const nsai_tiles *,
                  nsai_kernel_spec specs[NSAI_ROLES]);
  const nsai_space *space; /* NULL: nothing to choose */
  uint32_t fuses; /* 1 << stage for each further stage that it does itself, all behind its own;
                      `specify` fills the kernels of them all, see nsai_specify_standalone */
} nsai_variant;

static inline bool nsai_fuses(const nsai_variant *variant, nsai_stage stage) {
  return variant->fuses >> stage & 1;
}

/* The variants of all stages, ordered by stage and preference: variants/table.c. A row without a
 * name ends them. */
extern const nsai_variant nsai_variants[];

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

/* What has been decided beforehand, by a record or the tuner. */
typedef struct nsai_decisions {
  nsai_candidate stage[NSAI_STAGE_COUNT]; /* variant NULL: nothing */
  bool other_heads;                       /* by records of another number of heads */
  char why[256]; /* "record of 65536 tokens, ...", "record of G 16, 65536 tokens, ..."; "" */
} nsai_decisions;

/* The choice for one problem: a variant per needed stage, NULL for the others. A covered stage has
 * the variant and the tiles of the one that covers it. */
typedef struct nsai_choice {
  const nsai_variant *variant[NSAI_STAGE_COUNT];
  nsai_tiles tiles[NSAI_STAGE_COUNT];
  nsai_decider decider[NSAI_STAGE_COUNT]; /* of the tiles, or of the variant where there are none */
  nsai_kernel_spec specs[NSAI_ROLES];
  uint64_t scratch_bytes; /* of workspace, for the kernel that wants most; 0 where the target's
                             multiprocessors are unknown */
} nsai_choice;

/* Whether the variant of another stage does this one. */
static inline bool nsai_is_fused(const nsai_choice *choice, nsai_stage stage) {
  return choice->variant[stage] && choice->variant[stage]->stage != stage;
}

/* Chooses by the configuration's force and disable lists, then by `decisions` (NULL: none) where
 * they are legal, then by the table's order and its heuristics. When `explain` is not NULL, writes
 * every stage's variants with all reasons. NSA_E_UNSUPPORTED (every reason in the error text) when a
 * stage has none. */
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

/* Adds every reason against these tiles of a variant: one that the ranges do not hold, and `fit`'s.
 */
void nsai_tiles_reasons(const nsai_variant *variant, const nsai_problem *problem,
                        const nsai_target *target, const nsai_tiles *tiles, nsai_reasons *reasons);

/* Steps through all combinations of the ranges, whether they fit or not, from one that is all zero;
 * false behind the last. */
bool nsai_tiles_next(const nsai_space *space, nsai_tiles *tiles);

/* "attend_window_sm80 rows=128 keys=64 warps=4 ctas=2", and back; false: no such variant of the
 * stage, no such tile, or one is missing. */
void nsai_candidate_print(const nsai_candidate *candidate, nsai_writer *out);
bool nsai_candidate_parse(const char *text, nsai_stage stage, nsai_candidate *out);

/* Writes the generated unit of a kernel: problem line, Config, include of the template. The first
 * line is a comment and not part of the kernel's identity: what the code depends on is in Config.
 */
void nsai_kernel_unit(const nsai_kernel_spec *spec, const nsai_problem *problem, nsai_writer *out);

#endif /* NSAI_PLAN_VARIANT_H */

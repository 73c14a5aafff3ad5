/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The variant table: every way to do every stage, in one place.
 *
 * A variant has a stable name, says whether it is legal (can it serve this problem on this device:
 * all reasons against it) and, apart from that, whether it is sensible (is it worth timing), and
 * turns a problem into the kernels it launches: template, named constants, threads, shared bytes.
 * The table is ordered by preference: with no record, the first legal and sensible variant of a
 * stage is taken.
 */
#ifndef NSAI_VARIANTS_H
#define NSAI_VARIANTS_H

#include "config.h"
#include "problem.h"
#include "writer.h"

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
  NSAI_KERNEL_ATTEND_SELECTED,
  NSAI_KERNEL_ATTEND_WINDOW,
  NSAI_KERNEL_DENSE,
  NSAI_KERNEL_SOFTMAX,
  NSAI_ROLES
} nsai_role;

/* What kernels are made for: a device or, without one, an architecture. */
typedef struct nsai_target {
  const char *arch;      /* "sm_90a" */
  uint32_t shared_bytes; /* per block, opt-in */
  int32_t caution; /* 0: the fastest tiles, which just fit the registers with the compiler they were
                      tried with; up to NSAI_MAX_CAUTION: smaller ones, for other compilers */
} nsai_target;
#define NSAI_MAX_CAUTION 2

#define NSAI_MAX_CONSTANTS 24
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
  uint32_t shared_bytes; /* dynamic */
  int32_t tokens;        /* query tokens a block of threads takes; 0: not tiled by tokens */
  int32_t constant_count;
  nsai_constant constants[NSAI_MAX_CONSTANTS];
} nsai_kernel_spec;

/* Collects reasons, one per line, while `legal` runs. */
typedef struct nsai_reasons {
  nsai_writer text;
  int count;
} nsai_reasons;

typedef struct nsai_variant {
  const char *name;
  nsai_stage stage;
  const char *why;      /* what it is good for, for `nsa-autotune show` and nsa_explain */
  bool deterministic;   /* bit-identical from run to run: what problem.deterministic asks for */
  bool fp32_importance; /* importance is computed and compared in fp32, or not at all: what
                           problem.parity asks for */
  /* Adds a sentence for everything that forbids it here. No sentence: it is legal. */
  void (*legal)(const nsai_problem *, const nsai_target *, nsai_reasons *);
  /* Whether the heuristic may choose it. NULL: always. */
  bool (*sensible)(const nsai_problem *, const nsai_target *);
  /* Fills the specs of its kernels. Called for legal variants only. */
  void (*specify)(const nsai_problem *, const nsai_target *, nsai_kernel_spec specs[NSAI_ROLES]);
} nsai_variant;

/* The variants of all stages, ordered by stage and preference. */
extern const nsai_variant nsai_variants[];
extern const int nsai_variant_count;

/* Whether the problem runs the stage at all (phi external has no compress, n = 0 no select, ...).
 */
bool nsai_stage_needed(const nsai_problem *problem, nsai_stage stage);

/* The choice for one problem: a variant per needed stage, NULL for the others. */
typedef struct nsai_choice {
  const nsai_variant *variant[NSAI_STAGE_COUNT];
  nsai_kernel_spec specs[NSAI_ROLES];
} nsai_choice;

/* Chooses by the configuration's force and disable lists, then by the table's order. When `explain`
 * is not NULL, writes every stage's variants with all reasons. NSA_E_UNSUPPORTED (every reason in
 * the error text) when a stage has none. */
nsa_status nsai_choose(const nsai_config *config, const nsai_problem *problem,
                       const nsai_target *target, nsai_writer *explain, nsai_choice *out);

/* Adds every reason against one variant: the configuration's, the problem's wishes, and `legal`'s.
 */
void nsai_variant_judge(const nsai_config *config, const nsai_problem *problem,
                        const nsai_target *target, const nsai_variant *variant,
                        nsai_reasons *reasons);

/* Whether a glob of variants.disable means the variant "stage.name". */
bool nsai_variant_matches(const nsai_variant *variant, const char *pattern);

/* Writes the generated unit of a kernel: problem line, Config, include of the template. The first
 * line is a comment and not part of the kernel's identity: what the code depends on is in Config.
 */
void nsai_kernel_unit(const nsai_kernel_spec *spec, const nsai_problem *problem, nsai_writer *out);

#endif /* NSAI_VARIANTS_H */

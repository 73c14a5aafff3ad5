/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Measured results: a list of problems, each with the times of its parts. measure.c or a CSV
 * (csv.h) fills it; report.h and bench/plot/figures.h present it.
 */
#ifndef BENCH_RESULTS_H
#define BENCH_RESULTS_H

#include "base/error.h"
#include "plot/crossover.h"
#include "verify/case.h"
#include "verify/inputs.h"

/* The parts of a problem that can be timed, in the order of tables. */
typedef enum bench_part {
  BENCH_COMPRESS,   /* phi alone */
  BENCH_FORWARD,    /* the complete nsa_forward */
  BENCH_COMPRESSED, /* from here: single branches, including the stages they need */
  BENCH_SELECTED,
  BENCH_WINDOW,
  BENCH_DENSE,      /* the library's own causal attention over the same tensors */
  BENCH_DENSE_GEMM, /* the same by plain matrix products */
  BENCH_BACKWARD,   /* the complete nsa_backward, given only the selection */
  /* the same, given also the branches' outputs, LSE and compressed keys of the forward */
  BENCH_BACKWARD_SAVED,
  BENCH_FORWARD_SAVED, /* the nsa_forward that writes these, and the selection */
  BENCH_INDEX_KL,      /* nsa_index_kl over the forward's blocks, loss and both gradients */
  BENCH_INDEX_KL_ALL,  /* its warm-up, over every token that a query sees */
  BENCH_PARTS
} bench_part;

extern const char *const bench_part_names[BENCH_PARTS];

typedef struct bench_time {
  int present;                   /* 0: was not requested */
  double burst_ms, sustained_ms; /* 0: has no time, and `note` has the reason */
  double tflops, gbps;           /* useful operations and compulsory bytes over burst_ms */
  /* fraction of the device's bound; 0: the device's figures are unknown */
  double roofline;
  uint64_t workspace; /* bytes */
  char note[160];
} bench_time;

typedef struct bench_problem {
  nsai_verify_case c;
  char date[24], commit[48], device[96]; /* UTC, ISO 8601; as given by --commit; its name */
  char variants[512];                    /* the chosen ones; empty when read from a CSV */
  nsai_verify_overlap overlap;
  double plan_cold_ms, plan_warm_ms; /* 0: not measured */
  bench_time part[BENCH_PARTS];
} bench_problem;

typedef struct bench_results {
  bench_problem *problem;
  int64_t count;
} bench_results;

/* Appends a problem without times. *out belongs to the list and is valid until the next call. */
nsa_status bench_results_add(bench_results *results, const nsai_verify_case *c,
                             bench_problem **out);
void bench_results_free(bench_results *results);

/* The burst time of a part; 0 when it has none. */
double bench_ms(const bench_problem *p, bench_part part);

/* The faster of dense and dense_gemm; 0 when neither has a time. */
double bench_baseline_ms(const bench_problem *p);

/* `ms` divided by the burst time of `part`; 0 when either is missing, and for phi, which is no
 * attention. */
double bench_ratio(const bench_problem *p, double ms, bench_part part);

int64_t bench_tokens(const bench_problem *p);
const char *bench_fill_name(const bench_problem *p);

/* The main part of a run: the forward, else the branch that was swept. BENCH_PARTS: nothing was
 * timed. */
bench_part bench_lead(const bench_problem *p);

/* Whether two problems differ only in lengths, inputs and the overlap hint. */
int bench_same_model(const nsai_verify_case *a, const nsai_verify_case *b);

/* The crossover of one model and fill. */
typedef struct bench_series {
  const bench_problem *first; /* the model; its fill */
  bench_part part;            /* the part that is compared with dense */
  int64_t lengths;            /* number of lengths with both times */
  bench_crossing crossing;
  double tokens;
} bench_series;

/* The crossovers of all models and fills with at least two lengths, in order of appearance. The
 * caller frees *out. */
nsa_status bench_crossovers(const bench_results *results, bench_series **out, int64_t *count);

#endif /* BENCH_RESULTS_H */

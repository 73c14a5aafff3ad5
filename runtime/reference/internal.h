/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the files of the CPU device share: the problem of one call, the sequences of its batch,
 * the compressed keys, a thread's scratch memory, and the steps for one (token, KV group).
 *
 * A call builds one nsai_ref_problem, which is read-only while threads run. Work is divided into
 * items of a fixed size, and an item's result depends only on its inputs, so results do not
 * depend on the number of threads. The heads of a KV group are processed together, as the lanes
 * of vectors:
 *
 *   scores [keys, lanes] = K [keys, Dk] . q [Dk, lanes]       lanes = G rounded up to 8, the rest 0
 *   out    [Dv, lanes]   = V^T [Dv, keys] . scores [keys, lanes]
 */
#ifndef NSAI_REFERENCE_INTERNAL_H
#define NSAI_REFERENCE_INTERNAL_H

#include "base/error.h"
#include "reference/reference.h"
#include "reference/tensor.h"

#include <stdbool.h>

/* ---- parallel.c ---- */

typedef void (*nsai_ref_item_fn)(void *context, int worker, int64_t item);

/* Number of workers for this many threads and items: at least 1. */
int nsai_ref_worker_count(int threads, int64_t items);

/* Runs items 0 .. items-1 on `workers` threads, including the caller's, and returns when all are
 * done. `worker` tells the item which scratch memory to use. */
void nsai_ref_parallel(int workers, int64_t items, nsai_ref_item_fn run, void *context);

/* ---- multiply.c: the two functions that take most of the time ---- */

#define NSAI_REF_LANES 8 /* doubles of one AVX-512 register */

/* c [m, n] += a [m, k] . b [k, n]; n is a multiple of NSAI_REF_LANES, strides are in doubles. */
typedef struct nsai_ref_product {
  int64_t m, k, n;
  const double *a;
  int64_t a_row, a_column;
  const double *b;
  int64_t b_row;
  double *c;
  int64_t c_row;
} nsai_ref_product;

typedef struct nsai_ref_ops {
  void (*multiply)(const nsai_ref_product *product);
  /* Widens `count` values of f32, bf16, fp16 or e4m3 (without its scale) to double, exactly. */
  void (*widen)(int32_t dtype, const void *source, int64_t count, double *target);
} nsai_ref_ops;

/* The implementations that this processor can run, by speed: rank 0 is the fastest, NULL after
 * the last. */
const nsai_ref_ops *nsai_ref_ops_get(int rank);

static inline int64_t nsai_ref_lanes(int64_t count) {
  return (count + NSAI_REF_LANES - 1) / NSAI_REF_LANES * NSAI_REF_LANES;
}

/* ---- sequence.c ---- */

/* How the rows are divided into sequences. Arrays of count + 1 in one allocation that `q` owns.
 * With a cache `kv` only counts tokens; cache_rows.c locates them. */
typedef struct nsai_ref_sequences {
  int64_t count;
  int64_t *q, *kv; /* first token of each sequence in q and in the KV tensors */
  int64_t *blocks; /* compressed blocks that this call reads or writes, packed without gaps */
  int64_t *first;  /* index of the first of them within its sequence: 0 except in an append */
  int64_t *stored; /* first compressed block in io.kv.k_cmp and v_cmp; not used with a cache */
  int64_t *norms;  /* coarse keys, and first_norm, as blocks and first */
  int64_t *first_norm;
  int64_t max_norm; /* most coarse keys of a sequence */
  int64_t max_kv;   /* longest sequence, KV tokens */
  int64_t max_cmp;  /* most compressed blocks of a sequence */
} nsai_ref_sequences;

nsa_status nsai_ref_sequences_init(nsai_ref_sequences *sequences, const nsai_model *model,
                                   const nsa_batch *batch, const nsa_io *io);

/* The sequences of a batch over a cache, with `tokens` rows of q. The blocks are those of all
 * its tokens; with `appends`, those that the new tokens complete. */
nsa_status nsai_ref_sequences_init_cached(nsai_ref_sequences *sequences, const nsai_model *model,
                                          const nsa_batch *batch, int64_t tokens, bool appends);
void nsai_ref_sequences_fini(nsai_ref_sequences *sequences);

/* A query row: its sequence and its position in it. A row with t < 0 has no keys, nor has a row
 * after the last sequence. */
typedef struct nsai_ref_position {
  int64_t sequence, t;
} nsai_ref_position;

nsai_ref_position nsai_ref_sequences_find(const nsai_ref_sequences *sequences, int64_t token);

/* The sequence of element `at`, from ascending `starts` [count + 1]; skips empty sequences. */
int64_t nsai_ref_sequence_of(const int64_t *starts, int64_t count, int64_t at);

/* ---- problem.c: the problem of one call ---- */

typedef struct nsai_ref_problem {
  const nsai_model *model;
  const nsai_reference_cache *cache; /* NULL: packed K and V */
  const nsa_batch *batch;            /* NULL: one sequence */
  const nsa_io *io;
  const nsai_ref_ops *ops;
  int32_t selection;
  bool run[NSA_BRANCHES];
  bool select;              /* the library selects blocks: needs the importance */
  bool gated;               /* o is requested */
  nsai_ref_rounding stored; /* of what an implementation stores: compressed keys and values, hidden
                               layers, gradients of layers' outputs, P' and dS */
  double scale;             /* of the softmax */
  int64_t lanes;            /* of a KV group */
  nsai_ref_sequences sequences;
  double *k_cmp, *v_cmp; /* [Hkv, blocks of all sequences, D], owned; NULL: not needed */
  double *k_norm;        /* [Hkv, coarse keys of all sequences, Dk], owned; NULL: not needed */
  double *k_idx;         /* [KV tokens of all sequences, Di], owned; NULL: not needed */
  int threads;
} nsai_ref_problem;

/* Initialises what every call needs. `problem` must be zero except for `cache`.
 * nsai_ref_problem_fini is valid after a failure too. */
nsa_status nsai_ref_problem_init(nsai_ref_problem *problem, const nsai_model *model,
                                 const nsa_batch *batch, const nsa_io *io, int threads);
void nsai_ref_problem_fini(nsai_ref_problem *problem);

/* Sets which branches run: bit b is branch b; 0: all that the model has. */
void nsai_ref_problem_run(nsai_ref_problem *problem, uint32_t branches);

/* The largest number of keys that a branch of this call reads. */
int64_t nsai_ref_most_keys(const nsai_ref_problem *problem);

/* Initialises everything except the sequences. */
void nsai_ref_problem_begin(nsai_ref_problem *problem, const nsai_model *model,
                            const nsa_batch *batch, const nsa_io *io, int threads);

/* ---- cache_rows.c: offsets of tokens, in elements ---- */

/* KV head `head` of the token at `position` of a sequence, in `x`: K or V of pair `pair`. */
int64_t nsai_ref_token_at(const nsai_ref_problem *problem, const nsa_tensor *x, int pair,
                          int64_t sequence, int64_t position, int64_t head);

/* The same for compressed block `block` in `x`, K or V of a cache. */
int64_t nsai_ref_entry_at(const nsai_ref_problem *problem, const nsa_tensor *x, int64_t sequence,
                          int64_t block, int64_t head);

/* The same for coarse key `block` in `x`, io->k_norm. */
int64_t nsai_ref_norm_at(const nsai_ref_problem *problem, const nsa_tensor *x, int64_t sequence,
                         int64_t block, int64_t head);

/* The same for the index key of the token at `position` in `x`, io->k_idx. */
int64_t nsai_ref_index_key_at(const nsai_ref_problem *problem, const nsa_tensor *x,
                              int64_t sequence, int64_t position);

/* Whether this rank has the block whose first token stands at `position`; without ranks it has all. */
bool nsai_ref_owns(const nsai_ref_problem *problem, int64_t position);

/* ---- codes.c: a cache in NSA_E4M3 ---- */

/* The scale of KV head `head` in `x`, a tensor of io.kv or io.k_idx; 1 where it has no codes. */
double nsai_ref_scale(const nsai_ref_problem *problem, const nsa_tensor *x, int64_t head);

/* Widens a row of `x`, a tensor of io.kv, from offset `at`: the values, with their scale. */
void nsai_ref_widen_scaled(const nsai_ref_problem *problem, const nsa_tensor *x, int64_t at,
                           int64_t head, int64_t count, double *out);

/* The code of a value, as the contract in nsa/kv_cache.h has it: a division in float32, then one
 * rounding. */
uint8_t nsai_ref_code(double value, double scale);

/* ---- scratch.c: a thread's memory ---- */

#define NSAI_REF_TILE 32 /* keys widened at once: a tile of D 192 and the group's q fit into L2 */
#define NSAI_REF_SLAB 16 /* rows of one work item: gate weights are widened once for all of them */

typedef struct nsai_ref_range {
  int64_t begin, end; /* tokens or compressed blocks, within the sequence */
} nsai_ref_range;

typedef struct nsai_ref_scratch {
  double *q;                                   /* [Dk, lanes], scaled */
  double *scores;                              /* [most keys of a branch, lanes] */
  double *tile;                                /* [TILE, max(Dk, Dv)] */
  double *out[NSA_BRANCHES];                   /* [Dv, lanes] */
  double *lse[NSA_BRANCHES];                   /* [lanes] */
  double *inverse;                             /* [lanes]: 1 / sum of the softmax */
  double *norm;                                /* [lanes]: LSE of the coarse keys */
  double *index_q;                             /* [Di, NSAI_REF_LANES]: an index query in lane 0 */
  double *index_scores;                        /* [TILE, NSAI_REF_LANES] */
  double *importance;                          /* [selection blocks of the longest sequence] */
  double *gates;                               /* [SLAB, Hq * 3, rounded up to lanes] */
  double *gate_x, *gate_hidden, *gate_weights; /* gate.c */
  nsai_ref_range *ranges;                      /* [max(n, 1)] */
  int32_t *idx;                                /* [n] */
} nsai_ref_scratch;

/* Allocates an array with the zeroed scratch of `workers` threads; destroy accepts NULL. `keys`:
 * the largest number of keys that a branch reads. */
nsa_status nsai_ref_scratch_create(const nsai_ref_problem *problem, int64_t keys, int workers,
                                   nsai_ref_scratch **out);
void nsai_ref_scratch_destroy(nsai_ref_scratch *scratch);

/* `count` zeroed doubles on a cache line boundary; NULL without memory. Free with free. */
double *nsai_ref_doubles(int64_t count);

/* Returns the next `count` doubles of `memory` on a cache line boundary and adds them to `used`.
 * With memory NULL it only counts, so that one layout function gives both size and pointers. */
double *nsai_ref_take(double *memory, int64_t *used, int64_t count);

/* ---- compress.c ---- */

/* Fills problem->k_cmp (and v_cmp) by phi, or from io with phi external. */
nsa_status nsai_ref_compress(nsai_ref_problem *problem, bool want_v);

/* Fills problem->k_cmp (and v_cmp) from the cache. */
nsa_status nsai_ref_compress_load(nsai_ref_problem *problem, bool want_v);

/* K or V as an input of phi. */
typedef struct nsai_ref_phi_input {
  const nsa_tensor *source; /* raw tokens */
  const nsa_phi_side *phi;
  int64_t dim;
} nsai_ref_phi_input;

/* A block: its sequence, and its index within it. */
typedef struct nsai_ref_block {
  int64_t sequence, index;
} nsai_ref_block;

/* Block `at`, counted over all sequences. */
nsai_ref_block nsai_ref_find_block(const nsai_ref_problem *problem, int64_t at);

/* x [l * D] = vec(tokens + pe) of a block of one KV head, token-major; `pe` [D] is scratch. */
void nsai_ref_gather_block(const nsai_ref_problem *problem, const nsai_ref_phi_input *input,
                           nsai_ref_block block, int64_t head, double *x, double *pe);

/* Rounds k_cmp and v_cmp into the tensors of io that are present. */
void nsai_ref_compress_store(const nsai_ref_problem *problem);

/* ---- project.c, project_back.c: dense layers with weights in storage dtype ---- */

#define NSAI_REF_WEIGHT_ROWS 64 /* rows of a weight matrix widened at once */

/* act(x . w1 + b1) . w2 + b2, or, with one layer, x . w2 + b2. */
typedef struct nsai_ref_layers {
  const nsai_ref_ops *ops;
  const nsa_tensor *w1, *w2; /* [.., in, hidden], [.., hidden or in, out] */
  const nsa_tensor *b1, *b2; /* [.., hidden], [.., out]; absent: zeros */
  int64_t head;              /* index of the first of three dims; unused with two dims */
  int64_t in, hidden, out;   /* hidden 0: one layer */
  nsai_activation activation;
  nsai_ref_rounding stored; /* of the hidden layer and of gradients */
} nsai_ref_layers;

/* The layers of phi, of one KV head and K or V; those of the gate MLP. */
nsai_ref_layers nsai_ref_phi_layers(const nsai_ref_problem *problem, const nsa_phi_side *phi,
                                    int64_t dim, int64_t head);
nsai_ref_layers nsai_ref_gate_layers(const nsai_ref_problem *problem);

/* y of x [rows, in]. Rows of `hidden` [rows, hidden], of y and of `buffer` [WEIGHT_ROWS, the wider
 * of both] are rounded up to lanes. */
void nsai_ref_run_layers(const nsai_ref_layers *layers, int64_t rows, const double *x,
                         double *hidden, double *buffer, double *y);

/* The first of two layers, and its activation of `values`, its output. */
void nsai_ref_run_first_layer(const nsai_ref_layers *layers, int64_t rows, const double *x,
                              double *buffer, double *y);
void nsai_ref_activate(const nsai_ref_layers *layers, int64_t rows, double *values);

/* Memory of the gradients of layers; rows are rounded up to lanes, except those of x. */
typedef struct nsai_ref_layers_memory {
  double *x, *d_x;           /* [rows, in] */
  double *inputs, *hidden;   /* [rows, hidden]: before and after the activation */
  double *d_hidden;          /* [rows, hidden] */
  double *weights;           /* [WEIGHT_ROWS, hidden] */
  double *w1_back, *w2_back; /* [hidden, in], [out, hidden or in]: transposed weights */
  double *d_w1, *d_b1;       /* [in, hidden], [hidden] */
  double *d_w2, *d_b2;       /* [hidden or in, out], [out] */
} nsai_ref_layers_memory;

/* Divides `memory` (NULL: nothing) for up to `rows` rows and returns how many doubles there are. */
int64_t nsai_ref_layers_lay_out(const nsai_ref_layers *layers, int64_t rows, double *memory,
                                nsai_ref_layers_memory *out);

/* Widens the weights for nsai_ref_layers_back. The memory must be zero. */
void nsai_ref_layers_transpose(const nsai_ref_layers *layers, const nsai_ref_layers_memory *m);

/* From d_y [rows, out rounded up to lanes] and m->x to m->d_x; adds to the weights' gradients. With
 * layers->stored d_y is rounded. */
void nsai_ref_layers_back(const nsai_ref_layers *layers, const nsai_ref_layers_memory *m,
                          int64_t rows, double *d_y);

double nsai_ref_sigmoid(double value);

/* ---- attend.c ---- */

/* Keys and values of one (sequence, KV head), in storage dtype or widened. */
typedef struct nsai_ref_keys {
  const nsa_tensor *k, *v; /* read when k64 is NULL */
  int branch;              /* the branch that reads them */
  int pair;                /* their pair in io.kv */
  int64_t sequence, head;  /* KV head */
  const double *k64, *v64; /* [keys, D] without gaps */
} nsai_ref_keys;

/* Loads and scales the group's queries of one token. */
void nsai_ref_load_query(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t token,
                         int64_t group);

/* out [count, lanes] = rows [count, dim] . x [dim, lanes]; stored: as float32 sums of 16 columns at a
 * time. */
void nsai_ref_dots(const nsai_ref_problem *problem, int64_t count, int64_t dim, const double *rows,
                   const double *x, double *out);

/* Writes the scores of all keys of `ranges` to scratch->scores and returns their number. */
int64_t nsai_ref_scores(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                        const nsai_ref_keys *keys, int64_t range_count);

/* Writes exp(score - max) of all keys of `ranges` to scratch->scores, the reciprocals of the
 * sums to scratch->inverse, and the log-sum-exp to `lse`. Returns the number of keys; without
 * keys, lse is -inf. */
int64_t nsai_ref_probabilities(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                               const nsai_ref_keys *keys, int64_t range_count, double *lse);

/* out = scores . V, normalised; zeros without keys. */
void nsai_ref_values(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                     const nsai_ref_keys *keys, int64_t range_count, double *out);

/* Rows of `source`, K or V of `keys` in storage dtype, as [count, dim] in scratch->tile. */
const double *nsai_ref_widen_rows(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                                  const nsai_ref_keys *keys, const nsa_tensor *source, int64_t dim,
                                  nsai_ref_range rows);

/* The next tile of at most TILE keys of a range, starting at *begin; false at its end. */
bool nsai_ref_next_tile(const nsai_ref_range *range, int64_t *begin, nsai_ref_range *tile);

/* Computes all branches of one (token, KV group) into scratch->out, lse and, with selection,
 * idx. */
void nsai_ref_attend(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t token,
                     nsai_ref_position position, int64_t group);

/* Computes dense causal attention of one (token, KV group) into scratch->out[0], lse[0]. */
void nsai_ref_attend_dense(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                           int64_t token, nsai_ref_position position, int64_t group);

/* ---- importance.c ---- */

/* The compressed keys and values of a (sequence, KV head). */
nsai_ref_keys nsai_ref_compressed_keys(const nsai_ref_problem *problem, int64_t sequence,
                                       int64_t group);

/* How many compressed blocks the query at `position` sees. */
int64_t nsai_ref_visible_blocks(const nsai_ref_problem *problem, nsai_ref_position position);

/* The compressed branch's probabilities, as nsai_ref_probabilities gives them, of the query at
 * `position`, which is loaded. `ranks`: also scratch->importance [t / l' + 1]; with a normaliser the
 * probabilities are then there where the branch runs alone. */
void nsai_ref_rank(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                   nsai_ref_position position, int64_t group, bool ranks);

/* Computes the importance of the rows in io->probe_rows into io->probe_importance. */
void nsai_ref_probe(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int workers);

/* ---- normalizer.c: nothing where the model has none ---- */

/* Fills problem->k_norm from raw keys: of a forward, or the ones that an append completes. */
nsa_status nsai_ref_normalizer_make(nsai_ref_problem *problem);

/* Fills it for a selection: from the cache if there is one, else from raw keys. */
nsa_status nsai_ref_normalizer_open(nsai_ref_problem *problem);

/* Writes the log-sum-exp of the coarse keys that the query at `position` sees to scratch->norm; -inf
 * where it sees none. */
void nsai_ref_normalize(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                        nsai_ref_position position, int64_t group);

/* ---- index.c: of a model whose index branch chooses blocks ---- */

/* Fills problem->k_idx from the cache or from io->k_idx. */
nsa_status nsai_ref_index_open(nsai_ref_problem *problem);

/* Computes scratch->importance [t / l' + 1] of `token` for KV head `group`: the greatest score of the
 * tokens of each block that it sees. */
void nsai_ref_index_rank(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t token,
                         nsai_ref_position position, int64_t group);

/* ---- reads.c ---- */

/* Rows of K or V of one (sequence, KV head) that a branch reads. */
typedef struct nsai_ref_reads {
  const nsa_tensor *source;
  bool is_k; /* tokens are counted by their K */
  int branch;
  int64_t sequence, head, rows, dim;
} nsai_ref_reads;

/* Adds them to io->kv_reads where that is present. Threads may count at once. */
void nsai_ref_count_reads(const nsai_ref_problem *problem, const nsai_ref_reads *reads);

/* Adds them to io->reads if it is present. Threads may count concurrently. */

/* Writes scratch->idx to io->block_idx [T, Hkv, n]. */
void nsai_ref_store_idx(const nsai_ref_problem *problem, const nsai_ref_scratch *scratch,
                        int64_t token, int64_t group);

/* Writes the token ranges that a row attends to, ascending and disjoint, to scratch->ranges:
 * from scratch->idx or the caller's blocks or ranges. Returns their number. */
int64_t nsai_ref_selected_ranges(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                                 int64_t token, int64_t t, int64_t group);

/* ---- ranks.c: a decode whose raw pages lie on ranks ---- */

/* The results of all tokens between the two passes. */
typedef struct nsai_ref_partials {
  int64_t tokens; /* T: rows of q */
  double *kept;   /* of the branches that need no other rank */
  float *all;     /* [ranks, T, Hq, Dv + 2]: of the selected branch */
  float *own;     /* this rank's of them */
} nsai_ref_partials;

/* NSA_E_NOMEM; nsai_ref_partials_fini is valid after it, too, and for zeros. */
nsa_status nsai_ref_partials_init(nsai_ref_partials *partials, const nsai_ref_problem *problem);
void nsai_ref_partials_fini(nsai_ref_partials *partials);

/* Keeps what nsai_ref_attend left in the scratch, and brings it back with the selected branch of all
 * ranks. */
void nsai_ref_partials_store(const nsai_ref_partials *partials, const nsai_ref_problem *problem,
                             const nsai_ref_scratch *scratch, int64_t token, int64_t group);
void nsai_ref_partials_load(const nsai_ref_partials *partials, const nsai_ref_problem *problem,
                            nsai_ref_scratch *scratch, int64_t token, int64_t group);

/* Between the two: the exchange. */
nsa_status nsai_ref_partials_gather(const nsai_ref_partials *partials,
                                    const nsai_ref_problem *problem);

/* ---- gate.c ---- */

/* Gates of `count` <= SLAB tokens into scratch->gates [count, Hq * 3]. */
void nsai_ref_gates(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t count,
                    const int64_t *tokens);

/* Doubles between the rows of scratch->gates. */
static inline int64_t nsai_ref_gate_row(const nsai_model *g) {
  return nsai_ref_lanes((int64_t)g->heads * NSA_BRANCHES);
}

#endif /* NSAI_REFERENCE_INTERNAL_H */

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Runs over ranks: gather, then compute (ranks_overlap.c does both at once). Each rank receives the K and V
 * that its queries may see, in the order of sequences and positions, and compresses them once. Then it runs
 * its pieces one after the other, each as a run of one sequence whose keys end with the piece. A forward on
 * the GPU takes them all in one run where it can (nsai_shard_offsets): fewer launches, and fewer that leave
 * SMs idle at their end. H200, bf16, 64/4 heads, D 128, forward of one rank without the gather, a run a piece
 * and one run: 16k tokens on 2 ranks 1.89 and 1.85 ms, 64k on 2 12.2 and 11.9, 128k on 8 7.80 and 7.11, 128k
 * on 64 1.44 and 1.37.
 *
 * The backward pass also sends each rank's partial sums of dK and dV to the ranks that own the tokens.
 *
 * Over several hosts both go in two levels. Rank r is the one of index r mod H on host r / H, where H ranks
 * share a host, and ranks of one index are a column:
 *
 *   K, V   1. between hosts, along columns: the rows of a rank, to the hosts that need them
 *          2. inside a host: the rows of its column, to the ranks that need them
 *   sums   1. inside a host: its partial sums of a column, to the rank of that column, which adds them up
 *          2. between hosts, along columns: the sum of a host, to the rank that owns the rows
 *
 * So each row crosses between two hosts once, not H times. On one host the level between hosts is empty.
 *
 * H200, 64/4 heads, D 128, shared K and V, random inputs, NCCL, ms on one GPU and on two; the backward
 * pass with saved outputs, and without:
 *
 *   tokens   forward                backward, saved         backward
 *   32k       9.0    4.8 (1.87 x)                           33.8   18.5 (1.83 x)
 *   64k      25.5   13.0 (1.97 x)   59.9   31.7 (1.89 x)    86.4   45.9 (1.88 x)
 *   128k     74.7   38.2 (1.96 x)  172.4   87.5 (1.97 x)   244.3  127.7 (1.91 x)
 *   1M               1487                                            4716
 *
 * K and V take 0.3 ms at 64k, 0.5 at 128k and 3.0 at 1M, where the backward pass takes two KV heads at a
 * time.
 */
#ifndef NSAI_RUN_RANKS_H
#define NSAI_RUN_RANKS_H

#include "ranks/comm.h"
#include "ranks/shard.h"
#include "run/run.h"

/* nsa_forward and nsa_backward over ranks, on the GPU and on the CPU device, behind nsai_comm_begin.
 * Arguments have been checked. A failure ends the communicator once other ranks may wait. */
nsa_status nsai_forward_over_ranks(const nsai_run *run);
nsa_status nsai_backward_over_ranks(const nsai_run *run);

/* nsa_decode and nsa_prefill over a cache whose raw pages lie on the ranks, likewise. */
nsa_status nsai_decode_over_ranks(const nsai_run *run);
nsa_status nsai_prefill_over_ranks(const nsai_run *run);

/* Compares the lengths of their batches, which are the same on all ranks: on the CPU device, and on a GPU with
 * runtime.check_inputs full, outside of captures. Waits for all ranks then. NSA_E_RANKS names the first that
 * differ; as it ends the communicator, a later rank may hear of that instead. */
nsa_status nsai_compare_lengths(const nsai_run *run);

/* The part of the latter on the GPU. */
nsa_status nsai_enqueue_prefill_over_ranks(const nsai_run *run);

/* ---- what both passes share ---- */

/* A list of the parts of one exchange. */
typedef struct nsai_part_list {
  nsa_part *part;
  int32_t count;
} nsai_part_list;

/* One run over ranks. */
typedef struct nsai_ranks_pass {
  const nsai_run *run;
  const nsa_shard *shard;
  const nsai_ranks_memory *memory;
  int32_t rank;
  int32_t hosts, host_ranks; /* their product is the number of ranks; 1 host: one level */
  int32_t host, index;       /* of this rank: its host, and its place there */
  const nsa_piece *piece;    /* [pieces]: this rank's */
  int32_t pieces;
  /* [ranks, num_seqs]: where a rank's last token of a sequence ends; 0: it has none. It needs no later
   * rows, and its sums have none. */
  int64_t *end;
  /* [hosts, num_seqs], behind `end`: the largest of a host's ranks. Not with one host. */
  int64_t *host_end;
  nsai_part_list send, recv;
  /* The communicator's, where gathered tensors and entries lie. NULL: they lie in the workspace. */
  char *room;
  /* The communicator's own stream, in which K, V or sums travel while the run computes. NULL: none does. */
  nsa_stream side;
  bool announces; /* copies, which others await. Else all ranks meet behind them */
  /* The pieces' offsets are in the workspace: one group of heads writes them for all. */
  bool uploaded;
} nsai_ranks_pass;

/* Rows of a tensor: [row, row + count) of the gathered one, and `local` of the rank's own. */
typedef struct nsai_ranks_rows {
  int64_t row, count, local;
} nsai_ranks_rows;

/* Takes the host memory of a pass, NSA_E_NOMEM; and frees it, which zeros allow. */
nsa_status nsai_ranks_open(const nsai_run *run, nsai_ranks_pass *out);
void nsai_ranks_close(nsai_ranks_pass *pass);

/* Rows of a piece up to the token `limit` of its sequence; `local` is not set. */
nsai_ranks_rows nsai_ranks_rows_of(const nsai_ranks_pass *pass, const nsai_ranks_tensor *tensor,
                                   const nsa_piece *piece, int64_t limit);

/* Where the last tokens of a rank, or of a host's ranks, end: [num_seqs]. */
static inline const int64_t *nsai_ranks_ends(const nsai_ranks_pass *pass, int32_t rank) {
  return pass->end + (int64_t)rank * pass->shard->num_seqs;
}
static inline const int64_t *nsai_ranks_host_ends(const nsai_ranks_pass *pass, int32_t host) {
  return pass->host_end + (int64_t)host * pass->shard->num_seqs;
}

static inline int32_t nsai_ranks_at(const nsai_ranks_pass *pass, int32_t host, int32_t index) {
  return host * pass->host_ranks + index;
}

/* Copies an array of the shard, which lives as long as graphs of the run. */
nsa_status nsai_ranks_upload(const nsai_run *run, void *to, const void *from, size_t bytes);

/* Where a gathered tensor, or entries that the run makes, lie in this pass: in the room, or in the workspace. */
char *nsai_ranks_buffer_at(const nsai_ranks_pass *pass, nsai_buffer buffer);

/* Copies this rank's K and V, the caller's entries, and keys of the index to their places, and opens the room. */
nsa_status nsai_ranks_pack(nsai_ranks_pass *pass);

typedef struct nsai_ranks_tensors {
  const nsai_ranks_tensor *tensor[NSAI_RANKS_TENSORS];
  int count;
} nsai_ranks_tensors;

/* Brings the other ranks' rows of these tensors, whose own are in place. */
nsa_status nsai_ranks_gather_rows(nsai_ranks_pass *pass, const nsai_ranks_tensors *list,
                                  nsa_stream stream);

/* Packs and gathers all of them. Where ranks copy, also in the side stream: the caller joins it, and behind a failure,
 * too. */
nsa_status nsai_ranks_gather(nsai_ranks_pass *pass);
nsa_status nsai_ranks_gather_beside(nsai_ranks_pass *pass);

/* Receives the last `rows[pair]` rows of each pair of K and V before this rank's pieces, and sends those that
 * other ranks need. The piece before has as many, or begins its sequence. */
nsa_status nsai_ranks_exchange_halo(nsai_ranks_pass *pass, const int64_t rows[NSA_BRANCHES],
                                    nsa_stream stream);

/* Inside a host: sends this rank's sums to the columns that own their rows, and receives those of its
 * own column. Then between hosts, where there are several: the same of the hosts' sums, which stand in
 * the place of this rank's. */
nsa_status nsai_ranks_send_inside(nsai_ranks_pass *pass);
nsa_status nsai_ranks_send_between(nsai_ranks_pass *pass);

/* Where ranks copy: the same inside a host, in the side stream. The run's stream awaits them. */
nsa_status nsai_ranks_copy_sums(nsai_ranks_pass *pass);

/* The part of the rank of index `from` of this host of the sums of a row, which is `local` of its owner: that
 * of this column on `host`. And another host's part of this rank's row `local`; both use the same memory,
 * one after the other. */
float *nsai_ranks_received_inside(const nsai_ranks_pass *pass, const nsai_ranks_tensor *tensor,
                                  int32_t from, int32_t host, int64_t local);
float *nsai_ranks_received_between(const nsai_ranks_pass *pass, const nsai_ranks_tensor *tensor,
                                   int32_t from, int64_t local);

/* Elements of the gathered tensor, or of its sums, before a row. */
static inline int64_t nsai_ranks_elements(const nsai_ranks_tensor *tensor, int64_t row) {
  return row * tensor->heads * tensor->dim;
}

/* Compresses the sequences of which this rank has pieces. On the CPU device each piece does. */
nsa_status nsai_ranks_compress(const nsai_ranks_pass *pass);

/* Compresses the tokens [begin, end) of a sequence: the blocks that lie within. On the GPU. */
nsa_status nsai_ranks_compress_tokens(const nsai_ranks_pass *pass, int32_t sequence, int64_t begin,
                                      int64_t end);

/* All pieces in one run, where kernels take them so (nsai_takes_pieces), on the GPU. NULL: raw K and V are
 * there. */
nsa_status nsai_ranks_run_at_once(nsai_ranks_pass *pass, nsai_awaited_keys *awaited);

/* Whether raw K and V travel while a forward computes: the same on all ranks, whatever branches and outputs
 * each asks for. And that forward. */
bool nsai_ranks_overlap(const nsa_comm *comm, const nsa_plan *plan, const nsa_shard *shard);
int64_t nsai_ranks_longest_halo(const nsa_plan *plan); /* tokens that pieces must then have */
nsa_status nsai_ranks_forward_overlapped(nsai_ranks_pass *pass);

/* The side stream of a pass begins here; and the run's stream waits for it, also after a failure: the caller, who
 * waits for the former, may then reuse the workspace. Returns `status`, if it is one. */
nsa_status nsai_ranks_fork(nsai_ranks_pass *pass);
nsa_status nsai_ranks_join(const nsai_ranks_pass *pass, nsa_status status);

/* The tensors of a piece: its rows, which begin at the local row `local`, and keys up to its end. */
void nsai_ranks_piece_io(const nsai_ranks_pass *pass, const nsa_piece *piece, int64_t local,
                         nsa_io *io);

/* The run of a piece over these tensors; `is` stays the caller's. */
nsai_run nsai_ranks_piece_run(const nsai_ranks_pass *pass, const nsa_piece *piece, const nsa_io *io,
                              const nsai_run_piece *is);

/* Runs `pass` for each group of KV heads, with their heads of the caller's tensors. A failure ends the
 * communicator. */
nsa_status nsai_for_head_groups(const nsai_run *run, nsa_status (*pass)(nsai_ranks_pass *));

/* The rows [first, first + count) of a tensor, where it is present. */
void nsai_ranks_slice(nsa_tensor *tensor, int64_t first, int64_t count);

/* A tensor [rows, heads, dim] without gaps. */
nsa_tensor nsai_ranks_rows_tensor(const nsai_ranks_tensor *tensor, void *data, int32_t dtype,
                                  int64_t rows);

#endif /* NSAI_RUN_RANKS_H */

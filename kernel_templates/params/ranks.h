/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The gather through peer memory: the layout of a mailbox, which host and device share, and the
 * parameters of the kernel (kernel_templates/ranks/gather.cuh). And those of ranks/pack_pages.cuh.
 *
 * A mailbox is a rank's device memory that all ranks of the host write to:
 *
 *   data    [2 rounds][ranks][chunks][room]  what a rank sent, in chunks of at most `room` bytes
 *   flags   [ranks][chunks]                  the round of the last chunk that came from a rank
 *   rounds  [ranks][chunks]                  the owner's: the last round of its CTA for (rank, chunk)
 *
 * Each flag has a sector of its own, because another rank's CTA writes it.
 */
#ifndef NSAI_PARAMS_RANKS_H
#define NSAI_PARAMS_RANKS_H

#include "params/attention.h"
#include "params/kv_cache.h"
#include "params/smem.h"

#define NSAI_GATHER_RANKS 8   /* at most */
#define NSAI_GATHER_CHUNKS 32 /* of a message, at most */
#define NSAI_GATHER_THREADS 128
#define NSAI_GATHER_LEAST                                                                          \
  2048 /* bytes that a CTA moves at once, 16 a thread: no chunk has less room */
#define NSAI_GATHER_SECTOR 32       /* bytes */
#define NSAI_GATHER_MOST (16 << 20) /* bytes of a message: offsets in a mailbox fit an int */

/* Offsets in bytes; `from`: the rank that the chunk comes from. */
NSAI_SIZE nsai_gather_data(int round, int from, int chunk, int ranks, int chunks, int room) {
  return (((round & 1) * ranks + from) * chunks + chunk) * room;
}
NSAI_SIZE nsai_gather_flag(int from, int chunk, int ranks, int chunks, int room) {
  return 2 * ranks * chunks * room + (from * chunks + chunk) * NSAI_GATHER_SECTOR;
}
NSAI_SIZE nsai_gather_round(int from, int chunk, int ranks, int chunks, int room) {
  return nsai_gather_flag(ranks, 0, ranks, chunks, room) + (from * chunks + chunk) * 4;
}

/* The waits of a communicator's gathers, in host memory. */
typedef struct NsaiGatherControl {
  int stop;                       /* not 0: nobody waits any more */
  int missing[NSAI_GATHER_RANKS]; /* not 0: the kernel has waited too long for this rank */
} NsaiGatherControl;

/* ranks_gather: brings a message of every rank to all ranks. Without bytes it waits for the copies that other
 * ranks make into this rank's memory (runtime/ranks/copies.c). */
typedef struct NsaiRanksGather {
  char *mailbox[NSAI_GATHER_RANKS]; /* as this rank maps them */
  const char *send;                 /* [bytes] */
  char *recv;                       /* [ranks, bytes] */
  NsaiGatherControl *control;
  long long timeout_ns; /* of a wait for one rank */
  int bytes;            /* at most NSAI_GATHER_MOST */
  int rank, ranks;
  int piece;        /* bytes of a chunk of this message, a multiple of 16; the last may have less */
  int chunks, room; /* of the mailboxes' layout; the grid may have fewer chunks */
  int *epoch; /* of copies: a gather counts it, where copies begin behind it. NULL: they do not */
  const int *copied; /* [ranks], a sector each: the epoch whose copies a rank has made */
} NsaiRanksGather;

/* ranks_pack_pages: a prefill over a cache whose raw pages lie on ranks. Packs the pages of this rank's
 * units, and writes the batch of its pieces, which reads those of all ranks. */
#define NSAI_PACKED_TENSORS 6 /* K and V of pair 0, 1, 2 */
#define NSAI_PACK_THREADS 256
typedef struct NsaiPackPages {
  NsaiCacheBatch batch; /* of the call, without cu_q */
  NsaiCacheTensor from[NSAI_PACKED_TENSORS];
  char *to[NSAI_PACKED_TENSORS]; /* [num_seqs, rank_pages] pages without gaps; NULL: not packed */
  const int *entry_pages;        /* tables of entries; NULL: none */
  long long entry_page_stride;
  const int *sequence, *behind; /* [pieces]; behind: new tokens of the sequence behind the piece */
  int *kv_len, *slots;          /* [pieces] */
  int *pages, *entries;         /* [pieces, columns] */
  int kv_heads;
  int rank, ranks;
  int unit_pages;
  int rank_pages; /* of a sequence */
  int columns;
} NsaiPackPages;

NSAI_SIZE_IS(NsaiPackPages, 400);
NSAI_SIZE_IS(NsaiGatherControl, 36);
NSAI_SIZE_IS(NsaiRanksGather, 136);

#endif /* NSAI_PARAMS_RANKS_H */

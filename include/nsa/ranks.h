/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One sequence, or one batch of sequences, over several GPUs: communicators, and runs over ranks. Shards
 * are in shard.h.
 *
 *   nsa_shard_options options = NSA_SHARD_OPTIONS_INIT;  // the same on every rank
 *   options.ranks = R, options.num_seqs = 1, options.lengths = &S;
 *   nsa_shard_create(ctx, &options, &shard);
 *   nsa_shard_pieces(shard, rank, &pieces, &count);      // the tokens that this rank holds
 *   nsa_comm_nccl(ctx, nccl, NULL, &comm);               // the host's ncclComm_t
 *
 *   nsa_problem problem = NSA_PROBLEM_INIT;
 *   problem.ranks = R, problem.max_tokens = local, problem.max_kv_tokens = S;
 *   nsa_plan_create(ctx, &problem, NULL, NULL, &plan);
 *   nsa_comm_agree(comm, &plan, 1, shard, 0);            // once, before the first run
 *   exec.comm = comm, batch.shard = shard;
 *   nsa_forward(plan, &exec, &batch, &io);               // q, k, v, o: this rank's tokens
 *
 * A rank is one GPU with one process or thread. The library shards, orders, computes and merges. It
 * starts no process, and it moves bytes by the host's transport: NCCL, or a table of functions.
 *
 * What travels. Queries and everything that has their shape stay where they are. K and V travel: each rank
 * gathers those of all tokens, compresses them, and computes its own queries' rows. The backward pass gathers
 * them again, and sends the partial sums of dK and dV, in fp32, to the ranks that own their tokens, which add
 * them in the order of ranks: every run gives the same bits. A run takes host memory for the list of what
 * travels; without it, NSA_E_NOMEM, the communicator ends.
 *
 * Hosts. Where equally many successive ranks share each host (nsa_comm_options.host_ranks), a run exchanges
 * in two levels, so that a row crosses between two hosts once instead of once for every rank. K and V go to
 * the rank of the same index on other hosts first, and then inside each host. Sums are added up inside a
 * host first, in the order of its ranks; then their owner adds up those of the hosts, in their order.
 *
 * Bits. With a shard of the default alignment and the same variants, o, lse, block_idx and d_q are those of
 * one GPU, bit for bit. Gradients of K, V and weights differ by the order of their sums: those of K and V by
 * rounding also where the same ranks share hosts in another number, or one.
 *
 * Gradients of phi and of the gate MLP are partial sums over this rank's tokens. The host adds them
 * over the ranks together with its other weights' gradients.
 *
 * What a run takes. nsa_forward, nsa_backward and, see below, nsa_kv_append, nsa_decode and nsa_prefill run
 * over ranks; no other call does, and there is no probe. Of the former two exec.comm and batch.shard are
 * required, and the batch has nothing else. Tensors of io and grads with a row for each token have exactly the
 * rows of this rank's pieces, one piece after the other.
 *   io.kv.k_cmp, v_cmp  With phi external the entries of the blocks whose last token this rank holds,
 *                       in the order of its pieces: a piece [b, e) has N(e) - N(b) of them, where N(L)
 *                       counts the blocks of L tokens. With another phi refused: entries stay inside.
 *   io.k_idx            With select.by index required by every forward with NSA_SELECT_TOPN or
 *                       problem.index_lse.
 * Ranks may ask for different outputs and gradients: K, V and their sums travel in any case.
 *
 * Failures. A call that is refused has enqueued nothing, and the other ranks wait for it: repeat it with right
 * arguments, or abort the transport. What fails later ends the communicator (NSA_E_RANKS of the other ranks).
 *
 * Workspace beside that of a run without ranks, in bytes, for S tokens of all ranks, at most T tokens and
 * P pieces of one (problem.max_pieces), and w bytes an element:
 *   w (Dk + Dv) Hkv S                for each pair of K and V that the model reads: those of all
 *   4 (Dk + Dv) Hkv (S + (R - 1) T)  likewise, backward: this rank's sums, and those that it receives.
 *                                    With hosts of H it receives at most (H - 1) R/H T rows inside its host,
 *                                    and then (R/H - 1) T in the same memory: no more, so that a plan
 *                                    need not know the hosts
 *   w (Dk + Dv) Hkv (S/d + 1)        with phi external: the entries of all
 *   4 (Dk + Dv) Hkv (S/d + 1 + (R - 1)(T/d + P))  likewise, backward: sums of the entries
 *   w Di S                           forward with an index: its keys of all
 *   16 P                             where pieces lie
 *   4 for each weight                backward: gradients of phi and of the gate MLP
 * Dv of entries counts where there are compressed values. nsa_explain prints the sums. Where they are beyond
 * thresholds.ranks_buffer_bytes (4 GiB) a plan takes fewer than Hkv heads at a time, and all of the workspace
 * is that of so many heads; not with gate mlp, which makes the gates of all heads together.
 *
 * KV heads over ranks need nothing of this: with R <= Hkv each rank makes a context of Hkv / R KV heads and
 * their query heads, and no byte travels.
 *
 * A KV cache over ranks. Where R > Hkv, or where even one head's tokens outgrow a GPU, the raw tokens of a
 * cache in pages are divided among ranks that share its KV heads: a group of c ranks, whose communicator has c
 * ranks, too. The token at position p lies on rank (p / U) mod c (problem.unit_tokens), so that sequences grow
 * evenly. Compressed entries, coarse keys and index keys (1/d of the raw tokens) lie on every rank: each
 * selects by itself, with one GPU's bits, and nothing travels before.
 *
 *   problem.ranks = c;                              // of the plans of append, decode and prefill
 *   nsa_comm_agree(comm, &decode, 1, NULL, 0);      // no shard
 *   nsa_kv_append(append, &exec, &batch, &io);      // every rank, all new tokens
 *   exec.comm = comm;
 *   nsa_decode(decode, &exec, &batch, &io);         // every rank, the same queries; o is the same
 *
 * Tables. batch.entry_table names pages of k_cmp, v_cmp, k_norm and k_idx for all tokens, and
 * batch.block_table those of raw tokens: page_size tokens each, but the tensors of entries and of raw tokens
 * have numbers of pages of their own. A rank's block_table has the pages
 *   of its own units, and
 *   of the latest tokens of each sequence, whoever owns them: of the new tokens of the call, and of the
 *   max(l, w, b) - 1 tokens before them. b is the normaliser's block. l counts where the library makes
 *   the entries, and w where the window does not lie in rings.
 * Both tables have an entry for every page below kv_len. Where a rank needs no page, block_table has -1
 * or any page, which is neither read nor written. So the host gives a page of another rank's unit back when
 * the new tokens have left it so far behind; if it may reject tokens, the first of those that may go
 * counts. Lists (page_indptr) are refused. Where values are checked (see nsa_forward), -1 for a page that
 * the rank needs is NSA_E_ARG; an append, which does not know its rank, looks for the latest tokens
 * alone. nsa_kv_page_bytes counts raw tokens; what it counts more for the same problem with ranks 0 is a
 * page of entries.
 *
 * nsa_kv_append writes each new token into the rank's page of it, and every entry; nothing travels, and
 * it does not read exec.comm. batch.slot_mapping names places of raw tokens, by the rank's own block_table;
 * entries lie where entry_table says, and -1 skips those that end with the token, too.
 *
 * nsa_decode takes the same q, gates and batch on every rank, with its own block_table. Each attends to those
 * of its selected blocks that it owns, also where the caller selects them; then one exchange brings 4 (Dv + 2)
 * Hq bytes a token of every rank to every other, and all add them up in the order of ranks. On a GPU the
 * workspace has room for these bytes of c ranks and problem.max_tokens tokens. block_idx and lse of the
 * compressed branch are one GPU's bits; o, o_branch and lse of the selected branch are the same on all ranks,
 * and one GPU's to rounding. A call without the selected branch exchanges nothing. A graph may capture both
 * calls, where the transport can be captured. A caller's ranges, io.kv_reads and probes do not run over ranks.
 * exec.branches and the batch's num_seqs, cu_q and kv_len must be the same on all ranks: with others outputs
 * are undefined, or NSA_E_RANKS with runtime.check_inputs full. nsa_prefill gathers raw pages: kv_cache.h.
 */
#ifndef NSA_RANKS_H
#define NSA_RANKS_H

#include <nsa/attention.h>
#include <nsa/shard.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- communicators ---- */

/* Bytes that go to, or come from, a rank. `data` is device memory, on the CPU device host memory. */
typedef struct nsa_part {
  void *data;
  uint64_t bytes;
  int32_t rank;
} nsa_part;

/* Flags of nsa_comm_ops. */
enum {
  NSA_COMM_CAPTURES = 1 /* the transport may be captured into a CUDA graph */
};

/* A transport, as torch.distributed or MPI can be: grouped sends and receives, no reductions.
 *
 * The thread that uses the communicator calls exchange and all_gather, on every rank in the same
 * order. They return at once: what they enqueue is ordered by the stream. A transport without streams
 * may synchronise the stream and block. On the CPU device the bytes have moved when they return.
 * Between two ranks parts arrive in the order in which they were sent, and the sizes of both sides
 * agree. No part is empty, and none goes to the rank itself. A rank may have nothing to send or to
 * receive, and its function is called all the same. The context's device is current.
 *
 * Any thread may call poll and abort, by nsa_comm_check, while another thread is in exchange.
 *
 * A function returns NSA_OK, or any other status, which ends the communicator. */
typedef struct nsa_comm_ops {
  uint32_t struct_size;
  int32_t rank, size; /* this rank, and the number of ranks, at most NSA_MAX_RANKS */
  /* Successive ranks that share a host, a divisor of `size`. All ranks give the same. Runs exchange in two
   * levels where it is more than 1 and less than `size` [found by nsa_comm_agree] */
  int32_t host_ranks;
  uint32_t flags;    /* NSA_COMM_* */
  uint32_t reserved; /* must be 0 */
  void *user;        /* passed to every function */
  nsa_status (*exchange)(void *user, const nsa_part *send, int32_t send_count, const nsa_part *recv,
                         int32_t recv_count, nsa_stream stream);
  /* `bytes` of every rank, in the order of ranks, to recv[size * bytes]; `send` may be this rank's place
   * in it, recv + rank * bytes [by exchange] */
  nsa_status (*all_gather)(void *user, const void *send, void *recv, uint64_t bytes,
                           nsa_stream stream);
  /* Whether the transport is well. Never waits [always] */
  nsa_status (*poll)(void *user);
  /* Ends what is enqueued, and an exchange that blocks, so that no kernel or call waits for a
   * lost rank. Never waits. Called once, when the communicator ends by a failure; NSA_E_RANKS is
   * returned, on any thread, after that [nothing] */
  nsa_status (*abort)(void *user);
} nsa_comm_ops;
#define NSA_COMM_OPS_INIT NSA_INIT(nsa_comm_ops)

typedef struct nsa_comm_options {
  uint32_t struct_size;
  int32_t timeout_ms; /* after which calls give up on other ranks [60000] */
  /* As nsa_comm_ops.host_ranks, which it overrides. The number of ranks: one host, whatever the ranks run
   * on. [nsa_comm_ops.host_ranks, or found by nsa_comm_agree] */
  int32_t host_ranks;
  /* The largest message of a rank, in bytes, that a gather moves through memory which the ranks map of each
   * other ("Peer memory" below): up to 16 MiB; -1: none. All ranks give the same. [0: the library's choice,
   * which is none] */
  int32_t peer_bytes;
  /* SMs that a forward leaves to the transport, so that K and V travel while it computes ("Overlap" below): a
   * power of two up to 64, the same on all ranks. [0: K and V travel first] */
  int32_t overlap_sms;
  /* Device memory, in bytes, into which other ranks of the host copy ("Copies" below): K, V and compressed entries of
   * all ranks, and sums of gradients from other ranks. All ranks give the same. [0: the transport moves them] */
  int64_t copy_bytes;
} nsa_comm_options;
#define NSA_COMM_OPTIONS_INIT NSA_INIT(nsa_comm_options)

/* A communicator: one rank's end. Its runs must be enqueued in the same order on every rank, so one
 * thread at a time may use it; nsa_comm_check may be called by any. Once a call on it returned
 * NSA_E_RANKS it is dead, and every further call says so; only a disagreement that nsa_comm_agree
 * finds leaves it alive. The context lives on: destroy the communicator and make another. It keeps
 * what it needs of its context. */
typedef struct nsa_comm nsa_comm;

/* Peer memory (docs/ranks-cache.md). With options.peer_bytes 2 to 8 ranks of one host gather small messages,
 * as a decode step's, by one kernel that stores into the other ranks' memory, beside the transport. The first
 * nsa_comm_agree on a GPU compiles it and allocates about 2 * size * peer_bytes of device memory, in steps of
 * 2 MiB, until nsa_comm_destroy. Unless every rank can map every other one's memory, none does: nothing fails,
 * and the log says why (NSA_LOG_INFO).
 *
 * Runs of the communicator must then follow each other on the device, in one stream or by events; ranks that
 * share a GPU need streams that run at once. The kernel waits for other ranks for options.timeout_ms, also in
 * a replayed graph and without nsa_comm_check. Then the run's results are undefined; the next call,
 * nsa_comm_check and nsa_comm_wait return NSA_E_RANKS and name the ranks. A run that begins after another
 * rank's process has ended returns NSA_E_RANKS where Linux shows that (5.3, one namespace of process ids). Else,
 * and in a replayed graph, CUDA does not define what it does: memory of CUDA IPC ends with its process.
 *
 * If the ranks are several processes, nsa_comm_destroy is a call of all ranks, which wait for each other, at
 * most for options.timeout_ms, by a transport that must still work: a process that has several destroys each
 * on a thread of its own. Memory that a lost rank may have mapped stays allocated until the process ends. */

/* Overlap. With options.overlap_sms nsa_forward on a GPU first exchanges the tokens before each piece that its
 * blocks and its window need, compressed entries (1/d of the bytes) and keys of the index. Raw K and V then travel
 * in a stream of the communicator, while the compressed branch is computed and blocks are chosen, but for pairs
 * of K and V that nothing else reads (kv_sharing per_branch). Results have the same bits. nsa_explain says whether
 * a plan can: not with phi linear or mlp, a normaliser, or kernels that keep K and V and stream queries, and not
 * where phi is none without an index. A shard's pieces, but the first and the last of a sequence, need l - d
 * tokens, or w - 1 where the window has a kernel of its own; nsa_comm_agree says what is missing (NSA_LOG_INFO).
 * Other runs gather first. Persistent kernels leave so many SMs free; before sm_90 no kernel is persistent. A
 * communicator of nsa_comm_nccl_init uses at most so many CTAs for all its exchanges, each on an SM (NCCL 2.17 or
 * newer, else NSA_E_UNSUPPORTED); the host limits those of its own ncclComm_t by ncclConfig_t.maxCTAs. While a
 * capture has runs of the communicator, runs outside of captures are refused (NSA_E_UNSUPPORTED), and another
 * capture must not have any. On two H200 of one host it costs 8 % at 64k tokens (docs/ranks.md): leave it off there.
 * Not timed over hosts. */

/* Copies. With options.copy_bytes 2 to 8 ranks of one host copy K, V, compressed entries, index keys and sums of
 * gradients into each other's memory, by copy engines, in the place of the transport: in nsa_forward and nsa_backward
 * on a GPU that need no more (nsa_explain prints the bytes; else the transport moves them, and nsa_comm_agree says
 * so, NSA_LOG_INFO). The memory comes in addition to the workspace. A forward that can overlap does, as above, and
 * leaves no SM free. Results have the same bits. Caches and prefills go by the transport.
 *
 * What is said of peer memory holds for copies, too; options.peer_bytes 0 then means gathers of up to 2048 bytes.
 * Ranks that share a GPU have two streams each that must run at once (CUDA_DEVICE_MAX_CONNECTIONS). When the
 * communicator of a rank has ended, copies that it had enqueued may still come: results of runs that had not
 * finished by then are undefined on all ranks. */

/* Makes a communicator of a host's transport. Blocking; other ranks need not take part.
 *
 * ops      read during the call; `user` and the functions must outlive the communicator.
 * options  NULL: the defaults.
 * comm     receives the communicator, which the caller owns; NULL on failure.
 *
 * Returns NSA_OK; NSA_E_ARG or NSA_E_VERSION, and the message names the field; NSA_E_NO_DEVICE where
 * the context was made for an architecture alone; NSA_E_NOMEM, NSA_E_CUDA or NSA_E_FORKED. */
NSA_API nsa_status nsa_comm_create(nsa_ctx *ctx, const nsa_comm_ops *ops,
                                   const nsa_comm_options *options, nsa_comm **comm);

/* The tag of NCCL's ncclComm_t, so that one can be passed without a cast, and without its header. */
struct ncclComm;

/* Makes a communicator of the host's ncclComm_t, which stays the host's: the communicator neither
 * aborts nor destroys it. Uses the NCCL that the process has loaded. Blocking; other ranks need not
 * take part.
 *
 * nccl  of the context's GPU, with at most NSA_MAX_RANKS ranks. It must outlive the communicator,
 *       unless that is dead and only nsa_comm_destroy follows. If it blocks (ncclConfig_t.blocking 1,
 *       NCCL's default), NCCL itself waits when two ranks exchange for the first time: with a lost
 *       rank until the host calls ncclCommAbort, whatever the timeout is. nsa_comm_check on another
 *       thread reports that. Call ncclCommAbort only after a call on the communicator returned
 *       NSA_E_RANKS: no call touches `nccl` from then on, but for one that is just entering
 *       ncclGroupEnd on the thread that uses the communicator.
 *
 * Returns what nsa_comm_create returns, or NSA_E_UNSUPPORTED where no NCCL can be opened, or the
 * context is on the CPU device. */
NSA_API nsa_status nsa_comm_nccl(nsa_ctx *ctx, struct ncclComm *nccl,
                                 const nsa_comm_options *options, nsa_comm **comm);

/* NCCL's unique id, which one rank makes and the host brings to all others; and a communicator of
 * its own, on the context's GPU. It does not block inside NCCL, so that it keeps its timeouts.
 * nsa_comm_nccl_init waits for all ranks, at most for options.timeout_ms. libnccl.so.2 (2.14 or
 * newer) is opened here, the process' own copy first; `runtime.nccl_path` names another.
 * NCCL_COMM_BLOCKING=1 in the environment, which NCCL would follow, is refused (NSA_E_UNSUPPORTED).
 *
 * id    host memory of NSA_NCCL_ID_BYTES. An id serves for one communicator.
 * comm  receives the communicator, which the caller owns; NULL on failure.
 *
 * Return what nsa_comm_nccl returns, or NSA_E_RANKS with what NCCL says, or when a rank did not
 * come. */
#define NSA_NCCL_ID_BYTES 128
NSA_API nsa_status nsa_comm_nccl_id(nsa_ctx *ctx, char id[NSA_NCCL_ID_BYTES]);
NSA_API nsa_status nsa_comm_nccl_init(nsa_ctx *ctx, const char id[NSA_NCCL_ID_BYTES], int32_t rank,
                                      int32_t size, const nsa_comm_options *options,
                                      nsa_comm **comm);

/* Makes the `size` communicators of ranks that are threads of this process, on the CPU device, or on
 * streams of one GPU: to test a host's code without several GPUs. Each thread uses one of them; their
 * contexts may be one. A rank's call waits on the host until every rank has made the same call, or for
 * options.timeout_ms, then NSA_E_RANKS. Cannot be captured into a CUDA graph. Blocking.
 *
 * size     1 to NSA_MAX_RANKS
 * options  NULL: the defaults. By host_ranks the ranks play several hosts; else they share one.
 * comms    an array of `size`, out; all NULL on failure. Each is destroyed by itself.
 *
 * Returns what nsa_comm_create returns. */
NSA_API nsa_status nsa_comm_loopback(nsa_ctx *ctx, int32_t size, const nsa_comm_options *options,
                                     nsa_comm **comms);

/* Compares what all ranks are about to run, before the first run of each plan and shard: the version, the
 * kernel templates, the device, model, problem, variants with their tiles, cuBLASLt's version, over a cache
 * whether runtime.check_inputs is full, and the shard. Ranks that chose differently would wait for each other,
 * or compute other bits. Tune on one rank, import the records on the others. Blocking; every rank calls it
 * with the same number of plans. What was not agreed upon does not run; a plan of one call may run with the
 * shard of another. The communicator remembers the 256 plans and the 256 shards of the latest agreements, by
 * what they consist of: a plan that is destroyed and made again need not be agreed upon again, and one that is
 * agreed upon again counts as new. The first agreement also finds which ranks share a host, by the boot ids of
 * their machines (without one, the host name), unless host_ranks is given: where ranks of a host are
 * successive, and each host has as many. Uses the transport on a stream of its own, where NCCL may let it wait
 * for runs in flight; its first call allocates some KB of device memory, with options.peer_bytes more.
 *
 * plans       [count], at most 256, of the communicator's device; NULL with count 0
 * shard       NULL: the plans alone.
 * timeout_ms  of the whole call, also where nsa_comm_check looks meanwhile [options.timeout_ms]
 *
 * Returns NSA_OK; NSA_E_RANKS, and the message names the ranks and what differs, on all ranks alike,
 * or the ranks that did not answer; or NSA_E_ARG, NSA_E_NOMEM, NSA_E_FORKED. */
NSA_API nsa_status nsa_comm_agree(nsa_comm *comm, const nsa_plan *const *plans, size_t count,
                                  const nsa_shard *shard, int32_t timeout_ms);

/* Says whether the communicator is well: asks the transport, and looks at the age of a call of the
 * transport that has not returned, of the oldest run that has not finished, and of a run whose
 * launches a full queue of the device holds up. A run's age counts from when it was enqueued, or when the run
 * before it was seen to finish. Past options.timeout_ms it aborts a communicator of its own, calls
 * nsa_comm_ops.abort, or reports an ncclComm_t, which the host then aborts. Runs that a CUDA graph
 * replays have no age: nsa_comm_wait watches those. Never waits for another rank. Thread-safe.
 *
 * Returns NSA_OK, or NSA_E_RANKS with what is known; or NSA_E_ARG, NSA_E_FORKED. */
NSA_API nsa_status nsa_comm_check(nsa_comm *comm);

/* Waits until the stream has passed everything that was enqueued, and calls nsa_comm_check
 * meanwhile. Use it in the place of a stream synchronisation, which would hang with a lost rank.
 *
 * timeout_ms  of the whole wait [options.timeout_ms, beginning anew whenever a run finishes]. A wait
 *             that takes longer ends the communicator.
 *
 * Returns NSA_OK, NSA_E_RANKS, NSA_E_ARG, NSA_E_CUDA or NSA_E_FORKED. */
NSA_API nsa_status nsa_comm_wait(nsa_comm *comm, nsa_stream stream, int32_t timeout_ms);

/* Destroys a communicator, and the NCCL communicator that is its own. NULL is fine. No run may be in flight,
 * unless it is dead. Destroy graphs that hold its runs before. One of NCCL that is alive ends together with the
 * other ranks' and waits for them, at most for options.timeout_ms; so does one with peer memory whose ranks are
 * several processes ("Peer memory"). In a child of fork() nothing but its hold on the context is released. A
 * dead one that borrowed an ncclComm_t may wait for NCCL's kernels until the host has aborted that. */
NSA_API void nsa_comm_destroy(nsa_comm *comm);

#ifdef __cplusplus
}
#endif
#endif /* NSA_RANKS_H */

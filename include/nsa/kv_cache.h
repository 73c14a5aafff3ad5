/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The KV cache: writing new tokens into it, and attention over it, for prefill in chunks and for
 * decoding.
 *
 *   nsa_kv_append(append_plan, &exec, &batch, &io); // writes K and V of the new tokens, io.new_kv
 *   nsa_decode(decode_plan, &exec, &batch, &io);    // their queries, io.q, over the cache, io.kv
 *
 * Both calls get the same batch, and may get the same io. Prefill in any chunks and then decode
 * compute the same function as one nsa_forward over all tokens; it reads compressed keys as the
 * cache holds them. The cache belongs to the host.
 *
 * Example: a host that decodes with NSA_KV_SHARED. dev() returns device memory, tensor() a
 * contiguous tensor of this shape in device memory. tests/hosts/loop.c runs this text;
 * tests/hosts/serve.c adds prompts in chunks, a pool of pages and graphs.
 *
 *   // ---- once: plans, one workspace for all, the caches of all layers
 *   nsa_problem p = NSA_PROBLEM_INIT; // heads and blocks are the model's
 *   p.max_seqs = SEQS, p.max_kv_len = 4096, p.page_size = P; // p.max_q_len: 1
 *   p.op = NSA_OP_DECODE;
 *   check(nsa_plan_create(ctx, &p, NULL, NULL, &decode));
 *   p.op = NSA_OP_APPEND, p.max_tokens = SEQS;
 *   check(nsa_plan_create(ctx, &p, NULL, NULL, &append));
 *   check(nsa_plan_caps(decode, &caps)); // take the largest of all plans that share it
 *   exec.workspace = dev(exec.workspace_bytes = caps.workspace_bytes);
 *   check(nsa_kv_page_bytes(ctx, &p, &page_bytes)); // of one layer
 *   int64_t N = pool_bytes / (LAYERS * (int64_t)page_bytes);
 *   for (int i = 0; i < LAYERS; i++) {
 *     cache[i].k[0] = tensor(NSA_BF16, 4, (int64_t[]){ N, P, HKV, DK });
 *     cache[i].v[0] = tensor(NSA_BF16, 4, (int64_t[]){ N, P, HKV, DV });
 *     cache[i].k_cmp = tensor(NSA_BF16, 4, (int64_t[]){ N, P / STRIDE, HKV, DK });
 *     cache[i].v_cmp = tensor(NSA_BF16, 4, (int64_t[]){ N, P / STRIDE, HKV, DV });
 *   }
 *   // ---- once, captured into a graph: SEQS new tokens, one of each sequence
 *   batch.num_seqs = SEQS;
 *   batch.kv_len = tensor(NSA_I32, 1, (int64_t[]){ SEQS });
 *   batch.block_table = tensor(NSA_I32, 2, (int64_t[]){ SEQS, 4096 / P });
 *   for (int i = 0; i < LAYERS; i++) {
 *     project(i, &io); // io.new_kv.k[0], v[0], io.q, io.gate.value of SEQS tokens; io.o
 *     io.kv = cache[i];
 *     check(nsa_kv_append(append, &exec, &batch, &io));
 *     check(nsa_decode(decode, &exec, &batch, &io));
 *   }
 *   // ---- each step: kv_len grows by 1; a row without a sequence has 0. A sequence that fills its
 *   // last page gets one more in its row of block_table. Copy both to the same device memory, and
 *   // launch the graph.
 *
 * A graph keeps num_seqs, the number of new tokens and all addresses. Lengths, page lists, slots
 * and cu_q are read anew by each launch. One plan serves all layers, and any batch up to its
 * capacities. Its kernels are chosen for max_seqs * max_q_len tokens, so a host that captures
 * graphs of several sizes makes a plan for each. Prompts, and rows that decode beside them, go
 * through nsa_prefill with cu_q.
 *
 * Layout. P tokens of a page, N pages; the other letters are those of attention.h. The tensors of
 * a cache have four dimensions. The last one is contiguous, the others have any strides (of raw
 * tokens that nsa_prefill reads on sm_90a, positive ones). Memory in the order [N, P, Hkv, D]
 * ("NHD") fits, and so does [N, Hkv, P, D] ("HND"), passed with the two middle dimensions exchanged.
 *   k[b]   [N, P, Hkv, Dk]      v[b]   [N, P, Hkv, Dv]      raw tokens
 *   k_cmp  [N, P/d, Hkv, Dk]    v_cmp  [N, P/d, Hkv, Dv]    compressed entries, same pages
 * With compress.output false v_cmp does not exist. With a select.normalizer of block b and stride
 * s, which divides P, io.k_norm [N, P/s, Hkv, Dk] holds the coarse keys: the mean of the raw keys of
 * tokens m*s to e = m*s + b - 1 lies in the page of token e, at (e mod P) / s. What is said below of
 * where entries lie, of sharing, copies and drafts is true of them. They have the model's dtype, also
 * in a cache in e4m3: there the codes are added up in fp32 in ascending order, and the sum times
 * fp32(k_scale / b) is rounded once.
 * With select.by index there are no compressed entries, and io.k_idx [N, P, 1, Di] holds the index
 * keys, where raw tokens lie. Over ranks (ranks.h) entries, coarse keys and index keys lie in pages of
 * their own, whose number N and table (batch.entry_table) are others.
 * Without pages N is a number of rows, P the tokens that a row has room for, at least max_kv_len,
 * and k_cmp has ceil(P/d) entries a row. Each sequence has one row, which batch.slots names.
 *
 * The entry of compressed block i lies in the page of the block's last token e = i*d + l - 1, at
 * (e mod P) / d. It depends on no token behind e. Hence:
 * - Prefixes can be shared. Sequences that begin alike may name the same pages. An append may
 *   write into such a page what it holds already, or skip those tokens (batch.slot_mapping -1).
 * - Copy-on-write copies one page of every tensor. The entries in it are right for the copy, too.
 * - A rejected draft needs no call. Lower kv_len, and append other tokens over it: every entry
 *   that ends among the written tokens is written again, and nothing behind kv_len is read.
 * - A page may hold anything when it is taken into use again.
 *
 * Rings (problem.window_ring, with NSA_KV_PER_BRANCH). The window's pair is [rows, R, Hkv, D],
 * and the token at position p lies at p mod R of its sequence's row (batch.slots). R is at least
 * w + max_q_len - 1, or max_kv_len where that is less. Only the tokens of the last append can be
 * rejected. A ring belongs to one sequence: if others computed its prefix, the last w - 1 tokens
 * of that prefix must be appended or copied.
 *
 * Lists of pages name a page for every position below kv_len, also for those that are not
 * written. Nothing else is read: not the list behind these pages, not the tokens behind kv_len,
 * not the entries behind the last whole block. What is read has no effect where no query sees it,
 * but every token below kv_len must hold finite values, since a kernel may multiply them by 0. In a
 * ring only the tokens of the window must. Tokens behind kv_len may hold anything. New token i of a
 * sequence stands at position kv_len - q_len + i. A padded row of a batch has kv_len 0: nothing is
 * appended for it, and its output is zeros with LSE -inf.
 *
 * FP8. With problem.kv_dtype NSA_E4M3 the raw pairs, rings included, are stored in e4m3, and with
 * problem.cmp_dtype NSA_E4M3 the compressed entries; either may be so alone. Both head dims, or of
 * index keys theirs alone, must be multiples of 16. io.k_scale, v_scale and k_cmp_scale, v_cmp_scale
 * have the scales, one for all KV heads or one for each, in device memory. Each launch reads them, and
 * a cache must be read with those that it was written with. The CPU device refuses scales that are not
 * positive and finite; a GPU does not look, and such a scale makes results undefined.
 * - A value is code * scale. An append stores x as e4m3(x / scale): a division in fp32, rounded to the
 *   nearest code, ties to even, at most +-448; NaN stays NaN.
 * - Compressed entries are made of codes alone, those of the call's own tokens included, and with phi
 *   mean they are the same bits whatever the chunks were. phi mean takes the sum of l codes, which is
 *   exact in fp32 for l <= 73 (ascending order beyond), times fp32(k_scale / (l * k_cmp_scale)) to e4m3
 *   entries, fp32(k_scale / l) to others, and rounds once. phi linear and mlp get rows of code * scale,
 *   rounded to the model's dtype; what they give is rounded to it, too, and becomes e4m3 as a token
 *   does. The means of raw pairs in the model's dtype become e4m3 from fp32.
 * - With select.by index, problem.cmp_dtype is that of the index keys, and io.k_idx_scale, [1], their
 *   scale: all heads share them. Di must be a multiple of 16. An append stores them as it stores
 *   tokens, and the scores are those of the values code * scale, so that the scale changes no order.
 * - Queries, outputs and new_kv have the model's dtype. Attention and selection are those of the
 *   values code * scale, also for the tokens of the same call.
 *
 * A GPU serves a cache of either kind with everything that nsa_forward takes: every phi, a caller's
 * selection, probes. Attention sinks, soft-capped logits and trees of drafts do not exist;
 * the configuration refuses the keys by which other projects ask for them, by name.
 */
#ifndef NSA_KV_CACHE_H
#define NSA_KV_CACHE_H

#include <nsa/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Says how many bytes one page takes in one layer: raw K and V of every pair that the model reads
 * and that lies in pages, the compressed entries, coarse keys, and index keys. Without pages: one row
 * of max_kv_len tokens. Rings are not counted; they take R * Hkv * (Dk + Dv) elements for each
 * sequence. Over ranks (ranks.h): a page of raw tokens alone, since entries have pages of their own.
 * Thread-safe.
 *
 * problem  of NSA_OP_PREFILL, NSA_OP_DECODE or NSA_OP_APPEND.
 * bytes    host memory, out.
 *
 * Returns NSA_OK, NSA_E_ARG, NSA_E_VERSION or NSA_E_FORKED. */
NSA_API nsa_status nsa_kv_page_bytes(nsa_ctx *ctx, const nsa_problem *problem, uint64_t *bytes);

/* Enqueues the writing of new tokens, and of every compressed block whose last token is among
 * them. The block's other tokens are read from the cache: they must have been appended before, or
 * belong to this call.
 *
 * plan   of NSA_OP_APPEND.
 * exec   `branches` must be 0: every pair is written.
 * batch  kv_len and, with pages, their lists; on request cu_q (of the rows of io.new_kv), slots,
 *        and slot_mapping, with -1 for tokens of padded rows and for those with t < 0.
 * io     in: new_kv, the pairs that the model reads, dtype [T, Hkv, Dk] and [T, Hkv, Dv], without
 *        k_cmp and v_cmp; phi, the weights of phi linear and mlp; the scales of a cache in e4m3;
 *        new_k_idx of a model with an index.
 *        Out: kv, the same pairs of the cache, and k_cmp, v_cmp, and k_norm with the coarse keys that
 *        the new tokens complete, or k_idx. With phi external the caller writes the compressed entries, and
 *        k_cmp, v_cmp are not touched.
 *
 * No two sequences may write different values into one place. On a GPU tokens at or behind the
 * plan's max_kv_len, and tokens without a page in their list, are not written; the CPU device
 * refuses such a batch. Where the values of the batch are checked (see nsa_forward), lengths,
 * pages and slots that lead out of the cache are NSA_E_ARG.
 *
 * Behaves as nsa_forward. */
NSA_API nsa_status nsa_kv_append(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                                 const nsa_io *io);

/* Enqueues the attention of every sequence's new tokens over the cache. Their own K and V must
 * have been appended.
 *
 * plan   of NSA_OP_DECODE: at most max_q_len new tokens of a sequence. Its workspace grows with
 *        max_tokens * max_kv_len, since every selection block of every token is ranked.
 * batch  kv_len and, with pages, their lists; on request cu_q and slots.
 * io     as of nsa_forward, but kv is the cache, with k_cmp and v_cmp, and k_norm of a model with a
 *        normalizer, or k_idx of one with an index where the library selects or probes; phi is not
 *        read, and a cache in e4m3 has its scales.
 *
 * Counters. With `runtime.count_reads: true` io.kv_reads may be given, i64 [num_seqs, Hkv,
 * NSA_BRANCHES, 2] in the memory of the cache; otherwise it is refused. For each sequence, KV
 * head and branch the call adds the number of tokens whose K it reads (of NSA_CMP compressed
 * entries), and the bytes of K and V. The host sets the counters to zero where a count begins; a
 * captured graph goes on counting. Kernels count where they load. The plan then leaves out
 * decode_cluster, decode_pipelined and decode_select_attend, which do not count. A sequence of L
 * tokens, one of them new, reads
 *   NSA_CMP  N(L) = L < l ? 0 : (L - l) / d + 1 entries, also for a selection or a probe alone
 *   NSA_SEL  the sum of min(l', L - j*l') over its selected blocks j; n*l' tokens if all are whole
 *   NSA_WIN  min(w, L) tokens
 * of 2 * (Dk + Dv) bytes, in e4m3 half of that; of a caller's ranges their tokens. Where the library
 * selects or probes for a model with a normalizer, NSA_CMP also has L < b ? 0 : (L - b) / s + 1 coarse
 * keys of Dk elements of the model's dtype, once a sequence. Of a model with an index NSA_CMP counts,
 * where the library selects or probes, the L index keys of Di elements, once a
 * sequence and for KV head 0 alone, since all heads share them; a GPU counts those of its selection, for
 * each tile of new tokens, and none of probed rows. A GPU that ranks blocks by the maximum, by
 * coarse keys or without a compressed branch reads the compressed keys for their importance, in addition
 * to those of the branch, and without a normalizer once more for their LSE. New tokens that
 * one CTA takes together read each key once: the compressed entries of the last of them, their
 * windows, and every block that one of them selects; ranges they read separately. What is read
 * again is counted again, though a hardware cache may have it. The second pass for the importance of
 * probed rows is not counted. The CPU device reads compressed entries once for all tokens of a
 * sequence, without V where the branch itself does not run, and windows and blocks token by
 * token.
 *
 * Behaves as nsa_kv_append. */
NSA_API nsa_status nsa_decode(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                              const nsa_io *io);

/* Enqueues what nsa_decode enqueues, for up to max_q_len new tokens of a sequence: chunks of long
 * prompts, together with sequences that decode.
 *
 * plan   of NSA_OP_PREFILL.
 * batch  as of nsa_decode.
 * io     as of nsa_decode, without kv_reads, which is refused.
 *
 * Over ranks (ranks.h) every rank has appended all new tokens. batch.shard, upon which the ranks have agreed,
 * divides them: q, gates and outputs have this rank's rows, in the order of nsa_shard_pieces, and cu_q is
 * absent. problem.max_tokens counts the new tokens of a rank, and max_q_len those of a sequence on all ranks
 * [max_tokens * ranks]. kv_len and exec.branches must be the same on all ranks, and exec.comm is required. One
 * gather of each tensor of raw tokens that the selected branch or the window reads, on a GPU whatever
 * exec.branches says, brings the pages of all ranks, (Dk + Dv) * Hkv elements a token and pair. batch.num_seqs
 * may be 0: the shard's. On a GPU, where lengths are on the device, it brings num_seqs sequences of
 * problem.max_kv_len tokens, rounded up to units of all ranks, into the workspace, which has room for
 * max_seqs: make plans for the lengths that prompts have. On the CPU device it brings what there is, into
 * memory that the call allocates. There, and with runtime.check_inputs full outside of captures, the ranks
 * compare kv_len first: different lengths end the communicator (NSA_E_RANKS). Without that outputs are
 * undefined. With a shard of the default alignment outputs are the bits of one rank that runs the same
 * kernels; a GPU does not take those of decode (thresholds.prefill_split_from), and whether it expands codes
 * first depends on the tokens of the rank.
 *
 * Behaves as nsa_kv_append. */
NSA_API nsa_status nsa_prefill(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                               const nsa_io *io);

#ifdef __cplusplus
}
#endif
#endif /* NSA_KV_CACHE_H */

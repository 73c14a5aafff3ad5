/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The KV cache: new tokens into it, and attention over it, for prefill in chunks and for decoding.
 *
 *   nsa_kv_append(append_plan, exec, batch, &io); // io.new_kv: K and V of the new tokens
 *   nsa_decode(decode_plan, exec, batch, &io);    // io.q: their queries over the cache, io.kv
 *
 * with the same batch, and the same io where the host likes. Prefill in any chunks and then decode gives what one nsa_forward over all
 * tokens gives: the same function, whose compressed keys are read as the cache holds them.
 *
 * A host that decodes, `model.kv_sharing: shared`; dev() gives device memory, tensor() one of this shape,
 * with strides (tests/hosts/loop.c has both, and runs this text; tests/hosts/serve.c has prompts in chunks,
 * a pool of pages and graphs as well):
 *
 *   // ---- once: plans, one workspace for all, the caches of all layers
 *   nsa_problem p = NSA_PROBLEM_INIT; // heads and blocks are the configuration's
 *   p.max_seqs = SEQS, p.max_kv_len = 4096, p.page_size = P; // p.max_q_len: 1
 *   p.op = NSA_OP_DECODE;
 *   check(nsa_plan_create(ctx, &p, NULL, NULL, &decode));
 *   p.op = NSA_OP_APPEND, p.max_tokens = SEQS;
 *   check(nsa_plan_create(ctx, &p, NULL, NULL, &append));
 *   check(nsa_plan_caps(decode, &caps)); // and of the others: the most that one of them wants
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
 *   // ---- each step: kv_len grows by 1, a row without a sequence has 0; a sequence that fills its last
 *   // page gets another id in its row of block_table. Both are copied to the same device memory, and
 *   // the graph is launched.
 *
 * A graph keeps num_seqs, the number of tokens and all addresses; lengths, lists, slots and cu_q are read
 * anew by each launch. A plan serves all layers, and any batch up to its sizes; its kernels are chosen for
 * max_seqs * max_q_len tokens, so a host that captures graphs of several sizes makes a plan for each.
 * Prompts, and rows that decode beside them, go through an nsa_prefill with cu_q.
 *
 * Layout. Beside the letters of attention.h: page size P, pages N. A cache's tensors have four
 * dimensions; the last is contiguous, the others have any strides, so that memory in the order
 * [N, P, Hkv, D] ("NHD") and in the order [N, Hkv, P, D] ("HND", passed with the two middle
 * dimensions exchanged) both fit:
 *   k[b]  [N, P, Hkv, Dk]      v[b]  [N, P, Hkv, Dv]      raw tokens
 *   k_cmp [N, P/d, Hkv, Dk]    v_cmp [N, P/d, Hkv, Dv]    compressed blocks, under the same page ids
 * Without pages N is a number of rows, of which each sequence has one (batch.slots), P is their
 * capacity, at least max_kv_len, and k_cmp has ceil(P/d) entries a row.
 *
 * Compressed block i lies in the page of its last token e = i*d + l - 1, at entry (e mod P) / d. It
 * depends on no token behind that. Hence:
 * - A prefix can be shared: sequences that begin alike may name the same pages. An append may write
 *   into such a page what it holds already, or skip those tokens (batch.slot_mapping -1).
 * - Copy-on-write copies one page of every tensor; the entries in it are right for the copy, too.
 * - A rejected draft needs no call: lower kv_len and append other tokens over it. Every entry that
 *   ends in the tokens written is written again, and nothing behind kv_len is read.
 * - A page may hold anything when it is taken into use again.
 *
 * Ring (problem.window_ring, with kv_sharing per_branch): the window's pair is [rows, R, Hkv, D],
 * and the token at position p lies at p mod R of its sequence's row (batch.slots); R >= w +
 * max_q_len - 1, or max_kv_len where that is less. The tokens of the last append can be rejected,
 * not more. A ring belongs to one sequence: where others computed its prefix, the last w - 1 tokens
 * of that must be appended or copied.
 *
 * Lists of pages name a page for every position below kv_len, whichever of them are written; what
 * lies behind those in a list is not read, nor are tokens behind kv_len, nor entries behind the
 * last whole block. New token i of a sequence stands at t = kv_len - q_len + i. A padded row of a
 * batch has kv_len 0: nothing is appended for it, and its output is zeros with lse -inf. With cu_q
 * absent every sequence has T / num_seqs new tokens.
 *
 * The cache has the model's dtype. fp8 caches, attention sinks, soft-capped logits and trees of
 * drafts do not exist yet; tensors of other dtypes are refused, and so are the keys by which other
 * projects' configurations ask for these things, by name.
 *
 * A GPU serves all of these with whatever nsa_forward takes: every phi, a selection of the caller's,
 * probes.
 */
#ifndef NSA_KV_CACHE_H
#define NSA_KV_CACHE_H

#include <nsa/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Says how many bytes one page takes in one layer: raw K and V of every pair that the model reads
 * and that lies in pages, and the compressed entries. Without pages: one row of max_kv_len tokens.
 * Rings are not counted: R * Hkv * (Dk + Dv) elements for each sequence.
 *
 * problem  of NSA_OP_PREFILL, NSA_OP_DECODE or NSA_OP_APPEND.
 * bytes    out, host memory.
 *
 * NSA_E_ARG, NSA_E_VERSION, NSA_E_FORKED. Thread-safe. */
NSA_API nsa_status nsa_kv_page_bytes(nsa_ctx *ctx, const nsa_problem *problem, uint64_t *bytes);

/* Enqueues the writing of new tokens, and of every compressed block whose last token is among them.
 * The other tokens of such a block are read from the cache: what precedes must have been appended, by
 * the sequence's own tokens in this call or by a call before it.
 * No two sequences may write different values into one place. Of a sequence whose kv_len is greater
 * than the plan's max_kv_len, or than its row of block_table or its list has pages for, tokens at that
 * position and behind it are not written, as with slot_mapping -1, and no other place is; what attends to
 * such a sequence gives results that mean nothing (nsa_batch). The CPU device refuses it.
 *
 * plan   of NSA_OP_APPEND.
 * exec   its `branches` must be 0: every pair is written.
 * batch  kv_len and, with pages, their lists are required; cu_q (of the tokens in io.new_kv), slots and
 *        slot_mapping (-1 for tokens of padded rows and for those with t < 0) may be absent.
 * io     kv, new_kv and phi are used, nothing else.
 *        io.kv      out: the pairs that the model reads, and k_cmp, v_cmp. With phi external the caller
 *                   writes the compressed entries, and k_cmp, v_cmp are not touched. Strides that lay
 *                   two elements on each other are refused.
 *        io.new_kv  the same pairs without k_cmp, v_cmp: dtype [T, Hkv, Dk], [T, Hkv, Dv].
 *        io.phi     the weights of phi linear or mlp.
 *
 * The arrays of the batch lie where the tensors do: in device memory, on the CPU device in host
 * memory. Errors and behaviour as nsa_forward; where it checks the batch's values, those that lead out of
 * the cache are NSA_E_ARG: lengths, pages, slots. */
NSA_API nsa_status nsa_kv_append(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                                 const nsa_io *io);

/* Enqueues the attention of every sequence's new tokens over the cache. Their own K and V must have
 * been appended.
 *
 * plan   of NSA_OP_DECODE: at most max_q_len new tokens a sequence. Its workspace grows with max_tokens *
 *        max_kv_len, since every selection block of every token is ranked (nsa_plan_caps, nsa_explain).
 * batch  kv_len and, with pages, their lists are required; cu_q and slots may be absent.
 * io     as nsa_forward has it, but that io.kv is the cache (k_cmp and v_cmp are read) and that
 *        io.phi and io.new_kv are not read. io.kv_reads is optional where the configuration has `runtime.count_reads:
 *        true`, and refused elsewhere.
 *
 * Counters. io.kv_reads is i64 [num_seqs, Hkv, NSA_BRANCHES, 2] and lies where the cache does: of each
 * sequence, KV head and branch the tokens (of NSA_CMP compressed entries) whose K was read, then the bytes
 * of K and V. They are counted where the kernels load them, and added to what is there: the caller sets zeros
 * where a count begins, and one captured graph goes on counting. Plans that count leave out the kernels that do
 * not, decode_cluster and decode_pipelined (which reads blocks that are window and chosen once). A sequence of L
 * tokens with one new one has
 *   NSA_CMP  N(L) = L < l ? 0 : (L - l) / d + 1, also where selection or probe alone needs them
 *   NSA_SEL  the sum over its chosen blocks j of min(l', L - j*l'); n*l' when all are whole
 *   NSA_WIN  min(w, L)
 * tokens of 2 * (Dk + Dv) bytes; of a caller's ranges their tokens. Several new tokens that one block of
 * threads takes read together, each key once: the compressed entries of the last of them, their windows, and
 * every block that one of them has chosen, up to the last of them; but each its own ranges. What is read
 * again counts again, though a cache may have it. What the importance of probed rows reads once more is not
 * counted. The CPU device reads compressed entries once for all tokens of a sequence, no V of them where the
 * branch itself does not run, and windows and blocks token by token.
 *
 * Errors and behaviour as nsa_kv_append. */
NSA_API nsa_status nsa_decode(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                              const nsa_io *io);

/* The same with a plan of NSA_OP_PREFILL, for any number of new tokens: chunks of long prompts,
 * beside sequences that decode. */
NSA_API nsa_status nsa_prefill(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                               const nsa_io *io);

#ifdef __cplusplus
}
#endif
#endif /* NSA_KV_CACHE_H */

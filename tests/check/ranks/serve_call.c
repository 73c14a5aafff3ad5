/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The calls of one rank.
 */
#include "ranks/serve.h"

#include <nsa/kv_cache.h>

#include <string.h>

const char *const chk_serve_names[CHK_SERVE_OUTPUTS] = { [CHK_SERVE_IDX] = "block_idx",
                                                         [CHK_SERVE_INDEX_LSE] = "index_lse",
                                                         [CHK_SERVE_LSE_CMP] = "lse[cmp]",
                                                         [CHK_SERVE_LSE_SEL] = "lse[sel]",
                                                         [CHK_SERVE_LSE_WIN] = "lse[win]",
                                                         [CHK_SERVE_O_BRANCH] = "o_branch[cmp]",
                                                         [CHK_SERVE_O_BRANCH + 1] = "o_branch[sel]",
                                                         [CHK_SERVE_O_BRANCH + 2] = "o_branch[win]",
                                                         [CHK_SERVE_O] = "o" };

/* The rows of a call. */
static nsa_tensor rows_of(const chk_memory *m, const chk_script *call, int what) {
  nsa_tensor t = chk_serve_view(&m->tensor[what]);
  if (t.data) t.shape[0] = call->tokens;
  return t;
}

static nsa_tensor view_of(const chk_memory *m, int what) {
  return chk_serve_view(&m->tensor[what]);
}

static nsa_batch batch_of(const chk_memory *m, const chk_script *call) {
  nsa_batch b = NSA_BATCH_INIT;
  b.num_seqs = m->s->o.seqs;
  b.kv_len = view_of(m, CHK_SERVE_KV_LEN);
  if (call->packed) b.cu_q = view_of(m, CHK_SERVE_CU_Q);
  b.block_table = view_of(m, CHK_SERVE_TABLE);
  b.entry_table = view_of(m, CHK_SERVE_ENTRY_TABLE);
  b.slots = view_of(m, CHK_SERVE_SLOTS);
  return b;
}

static void set_cache(const chk_memory *m, nsa_io *io) {
  nsai_verify_kv cache;
  const int first = CHK_SERVE_SCALES, entries = first + 2 * NSA_BRANCHES;
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++)
    *nsai_verify_cache_tensor(&cache, i) = chk_serve_view(&m->cache[i]);
  io->kv = cache.kv;
  io->k_norm = cache.k_norm;
  io->k_idx = cache.k_idx;
  for (int b = 0; b < NSA_BRANCHES; b++) {
    io->k_scale[b] = view_of(m, first + b);
    io->v_scale[b] = view_of(m, first + NSA_BRANCHES + b);
  }
  io->k_idx_scale = view_of(m, entries);
  io->k_cmp_scale = view_of(m, entries + 1);
  io->v_cmp_scale = view_of(m, entries + 2);
}

static nsa_phi_side side_of(const chk_memory *m, int first) {
  return (nsa_phi_side){ .pe = view_of(m, first),
                         .w = view_of(m, first + 1),
                         .w1 = view_of(m, first + 2),
                         .b1 = view_of(m, first + 3),
                         .w2 = view_of(m, first + 4),
                         .b2 = view_of(m, first + 5) };
}

static nsa_gate gate_of(const chk_memory *m, const chk_script *call) {
  const int first = CHK_SERVE_WEIGHTS + 12;
  const nsa_tensor rows = rows_of(m, call, CHK_SERVE_GATE);
  if (m->s->o.model.gate != NSAI_GATE_MLP) return (nsa_gate){ .value = rows };
  return (nsa_gate){ .x = rows,
                     .w1 = view_of(m, first),
                     .b1 = view_of(m, first + 1),
                     .w2 = view_of(m, first + 2),
                     .b2 = view_of(m, first + 3) };
}

static nsa_io io_of_append(const chk_memory *m, const chk_script *call) {
  nsa_io io = NSA_IO_INIT;
  set_cache(m, &io);
  io.phi = (nsa_phi){ side_of(m, CHK_SERVE_WEIGHTS), side_of(m, CHK_SERVE_WEIGHTS + 6) };
  for (int b = 0; b < NSA_BRANCHES; b++) {
    io.new_kv.k[b] = rows_of(m, call, CHK_SERVE_NEW_K + b);
    io.new_kv.v[b] = rows_of(m, call, CHK_SERVE_NEW_V + b);
  }
  io.new_k_idx = rows_of(m, call, CHK_SERVE_NEW_INDEX);
  return io;
}

static nsa_io io_of_decode(const chk_memory *m, const chk_script *call) {
  nsa_io io = NSA_IO_INIT;
  const bool owns = m->s->o.selection == NSA_SELECT_TOPN;
  set_cache(m, &io);
  io.softmax_scale = m->s->o.softmax_scale;
  io.q = rows_of(m, call, CHK_SERVE_Q);
  io.index_q = rows_of(m, call, CHK_SERVE_INDEX_Q);
  io.gate = gate_of(m, call);
  io.o = rows_of(m, call, CHK_SERVE_O);
  io.block_idx = rows_of(m, call, owns ? CHK_SERVE_IDX : CHK_SERVE_BLOCKS);
  io.index_lse = rows_of(m, call, CHK_SERVE_INDEX_LSE);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!(call->branches >> b & 1)) continue;
    io.o_branch[b] = rows_of(m, call, CHK_SERVE_O_BRANCH + b);
    io.lse[b] = rows_of(m, call, CHK_SERVE_LSE_CMP + b);
  }
  return io;
}

/* In half of the problems the append gets the communicator, too, and ignores it. */
nsa_status chk_memory_append(chk_memory *m, const chk_script *call, nsa_comm *comm) {
  nsa_batch batch = batch_of(m, call);
  nsa_io io = io_of_append(m, call);
  for (int i = 0; i < CHK_SERVE_OUTPUTS; i++)
    if (m->tensor[i].memory.device)
      NSAI_TRY(nsai_verify_buffer_poison(m->device, &m->tensor[i].memory));
  NSAI_TRY(nsai_verify_buffer_poison(m->device, &m->workspace));
  NSAI_TRY(nsai_verify_device_wait(m->device, NULL));
  m->exec.branches = 0;
  m->exec.comm = m->s->seed % 2 ? comm : NULL;
  if (m->s->o.mapping) batch.slot_mapping = rows_of(m, call, CHK_SERVE_MAPPING);
  return nsa_kv_append(m->append.plan, &m->exec, &batch, &io);
}

nsa_status chk_memory_decode(chk_memory *m, const chk_script *call, nsa_comm *comm) {
  const nsa_batch batch = batch_of(m, call);
  const nsa_io io = io_of_decode(m, call);
  m->exec.branches = call->branches;
  m->exec.comm = comm;
  return nsa_decode(m->decode.plan, &m->exec, &batch, &io);
}

nsa_status chk_memory_prefill(chk_memory *m, const chk_script *call, nsa_comm *comm,
                              nsa_shard *shard) {
  nsa_batch batch = batch_of(m, call);
  const nsa_io io = io_of_decode(m, call);
  if (shard) batch.cu_q = (nsa_tensor){ 0 };
  batch.shard = shard;
  m->exec.branches = call->branches;
  m->exec.comm = comm;
  return nsa_prefill(m->prefill.plan, &m->exec, &batch, &io);
}

nsa_status chk_memory_fetch(chk_memory *m, const chk_script *call, nsa_comm *comm) {
  if (comm && (call->decodes || m->prefill.plan))
    NSAI_TRY(nsa_comm_wait(comm, m->device->stream, 0));
  else
    NSAI_TRY(nsai_verify_device_wait(m->device, NULL));
  for (int i = 0; i < CHK_SERVE_OUTPUTS; i++)
    if (m->tensor[i].memory.device)
      NSAI_TRY(nsai_verify_buffer_fetch(m->device, &m->tensor[i].memory));
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++)
    if (m->cache[i].memory.device)
      NSAI_TRY(nsai_verify_buffer_fetch(m->device, &m->cache[i].memory));
  return nsai_verify_buffer_fetch_guards(m->device, &m->workspace);
}

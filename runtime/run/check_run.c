/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/check_run.h"

#include "run/check_cache.h"
#include "run/check_index.h"
#include "run/check_scales.h"
#include "run/check_tensor.h"
#include "run/check_values.h"

#include <stdio.h>

nsa_status nsai_check_branches(const nsai_problem *problem, uint32_t wanted, uint32_t *branches) {
  const nsai_model *m = &problem->model;
  uint32_t has = nsai_branches(m);
  if (wanted & ~((1u << NSA_BRANCHES) - 1))
    return nsai_fail(NSA_E_ARG,
                     "exec.branches is 0x%x: only the bits of NSA_CMP, NSA_SEL and NSA_WIN exist",
                     wanted);
  *branches = wanted ? wanted & has : has;
  if (!*branches)
    return nsai_fail(
        NSA_E_ARG,
        "exec.branches is 0x%x: the model has none of these branches (count or window is 0, or "
        "compress.output is false, or compress is none)",
        wanted);
  return NSA_OK;
}

static nsa_status check_sizes(const nsai_problem *p, const nsai_run_sizes *s) {
  if (s->tokens < 0 || s->kv_tokens < 0 || s->cmp_rows < 0) /* runtime.check_inputs: off */
    return nsai_fail(NSA_E_ARG, "%s has a negative shape[0]",
                     s->tokens < 0      ? "io.q"
                     : s->kv_tokens < 0 ? "io.kv.k"
                                        : "io.kv.k_cmp");
  if (s->tokens > p->max_tokens)
    return nsai_fail(
        NSA_E_ARG,
        "io.q has %lld tokens, the plan was made for at most %lld: raise problem.max_tokens",
        (long long)s->tokens, (long long)p->max_tokens);
  if (s->kv_tokens > p->max_kv_tokens)
    return nsai_fail(
        NSA_E_ARG,
        "io.kv has %lld tokens, the plan was made for at most %lld: raise problem.max_kv_tokens",
        (long long)s->kv_tokens, (long long)p->max_kv_tokens);
  if (!s->packed && !p->ranks && s->kv_tokens > p->max_kv_len)
    return nsai_fail(
        NSA_E_ARG,
        "io.kv has a sequence of %lld tokens, the plan was made for at most %lld: raise "
        "problem.max_kv_len",
        (long long)s->kv_tokens, (long long)p->max_kv_len);
  if (s->num_seqs > p->max_seqs)
    return nsai_fail(
        NSA_E_ARG, "batch.num_seqs is %d, the plan was made for at most %d: raise problem.max_seqs",
        s->num_seqs, p->max_seqs);
  return NSA_OK;
}

const char *nsai_array_of_cache(const nsa_batch *batch) {
  const struct {
    const char *name;
    const nsa_tensor *tensor;
  } fields[] = { { "kv_len", &batch->kv_len },
                 { "block_table", &batch->block_table },
                 { "page_indptr", &batch->page_indptr },
                 { "page_indices", &batch->page_indices },
                 { "slots", &batch->slots },
                 { "slot_mapping", &batch->slot_mapping },
                 { "entry_table", &batch->entry_table } };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (nsai_present(fields[i].tensor)) return fields[i].name;
  return NULL;
}

/* What a batch says of a cache, where there is none. */
static nsa_status refuse_cache(const nsai_check *check, const nsa_batch *batch) {
  const char *name = nsai_array_of_cache(batch);
  if (!name) return NSA_OK;
  return nsai_fail(NSA_E_ARG, "batch.%s is given, but %s has no cache: leave it out", name,
                   nsai_op_name(check->problem->op));
}

static nsa_status check_batch(const nsai_check *check, const nsa_batch *batch,
                              nsai_run_sizes *sizes) {
  sizes->num_seqs = 1;
  sizes->packed = batch != NULL;
  if (!batch) return NSA_OK;
  if (batch->num_seqs < 1)
    return nsai_fail(NSA_E_ARG, "batch.num_seqs is %d, expected at least 1, or 0 for 1",
                     batch->num_seqs);
  NSAI_TRY(refuse_cache(check, batch));
  sizes->num_seqs = batch->num_seqs;
  int64_t count = (int64_t)batch->num_seqs + 1;
  nsai_tensor_spec q = { "batch.cu_q", 1, { count }, NSAI_DTYPE_I32 },
                   kv = { "batch.cu_kv", 1, { count }, NSAI_DTYPE_I32 };
  nsai_tensor_spec blocks = { "batch.cu_cmp", 1, { count }, NSAI_DTYPE_I32 };
  NSAI_TRY(nsai_check_tensor(check, &batch->cu_q, &q));
  NSAI_TRY(nsai_check_optional_tensor(check, &batch->cu_kv, &kv));
  return nsai_check_optional_tensor(check, &batch->cu_cmp, &blocks);
}

/* Whether sequence s has room for its compressed blocks in the caller's tensors. */
static nsa_status check_room(const nsai_check *check, const nsa_batch *batch,
                             const nsai_run_sizes *sizes) {
  const nsai_model *m = &check->problem->model;
  const int32_t *kv = nsai_present(&batch->cu_kv) ? batch->cu_kv.data : batch->cu_q.data;
  const int32_t *blocks = batch->cu_cmp.data; /* one sequence may do without */
  for (int32_t s = 0; s < batch->num_seqs; s++) {
    int64_t room = blocks ? blocks[s + 1] - blocks[s] : sizes->cmp_rows;
    int64_t needed = nsai_block_count(m, kv[s + 1] - kv[s]);
    if (room < needed)
      return nsai_fail(NSA_E_ARG,
                       "io.kv.k_cmp has %lld rows for sequence %d (batch.cu_cmp), its %d tokens "
                       "have %lld compression blocks",
                       (long long)room, s, kv[s + 1] - kv[s], (long long)needed);
  }
  return NSA_OK;
}

/* Offsets that can be read. `q_rows`, `kv_rows`: of the tensors that they cut. */
static nsa_status check_offsets(const nsai_check *check, const nsa_batch *batch, int64_t q_rows,
                                int64_t kv_rows, const nsai_run_sizes *sizes) {
  int64_t kv_len = check->problem->max_kv_len;
  nsai_offset_limits q = { "batch.cu_q", q_rows, INT32_MAX, NULL },
                     kv = { "batch.cu_kv", kv_rows, kv_len, "max_kv_len" };
  nsai_offset_limits blocks = { "batch.cu_cmp", sizes->cmp_rows, INT32_MAX, NULL };
  if (!nsai_present(&batch->cu_kv)) /* cu_q stands for both */
    q = (nsai_offset_limits){ "batch.cu_q", q_rows < kv_rows ? q_rows : kv_rows, kv_len,
                              "max_kv_len" };
  NSAI_TRY(nsai_check_offsets(&batch->cu_q, batch->num_seqs, &q));
  NSAI_TRY(nsai_check_offsets(&batch->cu_kv, batch->num_seqs, &kv));
  if (!sizes->cmp_rows) return NSA_OK;
  NSAI_TRY(nsai_check_offsets(&batch->cu_cmp, batch->num_seqs, &blocks));
  return check->problem->model.phi == NSAI_PHI_EXTERNAL ? NSA_OK : check_room(check, batch, sizes);
}

/* The values of the batch's arrays, where they can be looked at. */
static nsa_status check_values(const nsai_check *check, const nsa_batch *batch, int64_t q_rows,
                               int64_t kv_rows, const nsai_run_sizes *sizes) {
  nsai_batch_values values;
  nsa_status status = NSA_OK;
  NSAI_TRY(nsai_batch_values_read(check, batch, &values));
  if (values.batch) NSAI_TRY_TO(done, check_offsets(check, values.batch, q_rows, kv_rows, sizes));
done:
  nsai_batch_values_fini(&values);
  return status;
}

/* K and V of one branch; the first also gives the number of KV tokens. */
static nsa_status check_pair(const nsai_check *check, const nsa_io *io, int b, int64_t rows) {
  static const char *const k_names[] = { "io.kv.k[0]", "io.kv.k[1]", "io.kv.k[2]" };
  static const char *const v_names[] = { "io.kv.v[0]", "io.kv.v[1]", "io.kv.v[2]" };
  const nsai_model *m = &check->problem->model;
  nsai_tensor_spec k = { k_names[b], 3, { rows, m->kv_heads, m->head_dim_qk }, NSAI_DTYPE_MODEL };
  nsai_tensor_spec v = { v_names[b], 3, { rows, m->kv_heads, m->head_dim_v }, NSAI_DTYPE_MODEL };
  NSAI_TRY(nsai_check_tensor(check, &io->kv.k[b], &k));
  v.shape[0] = io->kv.k[b].shape[0];
  return nsai_check_tensor(check, &io->kv.v[b], &v);
}

nsa_status nsai_check_no_entries(const nsai_model *model, const nsa_tensor *t, bool values,
                                 const char *name) {
  if (!nsai_present(t)) return NSA_OK;
  if (!nsai_compresses(model))
    return nsai_fail(NSA_E_ARG,
                     "%s is given, but model.compress is none: there are no compressed keys and "
                     "values; leave it out",
                     name);
  if (!values || !model->keys_only) return NSA_OK;
  return nsai_fail(NSA_E_ARG,
                   "%s is given, but model.compress.output is false: compressed values do not "
                   "exist; leave it out",
                   name);
}

/* The compressed pair: an input with phi external, else an optional output. */
static nsa_status check_compressed(const nsai_check *check, const nsa_batch *batch,
                                   const nsa_io *io, bool required, nsai_run_sizes *sizes) {
  const nsai_model *m = &check->problem->model;
  NSAI_TRY(nsai_check_no_entries(m, &io->kv.k_cmp, false, "io.kv.k_cmp"));
  NSAI_TRY(nsai_check_no_entries(m, &io->kv.v_cmp, true, "io.kv.v_cmp"));
  if (!nsai_compresses(m)) return NSA_OK;
  if (!m->keys_only && nsai_present(&io->kv.k_cmp) != nsai_present(&io->kv.v_cmp))
    return nsai_fail(NSA_E_ARG, "io.kv.k_cmp and io.kv.v_cmp must be given together");
  if (!required && !nsai_present(&io->kv.k_cmp)) return NSA_OK;
  sizes->cmp_rows = io->kv.k_cmp.shape[0];
  nsai_tensor_spec k = {
    "io.kv.k_cmp", 3, { NSAI_ANY, m->kv_heads, m->head_dim_qk }, NSAI_DTYPE_MODEL
  };
  nsai_tensor_spec v = {
    "io.kv.v_cmp", 3, { sizes->cmp_rows, m->kv_heads, m->head_dim_v }, NSAI_DTYPE_MODEL
  };
  NSAI_TRY(nsai_check_tensor(check, &io->kv.k_cmp, &k));
  if (!m->keys_only) NSAI_TRY(nsai_check_tensor(check, &io->kv.v_cmp, &v));
  if (m->phi != NSAI_PHI_EXTERNAL && check->problem->op != NSA_OP_BACKWARD) {
    NSAI_TRY(nsai_check_tensor_memory(check, &io->kv.k_cmp, k.name));
    NSAI_TRY(nsai_check_tensor_memory(check, &io->kv.v_cmp, v.name));
  }
  if (batch && batch->num_seqs > 1 && !nsai_present(&batch->cu_cmp))
    return nsai_fail(
        NSA_E_ARG,
        "batch.cu_cmp is missing: with io.kv.k_cmp and %d sequences it says where each "
        "sequence's blocks begin",
        batch->num_seqs);
  if (sizes->cmp_rows > check->problem->max_kv_tokens)
    return nsai_fail(NSA_E_ARG, "io.kv.k_cmp has %lld rows, more than the plan's %lld KV tokens",
                     (long long)sizes->cmp_rows, (long long)check->problem->max_kv_tokens);
  /* The products of phi go through workspace that is laid out for the plan's tokens. */
  int64_t most = check->problem->max_kv_tokens / m->stride + 1;
  if (sizes->cmp_rows > most && nsai_phi_has_weights(m))
    return nsai_fail(NSA_E_ARG,
                     "io.kv.k_cmp has %lld rows, the plan's %lld KV tokens have at most %lld "
                     "compression blocks: pass fewer rows, or raise problem.max_kv_tokens",
                     (long long)sizes->cmp_rows, (long long)check->problem->max_kv_tokens,
                     (long long)most);
  int64_t needed = batch || check->problem->ranks ? 0 : nsai_block_count(m, sizes->kv_tokens);
  if (sizes->cmp_rows < needed)
    return nsai_fail(NSA_E_ARG,
                     "io.kv.k_cmp has %lld rows, %lld tokens have %lld compression blocks",
                     (long long)sizes->cmp_rows, (long long)sizes->kv_tokens, (long long)needed);
  return NSA_OK;
}

/* Number of KV tokens: of the first K that the model reads. With phi external and no other branch
 * there may be none. */
static nsa_status check_kv(const nsai_check *check, const nsa_io *io, nsai_run_sizes *sizes) {
  const nsai_model *m = &check->problem->model;
  bool raw_cmp = check->problem->op == NSA_OP_DENSE || nsai_phi_runs(m);
  bool needs_raw[NSA_BRANCHES] = { raw_cmp,
                                   check->problem->op != NSA_OP_DENSE && m->select_count > 0,
                                   check->problem->op != NSA_OP_DENSE && m->window > 0 };
  bool first = true;
  sizes->kv_tokens = 0;
  for (int b = 0; b < NSA_BRANCHES; b++) {
    int source = m->per_branch ? b : 0;
    if (!needs_raw[b] || (!m->per_branch && !first)) continue;
    NSAI_TRY(check_pair(check, io, source, first ? NSAI_ANY : sizes->kv_tokens));
    if (first) sizes->kv_tokens = io->kv.k[source].shape[0];
    first = false;
  }
  bool given = nsai_present(&io->kv.k[0]);
  if (first && !given && !sizes->packed)
    return nsai_fail(NSA_E_ARG,
                     "io.kv.k[0] is missing: with phi external and no other branch the number of "
                     "KV tokens is its first dimension; give it, or a batch with batch.cu_kv");
  if (first) sizes->kv_tokens = given ? io->kv.k[0].shape[0] : check->problem->max_kv_tokens;
  if (given && !needs_raw[0] && io->kv.k[0].shape[0] != sizes->kv_tokens)
    return nsai_fail(NSA_E_ARG,
                     "io.kv.k[0] has shape[0] = %lld, expected %lld as the other branches' keys "
                     "have: leave it out, phi is external",
                     (long long)io->kv.k[0].shape[0], (long long)sizes->kv_tokens);
  return NSA_OK;
}

static nsa_status check_phi_side(const nsai_check *check, const nsa_phi_side *side,
                                 const char *name, int32_t dim) {
  const nsai_model *m = &check->problem->model;
  int64_t g = m->kv_heads, wide = (int64_t)m->block * dim, h = m->phi_hidden;
  char names[6][24];
  static const char *const fields[] = { "pe", "w", "w1", "b1", "w2", "b2" };
  for (int i = 0; i < 6; i++) snprintf(names[i], sizeof names[i], "%s.%s", name, fields[i]);
  nsai_tensor_spec pe = { names[0], 3, { g, m->block, dim }, NSAI_DTYPE_MODEL },
                   w = { names[1], 3, { g, wide, dim }, NSAI_DTYPE_WEIGHT };
  nsai_tensor_spec w1 = { names[2], 3, { g, wide, h }, NSAI_DTYPE_WEIGHT },
                   b1 = { names[3], 2, { g, h }, NSAI_DTYPE_WEIGHT };
  nsai_tensor_spec w2 = { names[4], 3, { g, h, dim }, NSAI_DTYPE_WEIGHT },
                   b2 = { names[5], 2, { g, dim }, NSAI_DTYPE_WEIGHT };
  NSAI_TRY(nsai_check_optional_tensor(check, &side->pe, &pe));
  if (m->phi == NSAI_PHI_LINEAR) return nsai_check_tensor(check, &side->w, &w);
  NSAI_TRY(nsai_check_tensor(check, &side->w1, &w1));
  NSAI_TRY(nsai_check_optional_tensor(check, &side->b1, &b1));
  NSAI_TRY(nsai_check_tensor(check, &side->w2, &w2));
  return nsai_check_optional_tensor(check, &side->b2, &b2);
}

nsa_status nsai_check_phi(const nsai_check *check, const nsa_phi *phi) {
  const nsai_model *m = &check->problem->model;
  if (!nsai_phi_has_weights(m)) return NSA_OK;
  NSAI_TRY(check_phi_side(check, &phi->k, "io.phi.k", m->head_dim_qk));
  if (m->keys_only) return NSA_OK;
  return check_phi_side(check, &phi->v, "io.phi.v", m->head_dim_v);
}

static nsa_status check_gate(const nsai_check *check, const nsa_io *io, int64_t tokens) {
  const nsai_model *m = &check->problem->model;
  nsai_tensor_spec value = {
    "io.gate.value", 3, { tokens, m->heads, 3 }, NSAI_DTYPE_MODEL | NSAI_DTYPE_F32
  };
  if (nsai_gate_is_given(m)) return nsai_check_tensor(check, &io->gate.value, &value);
  if (m->gate == NSAI_GATE_NONE && nsai_present(&io->gate.value))
    return nsai_fail(NSA_E_ARG,
                     "io.gate.value is given, but model.gate is none: the branches are added up as "
                     "they are; leave it out, or set model.gate to weights or logits");
  if (m->gate == NSAI_GATE_NONE) return NSA_OK;
  int64_t c = m->gate_channels, h = m->gate_hidden, out = (int64_t)m->heads * 3;
  nsai_tensor_spec x = { "io.gate.x", 2, { tokens, c }, NSAI_DTYPE_WEIGHT },
                   w1 = { "io.gate.w1", 2, { c, h }, NSAI_DTYPE_WEIGHT };
  nsai_tensor_spec b1 = { "io.gate.b1", 1, { h }, NSAI_DTYPE_WEIGHT },
                   w2 = { "io.gate.w2", 2, { h ? h : c, out }, NSAI_DTYPE_WEIGHT };
  nsai_tensor_spec b2 = { "io.gate.b2", 1, { out }, NSAI_DTYPE_WEIGHT };
  NSAI_TRY(nsai_check_tensor(check, &io->gate.x, &x));
  if (h) {
    NSAI_TRY(nsai_check_tensor(check, &io->gate.w1, &w1));
    NSAI_TRY(nsai_check_optional_tensor(check, &io->gate.b1, &b1));
  }
  NSAI_TRY(nsai_check_tensor(check, &io->gate.w2, &w2));
  return nsai_check_optional_tensor(check, &io->gate.b2, &b2);
}

/* An optional tensor that the call writes; a backward pass reads it. */
static nsa_status check_output(const nsai_check *check, const nsa_tensor *t,
                               const nsai_tensor_spec *e) {
  NSAI_TRY(nsai_check_optional_tensor(check, t, e));
  return check->problem->op == NSA_OP_BACKWARD ? NSA_OK
                                               : nsai_check_tensor_memory(check, t, e->name);
}

/* A selection that the caller brings, with or without the axis of KV heads. */
static nsa_status check_selection(const nsai_check *check, const nsa_io *io, int64_t tokens) {
  const nsai_model *m = &check->problem->model;
  if (check->problem->selection == NSA_SELECT_RANGES) {
    nsai_tensor_spec each = {
      "io.ranges", 4, { tokens, m->kv_heads, m->select_count, 2 }, NSAI_DTYPE_I32
    };
    nsai_tensor_spec all = { "io.ranges", 3, { tokens, m->select_count, 2 }, NSAI_DTYPE_I32 };
    return nsai_check_tensor(check, &io->ranges, io->ranges.ndim == 3 ? &all : &each);
  }
  nsai_tensor_spec each = {
    "io.block_idx", 3, { tokens, m->kv_heads, m->select_count }, NSAI_DTYPE_I32
  };
  nsai_tensor_spec all = { "io.block_idx", 2, { tokens, m->select_count }, NSAI_DTYPE_I32 };
  if (check->problem->selection ==
      NSA_SELECT_TOPN) /* what the forward chose is its backward's input */
    return check->problem->op == NSA_OP_BACKWARD || check->problem->op == NSA_OP_INDEX_KL
               ? nsai_check_tensor(check, &io->block_idx, &each)
               : check_output(check, &io->block_idx, &each);
  return nsai_check_tensor(check, &io->block_idx, io->block_idx.ndim == 2 ? &all : &each);
}

static nsa_status check_outputs(const nsai_check *check, const nsa_io *io, int64_t tokens) {
  static const char *const o_names[] = { "io.o_branch[0]", "io.o_branch[1]", "io.o_branch[2]" };
  static const char *const lse_names[] = { "io.lse[0]", "io.lse[1]", "io.lse[2]" };
  const nsai_model *m = &check->problem->model;
  nsai_tensor_spec o = { "io.o", 3, { tokens, m->heads, m->head_dim_v }, NSAI_DTYPE_MODEL };
  nsai_check whole = *check;
  if (check->problem->op == NSA_OP_BACKWARD) whole.tensors = NULL; /* nothing reads io.o there */
  NSAI_TRY(check->problem->op == NSA_OP_BACKWARD || nsai_present(&io->o)
               ? check_output(&whole, &io->o, &o)
               : nsai_check_tensor(&whole, &io->o, &o));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    nsai_tensor_spec branch = {
      o_names[b], 3, { tokens, m->heads, m->head_dim_v }, NSAI_DTYPE_MODEL
    };
    nsai_tensor_spec lse = { lse_names[b], 2, { tokens, m->heads }, NSAI_DTYPE_F32 };
    NSAI_TRY(check_output(check, &io->o_branch[b], &branch));
    NSAI_TRY(check_output(check, &io->lse[b], &lse));
    bool runs = check->branches >> b & 1;
    if (check->problem->op == NSA_OP_DENSE && nsai_present(&io->o_branch[b]))
      return nsai_fail(NSA_E_ARG, "%s is wanted, but NSA_OP_DENSE has no branches: use io.o",
                       o_names[b]);
    if (!runs && (nsai_present(&io->o_branch[b]) || nsai_present(&io->lse[b])))
      return nsai_fail(
          NSA_E_ARG,
          "%s is wanted, but branch %d does not run (exec.branches, or count or window is 0, or "
          "compress.output is false, or compress is none)",
          nsai_present(&io->o_branch[b]) ? o_names[b] : lse_names[b], b);
  }
  return NSA_OK;
}

static nsa_status check_probe(const nsai_check *check, const nsa_io *io) {
  const nsai_problem *p = check->problem;
  if (nsai_present(&io->probe_rows) != nsai_present(&io->probe_importance))
    return nsai_fail(NSA_E_ARG, "io.probe_rows and io.probe_importance must be given together");
  if (!nsai_present(&io->probe_rows)) return NSA_OK;
  if (p->op == NSA_OP_BACKWARD)
    return nsai_fail(NSA_E_ARG,
                     "io.probe_rows is given, but NSA_OP_BACKWARD has no importance: leave it out");
  int64_t rows = io->probe_rows.shape[0];
  nsai_tensor_spec list = { "io.probe_rows", 1, { NSAI_ANY }, NSAI_DTYPE_I32 };
  nsai_tensor_spec out = {
    "io.probe_importance", 3, { rows, p->model.kv_heads, NSAI_ANY }, NSAI_DTYPE_F32
  };
  NSAI_TRY(nsai_check_tensor(check, &io->probe_rows, &list));
  NSAI_TRY(nsai_check_tensor(check, &io->probe_importance, &out));
  NSAI_TRY(nsai_check_tensor_memory(check, &io->probe_importance, out.name));
  if (rows > p->max_probe_rows)
    return nsai_fail(
        NSA_E_ARG,
        "io.probe_rows has %lld rows, the plan was made for %d: raise problem.max_probe_rows",
        (long long)rows, p->max_probe_rows);
  int64_t blocks = nsai_select_block_count(&p->model, p->max_kv_len);
  if (io->probe_importance.shape[2] < blocks)
    return nsai_fail(
        NSA_E_ARG,
        "io.probe_importance has %lld columns, a sequence of the plan has up to %lld blocks",
        (long long)io->probe_importance.shape[2], (long long)blocks);
  return NSA_OK;
}

/* What the three branches have beside keys and outputs. */
static nsa_status check_attention(const nsai_check *check, const nsa_io *io,
                                  const nsai_run_sizes *sizes) {
  NSAI_TRY(check_gate(check, io, sizes->tokens));
  if (check->problem->model.select_count) NSAI_TRY(check_selection(check, io, sizes->tokens));
  NSAI_TRY(check_probe(check, io));
  NSAI_TRY(nsai_check_index_lse(check, io, sizes->tokens));
  return nsai_check_index(check, io, sizes);
}

/* Counters of what a decode step reads. */
static nsa_status check_reads(const nsai_check *check, const nsa_io *io, int32_t num_seqs) {
  const nsai_problem *p = check->problem;
  if (!nsai_present(&io->kv_reads)) return NSA_OK;
  if (p->op != NSA_OP_DECODE)
    return nsai_fail(NSA_E_ARG,
                     "io.kv_reads is given, but %s counts nothing, nsa_decode does: leave it out",
                     nsai_op_name(p->op));
  if (!p->count_reads)
    return nsai_fail(NSA_E_ARG, "io.kv_reads is given, but the plan does not count: set "
                                "runtime.count_reads to true, or leave it out");
  nsai_tensor_spec reads = {
    "io.kv_reads", 4, { num_seqs, p->model.kv_heads, NSA_BRANCHES, 2 }, NSAI_DTYPE_I64
  };
  NSAI_TRY(nsai_check_tensor(check, &io->kv_reads, &reads));
  if (check->tensors) nsai_call_tensors_mark_written(check->tensors, &io->kv_reads);
  return NSA_OK; /* sums may lie on each other */
}

static nsa_status check_io(const nsa_io *io) {
  if (!(io->softmax_scale >= 0.0f) || io->softmax_scale > 1e4f)
    return nsai_fail(NSA_E_ARG,
                     "io.softmax_scale is %g, expected a number up to 1e4, or 0 for 1/sqrt(Dk)",
                     (double)io->softmax_scale);
  return NSA_OK;
}

nsa_status nsai_check_run(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                          nsai_run_sizes *sizes) {
  const nsai_problem *p = check->problem;
  *sizes = (nsai_run_sizes){ 0 };
  NSAI_TRY(check_io(io));
  NSAI_TRY(nsai_check_no_index(check, io));
  nsai_tensor_spec q = {
    "io.q", 3, { NSAI_ANY, p->model.heads, p->model.head_dim_qk }, NSAI_DTYPE_MODEL
  };
  NSAI_TRY(nsai_check_tensor(check, &io->q, &q));
  sizes->tokens = io->q.shape[0];
  NSAI_TRY(nsai_check_scales(check, io));
  if (nsai_problem_is_cached(p)) {
    NSAI_TRY(nsai_check_cached(check, batch, io, sizes));
    NSAI_TRY(check_outputs(check, io, sizes->tokens));
    NSAI_TRY(check_reads(check, io, sizes->num_seqs));
    return check_attention(check, io, sizes);
  }
  if (nsai_present(&io->k_norm))
    return nsai_fail(NSA_E_ARG, "io.k_norm is given, but %s has no cache: leave it out",
                     nsai_op_name(p->op));
  NSAI_TRY(check_reads(check, io, sizes->num_seqs));
  NSAI_TRY(check_batch(check, batch, sizes));
  NSAI_TRY(check_kv(check, io, sizes));
  NSAI_TRY(check_outputs(check, io, sizes->tokens));
  if (nsai_problem_is_packed(p)) {
    NSAI_TRY(check_compressed(check, batch, io, p->model.phi == NSAI_PHI_EXTERNAL, sizes));
    NSAI_TRY(nsai_check_phi(check, &io->phi));
    NSAI_TRY(check_attention(check, io, sizes));
  }
  NSAI_TRY(check_sizes(p, sizes));
  return check_values(check, batch, sizes->tokens, sizes->kv_tokens, sizes);
}

nsa_status nsai_check_index_kl(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                               nsai_run_sizes *sizes) {
  const nsai_problem *p = check->problem;
  const nsai_model *m = &p->model;
  const bool all =
      p->selection == NSA_SELECT_ALL; /* then it reads what nsa_dense reads and writes */
  const int pair = m->per_branch && !all ? NSA_SEL : 0;
  *sizes = (nsai_run_sizes){ 0 };
  NSAI_TRY(check_io(io));
  NSAI_TRY(nsai_check_no_index(check, io));
  nsai_tensor_spec q = { "io.q", 3, { NSAI_ANY, m->heads, m->head_dim_qk }, NSAI_DTYPE_MODEL };
  nsai_tensor_spec k = { pair ? "io.kv.k[1]" : "io.kv.k[0]",
                         3,
                         { NSAI_ANY, m->kv_heads, m->head_dim_qk },
                         NSAI_DTYPE_MODEL };
  NSAI_TRY(check_batch(check, batch, sizes));
  NSAI_TRY(nsai_check_tensor(check, &io->q, &q));
  NSAI_TRY(nsai_check_tensor(check, &io->kv.k[pair], &k));
  sizes->tokens = io->q.shape[0];
  sizes->kv_tokens = io->kv.k[pair].shape[0];
  nsai_tensor_spec lse = {
    all ? "io.lse[0]" : "io.lse[1]", 2, { sizes->tokens, m->heads }, NSAI_DTYPE_F32
  };
  NSAI_TRY(nsai_check_tensor(check, &io->lse[all ? 0 : NSA_SEL], &lse));
  if (!all) NSAI_TRY(check_selection(check, io, sizes->tokens));
  NSAI_TRY(nsai_check_index(check, io, sizes));
  NSAI_TRY(check_sizes(p, sizes));
  return check_values(check, batch, sizes->tokens, sizes->kv_tokens, sizes);
}

nsa_status nsai_check_compress(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                               nsai_run_sizes *sizes) {
  const nsai_problem *p = check->problem;
  *sizes = (nsai_run_sizes){ 0 };
  NSAI_TRY(check_io(io));
  if (!nsai_phi_runs(&p->model))
    return nsai_fail(NSA_E_ARG, "%s",
                     nsai_compresses(&p->model)
                         ? "model.compress.phi is external: the caller brings the compressed keys, "
                           "there is nothing to compress"
                         : "model.compress is none: there are no compressed keys; do not call "
                           "nsa_compress");
  NSAI_TRY(check_batch(check, batch, sizes));
  NSAI_TRY(check_pair(check, io, 0, NSAI_ANY));
  sizes->kv_tokens = io->kv.k[0].shape[0];
  NSAI_TRY(check_compressed(check, batch, io, true, sizes));
  NSAI_TRY(nsai_check_phi(check, &io->phi));
  NSAI_TRY(check_sizes(p, sizes));
  return check_values(check, batch, INT32_MAX, sizes->kv_tokens, sizes);
}

nsa_status nsai_check_select(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                             nsai_run_sizes *sizes) {
  const nsai_problem *p = check->problem;
  const nsai_model *m = &p->model;
  *sizes = (nsai_run_sizes){ 0 };
  NSAI_TRY(check_io(io));
  if (!m->select_count)
    return nsai_fail(NSA_E_ARG, "model.select.count is 0: there is nothing to select");
  NSAI_TRY(check_batch(check, batch, sizes));
  sizes->tokens = io->q.shape[0];
  sizes->kv_tokens = io->kv.k[0].shape[0];
  if (sizes->tokens < 0 || sizes->kv_tokens < 0)
    return nsai_fail(NSA_E_ARG, "io.q or io.kv.k[0] has a negative shape[0]");
  nsai_tensor_spec given = {
    "io.importance", 3, { sizes->tokens, m->kv_heads, NSAI_ANY }, NSAI_DTYPE_F32
  };
  nsai_tensor_spec idx = {
    "io.block_idx", 3, { sizes->tokens, m->kv_heads, m->select_count }, NSAI_DTYPE_I32
  };
  NSAI_TRY(nsai_check_tensor(check, &io->importance, &given));
  NSAI_TRY(nsai_check_tensor(check, &io->block_idx, &idx));
  NSAI_TRY(nsai_check_tensor_memory(check, &io->block_idx, idx.name));
  int64_t blocks = nsai_select_block_count(m, sizes->packed ? p->max_kv_len : sizes->kv_tokens);
  if (io->importance.shape[2] < blocks)
    return nsai_fail(NSA_E_ARG, "io.importance has %lld columns, a sequence has up to %lld blocks",
                     (long long)io->importance.shape[2], (long long)blocks);
  NSAI_TRY(check_sizes(p, sizes));
  return check_values(check, batch, sizes->tokens, INT32_MAX, sizes);
}

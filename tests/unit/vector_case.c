/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "vector_case.h"

#include "support/cmocka_all.h"

static nsai_activation activation_of(const char *text) {
  if (!strcmp(text, "silu")) return NSAI_ACT_SILU;
  if (!strcmp(text, "gelu")) return NSAI_ACT_GELU;
  assert_string_equal(text, "relu");
  return NSAI_ACT_RELU;
}

static int32_t whole(const vector_case *c, const char *key, int32_t absent) {
  return (int32_t)vector_file_number(&c->file, key, absent);
}

static void load_model(vector_case *c) {
  nsai_model *g = &c->model;
  *g = (nsai_model){ .heads = whole(c, "Hq", 0),
                     .kv_heads = whole(c, "Hkv", 0),
                     .head_dim_qk = whole(c, "Dk", 0),
                     .head_dim_v = whole(c, "Dv", 0),
                     .block = whole(c, "l", 0),
                     .stride = whole(c, "d", 0),
                     .select_block = whole(c, "ls", 0),
                     .select_count = whole(c, "n", 0),
                     .select_init = whole(c, "n_init", -1),
                     .select_local = whole(c, "n_local", -1),
                     .window = whole(c, "w", 0),
                     .dtype = NSA_F32,
                     .phi_hidden = whole(c, "hidden", 0),
                     .phi_activation = activation_of(vector_file_text(&c->file, "act", "relu")),
                     .gate_channels = whole(c, "channels", 0),
                     .gate_hidden = whole(c, "gate_hidden", 0),
                     .gate_activation =
                         activation_of(vector_file_text(&c->file, "gate_act", "relu")) };
  g->per_branch = !strcmp(vector_file_text(&c->file, "per_branch", ""), "true");
  const char *phi = vector_file_text(&c->file, "phi", "");
  g->phi = !strcmp(phi, "mlp")      ? NSAI_PHI_MLP
           : !strcmp(phi, "linear") ? NSAI_PHI_LINEAR
                                    : NSAI_PHI_MEAN;
  const char *gate = vector_file_text(&c->file, "gate", "");
  g->gate = !strcmp(gate, "mlp")      ? NSAI_GATE_MLP
            : !strcmp(gate, "logits") ? NSAI_GATE_LOGITS
                                      : NSAI_GATE_WEIGHTS;
}

static nsa_tensor part(const vector_case *c, const char *side, const char *name) {
  char full[32];
  snprintf(full, sizeof full, "%s.%s", side, name);
  return vector_file_find(&c->file, full);
}

static nsa_phi_side phi_side(const vector_case *c, const char *side) {
  return (nsa_phi_side){ .pe = part(c, side, "pe"),
                         .w = part(c, side, "w"),
                         .w1 = part(c, side, "w1"),
                         .b1 = part(c, side, "b1"),
                         .w2 = part(c, side, "w2"),
                         .b2 = part(c, side, "b2") };
}

static void load_inputs(vector_case *c) {
  const vector_file *f = &c->file;
  nsa_io *io = &c->io;
  *io = (nsa_io)NSA_IO_INIT;
  io->softmax_scale = (float)vector_file_number(f, "scale", 0);
  io->q = vector_file_packed(f, "q");
  io->kv.k[0] = vector_file_packed(f, "k");
  io->kv.v[0] = vector_file_packed(f, "v");
  io->kv.k[1] = vector_file_packed(f, "k_sel");
  io->kv.v[1] = vector_file_packed(f, "v_sel");
  io->kv.k[2] = vector_file_packed(f, "k_win");
  io->kv.v[2] = vector_file_packed(f, "v_win");
  io->phi = (nsa_phi){ phi_side(c, "phi_k"), phi_side(c, "phi_v") };
  io->gate.value = vector_file_packed(f, c->model.gate == NSAI_GATE_LOGITS ? "gate_logits" //
                                                                           : "gates");
  io->gate.x = vector_file_packed(f, "gate.x");
  io->gate.w1 = part(c, "gate", "w1");
  io->gate.b1 = part(c, "gate", "b1");
  io->gate.w2 = part(c, "gate", "w2");
  io->gate.b2 = part(c, "gate", "b2");
}

nsa_tensor vector_lengths(int32_t *values, int64_t count) {
  return (nsa_tensor){
    .data = values, .ndim = 1, .dtype = NSA_I32, .shape = { count }, .stride = { 1 }
  };
}

void vector_case_load(vector_case *c, const char *name) {
  c->name = name;
  vector_file_read(&c->file, name);
  load_model(c);
  load_inputs(c);
  c->seqs = whole(c, "B", 0);
  c->queries = whole(c, "Sq", 0);
  c->kv_len = whole(c, "S", 0);
  c->cu = calloc((size_t)(2 * (c->seqs + 1)), sizeof *c->cu);
  assert_non_null(c->cu);
  for (int32_t s = 0; s <= c->seqs; s++) {
    c->cu[s] = s * (int32_t)c->queries;
    c->cu[c->seqs + 1 + s] = s * (int32_t)c->kv_len;
  }
  c->batch = INIT(nsa_batch, .num_seqs = (int32_t)c->seqs);
  c->batch.cu_q = vector_lengths(c->cu, c->seqs + 1);
  c->batch.cu_kv = vector_lengths(c->cu + c->seqs + 1, c->seqs + 1);
}

void vector_case_free(vector_case *c) {
  free(c->cu);
  vector_file_free(&c->file);
}

void *vector_bytes(int64_t count, size_t size) {
  void *memory = malloc((size_t)count * size + 1);
  assert_non_null(memory);
  memset(memory, 0xff, (size_t)count * size + 1);
  return memory;
}

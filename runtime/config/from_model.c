/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "config/from_model.h"

#include "config/schema.h"

#include <string.h>

/* The public enumerations begin at 1, the ones inside at 0, in the same order. */
_Static_assert((int)NSA_PHI_MEAN == (int)NSAI_PHI_MEAN + 1, "nsa_model.phi");
_Static_assert((int)NSA_PHI_EXTERNAL == (int)NSAI_PHI_EXTERNAL + 1, "nsa_model.phi");
_Static_assert((int)NSA_PHI_NONE == (int)NSAI_PHI_NONE + 1, "nsa_model.phi");
_Static_assert((int)NSA_ACT_RELU == (int)NSAI_ACT_RELU + 1, "nsa_model.phi_activation");
_Static_assert((int)NSA_ACT_GELU == (int)NSAI_ACT_GELU + 1, "nsa_model.phi_activation");
_Static_assert((int)NSA_GATE_WEIGHTS == (int)NSAI_GATE_WEIGHTS + 1, "nsa_model.gate");
_Static_assert((int)NSA_GATE_MLP == (int)NSAI_GATE_MLP + 1, "nsa_model.gate");
_Static_assert((int)NSA_GATE_NONE == (int)NSAI_GATE_NONE + 1, "nsa_model.gate");
_Static_assert((int)NSA_POOL_SUM == (int)NSAI_POOL_SUM + 1, "nsa_model.select_pool");
_Static_assert((int)NSA_POOL_MAX == (int)NSAI_POOL_MAX + 1, "nsa_model.select_pool");
_Static_assert((int)NSA_BY_COMPRESSED == (int)NSAI_BY_COMPRESSED + 1, "nsa_model.select_by");
_Static_assert((int)NSA_BY_INDEX == (int)NSAI_BY_INDEX + 1, "nsa_model.select_by");

/* What a field may hold besides 0, which is its default. */
typedef enum field_kind {
  FIELD_NUMBER,
  FIELD_ZERO,    /* a number; NSA_NONE is a real zero */
  FIELD_ENUM,    /* from 1; its words count from 0 */
  FIELD_DTYPE,   /* NSA_F16 to NSA_F32 */
  FIELD_SHARING, /* NSA_KV_PER_BRANCH, NSA_KV_SHARED */
  FIELD_OFF,     /* NSA_NONE: false */
} field_kind;

typedef struct field {
  const char *name; /* in nsa_model */
  nsai_key_id key;
  field_kind kind;
  int32_t value;
} field;

/* The value that the key has for a field of words; -1: none. */
static int32_t word_value(const field *f) {
  switch (f->kind) {
  case FIELD_DTYPE: return f->value;
  case FIELD_SHARING: return f->value == NSA_KV_PER_BRANCH ? 1 : f->value == NSA_KV_SHARED ? 0 : -1;
  default: return f->value - 1;
  }
}

/* The field as a line of the section that it is in, which `depth` says. */
static nsa_status write_field(const field *f, int depth, nsai_writer *writer) {
  const char *name = strrchr(nsai_keys[f->key].path, '.') + 1;
  if (!f->value) return NSA_OK;
  nsai_write(writer, "%*s%s: ", 2 * depth, "", name);
  if (f->kind == FIELD_NUMBER || f->kind == FIELD_ZERO) {
    bool zero = f->kind == FIELD_ZERO && f->value == NSA_NONE;
    nsai_write(writer, "%d\n", zero ? 0 : f->value);
    return NSA_OK;
  }
  if (f->kind == FIELD_OFF) {
    if (f->value != NSA_NONE)
      return nsai_fail(NSA_E_ARG, "options.model.%s is %d: expected NSA_NONE, or 0 for the default",
                       f->name, f->value);
    nsai_write(writer, "false\n");
    return NSA_OK;
  }
  const char *word = f->value > 0 ? nsai_word_text(nsai_keys[f->key].words, word_value(f)) : NULL;
  if (!word)
    return nsai_fail(NSA_E_ARG,
                     "options.model.%s is %d: expected a value of its enumeration, see "
                     "include/nsa/context.h, or 0 for the default",
                     f->name, f->value);
  nsai_write(writer, "%s\n", word);
  return NSA_OK;
}

/* Opens the sections below `model` that the field is in and the one before it was not; returns the
 * field's depth. */
static int open_sections(const field *f, const field *before, nsai_writer *writer) {
  const char *path = nsai_keys[f->key].path + strlen("model.");
  int depth = 1;
  for (const char *dot; (dot = strchr(path, '.')); path = dot + 1, depth++) {
    size_t length = (size_t)(dot + 1 - nsai_keys[f->key].path);
    if (!before || strncmp(nsai_keys[before->key].path, nsai_keys[f->key].path, length) != 0)
      nsai_write(writer, "%*s%.*s:\n", 2 * depth, "", (int)(dot - path), path);
  }
  return depth;
}

nsa_status nsai_model_write(const nsa_model *m, nsai_writer *writer) {
  const field fields[] = {
    { "heads", NSAI_KEY_MODEL_HEADS, FIELD_NUMBER, m->heads },
    { "kv_heads", NSAI_KEY_MODEL_KV_HEADS, FIELD_NUMBER, m->kv_heads },
    { "head_dim_qk", NSAI_KEY_MODEL_HEAD_DIM_QK, FIELD_NUMBER, m->head_dim_qk },
    { "head_dim_v", NSAI_KEY_MODEL_HEAD_DIM_V, FIELD_NUMBER,
      m->head_dim_v ? m->head_dim_v : m->head_dim_qk },
    { "dtype", NSAI_KEY_MODEL_DTYPE, FIELD_DTYPE, m->dtype },
    { "compress_block", NSAI_KEY_COMPRESS_BLOCK, FIELD_NUMBER, m->compress_block },
    { "compress_stride", NSAI_KEY_COMPRESS_STRIDE, FIELD_NUMBER, m->compress_stride },
    { "phi", NSAI_KEY_COMPRESS_PHI, FIELD_ENUM, m->phi },
    { "phi_hidden", NSAI_KEY_COMPRESS_HIDDEN, FIELD_NUMBER, m->phi_hidden },
    { "phi_activation", NSAI_KEY_COMPRESS_ACTIVATION, FIELD_ENUM, m->phi_activation },
    { "compress_output", NSAI_KEY_COMPRESS_OUTPUT, FIELD_OFF, m->compress_output },
    { "select_block", NSAI_KEY_SELECT_BLOCK, FIELD_NUMBER, m->select_block },
    { "select_count", NSAI_KEY_SELECT_COUNT, FIELD_ZERO, m->select_count },
    { "select_init", NSAI_KEY_SELECT_INIT, FIELD_ZERO, m->select_init },
    { "select_local", NSAI_KEY_SELECT_LOCAL, FIELD_ZERO, m->select_local },
    { "select_pool", NSAI_KEY_SELECT_POOL, FIELD_ENUM, m->select_pool },
    { "select_by", NSAI_KEY_SELECT_BY, FIELD_ENUM, m->select_by },
    { "normalizer_block", NSAI_KEY_NORMALIZER_BLOCK, FIELD_NUMBER, m->normalizer_block },
    { "normalizer_stride", NSAI_KEY_NORMALIZER_STRIDE, FIELD_NUMBER, m->normalizer_stride },
    { "index_heads", NSAI_KEY_INDEX_HEADS, FIELD_NUMBER, m->index_heads },
    { "index_dim", NSAI_KEY_INDEX_DIM, FIELD_NUMBER, m->index_dim },
    { "window", NSAI_KEY_MODEL_WINDOW, FIELD_ZERO, m->window },
    { "gate", NSAI_KEY_MODEL_GATE, FIELD_ENUM, m->gate },
    { "gate_channels", NSAI_KEY_GATE_CHANNELS, FIELD_NUMBER, m->gate_channels },
    { "gate_hidden", NSAI_KEY_GATE_HIDDEN, FIELD_NUMBER, m->gate_hidden },
    { "gate_activation", NSAI_KEY_GATE_ACTIVATION, FIELD_ENUM, m->gate_activation },
    { "kv_sharing", NSAI_KEY_MODEL_KV_SHARING, FIELD_SHARING, m->kv_sharing },
  };
  const field *before = NULL;
  nsai_write(writer, "nsa: " NSAI_SCHEMA_VERSION "\nmodel:\n");
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    NSAI_TRY(write_field(&fields[i], open_sections(&fields[i], before, writer), writer));
    before = &fields[i];
  }
  return NSA_OK;
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One short function per rule or family of rules. A message points at the first of the two keys
 * that was written by somebody, checking the layer of higher precedence first.
 */
#include "config/rules.h"

#include "base/text.h"
#include "config/layers.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct checker {
  const nsai_config *config;
  nsai_diag *diag;
} checker;

static bool is_good(const checker *c, nsai_key_id id) { return !c->config->origin[id].broken; }

static bool both_good(const checker *c, nsai_key_id a, nsai_key_id b) {
  return is_good(c, a) && is_good(c, b);
}

/* Writes "model.select.block is 64 (nsa.yaml:7)", or "(built-in)". */
static void describe(const checker *c, nsai_key_id id, nsai_writer *writer) {
  const nsai_mark *mark = &c->config->origin[id].mark;
  nsai_write(writer, "%s is ", nsai_keys[id].path);
  nsai_value_write(c->config, id, writer);
  if (mark->source)
    nsai_write(writer, " (%s:%d)", mark->source->name, mark->line);
  else
    nsai_write(writer, " (built-in)");
}

/* Reports "<key>: <value> <what>: <other> is <value> (<position>); <remedy>". */
static void report(const checker *c, nsai_key_id key, nsai_key_id other, const char *what,
                   const char *remedy) {
  const nsai_origin *origin = &c->config->origin[key];
  if (!origin->mark.source || c->config->origin[other].layer > origin->layer)
    origin = &c->config->origin[other];
  char text[1024];
  nsai_writer w = nsai_writer_open(text, sizeof text);
  nsai_value_write(c->config, key, &w);
  nsai_write(&w, " %s: ", what);
  describe(c, other, &w);
  nsai_write(&w, "; %s", remedy);
  nsai_diag_add(c->diag, NSAI_ERROR, origin->mark, nsai_keys[key].path, "%s", text);
}

static void check_required(const checker *c) {
  nsai_mark mark = c->config->model_mark;
  for (int id = 0; id < NSAI_KEY_COUNT; id++) {
    const nsai_origin *origin = &c->config->origin[id];
    if (nsai_keys[id].fallback || nsai_keys[id].type == NSAI_TYPE_ALIAS) continue;
    if (origin->layer != NSAI_LAYER_BUILTIN || origin->broken) continue;
    char type[128];
    nsai_writer w = nsai_writer_open(type, sizeof type);
    nsai_type_write(&nsai_keys[id], &w);
    nsai_diag_add(c->diag, NSAI_ERROR, mark, nsai_keys[id].path, "missing: %s, %s",
                  nsai_keys[id].help, type);
  }
}

static bool is_given(const checker *c, nsai_key_id id) {
  return is_good(c, id) && c->config->origin[id].layer != NSAI_LAYER_BUILTIN;
}

static void check_heads(const checker *c) {
  const nsai_model *m = &c->config->model;
  char text[160];
  nsai_writer w = nsai_writer_open(text, sizeof text);
  if (!is_given(c, NSAI_KEY_MODEL_HEADS) || !is_given(c, NSAI_KEY_MODEL_KV_HEADS)) return;
  if (m->heads % m->kv_heads) {
    report(c, NSAI_KEY_MODEL_KV_HEADS, NSAI_KEY_MODEL_HEADS, "does not divide the query heads",
           "every KV head must serve the same number of query heads");
  } else if (m->heads / m->kv_heads > NSAI_MAX_GROUP) {
    nsai_write(&w, "makes groups of %d query heads, and kernels exist up to %d",
               m->heads / m->kv_heads, NSAI_MAX_GROUP);
    report(c, NSAI_KEY_MODEL_KV_HEADS, NSAI_KEY_MODEL_HEADS, text, "use more KV heads");
  }
}

static void check_blocks(const checker *c) {
  const nsai_model *m = &c->config->model;
  char text[160];
  nsai_writer w = nsai_writer_open(text, sizeof text);
  const bool compresses = nsai_compresses(m);
  if (compresses && both_good(c, NSAI_KEY_COMPRESS_STRIDE, NSAI_KEY_COMPRESS_BLOCK) &&
      m->block % m->stride)
    report(c, NSAI_KEY_COMPRESS_STRIDE, NSAI_KEY_COMPRESS_BLOCK, "does not divide the block",
           "use a stride that divides it, so that blocks begin and end on strides");
  if (compresses && both_good(c, NSAI_KEY_COMPRESS_STRIDE, NSAI_KEY_SELECT_BLOCK) &&
      m->select_block % m->stride)
    report(c, NSAI_KEY_COMPRESS_STRIDE, NSAI_KEY_SELECT_BLOCK, "does not divide the selected block",
           "use a stride that divides both blocks");
  if (compresses && both_good(c, NSAI_KEY_SELECT_BLOCK, NSAI_KEY_COMPRESS_BLOCK) &&
      m->select_block < m->block)
    report(c, NSAI_KEY_SELECT_BLOCK, NSAI_KEY_COMPRESS_BLOCK, "is less than the compressed block",
           "a selected block holds at least one compressed block: raise select.block or lower "
           "compress.block");
  if (!both_good(c, NSAI_KEY_SELECT_INIT, NSAI_KEY_SELECT_LOCAL)) return;
  /* With count 0 the branch is off and nothing is forced. */
  if (!is_good(c, NSAI_KEY_SELECT_COUNT) || !m->select_count) return;
  if (m->select_init + m->select_local > m->select_count) {
    nsai_write(&w, "is less than the %d forced blocks (init %d + local %d)",
               m->select_init + m->select_local, m->select_init, m->select_local);
    nsai_key_id other =
        m->select_init > m->select_local ? NSAI_KEY_SELECT_INIT : NSAI_KEY_SELECT_LOCAL;
    report(c, NSAI_KEY_SELECT_COUNT, other, text,
           "count includes the forced blocks: raise count, or force fewer");
  }
}

/* A width that only one kind of layer has must be given with that kind, and only then. */
static void check_layer(const checker *c, nsai_key_id width, int32_t value, nsai_key_id kind,
                        bool wanted) {
  if (!both_good(c, width, kind)) return;
  if (wanted && !value)
    report(c, width, kind, "is no width", "mlp needs one: give it, as the weights have it");
  if (!wanted && value)
    report(c, width, kind, "would be ignored", "remove the width, or choose mlp");
}

static void check_layers(const checker *c) {
  const nsai_model *m = &c->config->model;
  check_layer(c, NSAI_KEY_COMPRESS_HIDDEN, m->phi_hidden, NSAI_KEY_COMPRESS_PHI,
              m->phi == NSAI_PHI_MLP);
  check_layer(c, NSAI_KEY_GATE_CHANNELS, m->gate_channels, NSAI_KEY_MODEL_GATE,
              m->gate == NSAI_GATE_MLP);
  bool good = both_good(c, NSAI_KEY_GATE_HIDDEN, NSAI_KEY_MODEL_GATE);
  if (good && m->gate != NSAI_GATE_MLP && m->gate_hidden)
    report(c, NSAI_KEY_GATE_HIDDEN, NSAI_KEY_MODEL_GATE, "would be ignored",
           "remove the width, or choose mlp");
}

/* Without its output the compressed branch is there for the selection. A pair of its own would have
 * values that nothing reads. */
static void check_output(const checker *c) {
  const nsai_model *m = &c->config->model;
  if (!is_good(c, NSAI_KEY_COMPRESS_OUTPUT) || !m->keys_only) return;
  if (is_good(c, NSAI_KEY_SELECT_COUNT) && !m->select_count)
    report(c, NSAI_KEY_COMPRESS_OUTPUT, NSAI_KEY_SELECT_COUNT,
           "leaves compressed keys to a selection that the model does not have",
           "raise count, or remove the key");
  if (is_good(c, NSAI_KEY_MODEL_KV_SHARING) && m->per_branch)
    report(c, NSAI_KEY_COMPRESS_OUTPUT, NSAI_KEY_MODEL_KV_SHARING,
           "leaves the first pair's values unread", "use kv_sharing: shared, or remove the key");
}

/* Coarse keys begin and end on strides, as compressed blocks do, and are means of raw keys. */
static void check_normalizer(const checker *c) {
  const nsai_model *m = &c->config->model;
  const nsai_key_id block = NSAI_KEY_NORMALIZER_BLOCK, stride = NSAI_KEY_NORMALIZER_STRIDE;
  if (!both_good(c, block, stride)) return;
  if (m->norm_block && !m->norm_stride)
    report(c, block, stride, "needs a stride", "give it, or remove the normaliser");
  else if (m->norm_stride && !m->norm_block)
    report(c, stride, block, "would be ignored", "give the block, or remove the normaliser");
  else if (m->norm_block && m->norm_block % m->norm_stride)
    report(c, stride, block, "does not divide the block",
           "use a stride that divides it, so that blocks begin and end on strides");
  if (m->norm_block && is_good(c, NSAI_KEY_SELECT_COUNT) && !m->select_count)
    report(c, block, NSAI_KEY_SELECT_COUNT, "serves a selection that the model does not have",
           "raise count, or remove the normaliser");
  if (m->norm_block && is_good(c, NSAI_KEY_COMPRESS_PHI) && m->phi == NSAI_PHI_EXTERNAL)
    report(c, block, NSAI_KEY_COMPRESS_PHI, "is no size of external keys",
           "coarse keys are means of raw ones: use another phi, or remove the normaliser");
}

/* What an index has: scores of tokens, whose maximum ranks a block, and nothing of compressed keys. */
static void check_index(const checker *c) {
  static const char dims[] = "an index has a width of 16 to 256";
  static const char count[] = "each index head chooses the blocks of one KV head: give as many";
  const nsai_model *m = &c->config->model;
  const nsai_key_id by = NSAI_KEY_SELECT_BY, heads = NSAI_KEY_INDEX_HEADS, dim = NSAI_KEY_INDEX_DIM;
  if (!is_good(c, by) || !both_good(c, heads, dim)) return;
  if (m->by != NSAI_BY_INDEX) {
    if (m->index_heads || m->index_dim)
      report(c, m->index_heads ? heads : dim, by, "would be ignored",
             "remove it, or set select.by to index");
    return;
  }
  if (is_good(c, NSAI_KEY_SELECT_COUNT) && !m->select_count)
    report(c, by, NSAI_KEY_SELECT_COUNT, "chooses for a selection that the model does not have",
           "raise count, or remove the key");
  if (!m->index_heads)
    report(c, heads, by, "is missing", count);
  else if (is_given(c, NSAI_KEY_MODEL_KV_HEADS) && m->index_heads != m->kv_heads)
    report(c, heads, NSAI_KEY_MODEL_KV_HEADS, "is not the number of KV heads", count);
  if (m->index_dim < NSAI_MIN_HEAD_DIM)
    report(c, dim, by, m->index_dim ? "is too narrow" : "is missing", dims);
  if (is_good(c, NSAI_KEY_SELECT_POOL) && m->pool != NSAI_POOL_MAX)
    report(c, NSAI_KEY_SELECT_POOL, by, "of index scores is not defined",
           "a block ranks by its greatest score: set select.pool to max");
  if (is_good(c, NSAI_KEY_COMPRESS_PHI) && nsai_compresses(m))
    report(c, NSAI_KEY_COMPRESS_PHI, by, "is not possible beside an index",
           "there is no compressed branch: write compress: none");
}

/* Without compressed keys nothing that describes them has a meaning. */
static void check_no_keys(const checker *c) {
  static const nsai_key_id keys[] = { NSAI_KEY_COMPRESS_BLOCK, NSAI_KEY_COMPRESS_STRIDE,
                                      NSAI_KEY_COMPRESS_ACTIVATION, NSAI_KEY_COMPRESS_OUTPUT,
                                      NSAI_KEY_NORMALIZER_BLOCK };
  const nsai_model *m = &c->config->model;
  if (!is_good(c, NSAI_KEY_COMPRESS_PHI) || nsai_compresses(m)) return;
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
    if (is_given(c, keys[i]) && (keys[i] != NSAI_KEY_NORMALIZER_BLOCK || m->norm_block))
      report(c, keys[i], NSAI_KEY_COMPRESS_PHI, "would be ignored",
             "remove it: there are no compressed keys");
  if (is_good(c, NSAI_KEY_CMP_DTYPE) && c->config->serving.cmp_dtype && m->by != NSAI_BY_INDEX)
    report(c, NSAI_KEY_CMP_DTYPE, NSAI_KEY_COMPRESS_PHI, "would be ignored",
           "remove it: a cache has no compressed entries");
  if (is_good(c, NSAI_KEY_SELECT_BY) && m->by != NSAI_BY_INDEX)
    report(c, NSAI_KEY_COMPRESS_PHI, NSAI_KEY_SELECT_BY, "leaves nothing that chooses blocks",
           "set select.by to index, or use another phi");
}

static void check_causal(const checker *c) {
  if (is_good(c, NSAI_KEY_MODEL_CAUSAL) && !c->config->causal)
    nsai_diag_add(c->diag, NSAI_ERROR, c->config->origin[NSAI_KEY_MODEL_CAUSAL].mark,
                  "model.causal",
                  "false is not possible: NSA selects for each query among the blocks before it, "
                  "so only causal attention is defined; remove the key or set it to true");
}

static void check_dtype(const checker *c) {
  const nsai_config *config = c->config;
  if (!both_good(c, NSAI_KEY_MODEL_DTYPE, NSAI_KEY_DEVICE)) return;
  if (config->model.dtype == NSA_F32 && strcmp(config->runtime.device, "cpu") != 0)
    report(c, NSAI_KEY_MODEL_DTYPE, NSAI_KEY_DEVICE, "is computed on the CPU device only",
           "use bf16 or fp16, or set runtime.device to cpu");
}

static void check_serving(const checker *c) {
  int64_t length = c->config->serving.max_kv_len, all = c->config->serving.max_kv_tokens;
  if (both_good(c, NSAI_KEY_MAX_KV_LEN, NSAI_KEY_MAX_KV_TOKENS) && all && length > all)
    report(c, NSAI_KEY_MAX_KV_LEN, NSAI_KEY_MAX_KV_TOKENS,
           "is more than all sequences have together",
           "lower max_kv_len, or raise max_kv_tokens to at least as much");
}

/* A page holds a whole number of strides, so that its compressed entries fit into it. */
static void check_pages(const checker *c) {
  const nsai_config *config = c->config;
  int32_t size = config->serving.page_size;
  if (!is_good(c, NSAI_KEY_PAGE_SIZE)) return;
  if (!nsai_page_size_exists(size))
    nsai_diag_add(c->diag, NSAI_ERROR, config->origin[NSAI_KEY_PAGE_SIZE].mark,
                  nsai_keys[NSAI_KEY_PAGE_SIZE].path,
                  "%d tokens: pages have 16, 32, 64 or 128; 0: no pages", size);
  else if (config->has_model && is_good(c, NSAI_KEY_COMPRESS_STRIDE) &&
           nsai_compresses(&config->model) && size % config->model.stride)
    report(c, NSAI_KEY_PAGE_SIZE, NSAI_KEY_COMPRESS_STRIDE, "is no multiple of the stride",
           "use larger pages, or a stride that divides them");
  else if (config->has_model && is_good(c, NSAI_KEY_NORMALIZER_STRIDE) &&
           config->model.norm_stride && size % config->model.norm_stride)
    report(c, NSAI_KEY_PAGE_SIZE, NSAI_KEY_NORMALIZER_STRIDE, "is no multiple of the stride",
           "use larger pages, or a stride that divides them");
}

/* Kernels copy rows of codes in units of 16 bytes. */
static void check_cache_dtype(const checker *c, nsai_key_id key, int32_t dtype) {
  const nsai_model *m = &c->config->model;
  if (dtype != NSA_E4M3 || !is_good(c, key)) return;
  if (key == NSAI_KEY_CMP_DTYPE && m->by == NSAI_BY_INDEX) {
    if (is_good(c, NSAI_KEY_INDEX_DIM) && m->index_dim % NSAI_CODES_DIM_STEP)
      report(c, key, NSAI_KEY_INDEX_DIM, "needs an index dim that is a multiple of 16",
             "leave it out, or change the index dim");
    return;
  }
  if (is_good(c, NSAI_KEY_MODEL_HEAD_DIM_QK) && m->head_dim_qk % NSAI_CODES_DIM_STEP)
    report(c, key, NSAI_KEY_MODEL_HEAD_DIM_QK, "needs head dims that are multiples of 16",
           "leave it out, or change the head dim");
  if (is_good(c, NSAI_KEY_MODEL_HEAD_DIM_V) && m->head_dim_v % NSAI_CODES_DIM_STEP)
    report(c, key, NSAI_KEY_MODEL_HEAD_DIM_V, "needs head dims that are multiples of 16",
           "leave it out, or change the head dim");
}

/* A threshold above count * block would not be exact: nsai_problem_resolve clamps it. */
static void check_threshold(const checker *c) {
  const nsai_config *config = c->config;
  int64_t exact = (int64_t)config->model.select_count * config->model.select_block;
  if (!is_good(c, NSAI_KEY_SELECT_DENSE_BELOW) ||
      !both_good(c, NSAI_KEY_SELECT_COUNT, NSAI_KEY_SELECT_BLOCK))
    return;
  if (config->thresholds.select_dense_below > exact)
    nsai_diag_add(c->diag, NSAI_WARNING, config->origin[NSAI_KEY_SELECT_DENSE_BELOW].mark,
                  "thresholds.select_dense_below",
                  "%" PRId64 " is lowered to %" PRId64 ", model.select.count * model.select.block "
                  "(%d * %d): beyond that many tokens dense attention is not the same; write auto",
                  config->thresholds.select_dense_below, exact, config->model.select_count,
                  config->model.select_block);
}

/* ---- names of variants ---- */

static bool is_variant(const checker *c, nsai_stage stage, const char *name) {
  nsai_variant_name known;
  for (int32_t i = 0; c->config->variant(i, &known); i++)
    if (known.stage == stage && !strcmp(known.name, name)) return true;
  return false;
}

/* Reports "no variant has this name; did you mean 'dense_sm80'? stage dense has dense_sm80,
 * dense_gemm". */
static void check_forced(const checker *c, nsai_key_id key, const char *name, nsai_mark mark) {
  nsai_stage stage = (nsai_stage)(key - NSAI_KEY_FORCE);
  nsai_variant_name known;
  const char *nearest = NULL;
  uint32_t best = UINT32_MAX;
  char text[512];
  nsai_writer w = nsai_writer_open(text, sizeof text);
  if (is_variant(c, stage, name)) return;
  nsai_write(&w, "stage %s has", nsai_stage_name(stage));
  for (int32_t i = 0, listed = 0; c->config->variant(i, &known); i++) {
    if (known.stage != stage) continue;
    nsai_write(&w, "%s %s", listed++ ? "," : "", known.name);
    if (nsai_is_nearer(name, known.name, &best)) nearest = known.name;
  }
  nsai_excerpt_text excerpt;
  nsai_excerpt(name, strlen(name), &excerpt);
  if (nearest)
    nsai_diag_add(c->diag, NSAI_ERROR, mark, nsai_keys[key].path,
                  "no variant '%s'; did you mean '%s'? %s", excerpt.text, nearest, text);
  else
    nsai_diag_add(c->diag, NSAI_ERROR, mark, nsai_keys[key].path, "no variant '%s'; %s",
                  excerpt.text, text);
}

bool nsai_variant_name_matches(const nsai_variant_name *name, const char *pattern) {
  char full[96];
  snprintf(full, sizeof full, "%s.%s", nsai_stage_name(name->stage), name->name);
  return nsai_glob_match(pattern, full);
}

static void check_disabled(const checker *c, const nsai_list *globs) {
  for (size_t k = 0; k < globs->count; k++) {
    bool found = false;
    nsai_variant_name known;
    for (int32_t i = 0; !found && c->config->variant(i, &known); i++)
      found = nsai_variant_name_matches(&known, globs->items[k]);
    nsai_excerpt_text excerpt;
    if (!found)
      nsai_diag_add(c->diag, NSAI_ERROR, globs->marks[k], nsai_keys[NSAI_KEY_DISABLE].path,
                    "'%s' matches no variant; `nsa-autotune show` lists them",
                    nsai_excerpt(globs->items[k], strlen(globs->items[k]), &excerpt));
  }
}

/* A variant that is both forced and disabled could never be chosen. */
static void check_contradiction(const checker *c, nsai_key_id key,
                                const nsai_variant_name *forced) {
  const nsai_list *globs = &c->config->variants.disable;
  for (size_t i = 0; i < globs->count; i++) {
    if (!nsai_variant_name_matches(forced, globs->items[i])) continue;
    report(c, key, NSAI_KEY_DISABLE, "is forced and disabled at once",
           "remove one of the two entries");
    return;
  }
}

static void check_variants(const checker *c) {
  const nsai_config *config = c->config;
  if (!config->variant) return;
  bool lists = is_good(c, NSAI_KEY_DISABLE);
  if (lists) check_disabled(c, &config->variants.disable);
  for (int stage = 0; stage < NSAI_STAGE_COUNT; stage++) {
    nsai_key_id key = (nsai_key_id)(NSAI_KEY_FORCE + stage);
    const char *name = config->variants.force[stage];
    if (!name || !is_good(c, key)) continue;
    check_forced(c, key, name, config->origin[key].mark);
    const nsai_variant_name forced = { (nsai_stage)stage, name };
    if (lists && is_variant(c, forced.stage, name)) check_contradiction(c, key, &forced);
  }
}

/* Checks the names in all profiles, whether or not their device is present. */
static void check_profile_variants(const checker *c, const nsai_profile *profile) {
  for (const nsai_setting *s = profile->settings; s; s = s->next) {
    if (s->broken) continue;
    if (s->key == NSAI_KEY_DISABLE)
      check_disabled(c, &s->value.list);
    else if (s->key >= NSAI_KEY_FORCE && s->key <= NSAI_KEY_FORCE_LAST && s->value.text)
      check_forced(c, s->key, s->value.text, s->mark);
  }
}

static void check_figures(const checker *c) {
  static const nsai_key_id figures[] = { NSAI_KEY_DEVICE_SMS, NSAI_KEY_DEVICE_SMEM,
                                         NSAI_KEY_DEVICE_L2, NSAI_KEY_DEVICE_HBM,
                                         NSAI_KEY_DEVICE_TFLOPS };
  if (c->config->device.source || !is_good(c, NSAI_KEY_DEVICE_SOURCE)) return;
  for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
    if (!is_given(c, figures[i])) continue;
    nsai_diag_add(c->diag, NSAI_WARNING, c->config->origin[figures[i]].mark,
                  nsai_keys[figures[i]].path,
                  "a figure without a source: say in device.source where it comes from");
    return;
  }
}

/* A key that had no effect would let packs in that its author wants kept out. */
static void check_trusted_keys(const checker *c) {
  if (NSAI_SIGNATURES || !c->config->runtime.trusted_keys.count) return;
  nsai_diag_add(c->diag, NSAI_ERROR, c->config->origin[NSAI_KEY_TRUSTED_KEYS].mark,
                nsai_keys[NSAI_KEY_TRUSTED_KEYS].path,
                "this libnsa was built without signatures, so that an import could not check them: "
                "build it with -Dsignatures=enabled, or remove the key");
}

static void check_profiles(const checker *c) {
  for (const nsai_profile *p = c->config->profiles; p; p = p->next) {
    if (c->config->variant) check_profile_variants(c, p);
    if (p->next && !p->arch && !p->name && !p->uuid)
      nsai_diag_add(c->diag, NSAI_WARNING, p->mark, "profiles",
                    "this profile matches every device, so those after it are never used: move it "
                    "to the end");
  }
}

void nsai_config_check_rules(const nsai_config *config, nsai_mark main, nsai_diag *diag) {
  checker c = { config, diag };
  if (config->has_model) {
    check_required(&c);
    check_heads(&c);
    check_blocks(&c);
    check_layers(&c);
    check_output(&c);
    check_normalizer(&c);
    check_index(&c);
    check_no_keys(&c);
    check_causal(&c);
    check_dtype(&c);
    check_threshold(&c);
    check_cache_dtype(&c, NSAI_KEY_KV_DTYPE, config->serving.kv_dtype);
    check_cache_dtype(&c, NSAI_KEY_CMP_DTYPE, config->serving.cmp_dtype);
  } else if (config->need_model && !config->unreadable) {
    nsai_diag_add(
        diag, NSAI_ERROR, main, "model",
        "missing: the heads and blocks of the model, see configs/base.yaml; a file without "
        "them needs a host that gives nsa_options.model or the section in yaml_text "
        "(`nsa-autotune check --no-model` checks such a file)");
  }
  check_serving(&c);
  check_pages(&c);
  check_trusted_keys(&c);
  check_variants(&c);
  check_figures(&c);
  check_profiles(&c);
}

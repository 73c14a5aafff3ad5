/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * JSON is read as the YAML that it is, with the limits of configurations. Of a model with several
 * parts, text_config counts. A model of flash-linear-attention (model_type nsa) names heads
 * otherwise, and brings its blocks and window; nsa.integrations.fla has the same rules. A model like
 * MiniMax-M3 brings its index and blocks.
 */
#include "cli/hf_config.h"

#include "base/text.h"
#include "cli/cli.h"
#include "config/schema.h"
#include "config/yaml.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
  const char *file; /* as messages name it */
  const nsai_node *mapping;
  nsai_arena *arena;
  nsai_hf_config *out;
} reader;

static const nsai_node *find_key(const nsai_node *mapping, const char *name) {
  for (const nsai_node *node = mapping->first; node; node = node->next)
    if (strcmp(node->key->text, name) == 0) return node;
  return NULL;
}

/* The value of a key; NULL: missing, or null. */
static const nsai_node *find(const nsai_node *mapping, const char *name) {
  const nsai_node *node = find_key(mapping, name);
  bool null = node && node->kind == NSAI_NODE_SCALAR && node->plain && !strcmp(node->text, "null");
  return null ? NULL : node;
}

static nsa_status add(reader *r, const char *key, const char *value) {
  char text[128];
  nsai_writer out = nsai_writer_open(text, sizeof text);
  nsai_write(&out, "%s=%s", key, value);
  const char *copy = nsai_arena_copy(r->arena, text, strlen(text));
  if (!copy) return nsai_fail_nomem("a configuration", strlen(text));
  r->out->overrides[r->out->count++] = copy;
  return NSA_OK;
}

static nsa_status add_number(reader *r, const char *key, int64_t value) {
  char text[32];
  nsai_writer out = nsai_writer_open(text, sizeof text);
  nsai_write(&out, "%" PRId64, value);
  return add(r, key, text);
}

/* Reads a count; *out stays 0 where it is missing. */
static nsa_status read_count(const reader *r, const char *name, int64_t *out) {
  const nsai_node *node = find(r->mapping, name);
  *out = 0;
  if (!node) return NSA_OK;
  if (node->kind == NSAI_NODE_SCALAR && nsai_parse_integer(node->text, 1, INT32_MAX, out))
    return NSA_OK;
  return nsai_fail(NSA_E_CONFIG, "%s:%d:%d: error: %s: expected a whole number from 1", r->file,
                   node->mark.line, node->mark.column, name);
}

/* Some tools write the largest number of their language for "no limit"; a configuration takes no
 * such length. */
static nsa_status add_length(reader *r) {
  int64_t tokens;
  NSAI_TRY(read_count(r, "max_position_embeddings", &tokens));
  return tokens && tokens <= NSAI_MAX_ROWS ? add_number(r, "serving.max_kv_len", tokens) : NSA_OK;
}

static bool is_fla(const reader *r) {
  const nsai_node *type = find(r->mapping, "model_type");
  return type && type->kind == NSAI_NODE_SCALAR && strcmp(type->text, "nsa") == 0;
}

/* fla writes all of them, null for what a model does not have. Without one the model would silently
 * be another, since fla has defaults of its own. */
static nsa_status demand_fla(const reader *r) {
  static const char *const names[] = { "num_heads",  "num_kv_heads", "head_dim",
                                       "block_size", "block_counts", "window_size" };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!find_key(r->mapping, names[i]))
      return nsai_fail(NSA_E_CONFIG,
                       "%s: error: %s: missing, in a model of flash-linear-attention (model_type "
                       "nsa): write it into a copy of the file",
                       r->file, names[i]);
  return NSA_OK;
}

/* fla selects by the next power of two of block_counts, and always takes the first block and the
 * last two. Its layers apply the sigmoid to the gates. A window of null or 0 is none. */
static nsa_status add_fla(reader *r) {
  int64_t block, counts, count = 1, window = 0;
  const nsai_node *given = find(r->mapping, "window_size");
  NSAI_TRY(read_count(r, "block_size", &block));
  NSAI_TRY(read_count(r, "block_counts", &counts));
  if (!block || !counts)
    return nsai_fail(NSA_E_CONFIG, "%s: error: %s: expected a whole number from 1", r->file,
                     block ? "block_counts" : "block_size");
  while (count < counts) count *= 2;
  if (given && !(given->kind == NSAI_NODE_SCALAR && strcmp(given->text, "0") == 0))
    NSAI_TRY(read_count(r, "window_size", &window));
  NSAI_TRY(add_number(r, "model.compress.block", block));
  NSAI_TRY(add_number(r, "model.compress.stride", block));
  NSAI_TRY(add(r, "model.compress.phi", "mean"));
  NSAI_TRY(add_number(r, "model.select.block", block));
  NSAI_TRY(add_number(r, "model.select.count", count));
  NSAI_TRY(add_number(r, "model.select.init", 1));
  NSAI_TRY(add_number(r, "model.select.local", 2));
  NSAI_TRY(add(r, "model.gate", "weights"));
  NSAI_TRY(add(r, "model.kv_sharing", "shared"));
  return add_number(r, "model.window", window);
}

/* The index of a model like MiniMax-M3. The checkpoint's file has its sizes in a section, files that
 * transformers wrote in keys of other names; where one is missing, they are transformers' defaults. */
static const struct {
  const char *spelling, *section, *key;
  int64_t fallback;
} index_sizes[] = {
  { "index_n_heads", "sparse_num_index_heads", "model.index.heads", 4 },
  { "index_head_dim", "sparse_index_dim", "model.index.dim", 128 },
  { "index_block_size", "sparse_block_size", "model.select.block", 128 },
  { "index_topk_blocks", "sparse_topk_blocks", "model.select.count", 16 },
  { "index_local_blocks", "sparse_local_block", "model.select.local", 1 },
};

/* The section, or the mapping itself; NULL: the model has no such index. */
static const nsai_node *find_index(const reader *r) {
  const nsai_node *section = find(r->mapping, "sparse_attention_config");
  if (section && section->kind == NSAI_NODE_MAPPING && find(section, "sparse_topk_blocks"))
    return section;
  return find(r->mapping, "index_topk_blocks") ? r->mapping : NULL;
}

/* A block's score is the greatest of its tokens' scores. What names another way is refused, since the
 * model would choose other blocks. */
static nsa_status refuse_score_type(const reader *r, const nsai_node *sizes) {
  static const char name[] = "sparse_score_type";
  const nsai_node *node = find(sizes, name);
  if (!node || (node->kind == NSAI_NODE_SCALAR && strcmp(node->text, "max") == 0)) return NSA_OK;
  const char *text = node->kind == NSAI_NODE_SCALAR ? node->text : "";
  nsai_excerpt_text shown;
  return nsai_fail(NSA_E_UNSUPPORTED,
                   "%s:%d:%d: %s: %s: libnsa ranks the blocks of an index by their greatest score "
                   "alone: give a model whose %s is max",
                   r->file, node->mark.line, node->mark.column, name,
                   nsai_excerpt(text, strlen(text), &shown), name);
}

/* The blocks from a sequence's start that are always chosen; 0 of them where the key is missing. */
static nsa_status add_init(reader *r, const nsai_node *sizes) {
  static const char name[] = "sparse_init_block";
  const nsai_node *node = find(sizes, name);
  int64_t count = 0;
  if (node &&
      !(node->kind == NSAI_NODE_SCALAR && nsai_parse_integer(node->text, 0, INT32_MAX, &count)))
    return nsai_fail(NSA_E_CONFIG, "%s:%d:%d: error: %s: expected a whole number from 0", r->file,
                     node->mark.line, node->mark.column, name);
  return add_number(r, "model.select.init", count);
}

static nsa_status add_index(reader *r, const nsai_node *sizes) {
  NSAI_TRY(refuse_score_type(r, sizes));
  const reader of_sizes = { r->file, sizes, r->arena, r->out };
  for (size_t i = 0; i < sizeof index_sizes / sizeof *index_sizes; i++) {
    int64_t value;
    NSAI_TRY(read_count(&of_sizes,
                        sizes == r->mapping ? index_sizes[i].spelling : index_sizes[i].section,
                        &value));
    NSAI_TRY(add_number(r, index_sizes[i].key, value ? value : index_sizes[i].fallback));
  }
  NSAI_TRY(add(r, "model.select.by", "index"));
  NSAI_TRY(add(r, "model.select.pool", "max"));
  NSAI_TRY(add_init(r, sizes));
  NSAI_TRY(add(r, "model.compress.phi", "none"));
  NSAI_TRY(add_number(r, "model.window", 0));
  NSAI_TRY(add(r, "model.gate", "none"));
  return add(r, "model.kv_sharing", "shared");
}

static nsa_status add_heads(reader *r) {
  int64_t heads, kv_heads, dim, width;
  const bool fla = is_fla(r);
  const char *heads_name = fla ? "num_heads" : "num_attention_heads";
  if (fla) NSAI_TRY(demand_fla(r));
  NSAI_TRY(read_count(r, heads_name, &heads));
  NSAI_TRY(read_count(r, fla ? "num_kv_heads" : "num_key_value_heads", &kv_heads));
  NSAI_TRY(read_count(r, "head_dim", &dim));
  NSAI_TRY(read_count(r, "hidden_size", &width));
  if (!heads)
    return nsai_fail(NSA_E_CONFIG,
                     "%s: error: %s: missing: give the config.json beside a model's weights, or "
                     "--heads, --kv-heads and --head-dim",
                     r->file, heads_name);
  if (!dim && (!width || width % heads))
    return nsai_fail(NSA_E_CONFIG,
                     "%s: error: head_dim: missing, and hidden_size is no multiple of "
                     "%s: write head_dim into a copy of the file",
                     r->file, heads_name);
  NSAI_TRY(add_number(r, "model.heads", heads));
  NSAI_TRY(add_number(r, "model.kv_heads", kv_heads ? kv_heads : heads));
  return add_number(r, "model.head_dim", dim ? dim : width / heads);
}

/* Older files say torch_dtype, newer ones dtype. */
static nsa_status add_dtype(reader *r) {
  const nsai_node *node = find(r->mapping, "torch_dtype");
  if (!node) node = find(r->mapping, "dtype");
  if (!node) return NSA_OK;
  const char *name = node->kind == NSAI_NODE_SCALAR ? node->text : "";
  if (strncmp(name, "torch.", strlen("torch.")) == 0) name += strlen("torch.");
  const char *word = nsai_word_suggest(nsai_keys[NSAI_KEY_MODEL_DTYPE].words, name);
  if (strcmp(name, "auto") == 0) return NSA_OK;
  if (word && strcmp(word, "f32") == 0) {
    r->out->note = "the weights are float32, which the CPU device alone computes: model.dtype is "
                   "bf16, unless --dtype says otherwise";
    word = "bf16";
  }
  if (word) return add(r, "model.dtype", word);
  const char *missing = nsai_word_missing(name);
  nsai_excerpt_text shown;
  return nsai_fail(NSA_E_UNSUPPORTED, "%s:%d:%d: %s: %s; convert the model to bfloat16 or float16",
                   r->file, node->mark.line, node->mark.column,
                   nsai_excerpt(name, strlen(name), &shown),
                   missing ? missing : "no dtype of the library");
}

static nsa_status refuse_mla(const reader *r) {
  for (const nsai_node *node = r->mapping->first; node; node = node->next) {
    const char *advice = nsai_latent_advice(node->key->text);
    if (advice && find(r->mapping, node->key->text))
      return nsai_fail(NSA_E_UNSUPPORTED, "%s:%d:%d: %s: %s", r->file, node->key->mark.line,
                       node->key->mark.column, node->key->text, advice);
  }
  return NSA_OK;
}

/* Reads the text of `source`. Anything that the parser refuses is reported, since a key may be
 * missing because of it. */
static nsa_status read_source(reader *r, const nsai_source *source) {
  nsai_diag diag = { .arena = r->arena };
  const nsai_node *root = nsai_yaml_parse(source, 0, r->arena, &diag);
  if (r->arena->failed) return nsai_fail_nomem("a config.json", r->arena->failed);
  if (diag.errors) {
    char text[4096];
    nsai_writer out = nsai_writer_open(text, sizeof text);
    nsai_diag_write(&diag, &out);
    return nsai_fail_text(NSA_E_CONFIG, text);
  }
  if (!root || root->kind != NSAI_NODE_MAPPING)
    return nsai_fail(NSA_E_CONFIG, "%s: error: expected a JSON object", r->file);
  const nsai_node *text_config = find(root, "text_config");
  bool nested = text_config && text_config->kind == NSAI_NODE_MAPPING;
  r->mapping = nested && !find(root, "num_attention_heads") ? text_config : root;
  NSAI_TRY(refuse_mla(r));
  NSAI_TRY(add_heads(r));
  const nsai_node *index = find_index(r);
  if (is_fla(r))
    NSAI_TRY(add_fla(r));
  else if (index)
    NSAI_TRY(add_index(r, index));
  NSAI_TRY(add_dtype(r));
  return add_length(r);
}

nsa_status nsai_hf_config_read(const char *file, nsai_arena *arena, nsai_hf_config *out) {
  reader r = { .file = nsai_cli_file_name(file), .arena = arena, .out = out };
  char *text = NULL;
  size_t length;
  *out = (nsai_hf_config){ 0 };
  NSAI_TRY(nsai_cli_read(file, &text, &length));
  const nsai_source source = { r.file, text, length, 0 };
  nsa_status status = read_source(&r, &source);
  free(text);
  return status;
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Suggestions for an unknown word, in this order: other projects' spellings, the nearest
 * sibling, the same word in another section, the nearest path of all.
 */
#include "base/text.h"
#include "base/writer.h"
#include "config/schema.h"
#include "driver/arch.h"

#include <string.h>
#include <strings.h>

/* Spellings in other NSA implementations, and in configurations of transformers and serving
 * engines. */
static const struct {
  const char *spelling;
  nsai_key_id key;
  const char *section; /* the section where it has this meaning; NULL: all others */
} aliases[] = {
  { "attention_heads", NSAI_KEY_MODEL_HEADS },
  { "autotune", NSAI_KEY_TUNING_ON_FIRST_USE },
  { "block_count", NSAI_KEY_SELECT_COUNT },
  { "block_counts", NSAI_KEY_SELECT_COUNT },
  { "block_size", NSAI_KEY_PAGE_SIZE, "serving" },
  { "block_size", NSAI_KEY_SELECT_BLOCK },
  { "bus_id", NSAI_KEY_DEVICE },
  { "cache_dtype", NSAI_KEY_KV_DTYPE },
  { "chunked_prefill_size", NSAI_KEY_MAX_TOKENS },
  { "cmp_block_size", NSAI_KEY_COMPRESS_BLOCK },
  { "cmp_stride", NSAI_KEY_COMPRESS_STRIDE },
  { "compress_block", NSAI_KEY_COMPRESS_BLOCK },
  { "compress_block_size", NSAI_KEY_COMPRESS_BLOCK },
  { "compress_block_sliding_stride", NSAI_KEY_COMPRESS_STRIDE },
  { "compress_method", NSAI_KEY_COMPRESS_PHI },
  { "compress_mlp_expand_factor", NSAI_KEY_COMPRESS_HIDDEN },
  { "compress_stride", NSAI_KEY_COMPRESS_STRIDE },
  { "compress_type", NSAI_KEY_COMPRESS_PHI },
  { "context_length", NSAI_KEY_MAX_KV_LEN },
  { "dim_head", NSAI_KEY_MODEL_HEAD_DIM },
  { "effort", NSAI_KEY_TUNING_LEVEL },
  { "head_size", NSAI_KEY_MODEL_HEAD_DIM },
  { "index_block_size", NSAI_KEY_SELECT_BLOCK },
  { "index_head_dim", NSAI_KEY_INDEX_DIM },
  { "index_local_blocks", NSAI_KEY_SELECT_LOCAL },
  { "index_n_heads", NSAI_KEY_INDEX_HEADS },
  { "index_topk_blocks", NSAI_KEY_SELECT_COUNT },
  { "init_blocks", NSAI_KEY_SELECT_INIT },
  { "is_causal", NSAI_KEY_MODEL_CAUSAL },
  { "kernel_size", NSAI_KEY_COMPRESS_BLOCK },
  { "kernel_stride", NSAI_KEY_COMPRESS_STRIDE },
  { "kv_block_size", NSAI_KEY_PAGE_SIZE },
  { "kv_cache_dtype", NSAI_KEY_KV_DTYPE },
  { "local_blocks", NSAI_KEY_SELECT_LOCAL },
  { "max_autotune", NSAI_KEY_TUNING_LEVEL },
  { "max_batch_size", NSAI_KEY_MAX_SEQS },
  { "max_model_len", NSAI_KEY_MAX_KV_LEN },
  { "max_num_batched_tokens", NSAI_KEY_MAX_TOKENS },
  { "max_num_seqs", NSAI_KEY_MAX_SEQS },
  { "max_num_tokens", NSAI_KEY_MAX_TOKENS },
  { "max_position_embeddings", NSAI_KEY_MAX_KV_LEN },
  { "max_running_requests", NSAI_KEY_MAX_SEQS },
  { "max_seq_len", NSAI_KEY_MAX_KV_LEN },
  { "n_heads", NSAI_KEY_MODEL_HEADS },
  { "n_kv_heads", NSAI_KEY_MODEL_KV_HEADS },
  { "num_attention_heads", NSAI_KEY_MODEL_HEADS },
  { "num_heads", NSAI_KEY_MODEL_HEADS },
  { "num_init_blocks", NSAI_KEY_SELECT_INIT },
  { "num_key_value_heads", NSAI_KEY_MODEL_KV_HEADS },
  { "num_kv_heads", NSAI_KEY_MODEL_KV_HEADS },
  { "num_local_blocks", NSAI_KEY_SELECT_LOCAL },
  { "num_selected_blocks", NSAI_KEY_SELECT_COUNT },
  { "qk_head_dim", NSAI_KEY_MODEL_HEAD_DIM_QK },
  { "select_block_size", NSAI_KEY_SELECT_BLOCK },
  { "selection_block_size", NSAI_KEY_SELECT_BLOCK },
  { "seq_lens", NSAI_KEY_TUNING_LENGTHS },
  { "sliding_window", NSAI_KEY_MODEL_WINDOW },
  { "sliding_window_size", NSAI_KEY_MODEL_WINDOW },
  { "sparse_block_size", NSAI_KEY_SELECT_BLOCK },
  { "sparse_index_dim", NSAI_KEY_INDEX_DIM },
  { "sparse_local_block", NSAI_KEY_SELECT_LOCAL },
  { "sparse_num_index_heads", NSAI_KEY_INDEX_HEADS },
  { "sparse_topk_blocks", NSAI_KEY_SELECT_COUNT },
  { "time_budget", NSAI_KEY_TUNING_BUDGET },
  { "top_k", NSAI_KEY_SELECT_COUNT },
  { "top_n", NSAI_KEY_SELECT_COUNT },
  { "tokens_per_block", NSAI_KEY_PAGE_SIZE },
  { "topk", NSAI_KEY_SELECT_COUNT },
  { "topn", NSAI_KEY_SELECT_COUNT },
  { "torch_dtype", NSAI_KEY_MODEL_DTYPE },
  { "v_head_dim", NSAI_KEY_MODEL_HEAD_DIM_V },
  { "value_head_dim", NSAI_KEY_MODEL_HEAD_DIM_V },
  { "window_size", NSAI_KEY_MODEL_WINDOW },
};

/* What other projects' configurations say of a cache in FP8. */
static const char cache_scales[] = "unknown key; the scales of a KV cache in e4m3 come with each "
                                   "call, in nsa_io.k_scale, v_scale, "
                                   "k_cmp_scale and v_cmp_scale";
static const char fp8_cache[] =
    "unknown key; serving.kv_dtype: e4m3 stores raw keys and values of the KV cache in FP8";

/* Features that other projects' configurations request and no kernel here supports, or that are
 * counted differently here. */
static const char sinks[] = "unknown key; attention sinks are not supported yet";
static const char soft_cap[] = "unknown key; soft-capped logits are not supported yet";
static const char tree_mask[] =
    "unknown key; masks other than causal, as of trees of drafts, are not supported yet";
static const char drafts[] =
    "unknown key; serving.max_q_len has the drafts of a step and the token before them";
#define UNKNOWN "unknown key; "
static const char latent[] = UNKNOWN
    "libnsa does not compute multi-head latent attention (MLA): give the heads and head dims "
    "of K and V after the projection from the latent";
static const char index_tokens[] = UNKNOWN
    "an index that chooses single tokens, as in DeepSeek sparse attention (DSA), is not supported: "
    "model.index chooses blocks";
static const struct {
  const char *spelling, *text; /* a key, or the path of one of an earlier version */
} missing[] = {
  { "attention_sink", sinks },
  { "attention_sinks", sinks },
  { "attn_logit_softcapping", soft_cap },
  { "attn_mask", tree_mask },
  { "calculate_kv_scales", cache_scales },
  { "custom_mask", tree_mask },
  { "fp8_kv_cache", fp8_cache },
  { "k_scale", cache_scales },
  { "index_topk", index_tokens },
  { "kv_lora_rank", latent },
  { "kv_scale", cache_scales },
  { "logit_cap", soft_cap },
  { "logit_softcap", soft_cap },
  { "logits_soft_cap", soft_cap },
  { "max_draft_len", drafts },
  { "num_sink_tokens", sinks },
  { "num_speculative_tokens", drafts },
  { "q_lora_rank", latent },
  { "qk_nope_head_dim", latent },
  { "qk_rope_head_dim", latent },
  { "sink_size", sinks },
  { "sink_token_length", sinks },
  { "sinks", sinks },
  { "soft_cap", soft_cap },
  { "softcap", soft_cap },
  { "speculative_eagle_topk", tree_mask },
  { "speculative_num_draft_tokens", drafts },
  { "speculative_token_tree", tree_mask },
  { "tree_attention", tree_mask },
  { "tree_choices", tree_mask },
  { "tree_mask", tree_mask },
  { "v_scale", cache_scales },
  { "runtime.deterministic", "no longer a key: every variant computes the same bits in every run; "
                             "remove the key" },
  { "runtime.parity",
    "no longer a key: every variant computes importance in fp32; remove the key" },
};

/* Values of other projects and the library's word for them; tried only where that word is
 * allowed. */
static const struct {
  const char *spelling, *word;
} synonyms[] = {
  { "avg", "mean" },         { "average", "mean" },       { "bfloat16", "bf16" },
  { "f16", "fp16" },         { "float16", "fp16" },       { "float32", "f32" },
  { "fp32", "f32" },         { "half", "fp16" },          { "sigmoid", "logits" },
  { "swish", "silu" },       { "warning", "warn" },       { "none", "off" },
  { "false", "off" },        { "rw", "read_write" },      { "ro", "read_only" },
  { "always", "on_demand" }, { "eager", "on_demand" },    { "true", "quick" },
  { "fast", "quick" },       { "estimate", "heuristic" }, { "measure", "quick" },
  { "patient", "normal" },   { "full", "exhaustive" },    { "all", "both" },
  { "fp8", "e4m3" },         { "fp8_e4m3", "e4m3" },      { "float8_e4m3fn", "e4m3" },
  { "bf16", "model" },       { "fp16", "model" },         { "auto", "model" },
};

static const char fp8_values[] = "fp8 is for a KV cache alone, by serving.kv_dtype: e4m3";
/* Prefixes of other projects' values that no kernel here supports. */
static const struct {
  const char *begin, *text;
} missing_words[] = {
  { "e5m2", "fp8 e5m2 is not supported" },
  { "float8_e5m2", "fp8 e5m2 is not supported" },
  { "fp8_e5m2", "fp8 e5m2 is not supported" },
  { "e4m3", fp8_values },
  { "float8", fp8_values },
  { "fp8", fp8_values },
  { "fp4", "fp4 is not supported yet" },
  { "int8", "int8 is not supported yet" },
};

/* The last part of a path; *length gets the number of bytes before its dot. */
static const char *last_part(const char *path, size_t *length) {
  const char *dot = strrchr(path, '.');
  *length = dot ? (size_t)(dot - path) : 0;
  return dot ? dot + 1 : path;
}

static bool suggest_alias(const char *prefix, const char *word, nsai_suggestion *suggestion) {
  for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
    if (strcmp(aliases[i].spelling, word) != 0) continue;
    if (aliases[i].section && strcmp(aliases[i].section, prefix) != 0) continue;
    suggestion->key = aliases[i].key;
    nsai_writer w = nsai_writer_open(suggestion->text, sizeof suggestion->text);
    nsai_write(&w, "unknown key; what others call '%s' is %s here", word,
               nsai_keys[suggestion->key].path);
    return true;
  }
  return false;
}

static bool suggest_missing(const char *path, const char *word, nsai_suggestion *suggestion) {
  for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++) {
    if (strcmp(missing[i].spelling, word) != 0 && strcmp(missing[i].spelling, path) != 0) continue;
    nsai_writer w = nsai_writer_open(suggestion->text, sizeof suggestion->text);
    nsai_write(&w, "%s", missing[i].text);
    return true;
  }
  return false;
}

const char *nsai_latent_advice(const char *word) {
  for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++)
    if (missing[i].text == latent && strcmp(missing[i].spelling, word) == 0)
      return latent + strlen(UNKNOWN);
  return NULL;
}

/* The nearest key or section in the mapping `prefix`. */
static bool suggest_sibling(const char *prefix, const char *word, nsai_suggestion *suggestion) {
  uint32_t best = UINT32_MAX;
  char name[64];
  for (int id = 0; id < NSAI_KEY_COUNT; id++) {
    const char *step;
    size_t length = nsai_key_step((nsai_key_id)id, prefix, &step);
    if (!length) continue;
    nsai_writer w = nsai_writer_open(name, sizeof name);
    nsai_write_bytes(&w, step, length);
    if (!nsai_is_nearer(word, name, &best)) continue;
    suggestion->key = step[length] ? NSAI_KEY_COUNT : (nsai_key_id)id;
    w = nsai_writer_open(suggestion->text, sizeof suggestion->text);
    nsai_write(&w, "unknown key; did you mean '%s'?", name);
  }
  return best != UINT32_MAX;
}

/* The only key of another section with exactly this name. */
static bool suggest_elsewhere(const char *word, nsai_suggestion *suggestion) {
  int found = 0;
  for (int id = 0; id < NSAI_KEY_COUNT; id++) {
    size_t unused;
    if (strcmp(last_part(nsai_keys[id].path, &unused), word) != 0) continue;
    found++;
    suggestion->key = (nsai_key_id)id;
  }
  if (found != 1) {
    suggestion->key = NSAI_KEY_COUNT;
    return false;
  }
  nsai_writer w = nsai_writer_open(suggestion->text, sizeof suggestion->text);
  nsai_write(&w, "unknown key here; did you mean %s?", nsai_keys[suggestion->key].path);
  return true;
}

static void list_siblings(const char *prefix, nsai_suggestion *suggestion) {
  nsai_writer w = nsai_writer_open(suggestion->text, sizeof suggestion->text);
  const char *before = "";
  size_t before_length = 0;
  nsai_write(&w, "unknown key; %s%shas", prefix, *prefix ? " " : "the configuration ");
  for (int id = 0; id < NSAI_KEY_COUNT; id++) {
    const char *step;
    size_t length = nsai_key_step((nsai_key_id)id, prefix, &step);
    if (!length || (length == before_length && memcmp(step, before, length) == 0)) continue;
    nsai_write(&w, "%s %.*s", before_length ? "," : "", (int)length, step);
    before = step;
    before_length = length;
  }
  if (!*prefix) nsai_write(&w, ", profiles, and x-* for your own");
}

void nsai_key_suggest(const char *path, nsai_suggestion *suggestion) {
  size_t length;
  const char *word = last_part(path, &length);
  char prefix[64]; /* a longer path is no section */
  nsai_writer w = nsai_writer_open(prefix, sizeof prefix);
  nsai_write_bytes(&w, path, length);
  suggestion->key = NSAI_KEY_COUNT;
  if (suggest_missing(path, word, suggestion)) return;
  if (suggest_alias(prefix, word, suggestion)) return;
  if (suggest_sibling(prefix, word, suggestion)) return;
  if (suggest_elsewhere(word, suggestion)) return;
  while (*prefix && !nsai_section_exists(prefix, strlen(prefix))) {
    last_part(prefix, &length);
    prefix[length] = '\0';
  }
  list_siblings(prefix, suggestion);
}

const char *nsai_word_missing(const char *text) {
  for (size_t i = 0; i < sizeof missing_words / sizeof missing_words[0]; i++)
    if (strncmp(text, missing_words[i].begin, strlen(missing_words[i].begin)) == 0)
      return missing_words[i].text;
  return NULL;
}

const char *nsai_word_suggest(const nsai_word *words, const char *text) {
  for (size_t i = 0; i < sizeof synonyms / sizeof synonyms[0]; i++) {
    if (strcmp(synonyms[i].spelling, text) != 0) continue;
    for (const nsai_word *word = words; word->text; word++)
      if (strcmp(word->text, synonyms[i].word) == 0) return word->text;
  }
  const char *found = NULL;
  uint32_t best = UINT32_MAX;
  for (const nsai_word *word = words; word->text; word++)
    if (nsai_is_nearer(text, word->text, &best)) found = word->text;
  return found;
}

/* "gpu", "GPU 1", "cuda1", "nvidia/1": a GPU, and which; -1: not said. */
static bool is_gpu(const char *text, int64_t *ordinal) {
  static const char *const words[] = { "gpu", "cuda", "nvidia", "device", NULL };
  for (int i = 0; words[i]; i++) {
    size_t length = strlen(words[i]);
    if (strncasecmp(text, words[i], length) != 0) continue;
    const char *rest = text + length;
    rest += strspn(rest, ":/ _");
    *ordinal = -1;
    return !*rest || nsai_parse_integer(rest, 0, 9999, ordinal);
  }
  return false;
}

void nsai_device_suggest(const char *text, nsai_writer *out) {
  static const char *const words[] = { "auto", "cpu", NULL };
  int64_t ordinal;
  const char *word = strcasecmp(text, "host") == 0 ? "cpu" : nsai_nearest(text, words);
  const char *arch = nsai_arch_meant(text);
  if (is_gpu(text, &ordinal)) /* before the words: "gpu" is near to "cpu" */
    nsai_write(out, ordinal < 0 ? ": did you mean 'auto'?" : ": did you mean 'cuda:%d'?",
               (int)ordinal);
  else if (word)
    nsai_write(out, ": did you mean '%s'?", word);
  else if (arch)
    nsai_write(out,
               ": did you mean 'auto'? A device is one of this machine's; the architecture %s, for "
               "compiling without a GPU, is given as --arch or nsa_options.arch",
               arch);
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The configuration: every key with its type, default, checks, and the origin of its value.
 *
 * Layers, weakest first: built-in, system file, file, text, the host's nsa_model, matching profile,
 * environment, overrides. A later layer replaces key by key; lists (tuning.lengths,
 * variants.disable, profiles) are replaced whole, and so is the section `model` by a nsa_model. The
 * keys themselves are declared in schema.c.
 */
#ifndef NSAI_CONFIG_CONFIG_H
#define NSAI_CONFIG_CONFIG_H

#include "base/arena.h"
#include "base/error.h"
#include "base/writer.h"
#include "cache/cache.h" /* nsai_cache_mode */
#include "model/model.h"
#include "model/stage.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The machine's defaults. Read only if root owns it and nobody else can write it. */
#define NSAI_SYSTEM_CONFIG "/etc/nsa/nsa.yaml"

enum { NSAI_JIT_ON_DEMAND, NSAI_JIT_PREPARE_ONLY, NSAI_JIT_NEVER };
enum { NSAI_CHECK_OFF, NSAI_CHECK_BASIC, NSAI_CHECK_FULL };

/* Whether a backward pass on a GPU recomputes o_branch and lse of the forward. */
enum { NSAI_RECOMPUTE_AUTO, NSAI_RECOMPUTE_ALWAYS, NSAI_RECOMPUTE_NEVER };

/* The tuner's effort. At the level "heuristic" it times nothing. */
enum { NSAI_LEVEL_HEURISTIC, NSAI_LEVEL_QUICK, NSAI_LEVEL_NORMAL, NSAI_LEVEL_EXHAUSTIVE };

/* "heuristic" and so on, as the configuration writes them; NULL for an unknown level. Static
 * storage. */
const char *nsai_level_name(int32_t level);

/* The kinds of inputs that are timed, one bit each. */
enum {
  NSAI_INPUTS_RANDOM = 1,
  NSAI_INPUTS_CORRELATED = 2,
  NSAI_INPUTS_BOTH = NSAI_INPUTS_RANDOM | NSAI_INPUTS_CORRELATED
};

/* of tuning.lengths and of tuning.batches; each entry is timed separately */
#define NSAI_MAX_COUNTS 16

/* The numbers of a list, ascending. The configuration's arena owns them. */
typedef struct nsai_counts {
  const int64_t *items; /* NULL: the key is null */
  size_t count;         /* 1 to NSAI_MAX_COUNTS; 0 if items is NULL */
} nsai_counts;

/* The name of a variant, as variants.force and variants.disable use it. */
typedef struct nsai_variant_name {
  nsai_stage stage;
  const char *name;
} nsai_variant_name;

/* Returns the name of the variant at `index`; false after the last one. */
typedef bool (*nsai_variant_name_fn)(int32_t index, nsai_variant_name *out);

/* Whether a glob of variants.disable matches "stage.name". */
bool nsai_variant_name_matches(const nsai_variant_name *name, const char *pattern);

/* Every key, in the order of the dump. schema.c has their paths, types and defaults. */
typedef enum nsai_key_id {
  NSAI_KEY_MODEL_HEADS,
  NSAI_KEY_MODEL_KV_HEADS,
  NSAI_KEY_MODEL_HEAD_DIM,
  NSAI_KEY_MODEL_HEAD_DIM_QK,
  NSAI_KEY_MODEL_HEAD_DIM_V,
  NSAI_KEY_COMPRESS_BLOCK,
  NSAI_KEY_COMPRESS_STRIDE,
  NSAI_KEY_COMPRESS_PHI,
  NSAI_KEY_COMPRESS_HIDDEN,
  NSAI_KEY_COMPRESS_ACTIVATION,
  NSAI_KEY_COMPRESS_OUTPUT,
  NSAI_KEY_SELECT_BLOCK,
  NSAI_KEY_SELECT_COUNT,
  NSAI_KEY_SELECT_INIT,
  NSAI_KEY_SELECT_LOCAL,
  NSAI_KEY_SELECT_POOL,
  NSAI_KEY_SELECT_BY,
  NSAI_KEY_NORMALIZER_BLOCK,
  NSAI_KEY_NORMALIZER_STRIDE,
  NSAI_KEY_INDEX_HEADS,
  NSAI_KEY_INDEX_DIM,
  NSAI_KEY_MODEL_WINDOW,
  NSAI_KEY_MODEL_GATE,
  NSAI_KEY_GATE_CHANNELS,
  NSAI_KEY_GATE_HIDDEN,
  NSAI_KEY_GATE_ACTIVATION,
  NSAI_KEY_MODEL_KV_SHARING,
  NSAI_KEY_MODEL_CAUSAL,
  NSAI_KEY_MODEL_DTYPE,
  NSAI_KEY_MAX_TOKENS,
  NSAI_KEY_MAX_KV_TOKENS,
  NSAI_KEY_MAX_KV_LEN,
  NSAI_KEY_MAX_SEQS,
  NSAI_KEY_MAX_Q_LEN,
  NSAI_KEY_PAGE_SIZE,
  NSAI_KEY_KV_DTYPE,
  NSAI_KEY_CMP_DTYPE,
  NSAI_KEY_DEVICE,
  NSAI_KEY_JIT,
  NSAI_KEY_CACHE_DIR,
  NSAI_KEY_CACHE_MODE,
  NSAI_KEY_CACHE_LIMIT,
  NSAI_KEY_TRUSTED_KEYS,
  NSAI_KEY_LOG_LEVEL,
  NSAI_KEY_RECOMPUTE,
  NSAI_KEY_CHECK_INPUTS,
  NSAI_KEY_COMPILE_JOBS,
  NSAI_KEY_NVRTC_PATH,
  NSAI_KEY_CUBLASLT_PATH,
  NSAI_KEY_NCCL_PATH,
  NSAI_KEY_DRIVER_PATH,
  NSAI_KEY_LINE_INFO,
  NSAI_KEY_COUNT_READS,
  NSAI_KEY_DUMP_DIR,
  NSAI_KEY_TEMPLATES_DIR,
  NSAI_KEY_TUNING_LEVEL,
  NSAI_KEY_TUNING_BUDGET,
  NSAI_KEY_TUNING_MIN_GAIN,
  NSAI_KEY_TUNING_INPUTS,
  NSAI_KEY_TUNING_LENGTHS,
  NSAI_KEY_TUNING_BATCHES,
  NSAI_KEY_TUNING_ON_FIRST_USE,
  NSAI_KEY_TUNING_FIRST_USE_BUDGET,
  NSAI_KEY_TUNING_RECORDS,
  NSAI_KEY_FORCE, /* of the first stage; the other stages follow in the order of nsai_stage */
  NSAI_KEY_FORCE_LAST = NSAI_KEY_FORCE + NSAI_STAGE_COUNT - 1,
  NSAI_KEY_DISABLE,
  NSAI_KEY_SELECT_DENSE_BELOW,
  NSAI_KEY_PREFILL_SPLIT_FROM,
  NSAI_KEY_PREFILL_EXPAND_BYTES,
  NSAI_KEY_RANKS_BUFFER_BYTES,
  NSAI_KEY_DEVICE_SMS,
  NSAI_KEY_DEVICE_SMEM,
  NSAI_KEY_DEVICE_L2,
  NSAI_KEY_DEVICE_HBM,
  NSAI_KEY_DEVICE_TFLOPS,
  NSAI_KEY_DEVICE_SOURCE,
  NSAI_KEY_DEVICE_MEASURED,
  NSAI_KEY_COUNT
} nsai_key_id;

/* The layers, from lowest to highest precedence. */
typedef enum nsai_layer {
  NSAI_LAYER_BUILTIN,
  NSAI_LAYER_SYSTEM,
  NSAI_LAYER_FILE,
  NSAI_LAYER_TEXT,
  NSAI_LAYER_MODEL,
  NSAI_LAYER_PROFILE,
  NSAI_LAYER_ENVIRONMENT,
  NSAI_LAYER_OVERRIDE
} nsai_layer;

/* A position in a source text. */
struct nsai_source;
typedef struct nsai_mark {
  const struct nsai_source *source; /* NULL: nowhere (a built-in value) */
  int32_t line, column;             /* from 1; columns count characters, not bytes */
} nsai_mark;

/* Where a value came from. */
typedef struct nsai_origin {
  nsai_layer layer;
  nsai_mark mark;
  bool broken; /* a value was given and refused: checks that need it are skipped */
} nsai_origin;

typedef struct nsai_list {
  const char *const *items;
  const nsai_mark *marks; /* the position of each list item */
  size_t count;
} nsai_list;

struct nsai_profile;
struct nsai_writer;

/* Does not change after loading, so threads may share it. It owns all its strings. */
typedef struct nsai_config {
  nsai_model model; /* valid if has_model */
  bool has_model;
  bool causal;          /* always true in a valid configuration */
  bool compress_output; /* the opposite of model.keys_only */
  struct {
    int64_t max_tokens, max_kv_tokens, max_kv_len; /* in tokens; 0: not given */
    int32_t max_seqs, max_q_len;                   /* 0: not given */
    int32_t page_size;                             /* tokens; 0: no pages */
    int32_t kv_dtype, cmp_dtype;                   /* of a cache: 0, the model's, or NSA_E4M3 */
  } serving;
  struct {
    char *device; /* "auto", "cpu", an ordinal, a PCI bus id, or a UUID; never NULL */
    int32_t jit, cache_mode;
    char *cache_dir;      /* NULL: the default chain */
    uint64_t cache_limit; /* bytes */
    nsai_list
        trusted_keys;  /* 64 hexadecimal digits, or a path, each; empty: any pack is imported */
    int32_t log_level; /* NSA_LOG_* */
    int32_t recompute; /* NSAI_RECOMPUTE_* */
    int32_t check_inputs;
    int32_t compile_jobs;                                       /* 0: min(cores, 4) */
    char *nvrtc_path, *cublaslt_path, *nccl_path, *driver_path; /* NULL: search for the library */
    bool line_info, count_reads;
    char *dump_dir, *templates_dir; /* NULL: none */
  } runtime;
  struct {
    int32_t level;        /* NSAI_LEVEL_*: the tuner's level when its options name none */
    double budget_s;      /* seconds, a whole number of milliseconds, as first_use_budget_s */
    double min_gain;      /* fraction of the time, 0 to 0.5 */
    int32_t inputs;       /* NSAI_INPUTS_* */
    nsai_counts lengths;  /* tokens; null: powers of four up to the largest of serving */
    nsai_counts batches;  /* sequences of a decode step; null: likewise */
    int32_t on_first_use; /* NSAI_LEVEL_*, never EXHAUSTIVE; HEURISTIC: off */
    double first_use_budget_s;
    bool records; /* false: plans ignore records, and on_first_use is off */
  } tuning;
  struct {
    char *force[NSAI_STAGE_COUNT]; /* variant by stage; NULL: free choice */
    nsai_list disable;             /* globs over "stage.variant" */
  } variants;
  struct {
    int64_t select_dense_below;    /* tokens; -1: auto = count * block */
    int64_t prefill_split_from;    /* tokens; 0: never; -1: auto */
    uint64_t prefill_expand_bytes; /* 0: none */
    uint64_t ranks_buffer_bytes;   /* 0: one KV head at a time */
  } thresholds;
  struct {
    int32_t sms;                  /* 0: not given; the same holds for all figures here */
    uint64_t smem_per_block, l2;  /* bytes */
    double hbm_gbps, bf16_tflops; /* 1e9 bytes/s, 1e12 operations/s */
    char *source;                 /* where the figures come from; NULL: unknown */
    bool measured;
  } device;

  nsai_origin origin[NSAI_KEY_COUNT];
  const char *warnings;          /* one or more lines, "" when there are none */
  struct nsai_profile *profiles; /* those of the highest layer that has any, in their order */
  nsai_mark profile;             /* the profile that was applied; source NULL: none */
  nsai_mark model_mark;          /* the `model` section of the highest layer; source NULL: none */
  bool need_model;               /* as in the request; checked again together with the profile */
  bool unreadable;               /* a text is no YAML, so that nobody knows which sections it has */
  nsai_variant_name_fn variant;  /* as in the request */
  nsai_arena arena;
} nsai_config;

/* What to load. All zero: only the system file and the environment. */
typedef struct nsai_config_request {
  const char *path;              /* a YAML file; NULL: none */
  const char *text;              /* a YAML text, laid over the file; NULL: none */
  size_t length;                 /* bytes of `text`; 0: up to its NUL */
  const char *name;              /* what diagnostics call the text; NULL: "<text>" */
  const struct nsa_model *model; /* in the place of every text's `model` section; NULL: none */
  const char *device;            /* runtime.device, above the environment; NULL: not given */
  const char *const *overrides;  /* "runtime.jit=never", NULL-terminated; NULL: none */
  const char *system_path;       /* NULL: NSAI_SYSTEM_CONFIG */
  nsai_variant_name_fn variant;  /* the names that `variants` may use; NULL: they are not checked */
  bool skip_system_file;
  bool skip_environment;
  bool need_model; /* refuse a configuration without `model` */
  /* the file belongs to a model's weights: it may contain `model` only */
  bool model_file;
  struct nsai_writer *diagnostics; /* receives all errors and warnings; may be NULL */
  /* receives them as members of a JSON object (nsai_diag_write_json), which the caller frees; NULL
   * where a text could not be read; may be NULL */
  char **json;
} nsai_config_request;

/* Loads, merges and checks. nsai_config_apply_device applies profiles later.
 *
 * out  receives the configuration; the caller owns it. Set to NULL on failure.
 *
 * NSA_E_CONFIG (the error text has all diagnostics, one per paragraph), NSA_E_IO (a file cannot be
 * read), NSA_E_NOMEM. Thread-safe. */
nsa_status nsai_config_load(const nsai_config_request *request, nsai_config **out);

/* Merges the first profile that matches the device, with less precedence than environment and
 * overrides, then checks again. Call once per configuration, before it is shared. It is no error if
 * no profile matches.
 *
 * arch, name, uuid  "sm_90a", "NVIDIA H200", "GPU-..."; NULL: unknown, which matches only a profile
 *                   that does not ask for it.
 *
 * NSA_E_CONFIG, NSA_E_NOMEM; the configuration can then only be destroyed. */
nsa_status nsai_config_apply_device(nsai_config *config, const char *arch, const char *name,
                                    const char *uuid);

/* NULL is fine. */
void nsai_config_destroy(nsai_config *config);

/* Writes the effective values as YAML that loads again to the same values. Profiles appear as their
 * effect, not as a section. with_origin adds to each line the origin of its value. */
void nsai_config_dump(const nsai_config *config, bool with_origin, nsai_writer *out);

/* Writes a commented YAML file with every key and what it means: the section `model` with all values,
 * and of the others those that are not built-in; the built-in ones are commented out. It loads again
 * to the same values. */
void nsai_config_write_commented(const nsai_config *config, nsai_writer *out);

/* Writes the JSON Schema of the format, configs/nsa.schema.json, generated from the declared
 * keys. */
void nsai_config_json_schema(nsai_writer *out);

#endif /* NSAI_CONFIG_CONFIG_H */

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The configuration: every key typed, defaulted, checked, with the place it came from.
 *
 * Layers, weakest first: built-in, system file, file, text, the host's nsa_model, matching profile,
 * environment, overrides. A later layer replaces key by key; lists (tuning.lengths, variants.disable,
 * profiles) are replaced whole, and so is the section `model` by a nsa_model. The keys themselves are
 * declared in schema.c.
 */
#ifndef NSAI_CONFIG_CONFIG_H
#define NSAI_CONFIG_CONFIG_H

#include "base/arena.h"
#include "base/error.h"
#include "cache/cache.h" /* nsai_cache_mode */
#include "model/model.h"
#include "model/stage.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The machine's own defaults; read when it is root's and nobody else can write it. */
#define NSAI_SYSTEM_CONFIG "/etc/nsa/nsa.yaml"

enum { NSAI_JIT_ON_DEMAND, NSAI_JIT_PREPARE_ONLY, NSAI_JIT_NEVER };
enum { NSAI_CHECK_OFF, NSAI_CHECK_BASIC, NSAI_CHECK_FULL };

/* What a backward pass on a GPU does about o_branch and lse of the forward. */
enum { NSAI_RECOMPUTE_AUTO, NSAI_RECOMPUTE_ALWAYS, NSAI_RECOMPUTE_NEVER };

/* The tuner's effort; the heuristic times nothing. */
enum { NSAI_LEVEL_HEURISTIC, NSAI_LEVEL_QUICK, NSAI_LEVEL_NORMAL, NSAI_LEVEL_EXHAUSTIVE };

/* "heuristic" ... as the configuration writes them; NULL beyond the last. Static storage. */
const char *nsai_level_name(int32_t level);

/* The inputs that are timed: a bit for each kind. */
enum {
  NSAI_INPUTS_RANDOM = 1,
  NSAI_INPUTS_CORRELATED = 2,
  NSAI_INPUTS_BOTH = NSAI_INPUTS_RANDOM | NSAI_INPUTS_CORRELATED
};

#define NSAI_MAX_COUNTS 16 /* of tuning.lengths, of tuning.batches; each is timed for itself */

/* Numbers of a list, ascending; the configuration's arena owns them. */
typedef struct nsai_counts {
  const int64_t *items; /* NULL: null */
  size_t count;         /* 1 to NSAI_MAX_COUNTS; 0 with NULL */
} nsai_counts;

/* A variant by its name: what variants.force and variants.disable speak of. */
typedef struct nsai_variant_name {
  nsai_stage stage;
  const char *name;
} nsai_variant_name;

/* Gives the name of the variant at `index`; false behind the last one. */
typedef bool (*nsai_variant_name_fn)(int32_t index, nsai_variant_name *out);

/* Whether a glob of variants.disable matches "stage.name". */
bool nsai_variant_name_matches(const nsai_variant_name *name, const char *pattern);

/* Every key, in the order of the dump. Their paths, types and defaults: schema.c. */
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
  NSAI_KEY_SELECT_BLOCK,
  NSAI_KEY_SELECT_COUNT,
  NSAI_KEY_SELECT_INIT,
  NSAI_KEY_SELECT_LOCAL,
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
  NSAI_KEY_DEVICE,
  NSAI_KEY_JIT,
  NSAI_KEY_CACHE_DIR,
  NSAI_KEY_CACHE_MODE,
  NSAI_KEY_CACHE_LIMIT,
  NSAI_KEY_LOG_LEVEL,
  NSAI_KEY_RECOMPUTE,
  NSAI_KEY_CHECK_INPUTS,
  NSAI_KEY_COMPILE_JOBS,
  NSAI_KEY_NVRTC_PATH,
  NSAI_KEY_CUBLASLT_PATH,
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
  NSAI_KEY_FORCE, /* of the first stage; the others follow in the order of nsai_stage */
  NSAI_KEY_FORCE_LAST = NSAI_KEY_FORCE + NSAI_STAGE_COUNT - 1,
  NSAI_KEY_DISABLE,
  NSAI_KEY_SELECT_DENSE_BELOW,
  NSAI_KEY_DEVICE_SMS,
  NSAI_KEY_DEVICE_SMEM,
  NSAI_KEY_DEVICE_L2,
  NSAI_KEY_DEVICE_HBM,
  NSAI_KEY_DEVICE_TFLOPS,
  NSAI_KEY_DEVICE_SOURCE,
  NSAI_KEY_DEVICE_MEASURED,
  NSAI_KEY_COUNT
} nsai_key_id;

/* The layers, weakest first. */
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

/* A place in a source text. */
struct nsai_source;
typedef struct nsai_mark {
  const struct nsai_source *source; /* NULL: nowhere (a built-in value) */
  int32_t line, column;             /* from 1; columns count characters */
} nsai_mark;

/* Where a value came from. */
typedef struct nsai_origin {
  nsai_layer layer;
  nsai_mark mark;
  bool broken; /* a value was given and refused: checks that need it stay silent */
} nsai_origin;

typedef struct nsai_list {
  const char *const *items;
  const nsai_mark *marks; /* where each item stands */
  size_t count;
} nsai_list;

struct nsai_profile;
struct nsai_writer;

/* Read-only after loading; then safe to share between threads. All strings belong to it. */
typedef struct nsai_config {
  nsai_model model; /* meaningful when has_model */
  bool has_model;
  bool causal; /* always true in a valid configuration */
  struct {
    int64_t max_tokens, max_kv_tokens, max_kv_len; /* tokens; 0: not given */
    int32_t max_seqs, max_q_len;                   /* 0: not given */
    int32_t page_size;                             /* tokens; 0: no pages */
  } serving;
  struct {
    char *device; /* "auto", "cpu", an ordinal, a PCI bus id, or a UUID; never NULL */
    int32_t jit, cache_mode;
    char *cache_dir;      /* NULL: the default chain */
    uint64_t cache_limit; /* bytes */
    int32_t log_level;    /* NSA_LOG_* */
    int32_t recompute;    /* NSAI_RECOMPUTE_* */
    int32_t check_inputs;
    int32_t compile_jobs;                           /* 0: min(cores, 4) */
    char *nvrtc_path, *cublaslt_path, *driver_path; /* NULL: searched for */
    bool line_info, count_reads;
    char *dump_dir, *templates_dir; /* NULL: none */
  } runtime;
  struct {
    int32_t level;        /* NSAI_LEVEL_*: of a tuning that is not told otherwise */
    double budget_s;      /* seconds, a whole number of milliseconds, as first_use_budget_s */
    double min_gain;      /* a share of the time, 0 to 0.5 */
    int32_t inputs;       /* NSAI_INPUTS_* */
    nsai_counts lengths;  /* tokens; null: powers of four up to serving's largest */
    nsai_counts batches;  /* sequences of a decode step; likewise */
    int32_t on_first_use; /* NSAI_LEVEL_*, never EXHAUSTIVE; HEURISTIC: off */
    double first_use_budget_s;
    bool records; /* false: plans are made as if there were none, and on_first_use is off */
  } tuning;
  struct {
    char *force[NSAI_STAGE_COUNT]; /* variant by stage; NULL: free choice */
    nsai_list disable;             /* globs over "stage.variant" */
  } variants;
  struct {
    int64_t select_dense_below; /* tokens; -1: auto = count * block */
  } thresholds;
  struct {
    int32_t sms;                  /* 0: not given, as all figures here */
    uint64_t smem_per_block, l2;  /* bytes */
    double hbm_gbps, bf16_tflops; /* 1e9 bytes/s, 1e12 operations/s */
    char *source;                 /* where the figures come from; NULL: not said */
    bool measured;
  } device;

  nsai_origin origin[NSAI_KEY_COUNT];
  const char *warnings;          /* one or more lines, "" when there are none */
  struct nsai_profile *profiles; /* of the strongest layer that has some, in their order */
  nsai_mark profile;             /* the one that was applied; source NULL: none */
  nsai_mark model_mark;          /* the strongest `model` section; source NULL: none */
  bool need_model;               /* as requested; checked again with the profile */
  nsai_variant_name_fn variant;  /* likewise */
  nsai_arena arena;
} nsai_config;

/* What to load. All zero: the system file and the environment alone. */
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
  bool need_model;                 /* a configuration without `model` is refused */
  bool model_file;                 /* the file came with weights: it may hold `model` only */
  struct nsai_writer *diagnostics; /* receives all problems, warnings too; NULL: nobody */
} nsai_config_request;

/* Loads, merges and checks. Profiles wait for nsai_config_apply_device.
 *
 * out  receives the configuration; the caller owns it. Set to NULL on failure.
 *
 * NSA_E_CONFIG (all diagnostics, one below the other, in the error text), NSA_E_IO (a file cannot
 * be read), NSA_E_NOMEM. Thread-safe. */
nsa_status nsai_config_load(const nsai_config_request *request, nsai_config **out);

/* Lays the first profile that matches the device below environment and overrides, then checks
 * again. Once per configuration, before it is shared. No match is no error.
 *
 * arch, name, uuid  "sm_90a", "NVIDIA H200", "GPU-..."; NULL: unknown, which only a profile that
 *                   does not ask for it matches.
 *
 * NSA_E_CONFIG, NSA_E_NOMEM; then the configuration can only be destroyed. */
nsa_status nsai_config_apply_device(nsai_config *config, const char *arch, const char *name,
                                    const char *uuid);

/* NULL is fine. */
void nsai_config_destroy(nsai_config *config);

/* Writes the effective values as YAML that loads again to the same values (profiles are resolved,
 * not repeated); with_origin adds to each line where its value came from. snprintf's rule. */
size_t nsai_config_dump(const nsai_config *config, bool with_origin, char *buf, size_t size);

/* Writes the JSON Schema of the format, made from the declared keys: configs/nsa.schema.json.
 * snprintf's rule. */
size_t nsai_config_json_schema(char *buf, size_t size);

#endif /* NSAI_CONFIG_CONFIG_H */

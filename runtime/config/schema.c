/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The table of all keys. Parser, defaults, dump, JSON Schema, environment table and suggestions
 * read it, so each fact about a key is written once.
 */
#include "config/schema.h"

#include "base/text.h"
#include "base/writer.h"

#include <nsa/attention.h>
#include <nsa/log.h>
#include <stddef.h>
#include <string.h>

#define KIB INT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

/* Bounds that only catch typing errors; the kernels' own limits are in model/model.h. */
#define MAX_HEADS 4096
#define MAX_BLOCK 4096
#define MAX_WINDOW (1024 * 1024)
#define MAX_WIDTH 65536 /* features of a hidden layer or a token */
#define MAX_JOBS 256
#define MAX_SMS 4096
#define MAX_FIGURE 1000000 /* GB/s and TFLOP/s: far above any device */
/* tokens: the paper's selected block; a guess at the shortest length worth timing */
#define MIN_LENGTH 64

/* Durations are in milliseconds. */
#define SECOND INT64_C(1000)
#define MINUTE (60 * SECOND)
#define HOUR (60 * MINUTE)

static const nsai_word phi_words[] = { { "mean", NSAI_PHI_MEAN }, { "linear", NSAI_PHI_LINEAR },
                                       { "mlp", NSAI_PHI_MLP },   { "external", NSAI_PHI_EXTERNAL },
                                       { "none", NSAI_PHI_NONE }, { NULL, 0 } };
static const nsai_word activation_words[] = {
  { "relu", NSAI_ACT_RELU }, { "silu", NSAI_ACT_SILU }, { "gelu", NSAI_ACT_GELU }, { NULL, 0 }
};
static const nsai_word gate_words[] = { { "weights", NSAI_GATE_WEIGHTS },
                                        { "logits", NSAI_GATE_LOGITS },
                                        { "mlp", NSAI_GATE_MLP },
                                        { "none", NSAI_GATE_NONE },
                                        { NULL, 0 } };
static const nsai_word ranking_words[] = { { "compressed", NSAI_BY_COMPRESSED },
                                           { "index", NSAI_BY_INDEX },
                                           { NULL, 0 } };
static const nsai_word pool_words[] = { { "sum", NSAI_POOL_SUM },
                                        { "max", NSAI_POOL_MAX },
                                        { NULL, 0 } };
static const nsai_word sharing_words[] = { { "per_branch", 1 }, { "shared", 0 }, { NULL, 0 } };
static const nsai_word dtype_words[] = {
  { "bf16", NSA_BF16 }, { "fp16", NSA_F16 }, { "f32", NSA_F32 }, { NULL, 0 }
};
static const nsai_word cache_dtype_words[] = { { "model", 0 }, { "e4m3", NSA_E4M3 }, { NULL, 0 } };
static const nsai_word jit_words[] = { { "on_demand", NSAI_JIT_ON_DEMAND },
                                       { "prepare_only", NSAI_JIT_PREPARE_ONLY },
                                       { "never", NSAI_JIT_NEVER },
                                       { NULL, 0 } };
static const nsai_word cache_words[] = { { "read_write", NSAI_CACHE_READ_WRITE },
                                         { "read_only", NSAI_CACHE_READ_ONLY },
                                         { "off", NSAI_CACHE_OFF },
                                         { NULL, 0 } };
static const nsai_word level_words[] = { { "off", NSA_LOG_OFF },
                                         { "error", NSA_LOG_ERROR },
                                         { "warn", NSA_LOG_WARN },
                                         { "info", NSA_LOG_INFO },
                                         { "debug", NSA_LOG_DEBUG },
                                         { "trace", NSA_LOG_TRACE },
                                         { NULL, 0 } };
static const nsai_word check_words[] = {
  { "off", NSAI_CHECK_OFF }, { "basic", NSAI_CHECK_BASIC }, { "full", NSAI_CHECK_FULL }, { NULL, 0 }
};
static const nsai_word recompute_words[] = { { "auto", NSAI_RECOMPUTE_AUTO },
                                             { "always", NSAI_RECOMPUTE_ALWAYS },
                                             { "never", NSAI_RECOMPUTE_NEVER },
                                             { NULL, 0 } };
static const nsai_word effort_words[] = { { "heuristic", NSAI_LEVEL_HEURISTIC },
                                          { "quick", NSAI_LEVEL_QUICK },
                                          { "normal", NSAI_LEVEL_NORMAL },
                                          { "exhaustive", NSAI_LEVEL_EXHAUSTIVE },
                                          { NULL, 0 } };
const char *nsai_level_name(int32_t level) {
  return level >= NSAI_LEVEL_HEURISTIC && level <= NSAI_LEVEL_EXHAUSTIVE ? effort_words[level].text
                                                                         : NULL;
}

static const nsai_word input_words[] = { { "random", NSAI_INPUTS_RANDOM },
                                         { "correlated", NSAI_INPUTS_CORRELATED },
                                         { "both", NSAI_INPUTS_BOTH },
                                         { NULL, 0 } };
/* An exhaustive search may take hours, so it cannot be started implicitly. */
static const nsai_word first_use_words[] = { { "off", NSAI_LEVEL_HEURISTIC },
                                             { "quick", NSAI_LEVEL_QUICK },
                                             { "normal", NSAI_LEVEL_NORMAL },
                                             { NULL, 0 } };
static const nsai_word auto_words[] = { { "auto", -1 }, { NULL, 0 } };

#define AT(field) offsetof(nsai_config, field)

/* A row of the table: for a key that is one of some words, for numbers from `least` to `most` in
 * steps (0: any), and for other keys. `fallback` is the built-in value. */
#define WORD(id, path, field, words, fallback, help)                                               \
  [NSAI_KEY_##id] = { path, NSAI_TYPE_WORD, AT(field), 0, 0, 0, words, fallback, help }
#define RANGE(id, path, type, field, least, most, step, fallback, help)                            \
  [NSAI_KEY_##id] = { path, NSAI_TYPE_##type, AT(field), least, most, step, NULL, fallback, help }
#define PLAIN(id, path, type, field, fallback, help)                                               \
  [NSAI_KEY_##id] = { path, NSAI_TYPE_##type, AT(field), 0, 0, 0, NULL, fallback, help }

/* The model's built-in values are those of the paper (arXiv 2502.11089, section 4.1), with the mean
 * as phi. */
const nsai_key nsai_keys[NSAI_KEY_COUNT] = {
  RANGE(MODEL_HEADS, "model.heads", INT, model.heads, 1, MAX_HEADS, 0, NULL, "query heads (Hq)"),
  RANGE(MODEL_KV_HEADS, "model.kv_heads", INT, model.kv_heads, 1, MAX_HEADS, 0, NULL,
        "key and value heads (Hkv); divides heads, at most 64 query heads each"),
  [NSAI_KEY_MODEL_HEAD_DIM] = { "model.head_dim", NSAI_TYPE_ALIAS, 0, NSAI_MIN_HEAD_DIM,
                                NSAI_MAX_HEAD_DIM, NSAI_HEAD_DIM_STEP, NULL, NULL,
                                "head_dim_qk and head_dim_v in one" },
  RANGE(MODEL_HEAD_DIM_QK, "model.head_dim_qk", INT, model.head_dim_qk, NSAI_MIN_HEAD_DIM,
        NSAI_MAX_HEAD_DIM, NSAI_HEAD_DIM_STEP, NULL,
        "width of a query and a key (Dk), or head_dim for both"),
  RANGE(MODEL_HEAD_DIM_V, "model.head_dim_v", INT, model.head_dim_v, NSAI_MIN_HEAD_DIM,
        NSAI_MAX_HEAD_DIM, NSAI_HEAD_DIM_STEP, NULL, "width of a value (Dv), or head_dim for both"),
  RANGE(COMPRESS_BLOCK, "model.compress.block", INT, model.block, 1, MAX_BLOCK, 0, "32",
        "tokens of a compressed block (l)"),
  RANGE(COMPRESS_STRIDE, "model.compress.stride", INT, model.stride, 1, MAX_BLOCK, 0, "16",
        "tokens between two compressed blocks (d); divides block and select.block"),
  WORD(COMPRESS_PHI, "model.compress.phi", model.phi, phi_words, "mean",
       "what makes a compressed key or value of a block; external: the caller brings them; none: "
       "there are none, and an index chooses blocks; `compress: none` is short for it"),
  RANGE(COMPRESS_HIDDEN, "model.compress.hidden", INT, model.phi_hidden, 0, MAX_WIDTH, 0, "0",
        "hidden width of phi mlp; 0 with any other phi"),
  WORD(COMPRESS_ACTIVATION, "model.compress.activation", model.phi_activation, activation_words,
       "silu", "between the layers of phi mlp"),
  PLAIN(COMPRESS_OUTPUT, "model.compress.output", BOOL, compress_output, "true",
        "whether the compressed branch has an output; false: compressed keys serve the selection "
        "alone, and there are no compressed values"),
  RANGE(SELECT_BLOCK, "model.select.block", INT, model.select_block, 1, MAX_BLOCK, 0, "64",
        "tokens of a selected block (l'); a multiple of compress.stride, at least compress.block"),
  RANGE(SELECT_COUNT, "model.select.count", INT, model.select_count, 0, NSAI_MAX_SELECTED, 0, "16",
        "blocks a query selects (n), forced ones included; 0: no selected branch"),
  RANGE(SELECT_INIT, "model.select.init", INT, model.select_init, 0, NSAI_MAX_SELECTED, 0, "1",
        "first blocks that are forced"),
  RANGE(SELECT_LOCAL, "model.select.local", INT, model.select_local, 0, NSAI_MAX_SELECTED, 0, "2",
        "last blocks that are forced, the current one included"),
  WORD(SELECT_POOL, "model.select.pool", model.pool, pool_words, "sum",
       "what of its compressed blocks makes a block's importance: their sum, by the strides that "
       "they share with it, or the greatest; of an index the greatest score of its tokens"),
  WORD(SELECT_BY, "model.select.by", model.by, ranking_words, "compressed",
       "what chooses blocks: compressed keys, or an index branch with queries and keys of its own"),
  RANGE(NORMALIZER_BLOCK, "model.select.normalizer.block", INT, model.norm_block, 0, MAX_BLOCK, 0,
        "0",
        "tokens of a coarse key: the importance is normalised by the log-sum-exp of coarse keys; "
        "0: by that of the compressed ones"),
  RANGE(NORMALIZER_STRIDE, "model.select.normalizer.stride", INT, model.norm_stride, 0, MAX_BLOCK,
        0, "0",
        "tokens between two coarse keys; divides normalizer.block and pages; 0 without one"),
  RANGE(INDEX_HEADS, "model.index.heads", INT, model.index_heads, 0, MAX_HEADS, 0, "0",
        "query heads of the index (Hi), one for each KV head; 0 without select.by: index"),
  RANGE(INDEX_DIM, "model.index.dim", INT, model.index_dim, 0, NSAI_MAX_HEAD_DIM,
        NSAI_HEAD_DIM_STEP, "0",
        "width of an index query and of the one index key of a token (Di), at least 16; 0 without "
        "select.by: index"),
  RANGE(MODEL_WINDOW, "model.window", INT, model.window, 0, MAX_WINDOW, 0, "512",
        "tokens of the window, the query's own included (w); 0: no window branch"),
  WORD(MODEL_GATE, "model.gate", model.gate, gate_words, "logits",
       "how gates arrive: used as they are, through a sigmoid, or computed from token features; "
       "none: the branches are added up without gates"),
  RANGE(GATE_CHANNELS, "model.gate_mlp.channels", INT, model.gate_channels, 0, MAX_WIDTH, 0, "0",
        "features of a token for gate mlp; 0 with any other gate"),
  RANGE(GATE_HIDDEN, "model.gate_mlp.hidden", INT, model.gate_hidden, 0, MAX_WIDTH, 0, "0",
        "hidden width of gate mlp; 0: one layer"),
  WORD(GATE_ACTIVATION, "model.gate_mlp.activation", model.gate_activation, activation_words,
       "silu", "between the layers of gate mlp"),
  WORD(MODEL_KV_SHARING, "model.kv_sharing", model.per_branch, sharing_words, "per_branch",
       "a key and value pair for each branch, or one for all"),
  PLAIN(MODEL_CAUSAL, "model.causal", BOOL, causal, "true", "always true: NSA is causal"),
  WORD(MODEL_DTYPE, "model.dtype", model.dtype, dtype_words, "bf16",
       "of queries, keys, values and outputs; f32 on the CPU device only"),

  RANGE(MAX_TOKENS, "serving.max_tokens", LONG, serving.max_tokens, 0, NSAI_MAX_ROWS, 0, "0",
        "query tokens of one run; 0: each problem says"),
  RANGE(MAX_KV_TOKENS, "serving.max_kv_tokens", LONG, serving.max_kv_tokens, 0, NSAI_MAX_ROWS, 0,
        "0",
        "KV tokens of one run, all sequences together, for problems that give no max_tokens "
        "either; 0: max_tokens"),
  RANGE(MAX_KV_LEN, "serving.max_kv_len", LONG, serving.max_kv_len, 0, NSAI_MAX_ROWS, 0, "0",
        "KV tokens of one sequence; 0: each problem says"),
  RANGE(MAX_SEQS, "serving.max_seqs", INT, serving.max_seqs, 0, NSAI_MAX_SEQS, 0, "0",
        "sequences of one run; 0: each problem says, else 1"),
  RANGE(
      MAX_Q_LEN, "serving.max_q_len", INT, serving.max_q_len, 0, NSA_MAX_DECODE_LEN, 0, "0",
      "new tokens of a sequence in one decode step, drafts included; 0: each problem says, else 1"),
  RANGE(PAGE_SIZE, "serving.page_size", INT, serving.page_size, 0, NSAI_MAX_PAGE_SIZE,
        NSAI_MIN_PAGE_SIZE, "0",
        "tokens of a page of the KV cache: 16, 32, 64 or 128, a multiple of compress.stride and of "
        "select.normalizer.stride; 0: each problem says, else no pages"),
  WORD(KV_DTYPE, "serving.kv_dtype", serving.kv_dtype, cache_dtype_words, "model",
       "of raw keys and values in the KV cache; e4m3: FP8 with scales, half the memory"),
  WORD(CMP_DTYPE, "serving.cmp_dtype", serving.cmp_dtype, cache_dtype_words, "model",
       "of compressed entries in the KV cache, or of index keys; in e4m3 long contexts decode "
       "faster, "
       "and a few more selected blocks change"),

  PLAIN(DEVICE, "runtime.device", DEVICE, runtime.device, "auto",
        "auto (a GPU: the current CUDA context's, else the first), cpu, a CUDA ordinal (cuda:1), a "
        "PCI bus id, or a GPU's UUID"),
  WORD(JIT, "runtime.jit", runtime.jit, jit_words, "on_demand",
       "when kernels may be compiled: making a plan too, in nsa_prepare only, or never"),
  PLAIN(CACHE_DIR, "runtime.cache_dir", PATH, runtime.cache_dir, "null",
        "folder of compiled kernels; null: $XDG_CACHE_HOME/nsa, then ~/.cache/nsa"),
  WORD(CACHE_MODE, "runtime.cache_mode", runtime.cache_mode, cache_words, "read_write",
       "how the cache folder is used"),
  RANGE(CACHE_LIMIT, "runtime.cache_limit", SIZE, runtime.cache_limit, MIB, 1024 * GIB, 0, "1Gi",
        "bytes of the cache folder; the least recently used kernels go first"),
  PLAIN(
      TRUSTED_KEYS, "runtime.trusted_keys", KEYS, runtime.trusted_keys, "[]",
      "whose packs of kernels `nsa-autotune import` takes: public keys, and files of them; empty: "
      "anybody's, also unsigned"),
  WORD(LOG_LEVEL, "runtime.log_level", runtime.log_level, level_words, "warn",
       "lines up to this level are logged"),
  WORD(RECOMPUTE, "runtime.recompute", runtime.recompute, recompute_words, "auto",
       "outputs and LSE of the branches, in a backward pass: computed again where the forward's "
       "are not given, always, or never: then each has to be given"),
  WORD(
      CHECK_INPUTS, "runtime.check_inputs", runtime.check_inputs, check_words, "basic",
      "what run calls check; off: only that tensors are there, fit the plan and the address space, "
      "have their dtypes, and that no output overlaps itself or another tensor; basic: also shapes "
      "and strides; "
      "full, to find bugs: also whose memory it is, and the values of batches, which waits for the "
      "stream"),
  RANGE(COMPILE_JOBS, "runtime.compile_jobs", INT, runtime.compile_jobs, 0, MAX_JOBS, 0, "0",
        "kernels compiled at once; 0: as many as cores, at most 4"),
  PLAIN(NVRTC_PATH, "runtime.nvrtc_path", PATH, runtime.nvrtc_path, "null",
        "file of libnvrtc; null: searched for"),
  PLAIN(CUBLASLT_PATH, "runtime.cublaslt_path", PATH, runtime.cublaslt_path, "null",
        "file of libcublasLt; null: searched for"),
  PLAIN(NCCL_PATH, "runtime.nccl_path", PATH, runtime.nccl_path, "null",
        "file of libnccl, for runs over ranks; null: searched for"),
  PLAIN(DRIVER_PATH, "runtime.driver_path", PATH, runtime.driver_path, "null",
        "file of libcuda; null: searched for"),
  PLAIN(LINE_INFO, "runtime.line_info", BOOL, runtime.line_info, "false",
        "compile kernels with line information, for profilers"),
  PLAIN(COUNT_READS, "runtime.count_reads", BOOL, runtime.count_reads, "false",
        "a diagnostic: decode kernels that count what they read of K and V (io.kv_reads), a little "
        "slower"),
  PLAIN(DUMP_DIR, "runtime.dump_dir", PATH, runtime.dump_dir, "null",
        "folder that receives generated sources; null: none"),
  PLAIN(TEMPLATES_DIR, "runtime.templates_dir", PATH, runtime.templates_dir, "null",
        "folder whose kernel templates replace the embedded ones; null: none"),

  WORD(TUNING_LEVEL, "tuning.level", tuning.level, effort_words, "quick",
       "effort of a tuning that is not told otherwise; heuristic: times nothing"),
  RANGE(TUNING_BUDGET, "tuning.budget", DURATION, tuning.budget_s, SECOND, 24 * HOUR, 0, "10m",
        "time a tuning may take, compiling included"),
  RANGE(TUNING_MIN_GAIN, "tuning.min_gain", SHARE, tuning.min_gain, 0, 50, 0, "0.02",
        "share of its time by which the heuristic's choice must be beaten"),
  WORD(TUNING_INPUTS, "tuning.inputs", tuning.inputs, input_words, "both",
       "what is timed: random keys, keys whose neighbours select alike as trained models' do, or "
       "both"),
  RANGE(TUNING_LENGTHS, "tuning.lengths", COUNTS, tuning.lengths, MIN_LENGTH, NSAI_MAX_ROWS, 0,
        "null",
        "KV tokens of the sequences that are timed, ascending; null: 1Ki, 4Ki, 16Ki and on up to "
        "the longest that serving allows"),
  RANGE(TUNING_BATCHES, "tuning.batches", COUNTS, tuning.batches, 1, NSAI_MAX_SEQS, 0, "null",
        "sequences of the decode steps that are timed, ascending; null: 1, 4, 16 and on up to "
        "serving.max_seqs"),
  WORD(TUNING_ON_FIRST_USE, "tuning.on_first_use", tuning.on_first_use, first_use_words, "off",
       "effort of the tuning that making a plan begins when it finds no record"),
  RANGE(TUNING_FIRST_USE_BUDGET, "tuning.first_use_budget", DURATION, tuning.first_use_budget_s,
        SECOND, 10 * MINUTE, 0, "20s", "time that tuning on first use may take"),
  PLAIN(TUNING_RECORDS, "tuning.records", BOOL, tuning.records, "true",
        "plans follow the records of earlier tuning; false: the heuristic alone, and on_first_use "
        "is off"),

#define FORCE(stage, name)                                                                         \
  PLAIN(FORCE + stage, "variants.force." name, VARIANT, variants.force[stage], "null",             \
        "the variant of stage " name "; null: free choice")
  FORCE(NSAI_STAGE_GATE, "gate"),
  FORCE(NSAI_STAGE_COMPRESS, "compress"),
  FORCE(NSAI_STAGE_ATTEND_COMPRESSED, "attend_compressed"),
  FORCE(NSAI_STAGE_IMPORTANCE, "importance"),
  FORCE(NSAI_STAGE_SELECT, "select"),
  FORCE(NSAI_STAGE_ATTEND_SELECTED, "attend_selected"),
  FORCE(NSAI_STAGE_ATTEND_WINDOW, "attend_window"),
  FORCE(NSAI_STAGE_DENSE, "dense"),
  FORCE(NSAI_STAGE_APPEND, "append"),
  FORCE(NSAI_STAGE_DECODE, "decode"),
  FORCE(NSAI_STAGE_BACKWARD_Q, "backward_q"),
  FORCE(NSAI_STAGE_BACKWARD_KV, "backward_kv"),
  FORCE(NSAI_STAGE_INDEX_KL, "index_kl"),
  FORCE(NSAI_STAGE_INDEX_LSE, "index_lse"),
  FORCE(NSAI_STAGE_GATHER_PAGES, "gather_pages"),
#undef FORCE
  PLAIN(DISABLE, "variants.disable", GLOBS, variants.disable, "[]",
        "variants that are never chosen: globs over stage.variant"),

  [NSAI_KEY_SELECT_DENSE_BELOW] = { "thresholds.select_dense_below", NSAI_TYPE_LONG,
                                    AT(thresholds.select_dense_below), 0, NSAI_MAX_ROWS, 0,
                                    auto_words, "auto",
                                    "KV tokens up to which the selected branch runs dense; auto: "
                                    "select.count * select.block, where both are the same" },
  [NSAI_KEY_PREFILL_SPLIT_FROM] = { "thresholds.prefill_split_from", NSAI_TYPE_LONG,
                                    AT(thresholds.prefill_split_from), 0, NSAI_MAX_ROWS, 0,
                                    auto_words, "auto",
                                    "max_kv_len from which a plan for prefills of few tokens, "
                                    "whose tiles of queries would leave half of an H200 idle, "
                                    "takes the kernels of decode, which split keys; auto: 8192, "
                                    "0: never. Plans with a row of prefill or decode forced, or "
                                    "with "
                                    "rows disabled, do not; nor do models whose blocks are ranked "
                                    "by an index, a maximum or a normaliser" },

  RANGE(
      PREFILL_EXPAND_BYTES, "thresholds.prefill_expand_bytes", SIZE,
      thresholds.prefill_expand_bytes, 0, 1024 * GIB, 0, "512Mi",
      "bytes of workspace, of each pair of K and V, or of index keys, up to which a prefill over "
      "these in "
      "e4m3 expands them to the model's dtype once, on sm_90a; longer contexts, more sequences and "
      "calls of few new tokens expand what each tile reads; 0: all do"),
  RANGE(RANKS_BUFFER_BYTES, "thresholds.ranks_buffer_bytes", SIZE, thresholds.ranks_buffer_bytes, 0,
        1024 * GIB, 0, "4Gi",
        "bytes of workspace, for K and V of all ranks and the sums of their gradients, up to which "
        "a plan over ranks takes all KV heads at once; beyond, it takes as many at a time as fit, "
        "at least one. With gate mlp it always takes all"),

  RANGE(DEVICE_SMS, "device.sms", INT, device.sms, 0, MAX_SMS, 0, "0",
        "streaming multiprocessors; 0: unknown"),
  RANGE(DEVICE_SMEM, "device.smem_per_block", SIZE, device.smem_per_block, 0, MIB, 0, "0",
        "bytes of shared memory a block can have; 0: unknown"),
  RANGE(DEVICE_L2, "device.l2", SIZE, device.l2, 0, GIB, 0, "0", "bytes of L2 cache; 0: unknown"),
  RANGE(DEVICE_HBM, "device.hbm_gbps", NUMBER, device.hbm_gbps, 0, MAX_FIGURE, 0, "0",
        "memory bandwidth in 1e9 bytes/s; 0: unknown"),
  RANGE(DEVICE_TFLOPS, "device.bf16_tflops", NUMBER, device.bf16_tflops, 0, MAX_FIGURE, 0, "0",
        "dense bf16 matrix product in 1e12 operations/s; 0: unknown"),
  PLAIN(DEVICE_SOURCE, "device.source", TEXT, device.source, "null", "where the figures come from"),
  PLAIN(DEVICE_MEASURED, "device.measured", BOOL, device.measured, "false",
        "bandwidth and rate were measured, not read from a data sheet"),
};

nsai_key_id nsai_key_find(const char *path, size_t length) {
  for (int id = 0; id < NSAI_KEY_COUNT; id++) {
    const char *known = nsai_keys[id].path;
    if (strlen(known) == length && memcmp(known, path, length) == 0) return (nsai_key_id)id;
  }
  return NSAI_KEY_COUNT;
}

bool nsai_section_exists(const char *path, size_t length) {
  for (int id = 0; id < NSAI_KEY_COUNT; id++) {
    const char *known = nsai_keys[id].path;
    if (strlen(known) > length && known[length] == '.' && memcmp(known, path, length) == 0)
      return true;
  }
  return false;
}

size_t nsai_key_step(nsai_key_id id, const char *prefix, const char **step) {
  const char *path = nsai_keys[id].path;
  size_t length = strlen(prefix);
  if (length) {
    if (strncmp(path, prefix, length) != 0 || path[length] != '.') return 0;
    path += length + 1;
  }
  *step = path;
  return strcspn(path, ".");
}

const char *nsai_word_text(const nsai_word *words, int64_t value) {
  for (; words && words->text; words++)
    if (words->value == value) return words->text;
  return NULL;
}

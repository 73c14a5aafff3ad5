/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The context: a model and a configuration on one device. It holds the opened NVIDIA libraries,
 * the kernel cache and the loaded kernels.
 *
 *   nsa_model model = NSA_MODEL_INIT;
 *   nsa_options options = NSA_OPTIONS_INIT;
 *   nsa_ctx *ctx = NULL;
 *   model.heads = 64, model.kv_heads = 4, model.head_dim_qk = 128; // the rest: the paper's
 *   options.model = &model;
 *   if (nsa_create(NULL, &options, &ctx) != NSA_OK) puts(nsa_last_error());
 *
 * or, with a configuration file, nsa_create("nsa.yaml", NULL, &ctx). docs/configuration.md has
 * every key of the file. These headers name keys by their path, as in `runtime.jit`.
 */
#ifndef NSA_CONTEXT_H
#define NSA_CONTEXT_H

#include <nsa/base.h>
#include <nsa/log.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A context. Make one for each device and configuration. Thread-safe.
 *
 * CUDA does not survive fork(). A child process that uses its parent's context, or a plan of it,
 * gets NSA_E_FORKED from every call that returns a status. nsa_explain then writes that sentence,
 * nsa_config_dump and nsa_problem_string write "", nsa_report looks at the machine without a
 * configuration, and nsa_destroy frees host memory only, without what another thread was changing
 * at the fork. A child cannot make a GPU context either when CUDA was initialised before the fork(),
 * by a context or by the host. Create contexts after fork(), or start the child by exec. Contexts on
 * the CPU device and contexts for options.arch work in any process. */
typedef struct nsa_ctx nsa_ctx;

/* ---- model ---- */

/* phi: how l keys or values become one compressed key or value of D numbers. */
enum {
  NSA_PHI_MEAN = 1,   /* their mean */
  NSA_PHI_LINEAR = 2, /* a position code is added, then one matrix [l*D, D] */
  NSA_PHI_MLP = 3, /* a position code is added, then two layers with an activation between them */
  NSA_PHI_EXTERNAL = 4, /* the caller computes them: io.kv.k_cmp and v_cmp are inputs */
  NSA_PHI_NONE = 5      /* there are none, and no compressed branch: needs NSA_BY_INDEX */
};

/* Activation functions of phi mlp and of the gate MLP. */
enum { NSA_ACT_RELU = 1, NSA_ACT_SILU = 2, NSA_ACT_GELU = 3 };

/* Where the gates of the three branches come from. */
enum {
  NSA_GATE_WEIGHTS = 1, /* io.gate.value, used as it is */
  NSA_GATE_LOGITS = 2,  /* io.gate.value, through a sigmoid */
  NSA_GATE_MLP = 3,     /* layers over the features io.gate.x, through a sigmoid */
  NSA_GATE_NONE = 4     /* none: `o` is the sum of the branches; io.gate.value must be absent */
};

/* What chooses the blocks of the selected branch. */
enum {
  NSA_BY_COMPRESSED = 1, /* the probabilities of compressed keys */
  NSA_BY_INDEX = 2       /* an index branch: the scores of io.index_q and io.k_idx */
};

/* What of its compressed blocks makes the importance of a selected block. */
enum {
  NSA_POOL_SUM = 1, /* their sum, each by the strides that it shares with the block */
  NSA_POOL_MAX = 2  /* the greatest of those that share one; of an index that of its tokens */
};

/* How many pairs of K and V the model has. */
enum {
  NSA_KV_PER_BRANCH = 1, /* one for each branch */
  NSA_KV_SHARED = 2      /* one for all branches */
};

/* The model's dimensions and options, the same as the section `model` of a configuration:
 * compress_block is `model.compress.block`, and so on. Defaults are in brackets. A value that is
 * out of range, or that does not fit another one, makes nsa_create fail with NSA_E_CONFIG; the
 * message names the key. */
typedef struct nsa_model {
  uint32_t struct_size;
  int32_t heads;            /* Hq, query heads; required */
  int32_t kv_heads;         /* Hkv, KV heads; required; divides Hq, with Hq / Hkv at most 64 */
  int32_t head_dim_qk;      /* Dk, of queries and keys; required; a multiple of 8 from 16 to 256 */
  int32_t head_dim_v;       /* Dv, of values and outputs [head_dim_qk] */
  int32_t dtype;            /* [NSA_BF16], NSA_F16, or NSA_F32 on the CPU device */
  int32_t compress_block;   /* l, tokens of a compressed block [32] */
  int32_t compress_stride;  /* d, tokens between two compressed blocks [16]; divides l and l' */
  int32_t phi;              /* NSA_PHI_* [NSA_PHI_MEAN] */
  int32_t phi_hidden;       /* hidden width of NSA_PHI_MLP; required there */
  int32_t phi_activation;   /* NSA_ACT_* of NSA_PHI_MLP [NSA_ACT_SILU] */
  int32_t select_block;     /* l', tokens of a selected block [64]; at least l */
  int32_t select_count;     /* n, blocks that a query selects, forced ones included [16]; at most
                              256; NSA_NONE: no selected branch */
  int32_t select_init;      /* first blocks of a sequence that are forced [1]; or NSA_NONE */
  int32_t select_local;     /* last blocks that are forced, the query's own included [2]; or
                              NSA_NONE */
  int32_t window;           /* w, tokens of the window, the query's own included [512]; NSA_NONE: no
                              window branch */
  int32_t gate;             /* NSA_GATE_* [NSA_GATE_LOGITS] */
  int32_t gate_channels;    /* C, features of a token, of NSA_GATE_MLP; required there */
  int32_t gate_hidden;      /* hidden width of NSA_GATE_MLP [0: one layer] */
  int32_t gate_activation;  /* NSA_ACT_* of NSA_GATE_MLP [NSA_ACT_SILU] */
  int32_t kv_sharing;       /* NSA_KV_* [NSA_KV_PER_BRANCH] */
  int32_t compress_output;  /* NSA_NONE: compressed keys serve the selection alone; there is no
                              compressed branch, and v_cmp does not exist. Needs NSA_KV_SHARED [0:
                              the branch has an output] */
  int32_t select_pool;      /* NSA_POOL_* [NSA_POOL_SUM] */
  int32_t normalizer_block; /* tokens of a coarse key, whose log-sum-exp normalises the importance
                                [0: that of the compressed keys does] */
  int32_t normalizer_stride; /* tokens between two coarse keys; required with a normaliser */
  int32_t select_by;         /* NSA_BY_* [NSA_BY_COMPRESSED]; NSA_BY_INDEX needs NSA_PHI_NONE and
                                NSA_POOL_MAX */
  int32_t index_heads;       /* Hi, query heads of the index: as many as KV heads; required with
                                NSA_BY_INDEX */
  int32_t index_dim;         /* Di, of index queries and keys, as head_dim_qk; required with
                                NSA_BY_INDEX */
} nsa_model;
#define NSA_MODEL_INIT NSA_INIT(nsa_model)

/* ---- context ---- */

/* What a context is made from, besides a configuration file. */
typedef struct nsa_options {
  uint32_t struct_size;
  int32_t log_level;      /* NSA_LOG_* [runtime.log_level]; NSA_NONE: NSA_LOG_OFF */
  const nsa_model *model; /* replaces the section `model` of file and text [NULL: they have it] */
  const char *device;     /* "cpu", "cuda:1" (an ordinal), a PCI bus id "0000:3b:00.0", or a UUID
                             "GPU-..." [runtime.device; its auto is a GPU, never the CPU] */
  const char *arch;       /* "sm_90a": nsa_prepare compiles for this architecture; no driver is
                             opened, and no plan can be made [the device's own]. Not together with
                             `device`, nor where runtime.device is cpu */
  const char *yaml_text;  /* a configuration, laid over the file's [NULL: none] */
  size_t yaml_len;        /* bytes of yaml_text [up to its NUL] */
  const char *const *overrides; /* "runtime.jit=never", ..., NULL; stronger than all else [none] */
  nsa_log_fn log;               /* receives log lines [they go to stderr] */
  void *log_user;               /* passed to `log` */
} nsa_options;
#define NSA_OPTIONS_INIT NSA_INIT(nsa_options)

/* Makes a context.
 *
 * yaml_path  a configuration file; NULL: none. The model must come from this file,
 *            options->yaml_text, options->model or options->overrides. Everything else has a
 *            default.
 * options    NULL: defaults.
 * out        receives the context, which the caller owns; NULL on failure.
 *
 * Opens the driver, but not for the CPU device or options->arch. If a CUDA context of the device
 * is current on this thread, the library shares it: it belongs to the host and must outlive the
 * nsa_ctx. Otherwise the library retains the device's primary context until nsa_destroy. The
 * thread's current context does not change. NVRTC and cuBLASLt are opened later, when a plan
 * needs them. Blocking. Thread-safe.
 *
 * Returns NSA_OK or
 *   NSA_E_CONFIG       the configuration is invalid; nsa_last_error has all diagnostics
 *   NSA_E_ARG          an option is wrong, or two contradict each other
 *   NSA_E_IO           a file cannot be read: the configuration, or one of runtime.templates_dir
 *   NSA_E_NO_DRIVER, NSA_E_NO_DEVICE
 *   NSA_E_UNSUPPORTED  the library has no kernels for the architecture
 *   NSA_E_VERSION, NSA_E_CUDA, NSA_E_NOMEM, NSA_E_FORKED */
NSA_API nsa_status nsa_create(const char *yaml_path, const nsa_options *options, nsa_ctx **out);

/* Releases a context. NULL is fine. No other thread may be using it. Plans stay valid: what they
 * need is freed with the last of them, and a warning says how many there are. Until then the
 * host's log callback and CUDA context must live, too. */
NSA_API void nsa_destroy(nsa_ctx *ctx);

/* ---- configuration and machine ---- */

/* Writes the effective configuration as YAML that loads again. With `with_origin` not 0 a comment
 * on each line says where its value came from.
 *
 * Returns the length of the text. On failure (no context, or one from before a fork()) it writes
 * "" and returns 0; nsa_last_error has the reason. Thread-safe. */
NSA_API size_t nsa_config_dump(const nsa_ctx *ctx, int32_t with_origin, char *buf, size_t size);

/* Checks a configuration without making a context. Needs no device. Reads the text alone,
 * neither /etc/nsa/nsa.yaml nor the environment. A text without `model` passes, since
 * options.model, a file or another text may give it: nsa_create demands one.
 *
 * yaml, len   the text; len 0: up to its NUL.
 * name        what diagnostics call the text, as "nsa.yaml"; NULL: "<text>".
 * diag, size  receive all diagnostics, cut to `size` bytes; NULL with size 0: nobody wants them.
 *
 * Returns NSA_OK (diag may then hold warnings), NSA_E_CONFIG, NSA_E_ARG or NSA_E_NOMEM.
 * Thread-safe. */
NSA_API nsa_status nsa_config_check(const char *yaml, size_t len, const char *name, char *diag,
                                    size_t size);

/* Writes a report on this machine as JSON, the same as `nsa-autotune doctor --json`: device,
 * driver, libraries with every path that was tried, cache folders, and what a run would use.
 *
 * ctx  NULL: looks at the machine without a configuration, and retains and releases the primary
 *      context of the GPU that would be used.
 *
 * Opens the driver, which initialises CUDA in this process (see nsa_ctx about fork), and NVRTC,
 * cuBLASLt and NVML to look at them. Makes no cache folder. Never fails: what is missing is part
 * of the report. Returns the length of the text. Blocking. Thread-safe. */
NSA_API size_t nsa_report(nsa_ctx *ctx, char *buf, size_t size);

#ifdef __cplusplus
}
#endif
#endif /* NSA_CONTEXT_H */

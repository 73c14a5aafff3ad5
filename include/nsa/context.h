/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The context: a configuration on a device. Holds the opened libraries, the kernel cache and the
 * loaded kernels.
 */
#ifndef NSA_CONTEXT_H
#define NSA_CONTEXT_H

#include <nsa/base.h>
#include <nsa/log.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Thread-safe. One per device and configuration.
 *
 * CUDA does not survive fork(): with the parent's context, or a plan of it, the child gets
 * NSA_E_FORKED from every call that returns a status; nsa_explain writes that sentence,
 * nsa_config_dump and nsa_problem_string write "", nsa_report looks at the machine without a
 * configuration, and nsa_destroy frees the host's memory only. When CUDA was initialised before the
 * fork(), by a context or by the host, the child cannot make a GPU context either (NSA_E_FORKED):
 * create contexts after fork(), or exec the child. Contexts on the CPU device and those of
 * options.arch can be made anywhere. */
typedef struct nsa_ctx nsa_ctx;

/* What makes a compressed key or value of a block of l tokens. */
enum {
  NSA_PHI_MEAN = 1,    /* the mean */
  NSA_PHI_LINEAR = 2,  /* one matrix over the l * D numbers, after an added position code */
  NSA_PHI_MLP = 3,     /* two, with an activation between them */
  NSA_PHI_EXTERNAL = 4 /* the caller: io.kv.k_cmp and v_cmp are inputs */
};

/* Activations of phi mlp and of the gate MLP. */
enum { NSA_ACT_RELU = 1, NSA_ACT_SILU = 2, NSA_ACT_GELU = 3 };

/* How the gates of the branches arrive. */
enum {
  NSA_GATE_WEIGHTS = 1, /* io.gate.value, used as it is */
  NSA_GATE_LOGITS = 2,  /* io.gate.value, through a sigmoid */
  NSA_GATE_MLP = 3      /* computed from io.gate.x, through a sigmoid */
};

/* How many pairs of K and V the model has. */
enum {
  NSA_KV_PER_BRANCH = 1, /* one for each branch */
  NSA_KV_SHARED = 2      /* one for all branches */
};

/* The model: what the section `model` of a configuration says, whose keys carry the same names (compress_block
 * is compress.block, phi is compress.phi). A zero field has the default in brackets; what NSA_NONE turns off or
 * sets to zero says so. What is out of range or does not fit together is NSA_E_CONFIG, with the YAML key. */
typedef struct nsa_model {
  uint32_t struct_size;
  int32_t heads,
      kv_heads; /* query heads Hq, KV heads Hkv; required. Hkv divides Hq, at most 64 times */
  int32_t head_dim_qk;     /* Dk; required, a multiple of 8 from 16 to 256 */
  int32_t head_dim_v;      /* Dv [head_dim_qk] */
  int32_t dtype;           /* [NSA_BF16], NSA_F16; on the CPU device also NSA_F32 */
  int32_t compress_block;  /* l [32], tokens */
  int32_t compress_stride; /* d [16], tokens; divides l and l' */
  int32_t phi;             /* [NSA_PHI_MEAN] */
  int32_t phi_hidden;      /* hidden width of NSA_PHI_MLP, required there */
  int32_t phi_activation;  /* of NSA_PHI_MLP [NSA_ACT_SILU] */
  int32_t select_block;    /* l' [64], tokens; at least l */
  int32_t
      select_count; /* n [16], at most 256, the forced blocks included; NSA_NONE: no selected branch */
  int32_t select_init; /* first blocks of a sequence that are forced [1]; NSA_NONE: none */
  int32_t
      select_local; /* last blocks that are forced, the query's own included [2]; NSA_NONE: none */
  int32_t window;   /* w [512], tokens, the query's own included; NSA_NONE: no window branch */
  int32_t gate;     /* [NSA_GATE_LOGITS] */
  int32_t gate_channels;   /* C, features of a token, of NSA_GATE_MLP, required there */
  int32_t gate_hidden;     /* hidden width of NSA_GATE_MLP [one layer] */
  int32_t gate_activation; /* of NSA_GATE_MLP [NSA_ACT_SILU] */
  int32_t kv_sharing;      /* [NSA_KV_PER_BRANCH] */
} nsa_model;
#define NSA_MODEL_INIT NSA_INIT(nsa_model)

typedef struct nsa_options {
  uint32_t struct_size;
  int32_t log_level; /* NSA_LOG_*; 0: as runtime.log_level says; NSA_NONE: NSA_LOG_OFF */
  const nsa_model
      *model;         /* in the place of the section `model` of files and text; NULL: as they say */
  const char *device; /* "cpu", "cuda:1" (an ordinal), a PCI bus id or a GPU's UUID; NULL: as
                         runtime.device says */
  const char *arch;   /* "sm_90a": no driver is opened; nsa_prepare compiles for this architecture,
                         and nothing can run. Not with `device`, nor where runtime.device is cpu.
                         NULL: the device's own */
  const char *yaml_text; /* configuration text, laid over the file; NULL: none */
  size_t yaml_len;       /* bytes of yaml_text; 0: up to its NUL */
  const char *const
      *overrides; /* "runtime.jit=never", NULL-terminated list, strongest; NULL: none */
  nsa_log_fn log; /* NULL: lines of runtime.log_level and above go to stderr */
  void *log_user; /* passed to `log` */
} nsa_options;
#define NSA_OPTIONS_INIT NSA_INIT(nsa_options)

/* Makes a context.
 *
 * yaml_path  a configuration file; NULL: none. A model must come from it, from options->yaml_text, from
 *            options->model or from overrides; everything else has a default.
 * options    NULL: defaults.
 * out        receives the context; the caller owns it. Set to NULL on failure.
 *
 * Opens the driver (not on the CPU device, nor with options.arch). When a CUDA context of the device
 * is current on this thread, that one is shared: it belongs to the host and must outlive the
 * nsa_ctx. Otherwise the device's primary context is retained until nsa_destroy. What is current on
 * the thread stays so. Opens neither NVRTC nor cuBLASLt. Blocking; thread-safe.
 *
 * NSA_E_CONFIG (all diagnostics in nsa_last_error), NSA_E_IO (the file, or a template of
 * runtime.templates_dir), NSA_E_NO_DRIVER, NSA_E_NO_DEVICE, NSA_E_UNSUPPORTED (architecture),
 * NSA_E_VERSION, NSA_E_ARG, NSA_E_CUDA, NSA_E_NOMEM, NSA_E_FORKED. */
NSA_API nsa_status nsa_create(const char *yaml_path, const nsa_options *options, nsa_ctx **out);

/* Releases the context. NULL is fine. While plans of it exist, which a warning counts, what they need stays
 * until the last of them is destroyed; the host's log and CUDA context must, too. */
NSA_API void nsa_destroy(nsa_ctx *ctx);

/* Writes the effective configuration as YAML; with `with_origin` every line says in a comment where
 * its value came from. snprintf's rule: writes at most `size` bytes with the NUL, returns the
 * length the whole text has. A failure (no context, or one of before a fork) writes "" and returns
 * 0, with the reason in nsa_last_error. Thread-safe. */
NSA_API size_t nsa_config_dump(const nsa_ctx *ctx, int32_t with_origin, char *buf, size_t size);

/* Checks a configuration without making a context.
 *
 * yaml, len   the text; len 0: up to its NUL.
 * name        what diagnostics call the text ("nsa.yaml"); NULL: "<text>".
 * diag, size  receives all diagnostics, cut at `size`; may be NULL with size 0.
 *
 * NSA_OK (diag may then hold warnings), NSA_E_CONFIG, NSA_E_ARG, NSA_E_NOMEM. Thread-safe. */
NSA_API nsa_status nsa_config_check(const char *yaml, size_t len, const char *name, char *diag,
                                    size_t size);

/* Writes what `nsa-autotune doctor --json` prints: device, driver, libraries with every path tried,
 * cache tiers, what would be used. ctx NULL: looks at the machine without a configuration.
 * snprintf's rule. Opens the driver, which initialises CUDA in this process (see nsa_ctx on fork),
 * and NVRTC, cuBLASLt and NVML, to look at them; with a ctx NULL it retains and releases the primary
 * context of the GPU that would be used. Makes no cache folder. Never fails: what is missing is
 * part of the report. Blocking; thread-safe. */
NSA_API size_t nsa_report(nsa_ctx *ctx, char *buf, size_t size);

#ifdef __cplusplus
}
#endif
#endif /* NSA_CONTEXT_H */

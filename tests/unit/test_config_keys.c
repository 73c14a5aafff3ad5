/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The diagnostics of unknown keys and refused values, word by word. Line 1 is "nsa: 1".
 */
#include "diag_case.h"

static const diag_case key_cases[] = {
  { "other projects' spellings",
    "model:\n"
    "  num_attention_heads: 64\n"
    "  num_key_value_heads: 4\n"
    "  head_size: 128\n"
    "  kernel_size: 32\n"
    "  kernel_stride: 16\n"
    "  block_size: 64\n"
    "  block_counts: 16\n"
    "  window_size: 512\n",
    "3:3: error: model.num_attention_heads: unknown key; what others call 'num_attention_heads' "
    "is model.heads here\n"
    "4:3: error: model.num_key_value_heads: unknown key; what others call 'num_key_value_heads' "
    "is model.kv_heads here\n"
    "5:3: error: model.head_size: unknown key; what others call 'head_size' is model.head_dim "
    "here\n"
    "6:3: error: model.kernel_size: unknown key; what others call 'kernel_size' is "
    "model.compress.block here\n"
    "7:3: error: model.kernel_stride: unknown key; what others call 'kernel_stride' is "
    "model.compress.stride here\n"
    "8:3: error: model.block_size: unknown key; what others call 'block_size' is "
    "model.select.block here\n"
    "9:3: error: model.block_counts: unknown key; what others call 'block_counts' is "
    "model.select.count here\n"
    "10:3: error: model.window_size: unknown key; what others call 'window_size' is model.window "
    "here" },
  { "more of them",
    "model:\n"
    "  num_attention_heads: 64\n"
    "  num_kv_heads: 4\n"
    "  qk_head_dim: 192\n"
    "  v_head_dim: 128\n"
    "  compress_block_size: 32\n"
    "  selection_block_size: 64\n"
    "  num_selected_blocks: 16\n"
    "  sliding_window_size: 512\n",
    "3:3: error: model.num_attention_heads: unknown key; what others call 'num_attention_heads' "
    "is model.heads here\n"
    "4:3: error: model.num_kv_heads: unknown key; what others call 'num_kv_heads' is "
    "model.kv_heads here\n"
    "5:3: error: model.qk_head_dim: unknown key; what others call 'qk_head_dim' is "
    "model.head_dim_qk here\n"
    "6:3: error: model.v_head_dim: unknown key; what others call 'v_head_dim' is model.head_dim_v "
    "here\n"
    "7:3: error: model.compress_block_size: unknown key; what others call 'compress_block_size' "
    "is model.compress.block here\n"
    "8:3: error: model.selection_block_size: unknown key; what others call 'selection_block_size' "
    "is model.select.block here\n"
    "9:3: error: model.num_selected_blocks: unknown key; what others call 'num_selected_blocks' "
    "is model.select.count here\n"
    "10:3: error: model.sliding_window_size: unknown key; what others call 'sliding_window_size' "
    "is model.window here" },
  { "how others call an index",
    "model:\n"
    "  heads: 64\n"
    "  kv_heads: 4\n"
    "  head_dim: 128\n"
    "  index_n_heads: 1\n"
    "  index_head_dim: 1\n"
    "  index_block_size: 1\n"
    "  index_topk_blocks: 1\n"
    "  index_local_blocks: 1\n"
    "  sparse_num_index_heads: 1\n"
    "  sparse_index_dim: 1\n"
    "  sparse_block_size: 1\n"
    "  sparse_topk_blocks: 1\n"
    "  sparse_local_block: 1\n"
    "  index_topk: 2048\n",
    "6:3: error: model.index_n_heads: unknown key; what others call 'index_n_heads' is "
    "model.index.heads here\n"
    "7:3: error: model.index_head_dim: unknown key; what others call 'index_head_dim' is "
    "model.index.dim here\n"
    "8:3: error: model.index_block_size: unknown key; what others call 'index_block_size' is "
    "model.select.block here\n"
    "9:3: error: model.index_topk_blocks: unknown key; what others call 'index_topk_blocks' is "
    "model.select.count here\n"
    "10:3: error: model.index_local_blocks: unknown key; what others call 'index_local_blocks' is "
    "model.select.local here\n"
    "11:3: error: model.sparse_num_index_heads: unknown key; what others call "
    "'sparse_num_index_heads' is model.index.heads here\n"
    "12:3: error: model.sparse_index_dim: unknown key; what others call 'sparse_index_dim' is "
    "model.index.dim here\n"
    "13:3: error: model.sparse_block_size: unknown key; what others call 'sparse_block_size' is "
    "model.select.block here\n"
    "14:3: error: model.sparse_topk_blocks: unknown key; what others call 'sparse_topk_blocks' is "
    "model.select.count here\n"
    "15:3: error: model.sparse_local_block: unknown key; what others call 'sparse_local_block' is "
    "model.select.local here\n"
    "16:3: error: model.index_topk: unknown key; an index that chooses single tokens, as in "
    "DeepSeek "
    "sparse attention (DSA), is not supported: model.index chooses blocks" },
  { "how others call the tuning",
    "autotune: true\n"
    "tuning: {effort: quick, max_autotune: true, time_budget: 1m, seq_lens: [4096]}\n",
    "2:1: error: autotune: unknown key; what others call 'autotune' is tuning.on_first_use here\n"
    "3:10: error: tuning.effort: unknown key; what others call 'effort' is tuning.level here\n"
    "3:25: error: tuning.max_autotune: unknown key; what others call 'max_autotune' is "
    "tuning.level here\n"
    "3:45: error: tuning.time_budget: unknown key; what others call 'time_budget' is "
    "tuning.budget here\n"
    "3:62: error: tuning.seq_lens: unknown key; what others call 'seq_lens' is tuning.lengths "
    "here" },
  { "near misses",
    "serving: {max_seq: 1}\n"
    "rutime: {jti: never}\n"
    "runtime: {jti: never}\n",
    "2:11: error: serving.max_seq: unknown key; did you mean 'max_seqs'?\n"
    "3:1: error: rutime: unknown key; did you mean 'runtime'?\n"
    "4:11: error: runtime.jti: unknown key; did you mean 'jit'?" },
  { "right word, wrong section", "serving: {window: 512, jit: never}\n",
    "2:11: error: serving.window: unknown key here; did you mean model.window?\n"
    "2:24: error: serving.jit: unknown key here; did you mean runtime.jit?" },
  { "keys of earlier versions",
    "runtime: {deterministic: true}\n"
    "profiles: [{match: {}, runtime: {parity: false}}]\n",
    "2:11: error: runtime.deterministic: no longer a key: every variant computes the same bits in "
    "every run; remove the key\n"
    "3:34: error: profiles[0].runtime.parity: no longer a key: every variant computes importance "
    "in fp32; remove the key" },
  { "nothing near",
    "serving: {colour: blue}\n"
    "weather: fine\n",
    "2:11: error: serving.colour: unknown key; serving has max_tokens, max_kv_tokens, max_kv_len, "
    "max_seqs, max_q_len, page_size, kv_dtype, cmp_dtype\n"
    "3:1: error: weather: unknown key; the configuration has model, serving, runtime, tuning, "
    "variants, thresholds, device, profiles, and x-* for your own" },
  { "what no kernel does",
    "serving: {kv_cache_dtype: fp8, tree_mask: true, tokens_per_block: 64}\n",
    "2:11: error: serving.kv_cache_dtype: unknown key; what others call 'kv_cache_dtype' is "
    "serving.kv_dtype here\n"
    "2:32: error: serving.tree_mask: unknown key; masks other than causal, as of trees of drafts, "
    "are not supported yet\n"
    "2:49: error: serving.tokens_per_block: unknown key; what others call 'tokens_per_block' is "
    "serving.page_size here" },
  { "what no kernel does to logits", "runtime: {attention_sinks: 4, logits_soft_cap: 30}\n",
    "2:11: error: runtime.attention_sinks: unknown key; attention sinks are not supported yet\n"
    "2:31: error: runtime.logits_soft_cap: unknown key; soft-capped logits are not supported yet" },
  { "what no kernel stores", "model: {heads: 4, kv_heads: 2, head_dim: 64, dtype: fp8_e4m3}\n",
    "2:53: error: model.dtype: expected bf16 | fp16 | f32; found 'fp8_e4m3': fp8 is for a KV "
    "cache alone, by serving.kv_dtype: e4m3" },
  { "words for a cache in FP8",
    "serving: {kv_dtype: fp8, cmp_dtype: bf16, fp8_kv_cache: 1, v_scale: 1.0}\n",
    "2:21: error: serving.kv_dtype: expected model | e4m3; found 'fp8': did you mean 'e4m3'?\n"
    "2:37: error: serving.cmp_dtype: expected model | e4m3; found 'bf16': did you mean 'model'?\n"
    "2:43: error: serving.fp8_kv_cache: unknown key; serving.kv_dtype: e4m3 stores raw keys and "
    "values of the KV cache in FP8\n"
    "2:60: error: serving.v_scale: unknown key; the scales of a KV cache in e4m3 come with each "
    "call, in nsa_io.k_scale, v_scale, k_cmp_scale and v_cmp_scale" },
  { "what engines say",
    "serving: {block_size: 16, max_seq_len: 4096, num_speculative_tokens: 3}\n"
    "model: {heads: 4, kv_heads: 2, head_dim: 64, block_size: 64}\n",
    "2:11: error: serving.block_size: unknown key; what others call 'block_size' is "
    "serving.page_size here\n"
    "2:27: error: serving.max_seq_len: unknown key; what others call 'max_seq_len' is "
    "serving.max_kv_len here\n"
    "2:46: error: serving.num_speculative_tokens: unknown key; serving.max_q_len has the drafts "
    "of a step and the token before them\n"
    "3:46: error: model.block_size: unknown key; what others call 'block_size' is "
    "model.select.block here" },
  { "dotted key", "runtime.jit: never\n",
    "2:1: error: runtime.jit: unknown key; write sections as nested mappings, without dots" },
  { "x- keys are free",
    "x-note: [any, thing]\n"
    "serving: {x-more: {a: 1}}\n",
    "" },
  { "section that is none",
    "model: 5\n"
    "serving: [1]\n"
    "runtime:\n",
    "2:8: error: model: expected a mapping of keys to values\n"
    "3:10: error: serving: expected a mapping of keys to values" },
  { "missing keys", "model: {heads: 64}\n",
    "2:1: error: model.kv_heads: missing: key and value heads (Hkv); divides heads, at most 64 "
    "query heads each, a whole number from 1 to 4096\n"
    "2:1: error: model.head_dim_qk: missing: width of a query and a key (Dk), or head_dim for "
    "both, a whole number from 16 to 256\n"
    "2:1: error: model.head_dim_v: missing: width of a value (Dv), or head_dim for both, a whole "
    "number from 16 to 256" },
  { "both head dims", "model: {heads: 64, kv_heads: 4, head_dim: 128, head_dim_v: 64}\n",
    "2:33: error: model.head_dim: sets head_dim_qk and head_dim_v, and head_dim_v is given too, "
    "on line 2: give either head_dim, or head_dim_qk and head_dim_v" },
  { "hostile key", "\"\\e[31mred\\n\": 1\n",
    "2:1: error: ?[31mred?: unknown key; the configuration has model, serving, runtime, tuning, "
    "variants, thresholds, device, profiles, and x-* for your own" },
};

static const diag_case value_cases[] = {
  { "booleans",
    "runtime: {count_reads: yes, line_info: 0}\n"
    "tuning: {records: True}\n",
    "2:24: error: runtime.count_reads: expected true | false; found 'yes': did you mean 'true'?\n"
    "2:40: error: runtime.line_info: expected true | false; found '0': did you mean 'false'?\n"
    "3:19: error: tuning.records: expected true | false; found 'True': did you mean 'true'?" },
  { "words", "runtime: {jit: no, cache_mode: readonly, log_level: warning, check_inputs: [full]}\n",
    "2:16: error: runtime.jit: expected on_demand | prepare_only | never; found 'no'\n"
    "2:32: error: runtime.cache_mode: expected read_write | read_only | off; found 'readonly': "
    "did you mean 'read_only'?\n"
    "2:53: error: runtime.log_level: expected off | error | warn | info | debug | trace; found "
    "'warning': did you mean 'warn'?\n"
    "2:76: error: runtime.check_inputs: expected off | basic | full; found a list" },
  { "dtype and phi",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, dtype: bfloat16, compress: {phi: avg, "
    "activation: swish}}\n",
    "2:55: error: model.dtype: expected bf16 | fp16 | f32; found 'bfloat16': did you mean "
    "'bf16'?\n"
    "2:81: error: model.compress.phi: expected mean | linear | mlp | external | none; found 'avg': "
    "did "
    "you mean 'mean'?\n"
    "2:98: error: model.compress.activation: expected relu | silu | gelu; found 'swish': did you "
    "mean 'silu'?" },
  { "whole numbers",
    "serving:\n"
    "  max_tokens: 017\n"
    "  max_kv_tokens: 65_536\n"
    "  max_kv_len: 64KB\n"
    "  max_seqs: 1.5k\n",
    "3:15: error: serving.max_tokens: expected a whole number like 4096, 64k or 64Ki; found "
    "'017': numbers are decimal, without a leading 0\n"
    "4:18: error: serving.max_kv_tokens: expected a whole number like 4096, 64k or 64Ki; found "
    "'65_536': write the digits without '_' or ','\n"
    "5:15: error: serving.max_kv_len: expected a whole number like 4096, 64k or 64Ki; found "
    "'64KB': units are k, M, G, T (1000) and Ki, Mi, Gi, Ti (1024)\n"
    "6:13: error: serving.max_seqs: expected a whole number from 0 to 1000000; found '1.5k': "
    "write it without '.' and exponent, as 1500 for 1.5k" },
  { "ranges",
    "serving:\n"
    "  max_tokens: -1\n"
    "  max_seqs: 9999999999999999999999\n"
    "  max_kv_len: -9223372036854775808\n"
    "device: {hbm_gbps: 1e3, bf16_tflops: 2000000}\n",
    "3:15: error: serving.max_tokens: -1 is out of range: 0 to 2000000000\n"
    "4:13: error: serving.max_seqs: 9999999999999999999999 is out of range: 0 to 1000000\n"
    "5:15: error: serving.max_kv_len: -9223372036854775808 is out of range: 0 to 2000000000\n"
    "6:20: error: device.hbm_gbps: expected a number like 4280 or 781.5; found '1e3': write plain "
    "digits, at most 6 after the point\n"
    "6:38: error: device.bf16_tflops: 2000000 is out of range: 0 to 1000000" },
  { "nothing there",
    "serving: {max_seqs: }\n"
    "runtime: {jit: , device: null}\n",
    "2:21: error: serving.max_seqs: expected a whole number from 0 to 1000000; found nothing\n"
    "3:16: error: runtime.jit: expected on_demand | prepare_only | never; found nothing\n"
    "3:26: error: runtime.device: expected auto, cpu, an ordinal (cuda:1), a PCI bus id "
    "(0000:3b:00.0) or "
    "a UUID (GPU-...); found 'null'" },
  { "dims", "model: {heads: 4, kv_heads: 4, head_dim_qk: 100, head_dim_v: 264}\n",
    "2:45: error: model.head_dim_qk: 100 is not a multiple of 8: use 96 or 104\n"
    "2:62: error: model.head_dim_v: 264 is out of range: 16 to 256" },
  { "sizes",
    "runtime: {cache_limit: 1GB}\n"
    "device: {l2: 1.5Mi, smem_per_block: 2Mi}\n",
    "2:24: error: runtime.cache_limit: expected a size in bytes like 512Mi or 1Gi; found '1GB': "
    "units are k, M, G, T (1000) and Ki, Mi, Gi, Ti (1024)\n"
    "3:14: error: device.l2: expected a size in bytes like 512Mi or 1Gi; found '1.5Mi': write it "
    "without '.' and exponent, as 1500 for 1.5k\n"
    "3:37: error: device.smem_per_block: 2Mi is out of range: 0 to 1048576" },
  { "paths", "runtime: {cache_dir: ~/nsa, nvrtc_path: libnvrtc.so, dump_dir: {}}\n",
    "2:22: error: runtime.cache_dir: expected an absolute path, or null; found '~/nsa': '~' is "
    "not expanded, write the home folder out\n"
    "2:41: error: runtime.nvrtc_path: expected an absolute path, or null; found 'libnvrtc.so', "
    "which would depend on the working directory\n"
    "2:64: error: runtime.dump_dir: expected an absolute path, or null; found a mapping" },
  { "trusted keys", "runtime: {trusted_keys: [/etc/nsa/keys, ../keys]}\n",
    "2:41: error: runtime.trusted_keys: expected a list of public keys (64 hexadecimal digits) and "
    "absolute paths; found '../keys': `nsa-autotune keygen` prints a key and writes a file of it" },
  { "a trusted key of 63 digits",
    "runtime: {trusted_keys: "
    "[012345678901234567890123456789012345678901234567890123456789abc]}\n",
    "2:26: error: runtime.trusted_keys: expected a list of public keys (64 hexadecimal digits) and "
    "absolute paths; found '0123456789012345678901234567890123456789...': `nsa-autotune keygen` "
    "prints a key and writes a file of it" },
  { "devices", "runtime: {device: 'gpu0'}\n",
    "2:19: error: runtime.device: expected auto, cpu, an ordinal (cuda:1), a PCI bus id "
    "(0000:3b:00.0) or "
    "a UUID (GPU-...); found 'gpu0': did you mean 'cuda:0'?" },
  { "devices", "runtime: {device: 'CPU'}\n",
    "2:19: error: runtime.device: expected auto, cpu, an ordinal (cuda:1), a PCI bus id "
    "(0000:3b:00.0) or "
    "a UUID (GPU-...); found 'CPU': did you mean 'cpu'?" },
  { "devices", "runtime: {device: 'GPU'}\n",
    "2:19: error: runtime.device: expected auto, cpu, an ordinal (cuda:1), a PCI bus id "
    "(0000:3b:00.0) or "
    "a UUID (GPU-...); found 'GPU': did you mean 'auto'?" },
  { "devices", "runtime: {device: 'Cuda:'}\n",
    "2:19: error: runtime.device: expected auto, cpu, an ordinal (cuda:1), a PCI bus id "
    "(0000:3b:00.0) or "
    "a UUID (GPU-...); found 'Cuda:': did you mean 'auto'?" },
  { "devices", "runtime: {device: 'gpu:3'}\n",
    "2:19: error: runtime.device: expected auto, cpu, an ordinal (cuda:1), a PCI bus id "
    "(0000:3b:00.0) or "
    "a UUID (GPU-...); found 'gpu:3': did you mean 'cuda:3'?" },
  { "devices", "runtime: {device: 'host'}\n",
    "2:19: error: runtime.device: expected auto, cpu, an ordinal (cuda:1), a PCI bus id "
    "(0000:3b:00.0) or "
    "a UUID (GPU-...); found 'host': did you mean 'cpu'?" },
  { "devices", "runtime: {device: 'Auto'}\n",
    "2:19: error: runtime.device: expected auto, cpu, an ordinal (cuda:1), a PCI bus id "
    "(0000:3b:00.0) or "
    "a UUID (GPU-...); found 'Auto': did you mean 'auto'?" },
  { "devices", "runtime: {device: 'quantum'}\n",
    "2:19: error: runtime.device: expected auto, cpu, an ordinal (cuda:1), a PCI bus id "
    "(0000:3b:00.0) or "
    "a UUID (GPU-...); found 'quantum'" },
  { "an architecture is no device", "runtime: {device: h100}\n",
    "2:19: error: runtime.device: expected auto, cpu, an ordinal (cuda:1), a PCI bus id "
    "(0000:3b:00.0) or "
    "a UUID (GPU-...); found 'h100': did you mean 'auto'? A device is one of this "
    "machine's; the architecture sm_90a, for compiling without a GPU, is given as --arch or "
    "nsa_options.arch" },
  { "variants",
    "variants:\n"
    "  force: {attend_slected: a, dense: No!}\n"
    "  disable: [attend_selected, nostage.x]\n",
    "3:11: error: variants.force.attend_slected: unknown key; did you mean 'attend_selected'?\n"
    "3:37: error: variants.force.dense: expected a variant's name, or null; found 'No!'\n"
    "4:13: error: variants.disable: expected a list of globs like [dense.*_gemm]; found "
    "'attend_selected': write stage.variant; stages are gate, compress, attend_compressed, "
    "importance, select, attend_selected, attend_window, dense, append, decode, backward_q, "
    "backward_kv, index_kl, index_lse, gather_pages" },
  { "disable is a list", "variants: {disable: dense.x}\n",
    "2:21: error: variants.disable: expected a list of globs like [dense.*_gemm]; found "
    "'dense.x'" },
  { "thresholds", "thresholds: {select_dense_below: Auto}\n",
    "2:34: error: thresholds.select_dense_below: expected a whole number like 4096, 64k or 64Ki | "
    "auto; found 'Auto': did you mean 'auto'?" },
};

static const diag_case tuning_cases[] = {
  { "words", "tuning: {level: patient, inputs: all, on_first_use: exhaustive, records: no}\n",
    "2:17: error: tuning.level: expected heuristic | quick | normal | exhaustive; found "
    "'patient': did you mean 'normal'?\n"
    "2:34: error: tuning.inputs: expected random | correlated | both; found 'all': did you mean "
    "'both'?\n"
    "2:53: error: tuning.on_first_use: expected off | quick | normal; found 'exhaustive'\n"
    "2:74: error: tuning.records: expected true | false; found 'no': did you mean 'false'?" },
  { "unknown keys", "tuning: {levle: quick, colour: blue}\n",
    "2:10: error: tuning.levle: unknown key; did you mean 'level'?\n"
    "2:24: error: tuning.colour: unknown key; tuning has level, budget, min_gain, inputs, "
    "lengths, batches, on_first_use, first_use_budget, records" },
  { "durations", "tuning: {budget: 90, first_use_budget: 30m1h}\n",
    "2:18: error: tuning.budget: expected a duration like 90s, 10m or 1h30m; found '90': give "
    "each number its unit, h, m, s or ms, like 90s\n"
    "2:40: error: tuning.first_use_budget: expected a duration like 90s, 10m or 1h30m; found "
    "'30m1h': units go from the largest to the smallest, each once" },
  { "durations out of range", "tuning: {budget: 24h1ms, first_use_budget: 0.999s}\n",
    "2:18: error: tuning.budget: 24h1ms is out of range: 1s to 24h\n"
    "2:44: error: tuning.first_use_budget: 0.999s is out of range: 1s to 10m" },
  { "durations that are none", "tuning: {budget: , first_use_budget: [20s]}\n",
    "2:18: error: tuning.budget: expected a duration like 90s, 10m or 1h30m; found nothing\n"
    "2:38: error: tuning.first_use_budget: expected a duration like 90s, 10m or 1h30m; found a "
    "list" },
  { "a share in hundredths",
    "tuning: {min_gain: 2%}\n"
    "profiles: [{match: {}, tuning: {min_gain: 0.500001}}]\n",
    "2:20: error: tuning.min_gain: expected a share like 0.02; found '2%': a share of 1 is all, "
    "0.02 is 2%\n"
    "3:43: error: profiles[0].tuning.min_gain: 0.500001 is out of range: 0 to 0.5" },
  { "a length that is none",
    "tuning:\n"
    "  lengths: [1Ki, 4KB]\n",
    "3:18: error: tuning.lengths: expected a whole number like 4096, 64k or 64Ki; found '4KB': "
    "units are k, M, G, T (1000) and Ki, Mi, Gi, Ti (1024)" },
  { "a length out of range", "tuning: {lengths: [63]}\n",
    "2:20: error: tuning.lengths: 63 is out of range: 64 to 2000000000" },
  { "lengths out of order", "tuning: {lengths: [1Ki, 4Ki, 4096]}\n",
    "2:30: error: tuning.lengths: 4096 after 4096: write the numbers ascending, each once" },
  { "a list in the lengths", "tuning: {lengths: [1Ki, [4Ki]]}\n",
    "2:25: error: tuning.lengths: expected a whole number like 4096, 64k or 64Ki; found a list" },
  { "no length", "tuning: {lengths: []}\n",
    "2:19: error: tuning.lengths: an empty list: give at least one number, or write null" },
  { "one length without brackets", "tuning: {lengths: 4096}\n",
    "2:19: error: tuning.lengths: expected a list of ascending numbers like [4Ki, 16Ki], or null; "
    "found '4096'" },
  { "17 lengths",
    "tuning: {lengths: [64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80]}\n",
    "2:84: error: tuning.lengths: more than 16 numbers, and each is timed for itself: choose "
    "fewer" },
};

static void test_keys(void **state) { RUN("nsa: 1\n", key_cases); }

static void test_values(void **state) { RUN("nsa: 1\n", value_cases); }

static void test_tuning(void **state) { RUN("nsa: 1\n", tuning_cases); }

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_keys),
    cmocka_unit_test(test_values),
    cmocka_unit_test(test_tuning),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

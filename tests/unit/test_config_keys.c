/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What is said about unknown keys and refused values, word by word.
 */
#include "diag_case.h"

static const diag_case key_cases[] = {
  { "other projects' spellings",
    "nsa: 1\n"
    "model:\n"
    "  num_attention_heads: 64\n"
    "  num_key_value_heads: 4\n"
    "  head_size: 128\n"
    "  kernel_size: 32\n"
    "  kernel_stride: 16\n"
    "  block_size: 64\n"
    "  block_counts: 16\n"
    "  window_size: 512\n",
    NSA_E_CONFIG,
    "t.yaml:3:3: error: model.num_attention_heads: unknown key; what others call "
    "'num_attention_heads' is model.heads here\n"
    "      num_attention_heads: 64\n"
    "      ^\n"
    "t.yaml:4:3: error: model.num_key_value_heads: unknown key; what others call "
    "'num_key_value_heads' is model.kv_heads here\n"
    "      num_key_value_heads: 4\n"
    "      ^\n"
    "t.yaml:5:3: error: model.head_size: unknown key; what others call 'head_size' is "
    "model.head_dim here\n"
    "      head_size: 128\n"
    "      ^\n"
    "t.yaml:6:3: error: model.kernel_size: unknown key; what others call 'kernel_size' is "
    "model.compress.block here\n"
    "      kernel_size: 32\n"
    "      ^\n"
    "t.yaml:7:3: error: model.kernel_stride: unknown key; what others call 'kernel_stride' is "
    "model.compress.stride here\n"
    "      kernel_stride: 16\n"
    "      ^\n"
    "t.yaml:8:3: error: model.block_size: unknown key; what others call 'block_size' is "
    "model.select.block here\n"
    "      block_size: 64\n"
    "      ^\n"
    "t.yaml:9:3: error: model.block_counts: unknown key; what others call 'block_counts' is "
    "model.select.count here\n"
    "      block_counts: 16\n"
    "      ^\n"
    "t.yaml:10:3: error: model.window_size: unknown key; what others call 'window_size' is "
    "model.window here\n"
    "      window_size: 512\n"
    "      ^" },
  { "more of them",
    "nsa: 1\n"
    "model:\n"
    "  num_attention_heads: 64\n"
    "  num_kv_heads: 4\n"
    "  qk_head_dim: 192\n"
    "  v_head_dim: 128\n"
    "  compress_block_size: 32\n"
    "  selection_block_size: 64\n"
    "  num_selected_blocks: 16\n"
    "  sliding_window_size: 512\n",
    NSA_E_CONFIG,
    "t.yaml:3:3: error: model.num_attention_heads: unknown key; what others call "
    "'num_attention_heads' is model.heads here\n"
    "      num_attention_heads: 64\n"
    "      ^\n"
    "t.yaml:4:3: error: model.num_kv_heads: unknown key; what others call 'num_kv_heads' is "
    "model.kv_heads here\n"
    "      num_kv_heads: 4\n"
    "      ^\n"
    "t.yaml:5:3: error: model.qk_head_dim: unknown key; what others call 'qk_head_dim' is "
    "model.head_dim_qk here\n"
    "      qk_head_dim: 192\n"
    "      ^\n"
    "t.yaml:6:3: error: model.v_head_dim: unknown key; what others call 'v_head_dim' is "
    "model.head_dim_v here\n"
    "      v_head_dim: 128\n"
    "      ^\n"
    "t.yaml:7:3: error: model.compress_block_size: unknown key; what others call "
    "'compress_block_size' is model.compress.block here\n"
    "      compress_block_size: 32\n"
    "      ^\n"
    "t.yaml:8:3: error: model.selection_block_size: unknown key; what others call "
    "'selection_block_size' is model.select.block here\n"
    "      selection_block_size: 64\n"
    "      ^\n"
    "t.yaml:9:3: error: model.num_selected_blocks: unknown key; what others call "
    "'num_selected_blocks' is model.select.count here\n"
    "      num_selected_blocks: 16\n"
    "      ^\n"
    "t.yaml:10:3: error: model.sliding_window_size: unknown key; what others call "
    "'sliding_window_size' is model.window here\n"
    "      sliding_window_size: 512\n"
    "      ^" },
  { "how others call the tuning",
    "nsa: 1\n"
    "autotune: true\n"
    "tuning: {effort: quick, max_autotune: true, time_budget: 1m, seq_lens: [4096]}\n",
    NSA_E_CONFIG,
    "t.yaml:2:1: error: autotune: unknown key; what others call 'autotune' is tuning.on_first_use "
    "here\n"
    "    autotune: true\n"
    "    ^\n"
    "t.yaml:3:10: error: tuning.effort: unknown key; what others call 'effort' is tuning.level "
    "here\n"
    "    tuning: {effort: quick, max_autotune: true, time_budget: 1m, seq_lens: [4096]}\n"
    "             ^\n"
    "t.yaml:3:25: error: tuning.max_autotune: unknown key; what others call 'max_autotune' is "
    "tuning.level here\n"
    "    tuning: {effort: quick, max_autotune: true, time_budget: 1m, seq_lens: [4096]}\n"
    "                            ^\n"
    "t.yaml:3:45: error: tuning.time_budget: unknown key; what others call 'time_budget' is "
    "tuning.budget here\n"
    "    tuning: {effort: quick, max_autotune: true, time_budget: 1m, seq_lens: [4096]}\n"
    "                                                ^\n"
    "t.yaml:3:62: error: tuning.seq_lens: unknown key; what others call 'seq_lens' is "
    "tuning.lengths here\n"
    "    tuning: {effort: quick, max_autotune: true, time_budget: 1m, seq_lens: [4096]}\n"
    "                                                                 ^" },
  { "near misses",
    "nsa: 1\n"
    "serving: {max_seq: 1}\n"
    "rutime: {jti: never}\n"
    "runtime: {jti: never}\n",
    NSA_E_CONFIG,
    "t.yaml:2:11: error: serving.max_seq: unknown key; did you mean 'max_seqs'?\n"
    "    serving: {max_seq: 1}\n"
    "              ^\n"
    "t.yaml:3:1: error: rutime: unknown key; did you mean 'runtime'?\n"
    "    rutime: {jti: never}\n"
    "    ^\n"
    "t.yaml:4:11: error: runtime.jti: unknown key; did you mean 'jit'?\n"
    "    runtime: {jti: never}\n"
    "              ^" },
  { "right word, wrong section",
    "nsa: 1\n"
    "serving: {window: 512, jit: never}\n",
    NSA_E_CONFIG,
    "t.yaml:2:11: error: serving.window: unknown key here; did you mean model.window?\n"
    "    serving: {window: 512, jit: never}\n"
    "              ^\n"
    "t.yaml:2:24: error: serving.jit: unknown key here; did you mean runtime.jit?\n"
    "    serving: {window: 512, jit: never}\n"
    "                           ^" },
  { "keys of earlier versions",
    "nsa: 1\n"
    "runtime: {deterministic: true}\n"
    "profiles: [{match: {}, runtime: {parity: false}}]\n",
    NSA_E_CONFIG,
    "t.yaml:2:11: error: runtime.deterministic: no longer a key: every variant computes the same "
    "bits in every run; remove the key\n"
    "    runtime: {deterministic: true}\n"
    "              ^\n"
    "t.yaml:3:34: error: profiles[0].runtime.parity: no longer a key: every variant computes "
    "importance in fp32; remove the key\n"
    "    profiles: [{match: {}, runtime: {parity: false}}]\n"
    "                                     ^" },
  { "nothing near",
    "nsa: 1\n"
    "serving: {colour: blue}\n"
    "weather: fine\n",
    NSA_E_CONFIG,
    "t.yaml:2:11: error: serving.colour: unknown key; serving has max_tokens, max_kv_tokens, "
    "max_kv_len, max_seqs, max_q_len, page_size\n"
    "    serving: {colour: blue}\n"
    "              ^\n"
    "t.yaml:3:1: error: weather: unknown key; the configuration has model, serving, runtime, "
    "tuning, variants, thresholds, device, profiles, and x-* for your own\n"
    "    weather: fine\n"
    "    ^" },
  { "what no kernel does",
    "nsa: 1\n"
    "serving: {kv_cache_dtype: fp8, tree_mask: true, tokens_per_block: 64}\n",
    NSA_E_CONFIG,
    "t.yaml:2:11: error: serving.kv_cache_dtype: unknown key; a KV cache has model.dtype: fp8 and "
    "other dtypes are not supported yet\n"
    "    serving: {kv_cache_dtype: fp8, tree_mask: true, tokens_per_block: 64}\n"
    "              ^\n"
    "t.yaml:2:32: error: serving.tree_mask: unknown key; masks other than causal, as of trees of "
    "drafts, are not supported yet\n"
    "    serving: {kv_cache_dtype: fp8, tree_mask: true, tokens_per_block: 64}\n"
    "                                   ^\n"
    "t.yaml:2:49: error: serving.tokens_per_block: unknown key; what others call "
    "'tokens_per_block' is serving.page_size here\n"
    "    serving: {kv_cache_dtype: fp8, tree_mask: true, tokens_per_block: 64}\n"
    "                                                    ^" },
  { "what no kernel does to logits",
    "nsa: 1\n"
    "runtime: {attention_sinks: 4, logits_soft_cap: 30}\n",
    NSA_E_CONFIG,
    "t.yaml:2:11: error: runtime.attention_sinks: unknown key; attention sinks are not supported "
    "yet\n"
    "    runtime: {attention_sinks: 4, logits_soft_cap: 30}\n"
    "              ^\n"
    "t.yaml:2:31: error: runtime.logits_soft_cap: unknown key; soft-capped logits are not "
    "supported yet\n"
    "    runtime: {attention_sinks: 4, logits_soft_cap: 30}\n"
    "                                  ^" },
  { "what no kernel stores",
    "nsa: 1\n"
    "model: {heads: 4, kv_heads: 2, head_dim: 64, dtype: fp8_e4m3}\n",
    NSA_E_CONFIG,
    "t.yaml:2:53: error: model.dtype: expected bf16 | fp16 | f32; found 'fp8_e4m3': fp8 is not "
    "supported yet\n"
    "    model: {heads: 4, kv_heads: 2, head_dim: 64, dtype: fp8_e4m3}\n"
    "                                                        ^" },
  { "what engines say",
    "nsa: 1\n"
    "serving: {block_size: 16, max_seq_len: 4096, num_speculative_tokens: 3}\n"
    "model: {heads: 4, kv_heads: 2, head_dim: 64, block_size: 64}\n",
    NSA_E_CONFIG,
    "t.yaml:2:11: error: serving.block_size: unknown key; what others call 'block_size' is "
    "serving.page_size here\n"
    "    serving: {block_size: 16, max_seq_len: 4096, num_speculative_tokens: 3}\n"
    "              ^\n"
    "t.yaml:2:27: error: serving.max_seq_len: unknown key; what others call 'max_seq_len' is "
    "serving.max_kv_len here\n"
    "    serving: {block_size: 16, max_seq_len: 4096, num_speculative_tokens: 3}\n"
    "                              ^\n"
    "t.yaml:2:46: error: serving.num_speculative_tokens: unknown key; serving.max_q_len has the "
    "drafts of a step and the token before them\n"
    "    serving: {block_size: 16, max_seq_len: 4096, num_speculative_tokens: 3}\n"
    "                                                 ^\n"
    "t.yaml:3:46: error: model.block_size: unknown key; what others call 'block_size' is "
    "model.select.block here\n"
    "    model: {heads: 4, kv_heads: 2, head_dim: 64, block_size: 64}\n"
    "                                                 ^" },
  { "dotted key",
    "nsa: 1\n"
    "runtime.jit: never\n",
    NSA_E_CONFIG,
    "t.yaml:2:1: error: runtime.jit: unknown key; write sections as nested mappings, without dots\n"
    "    runtime.jit: never\n"
    "    ^" },
  { "x- keys are free",
    "nsa: 1\n"
    "x-note: [any, thing]\n"
    "serving: {x-more: {a: 1}}\n",
    NSA_OK, "" },
  { "section that is none",
    "nsa: 1\n"
    "model: 5\n"
    "serving: [1]\n"
    "runtime:\n",
    NSA_E_CONFIG,
    "t.yaml:2:8: error: model: expected a mapping of keys to values\n"
    "    model: 5\n"
    "           ^\n"
    "t.yaml:3:10: error: serving: expected a mapping of keys to values\n"
    "    serving: [1]\n"
    "             ^" },
  { "missing keys",
    "nsa: 1\n"
    "model: {heads: 64}\n",
    NSA_E_CONFIG,
    "t.yaml:2:1: error: model.kv_heads: missing: key and value heads (Hkv); divides heads, at most "
    "64 query heads each, a whole number from 1 to 4096\n"
    "    model: {heads: 64}\n"
    "    ^\n"
    "t.yaml:2:1: error: model.head_dim_qk: missing: width of a query and a key (Dk), or head_dim "
    "for both, a whole number from 16 to 256\n"
    "    model: {heads: 64}\n"
    "    ^\n"
    "t.yaml:2:1: error: model.head_dim_v: missing: width of a value (Dv), or head_dim for both, a "
    "whole number from 16 to 256\n"
    "    model: {heads: 64}\n"
    "    ^" },
  { "both head dims",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, head_dim_v: 64}\n",
    NSA_E_CONFIG,
    "t.yaml:2:33: error: model.head_dim: sets head_dim_qk and head_dim_v, and head_dim_v is given "
    "too, on line 2: give either head_dim, or head_dim_qk and head_dim_v\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, head_dim_v: 64}\n"
    "                                    ^" },
  { "hostile key",
    "nsa: 1\n"
    "\"\\e[31mred\\n\": 1\n",
    NSA_E_CONFIG,
    "t.yaml:2:1: error: ?[31mred?: unknown key; the configuration has model, serving, runtime, "
    "tuning, variants, thresholds, device, profiles, and x-* for your own\n"
    "    \"\\e[31mred\\n\": 1\n"
    "    ^" },
};

static const diag_case value_cases[] = {
  { "booleans",
    "nsa: 1\n"
    "runtime: {count_reads: yes, line_info: 0}\n"
    "tuning: {records: True}\n",
    NSA_E_CONFIG,
    "t.yaml:2:24: error: runtime.count_reads: expected true | false; found 'yes': did you mean "
    "'true'?\n"
    "    runtime: {count_reads: yes, line_info: 0}\n"
    "                           ^\n"
    "t.yaml:2:40: error: runtime.line_info: expected true | false; found '0': did you mean "
    "'false'?\n"
    "    runtime: {count_reads: yes, line_info: 0}\n"
    "                                           ^\n"
    "t.yaml:3:19: error: tuning.records: expected true | false; found 'True': did you mean "
    "'true'?\n"
    "    tuning: {records: True}\n"
    "                      ^" },
  { "words",
    "nsa: 1\n"
    "runtime: {jit: no, cache_mode: readonly, log_level: warning, check_inputs: [full]}\n",
    NSA_E_CONFIG,
    "t.yaml:2:16: error: runtime.jit: expected on_demand | prepare_only | never; found 'no'\n"
    "    runtime: {jit: no, cache_mode: readonly, log_level: warning, check_inputs: [full]}\n"
    "                   ^\n"
    "t.yaml:2:32: error: runtime.cache_mode: expected read_write | read_only | off; found "
    "'readonly': did you mean 'read_only'?\n"
    "    runtime: {jit: no, cache_mode: readonly, log_level: warning, check_inputs: [full]}\n"
    "                                   ^\n"
    "t.yaml:2:53: error: runtime.log_level: expected off | error | warn | info | debug | trace; "
    "found 'warning': did you mean 'warn'?\n"
    "    runtime: {jit: no, cache_mode: readonly, log_level: warning, check_inputs: [full]}\n"
    "                                                        ^\n"
    "t.yaml:2:76: error: runtime.check_inputs: expected off | basic | full; found a list\n"
    "    runtime: {jit: no, cache_mode: readonly, log_level: warning, check_inputs: [full]}\n"
    "                                                                               ^" },
  { "dtype and phi",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, dtype: bfloat16, compress: {phi: avg, "
    "activation: swish}}\n",
    NSA_E_CONFIG,
    "t.yaml:2:55: error: model.dtype: expected bf16 | fp16 | f32; found 'bfloat16': did you mean "
    "'bf16'?\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, dtype: bfloat16, compress: {phi: avg, "
    "activation: swish}}\n"
    "                                                          ^\n"
    "t.yaml:2:81: error: model.compress.phi: expected mean | linear | mlp | external; found 'avg': "
    "did you mean 'mean'?\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, dtype: bfloat16, compress: {phi: avg, "
    "activation: swish}}\n"
    "                                                                                    ^\n"
    "t.yaml:2:98: error: model.compress.activation: expected relu | silu | gelu; found 'swish': "
    "did you mean 'silu'?\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, dtype: bfloat16, compress: {phi: avg, "
    "activation: swish}}\n"
    "                                                                                              "
    "       ^" },
  { "whole numbers",
    "nsa: 1\n"
    "serving:\n"
    "  max_tokens: 017\n"
    "  max_kv_tokens: 65_536\n"
    "  max_kv_len: 64KB\n"
    "  max_seqs: 1.5k\n",
    NSA_E_CONFIG,
    "t.yaml:3:15: error: serving.max_tokens: expected a whole number like 4096, 64k or 64Ki; found "
    "'017': numbers are decimal, without a leading 0\n"
    "      max_tokens: 017\n"
    "                  ^\n"
    "t.yaml:4:18: error: serving.max_kv_tokens: expected a whole number like 4096, 64k or 64Ki; "
    "found '65_536': write the digits without '_' or ','\n"
    "      max_kv_tokens: 65_536\n"
    "                     ^\n"
    "t.yaml:5:15: error: serving.max_kv_len: expected a whole number like 4096, 64k or 64Ki; found "
    "'64KB': units are k, M, G, T (1000) and Ki, Mi, Gi, Ti (1024)\n"
    "      max_kv_len: 64KB\n"
    "                  ^\n"
    "t.yaml:6:13: error: serving.max_seqs: expected a whole number from 0 to 1000000; found "
    "'1.5k': write a whole number with a unit\n"
    "      max_seqs: 1.5k\n"
    "                ^" },
  { "ranges",
    "nsa: 1\n"
    "serving:\n"
    "  max_tokens: -1\n"
    "  max_seqs: 9999999999999999999999\n"
    "device: {hbm_gbps: 1e3, bf16_tflops: 2000000}\n",
    NSA_E_CONFIG,
    "t.yaml:3:15: error: serving.max_tokens: -1 is out of range: 0 to 2000000000\n"
    "      max_tokens: -1\n"
    "                  ^\n"
    "t.yaml:4:13: error: serving.max_seqs: 9999999999999999999999 is out of range: 0 to 1000000\n"
    "      max_seqs: 9999999999999999999999\n"
    "                ^\n"
    "t.yaml:5:20: error: device.hbm_gbps: expected a number like 4280 or 781.5; found '1e3': write "
    "plain digits, at most 6 after the point\n"
    "    device: {hbm_gbps: 1e3, bf16_tflops: 2000000}\n"
    "                       ^\n"
    "t.yaml:5:38: error: device.bf16_tflops: 2000000 is out of range: 0 to 1000000\n"
    "    device: {hbm_gbps: 1e3, bf16_tflops: 2000000}\n"
    "                                         ^" },
  { "nothing there",
    "nsa: 1\n"
    "serving: {max_seqs: }\n"
    "runtime: {jit: , device: null}\n",
    NSA_E_CONFIG,
    "t.yaml:2:21: error: serving.max_seqs: expected a whole number from 0 to 1000000; found "
    "nothing\n"
    "    serving: {max_seqs: }\n"
    "                        ^\n"
    "t.yaml:3:16: error: runtime.jit: expected on_demand | prepare_only | never; found nothing\n"
    "    runtime: {jit: , device: null}\n"
    "                   ^\n"
    "t.yaml:3:26: error: runtime.device: expected auto, cpu, an ordinal, a PCI bus id "
    "(0000:3b:00.0) or a UUID (GPU-...); found 'null'\n"
    "    runtime: {jit: , device: null}\n"
    "                             ^" },
  { "dims",
    "nsa: 1\n"
    "model: {heads: 4, kv_heads: 4, head_dim_qk: 100, head_dim_v: 264}\n",
    NSA_E_CONFIG,
    "t.yaml:2:45: error: model.head_dim_qk: 100 is not a multiple of 8: use 96 or 104\n"
    "    model: {heads: 4, kv_heads: 4, head_dim_qk: 100, head_dim_v: 264}\n"
    "                                                ^\n"
    "t.yaml:2:62: error: model.head_dim_v: 264 is out of range: 16 to 256\n"
    "    model: {heads: 4, kv_heads: 4, head_dim_qk: 100, head_dim_v: 264}\n"
    "                                                                 ^" },
  { "sizes",
    "nsa: 1\n"
    "runtime: {cache_limit: 1GB}\n"
    "device: {l2: 1.5Mi, smem_per_block: 2Mi}\n",
    NSA_E_CONFIG,
    "t.yaml:2:24: error: runtime.cache_limit: expected a size in bytes like 512Mi or 1Gi; found "
    "'1GB': units are k, M, G, T (1000) and Ki, Mi, Gi, Ti (1024)\n"
    "    runtime: {cache_limit: 1GB}\n"
    "                           ^\n"
    "t.yaml:3:14: error: device.l2: expected a size in bytes like 512Mi or 1Gi; found '1.5Mi': "
    "write a whole number with a unit\n"
    "    device: {l2: 1.5Mi, smem_per_block: 2Mi}\n"
    "                 ^\n"
    "t.yaml:3:37: error: device.smem_per_block: 2Mi is out of range: 0 to 1048576\n"
    "    device: {l2: 1.5Mi, smem_per_block: 2Mi}\n"
    "                                        ^" },
  { "paths",
    "nsa: 1\n"
    "runtime: {cache_dir: ~/nsa, nvrtc_path: libnvrtc.so, dump_dir: {}}\n",
    NSA_E_CONFIG,
    "t.yaml:2:22: error: runtime.cache_dir: expected an absolute path, or null; found '~/nsa': '~' "
    "is not expanded, write the home folder out\n"
    "    runtime: {cache_dir: ~/nsa, nvrtc_path: libnvrtc.so, dump_dir: {}}\n"
    "                         ^\n"
    "t.yaml:2:41: error: runtime.nvrtc_path: expected an absolute path, or null; found "
    "'libnvrtc.so', which would depend on the working directory\n"
    "    runtime: {cache_dir: ~/nsa, nvrtc_path: libnvrtc.so, dump_dir: {}}\n"
    "                                            ^\n"
    "t.yaml:2:64: error: runtime.dump_dir: expected an absolute path, or null; found a mapping\n"
    "    runtime: {cache_dir: ~/nsa, nvrtc_path: libnvrtc.so, dump_dir: {}}\n"
    "                                                                   ^" },
  { "devices",
    "nsa: 1\n"
    "runtime: {device: gpu0}\n",
    NSA_E_CONFIG,
    "t.yaml:2:19: error: runtime.device: expected auto, cpu, an ordinal, a PCI bus id "
    "(0000:3b:00.0) or a UUID (GPU-...); found 'gpu0'\n"
    "    runtime: {device: gpu0}\n"
    "                      ^" },
  { "variants",
    "nsa: 1\n"
    "variants:\n"
    "  force: {attend_slected: a, dense: No!}\n"
    "  disable: [attend_selected, nostage.x]\n",
    NSA_E_CONFIG,
    "t.yaml:3:11: error: variants.force.attend_slected: unknown key; did you mean "
    "'attend_selected'?\n"
    "      force: {attend_slected: a, dense: No!}\n"
    "              ^\n"
    "t.yaml:3:37: error: variants.force.dense: expected a variant's name, or null; found 'No!'\n"
    "      force: {attend_slected: a, dense: No!}\n"
    "                                        ^\n"
    "t.yaml:4:13: error: variants.disable: expected a list of globs like "
    "[dense.*_gemm]; found 'attend_selected': write stage.variant; stages are gate, "
    "compress, attend_compressed, importance, select, attend_selected, attend_window, dense, "
    "append, decode, "
    "backward_q, backward_kv\n"
    "      disable: [attend_selected, nostage.x]\n"
    "                ^" },
  { "disable is a list",
    "nsa: 1\n"
    "variants: {disable: dense.x}\n",
    NSA_E_CONFIG,
    "t.yaml:2:21: error: variants.disable: expected a list of globs like "
    "[dense.*_gemm]; found 'dense.x'\n"
    "    variants: {disable: dense.x}\n"
    "                        ^" },
  { "thresholds",
    "nsa: 1\n"
    "thresholds: {select_dense_below: Auto}\n",
    NSA_E_CONFIG,
    "t.yaml:2:34: error: thresholds.select_dense_below: expected a whole number like 4096, 64k or "
    "64Ki | auto; found 'Auto': did you mean 'auto'?\n"
    "    thresholds: {select_dense_below: Auto}\n"
    "                                     ^" },
};

static const diag_case tuning_cases[] = {
  { "words",
    "nsa: 1\n"
    "tuning: {level: patient, inputs: all, on_first_use: exhaustive, records: no}\n",
    NSA_E_CONFIG,
    "t.yaml:2:17: error: tuning.level: expected heuristic | quick | normal | exhaustive; found "
    "'patient': did you mean 'normal'?\n"
    "    tuning: {level: patient, inputs: all, on_first_use: exhaustive, records: no}\n"
    "                    ^\n"
    "t.yaml:2:34: error: tuning.inputs: expected random | correlated | both; found 'all': did you "
    "mean 'both'?\n"
    "    tuning: {level: patient, inputs: all, on_first_use: exhaustive, records: no}\n"
    "                                     ^\n"
    "t.yaml:2:53: error: tuning.on_first_use: expected off | quick | normal; found 'exhaustive'\n"
    "    tuning: {level: patient, inputs: all, on_first_use: exhaustive, records: no}\n"
    "                                                        ^\n"
    "t.yaml:2:74: error: tuning.records: expected true | false; found 'no': did you mean 'false'?\n"
    "    tuning: {level: patient, inputs: all, on_first_use: exhaustive, records: no}\n"
    "                                                                             ^" },
  { "unknown keys",
    "nsa: 1\n"
    "tuning: {levle: quick, colour: blue}\n",
    NSA_E_CONFIG,
    "t.yaml:2:10: error: tuning.levle: unknown key; did you mean 'level'?\n"
    "    tuning: {levle: quick, colour: blue}\n"
    "             ^\n"
    "t.yaml:2:24: error: tuning.colour: unknown key; tuning has level, budget, min_gain, inputs, "
    "lengths, batches, on_first_use, first_use_budget, records\n"
    "    tuning: {levle: quick, colour: blue}\n"
    "                           ^" },
  { "durations",
    "nsa: 1\n"
    "tuning: {budget: 90, first_use_budget: 30m1h}\n",
    NSA_E_CONFIG,
    "t.yaml:2:18: error: tuning.budget: expected a duration like 90s, 10m or 1h30m; found '90': "
    "give each number its unit, h, m, s or ms, like 90s\n"
    "    tuning: {budget: 90, first_use_budget: 30m1h}\n"
    "                     ^\n"
    "t.yaml:2:40: error: tuning.first_use_budget: expected a duration like 90s, 10m or 1h30m; "
    "found '30m1h': units go from the largest to the smallest, each once\n"
    "    tuning: {budget: 90, first_use_budget: 30m1h}\n"
    "                                           ^" },
  { "durations out of range",
    "nsa: 1\n"
    "tuning: {budget: 24h1ms, first_use_budget: 0.999s}\n",
    NSA_E_CONFIG,
    "t.yaml:2:18: error: tuning.budget: 24h1ms is out of range: 1s to 24h\n"
    "    tuning: {budget: 24h1ms, first_use_budget: 0.999s}\n"
    "                     ^\n"
    "t.yaml:2:44: error: tuning.first_use_budget: 0.999s is out of range: 1s to 10m\n"
    "    tuning: {budget: 24h1ms, first_use_budget: 0.999s}\n"
    "                                               ^" },
  { "durations that are none",
    "nsa: 1\n"
    "tuning: {budget: , first_use_budget: [20s]}\n",
    NSA_E_CONFIG,
    "t.yaml:2:18: error: tuning.budget: expected a duration like 90s, 10m or 1h30m; found "
    "nothing\n"
    "    tuning: {budget: , first_use_budget: [20s]}\n"
    "                     ^\n"
    "t.yaml:2:38: error: tuning.first_use_budget: expected a duration like 90s, 10m or 1h30m; "
    "found a list\n"
    "    tuning: {budget: , first_use_budget: [20s]}\n"
    "                                         ^" },
  { "a share in hundredths",
    "nsa: 1\n"
    "tuning: {min_gain: 2%}\n"
    "profiles: [{match: {}, tuning: {min_gain: 0.500001}}]\n",
    NSA_E_CONFIG,
    "t.yaml:2:20: error: tuning.min_gain: expected a share like 0.02; found '2%': a share of 1 is "
    "all, 0.02 is 2%\n"
    "    tuning: {min_gain: 2%}\n"
    "                       ^\n"
    "t.yaml:3:43: error: profiles[0].tuning.min_gain: 0.500001 is out of range: 0 to 0.5\n"
    "    profiles: [{match: {}, tuning: {min_gain: 0.500001}}]\n"
    "                                              ^" },
  { "a length that is none",
    "nsa: 1\n"
    "tuning:\n"
    "  lengths: [1Ki, 4KB]\n",
    NSA_E_CONFIG,
    "t.yaml:3:18: error: tuning.lengths: expected a whole number like 4096, 64k or 64Ki; found "
    "'4KB': units are k, M, G, T (1000) and Ki, Mi, Gi, Ti (1024)\n"
    "      lengths: [1Ki, 4KB]\n"
    "                     ^" },
  { "a length out of range",
    "nsa: 1\n"
    "tuning: {lengths: [63]}\n",
    NSA_E_CONFIG,
    "t.yaml:2:20: error: tuning.lengths: 63 is out of range: 64 to 2000000000\n"
    "    tuning: {lengths: [63]}\n"
    "                       ^" },
  { "lengths out of order",
    "nsa: 1\n"
    "tuning: {lengths: [1Ki, 4Ki, 4096]}\n",
    NSA_E_CONFIG,
    "t.yaml:2:30: error: tuning.lengths: 4096 after 4096: write the numbers ascending, each once\n"
    "    tuning: {lengths: [1Ki, 4Ki, 4096]}\n"
    "                                 ^" },
  { "a list in the lengths",
    "nsa: 1\n"
    "tuning: {lengths: [1Ki, [4Ki]]}\n",
    NSA_E_CONFIG,
    "t.yaml:2:25: error: tuning.lengths: expected a whole number like 4096, 64k or 64Ki; found a "
    "list\n"
    "    tuning: {lengths: [1Ki, [4Ki]]}\n"
    "                            ^" },
  { "no length",
    "nsa: 1\n"
    "tuning: {lengths: []}\n",
    NSA_E_CONFIG,
    "t.yaml:2:19: error: tuning.lengths: an empty list: give at least one number, or write null\n"
    "    tuning: {lengths: []}\n"
    "                      ^" },
  { "one length without brackets",
    "nsa: 1\n"
    "tuning: {lengths: 4096}\n",
    NSA_E_CONFIG,
    "t.yaml:2:19: error: tuning.lengths: expected a list of ascending numbers like [4Ki, 16Ki], or "
    "null; found '4096'\n"
    "    tuning: {lengths: 4096}\n"
    "                      ^" },
  { "17 lengths",
    "nsa: 1\n"
    "tuning: {lengths: [64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80]}\n",
    NSA_E_CONFIG,
    "t.yaml:2:84: error: tuning.lengths: more than 16 numbers, and each is timed for itself: "
    "choose fewer\n"
    "    tuning: {lengths: [64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80]}\n"
    "                                                                                       ^" },
};

static void test_keys(void **state) { RUN(key_cases); }

static void test_values(void **state) { RUN(value_cases); }

static void test_tuning(void **state) { RUN(tuning_cases); }

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_keys),
    cmocka_unit_test(test_values),
    cmocka_unit_test(test_tuning),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

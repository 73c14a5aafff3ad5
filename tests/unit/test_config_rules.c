/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What is said about rules between keys and about profiles, word by word.
 */
#include "diag_case.h"

static const diag_case rule_cases[] = {
  { "d | l and d | l'",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {stride: 12}}\n",
    NSA_E_CONFIG,
    "t.yaml:2:67: error: model.compress.stride: 12 does not divide the block: model.compress.block "
    "is 32 (built-in); use a stride that divides it, so that blocks begin and end on strides\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {stride: 12}}\n"
    "                                                                      ^\n"
    "t.yaml:2:67: error: model.compress.stride: 12 does not divide the selected block: "
    "model.select.block is 64 (built-in); use a stride that divides both blocks\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {stride: 12}}\n"
    "                                                                      ^" },
  { "l <= l'",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {block: 16}}\n",
    NSA_E_CONFIG,
    "t.yaml:2:64: error: model.select.block: 16 is less than the compressed block: "
    "model.compress.block is 32 (built-in); a selected block holds at least one compressed block: "
    "raise select.block or lower compress.block\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, select: {block: 16}}\n"
    "                                                                   ^" },
  { "forced blocks",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {count: 4, init: 2, local: 3}}\n",
    NSA_E_CONFIG,
    "t.yaml:2:64: error: model.select.count: 4 is less than the 5 forced blocks (init 2 + local "
    "3): model.select.local is 3 (t.yaml:2); count includes the forced blocks: raise count, or "
    "force fewer\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, select: {count: 4, init: 2, local: 3}}\n"
    "                                                                   ^" },
  { "nothing is forced without the branch",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {count: 0}}\n",
    NSA_OK, "" },
  { "Hkv | Hq",
    "nsa: 1\n"
    "model: {heads: 10, kv_heads: 4, head_dim: 64}\n",
    NSA_E_CONFIG,
    "t.yaml:2:30: error: model.kv_heads: 4 does not divide the query heads: model.heads is 10 "
    "(t.yaml:2); every KV head must serve the same number of query heads\n"
    "    model: {heads: 10, kv_heads: 4, head_dim: 64}\n"
    "                                 ^" },
  { "group too large",
    "nsa: 1\n"
    "model: {heads: 65, kv_heads: 1, head_dim: 64}\n",
    NSA_E_CONFIG,
    "t.yaml:2:30: error: model.kv_heads: 1 makes groups of 65 query heads, and kernels exist up to "
    "64: model.heads is 65 (t.yaml:2); use more KV heads\n"
    "    model: {heads: 65, kv_heads: 1, head_dim: 64}\n"
    "                                 ^" },
  { "n too large",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {count: 257}}\n",
    NSA_E_CONFIG,
    "t.yaml:2:64: error: model.select.count: 257 is out of range: 0 to 256\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, select: {count: 257}}\n"
    "                                                                   ^" },
  { "phi mlp without width",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {phi: mlp}}\n",
    NSA_E_CONFIG,
    "t.yaml:2:64: error: model.compress.hidden: 0 is no width: model.compress.phi is mlp "
    "(t.yaml:2); mlp needs one: give it, as the weights have it\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {phi: mlp}}\n"
    "                                                                   ^" },
  { "width without phi mlp",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {hidden: 256}}\n",
    NSA_E_CONFIG,
    "t.yaml:2:67: error: model.compress.hidden: 256 would be ignored: model.compress.phi is mean "
    "(built-in); remove the width, or choose mlp\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {hidden: 256}}\n"
    "                                                                      ^" },
  { "gate mlp without channels",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, gate: mlp}\n",
    NSA_E_CONFIG,
    "t.yaml:2:54: error: model.gate_mlp.channels: 0 is no width: model.gate is mlp (t.yaml:2); mlp "
    "needs one: give it, as the weights have it\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, gate: mlp}\n"
    "                                                         ^" },
  { "gate widths without gate mlp",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, gate_mlp: {channels: 8, hidden: 9}}\n",
    NSA_E_CONFIG,
    "t.yaml:2:69: error: model.gate_mlp.channels: 8 would be ignored: model.gate is logits "
    "(built-in); remove the width, or choose mlp\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, gate_mlp: {channels: 8, hidden: 9}}\n"
    "                                                                        ^\n"
    "t.yaml:2:80: error: model.gate_mlp.hidden: 9 would be ignored: model.gate is logits "
    "(built-in); remove the width, or choose mlp\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, gate_mlp: {channels: 8, hidden: 9}}\n"
    "                                                                                   ^" },
  { "not causal",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, causal: false}\n",
    NSA_E_CONFIG,
    "t.yaml:2:56: error: model.causal: false is not possible: NSA selects for each query among the "
    "blocks before it, so only causal attention is defined; remove the key or set it to true\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, causal: false}\n"
    "                                                           ^" },
  { "f32 on a GPU",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, dtype: f32}\n",
    NSA_E_CONFIG,
    "t.yaml:2:55: error: model.dtype: f32 is computed on the CPU device only: runtime.device is "
    "\"auto\" (built-in); use bf16 or fp16, or set runtime.device to cpu\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, dtype: f32}\n"
    "                                                          ^" },
  { "f32 on the CPU device",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, dtype: f32}\n"
    "runtime: {device: cpu}\n",
    NSA_OK, "" },
  { "one sequence beyond all",
    "nsa: 1\n"
    "serving: {max_kv_len: 2k, max_kv_tokens: 1k}\n",
    NSA_E_CONFIG,
    "t.yaml:2:23: error: serving.max_kv_len: 2000 is more than all sequences have together: "
    "serving.max_kv_tokens is 1000 (t.yaml:2); lower max_kv_len, or raise max_kv_tokens to at "
    "least as much\n"
    "    serving: {max_kv_len: 2k, max_kv_tokens: 1k}\n"
    "                          ^" },
  { "no size of pages",
    "nsa: 1\n"
    "serving: {page_size: 48}\n",
    NSA_E_CONFIG,
    "t.yaml:2:22: error: serving.page_size: 48 tokens: pages have 16, 32, 64 or 128; 0: no pages\n"
    "    serving: {page_size: 48}\n"
    "                         ^" },
  { "strides across pages",
    "nsa: 1\n"
    "model: {heads: 8, kv_heads: 2, head_dim: 64, compress: {block: 32, stride: 32}}\n"
    "serving: {page_size: 16}\n",
    NSA_E_CONFIG,
    "t.yaml:3:22: error: serving.page_size: 16 is no multiple of the stride: model.compress.stride "
    "is 32 (t.yaml:2); use larger pages, or a stride that divides them\n"
    "    serving: {page_size: 16}\n"
    "                         ^" },
  { "no such variant",
    "nsa: 1\n"
    "variants:\n"
    "  force: {dense: dens_sm80, select: quantum}\n"
    "  disable: [dense.dense_gemm, 'dense.quantum_*']\n"
    "profiles:\n"
    "  - match: {arch: sm_80}\n"
    "    variants: {force: {importance: x}, disable: ['*.y']}\n",
    NSA_E_CONFIG,
    "t.yaml:3:18: error: variants.force.dense: no variant 'dens_sm80'; did you mean 'dense_sm80'? "
    "stage dense has dense_sm90, dense_sm80, dense_gemm\n"
    "      force: {dense: dens_sm80, select: quantum}\n"
    "                     ^\n"
    "t.yaml:3:37: error: variants.force.select: no variant 'quantum'; stage select has "
    "select_topn_cta, select_topn\n"
    "      force: {dense: dens_sm80, select: quantum}\n"
    "                                        ^\n"
    "t.yaml:4:31: error: variants.disable: 'dense.quantum_*' matches no variant; `nsa-autotune "
    "show` "
    "lists them\n"
    "      disable: [dense.dense_gemm, 'dense.quantum_*']\n"
    "                                  ^\n"
    "t.yaml:7:36: error: variants.force.importance: no variant 'x'; stage importance has "
    "importance_sm80\n"
    "        variants: {force: {importance: x}, disable: ['*.y']}\n"
    "                                       ^\n"
    "t.yaml:7:50: error: variants.disable: '*.y' matches no variant; `nsa-autotune show` lists "
    "them\n"
    "        variants: {force: {importance: x}, disable: ['*.y']}\n"
    "                                                     ^" },
  { "forced and disabled",
    "nsa: 1\n"
    "variants: {force: {dense: dense_sm80}, disable: ['d*.de*']}\n",
    NSA_E_CONFIG,
    "t.yaml:2:27: error: variants.force.dense: \"dense_sm80\" is forced and disabled at once: "
    "variants.disable is [\"d*.de*\"] (t.yaml:2); remove one of the two entries\n"
    "    variants: {force: {dense: dense_sm80}, disable: ['d*.de*']}\n"
    "                              ^" },
  { "a threshold that would not be exact",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {count: 8}}\n"
    "thresholds: {select_dense_below: 4Ki}\n",
    NSA_OK,
    "t.yaml:3:34: warning: thresholds.select_dense_below: 4096 is lowered to 512, "
    "model.select.count * model.select.block (8 * 64): beyond that many tokens dense attention is "
    "not the same; write auto\n"
    "    thresholds: {select_dense_below: 4Ki}\n"
    "                                     ^" },
  { "MIG instances",
    "nsa: 1\n"
    "runtime: {device: MIG-1234-5678}\n"
    "profiles:\n"
    "  - match: {uuid: MIG-1234}\n",
    NSA_E_CONFIG,
    "t.yaml:2:19: error: runtime.device: expected auto, cpu, an ordinal, a PCI bus id "
    "(0000:3b:00.0) or a UUID (GPU-...); found 'MIG-1234-5678': choose a MIG instance by "
    "CUDA_VISIBLE_DEVICES, and write auto here\n"
    "    runtime: {device: MIG-1234-5678}\n"
    "                      ^\n"
    "t.yaml:4:19: error: profiles[0].match.uuid: a MIG instance is not told from its GPU: match "
    "the GPU's own UUID, GPU-..., or use match.name\n"
    "      - match: {uuid: MIG-1234}\n"
    "                      ^" },
  { "a figure without a source",
    "nsa: 1\n"
    "device: {sms: 132}\n",
    NSA_OK,
    "t.yaml:2:15: warning: device.sms: a figure without a source: say in device.source where it "
    "comes from\n"
    "    device: {sms: 132}\n"
    "                  ^" },
  { "refused values silence the rules",
    "nsa: 1\n"
    "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {block: no}, compress: {stride: 13, "
    "block: x}}\n",
    NSA_E_CONFIG,
    "t.yaml:2:64: error: model.select.block: expected a whole number from 1 to 4096; found 'no'\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, select: {block: no}, compress: {stride: "
    "13, block: x}}\n"
    "                                                                   ^\n"
    "t.yaml:2:99: error: model.compress.block: expected a whole number from 1 to 4096; found 'x'\n"
    "    model: {heads: 64, kv_heads: 4, head_dim: 128, select: {block: no}, compress: {stride: "
    "13, block: x}}\n"
    "                                                                                              "
    "        ^" },
};

static const diag_case profile_cases[] = {
  { "not a list",
    "nsa: 1\n"
    "profiles: {match: {arch: sm_90}}\n",
    NSA_E_CONFIG,
    "t.yaml:2:11: error: profiles: expected a list: each item begins with '- match:'\n"
    "    profiles: {match: {arch: sm_90}}\n"
    "              ^" },
  { "item that is none",
    "nsa: 1\n"
    "profiles: [h200]\n",
    NSA_E_CONFIG,
    "t.yaml:2:12: error: profiles[0].match: expected a mapping that begins with 'match:'\n"
    "    profiles: [h200]\n"
    "               ^" },
  { "no match",
    "nsa: 1\n"
    "profiles:\n"
    "  - runtime: {jit: never}\n",
    NSA_E_CONFIG,
    "t.yaml:3:5: error: profiles[0].match: a profile needs match: {arch: ..., name: ..., uuid: "
    "...}, at least one of them, or match: {} for every device\n"
    "      - runtime: {jit: never}\n"
    "        ^" },
  { "criteria",
    "nsa: 1\n"
    "profiles:\n"
    "  - match: {arch: hopper, name: [a], uuid: 3, sm: 90}\n",
    NSA_E_CONFIG,
    "t.yaml:3:19: error: profiles[0].match.arch: expected an architecture like sm_90 or sm_90a\n"
    "      - match: {arch: hopper, name: [a], uuid: 3, sm: 90}\n"
    "                      ^\n"
    "t.yaml:3:33: error: profiles[0].match.name: expected one word; a profile for several devices "
    "is repeated\n"
    "      - match: {arch: hopper, name: [a], uuid: 3, sm: 90}\n"
    "                                    ^\n"
    "t.yaml:3:44: error: profiles[0].match.uuid: expected a UUID as nvidia-smi -L prints it, "
    "GPU-...\n"
    "      - match: {arch: hopper, name: [a], uuid: 3, sm: 90}\n"
    "                                               ^\n"
    "t.yaml:3:47: error: profiles[0].match.sm: unknown key; match has arch, name, uuid\n"
    "      - match: {arch: hopper, name: [a], uuid: 3, sm: 90}\n"
    "                                                  ^" },
  { "sections that cannot stand there",
    "nsa: 1\n"
    "profiles:\n"
    "  - match: {arch: sm_90}\n"
    "    model: {heads: 4}\n"
    "    profiles: []\n"
    "    weather: {}\n",
    NSA_E_CONFIG,
    "t.yaml:4:5: error: profiles[0].model: a profile cannot change the model: it belongs to the "
    "weights, not to the device\n"
    "        model: {heads: 4}\n"
    "        ^\n"
    "t.yaml:5:5: error: profiles[0].profiles: cannot stand in a profile: move it to the top of the "
    "file\n"
    "        profiles: []\n"
    "        ^\n"
    "t.yaml:6:5: error: profiles[0].weather: unknown key; the configuration has model, serving, "
    "runtime, tuning, variants, thresholds, device, profiles, and x-* for your own\n"
    "        weather: {}\n"
    "        ^" },
  { "the device cannot find itself",
    "nsa: 1\n"
    "profiles:\n"
    "  - match: {arch: sm_90}\n"
    "    runtime: {device: 1, jit: nevr}\n",
    NSA_E_CONFIG,
    "t.yaml:4:23: error: profiles[0].runtime.device: a profile is found by the device, so it "
    "cannot say how to find the device: move the key to the file's own runtime section\n"
    "        runtime: {device: 1, jit: nevr}\n"
    "                          ^\n"
    "t.yaml:4:31: error: profiles[0].runtime.jit: expected on_demand | prepare_only | never; found "
    "'nevr': did you mean 'never'?\n"
    "        runtime: {device: 1, jit: nevr}\n"
    "                                  ^" },
  { "unreachable",
    "nsa: 1\n"
    "profiles:\n"
    "  - match: {}\n"
    "  - match: {arch: sm_80}\n",
    NSA_OK,
    "t.yaml:3:5: warning: profiles: this profile matches every device, so those after it are never "
    "used: move it to the end\n"
    "      - match: {}\n"
    "        ^" },
};

static void test_rules(void **state) { RUN(rule_cases); }

static void test_profiles(void **state) { RUN(profile_cases); }

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_rules),
    cmocka_unit_test(test_profiles),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The diagnostics of rules between keys and of profiles, word by word. Line 1 is "nsa: 1".
 */
#include "diag_case.h"

static const diag_case rule_cases[] = {
  { "d | l and d | l'", "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {stride: 12}}\n",
    "2:67: error: model.compress.stride: 12 does not divide the block: model.compress.block is 32 "
    "(built-in); use a stride that divides it, so that blocks begin and end on strides\n"
    "2:67: error: model.compress.stride: 12 does not divide the selected block: "
    "model.select.block is 64 (built-in); use a stride that divides both blocks" },
  { "l <= l'", "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {block: 16}}\n",
    "2:64: error: model.select.block: 16 is less than the compressed block: model.compress.block "
    "is 32 (built-in); a selected block holds at least one compressed block: raise select.block "
    "or lower compress.block" },
  { "forced blocks",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {count: 4, init: 2, local: 3}}\n",
    "2:64: error: model.select.count: 4 is less than the 5 forced blocks (init 2 + local 3): "
    "model.select.local is 3 (t.yaml:2); count includes the forced blocks: raise count, or force "
    "fewer" },
  { "nothing is forced without the branch",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {count: 0}}\n", "" },
  { "Hkv | Hq", "model: {heads: 10, kv_heads: 4, head_dim: 64}\n",
    "2:30: error: model.kv_heads: 4 does not divide the query heads: model.heads is 10 "
    "(t.yaml:2); every KV head must serve the same number of query heads" },
  { "group too large", "model: {heads: 65, kv_heads: 1, head_dim: 64}\n",
    "2:30: error: model.kv_heads: 1 makes groups of 65 query heads, and kernels exist up to 64: "
    "model.heads is 65 (t.yaml:2); use more KV heads" },
  { "n too large", "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {count: 257}}\n",
    "2:64: error: model.select.count: 257 is out of range: 0 to 256" },
  { "phi mlp without width",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {phi: mlp}}\n",
    "2:64: error: model.compress.hidden: 0 is no width: model.compress.phi is mlp (t.yaml:2); mlp "
    "needs one: give it, as the weights have it" },
  { "width without phi mlp",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {hidden: 256}}\n",
    "2:67: error: model.compress.hidden: 256 would be ignored: model.compress.phi is mean "
    "(built-in); remove the width, or choose mlp" },
  { "gate mlp without channels", "model: {heads: 64, kv_heads: 4, head_dim: 128, gate: mlp}\n",
    "2:54: error: model.gate_mlp.channels: 0 is no width: model.gate is mlp (t.yaml:2); mlp needs "
    "one: give it, as the weights have it" },
  { "gate widths without gate mlp",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, gate_mlp: {channels: 8, hidden: 9}}\n",
    "2:69: error: model.gate_mlp.channels: 8 would be ignored: model.gate is logits (built-in); "
    "remove the width, or choose mlp\n"
    "2:80: error: model.gate_mlp.hidden: 9 would be ignored: model.gate is logits (built-in); "
    "remove the width, or choose mlp" },
  { "an index",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: none,\n"
    "  select: {by: index, pool: max}, index: {heads: 4, dim: 128}}\n",
    "" },
  { "an index, as phi none",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {phi: none},\n"
    "  select: {by: index, pool: max}, index: {heads: 4, dim: 128}}\n",
    "" },
  { "pages and selected blocks of an index have no strides",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: none,\n"
    "  select: {by: index, pool: max, block: 24}, index: {heads: 4, dim: 16}}\n"
    "serving: {page_size: 16}\n",
    "" },
  { "an index of other heads",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: none,\n"
    "  select: {by: index, pool: max}, index: {heads: 2, dim: 8}}\n",
    "3:50: error: model.index.heads: 2 is not the number of KV heads: model.kv_heads is 4 "
    "(t.yaml:2); each index head chooses the blocks of one KV head: give as many\n"
    "3:58: error: model.index.dim: 8 is too narrow: model.select.by is index (t.yaml:3); an index "
    "has a width of 16 to 256" },
  { "an index without sizes, pool, and beside compressed keys",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {by: index}}\n",
    "2:61: error: model.index.heads: 0 is missing: model.select.by is index (t.yaml:2); "
    "each index head chooses the blocks of one KV head: give as many\n"
    "2:61: error: model.index.dim: 0 is missing: model.select.by is index (t.yaml:2); an index has "
    "a width of 16 to 256\n"
    "2:61: error: model.select.pool: sum of index scores is not defined: model.select.by is index "
    "(t.yaml:2); a block ranks by its greatest score: set select.pool to max\n"
    "2:61: error: model.compress.phi: mean is not possible beside an index: model.select.by is "
    "index (t.yaml:2); there is no compressed branch: write compress: none" },
  { "an index without a selection",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: none,\n"
    "  select: {by: index, pool: max, count: 0}, index: {heads: 4, dim: 128}}\n",
    "3:16: error: model.select.by: index chooses for a selection that the model does not have: "
    "model.select.count is 0 (t.yaml:3); raise count, or remove the key" },
  { "nothing that chooses", "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: none}\n",
    "2:58: error: model.compress.phi: none leaves nothing that chooses blocks: model.select.by is "
    "compressed (built-in); set select.by to index, or use another phi" },
  { "sizes of no index", "model: {heads: 64, kv_heads: 4, head_dim: 128, index: {dim: 128}}\n",
    "2:61: error: model.index.dim: 128 would be ignored: model.select.by is compressed (built-in); "
    "remove it, or set select.by to index" },
  { "compressed keys that do not exist",
    "model: {heads: 64, kv_heads: 4, head_dim: 128,\n"
    "  compress: {phi: none, block: 32, stride: 16, output: true, activation: gelu},\n"
    "  select: {by: index, pool: max, normalizer: {block: 64, stride: 32}},\n"
    "  index: {heads: 4, dim: 128}}\n",
    "3:32: error: model.compress.block: 32 would be ignored: model.compress.phi is none "
    "(t.yaml:3); remove it: there are no compressed keys\n"
    "3:44: error: model.compress.stride: 16 would be ignored: model.compress.phi is none "
    "(t.yaml:3); remove it: there are no compressed keys\n"
    "3:56: error: model.compress.output: true would be ignored: model.compress.phi is none "
    "(t.yaml:3); remove it: there are no compressed keys\n"
    "3:74: error: model.compress.activation: gelu would be ignored: model.compress.phi is none "
    "(t.yaml:3); remove it: there are no compressed keys\n"
    "4:54: error: model.select.normalizer.block: 64 would be ignored: model.compress.phi is none "
    "(t.yaml:3); remove it: there are no compressed keys" },
  { "index keys in e4m3 of an odd dim",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: none,\n"
    "  select: {by: index, pool: max}, index: {heads: 4, dim: 24}}\nserving: {cmp_dtype: e4m3}\n",
    "4:22: error: serving.cmp_dtype: e4m3 needs an index dim that is a multiple of 16: "
    "model.index.dim is 24 "
    "(t.yaml:3); leave it out, or change the index dim" },
  { "compress is a mapping, or none",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: mean}\n",
    "2:58: error: model.compress: expected a mapping of keys to values, or none" },
  { "no compressed output, with three pairs",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {output: false}}\n",
    "2:67: error: model.compress.output: false leaves the first pair's values unread: "
    "model.kv_sharing is per_branch (built-in); use kv_sharing: shared, or remove the key" },
  { "no compressed output, without a selection",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {output: false}, "
    "kv_sharing: shared,\n  select: {count: 0}}\n",
    "2:67: error: model.compress.output: false leaves compressed keys to a selection that the "
    "model does not have: model.select.count is 0 (t.yaml:3); raise count, or remove the key" },
  { "no compressed output",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {output: false}, "
    "kv_sharing: shared}\n",
    "" },
  { "coarse keys without a stride",
    "model: {heads: 64, kv_heads: 4, head_dim: 128,\n  select: {normalizer: {block: 128}}}\n",
    "3:32: error: model.select.normalizer.block: 128 needs a stride: "
    "model.select.normalizer.stride is 0 (built-in); give it, or remove the normaliser" },
  { "a stride without coarse keys",
    "model: {heads: 64, kv_heads: 4, head_dim: 128,\n  select: {normalizer: {stride: 64}}}\n",
    "3:33: error: model.select.normalizer.stride: 64 would be ignored: "
    "model.select.normalizer.block is 0 (built-in); give the block, or remove the normaliser" },
  { "coarse keys between strides",
    "model: {heads: 64, kv_heads: 4, head_dim: 128,\n"
    "  select: {normalizer: {block: 128, stride: 48}}}\n",
    "3:45: error: model.select.normalizer.stride: 48 does not divide the block: "
    "model.select.normalizer.block is 128 (t.yaml:3); use a stride that divides it, so that blocks "
    "begin and end on strides" },
  { "coarse keys of external keys",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, compress: {phi: external},\n"
    "  select: {normalizer: {block: 128, stride: 64}}}\n",
    "3:32: error: model.select.normalizer.block: 128 is no size of external keys: "
    "model.compress.phi is external (t.yaml:2); coarse keys are means of raw ones: use another "
    "phi, "
    "or remove the normaliser" },
  { "coarse keys and small pages",
    "model: {heads: 64, kv_heads: 4, head_dim: 128,\n"
    "  select: {normalizer: {block: 128, stride: 64}}}\nserving: {page_size: 32}\n",
    "4:22: error: serving.page_size: 32 is no multiple of the stride: "
    "model.select.normalizer.stride is 64 (t.yaml:3); use larger pages, or a stride that divides "
    "them" },
  { "not causal", "model: {heads: 64, kv_heads: 4, head_dim: 128, causal: false}\n",
    "2:56: error: model.causal: false is not possible: NSA selects for each query among the "
    "blocks before it, so only causal attention is defined; remove the key or set it to true" },
  { "f32 on a GPU", "model: {heads: 64, kv_heads: 4, head_dim: 128, dtype: f32}\n",
    "2:55: error: model.dtype: f32 is computed on the CPU device only: runtime.device is \"auto\" "
    "(built-in); use bf16 or fp16, or set runtime.device to cpu" },
  { "f32 on the CPU device",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, dtype: f32}\n"
    "runtime: {device: cpu}\n",
    "" },
  { "no trusted keys", "runtime: {trusted_keys: []}\n", "" },
  { "trusted keys, which a build without signatures cannot use",
    "runtime:\n"
    "  trusted_keys: [/etc/nsa/keys, "
    "0123456789012345678901234567890123456789012345678901234567ABCDEF]\n",
    NSAI_SIGNATURES
        ? ""
        : "3:17: error: runtime.trusted_keys: this libnsa was built without signatures, so that an "
          "import could not check them: build it with -Dsignatures=enabled, or remove the key" },
  { "trusted keys in a profile",
    "profiles:\n"
    "  - match: {arch: sm_90a}\n"
    "    runtime: {trusted_keys: [/etc/nsa/keys]}\n",
    "4:29: error: profiles[0].runtime.trusted_keys: an import looks for no device, so that a "
    "profile cannot say whose packs it takes: move the key to the file's own runtime section" },
  { "one sequence beyond all", "serving: {max_kv_len: 2k, max_kv_tokens: 1k}\n",
    "2:23: error: serving.max_kv_len: 2000 is more than all sequences have together: "
    "serving.max_kv_tokens is 1000 (t.yaml:2); lower max_kv_len, or raise max_kv_tokens to at "
    "least as much" },
  { "no size of pages", "serving: {page_size: 48}\n",
    "2:22: error: serving.page_size: 48 tokens: pages have 16, 32, 64 or 128; 0: no pages" },
  { "codes of an odd width",
    "model: {heads: 8, kv_heads: 2, head_dim_qk: 64, head_dim_v: 72}\n"
    "serving: {kv_dtype: e4m3}\n",
    "3:21: error: serving.kv_dtype: e4m3 needs head dims that are multiples of 16: "
    "model.head_dim_v is 72 (t.yaml:2); leave it out, or change the head dim" },
  { "strides across pages",
    "model: {heads: 8, kv_heads: 2, head_dim: 64, compress: {block: 32, stride: 32}}\n"
    "serving: {page_size: 16}\n",
    "3:22: error: serving.page_size: 16 is no multiple of the stride: model.compress.stride is 32 "
    "(t.yaml:2); use larger pages, or a stride that divides them" },
  { "no such variant",
    "variants:\n"
    "  force: {dense: dens_sm80, select: quantum}\n"
    "  disable: [dense.dense_gemm, 'dense.quantum_*']\n"
    "profiles:\n"
    "  - match: {arch: sm_80}\n"
    "    variants: {force: {importance: x}, disable: ['*.y']}\n",
    "3:18: error: variants.force.dense: no variant 'dens_sm80'; did you mean 'dense_sm80'? stage "
    "dense has dense_sm90, dense_sm80, dense_gemm\n"
    "3:37: error: variants.force.select: no variant 'quantum'; stage select has select_topn_cta, "
    "select_topn\n"
    "4:31: error: variants.disable: 'dense.quantum_*' matches no variant; `nsa-autotune show` "
    "lists them\n"
    "7:36: error: variants.force.importance: no variant 'x'; stage importance has "
    "importance_sm90, importance_sm80, index_scores_sm90, index_scores_sm80\n"
    "7:50: error: variants.disable: '*.y' matches no variant; `nsa-autotune show` lists them" },
  { "forced and disabled", "variants: {force: {dense: dense_sm80}, disable: ['d*.de*']}\n",
    "2:27: error: variants.force.dense: \"dense_sm80\" is forced and disabled at once: "
    "variants.disable is [\"d*.de*\"] (t.yaml:2); remove one of the two entries" },
  { "a threshold that would not be exact",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {count: 8}}\n"
    "thresholds: {select_dense_below: 4Ki}\n",
    "3:34: warning: thresholds.select_dense_below: 4096 is lowered to 512, model.select.count * "
    "model.select.block (8 * 64): beyond that many tokens dense attention is not the same; write "
    "auto" },
  { "MIG instances",
    "runtime: {device: MIG-1234-5678}\n"
    "profiles:\n"
    "  - match: {uuid: MIG-1234}\n",
    "2:19: error: runtime.device: expected auto, cpu, an ordinal (cuda:1), a PCI bus id "
    "(0000:3b:00.0) or "
    "a UUID (GPU-...); found 'MIG-1234-5678': choose a MIG instance by CUDA_VISIBLE_DEVICES, and "
    "write auto here\n"
    "4:19: error: profiles[0].match.uuid: a MIG instance is not told from its GPU: match the "
    "GPU's own UUID, GPU-..., or use match.name" },
  { "a figure without a source", "device: {sms: 132}\n",
    "2:15: warning: device.sms: a figure without a source: say in device.source where it comes "
    "from" },
  { "refused values silence the rules",
    "model: {heads: 64, kv_heads: 4, head_dim: 128, select: {block: no}, compress: {stride: 13, "
    "block: x}}\n",
    "2:64: error: model.select.block: expected a whole number from 1 to 4096; found 'no'\n"
    "2:99: error: model.compress.block: expected a whole number from 1 to 4096; found 'x'" },
};

static const diag_case profile_cases[] = {
  { "not a list", "profiles: {match: {arch: sm_90}}\n",
    "2:11: error: profiles: expected a list: each item begins with '- match:'" },
  { "item that is none", "profiles: [h200]\n",
    "2:12: error: profiles[0].match: expected a mapping that begins with 'match:'" },
  { "no match",
    "profiles:\n"
    "  - runtime: {jit: never}\n",
    "3:5: error: profiles[0].match: a profile needs match: {arch: ..., name: ..., uuid: ...}, at "
    "least one of them, or match: {} for every device" },
  { "criteria",
    "profiles:\n"
    "  - match: {arch: hopper, name: [a], uuid: 3, sm: 90}\n",
    "3:19: error: profiles[0].match.arch: expected an architecture like sm_90 or sm_90a: "
    "did you mean 'sm_90a'?\n"
    "3:33: error: profiles[0].match.name: expected one word; a profile for several devices is "
    "repeated\n"
    "3:44: error: profiles[0].match.uuid: expected a UUID as nvidia-smi -L prints it, GPU-...\n"
    "3:47: error: profiles[0].match.sm: unknown key; match has arch, name, uuid" },
  { "sections that cannot stand there",
    "profiles:\n"
    "  - match: {arch: sm_90}\n"
    "    model: {heads: 4}\n"
    "    profiles: []\n"
    "    weather: {}\n",
    "4:5: error: profiles[0].model: a profile cannot change the model: it belongs to the weights, "
    "not to the device\n"
    "5:5: error: profiles[0].profiles: cannot stand in a profile: move it to the top of the file\n"
    "6:5: error: profiles[0].weather: unknown key; the configuration has model, serving, runtime, "
    "tuning, variants, thresholds, device, profiles, and x-* for your own" },
  { "the device cannot find itself",
    "profiles:\n"
    "  - match: {arch: sm_90}\n"
    "    runtime: {device: 1, jit: nevr}\n",
    "4:23: error: profiles[0].runtime.device: a profile is found by the device, so it cannot say "
    "how to find the device: move the key to the file's own runtime section\n"
    "4:31: error: profiles[0].runtime.jit: expected on_demand | prepare_only | never; found "
    "'nevr': did you mean 'never'?" },
  { "unreachable",
    "profiles:\n"
    "  - match: {}\n"
    "  - match: {arch: sm_80}\n",
    "3:5: warning: profiles: this profile matches every device, so those after it are never used: "
    "move it to the end" },
};

static void test_rules(void **state) { RUN("nsa: 1\n", rule_cases); }

static void test_profiles(void **state) { RUN("nsa: 1\n", profile_cases); }

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_rules),
    cmocka_unit_test(test_profiles),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

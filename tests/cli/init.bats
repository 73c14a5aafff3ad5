# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

# config.json of a model, changed by a jq filter: hf FILTER.
hf() {
  jq "$1" >config.json <<'JSON'
{
  "architectures": ["LlamaForCausalLM"],
  "hidden_size": 4096,
  "num_attention_heads": 32,
  "num_key_value_heads": 8,
  "max_position_embeddings": 131072,
  "rope_scaling": null,
  "tie_word_embeddings": false,
  "rms_norm_eps": 1e-05,
  "eos_token_id": [128001, 128008],
  "torch_dtype": "bfloat16"
}
JSON
}

# The value of a key in a file.
value() { autotune config "$1" | sed -nE "s/^ *$2: //p"; }

@test "options: what is written passes check, and has every key with its comment" {
  run -0 --separate-stderr autotune init --heads 24 --kv-heads 3 --head-dim 96 --dtype fp16 --page-size 64 \
    --max-kv-len 32Ki --set runtime.jit=never --set 'variants.disable=[dense.dense_gemm]'
  [[ -z $output && $stderr == 'nsa.yaml is written; '* ]]
  run -0 --separate-stderr autotune check nsa.yaml
  [[ $output == 'nsa.yaml: ok' && -z $stderr ]]
  for pair in heads=24 kv_heads=3 head_dim_qk=96 head_dim_v=96 dtype=fp16 page_size=64 max_kv_len=32768 jit=never; do
    [[ $(value nsa.yaml "${pair%=*}" | head -n 1) == "${pair#*=}" ]]
  done
  grep -q '^  jit: never$' nsa.yaml
  grep -q '^  #cache_mode: read_write$' nsa.yaml
  autotune show keys --json | jq -r '.[] | [(.name | split(".") | last), .help] | @tsv' >keys
  tr '\n' ' ' <nsa.yaml | sed 's/ *# */ /g' >flat
  (($(wc -l <keys) > 60))
  while IFS=$'\t' read -r key help; do
    grep -qE "^ *#?$key: " nsa.yaml
    grep -qF "$help. Values: " flat
  done <keys
  # All of it is configuration: without the marks of comments before keys it loads to the same.
  sed -E 's/^( *)#([a-z_0-9]+: )/\1\2/; /^  head_dim_(qk|v): /d' nsa.yaml >full.yaml
  diff <(autotune config nsa.yaml) <(autotune config full.yaml)
}

@test "heads of unequal width" {
  autotune init --heads 16 --kv-heads 4 --set model.head_dim_qk=192 --set model.head_dim_v=128 - >wide.yaml
  autotune check wide.yaml
  [[ $(value wide.yaml head_dim_qk) == 192 && $(value wide.yaml head_dim_v) == 128 ]]
  grep -q '^  #head_dim: ' wide.yaml
}

@test "a file that exists is kept, unless --force is given" {
  local model=(--heads 8 --kv-heads 2 --head-dim 64)
  echo mine >nsa.yaml
  run -1 --separate-stderr autotune init "${model[@]}"
  [[ $stderr == *'nsa.yaml: there is such a file: --force replaces it, and - as FILE prints'* ]]
  [[ $(cat nsa.yaml) == mine ]]
  ln -s nowhere link.yaml
  run -1 autotune init "${model[@]}" link.yaml
  autotune init --force "${model[@]}"
  autotune check nsa.yaml
  autotune init "${model[@]}" other.yaml
  autotune init "${model[@]}" - | diff - other.yaml
  # Neither the environment nor this machine's file is part of it.
  NSA_JIT=never autotune init "${model[@]}" - | diff - other.yaml
}

@test "a wrong value, and a model that does not fit together: 3, and nothing is written" {
  run -3 --separate-stderr autotune init --heads 8 --kv-heads 3 --head-dim 64
  [[ $stderr == *'model.kv_heads'* ]]
  run -3 --separate-stderr autotune init --heads 8 --kv-heads 2 --head-dim 100
  [[ $stderr == *'100 is not a multiple of 8: use 96 or 104'* ]]
  run -3 --separate-stderr autotune init --heads 8 --kv-heads 2 --head-dim 64 --dtype bf61
  [[ $stderr == *"did you mean 'bf16'?"* ]]
  [[ ! -e nsa.yaml ]]
  run -2 --separate-stderr autotune init --heads 8 --kv-heads 2 </dev/null
  [[ $stderr == *'give --heads, --kv-heads and --head-dim, or --from config.json'* && ! -e nsa.yaml ]]
  run -2 autotune init --heads 8 one two
  run -2 --separate-stderr autotune init --device "$(printf 'x%.0s' {1..300})"
  [[ $stderr == *'--device: a value of more than'* ]]
}

@test "--from config.json: heads, head dimension, dtype, length" {
  hf .
  autotune init --from config.json
  autotune check nsa.yaml
  for pair in heads=32 kv_heads=8 head_dim_qk=128 head_dim_v=128 dtype=bf16 max_kv_len=131072; do
    [[ $(value nsa.yaml "${pair%=*}" | head -n 1) == "${pair#*=}" ]]
  done
  hf '.head_dim = 64 | .torch_dtype = "float16" | del(.num_key_value_heads, .hidden_size)'
  autotune init --from - - <config.json >one.yaml
  [[ $(value one.yaml head_dim_qk) == 64 && $(value one.yaml kv_heads) == 32 && $(value one.yaml dtype) == fp16 ]]
  # A newer key, a part of a model, one line without spaces, and tabs.
  hf '{text_config: (. + {dtype: "bfloat16", head_dim: 96} | del(.torch_dtype)), model_type: "x"}'
  autotune init --from config.json - >two.yaml
  [[ $(value two.yaml head_dim_qk) == 96 && $(value two.yaml dtype) == bf16 ]]
  jq -c . config.json >short.json
  autotune init --from short.json - | diff - two.yaml
  jq --tab . config.json >tabs.json
  autotune init --from tabs.json - | diff - two.yaml
  # Options win, and so does --set.
  autotune init --from config.json --dtype fp16 --set model.head_dim=32 - >three.yaml
  [[ $(value three.yaml head_dim_qk) == 32 && $(value three.yaml dtype) == fp16 ]]
}

# config.json of fla's NSAConfig, changed by a jq filter: fla FILTER.
fla() {
  jq "$1" >config.json <<'JSON'
{
  "model_type": "nsa", "hidden_size": 2048, "num_heads": 64, "num_kv_heads": 4, "head_dim": 32,
  "block_size": 64, "block_counts": 12, "window_size": 512, "max_position_embeddings": 2048, "dtype": "bfloat16"
}
JSON
}

@test "--from config.json: a model of flash-linear-attention brings its blocks and window" {
  fla .
  autotune init --from config.json
  autotune check nsa.yaml
  for pair in heads=64 kv_heads=4 head_dim_qk=32 stride=64 phi=mean count=16 init=1 local=2 window=512 gate=weights \
    kv_sharing=shared max_kv_len=2048; do
    [[ $(value nsa.yaml "${pair%=*}" | head -n 1) == "${pair#*=}" ]] || { echo "$pair"; return 1; }
  done
  [[ $(value nsa.yaml block) == $'64\n64\n0' ]]
  for none in null 0; do
    fla ".window_size = $none"
    autotune init --from config.json - >none.yaml
    [[ $(value none.yaml window) == 0 ]]
  done
  for name in num_heads num_kv_heads head_dim block_size block_counts window_size; do
    fla "del(.$name)"
    run -3 --separate-stderr autotune init --from config.json -
    [[ ${#stderr_lines[@]} == 1 && $stderr == *": $name: missing, in a model of flash-linear-attention"* ]]
  done
  fla '.block_size = null'
  run -3 --separate-stderr autotune init --from config.json -
  [[ ${#stderr_lines[@]} == 1 && $stderr == *'block_size: expected a whole number from 1'* ]]
  fla '.block_counts = 1000'
  run -3 --separate-stderr autotune init --from config.json -
  [[ $stderr == *'model.select.count'*256* ]]
}

# config.json of MiniMax-M3's text model, changed by a jq filter: m3 FILTER.
m3() {
  jq "$1" >config.json <<'JSON'
{
  "model_type": "minimax_m3_vl", "text_config": {
    "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "hidden_size": 6144,
    "max_position_embeddings": 1048576, "torch_dtype": "bfloat16", "sparse_attention_config": {
      "sparse_num_index_heads": 4, "sparse_index_dim": 64, "sparse_block_size": 128, "sparse_topk_blocks": 8,
      "sparse_local_block": 2 } } }
JSON
}

@test "--from config.json: a model like MiniMax-M3 brings its index and blocks" {
  m3 .
  autotune init --from config.json
  autotune check nsa.yaml
  for pair in phi=none by=index pool=max dim=64 count=8 init=0 local=2 window=0 gate=none kv_sharing=shared \
    max_kv_len=1048576; do
    [[ $(value nsa.yaml "${pair%=*}" | head -n 1) == "${pair#*=}" ]] || { echo "$pair"; return 1; }
  done
  [[ $(value nsa.yaml heads) == $'64\n4' && $(value nsa.yaml block) == $'128\n0' ]]
  grep -q '^    #block: 32$' nsa.yaml
  # As transformers writes it, with a default.
  m3 '.text_config | del(.sparse_attention_config) +
    {index_n_heads: 4, index_head_dim: 64, index_block_size: 128, index_topk_blocks: 8, index_local_blocks: 2}'
  autotune init --from config.json - | diff - nsa.yaml
  m3 '.text_config.sparse_attention_config |= {sparse_topk_blocks: 16}'
  autotune init --from config.json - >defaults.yaml
  [[ $(value defaults.yaml dim) == 128 && $(value defaults.yaml local) == 1 ]]
  m3 '.text_config.sparse_attention_config.sparse_index_dim = "wide"'
  run -3 --separate-stderr autotune init --from config.json -
  [[ ${#stderr_lines[@]} == 1 && $stderr == *'sparse_index_dim: expected a whole number from 1'* ]]
  m3 '.text_config.sparse_attention_config += {sparse_init_block: 1, sparse_score_type: "max"}'
  autotune init --from config.json - >first.yaml
  [[ $(value first.yaml init) == 1 ]]
  m3 '.text_config.sparse_attention_config += {sparse_init_block: 0, sparse_score_type: null}'
  autotune init --from config.json - | diff - nsa.yaml
  m3 '.text_config.sparse_attention_config.sparse_init_block = -1'
  run -3 --separate-stderr autotune init --from config.json -
  [[ ${#stderr_lines[@]} == 1 && $stderr == *'sparse_init_block: expected a whole number from 0'* ]]
  m3 '.text_config.sparse_attention_config.sparse_score_type = "mean"'
  run -1 --separate-stderr autotune init --from config.json -
  [[ ${#stderr_lines[@]} == 1 && $stderr == *'config.json:'*': sparse_score_type: '*mean*': libnsa ranks'* ]]
  m3 '.text_config.num_key_value_heads = 8'
  run -3 --separate-stderr autotune init --from config.json -
  [[ $stderr == *'model.index.heads: 4 is not the number of KV heads'* ]]
}

@test "--from config.json: weights in float32 are noted, unless --dtype is given" {
  hf '.torch_dtype = "float32"'
  run -0 --separate-stderr autotune init --from config.json
  [[ $stderr == *'note: the weights are float32'* && $(value nsa.yaml dtype) == bf16 ]]
  run -0 --separate-stderr autotune init --force --from config.json --dtype f32 --device cpu
  [[ $stderr != *note* && $(value nsa.yaml dtype) == f32 ]]
}

@test "--from config.json: what it cannot be made of is one sentence, and nothing is written" {
  hf '.kv_lora_rank = 512 | .q_lora_rank = null'
  run -1 --separate-stderr autotune init --from config.json
  [[ ${#stderr_lines[@]} == 1 ]]
  [[ $stderr == *'config.json:'*': kv_lora_rank: libnsa does not compute multi-head latent attention (MLA): give the heads'* ]]
  hf '.kv_lora_rank = null'
  autotune init --from config.json - >/dev/null
  while IFS='|' read -r filter code wanted; do
    hf "$filter"
    run "-$code" --separate-stderr autotune init --from config.json
    [[ ${#stderr_lines[@]} == 1 && $stderr == *"$wanted"* ]] || { echo "$filter: $stderr"; return 1; }
  done <<'FILES'
del(.num_attention_heads)|3|num_attention_heads: missing
.num_attention_heads = "many"|3|num_attention_heads: expected a whole number from 1
.num_attention_heads = 32.5|3|num_attention_heads: expected a whole number from 1
.num_attention_heads = [32]|3|num_attention_heads: expected a whole number from 1
.hidden_size = 4095|3|head_dim: missing, and hidden_size is no multiple
del(.hidden_size)|3|head_dim: missing
.torch_dtype = "float8_e4m3fn"|1|fp8 is for a KV cache alone
.torch_dtype = "complex64"|1|no dtype of the library
FILES
  echo '{"num_attention_heads": 32,' >config.json
  run -3 --separate-stderr autotune init --from config.json
  [[ $stderr == 'config.json:'*'error: not YAML: '* ]]
  echo '[1]' >config.json
  run -3 autotune init --from config.json
  run -1 --separate-stderr autotune init --from nowhere.json
  [[ $stderr == *'nowhere.json: cannot be read: No such file or directory'* ]]
  [[ ! -e nsa.yaml ]]
}

@test "on a terminal it asks for what is not given, again after a wrong answer" {
  local status=0
  # heads are given; kv_heads is answered wrongly once, the others are empty but for the dtype.
  printf '%s\n' many 2 '' fp16 '' '' '' '' '' |
    "$NSA_SOURCE/tests/cli/on_terminal.py" "$NSA_AUTOTUNE" init --heads 8 --device cpu >session || status=$?
  ((status != 77)) || skip 'this machine has no terminals'
  ((status == 0))
  grep -q 'kv-heads: key and value heads' session
  grep -q "found 'many'" session
  run -1 grep -q '^heads: ' session
  autotune check nsa.yaml
  for pair in heads=8 kv_heads=2 head_dim_qk=128 dtype=fp16 max_kv_len=32768 max_seqs=1 page_size=0; do
    [[ $(value nsa.yaml "${pair%=*}" | head -n 1) == "${pair#*=}" ]]
  done
}

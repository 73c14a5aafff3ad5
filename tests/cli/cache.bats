# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

# bats test_tags=slow
@test "compile fills the cache without a GPU; a second time nothing is compiled" {
  prefer_real_nvrtc
  small_model
  run -0 --separate-stderr autotune compile --arch sm_80,sm_90a small.yaml
  [[ $output == *"small.yaml for sm_80: "*"small.yaml for sm_90a: "* ]]
  count=$(autotune list --json | jq .count)
  ((count >= 12)) # for each architecture five stages and dense, at least
  run -0 --separate-stderr autotune compile --arch sm_90a small.yaml
  [[ $output == *": 0 kernels compiled"* ]]
  [[ $(autotune list --json | jq .count) == "$count" ]]
}

# bats test_tags=slow
@test "both sides of select_dense_below are compiled, --max-kv-len bounds them" {
  need_nvrtc
  small_model
  autotune compile --arch sm_80 --op forward --max-kv-len 64 small.yaml
  autotune list --json | jq -e '[.entries[].kernel] | index("attend_selected_sm80") == null'
  autotune compile --arch sm_80 --op forward small.yaml
  autotune list --json | jq -e '[.entries[].kernel] | index("attend_selected_sm80") != null'
}

# bats test_tags=slow
@test "what other lengths and overlaps choose is compiled, too" {
  need_nvrtc
  compiled() { autotune list --json | jq -r '.entries[].kernel' | sort -u; }
  model=$configs/models/g16_d64.yaml
  autotune compile --arch sm_90a --op forward --max-kv-len 1024 "$model"
  compiled >all
  grep -qx attend_compressed_sm90 all # up to 1024 tokens, which choose every block
  grep -qx attend_dense_sm90 all
  run -1 grep -x attend_compressed_topn_sm90 all
  run -1 grep -x attend_selected_window_sm90 all
  autotune compile --arch sm_90a --op forward --max-kv-len 2048 "$model"
  compiled >short
  grep -qx attend_compressed_topn_sm90 short
  grep -qx attend_selected_window_sm90 short
  run -1 grep -x attend_selected_sm90_mma short
  autotune compile --arch sm_90a --op forward --max-kv-len 65536 "$model"
  compiled >long
  grep -qx attend_selected_sm90_mma long   # low overlap
  grep -qx attend_selected_window_sm90 long # high overlap
  # Shorter plans find all of theirs.
  for length in 700 1500 4000 5000 50000; do
    run -0 --separate-stderr autotune compile --arch sm_90a --op forward --max-kv-len $length \
      --set runtime.jit=never "$model"
    [[ $output == *": 0 kernels compiled"* ]]
  done
}

# bats test_tags=slow
@test "what decode steps of fewer sequences choose is compiled, too" {
  need_nvrtc
  small_model
  settings=(--arch sm_90a --op decode --max-kv-len 2048)
  run -0 --separate-stderr autotune compile "${settings[@]}" --set serving.max_seqs=48 --set 'tuning.batches=[1, 12]' \
    small.yaml
  [[ $output == *": $(autotune list --json | jq .count) kernels compiled"* ]] # for every device of sm_90a
  for seqs in 1 2 4 8 12 16 32 48; do
    run -0 --separate-stderr autotune compile "${settings[@]}" --set serving.max_seqs=$seqs --set runtime.jit=never \
      small.yaml
    [[ $output == *": 0 kernels compiled"* ]]
  done
}

@test "--verbose prints registers" {
  prefer_real_nvrtc
  small_model
  run -0 --separate-stderr autotune compile --arch sm_80 --op dense --verbose small.yaml
  [[ $stderr =~ attend_dense_sm80.*registers ]]
}

@test "SIGINT: 130, and finished kernels stay good" {
  prefer_real_nvrtc
  # env: a background job of a shell without job control ignores SIGINT, and its children do too.
  env --default-signal=INT "$NSA_AUTOTUNE" compile --jobs 1 --arch all --verbose \
    "$configs/base.yaml" >/dev/null 2>log 3>&- &
  for ((i = 0; i < 600; i++)); do # the first kernel is finished; at most a minute
    grep -q registers log && break
    sleep 0.1
  done
  kill -INT $!
  code=0
  wait $! || code=$?
  ((code == 130))
  autotune list --json | jq -e '.count > 0 and .bad == 0'
}

@test "without NVRTC: 5, and the path tried" {
  small_model
  run -5 autotune compile --arch sm_80 --set runtime.nvrtc_path=/nowhere small.yaml
  [[ $output == */nowhere* ]]
}

@test "verify finds and removes a damaged entry; 6" {
  need_nvrtc
  small_model
  autotune compile --arch sm_80 --op dense small.yaml
  name=$(autotune list --json | jq -r '.entries[0].file')
  printf 'x' | dd of="$(find "$NSA_CACHE_DIR" -name "$name")" bs=1 seek=200 conv=notrunc status=none
  [[ $(autotune list --json | jq .bad) == 1 ]]
  run -6 autotune verify
  [[ $output == *'0 good, 1 bad'* ]]
  run -0 autotune verify
  [[ $output == *'0 good, 0 bad'* ]]
}

@test "a link, a socket and a copy under another name are no entries" {
  need_nvrtc
  small_model
  autotune compile --arch sm_80 --op dense small.yaml
  cd "$NSA_CACHE_DIR/kernels"
  entry=$(echo ./*.nsak)
  ln "$entry" link.nsak
  cp "$entry" copy.nsak
  python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket.nsak")'
  cd -
  autotune list --json | jq -e '.count == 1 and .bad == 0 and .foreign == 3 and (.entries | length) == 4'
  [[ $(autotune list --json | jq .bytes) == $(stat -c %s "$NSA_CACHE_DIR/kernels/$entry") ]]
  run -0 --separate-stderr autotune list
  [[ $output == *"/link.nsak: is no entry: it has the name of no kernel"* ]]
  [[ ${lines[-1]} == *'1 entry, '*', 3 foreign in '* ]]
  run -0 autotune verify
  [[ $output == *'kernels: 1 good, 0 bad'* ]]
  run -0 --separate-stderr autotune export pack
  [[ $stderr == *'left out: '*'/socket.nsak'*'1 entry, '* ]]
  NSA_CACHE_DIR=$PWD/other autotune import pack
  NSA_CACHE_DIR=$PWD/other run -0 autotune list
  [[ $output == *'1 entry, '* ]]
  run -0 autotune gc --limit 1Mi
  [[ $output == '0 removed'* ]]
  (cd "$NSA_CACHE_DIR/kernels" && [[ -S socket.nsak && -s link.nsak && -s copy.nsak ]])
}

@test "gc keeps to its limit, and refuses a wrong one with 3" {
  need_nvrtc
  small_model
  autotune compile --arch sm_80 --op dense small.yaml
  run -0 --separate-stderr autotune gc --limit 1Mi
  [[ $output == '0 removed'* ]]
  run -3 autotune gc --limit nonsense
}

@test "gc of a folder that others can write: 6" {
  mkdir open
  chmod 777 open
  NSA_CACHE_DIR=$PWD/open run -6 autotune gc
}

@test "compile stores or fails: 6, with the reason" {
  small_model
  NSA_CACHE_MODE=off run -6 autotune compile --arch sm_80 small.yaml
  [[ $output == *'runtime.cache_mode is off'* ]]
  NSA_CACHE_MODE=read_only run -6 autotune compile --arch sm_80 small.yaml
  [[ $output == *'runtime.cache_mode is read_only'* ]]
  mkdir open
  chmod 777 open
  NSA_CACHE_DIR=$PWD/open run -6 autotune compile --arch sm_80 small.yaml
  [[ $output == *"cannot be stored in $PWD/open: "* ]]
  run -6 env -u NSA_CACHE_DIR -u HOME -u XDG_CACHE_HOME "$NSA_AUTOTUNE" compile --arch sm_80 small.yaml
}

@test "compile onto a full disk: 6" {
  need_real_nvrtc
  small_model
  full() (
    trap '' XFSZ # a write beyond the limit fails as on a full disk
    ulimit -f 8  # KiB a file: less than any kernel
    autotune compile --arch sm_80 --op dense small.yaml
  )
  run -6 --separate-stderr full
  [[ -z $output && $stderr == *'some of the kernels did not stay in'*'failed write'* ]]
}

@test "compile fails whichever kernel did not stay, also one for other devices of the architecture: 6" {
  export NSA_NVRTC_PATH=$NSA_FAKE_CUDA
  small_model
  compile() { autotune compile --arch sm_90a --op forward small.yaml; }
  NSA_CACHE_DIR=$PWD/all compile
  mapfile -t names < <(ls all/kernels)
  ((${#names[@]} > 5))
  for name in "${names[@]}"; do
    # A folder in the place of the entry: it can be neither read nor replaced.
    rm -rf cache
    mkdir -p "cache/kernels/$name"
    chmod -R go-w cache
    run -6 --separate-stderr compile
    [[ -z $output && $stderr == *'some of the kernels did not stay in'* ]]
  done
}

# bats test_tags=slow
@test "a probe and a register fallback have kernels of their own" {
  need_nvrtc
  small_model
  compiled() { autotune compile --arch sm_80 --op forward "$@" small.yaml | sed 's/.*: \([0-9]*\) kernel.*/\1/'; }
  (($(compiled) >= 5))
  (($(compiled --probe-rows 4) == 1))
  (($(compiled --register-fallback 1) > 0))
  (($(compiled --register-fallback 1) == 0))
  (($(compiled --register-fallback 3) > 0)) # the last resort
  run -2 autotune compile --arch sm_80 --register-fallback 4 small.yaml
  run -2 autotune compile --arch sm_80 --probe-rows none small.yaml
}

@test "a cache over ranks has kernels of its own, in decode steps and appends alone" {
  need_nvrtc
  small_model
  compiled() { autotune compile --arch sm_80 --set serving.page_size=16 "$@" small.yaml | sed 's/.*: \([0-9]*\) kernel.*/\1/'; }
  (($(compiled --op append) == 1))
  (($(compiled --op append --ranks 2) == 1))
  (($(compiled --op decode --set variants.force.decode=decode_split_kv) >= 4))
  (($(compiled --op decode --ranks 2) == 3)) # attend, partial, combine
  (($(compiled --op decode --ranks 8) == 0)) # any number has the same
  run -2 autotune compile --arch sm_80 --ranks 2 small.yaml
  run -2 autotune compile --arch sm_80 --op decode --ranks 65 small.yaml
}

@test "a probe of a decode step: steps of fewer sequences probe what rows they have" {
  need_nvrtc
  small_model
  run -0 autotune compile --arch sm_80 --op decode --set serving.max_seqs=8 --probe-rows 8 small.yaml
  run -1 --separate-stderr autotune compile --arch sm_80 --op decode --set serving.max_seqs=8 --probe-rows 9 small.yaml
  [[ $stderr == *'problem.max_probe_rows is 9: expected 0 to max_tokens (8)'* ]]
}

@test "list and verify of a folder that others can write: 6; of none: 0" {
  run -0 --separate-stderr autotune list
  [[ $output == '0 entries'* && ! -e $NSA_CACHE_DIR ]]
  mkdir open
  chmod 777 open
  NSA_CACHE_DIR=$PWD/open run -6 autotune list
  [[ $output == *"$PWD/open is refused: "* ]]
  NSA_CACHE_DIR=$PWD/open run -6 autotune verify
}

@test "export and import: the same entries in another folder" {
  export_small
  autotune export - | cmp - kernels.pack
  NSA_CACHE_DIR=$PWD/other run -0 autotune import kernels.pack
  [[ $output == "$count entries imported into $PWD/other" ]]
  diff <(cd "$NSA_CACHE_DIR/kernels" && sha256sum ./*.nsak) <(cd other/kernels && sha256sum ./*.nsak)
  NSA_CACHE_DIR=$PWD/other run -0 --separate-stderr autotune compile --arch sm_80 small.yaml
  [[ $output == *": 0 kernels compiled"* ]]
  NSA_CACHE_DIR=$PWD/piped autotune import - <kernels.pack
  diff -r --exclude='.lock*' --exclude=tuning other piped
}

@test "import of a damaged file: 6, and nothing is stored" {
  export_small
  size=$(stat -c %s kernels.pack)
  export NSA_CACHE_DIR=$PWD/other
  refused() {
    run -6 autotune import "$1"
    [[ $output == *"$2"* && $(autotune list --json | jq .count) == 0 ]]
  }
  head -c $((size / 2)) kernels.pack >half.pack
  refused half.pack ': copy or export it again'
  for keep in 0 7 8 12 100 $((size - 48)) $((size - 32)) $((size - 1)); do
    head -c "$keep" kernels.pack >cut.pack
    refused cut.pack cut.pack
  done
  for at in 0 7 8 15 40 200 $((size / 2)) $((size - 49)) $((size - 48)) $((size - 40)) $((size - 1)); do
    cp kernels.pack flipped.pack
    byte=$(od -An -tu1 -j"$at" -N1 kernels.pack)
    printf "\\x$(printf %x $((byte ^ 255)))" |
      dd of=flipped.pack bs=1 seek="$at" conv=notrunc status=none
    refused flipped.pack flipped.pack
  done
  cat kernels.pack kernels.pack >twice.pack
  refused twice.pack 'the end does not fit'
  run -6 autotune import "$NSA_SOURCE/README.md"
  run -1 autotune import nowhere.pack
  run -6 autotune import --set runtime.cache_limit=1Mi /dev/zero
}

@test "export leaves a bad entry out: 6" {
  export_small
  name=$(autotune list --json | jq -r '.entries[0].file')
  printf 'x' | dd of="$NSA_CACHE_DIR/kernels/$name" bs=1 seek=200 conv=notrunc status=none
  run -6 autotune export some.pack
  [[ $output == *"left out: "*"$name"* ]]
  NSA_CACHE_DIR=$PWD/other run -0 autotune import some.pack
  [[ $output == "$((count - 1)) "* ]]
}

@test "export: a file that cannot be written keeps what it had" {
  export_small
  mkdir kept
  cp kernels.pack kept/some.pack
  chmod 640 kept/some.pack
  ln -s kept/some.pack link.pack
  # Beyond this size a write fails, and no signal comes.
  run -1 bash -c 'trap "" XFSZ; ulimit -f 1; "$1" export link.pack' - "$NSA_AUTOTUNE"
  [[ $output == *"link.pack: cannot be written: File too large"* ]]
  cmp kernels.pack kept/some.pack
  [[ $(ls kept) == some.pack ]]
  echo old >kept/some.pack
  autotune export link.pack
  cmp kernels.pack kept/some.pack
  [[ -L link.pack && $(stat -c %a kept/some.pack) == 640 && $(ls kept) == some.pack ]]
}

# bats test_tags=slow
@test "a sample of the tuner's candidates: the seed decides, spills are no failure" {
  prefer_real_nvrtc
  small_model
  compile() { autotune compile --arch sm_80 --op forward --max-kv-len 4096 "$@" small.yaml; }
  kernels() { autotune list --json | jq -r '.entries[].file' | sort; }
  run -0 --separate-stderr compile --sample 1 --seed 5
  [[ $output =~ ^'small.yaml for sm_80: 12 candidates of seed 5, '[0-9]+' refused, in ' ]]
  first=$(kernels)
  (($(wc -l <<<"$first") >= 3))
  compile --sample 1 --seed 5
  [[ $(kernels) == "$first" ]]
  compile --sample 1 --seed 6
  [[ $(kernels) != "$first" ]]
  rm -r "$NSA_CACHE_DIR"
  compile --sample 1 --seed 5
  [[ $(kernels) == "$first" ]]
}

# bats test_tags=slow
@test "a sample of candidates that do not compile: 5, and their names" {
  need_real_nvrtc
  small_model
  cp -r "$NSA_SOURCE/kernel_templates" templates
  echo 'static_assert(Config::kWindow == 0, "broken on purpose");' >>templates/attend/window_sm80.cuh
  run -5 --separate-stderr autotune compile --arch sm_80 --op forward --sample 2 \
    --set runtime.templates_dir="$PWD/templates" small.yaml
  [[ -z $output && $stderr == *'bad for sm_80: attend_window_sm80 rows='*'broken on purpose'* ]]
  [[ $stderr == *' candidates of seed 0 do not compile for sm_80'* ]]
}

@test "compile --json and verify --json; a configuration from standard input compiles for several architectures" {
  need_nvrtc
  small_model
  run -0 --separate-stderr autotune compile --json --arch sm_80,sm_90a --op dense - <small.yaml
  jq -e '.ok and ([.compiled[].arch] == ["sm_80", "sm_90a"]) and
    all(.compiled[]; .ok and .file == "<stdin>" and .kernels == 1 and .seconds > 0)' <<<"$output"
  run -0 --separate-stderr autotune compile --json --arch sm_80 --op dense small.yaml
  jq -e '.compiled[0].kernels == 0' <<<"$output"
  run -0 --separate-stderr autotune compile --json --arch sm_80 --op dense --sample 1 --seed 7 small.yaml
  jq -e '.compiled[0] | .seed == 7 and .candidates >= 1 and .refused == 0 and .kernels == null' <<<"$output"
  run -0 --separate-stderr autotune compile --json --set runtime.device=cpu small.yaml
  jq -e '.ok and .compiled[0].arch == "cpu"' <<<"$output"
  run -3 --separate-stderr autotune compile --json --arch sm_80 --set runtime.jit=x small.yaml
  jq -e '.ok == false and (.compiled[0] | .ok == false and .arch == "sm_80" and (.failure | contains("runtime.jit")))' <<<"$output"
  [[ $stderr == *runtime.jit* ]]
  run -6 --separate-stderr autotune compile --json --arch sm_80 --set runtime.cache_mode=off small.yaml
  jq -e '.compiled[0].failure | startswith("runtime.cache_mode is off")' <<<"$output"
  count=$(autotune list --json | jq .count)
  run -0 --separate-stderr autotune verify --json
  jq -e --argjson count "$count" '.kernels == {good: $count, bad: 0} and .records == {good: 0, bad: 0}' <<<"$output"
  name=$(autotune list --json | jq -r '.entries[0].file')
  printf 'x' | dd of="$(find "$NSA_CACHE_DIR" -name "$name")" bs=1 seek=200 conv=notrunc status=none
  run -6 --separate-stderr autotune verify --json
  jq -e --argjson good $((count - 1)) '.kernels == {good: $good, bad: 1}' <<<"$output"
}

@test "--sample and --seed: wrong usage is 2" {
  small_model
  for sample in 0 -1 101 x ''; do run -2 autotune compile --arch sm_80 --sample "$sample" small.yaml; done
  for seed in -1 x '' 99999999999999999999; do
    run -2 autotune compile --arch sm_80 --sample 1 --seed "$seed" small.yaml
  done
  run -2 autotune compile --arch sm_80 --seed 1 small.yaml
}

@test "where a kernel does not compile, an NVRTC that is too old is named, with the oldest that is not" {
  small_model
  export NSA_NVRTC_PATH=$NSA_FAKE_CUDA FAKE_NVRTC_BAD=compress_mean
  FAKE_NVRTC_VERSION=12.0 run -5 autotune compile --arch sm_80 small.yaml
  [[ $output == *'NVRTC 12.0 does not know all instructions'*'`runtime.nvrtc_path` or $NSA_NVRTC_PATH to NVRTC 12.1 or newer'* ]]
  for version in 12.1 13.0; do
    FAKE_NVRTC_VERSION=$version run -5 autotune compile --arch sm_80 small.yaml
    [[ $output == *'does not compile'* && $output != *'or newer'* ]]
  done
}

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

# Two lengths of one problem, written by hand: no checksum, the end marked by "...". An H200 that
# needs twice as long for dense attention at 16384 tokens, half as long at 4096.
write_records() {
  cat >records.yaml <<'YAML'
nsa_records: 1
records:
YAML
  add_record 4096 0.25
  add_record 16384 4.0
  echo ... >>records.yaml
}

# TOKENS DENSE_MS, the forward takes tokens / 8192 milliseconds.
add_record() {
  cat >>records.yaml <<YAML
  - device: {name: "NVIDIA H200", arch: "sm_90a", sms: 132}
    problem:
      key: "fwd:bf16:h4/2:d32/32:l16/8:s16x4+1+2:w32:phi=mean:kv=branch:gate=weights:sel=topn:ov=low:len$1"
      bucket: $1
    environment: {library: "0.1.0", templates: "x", driver: "580.1", compiler: "nvrtc 13.0"}
    measured:
      date: "2026-01-02T03:04:05Z"
      level: "normal"
      complete: true
      overlap_r: 0.25
      union4: 32
      union8: 38
      clock_mhz: [1900, 1980]
      temperature_c: [40, 60]
    baselines:
      - {name: "forward", ms: $(jq -n "$1 / 8192"), spread: 0.01}
      - {name: "dense", ms: $2, spread: 0.01}
    stages:
      "attend_window":
        - {candidate: "mma rows=128", state: ok, ms: 0.75, spread: 0.02, rounds: 7, chosen: true, default: false, note: ""}
        - {candidate: "mma rows=64", state: ok, ms: 1.0, spread: 0.02, rounds: 7, chosen: false, default: true, note: ""}
        - {candidate: "mma rows=256", state: refused, ms: 0, spread: 0, rounds: 0, chosen: false, default: false, note: "spills"}
YAML
}

import_records() {
  write_records
  autotune import --records records.yaml
}

@test "no records: an empty list, 0; no folder is made" {
  run -0 --separate-stderr autotune list --records
  [[ $output == '0 records, 0 bad' && ! -e $NSA_CACHE_DIR ]]
  autotune list --records --json | jq -e '.records == [] and .count == 0 and .bad == 0'
}

@test "records imported are listed, one line each" {
  write_records
  run -0 --separate-stderr autotune import --records records.yaml
  [[ $output == "2 records imported into $NSA_CACHE_DIR" ]]
  run -0 --separate-stderr autotune list --records
  [[ ${#lines[@]} == 3 && ${lines[2]} == '2 records, 0 bad' ]]
  [[ $output == *'NVIDIA H200 (sm_90a, 132 SMs), 16384 tokens, normal, 2026-01-02T03:04:05Z, complete: '* ]]
  [[ $output == *'attend_window = mma rows=128'* ]]
  autotune list --records --json | jq -e '.count == 2 and (.records | all(
    .device == "NVIDIA H200" and .complete and .candidates == 3 and .problem == null and
    .chosen == {"attend_window": "mma rows=128"} and .baselines.forward.ms > 0))'
  run -0 --separate-stderr autotune list --records --verbose
  [[ $output == *'note: "spills"'*'# checksum: '* ]]
  [[ $(autotune list --json | jq .count) == 0 ]] # the kernels' list is another one
}

@test "export and import again: the same text" {
  import_records
  autotune export --records one.yaml
  autotune export --records - 2>/dev/null | cmp - one.yaml
  NSA_CACHE_DIR=$PWD/other autotune import --records one.yaml
  NSA_CACHE_DIR=$PWD/other autotune export --records two.yaml
  cmp one.yaml two.yaml
  NSA_CACHE_DIR=$PWD/piped autotune import --records - <one.yaml
}

# The digest is of what is chosen: keys and winners, not times.
@test "the digest: export and list print it, import compares it" {
  run -0 autotune list --records --digest
  empty=$output
  [[ $empty =~ ^[0-9a-f]{32}$ ]]
  import_records
  digest=$(autotune list --records --digest)
  [[ $digest =~ ^[0-9a-f]{32}$ && $digest != "$empty" ]]
  autotune list --records --json | jq -e ".digest == \"$digest\""
  run -0 --separate-stderr autotune export --records all.yaml
  [[ $stderr == "2 records, digest $digest" ]]
  export NSA_CACHE_DIR=$PWD/other
  run -0 --separate-stderr autotune import --records --digest "${digest^^}" all.yaml
  [[ $output == "2 records imported into $NSA_CACHE_DIR" && -z $stderr ]]
  [[ $(autotune list --records --digest) == "$digest" ]]
  # Other times choose the same.
  sed -e 's/ms: 0.75/ms: 0.5/; s/# checksum.*//' all.yaml >faster.yaml
  NSA_CACHE_DIR=$PWD/faster autotune import --records --digest "$digest" faster.yaml
  # Another winner, and a record more, are others. The file is imported all the same.
  sed -e '/rows=128/s/chosen: true/chosen: false/; /rows=64/s/chosen: false/chosen: true/; s/# checksum.*//' all.yaml >other.yaml
  NSA_CACHE_DIR=$PWD/winner run -6 --separate-stderr autotune import --records --digest "$digest" other.yaml
  [[ $output == '2 records imported'* && $stderr == *"the digest is "*", not $digest: "* ]]
  printf 'nsa_records: 1\nrecords:\n' >records.yaml
  add_record 65536 8.0
  echo ... >>records.yaml
  run -6 autotune import --records --digest "$digest" records.yaml
  autotune list --records --json | jq -e ".count == 3 and .digest != \"$digest\""
}

@test "the digest: usage" {
  write_records
  for digest in '' 0123 "$(printf '%033d' 0)" "$(printf '%031dg' 0)"; do
    run -2 --separate-stderr autotune import --records --digest "$digest" records.yaml
    [[ $stderr == *'is not 32 hexadecimal digits'* ]]
  done
  run -2 autotune import --digest "$(printf '%032d' 0)" records.yaml
  run -2 autotune list --digest
  run -2 autotune list --records --digest --json
  run -2 autotune list --records --digest --verbose
}

@test "import of older records leaves newer ones of another environment, and says so" {
  import_records
  mv records.yaml old.yaml
  printf 'nsa_records: 1\nrecords:\n' >records.yaml
  add_record 4096 0.25
  echo ... >>records.yaml
  sed -e 's/"580.1"/"590.2"/' -e 's/2026-01-02T/2027-01-02T/' records.yaml >new.yaml
  autotune import --records new.yaml
  run -0 --separate-stderr autotune import --records old.yaml
  [[ ${#lines[@]} == 2 ]]
  [[ ${lines[0]} == 'kept: NVIDIA H200, fwd:'*':len4096: the record here is of 2027-01-02T03:04:05Z, '*'driver 590.2; '*'2026-01-02T'* ]]
  [[ ${lines[1]} == "1 record imported into $NSA_CACHE_DIR, 1 older than those there" ]]
  autotune list --records --json | jq -e '[.records[] | {tokens, driver}] | sort_by(.tokens) ==
    [{tokens: 4096, driver: "590.2"}, {tokens: 16384, driver: "580.1"}]'
}

@test "import of what is no records, cut or changed: 6, and nothing is stored" {
  import_records
  autotune export --records good.yaml
  export NSA_CACHE_DIR=$PWD/other
  refused() {
    run -6 autotune import --records "$1"
    [[ $output == *"$1: "* && $(autotune list --records --json | jq .count) == 0 ]]
  }
  head -c 500 good.yaml >cut.yaml
  refused cut.yaml
  sed 's/rows=128/rows=129/' good.yaml >changed.yaml
  refused changed.yaml
  : >empty.yaml
  refused empty.yaml
  refused "$NSA_SOURCE/README.md"
  run -1 autotune import --records nowhere.yaml
  run -6 autotune import good.yaml # not without --records
}

@test "import into a folder that others can write: 6" {
  write_records
  mkdir open
  chmod 777 open
  NSA_CACHE_DIR=$PWD/open run -6 autotune import --records records.yaml
  NSA_CACHE_DIR=$PWD/open run -6 autotune list --records
}

@test "verify reads records: a bad one is named and stays; 6" {
  import_records
  run -0 --separate-stderr autotune verify
  [[ $output == *'records: 2 good, 0 bad'* ]]
  file=$(autotune list --records --json | jq -r ".records[0].file")
  path=$(find "$NSA_CACHE_DIR" -name "$file")
  sed -i 's/rows=128/rows=129/' "$path"
  run -6 --separate-stderr autotune verify
  [[ $output == *'records: 1 good, 1 bad'* && $stderr == *"bad record: "*"$file: "* ]]
  [[ -e $path ]]
  autotune list --records --json | jq -e '.count == 1 and .bad == 1'
  run -6 --separate-stderr autotune export --records some.yaml
  [[ $stderr == *"$file"*'1 bad record was left out'* ]]
  NSA_CACHE_DIR=$PWD/other run -0 autotune import --records some.yaml
  [[ $output == '1 record imported'* ]]
}

@test "gc leaves records alone, and removes temporary files beside them" {
  import_records
  touch "$NSA_CACHE_DIR/tuning/.tmp-1-2-3"
  autotune gc --limit 1Mi
  [[ ! -e $NSA_CACHE_DIR/tuning/.tmp-1-2-3 ]]
  autotune list --records --json | jq -e '.count == 2'
}

@test "report: records, crossover, criteria; valid JSON" {
  small_model
  import_records
  autotune doctor >/dev/null && skip 'the records are not of this GPU'
  run -0 --separate-stderr autotune report --out out --no-run small.yaml
  [[ $output == $'out/report.md\nout/report.json' ]]
  jq -e '.records == 2 and .device == "NVIDIA H200" and (.choices | map(.tokens)) == [4096, 16384]
    and .choices[0].chosen[0].gain == 0.25
    and (.sparse_against_dense[0].crossover_tokens - 8192 | fabs) < 1
    and (.criteria | map(select(.criterion | startswith("sparse"))) | .[0].result) == "pass"
    and (.runs | all(.result == "skipped"))' out/report.json
  for section in Environment Configuration Choices 'Sparse against dense' 'Checks and benchmarks'; do
    grep -qx "## $section" out/report.md
  done
  grep -q '^| attend_window | mma rows=128 | 0.750 | 2.0 % | 1.000 | 25.0 % |$' out/report.md
}

@test "report without records says how to make them" {
  small_model
  run -0 --separate-stderr autotune report --out out --no-run small.yaml
  jq -e '.records == 0 and .choices == []' out/report.json
  grep -q 'nsa-autotune tune small.yaml' out/report.md
}

@test "report says which programs it does not find" {
  small_model
  cp "$NSA_AUTOTUNE" alone
  PATH=/usr/bin:/bin run -0 --separate-stderr ./alone report --out out small.yaml
  [[ $stderr == *'checks: skipped, nsacheck is neither beside this program nor in $PATH'* ]]
  [[ $stderr == *'prefill: skipped, nsa-bench is neither '* ]]
}

# A program of the given name and body in ./bin.
fake() {
  mkdir -p bin
  printf '#!/bin/sh\n%s\n' "$2" >"bin/$1"
  chmod +x "bin/$1"
}

@test "report takes the JSON of nsacheck and nsa-bench; a failed check is 7" {
  small_model
  fake nsacheck 'echo "{\"passed\": 3, \"arguments\": \"$*\"}"'
  fake nsa-bench 'echo words; all=$*; while [ "$1" != --json ]; do shift; done; echo "{\"bench\": \"$all\"}" >"$2"'
  mkdir out
  echo 'of an earlier report' | tee out/times.csv >out/prefill.md
  PATH=$PWD/bin:$PATH run -0 --separate-stderr autotune report --out "$PWD/out" --commit 0123abc small.yaml
  [[ ! -e out/times.csv && ! -e out/prefill.md ]]
  jq -e '.runs | map(.result) == ["pass", "pass", "pass", "pass"] and .[0].output.passed == 3 and
    .[1].output.arguments == "--filter needle:* --count 0 --json" and (.[2].output.bench | endswith("--commit 0123abc")) and
    (.[3].output.bench | startswith("prefill --json "))' out/report.json
  [[ $output != *words* && $stderr == *words* ]]
  grep -qF -- ' --csv times.csv --svg . --commit 0123abc`' out/report.md # no path of this machine
  grep -qF -- ' --md prefill.md`' out/report.md
  fake nsacheck 'echo "{\"passed\": "; exit 1' # and no JSON
  PATH=$PWD/bin:$PATH run -7 autotune report --out out small.yaml
  jq -e '.runs[0] | .result == "fail" and .status == 1 and .output == null' out/report.json
  fake nsacheck 'exit 77'
  PATH=$PWD/bin:$PATH run -0 autotune report --out out small.yaml
  jq -e '.runs[0].result == "skipped"' out/report.json
}

@test "report: usage, configuration, folder" {
  run -2 autotune report
  run -2 autotune report one.yaml two.yaml
  small_model
  run -1 autotune report --no-run --out /nowhere/at/all small.yaml
  printf 'nsa: 1\nmodle: {}\n' >bad.yaml
  run -3 autotune report --no-run bad.yaml
}

@test "a record that cannot be read stays as it is; list, verify, export and import say so, 6" {
  import_records
  autotune export --records all.yaml
  # File modes do not stop root: the program runs as another user, from a folder that he reaches.
  place=$(mktemp -d)
  cp "$NSA_AUTOTUNE" all.yaml "$place"
  mv "$NSA_CACHE_DIR" "$place/cache"
  export NSA_CACHE_DIR=$place/cache
  chmod -R a+rX "$place"
  file=$(find "$NSA_CACHE_DIR/tuning" -name '*.yaml' | head -n 1)
  before=$(md5sum <"$file")
  chmod 0 "$file"
  as_user=()
  if ((EUID == 0)); then
    chown -R 65534:65534 "$place"
    as_user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  fi
  user() { (cd "$place" && "${as_user[@]}" ./nsa-autotune "$@"); }
  run -6 --separate-stderr user list --records
  [[ $output == *'Permission denied'*'1 record, 1 bad' && $stderr == *'1 file could not be read'* ]]
  run -6 --separate-stderr user list --records --digest
  [[ -z $output && $stderr == *'1 file could not be read'* ]]
  run -6 --separate-stderr user list --records --json
  jq -e '.count == 1 and .bad == 1 and has("digest") and .digest == null' <<<"$output"
  run -6 --separate-stderr user verify
  [[ $output == *'records: 1 good, 1 bad' ]]
  run -6 --separate-stderr user export --records -
  [[ $stderr == *'1 bad record was left out'* && $stderr == *'1 record'* && $stderr != *digest* ]]
  printf '%s\n' "$output" >"$place/part.yaml"
  NSA_CACHE_DIR=$PWD/part autotune import --records "$place/part.yaml"
  part=$(NSA_CACHE_DIR=$PWD/part autotune list --records --digest)
  run -6 --separate-stderr user import --records --digest "$part" part.yaml
  [[ $stderr == *'1 file could not be read'* ]]
  run -6 --separate-stderr user import --records all.yaml
  [[ $stderr == *'nothing was imported: the tuning record '*' cannot be read'* ]]
  chmod 600 "$file"
  [[ $(md5sum <"$file") == "$before" ]]
  rm -r "$place"
}

@test "a folder of records that cannot be used is no empty one: list, verify, export and gc say so, 6" {
  import_records
  chmod 777 "$NSA_CACHE_DIR/tuning"
  for words in 'list --records' 'list --records --json' verify 'export --records new.yaml' gc; do
    # shellcheck disable=SC2086 # words
    run -6 --separate-stderr autotune $words
    [[ $stderr == *"tuning records in $NSA_CACHE_DIR"*'group or others may write to it'* ]]
  done
  [[ ! -e new.yaml ]]
  small_model
  run -0 --separate-stderr autotune report --out out --no-run small.yaml
  jq -e '.criteria | map(select(.criterion == "records")) | .[0].result == "fail"' out/report.json
}

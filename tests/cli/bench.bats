# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

# NSA_BENCH is the program. Times on the CPU device mean nothing; the forms do.

bench() { "$NSA_BENCH" "$@"; }

# Two lengths and two fills of a model that the CPU device runs in a millisecond.
tiny_problems() {
  cat >tiny.txt <<'TXT'
# comments and empty lines are skipped

fwd:h2/1:d16/16:l8/4:s8x4+1+1:w16:q=32:nobatch:fill=random
  fwd:h2/1:d16/16:l8/4:s8x4+1+1:w16:q=64:nobatch:fill=random
fwd:h2/1:d16/16:l8/4:s8x4+1+1:w16:q=64:nobatch:fill=correlated:overlap
TXT
}

measured=$NSA_SOURCE/bench/results/h200-2026-11-20.csv

@test "a wrong command, fill or device gets a guess" {
  run -2 --separate-stderr bench foward
  [[ $stderr == *'"foward" is none of forward, backward, index_kl, window, compressed, decode, prefill, plot, chart, table; did you mean "forward"?'* ]]
  run -2 --separate-stderr bench decode --fill randm
  [[ $stderr == *'did you mean "random"?'* ]]
  run -2 --separate-stderr bench --device CPU
  [[ $stderr == *"did you mean 'cpu'?"* ]]
}

@test "--model takes the model of a configuration in place of the problems' own" {
  tiny_problems
  echo 'fwd:h4/1:d32/32:l8/4:s8x4+1+1:w16:q=64:nobatch:fill=random' >>tiny.txt # with that model the second
  cat >model.yaml <<'YAML'
nsa: 1
model:
  {heads: 3, kv_heads: 1, head_dim: 16, compress: none, window: 0, gate: none,
   select: {by: index, pool: max, block: 8, count: 4, init: 0, local: 1}, index: {heads: 1, dim: 16}}
YAML
  run -0 bench --problems tiny.txt --model model.yaml --list
  [[ ${#lines[@]} == 3 && ${lines[1]} == *:h3/1:d16/16:*:index=16:q=64:*fill=random* ]]
  run -0 bench --problems tiny.txt --model model.yaml --list --filter '*h3/1*q=32*'
  [[ ${#lines[@]} == 1 ]]
  run -0 bench forward --device cpu --threads 1 --problems tiny.txt --model model.yaml --branches
  [[ $output == *3/1* ]]
  run -2 --separate-stderr bench --model none.yaml --list
  [[ $stderr == *"--model: 'none.yaml' is no configuration"* ]]
  run -2 --separate-stderr bench --model model.yaml --problem fwd:q=64
  [[ $stderr == *'leave out --model'* ]]
}

@test "what cannot be written is 1" {
  tiny_problems
  sed -i '/q=64/d' tiny.txt # one problem: each command below times them all before it writes
  for arguments in "--help" "--list" "table $measured" "forward --device cpu --threads 1 --problems tiny.txt"; do
    # shellcheck disable=SC2086 # several arguments
    run -1 bash -c '"$@" 2>errors >/dev/full' - "$NSA_BENCH" $arguments
    [[ $(grep -c 'standard output cannot be written' errors) == 1 ]]
  done
  for option in json md; do
    run -1 --separate-stderr bench forward --device cpu --threads 1 --problems tiny.txt --$option /dev/full
    [[ $stderr == *'cannot write /dev/full'* ]]
  done
  # shellcheck disable=SC2016 # $1 is the inner shell's
  run -1 bash -c '(trap "" XFSZ; ulimit -f 0
    exec "$1" forward --device cpu --threads 1 --problems tiny.txt --csv full.csv 2>&1) | cat
    exit "${PIPESTATUS[0]}"' - "$NSA_BENCH"
  [[ $output == *'cannot write full.csv'* ]]
  mkdir out
  ln -s /dev/full out/h200-2026-11-20-speed.svg
  run -1 --separate-stderr bench plot "$measured" --svg out
  [[ $stderr == *'cannot write out/h200-2026-11-20-speed.svg'* ]]
}

@test "a table of endless lines is refused" {
  tiny_problems
  run -1 --separate-stderr bench forward --device cpu --threads 1 --problems tiny.txt --csv /dev/zero
  [[ $stderr == *'/dev/zero has other columns'* ]]
}

@test "usage errors are 2" {
  run -2 bench frobnicate
  run -2 bench --bogus
  run -2 bench forward surplus
  run -2 bench plot
  run -2 bench plot "$measured"
  run -2 bench table
  run -2 bench table "$measured" --svg .
  run -2 bench table "$measured" --json out.json
  run -2 bench chart
  run -2 bench chart "$measured" --md out.md
  run -2 bench plot "$measured" --svg . --check
  run -2 bench window --from 256 --to 128
  run -2 bench window --from 0
  run -2 bench window --problems tiny.txt
  run -2 bench forward --from 128
  run -2 bench --device gpu
  run -2 bench --set nonsense
  run -2 bench --list --filter 'matches nothing'
  run -2 bench --list --problem 'fwd:h3/2'
  [[ $output == *'KV heads must divide heads'* ]]
  run -2 bench --list --problem 'dense:q=16'
}

@test "a bad line of a problem file is named; a missing file is 1" {
  printf '# one\nfwd:q=16\nfwd:z=1\n' >bad.txt
  run -2 bench --list --problems bad.txt
  [[ $output == *'bad.txt:3: '* ]]
  run -1 bench --list --problems absent.txt
  [[ $output == *absent.txt* ]]
}

@test "the built-in problems and the sweeps" {
  run -0 bench --list
  ((${#lines[@]} == 15))
  [[ $output == *:q=4096:*fill=random* && $output == *:q=131072:*fill=correlated* ]]
  run -0 bench --list --filter '*:h64/8:*'
  ((${#lines[@]} == 1))
  run -0 bench window --list --from 128 --to 600
  ((${#lines[@]} == 3))
  [[ ${lines[2]} == *:q=512:* ]]
  run -0 bench compressed --list
  ((${#lines[@]} == 10))
}

# bats test_tags=slow
@test "forward on the CPU device: text, CSV, JSON, Markdown, SVG" {
  tiny_problems
  bench --device cpu --problems tiny.txt --commit abc --csv out.csv --json out.json --md out.md \
    --svg figures >out.txt
  grep -q '^forward, random, heads 2/1: .* tokens' out.txt
  python3 -m json.tool out.json >/dev/null
  [[ $(jq -r '.results | length' out.json) == 3 ]]
  [[ $(jq -r '.results[1].tokens, .results[0].commit, .results[0].device' out.json) == $'64\nabc\ncpu' ]]
  jq -e '.results[0].parts | map(.part) == ["compress", "forward", "compressed", "selected", "window",
    "dense", "dense_gemm"]' out.json
  jq -e '.results[0].parts[] | select(.part == "forward") | .burst_ms > 0 and .dense_ratio > 0' out.json
  jq -e '.results[0].parts[] | select(.part == "dense_gemm") | .burst_ms == null and .note != ""' out.json
  jq -e '.crossovers == [.crossovers[0]] and .crossovers[0].fill == "random"' out.json
  grep -q '^| 64 | 2/1 | correlated (' out.md
  python3 - <<'PY'
import csv, xml.dom.minidom
rows = list(csv.DictReader(open("out.csv")))
assert len(rows) == 21 and all(None not in row and None not in row.values() for row in rows), rows
first = "date,commit,device,problem,part,burst_ms,sustained_ms,tflops,gbps,roofline,r,u4,u8,workspace," \
        "plan_cold_ms,plan_warm_ms"
assert ",".join(rows[0]).startswith(first)
assert list(rows[0])[-2:] == ["floor_ms", "note"]
for name in "speed", "speedup", "stages":
    assert xml.dom.minidom.parse(f"figures/forward-{name}.svg").getElementsByTagName("text")
PY
  # What is read back is what was written.
  bench table out.csv >table
  [[ $(wc -l <table) == 5 ]]
  grep -Fxf table out.md | diff table -
  bench plot out.csv --svg again
  diff figures/forward-stages.svg again/out-stages.svg

  # What is no number is refused, and is not taken for a missing time.
  awk -F'"' -v OFS='"' 'NR == 2 { sub(/[0-9.]+/, "1.5x", $5) } 1' out.csv >bad.csv
  run -1 bench table bad.csv
  [[ $output == *"bad.csv:2: burst_ms is '1.5x', no number from 0"* ]]
}

# bats test_tags=slow
@test "index_kl: over the blocks of a forward and as a warm-up; models without an index are refused" {
  bench index_kl --device cpu --problem fwd:index=16:h4/2:d16/16:l8/4:s8x4+0+1:w0:gate=none:q=64:nobatch --json out.json --csv out.csv
  jq -e '.results[0].parts | map(.part) == ["forward", "dense", "index_kl", "kl_warm_up"]' out.json
  jq -e '.results[0].parts | all(.burst_ms > 0 and .note == "")' out.json
  grep -q ',kl_warm_up,' out.csv
  run -0 bench index_kl --list
  ((${#lines[@]} == 4))
  [[ ${lines[0]} == *:index=128:* ]]
  run -2 bench index_kl --device cpu --problem fwd:h2/1:d16/16:l8/4:s8x4+1+1:w16:q=32
  [[ $output == *'index_kl takes a model with an index'* ]]
  run -2 bench index_kl --branches
}

@test "backward: the forward alone and with what the backward takes, and both ways back" {
  bench backward --device cpu --problem fwd:h2/1:d16/16:l8/4:s8x4+1+1:w16:q=32:nobatch:fill=random --json out.json --svg .
  jq -e '.results[0].parts | map(.part) == ["forward", "backward", "back_saved", "fwd_saved"]' out.json
  jq -e 'all(.results[0].parts[]; .burst_ms > 0)' out.json
  for name in forward backward back_saved fwd_saved; do
    grep -q ">$name, random</text>" backward-speed.svg
  done
}

@test "decode: cells on the terminal, as CSV and drawn; wrong usage is 2" {
  model='fwd:h4/2:d64/64:w64'
  run -0 --separate-stderr bench decode --device cpu --problem "$model" --contexts 64,300 --batches 1,3 \
    --q-len 2 --page-size 16 --csv cells.csv --svg . --json cells.json --md cells.md --commit abc
  bench plot cells.csv --svg again
  diff <(grep '<text' decode-speed.svg) <(grep '<text' again/cells-speed.svg)
  python3 - <<'PY'
# What is drawn of the CSV is what was drawn of the cells, to the digits that it has.
import re
def curves(name):
    return [[float(x) for x in re.split("[ ,]+", p.strip())]
            for p in re.findall(r'<polyline[^>]* points="([^"]*)"', open(name).read())]
cells, again = curves("decode-speed.svg"), curves("again/cells-speed.svg")
assert cells and [len(c) for c in cells] == [len(c) for c in again]
assert all(abs(x - y) < 0.3 for c, d in zip(cells, again) for x, y in zip(c, d))
PY
  cp cells.csv first.csv
  [[ $(jq -r '.commit, .device, .page_size, (.cells | length)' cells.json) == $'abc\ncpu\n16\n4' ]]
  jq -e '.cells[3] | .context == 300 and .batch == 3 and .ms_total > 0 and .ms_dense == null and .note == ""' cells.json
  # Tokens of 3 sequences and 2 KV heads.
  jq -e '.cells[3] | .reads_expected.cmp == 17 * 6 and .reads_actual.win == 128 * 6' cells.json
  bench table cells.csv >table
  diff <(head -n 2 table) <(head -n 2 cells.md)
  [[ $(wc -l <cells.md) == 4 ]]
  [[ ${lines[1]} == *"2 new tokens, pages of 16" ]]
  ((${#lines[@]} == 8 + 6)) # blank ones are left out: a table of 4 cells, and a summary of them
  run -0 bench decode --device cpu --problem "$model" --contexts 64 --batches 1 --page-size 0 --csv cells.csv
  run -0 bench decode --device cpu --problem "$model" --contexts 300 --batches 2 --csv cells.csv \
    --fill correlated
  python3 - <<'PY'
import csv, xml.dom.minidom
rows = list(csv.DictReader(open("cells.csv")))
assert [(r["S"], r["batch"], r["page_size"]) for r in rows] == \
    [("64", "1", "16"), ("64", "3", "16"), ("300", "1", "16"), ("300", "3", "16"), ("64", "1", "0"),
     ("300", "2", "64")]
assert "S,ms_total,ms_cmp,ms_sel,ms_win,reads_actual,reads_expected,reads_actual_decode," \
       "reads_expected_decode" in ",".join(rows[0])
assert all(None not in r and None not in r.values() for r in rows)
assert "fill=correlated" in rows[5]["problem"] and "fill=random" in rows[4]["problem"]
for r in rows:
    assert float(r["ms_total"]) > 0 and float(r["ms_append"]) > 0 and not r["note"], r
# Of one new token what is counted is what follows from the length: 300 tokens have 17 blocks of phi, 3
# whole blocks and the current one are chosen, and a window of 64.
for row, tokens in (rows[4], 3 + 64 + 64), (rows[5], 17 + (3 * 64 + 44) + 64):
    for name in "reads_actual", "reads_expected", "reads_actual_decode", "reads_expected_decode":
        assert row[name] == str(tokens), (name, row)
    size = tokens * int(row["batch"]) * 2 * (64 + 64) * 2 # KV heads, K and V, bytes
    assert int(row["bytes_actual"]) == int(row["bytes_expected"]) == size, row
# Of two each reads its own blocks and window, which have to be read once; phi's blocks are shared.
two = rows[2]
assert two["reads_actual_cmp"] == two["reads_expected_cmp"] == "17"
assert two["reads_actual_sel"] == str((3 * 64 + 43) + (3 * 64 + 44))
assert 3 * 64 + 44 <= float(two["reads_expected_sel"]) <= 300
assert (two["reads_actual_win"], two["reads_expected_win"]) == ("128", "65")
assert float(two["reads_actual_decode"]) == float(two["reads_actual"]) / 2
xml.dom.minidom.parse("decode-speed.svg")
PY
  # Lines of other problems, numbers of tokens and pages are left out; the last line of a place counts.
  bench plot cells.csv --svg more
  diff again/cells-speed.svg more/cells-speed.svg
  { cat first.csv && awk -F, -v OFS=, 'NR == 2 { $10 *= 4; print }' first.csv; } >last.csv
  { sed 2d first.csv && awk -F, -v OFS=, 'NR == 2 { $10 *= 4; print }' first.csv; } >only.csv
  bench plot last.csv --svg more
  bench plot only.csv --svg more
  diff more/last-speed.svg more/only-speed.svg
  run -1 diff more/cells-speed.svg more/last-speed.svg
  sed 's/,300,/,x,/' first.csv >bad.csv
  run -1 bench plot bad.csv --svg more
  [[ $output == *"bad.csv:4: S is 'x', expected a number from 1"* ]]
  run -0 bench table cells.csv
  [[ ${lines[0]} == '| context | 1 sequence, dense | 3 |' && ${lines[2]} =~ ^'| 64 | '[0-9.]+' | '[0-9.]+' |'$ ]]
  ((${#lines[@]} == 4))
  # A share is of the bandwidth of its own row's run; a row without says so where others have one.
  python3 - <<'PY'
import csv
rows = list(csv.DictReader(open("first.csv")))
for r, bandwidth in zip(rows, ("1000", "2000", "", "500")):
    r["bytes_expected"], r["ms_total"], r["bandwidth_gbps"] = "5000000", "0.01", bandwidth
out = csv.DictWriter(open("shares.csv", "w"), rows[0])
out.writeheader()
out.writerows(rows)
PY
  run -0 bench table shares.csv
  [[ ${lines[2]} == '| 64 | 10.0; 50 % | 10.0; 25 % |' && ${lines[3]} == '| 300 | 10.0; - | 10.0; 100 % |' ]]
  run -2 bench decode --device cpu --contexts 4k
  run -2 bench decode --device cpu --list
  run -2 bench window --device cpu --batches 4
  run -2 bench window --device cpu --fill random
  run -2 bench decode --device cpu --fill noise
  run -2 bench decode --device cpu --problem "$model:phi=linear"
  run -1 bench decode --device cpu --problem "$model" --contexts 64 --batches 1 --q-len 17
  [[ $output == *"max_q_len"* ]]
}

@test "prefill: cells on the terminal, as CSV, JSON and Markdown" {
  model='fwd:h4/2:d64/64:w64'
  run -0 --separate-stderr bench prefill --device cpu --problem "$model" --contexts 64,200 --chunks 200,128,60 \
    --rows 3 --page-size 16 --csv cells.csv --json cells.json --md cells.md --commit abc
  [[ ${lines[0]} == *', pages of 16; mixed: the last chunk beside 3 rows that decode' ]]
  ((${#lines[@]} == 2 + 5)) # the prompts in one piece, and shorter chunks
  run -0 bench prefill --device cpu --problem "$model" --contexts 64 --rows 0 --page-size 0 --csv cells.csv \
    --fill correlated
  [[ ${lines[0]} == *', without pages' ]]
  [[ $(wc -l <cells.md) == 7 && $(grep -c '^| 200 | 60 | ' cells.md) == 1 ]]
  [[ $(jq -r '.commit, .device, .page_size, .rows, (.cells | length)' cells.json) == $'abc\ncpu\n16\n3\n5' ]]
  jq -e '.cells[4] | .context == 200 and .chunk == 60 and .variants != "" and .mixed_variants != "" and .note == ""' cells.json
  python3 - <<'PY'
import csv, json, math
rows = list(csv.DictReader(open("cells.csv")))
cells = json.load(open("cells.json"))["cells"]
assert list(rows[0]) == ["date", "commit", "device", "problem", "page_size", "rows", "S", "chunk", "ms_prompt",
                         "ms_last", "ms_mixed", "ms_added", "ms_rows", "ms_decode", "ms_forward", "ms_dense",
                         "prompt_over_forward", "dense_over_prompt", "kv_dtype", "cmp_dtype", "note"]
assert all(None not in r and None not in r.values() for r in rows)
assert [(r["S"], r["chunk"], r["rows"], r["page_size"]) for r in rows] == \
    [("64", "64", "3", "16"), ("64", "60", "3", "16"), ("200", "200", "3", "16"), ("200", "128", "3", "16"),
     ("200", "60", "3", "16"), ("64", "64", "0", "0")]
def close(a, b):
    return math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-2)
for r, cell in zip(rows, cells):
    ms = {k: float(v) for k, v in r.items() if k.startswith("ms_")}
    assert all(v > 0 for k, v in ms.items() if k != "ms_added") and not r["note"], r
    assert r["commit"] == "abc" and r["device"] == "cpu" and f"q={r['S']}:kv={r['S']}:" in r["problem"], r
    assert close(ms["ms_added"], ms["ms_mixed"] - ms["ms_last"]), r
    assert close(float(r["prompt_over_forward"]), ms["ms_prompt"] / ms["ms_forward"]), r
    assert close(float(r["dense_over_prompt"]), ms["ms_dense"] / ms["ms_prompt"]), r
    assert all(close(cell[k], v) for k, v in ms.items()), (r, cell)
    assert cell["problem"] == r["problem"]
# What is timed once for a context is the same in all its lines.
for name in "ms_forward", "ms_dense", "ms_decode":
    assert len({r[name] for r in rows[2:5]}) == 1
# No rows, no times of them.
assert not any(rows[5][k] for k in ("ms_mixed", "ms_added", "ms_rows", "ms_decode")) and rows[5]["ms_prompt"]
assert "fill=correlated" in rows[5]["problem"]
PY
}

@test "decode, prefill: a cache in FP8, its bytes, and its errors by inputs" {
  model='fwd:h4/2:d64/64:w64'
  run -0 --separate-stderr bench decode --device cpu --problem "$model" --contexts 300,2048 --batches 2 --kv fp8 \
    --csv cells.csv --json cells.json
  [[ ${lines[1]} == *', pages of 64, raw K and V in e4m3' ]]
  printf '%s\n' "$output" >both
  bench decode --device cpu --problem "$model" --contexts 300 --batches 2 --kv e4m3 --cmp fp8 --csv cells.csv >>both
  bench decode --device cpu --problem "$model" --contexts 300 --batches 2 --kv model --csv cells.csv >model
  [[ $(grep -c 'error in %' both) == 2 && $(grep -c 'error in %' model) == 0 ]]
  grep -q '^error in % of a cache of 2048 tokens, raw K and V in e4m3, against' both
  jq -e '.kv_dtype == "e4m3" and .cmp_dtype == "model"' cells.json
  python3 - <<'PY'
import csv
rows = list(csv.DictReader(open("cells.csv")))
assert [(r["S"], r["kv_dtype"], r["cmp_dtype"]) for r in rows] == \
    [("300", "e4m3", "model"), ("2048", "e4m3", "model"), ("300", "e4m3", "e4m3"), ("300", "model", "model")]
for r, raw, entry in (rows[0], 1, 2), (rows[2], 1, 1), (rows[3], 2, 2):
    size = (17 * entry + (3 * 64 + 44 + 64) * raw) * 2 * 2 * (64 + 64)
    assert int(r["bytes_actual"]) == int(r["bytes_expected"]) == size, r
# Of e4m3 a value has 4 bits: about 3.7 % of a sum of many; a selection that changes adds to it.
lines = [l.split() for l in open("both") if l.split()[:1] and l.split()[0] in ("random", "correlated", "outliers")]
assert [l[0] for l in lines] == ["random", "correlated", "outliers"] * 2
for name, same, cmp, own, changed, lost in lines:
    assert 1 < float(same) < 30 and 1 < float(cmp) < 10 and float(own) < 60, lines
    assert float(changed) < 40 and abs(float(lost)) < 5, lines
assert float(lines[0][1]) < 6 and float(lines[3][1]) < 6
PY
  # Lines of another dtype are other cells.
  [[ $(bench table cells.csv | wc -l) == 4 ]]
  sed 's/,e4m3,model,/,e5m2,model,/' cells.csv >bad.csv
  run -1 bench table bad.csv
  [[ $output == *"bad.csv:2: kv_dtype is 'e5m2', expected model or e4m3"* ]]
  run -0 --separate-stderr bench prefill --device cpu --problem "$model" --contexts 128 --chunks 64 --rows 1 \
    --kv fp8 --cmp fp8
  [[ ${lines[0]} == *', raw K and V in e4m3, compressed entries or index keys in e4m3; mixed: '* && $output == *'own lists'* ]]
  run -2 bench forward --device cpu --kv fp8
  [[ $output == *'forward takes no --kv or --cmp: it has no cache'* ]]
  run -2 bench decode --device cpu --kv int8
}

@test "prefill: what is not timed says why; wrong usage is 2" {
  model='fwd:h4/2:d64/64:w64'
  run -1 --separate-stderr bench prefill --device cpu --contexts 65536 --json none.json
  [[ $stderr == *'no prompt could be timed: prompt: too large for the CPU device' && ! -e none.json ]]
  # One that is too large does not keep the others from being timed.
  run -0 --separate-stderr bench prefill --device cpu --problem "$model" --contexts 1000000,64 --chunks 512 --rows 1
  [[ ${lines[2]} == *'too large for the CPU device' && ${lines[3]} == *'too large for the CPU device' ]]
  [[ ${lines[4]} != *large* ]]
  # The packed prompt has times where the caches are refused.
  run -1 --separate-stderr bench prefill --device cpu --problem "$model" --contexts 64 --page-size 7 --csv page.csv
  [[ $stderr == *'no prompt could be timed: prompt: problem.page_size'* ]]
  python3 -c 'import csv; (r,) = csv.DictReader(open("page.csv"))
assert r["ms_forward"] and r["ms_dense"] and not r["ms_prompt"] and r["note"].startswith("prompt: problem.page_size"), r'
  run -2 bench prefill --device cpu --problem "$model:phi=linear"
  [[ $output == *'prefill is timed with phi=mean'* ]]
  run -2 bench prefill --svg .
  [[ $output == *'prefill draws nothing: --csv, --json and --md write its times'* ]]
  run -2 bench prefill --batches 4
  [[ $output == *'prefill takes no --batches or --q-len'* ]]
  run -2 bench prefill --filter 'x*'
  [[ $output == *'prefill takes no --problems, --filter or --list'* ]]
  run -2 bench decode --chunks 64
  [[ $output == *'decode takes no --chunks or --rows'* ]]
  run -2 bench forward --rows 0
  [[ $output == *'forward takes no --chunks or --rows'* ]]
  run -2 bench prefill --chunks 2k
  [[ $output == *"'2k' is no list"* ]]
  run -2 bench prefill --rows -1
  [[ $output == *"--rows: '-1' is no number from 0 to 65536"* ]]
  echo 'a,b' >other.csv
  run -2 bench prefill --device cpu --contexts 64 --csv other.csv
  [[ $output == *'other.csv has other columns'* ]]
  run -1 bench prefill --device cpu --problem "$model" --contexts 64 --rows 0 --json /dev/full
  [[ $output == *'cannot write /dev/full'* ]]
}

# The committed CSVs have what the figures once left out, clipped or pressed together.
@test "figures: the backward pass, the model and inputs of decode, no dense_gemm" {
  results=$NSA_SOURCE/bench/results
  { cat "$results/h200-2026-11-28-training.csv" && tail -n +2 "$results/h200-2026-11-28-training-random.csv"; } >training.csv
  bench plot training.csv --svg .
  for name in 'forward, correlated' 'backward, correlated' 'back_saved, correlated' 'back_saved, random'; do
    grep -q ">$name</text>" training-speed.svg
  done
  bench plot "$results/h200-2026-11-22-decode.csv" --svg .
  grep -q '>NVIDIA H200, 2026-11-22: 64 heads, 4 KV heads, ' h200-2026-11-22-decode-speed.svg
  grep -q '>1 new token a sequence, pages of 64, random inputs; ' h200-2026-11-22-decode-speed.svg
  run -1 grep 'kv=4096\|1 sequences' h200-2026-11-22-decode-speed.svg
  grep -q ',dense_gemm,' "$results/h200-2026-11-22.csv"
  run -1 grep dense_gemm "$results/h200-2026-11-22-speed.svg"
}

# The files of docs/benchmarks.md, in its order.
chart_files() {
  sed -n 's/^nsa-bench chart --check //p' "$NSA_SOURCE/docs/benchmarks.md" | sed "s|bench/results|$NSA_SOURCE/bench/results|g"
}

@test "README's chart is that of the committed CSVs" {
  read -ra files < <(chart_files)
  ((${#files[@]} > 1))
  run -0 bench chart --check "${files[@]}"
  run -0 bench chart "${files[@]}" --svg again
  diff again/chart.svg "$NSA_SOURCE/bench/results/chart.svg"
  grep -qF '(bench/results/chart.svg)' "$NSA_SOURCE/README.md"
  # Another time, another picture.
  cp "${files[@]}" .
  cp "$NSA_SOURCE/bench/results/chart.svg" .
  run -0 bench chart --check "${files[@]##*/}"
  sed -i '/cudnn,forward.*,1,16384,/s/[^,]*,$/9.9,/' ./*-peers.csv
  run -1 bench chart --check "${files[@]##*/}"
  [[ $output == *'chart.svg is not what these CSVs draw'* ]]
  diff chart.svg "$NSA_SOURCE/bench/results/chart.svg"
  run -1 bench chart --check "${files[@]}" --svg absent
  [[ $output == *'absent/chart.svg cannot be opened'* && ! -e absent ]]
}

# Times of cuDNN that are a power of 2 of the library's, so that places are whole.
three_lines() {
  NSA_RESULTS=$NSA_SOURCE/bench/results python3 - <<'PY'
import csv, os
def read(name, day="22"):
    with open(f"{os.environ['NSA_RESULTS']}/h200-2026-11-{day}{name}.csv") as file:
        return list(csv.DictReader(file))
def write(name, rows):
    with open(name, "w") as file:
        out = csv.DictWriter(file, rows[0])
        out.writeheader()
        out.writerows(rows)
times = [r for r in read("-training", "28") if "q=8192:" in r["problem"] or "q=16384:" in r["problem"]]
times = [r for r in times if r["part"] != "fwd_saved"]
saved = [dict(r, part="fwd_saved") for r in times if r["part"] == "forward"]
steps = [dict(r, q_len="1") for r in read("-decode") if "fill=correlated" in r["problem"]]
peer = dict(read("-peers", "27")[0], date=times[0]["date"])
ms = {(r["part"], r["problem"].split(":q=")[1].split(":")[0]): float(r["burst_ms"]) for r in times}
peers = []
for tokens, factor in ("8192", 2), ("16384", 4):
    forward, both = ms["forward", tokens], ms["forward", tokens] + ms["back_saved", tokens]
    peers += [dict(peer, part="forward", tokens=tokens, ms=factor * forward),
              dict(peer, part="backward", tokens=tokens, ms=2 * both - factor * forward)]
# Neither another backend, nor other heads, nor a number of sequences counts, nor what is off the axis.
peers += [dict(peers[0], backend="flash", ms=1), dict(peers[0], heads=8, ms=1), dict(peers[0], batch=2, ms=1),
          dict(peers[0], tokens=2048, ms=1), dict(peers[0], tokens=32768, ms=""),
          dict(peer, part="decode", batch=32, tokens=65536, ms=float(steps[0]["ms_total"]) * 4)]
write("times.csv", times + saved)
write("steps.csv", steps)
write("peers.csv", peers)
write("h100.csv", [dict(r, device="NVIDIA H100") for r in peers])
write("wrong.csv", [dict(peers[0], part="sideways")])
PY
}

@test "chart: forward, training and decode over cuDNN; points without both times stay out" {
  three_lines
  run -0 --separate-stderr bench chart times.csv steps.csv peers.csv
  [[ $stderr == chart.svg ]]
  # x from 4k to 128k, y from 1 to 4.
  for points in '80.0,400.0 680.0,400.0' '200.0,235.0 320.0,70.0' '200.0,235.0 320.0,235.0' '560.0,70.0'; do
    grep -q "points=\"$points\"" chart.svg
  done
  for name in 'cuDNN, dense' forward 'forward + backward' 'decode, 32 sequences'; do
    grep -q ">$name</text>" chart.svg
  done
  grep -q '>NVIDIA H200, 2026-11-22 to 2026-11-28, commits .*83d94da3' chart.svg
  grep -q '>correlated inputs, 64 heads, 4 KV heads, head dim 128, bf16; dense: PyTorch .*, cuDNN ' chart.svg
  run -0 bench chart --check times.csv steps.csv peers.csv
  cp chart.svg three.svg
  run -0 bench chart times.csv steps.csv peers.csv
  diff chart.svg three.svg

  run -0 --separate-stderr bench chart steps.csv peers.csv
  [[ $stderr == *'"forward" is left out'*'"forward + backward" is left out'* ]]
  run -1 grep '>forward' chart.svg

  run -1 bench chart times.csv steps.csv h100.csv
  [[ $output == *'a chart is of one device, the CSVs are of NVIDIA H200 and NVIDIA H100'* ]]
  run -1 bench chart times.csv steps.csv
  [[ $output == *'nothing can be compared'* ]]
  run -1 bench chart times.csv wrong.csv
  [[ $output == *"wrong.csv:2: part is 'sideways', expected forward, backward or decode"* ]]
  run -1 bench chart times.csv absent.csv
  run -1 bench chart times.csv peers.csv --svg peers.csv
  [[ $output == *'cannot write peers.csv/chart.svg'* ]]
}

@test "counters against the profiler's DRAM reads: the first step's kernels, to a tolerance" {
  mkdir bin
  cat >bin/ncu <<'SH'
#!/usr/bin/env bash
while [[ $1 == --* ]]; do
  case $1 in
    --log-file) log=$2 && shift 2 ;;
    --csv) shift ;;
    *) shift 2 ;;
  esac
done
cat >"$log" <<CSV
==PROF== Connected to process 1
"ID","Kernel Name","dram__bytes_read.sum"
"","","byte"
"0","decode_split_kv_compressed","$SCANNED"
"1","decode_split_kv_select(NsaiDecode)","500000"
"2","decode_split_kv_attend(NsaiDecode)","245,760"
"3","decode_split_kv_compressed","999,999,999"
CSV
exec "$@" --device cpu --problem fwd:h4/2:d64/64:w64
SH
  chmod +x bin/ncu
  dram() { PATH=$PWD/bin:$PATH python3 "$NSA_SOURCE/bench/dram_reads.py" "$NSA_BENCH" --context 300 --batch 2; }
  # 317 tokens of 2 sequences, 2 KV heads, 256 bytes: 324608
  export SCANNED=100000
  run -0 dram
  [[ $output == *'counted 0.32 MB of K and V, expected 0.32, read from DRAM 0.35: +6.5 %' ]]
  SCANNED=40,000
  run -1 dram
  [[ $output == *'-12.0 %' ]]
}

# bats test_tags=slow
@test "a problem that fails is told, the others are timed, 1" {
  tiny_problems
  echo 'fwd:h64/4:d128/128:q=65536:nobatch' >>tiny.txt
  run -1 --separate-stderr bench --device cpu --branches --problems tiny.txt --json out.json
  [[ $stderr == *'too large for the CPU device'* && $stderr == *'1 of 4 problems failed'* ]]
  [[ $(jq -r '.results | length' out.json) == 3 ]]
  run -1 --separate-stderr bench --device cpu
  [[ $stderr == *'nothing could be timed'* ]]
}

# bats test_tags=slow
@test "--csv appends, under one header" {
  problem=fwd:h2/1:d16/16:l8/4:s8x4+1+1:w16:q=32:nobatch
  bench --device cpu --branches --problem $problem --csv out.csv
  bench --device cpu --branches --problem $problem --csv out.csv
  [[ $(grep -c '^date,' out.csv) == 1 ]]
  [[ $(wc -l <out.csv) == 11 ]]
  run -1 grep ',dense,' out.csv
  run -2 bench decode --device cpu --contexts 64 --batches 1 --csv out.csv
  [[ $output == *"out.csv has other columns: give --csv another file"* ]]
  [[ $(wc -l <out.csv) == 11 ]]
}

@test "the sweeps time one branch and dense" {
  bench window --device cpu --from 16 --to 16 --json window.json --md window.md --svg .
  jq -e '.results[0].parts | map(.part) == ["window", "dense"]' window.json
  [[ -s window-speed.svg && ! -e window-stages.svg ]]
  bench compressed --device cpu --from 64 --to 64 --json compressed.json
  jq -e '.results[0].parts | map(.part) == ["compress", "compressed", "dense"]' compressed.json
}

@test "dense attention stands beside a model whose index chooses the blocks" {
  model=fwd:bf16:index=32:gate=none:w0:h4/2:d32/32:s32x4+0+1:kv=shared
  bench forward --device cpu --problem "$model:q=64:kv=64:nobatch" --json forward.json
  jq -e '.results[0].parts[] | select(.part == "dense") | .burst_ms > 0' forward.json
  bench prefill --device cpu --problem "$model" --contexts 64 --chunks 32 --page-size 32 --rows 2 --json prefill.json
  jq -e '.cells | length == 2 and all(.[]; .ms_dense > 0 and .note == "")' prefill.json
}

# The page has the whole tables, README lines of the first.
@test "the tables of docs/benchmarks.md and README and the committed figures are those of the committed CSVs" {
  page=$NSA_SOURCE/docs/benchmarks.md results=$NSA_SOURCE/bench/results
  bench table "$results/h200-2026-11-22.csv" >table
  [[ $(wc -l <table) == 17 ]]
  grep -Fxf table "$page" | diff table -
  grep -E '^\| [0-9]+ \| [0-9]+/[0-9]+ ' "$NSA_SOURCE/README.md" >shown
  [[ -s shown ]]
  run -1 grep -vFxf table shown
  bench table "$results/h200-2026-11-22-decode.csv" >table
  [[ $(wc -l <table) == 5 ]]
  grep -Fxf table "$page" | diff table -
  bench plot "$results/h200-2026-11-22.csv" --svg .
  for name in speed speedup stages; do
    diff "h200-2026-11-22-$name.svg" "$results"
  done
}

@test "a CSV that is none of ours is 1, with file and line" {
  echo 'a,b' >other.csv
  run -1 bench table other.csv
  [[ $output == *"no column 'date'"* ]]
  head -n 1 "$measured" >short.csv
  run -1 bench table short.csv
  [[ $output == *'holds no results'* ]]
  echo 'x,y,z' >>short.csv
  run -1 bench plot short.csv --svg .
  [[ $output == *short.csv:2:* ]]
  { head -n 1 "$measured" && sed -n '2s/,compress,/,nonsense,/p' "$measured"; } >part.csv
  run -1 bench table part.csv
  [[ $output == *nonsense* ]]
  run -1 bench table absent.csv
  run -1 bench plot "$measured" --svg "$measured/below"
}

@test "--ranks: the problems of --tokens; wrong usage is 2; without GPUs 77" {
  NCCL_NVLS_ENABLE=0 run -0 bench backward --ranks 1,2 --tokens 4k,1M --list
  [[ ${#lines[@]} == 4 && ${lines[0]} == *:q=4096:*:fill=random:* && ${lines[3]} == *:q=1048576:*:fill=correlated:* ]]
  NCCL_NVLS_ENABLE=0 run -0 bench forward --ranks 2 --tokens 64k,1M --filter '*fill=random:*' --list
  [[ ${#lines[@]} == 2 && ${lines[1]} == *:q=1048576:*:fill=random:* ]]
  NCCL_NVLS_ENABLE=0 run -2 --separate-stderr bench window --ranks 2
  [[ $stderr == *'window takes no --ranks'* ]]
  NCCL_NVLS_ENABLE=0 run -2 --separate-stderr bench forward --ranks 65
  [[ $stderr == *"'65' is no number from 1 to 64"* ]]
  run -2 --separate-stderr bench forward --tokens 4k
  [[ $stderr == *'--tokens needs --ranks'* ]]
  run -2 --separate-stderr env -u NCCL_NVLS_ENABLE "$NSA_BENCH" forward --ranks 2
  [[ $stderr == *'set NCCL_NVLS_ENABLE=0'* ]]
  NSA_DRIVER_PATH=/nowhere NCCL_NVLS_ENABLE=0 run -77 --separate-stderr bench forward --ranks 2 --tokens 4k
}

@test "--ranks: on the CPU device ranks are threads; one GPU comes first; the model is beside" {
  # 400 and 200 tokens are cut among two ranks; of 40 and 9 each goes whole to one. The third is too large for the CPU device, which ends nothing.
  cat >ranks.txt <<'TXT'
fwd:h16/1:d16/16:l8/4:s8x4+1+1:w16:q=400:nobatch
fwd:h16/1:d16/16:l8/4:s8x4+1+1:w16:q=40,9
fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=65536:nobatch
fwd:h16/1:d16/16:l8/4:s8x4+1+1:w16:q=200:nobatch:fill=correlated:overlap
TXT
  run -1 --separate-stderr bench backward --device cpu --threads 2 --ranks 2 --problems ranks.txt --csv ranks.csv --commit abc
  [[ $stderr == *'4 runs have no time'* && ${#lines[@]} == 16 ]]
  [[ ${lines[0]} =~ ^'backward         400 tokens random      1 ranks '.*' ms '.*' sustained'$ ]]
  [[ ${lines[1]} == back_saved*' 1 ranks '* ]]
  [[ ${lines[8]} =~ ^backward.*' 2 ranks '.*' ms '.*' sustained '.*' x '.*' x  model '.*' ms '[+-][0-9.]+' %'$ ]]
  [[ ${lines[4]} == *'1 ranks too large for the CPU device' && ${lines[12]} == *'2 ranks too large for the CPU device' ]]
  [[ ${lines[14]} == backward*' 200 tokens correlated  2 ranks '* ]]
  python3 - <<'PY'
import csv
rows = list(csv.DictReader(open("ranks.csv")))
assert [(r["part"], r["ranks"]) for r in rows] == [(p, n) for n in "12" for _ in range(4) for p in ("backward", "back_saved")]
one = {(r["problem"], r["part"]): r for r in rows[:8]}
for r in rows:
    assert r["commit"] == "abc" and r["device"] == "cpu" and None not in r
    if "q=65536" in r["problem"]:
        assert not r["burst_ms"] + r["sustained_ms"] + r["burst_ratio"] + r["model_ms"] + r["model_percent"]
        assert r["note"] == "too large for the CPU device"
        continue
    burst, base = float(r["burst_ms"]), float(one[r["problem"], r["part"]]["burst_ms"])
    assert not r["note"] and float(r["sustained_ms"]) > 0 and int(r["workspace"]) > 0
    assert abs(float(r["burst_ratio"]) / (base / burst) - 1) < 1e-2
    if r["ranks"] == "1":
        assert not r["model_ms"] + r["model_percent"]
    else:
        assert abs(float(r["model_percent"]) - 100 * (burst / float(r["model_ms"]) - 1)) < 1
    if "q=40,9" in r["problem"] and r["ranks"] == "2":
        assert 0.7 * base < float(r["model_ms"]) <= base * 1.001, r  # each goes whole to a rank: nothing travels
PY
  run -0 --separate-stderr bench forward --device cpu --threads 2 --ranks 3 --problem fwd:h16/1:d16/16:l8/4:s8x4+1+1:w16:q=400:nobatch
  [[ ${#lines[@]} == 2 && ${lines[1]} == forward*' 3 ranks '*' model '* ]]
  run -1 --separate-stderr bench forward --device cpu --ranks 2 --problem fwd:q=64:nobatch --csv "$measured"
  [[ $stderr == *'has other columns'* ]]
}

@test "--one-gpu: the times of one GPU come from a CSV" {
  local model=fwd:h16/1:d16/16:l8/4:s8x4+1+1:w16:nobatch
  bench backward --device cpu --threads 2 --ranks 2 --problem $model:q=400 --csv once.csv
  run -0 --separate-stderr bench backward --device cpu --threads 2 --ranks 1,2,3 --problem $model:q=400 --one-gpu once.csv --csv again.csv
  [[ ${#lines[@]} == 4 && ${lines[0]} == 'backward  '*' 2 ranks '*' x '*' model '* && ${lines[3]} == back_saved*' 3 ranks '*' x '*' model '* ]]
  python3 - <<'PY'
import csv
one = {r["part"]: r for r in csv.DictReader(open("once.csv")) if r["ranks"] == "1"}
for r in csv.DictReader(open("again.csv")):
    for time, ratio in ("burst_ms", "burst_ratio"), ("sustained_ms", "sustained_ratio"):
        assert abs(float(r[ratio]) / (float(one[r["part"]][time]) / float(r[time])) - 1) < 1e-2
PY
  # Those of nsa-bench without ranks serve, too.
  bench forward --branches --device cpu --problem $model:q=96 --csv plain.csv
  run -0 --separate-stderr bench forward --device cpu --ranks 2 --problem $model:q=96 --one-gpu plain.csv
  [[ ${#lines[@]} == 1 && ${lines[0]} == forward*' 2 ranks '*' x '*' model '* ]]
  run -1 --separate-stderr bench forward --device cpu --ranks 2 --problem $model:q=96 --one-gpu once.csv
  [[ $stderr == *'once.csv has no time of one GPU for any of these problems'* ]]
  # Of a problem that the file lacks the lines have no ratio, and that is said.
  printf '%s\n' $model:q=400 $model:q=97 >two.txt
  run -0 --separate-stderr bench backward --device cpu --threads 2 --ranks 2 --problems two.txt --one-gpu once.csv
  [[ ${lines[0]} == *' x '* && ${lines[2]} != *' x '* ]]
  [[ $stderr == *'once.csv has no time of one GPU for backward of fwd:'*q=97* && $stderr != *q=400* ]]
  (cat once.csv && sed '1d;s/,"cpu",/,"other",/' once.csv) >mixed.csv
  run -1 --separate-stderr bench backward --device cpu --ranks 2 --problem $model:q=400 --one-gpu mixed.csv
  [[ $stderr == *'mixed.csv:'*'times of other, and above of cpu: keep those of one kind of GPU'* ]]
  sed -i 's/,"cpu",/,"NVIDIA H200",/' once.csv
  run -1 --separate-stderr bench backward --device cpu --ranks 2 --problem $model:q=400 --one-gpu once.csv
  [[ $output == *'once.csv has times of NVIDIA H200, and this is cpu: leave out --one-gpu'* ]]
  run -1 --separate-stderr bench forward --device cpu --ranks 2 --problem $model:q=96 --one-gpu none.csv
  [[ $stderr == *'cannot read none.csv'* ]]
  for bad in 'forward' 'forward --ranks 1' 'decode --ranks 2'; do
    # shellcheck disable=SC2086 # several words
    run -2 --separate-stderr bench $bad --one-gpu once.csv
    [[ $stderr == *'--one-gpu is for forward or backward --ranks from 2 on'* ]]
  done
}

@test "--ranks: a rank without a thread, and lost output, are failures" {
  local model=fwd:h4/1:d16/16:l8/4:s8x4+1+1:w16:q=64:nobatch
  for words in forward 'decode --contexts 300 --batches 1' 'prefill --contexts 300'; do
    # shellcheck disable=SC2016,SC2086 # the inner shell's; several words
    run -1 bash -c '"$@" 2>errors >/dev/full' - "$NSA_BENCH" $words --device cpu --ranks 2 --threads 2 --problem $model
    grep -q 'rank 0: cannot write: No space left' errors
  done
  # Stacks that no address space has room for.
  (ulimit -s 214748364800 && "$NSA_BENCH" --version >/dev/null) || skip "no limit of stacks here"
  ulimit -s 214748364800
  run -1 --separate-stderr bench forward --device cpu --threads 1 --ranks 2 --problem $model
  [[ $stderr == *'rank 0: cannot start a thread: '* ]]
}

@test "decode --ranks: steps over ranks that are threads, one GPU first" {
  local model=fwd:h4/1:d16/16:l8/4:s8x4+1+1:w16:q=64 bad
  run -0 --separate-stderr bench decode --device cpu --ranks 3 --contexts 400,2100 --batches 1,2 --q-len 2 --problem $model --csv d.csv --commit abc
  [[ ${#lines[@]} == 8 && ${lines[0]} == 'decode      400 tokens batch    1  1 ranks '*' us '*' with append' ]]
  [[ ${lines[7]} =~ ^'decode     2100 tokens batch    2  3 ranks '.*' us '.*' with append '.*[0-9]\ x$ ]]
  [[ $(head -1 d.csv) == date,commit,device,problem,ranks,unit_tokens,S,batch,* && $(wc -l <d.csv) == 9 ]]
  grep -qE '^[^,]*,abc,"cpu","fwd:[^"]*",1,0,400,1,2,64,model,model,1,[0-9.e-]+,[0-9.e-]+,1,1,,,0,$' d.csv
  grep -qE '^[^,]*,abc,"cpu","fwd:[^"]*",3,1024,2100,2,2,64,model,model,1,[0-9.e-]+,[0-9.e-]+,[0-9.e-]+,[0-9.e-]+,,,0,$' d.csv
  run -0 --separate-stderr bench decode --device cpu --ranks 2 --contexts 300 --batches 1 --kv fp8 --cmp fp8 --problem $model
  # Without a time: the reason, and the status is 1.
  run -1 --separate-stderr bench decode --device cpu --ranks 2 --contexts 300 --batches 1 --page-size 24 --problem $model --csv bad.csv
  [[ ${lines[0]} == *'page_size'* && $(tail -1 bad.csv) == *'page_size'* ]]
  for bad in '--tokens 4k' '--page-size 0'; do
    run -2 --separate-stderr bench decode --device cpu --ranks 2 $bad
    [[ $stderr == *'decode --ranks has --contexts, and pages'* ]]
  done
  for bad in '--ranks 2 --device cpu' '--ranks 1' ''; do
    run -2 --separate-stderr bench decode --peer-bytes 40000 $bad
    [[ $stderr == *'--peer-bytes is for decode or prefill --ranks on 2 to 8 GPUs'* ]]
  done
  run -2 --separate-stderr bench backward --overlap-sms 8 --ranks 1,2
  [[ $stderr == *'--overlap-sms is for forward --ranks on GPUs'* ]]
  for bad in 'decode --ranks 1,2' 'prefill --ranks 1,2' 'forward' 'forward --ranks 1,2 --device cpu' 'backward --ranks 1,2 --device cpu'; do
    # shellcheck disable=SC2086 # several words
    run -2 --separate-stderr bench $bad --copy-bytes 4096
    [[ $stderr == *'--copy-bytes is for forward or backward --ranks on GPUs'* ]]
  done
  run -2 --separate-stderr bench decode --peer-bytes 40000 --ranks 1,9
  [[ $stderr == *'--peer-bytes is for decode or prefill --ranks on 2 to 8 GPUs'* ]]
  run -2 --separate-stderr bench decode --device cpu --ranks 2 --json x.json
  [[ $stderr == *'--ranks takes no'* ]]
  NSA_DRIVER_PATH=/nowhere NCCL_NVLS_ENABLE=0 run -77 --separate-stderr bench decode --ranks 2
}

@test "prefill --ranks: prompts over ranks that are threads, one GPU first" {
  local model=fwd:h4/1:d16/16:l8/4:s8x4+1+1:w16:q=64 bad
  # 2500 tokens in chunks of 900 end with one of 700; 60 tokens go whole to one rank.
  run -0 --separate-stderr bench prefill --device cpu --ranks 1,3 --contexts 60,2500 --chunks 9000,900,60 --problem $model:fill=correlated --csv p.csv --commit abc
  [[ ${#lines[@]} == 8 && ${lines[0]} == 'prefill       60 tokens chunk       60  1 ranks '*' ms '*' last chunk' ]]
  [[ ${lines[6]} =~ ^'prefill     2500 tokens chunk      900  3 ranks '.*' ms '.*' last chunk '.*[0-9]\ x$ ]]
  python3 - <<'PY'
import csv
rows = list(csv.DictReader(open("p.csv")))
assert list(rows[0]) == ["date", "commit", "device", "problem", "ranks", "unit_tokens", "S", "chunk", "page_size", "kv_dtype", "cmp_dtype",
                         "cache_bytes", "workspace", "ms_prompt", "ms_last", "prompt_ratio", "last_ratio", "gather_bytes", "ms_gather",
                         "peer_bytes", "note"]
assert [(r["ranks"], r["unit_tokens"], r["S"], r["chunk"]) for r in rows] == \
    [(n, u, s, c) for n, u in (("1", "0"), ("3", "1024")) for s, c in (("60", "60"), ("2500", "2500"), ("2500", "900"), ("2500", "60"))]
for r, one in zip(rows, 2 * rows[:4]):
    assert r["commit"] == "abc" and r["device"] == "cpu" and None not in r and not r["note"] and r["page_size"] == "64", r
    assert f":q={r['S']}:kv={r['S']}:" in r["problem"] and "fill=correlated" in r["problem"], r
    assert not r["gather_bytes"] + r["ms_gather"] and r["peer_bytes"] == "0", r
    for name in "prompt", "last":
        assert float(r["ms_" + name]) > 0
        assert abs(float(r[name + "_ratio"]) / (float(one["ms_" + name]) / float(r["ms_" + name])) - 1) < 1e-2, r
# Raw tokens of a page take 64 * (16 + 16) * 2 bytes, its entries a fourth. Of the 40 pages of 2500 tokens rank 0 of three has the 16
# of its unit, and as many for the latest tokens as one append writes, which fills the cache with all of them at once.
assert [int(r["cache_bytes"]) for r in rows[1:4]] == 3 * [40 * (4096 + 1024)]
assert [int(r["cache_bytes"]) for r in rows[5:]] == 3 * [(16 + 40) * 4096 + 40 * 1024]
PY
  run -0 --separate-stderr bench prefill --device cpu --ranks 2 --contexts 300 --chunks 100 --kv fp8 --cmp fp8 --problem $model
  # Without a time: the reason, and the status is 1. A prompt that is too large does not keep the others from being timed.
  run -1 --separate-stderr bench prefill --device cpu --ranks 2 --contexts 300 --page-size 24 --problem $model --csv bad.csv
  [[ ${lines[1]} == *'page_size'* && $(tail -1 bad.csv) == *'page_size'* && $stderr == *'2 runs have no time'* ]]
  run -1 --separate-stderr bench prefill --device cpu --ranks 2 --contexts 1000000,64 --chunks 512 --problem $model
  [[ ${lines[0]} == *'too large for the CPU device' && ${lines[2]} == *'2 ranks too large'* && ${lines[3]} == *' last chunk '* ]]
  bench decode --device cpu --ranks 1 --contexts 300 --batches 1 --problem $model --csv d.csv
  run -1 --separate-stderr bench prefill --device cpu --ranks 2 --contexts 64 --problem $model --csv d.csv
  [[ $stderr == *'has other columns'* ]]
  for bad in '--tokens 4k' '--page-size 0'; do
    # shellcheck disable=SC2086 # two words
    run -2 --separate-stderr bench prefill --device cpu --ranks 2 $bad
    [[ $stderr == *'prefill --ranks has --contexts, and pages'* ]]
  done
  run -2 --separate-stderr bench prefill --device cpu --ranks 2 --rows 0
  [[ $stderr == *'prefill --ranks times prompts alone: leave out --rows'* ]]
  for bad in '--ranks 2 --device cpu' ''; do
    # shellcheck disable=SC2086
    run -2 --separate-stderr bench prefill --peer-bytes 40000 $bad
    [[ $stderr == *'--peer-bytes is for decode or prefill --ranks on 2 to 8 GPUs'* ]]
  done
  run -2 --separate-stderr bench prefill --device cpu --ranks 2 --md x.md
  [[ $stderr == *'--ranks takes no'* ]]
  run -1 --separate-stderr bench prefill --device cpu --ranks 2 --problem $model:phi=linear
  [[ $stderr == *'prefill is timed with phi=mean'* ]]
  NSA_DRIVER_PATH=/nowhere NCCL_NVLS_ENABLE=0 run -77 --separate-stderr bench prefill --ranks 2
}

@test "table --ranks: the model, from times of one GPU" {
  results=$NSA_SOURCE/bench/results
  run -0 --separate-stderr bench table "$results/h200-2026-11-28-training.csv" --ranks 2,64 --tokens 64k,1M,100
  [[ ${lines[0]} == 'forward, backward with saved outputs, ms and the speedup over one GPU; correlated inputs. One GPU: NVIDIA H200, 2026-11-28, '* ]]
  [[ ${lines[1]} == '| tokens | 1 | 2, model | 64, model |' && ${#lines[@]} == 6 ]]
  [[ ${lines[3]} == '| 64k | 17.6, 43.8 | '* && ${lines[4]} =~ ^'| 1M | ~'[0-9]+', ~'[0-9]+' | '[0-9]+' (2.0), ' && ${lines[5]} == '| 100 | ~'*', ~'* ]]
  # docs/ranks-costs.md holds what its command prints.
  command=$(grep '^nsa-bench table .*--ranks' "$NSA_SOURCE/docs/ranks-costs.md")
  (cd "$NSA_SOURCE" && bench ${command#nsa-bench }) >table.md
  [[ $(wc -l <table.md) == 9 ]]
  python3 -c 'import sys; assert open("table.md").read() in open(sys.argv[1]).read()' "$NSA_SOURCE/docs/ranks-costs.md"
  # Of forwards alone, with two inputs: two tables, and no backward.
  run -0 --separate-stderr bench table "$measured" --ranks 8
  [[ $output == *'forward, ms and the speedup over one GPU; random inputs.'*'| 4M | ~'*'forward, ms and the speedup over one GPU; correlated inputs.'* ]]
  [[ ${lines[3]} =~ ^'| 64k | 36 | '[0-9.]+' ('[0-9.]+') |'$ ]]
  run -1 --separate-stderr bench table "$results/h200-2026-11-21-window.csv" --ranks 8
  [[ $stderr == *'times of two lengths'* ]]
  run -1 --separate-stderr bench table "$results/h200-2026-11-22-decode.csv" --ranks 8
  [[ $stderr == *'not a CSV of nsa-bench'* ]]
  run -2 --separate-stderr bench table "$measured" --tokens 64k
  [[ $stderr == *'--tokens needs --ranks'* ]]
  for bad in '1' '2 --filter any' '2 --device 0'; do
    # shellcheck disable=SC2086 # several words
    run -2 --separate-stderr bench table "$measured" --ranks $bad
    [[ $stderr == *'numbers from 2 on, and no --filter or --device'* ]]
  done
  # Two devices have a table each; of a backward pass of one length there is no time of others.
  training=$results/h200-2026-11-28-training.csv
  awk '!/,back_saved,/ || !/q=131072:/' "$training" | sed '/q=65536:\|q=131072:/!s/"NVIDIA H200"/"other"/' >one.csv
  run -0 --separate-stderr bench table one.csv --ranks 2 --tokens 64k,1M
  [[ ${#lines[@]} == 10 && ${lines[0]} == *' One GPU: other, '* && ${lines[5]} == *' One GPU: NVIDIA H200, '* ]]
  [[ ${lines[3]} == '| 64k | ~17.3, ~41.2 | '* && ${lines[4]} == '| 1M | ~2274, ~4950 | '* ]]
  [[ ${lines[8]} == '| 64k | 17.6, 43.8 | '* && ${lines[9]} =~ ^'| 1M | ~2860, - | '[0-9]+' (2.0), - |'$ ]]
}

@test "--ranks: ranks are processes; what a GPU has no memory for is no failure, and the list goes on" {
  export NCCL_NVLS_ENABLE=0 NSA_DRIVER_PATH=$NSA_FAKE_CUDA NSA_NVRTC_PATH=$NSA_FAKE_CUDA
  echo fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=1048576:nobatch >fake.txt
  echo fwd:h4/2:d64/64:l32/16:s64x4+1+1:w64:q=1024:nobatch >>fake.txt
  # Rank 0's GPU is too old, rank 1's is not: both leave each problem out together.
  run -1 --separate-stderr bench forward --ranks 2 --device 0 --filter '*q=1024:*' --problems fake.txt --threads 2
  [[ ${#lines[@]} == 2 && ${lines[1]} == *' 2 ranks '*'compute capability 7.5'* && $stderr == *'2 runs have no time'* ]]
  # A limit of memory that the program itself starts with; a sanitizer's shadow has no room below it.
  (ulimit -v 9000000 && "$NSA_BENCH" --version >/dev/null) || skip "no limit of memory here"
  ulimit -v 9000000
  run -0 --separate-stderr bench backward --ranks 1 --device cuda:1 --problems fake.txt --threads 2 --csv fake.csv
  [[ ${lines[0]} == 'backward     1048576 tokens '*' 1 ranks cuMemAlloc: '*'(2): '* && ${lines[1]} == back_saved*cuMemAlloc* ]]
  [[ ${lines[2]} == 'backward        1024 tokens '*' sustained' && ${lines[3]} == back_saved*' sustained' && ${#lines[@]} == 4 ]]
  grep -qE 'q=1048576:.*,backward,1,,,,,,,[0-9]+,0,0,"cuMemAlloc' fake.csv
  # What a process cannot write is no success of its parent.
  small=(--ranks 1 --device cuda:1 --filter '*q=1024:*' --problems fake.txt --threads 2)
  # shellcheck disable=SC2016 # the inner shell's
  run -1 bash -c '"$@" 2>errors >/dev/full' - "$NSA_BENCH" forward "${small[@]}"
  grep -q 'rank 0: cannot write: No space left' errors
  [[ $(wc -c <fake.csv) -gt 1024 ]]
  # shellcheck disable=SC2016
  run -1 --separate-stderr bash -c 'trap "" XFSZ; ulimit -f 1; "$@" | cat; exit "${PIPESTATUS[0]}"' - "$NSA_BENCH" backward "${small[@]}" --csv fake.csv
  [[ $stderr == *'rank 0: cannot write: File too large'* ]]
  # Without an id of rank 0 nobody waits for NCCL.
  FAKE_CUDA_HOST='90 132 232448 A;90 132 232448 B' NSA_NCCL_PATH=/nowhere run -1 --separate-stderr bench forward --ranks 2 --filter '*q=1024:*' --problems fake.txt --threads 2
  [[ ${lines[1]} == *' 2 ranks '*/nowhere* && $stderr == *'rank 1 of 2: another rank has failed'* ]]
  # A GPU that is not there is no failure.
  run -77 --separate-stderr bench forward --ranks 2 --device 7 --problems fake.txt --threads 2
  [[ $stderr == *'GPU 7: the driver sees '* ]]
}

@test "tests/gpu/run.py ranks: what it runs over two GPUs, and the table of the times" {
  mkdir programs
  # In the place of NCCL: the CPU device, with short problems of the inputs that --filter asks for.
  cat >programs/nsa-bench <<'SH'
#!/usr/bin/env bash
echo "$NCCL_NVLS_ENABLE nsa-bench $*" >>calls.txt
if [[ $1 == decode ]]; then
  [[ "$*" == *" --ranks 1,2 --contexts 65536,131072,524288,1048576 --batches 1,16 --csv "* ]] || exit 2
  exec "$REAL_BENCH" decode --device cpu --ranks 1,2 --contexts 300 --batches 1 --problem fwd:h4/1:d16/16:l8/4:s8x4+1+1:w16:q=64
fi
if [[ $1 == prefill ]]; then
  [[ "$*" == *" --ranks 1,2 --contexts 65536,131072,524288,1048576 --chunks 16384,4096 --csv "* ]] || exit 2
  exec "$REAL_BENCH" prefill --device cpu --ranks 1,2 --contexts 300 --chunks 200 --problem fwd:h4/1:d16/16:l8/4:s8x4+1+1:w16:q=64
fi
if [[ "$*" == *--overlap-sms* ]]; then
  [[ "$*" == "forward --ranks 1,2 --tokens 64k,128k --filter *fill=correlated:* --overlap-sms 16 "* ]] || exit 2
  exec "$REAL_BENCH" forward --device cpu --ranks 1,2 --problem fwd:h16/1:d16/16:l8/4:s8x4+1+1:w16:q=256:nobatch
fi
lengths=64k,128k,512k,1M copies=
[[ "$*" == *--copy-bytes* ]] && lengths=64k,128k copies=' --copy-bytes 2147483648'
[[ "$*" == *" --ranks 1,2 --tokens $lengths --filter *fill="*":* --csv "*".csv$copies --cache-dir "* ]] || exit 2
fill=random
[[ "$*" == *fill=correlated:* ]] && fill=correlated
while [[ $1 != --csv ]]; do words+=("$1"); shift; done
exec "$REAL_BENCH" "${words[0]}" --device cpu --threads 2 --ranks 1,2 --csv "$2" --problem "fwd:h16/1:d16/16:l8/4:s8x4+1+1:w16:q=256:nobatch:fill=$fill"
SH
  cat >programs/nsarankcheck <<'SH'
#!/usr/bin/env bash
echo "$NCCL_NVLS_ENABLE nsarankcheck $*" >>calls.txt
[[ "$*" == "--comm nccl "*" --ranks 2"* ]] || exit 2
echo '2 passed, 0 failed, 1 skipped (nccl, 0.1 s)'
[[ "$*" != *'--fault stall'* ]] || { echo '1 passed, 1 failed, 0 skipped (nccl, 0.1 s)'; exit 1; }
SH
  chmod +x programs/*
  REAL_BENCH=$NSA_BENCH run -1 python3 "$NSA_SOURCE/tests/gpu/run.py" programs ranks --gpus 3 --seconds 300 --logs logs
  [[ $output == *'1 failed '*'fault stall  exit 1'* && $output == *'2 passed   0 failed    1 skipped '*'check 128k'* ]]
  [[ $output == *'61 passed   1 failed   18 skipped in 28 processes; no time was left for 0'* ]]
  [[ $(grep -c '^0 ' calls.txt) == 28 && $(wc -l <calls.txt) == 28 ]]
  [[ $(grep -c 'nsarankcheck .* --backward --copy-bytes 2147483648$' calls.txt) == 2 ]]
  [[ $(grep -c -- ' --fault kill,stall --timeout 5 --copy-bytes 2147483648$' calls.txt) == 1 ]]
  [[ $(wc -l <logs/ranks.csv) == 13 && $(wc -l <logs/ranks.md) == 10 ]] # header and 12; 4 lines and 6
  [[ $(wc -l <logs/ranks-copies.csv) == 7 && $(head -1 logs/ranks-copies.csv) == date,*,workspace,overlap_sms,copy_bytes,note ]]
  grep -qE '^[^,]*,,"cpu","fwd:[^"]*",forward,2,[0-9.]+,[0-9.]+,[0-9.]+,[0-9.]+,[^,]*,[^,]*,[0-9]+,0,0,$' logs/ranks-copies.csv
  grep -qE '^\| back_saved \| correlated \| 256 \| cpu \| [0-9.]+, [0-9.]+ \| [0-9.]+, [0-9.]+ \([0-9.]+, [0-9.]+\); [+-][0-9.]+ % \|$' logs/ranks.md
  # A whole run begins its tables anew; a share adds to them.
  REAL_BENCH=$NSA_BENCH run python3 "$NSA_SOURCE/tests/gpu/run.py" programs ranks --gpus 2 --seconds 300 --logs logs --only 'bench forward random'
  [[ $(wc -l <logs/ranks.csv) == 15 ]]
  REAL_BENCH=$NSA_BENCH run python3 "$NSA_SOURCE/tests/gpu/run.py" programs ranks --gpus 2 --seconds 300 --logs logs
  [[ $(wc -l <logs/ranks.csv) == 13 && $(wc -l <logs/ranks-copies.csv) == 7 ]]
  # One GPU has no ranks; programs that find too few are skipped, whatever they print.
  run -77 python3 "$NSA_SOURCE/tests/gpu/run.py" programs ranks --gpus 1 --logs other
  [[ $output == *'ranks     skipped: it needs two GPUs, and there is 1'* ]]
  printf '#!/bin/sh\n[ "$1" = -L ] && for i in 0 1 2 3; do echo "GPU $i: fake"; done\n' >programs/nvidia-smi
  chmod +x programs/nvidia-smi
  for visible in '' 2 5,0 0,-1,1; do
    PATH=$PWD/programs:$PATH CUDA_VISIBLE_DEVICES=$visible run -77 python3 "$NSA_SOURCE/tests/gpu/run.py" programs ranks --logs other
    [[ $output == *'needs two GPUs'* ]]
  done
  printf '#!/bin/sh\necho no GPU\nexit 77\n' | tee programs/nsarankcheck >programs/nsa-bench
  PATH=$PWD/programs:$PATH CUDA_VISIBLE_DEVICES=3,GPU-1 run -1 python3 "$NSA_SOURCE/tests/gpu/run.py" programs ranks --logs other
  [[ $output == *'0 passed   0 failed   28 skipped in 28 processes'* ]]
  # Not by itself: machines with one GPU have nothing for it.
  run python3 "$NSA_SOURCE/tests/gpu/run.py" programs --only nothing --logs other
  [[ $output == *'check  '* && $output != *'ranks  '* ]]
}

@test "no GPU is 77" {
  "$NSA_BENCH" --problem fwd:q=16 --branches >out.txt 2>err.txt || [[ $? == 77 ]]
}

@test "--version is one line" {
  run -0 --separate-stderr bench --version
  [[ -z $stderr && ${#lines[@]} == 1 && $output == 'nsa-bench 0.'* ]]
}

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The checks that need a GPU, in one go, with a table of results at the end.

  run.py FOLDER                     FOLDER: what tests/gpu/pack.sh has built, or a build folder's programs
  run.py FOLDER check sanitize      these parts alone
  run.py FOLDER --seconds 120       limits for each part
  run.py FOLDER sanitize --from 90  the 91st process of the part and those behind it, where an earlier call ended
  run.py FOLDER sanitize --only index_scores  the processes whose names hold one of these words
  run.py FOLDER ranks --seconds 3600          over all GPUs of this machine
  run.py FOLDER ranks --seconds 590 --only "bench forward"   a share of it, where a command may last ten minutes

Parts:
  check     nsacheck, many processes at once: fixed and random problems, scenarios of the cache by each operation,
            and every row of the variant table by its name; nsarankcheck, where FOLDER has it: ranks that are streams
            of one GPU, and processes on two GPUs (skipped where there is one)
  sanitize  the shortest of each row's problems under compute-sanitizer: memcheck, racecheck, synccheck, initcheck
  python    the tests of tests/python in the frameworks that are installed
  ranks     by its name alone: everything over ranks, one GPU each, by NCCL: nsarankcheck with repetitions, long
            sequences and lost ranks, then nsa-bench beside one GPU and its model; on --gpus, one process after the
            other. The times are in LOGS/ranks.csv, a table of them in LOGS/ranks.md; with --only or --from
            they are added to those of earlier calls. Skipped where CUDA shows fewer than two GPUs

The logs are in --logs. The exit status is 1 when a process failed or was still running at the limit, and when a
part ran nothing; 77 when all parts were skipped. Processes for which no time was left are counted, and are no failure.
"""
import argparse
import concurrent.futures
import csv
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]
COUNTS = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped")
PYTEST = {word: re.compile(rf"(\d+) {word}") for word in ("passed", "failed", "skipped", "error")}


class Job:
    """A process: its name, its command, and what became of it."""
    skips = 77  # the exit status of one that had nothing to run

    def __init__(self, name, command, environment=None):
        self.name, self.command, self.environment = name, [str(word) for word in command], environment or {}
        self.passed = self.failed = self.skipped = 0
        self.seconds, self.end, self.begun = 0.0, "", False

    def run(self, logs, latest, deadline):
        """Begins no process after `latest`. One that still runs at the deadline is ended, which is a failure; results up
        to then count."""
        begin = time.monotonic()
        if begin >= latest:
            return
        self.begun = True
        log = logs / (re.sub(r"[^\w.-]+", "_", self.name)[:240] + ".log")
        with log.open("w", encoding="utf-8") as out, tempfile.TemporaryDirectory(prefix="nsa-gpu-") as cache:
            environment = {**os.environ, "NSA_CACHE_DIR": cache, **self.environment}
            process = subprocess.Popen(self.command, stdout=out, stderr=subprocess.STDOUT, env=environment)
            try:
                process.wait(deadline - begin)
                self.end = "" if process.returncode == 0 else f"exit {process.returncode}"
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                self.end = "ended: it still ran at the limit"
        self.seconds = time.monotonic() - begin
        text = log.read_text(encoding="utf-8", errors="replace")
        self.count(text)
        if process.returncode == Job.skips:  # pytest has no such status
            self.skipped = max(self.skipped, 1)
        if process.returncode == self.skips and self.skipped:
            self.end = ""
        if self.end and not self.failed:
            self.failed = 1

    def count(self, text):
        counts = COUNTS.findall(text)
        if counts:
            self.passed, self.failed, self.skipped = (int(number) for number in counts[-1])
        else:  # it was ended before its last line
            self.passed, self.failed, self.skipped = (
                len(re.findall(rf"^{word}\b", text, re.MULTILINE)) for word in ("passed", "failed", "skipped"))


class Pytest(Job):
    skips = 5

    def count(self, text):
        last = text.strip().rsplit("\n", 1)[-1]
        number = {word: int(found[1]) if (found := pattern.search(last)) else 0 for word, pattern in PYTEST.items()}
        self.passed, self.failed, self.skipped = number["passed"], number["failed"] + number["error"], number["skipped"]


def check_jobs(options):
    nsacheck = options.folder / "nsacheck"
    lasting = ["--time-limit", str(BEGINS * options.seconds), "--threads", "2"]
    random = ["--count", "100000", "--seed", str(options.seed), *lasting]
    yield Job("rows", [nsacheck, "--rows", *lasting])
    yield Job("short", [nsacheck, "--short", *lasting])
    yield Job("forward", [nsacheck, "forward", *random])
    yield Job("backward", [nsacheck, "backward", *random])
    for kind in ("decode", "prefill", "split"):
        yield Job(f"cache {kind}", [nsacheck, "cache", "--op", kind, *random])
    yield Job("cache codes", [nsacheck, "cache", "--codes", "any", *random])
    yield Job("cache few", [nsacheck, "cache", "--op", "prefill", "--codes", "any", "--set", "thresholds.prefill_split_from=1", *random])
    for model in ("minimax_m3", "minicpm4"):  # ranked by kernels of their own
        given = [nsacheck, "--model", TREE / f"configs/models/{model}.yaml", *random]
        yield Job(f"{model} packed", [*given, "forward"])
        yield Job(f"{model} backward", [*given, "backward"])
        yield Job(f"{model} cache", [*given, "cache", "--steps", "2"])
    rankcheck = options.folder / "nsarankcheck"
    if rankcheck.exists():
        # A rank that hangs is ended by the communicator's limit, which leaves time for kernels that others compile.
        ranks = ["--ranks", "2", "--backward", "--timeout", "60"]
        yield Job("ranks", [rankcheck, "--device", "0", *ranks])
        yield Job("ranks cache", [rankcheck, "cache", "--device", "0", "--ranks", "2..8", "--random", "210", "--longest", "1500",
                                  "--codes", "any", "--seed", str(options.seed), "--timeout", "60"])
        yield Job("ranks nccl", [rankcheck, "--comm", "nccl", *ranks], {"NCCL_NVLS_ENABLE": "0"})
    yield Job("soak", [nsacheck, "cache", "--soak", "5000", "--codes", "both", "--threads", "2"])


def tokens_of(problem):
    """A measure of a problem's work."""
    lengths = re.search(r":kv=([\d,]+)", problem)
    return sum(map(int, lengths[1].split(","))) if lengths else 700 if "searched" not in problem else 3000


def sanitize_jobs(options):
    if not shutil.which("compute-sanitizer"):
        sys.exit("run.py: compute-sanitizer is not on PATH; leave out the part sanitize")
    nsacheck = options.folder / "nsacheck"
    listed = subprocess.run([nsacheck, "--rows", "--list"], text=True, capture_output=True, check=True).stdout.split()
    shortest = {}
    for problem in listed:  # the packed, the cached and the coded problems of a row apart
        key = problem.rsplit("force=", 1)[1], problem.split(":")[0], "prefill" in problem, "codes" in problem
        if key not in shortest or tokens_of(problem) < tokens_of(shortest[key]):
            shortest[key] = problem
    # attend_compressed_topn_sm90 begins where there is something to search.
    searched = [problem for problem in listed if "searched" in problem and "topn_sm90" in problem]
    # The tools of a problem have its compiled kernels in common, and a call the problems of one tool before the next tool's.
    cache = {"NSA_CACHE_DIR": str(options.logs.resolve() / "cache")}
    for tool, problem in itertools.product(TOOLS, sorted(shortest.values(), key=tokens_of) + searched):
        short = ["--steps", "1", "--repeats", "1"] if problem.startswith("cache:") else []
        yield Job(f"{tool} {problem}", ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", nsacheck, *short,
                                        "--problem", problem], cache)


class Bench(Job):
    """nsa-bench prints a line for each run over ranks; one without a time has the reason in its place."""

    def count(self, text):
        lines = re.findall(r"^(?:forward|backward|back_saved|decode|prefill) .* ranks .*$", text, re.MULTILINE)
        self.passed = sum(any(word in line for word in (" sustained", " with append", " last chunk")) for line in lines)
        self.skipped = max(len(lines) - self.passed, not lines)


RANK_TOKENS = "64k,128k,512k,1M"
RANK_CONTEXTS = "65536,131072,524288,1048576"
RANK_TABLES = "ranks.csv", "ranks-decode.csv", "ranks-prefill.csv", "ranks-copies.csv"
COPY_BYTES = 2 << 30  # of K, V, entries and sums at 128k tokens


def ranks_jobs(options):
    sizes = [str(2 ** i) for i in range(1, 7) if 2 ** i <= max(options.gpus, 2)]
    most, cache = sizes[-1], ["--cache-dir", options.logs.resolve() / "cache"]
    environment = {"NCCL_NVLS_ENABLE": "0"}
    check = [options.folder / "nsarankcheck", "--comm", "nccl", *cache]
    yield Job("check", [*check, "--ranks", ",".join(sizes), "--backward", "--timeout", "60"], environment)
    for tokens in ("4k", "64k", "128k"):
        yield Job(f"check {tokens}", [*check, "--ranks", most, "--tokens", tokens, "--repeat", "20", "--backward"], environment)
    yield Job("check overlap", [*check, "--ranks", most, "--tokens", "4k,64k", "--repeat", "20", "--overlap-sms", "16"], environment)
    yield Job("check overlap random", [*check, "--ranks", most, "--random", "20", "--overlap-sms", "16"], environment)
    copies = ["--copy-bytes", str(COPY_BYTES)] if int(most) <= 8 else []  # of a host
    if copies:
        yield Job("check copies", [*check, "--ranks", most, "--tokens", "4k,64k,128k", "--repeat", "10", "--backward", *copies], environment)
        yield Job("check copies random", [*check, "--ranks", most, "--random", "20", "--backward", *copies], environment)
        yield Job("fault copies", [*check, "--ranks", most, "--fault", "kill,stall", "--timeout", "5", *copies], environment)
    if int(most) > 2:  # ranks of one machine play two hosts: exchanges in two levels
        hosts = [*check, "--ranks", most, "--hosts", "2"]
        yield Job("check overlap hosts", [*hosts, "--tokens", "64k", "--repeat", "20", "--overlap-sms", "16"], environment)
        yield Job("check hosts", [*hosts, "--tokens", "4k,64k", "--repeat", "20", "--backward"], environment)
        yield Job("fault hosts", [*hosts, "--fault", "kill,stall", "--timeout", "5"], environment)
    yield Job("check random", [*check, "--ranks", most, "--random", "20", "--backward"], environment)
    yield Job("check cache", [*check, "cache", "--ranks", most, "--random", "40", "--longest", "3000", "--codes", "any",
                              "--timeout", "60"], environment)
    peers = ["--peer-bytes", "1000000"] if int(most) <= 8 else []  # of a host
    if peers:
        yield Job("check cache peers", [*check, "cache", "--ranks", most, "--random", "40", "--longest", "3000", "--codes", "any",
                                        "--timeout", "60", *peers], environment)
        yield Job("fault peers", [*check, "--ranks", most, "--fault", "kill,stall", "--timeout", "5", *peers], environment)
    for fault in ("kill", "stall", "mismatch"):
        yield Job(f"fault {fault}", [*check, "--ranks", most, "--fault", fault, "--timeout", "5"], environment)
    cache_fault = [*check, "cache", "--ranks", most, "--timeout", "5", "--fault"]
    yield Job("fault cache", [*cache_fault, "kill,stall"], environment)
    yield Job("fault cache lengths", [*cache_fault, "mismatch", "--set", "runtime.check_inputs=full"], environment)
    if peers:
        yield Job("fault cache peers", [*cache_fault, "kill,stall", *peers], environment)
    for command, fill in itertools.product(("forward", "backward"), ("random", "correlated")):
        # All lengths in one process, so that the model has times of one GPU for those that one cannot hold.
        yield Bench(f"bench {command} {fill}", [
            options.folder / "nsa-bench", command, "--ranks", ",".join(["1", *sizes]), "--tokens", RANK_TOKENS,
            "--filter", f"*fill={fill}:*", "--csv", options.logs.resolve() / RANK_TABLES[0], *cache], environment)
    yield Bench("bench overlap", [
        options.folder / "nsa-bench", "forward", "--ranks", ",".join(["1", most]), "--tokens", "64k,128k", "--filter",
        "*fill=correlated:*", "--overlap-sms", "16", *cache], environment)
    if copies:
        for command in ("forward", "backward"):
            yield Bench(f"bench copies {command}", [
                options.folder / "nsa-bench", command, "--ranks", ",".join(["1", *sizes]), "--tokens", "64k,128k", "--filter",
                "*fill=correlated:*", "--csv", options.logs.resolve() / RANK_TABLES[3], *copies, *cache], environment)
    yield Bench("bench decode", [
        options.folder / "nsa-bench", "decode", "--ranks", ",".join(["1", *sizes]), "--contexts", RANK_CONTEXTS, "--batches", "1,16",
        "--csv", options.logs.resolve() / RANK_TABLES[1], *peers, *cache], environment)
    yield Bench("bench prefill", [
        options.folder / "nsa-bench", "prefill", "--ranks", ",".join(["1", *sizes]), "--contexts", RANK_CONTEXTS,
        "--chunks", "16384,4096", "--csv", options.logs.resolve() / RANK_TABLES[2], *cache], environment)


def tokens_text(problem):
    tokens = int(re.search(r":q=(\d+)", problem)[1])
    return f"{tokens >> 20}M" if tokens % 2**20 == 0 else f"{tokens >> 10}k" if tokens % 2**10 == 0 else str(tokens)


def write_ranks(folder):
    """LOGS/ranks.md: of each pass, inputs and length the milliseconds of a burst and of sustained runs, the speedup over one
    GPU, and what the burst takes beyond the model. Of a run that was timed again the last time counts."""
    source = folder / RANK_TABLES[0]
    if not source.exists():
        return
    table, ranks = {}, set()
    for row in csv.DictReader(source.open(encoding="utf-8")):
        key = row["part"], re.search(r":fill=(\w+)", row["problem"])[1], tokens_text(row["problem"]), row["device"]
        times = f" ({row['burst_ratio']}, {row['sustained_ratio']})" if row["burst_ratio"] and row["ranks"] != "1" else ""
        model = f"; {float(row['model_percent']):+.1f} %" if row["model_percent"] else ""
        table.setdefault(key, {})[int(row["ranks"])] = (
            f"{row['burst_ms']}, {row['sustained_ms']}{times}{model}" if row["burst_ms"] else row["note"].replace("|", "/"))
        ranks.add(int(row["ranks"]))
    with (folder / "ranks.md").open("w", encoding="utf-8") as out:
        out.write("Milliseconds of a burst, of sustained runs (the speedup over one GPU); the burst beyond the model "
                  "of bench/ranks_model.h.\n\n")
        out.write("".join(f"| {word} " for word in ("pass", "inputs", "tokens", "device", *sorted(ranks))) + "|\n")
        out.write("|---" * (4 + len(ranks)) + "|\n")
        for key, cells in table.items():
            out.write("".join(f"| {word} " for word in (*key, *(cells.get(r, "") for r in sorted(ranks)))) + "|\n")
    print(f"times over ranks: {folder / 'ranks.md'}", flush=True)


def count_gpus():
    """The GPUs that CUDA shows to a process."""
    if not shutil.which("nvidia-smi"):
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], text=True, capture_output=True, check=False).stdout
    present, visible = len(re.findall(r"^GPU \d+:", listed, re.MULTILINE)), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    # CUDA reads the list up to the first word that names no GPU.
    return len(list(itertools.takewhile(lambda word: word.startswith(("GPU-", "MIG-")) or word.isdigit() and int(word) < present,
                                        map(str.strip, visible.split(",")))))


def python_jobs(options):
    environment = {"NSA_TEST_DEVICE": "cuda", "NSA_PYTHON_LIBRARY": str(options.folder / "libnsa_python.so"),
                   "PYTHONPATH": str(TREE / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    for test in sorted((TREE / "tests/python").glob("test_*.py")):
        yield Pytest(test.name, [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", test],
                     environment)


PARTS = {"check": check_jobs, "sanitize": sanitize_jobs, "python": python_jobs, "ranks": ranks_jobs}
DEFAULT = ["check", "sanitize", "python"]
AT_ONCE = {"check": 8, "sanitize": 8, "python": 3, "ranks": 1}
# The share of a part's time in which processes and problems begin, or all of it but so many seconds: the last ones'.
BEGINS, LASTS = 0.6, 120


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=300, help="for each part [300]")
    parser.add_argument("--from", type=int, default=0, metavar="N", dest="first", help="leave out N processes of each part")
    parser.add_argument("--only", metavar="WORDS", default="", help="the processes whose names hold one of WORDS, separated by commas")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at once [check and sanitize 8, python 3, ranks 1]")
    parser.add_argument("--gpus", type=int, metavar="N", help="of the part ranks: over 2, 4, 8 .. up to N GPUs [all that CUDA shows]")
    parser.add_argument("--seed", type=int, default=1, help="of the random problems [1]")
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("gpu-logs"))
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]}: {', '.join(PARTS)}")
    if options.gpus is None:
        options.gpus = count_gpus()
    options.folder = options.folder.resolve()
    options.logs.mkdir(parents=True, exist_ok=True)
    bad, ran = False, False
    for part in options.parts or DEFAULT:
        if part == "ranks" and options.gpus < 2:
            print(f"{part:9} skipped: it needs two GPUs, and there is {options.gpus}", flush=True)
            continue
        if part == "ranks" and not options.first and not options.only:
            for table in RANK_TABLES:
                (options.logs / table).unlink(missing_ok=True)
        ran = True
        jobs, begin = list(PARTS[part](options))[options.first:], time.monotonic()
        jobs = [job for job in jobs if any(word in job.name for word in options.only.split(","))]
        limits = begin + max(BEGINS * options.seconds, options.seconds - LASTS), begin + options.seconds
        with concurrent.futures.ThreadPoolExecutor(options.jobs or AT_ONCE[part]) as pool:
            list(pool.map(lambda job: job.run(options.logs, *limits), jobs))
        for job in jobs:
            if job.failed or job.end or (job.begun and part != "sanitize"):
                print(f"{part:9} {job.passed:5} passed {job.failed:3} failed {job.skipped:4} skipped {job.seconds:5.0f} s  "
                      f"{job.name}  {job.end}")
        total = [sum(getattr(job, what) for job in jobs) for what in ("passed", "failed", "skipped")]
        late = sum(not job.begun for job in jobs)
        print(f"{part:9} {total[0]:5} passed {total[1]:3} failed {total[2]:4} skipped in {len(jobs) - late} processes; "
              f"no time was left for {late}", flush=True)
        bad |= bool(total[1]) or not total[0]
        if part == "ranks":
            write_ranks(options.logs)
    return int(bad) if ran else 77


if __name__ == "__main__":
    sys.exit(main())

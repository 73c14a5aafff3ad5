#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Checks random problems of random models with nsacheck, and counts what fails.

  sweep_problems.py build/tests/check/nsacheck --seconds 500
  sweep_problems.py build/tests/check/nsacheck --kinds cache --from SEED --count N --device cpu

A seed is one whole random model (tests/check/models.c). For each seed and each kind, that is
forward, backward and cache, one process of nsacheck draws some problems of the model, compiles the
model's kernels into an empty cache folder and checks them. Several processes run at once and share
the GPU, or take the GPUs of --device in turn.

Without --from a kind goes on behind its last seed in the results. At its end a call appends one line
for each kind to tests/results/problems.csv, for the seeds up to the first that was not finished. It
begins no seed after --seconds, and ends what still runs --grace seconds later; after SIGINT or
SIGTERM at once. A seed that was ended this way is checked by the next call.

A failure, a crash and a process that hangs give the exit status 1, and the results name the problem.
`nsacheck --problem` repeats it. --summary prints what the results hold so far. The exit status is 77
without a device.
"""
import argparse
import collections
import concurrent.futures
import datetime
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import sweep_results

RESULTS = sweep_results.TREE / 'tests' / 'results' / 'problems.csv'
KINDS = ['forward', 'backward', 'cache']
COLUMNS = ['date', 'commit', 'device', 'kind', 'first_seed', 'last_seed', 'problems', 'models',
           'failures', 'skipped', 'seconds', 'failing_problems']

RESULT = re.compile(r'^(not )?ok \d+ - (\S+)( # SKIP .*)?$')
DEVICE = re.compile(r'\d+ skipped \((.*), [\d.]+ s\)$', re.MULTILINE)

# The problems of one model take seconds, and tens of seconds with all their kernels to compile.
TIMEOUT_SECONDS = 300


class Check:
    """What became of the problems of one seed and kind."""

    def __init__(self, kind, seed):
        self.kind, self.seed = kind, seed
        self.device = None
        self.problems, self.skipped = 0, 0
        self.failures = []  # (problem, what nsacheck said)


class Sweep:
    """The processes of a call."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.running = set()
        self.ended = False  # what runs was ended, and is not to be counted
        self.no_device = None  # nsacheck's words

    def command(self, check, folder):
        a = self.arguments
        device = a.device[check.seed % len(a.device)]
        longest = ['--longest', str(a.longest)] if check.kind == 'cache' else []
        return [a.program, check.kind, '--model', str(check.seed), '--count', str(a.problems),
                '--device', device, '--threads', str(a.threads), '--cache-dir', folder, *longest]

    def run(self, kind, seed):
        """Checks the problems of a seed. None: the process was ended."""
        check = Check(kind, seed)
        with tempfile.TemporaryDirectory(prefix='nsa-sweep-') as folder:
            command = self.command(check, folder)
            process = subprocess.Popen([*command, '--tap'], text=True, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, errors='replace',
                                       start_new_session=True)  # Ctrl-C is for the sweep
            self.running.add(process)
            if self.ended:  # between the start and the line above
                process.terminate()
            try:
                out, err = process.communicate(timeout=TIMEOUT_SECONDS)
                end = f'exit {process.returncode}'
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                end = f'no end after {TIMEOUT_SECONDS} s'
            self.running.discard(process)
            if self.ended:
                return None
            if '1..0 # SKIP' in out:
                self.no_device = out.strip()
                return None
            read(check, out, err)
            whole = check.problems + check.skipped == self.arguments.problems
            if not whole or process.returncode != bool(check.failures):
                check.failures.append((unfinished(command, check), f'{end}: {err.strip()}'))
        return check

    def end(self):
        """Ends what runs."""
        self.ended = True
        for process in list(self.running):
            process.terminate()


def read(check, out, err):
    """Counts the results of nsacheck."""
    last = None
    for line in out.splitlines():
        result = RESULT.match(line)
        if result:
            last = result[2]
            check.problems += not result[3]
            check.skipped += bool(result[3])
            if result[1]:
                check.failures.append((last, ''))
            elif result[3]:
                print(f'skipped: {last}{result[3]}', flush=True)
        elif line.startswith('# ') and check.failures and check.failures[-1][0] == last:
            check.failures[-1] = (last, f'{check.failures[-1][1]}\n  {line[2:]}')
    device = DEVICE.search(err)
    check.device = device[1] if device else None


def unfinished(command, check):
    """The problem in which a process ended: the first without a result."""
    listed = subprocess.run([*command, '--list'], text=True, capture_output=True, check=False)
    texts = listed.stdout.split()
    done = check.problems + check.skipped
    return texts[done] if done < len(texts) else f'{check.kind}:model={check.seed}'


def next_checks(arguments, rows):
    """Seed after seed, each with all kinds; a kind goes on behind its last seed."""
    first = {kind: arguments.first if arguments.first is not None else
             sweep_results.next_seed([row for row in rows if row['kind'] == kind])
             for kind in arguments.kinds}
    step = 0
    while arguments.count is None or step < arguments.count:
        for kind in arguments.kinds:
            yield kind, first[kind] + step
        step += 1


def sweep(arguments, rows):
    """Runs check after check until the seeds or the time are used up, or a signal ends it. Returns
    what was finished, and the first seed of each kind that was begun."""
    start, stopped = time.monotonic(), []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.append(True))
    todo, processes = next_checks(arguments, rows), Sweep(arguments)
    done, waiting, first = [], set(), {}
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        while True:
            late = time.monotonic() - start - (arguments.seconds or float('inf'))
            while late < 0 and not stopped and len(waiting) < arguments.jobs:
                check = next(todo, None)
                if check is None:
                    break
                first.setdefault(*check)
                waiting.add(pool.submit(processes.run, *check))
            if not waiting and processes.no_device:
                print(f'nsacheck checks nothing here: {processes.no_device}')
                sys.exit(77)
            if not waiting:
                return done, first
            if processes.no_device:
                stopped.append(True)
            if (stopped or late > arguments.grace) and not processes.ended:
                processes.end()
            ready, waiting = concurrent.futures.wait(
                waiting, timeout=0.2, return_when=concurrent.futures.FIRST_COMPLETED)
            for check in (future.result() for future in ready):
                if check is not None:
                    report(check)
                    done.append(check)


def report(check):
    """Prints a line for every failure."""
    for problem, text in check.failures:
        print(f'FAILED {check.kind} seed {check.seed}: {problem} {text}', flush=True)


def finished(checks, first):
    """The checks of one kind without a gap from its first seed on, in order."""
    by_seed, seed = {check.seed: check for check in checks}, first
    while seed in by_seed:
        yield by_seed[seed]
        seed += 1


def summarise(arguments, kind, checks, seconds):
    """The line of the results for a kind."""
    failures = [problem for check in checks for problem, _text in check.failures]
    return {'date': datetime.date.today().isoformat(), 'commit': arguments.commit,
            'device': next((check.device for check in checks if check.device), 'unknown'),
            'kind': kind, 'first_seed': checks[0].seed, 'last_seed': checks[-1].seed,
            'problems': sum(check.problems for check in checks),
            'models': sum(check.problems > 0 for check in checks), 'failures': len(failures),
            'skipped': sum(check.skipped for check in checks), 'seconds': round(seconds),
            'failing_problems': ' '.join(failures)}


def print_summary(rows):
    """What all calls have checked. The kinds of one seed have the same model."""
    sums, seeds = collections.Counter(), collections.defaultdict(set)
    for row in rows:
        for group in ((row['device'], row['kind']), (row['device'], 'all kinds')):
            for column in ('problems', 'failures', 'skipped', 'seconds'):
                sums[group, column] += int(row[column])
            seeds[group].update(range(int(row['first_seed']), int(row['last_seed']) + 1))
    for group in sorted(seeds):
        print(f'{group[0]}, {group[1]}: {sums[group, "problems"]} problems of '
              f'{len(seeds[group])} models, {sums[group, "failures"]} failures, '
              f'{sums[group, "skipped"]} skipped, {sums[group, "seconds"]} s')


def parse():
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('program', nargs='?', help='nsacheck')
    parser.add_argument('--seconds', type=float, metavar='T', help='begin no seed after so long')
    parser.add_argument('--grace', type=float, default=30, metavar='T',
                        help='end what runs so long after --seconds (30)')
    parser.add_argument('--kinds', default=','.join(KINDS), metavar='LIST',
                        help=f'({",".join(KINDS)})')
    parser.add_argument('--from', dest='first', type=int, metavar='SEED', help='the first seed')
    parser.add_argument('--count', type=int, metavar='N', help='so many seeds of each kind')
    parser.add_argument('--problems', type=int, default=20, metavar='N',
                        help='problems of a seed and kind (20)')
    parser.add_argument('--longest', type=int, default=400, metavar='N',
                        help='tokens of the longest sequences of a cache (400)')
    parser.add_argument('--device', default='auto',
                        help='auto, cpu, or ordinals, as 0 or 0,1,2,3 (auto)')
    parser.add_argument('--jobs', type=int, default=cores, metavar='N',
                        help='processes at once (one for each core)')
    parser.add_argument('--threads', type=int, default=1, metavar='N',
                        help='threads of each process (1)')
    parser.add_argument('--commit', metavar='ID', help='for the results (what git says)')
    parser.add_argument('--results', type=pathlib.Path, default=RESULTS, metavar='FILE')
    parser.add_argument('--no-results', action='store_true', help='append nothing to the results')
    parser.add_argument('--summary', action='store_true', help='print what the results hold, and end')
    arguments = parser.parse_args()
    arguments.kinds = arguments.kinds.split(',')
    arguments.device = arguments.device.split(',')
    if wrong := [kind for kind in arguments.kinds if kind not in KINDS]:
        parser.error(f'--kinds: {wrong[0]!r} is none of {", ".join(KINDS)}')
    if arguments.summary:
        return arguments
    if arguments.count is None and arguments.seconds is None:
        parser.error('--count or --seconds says how long')
    if min(arguments.jobs, arguments.threads, arguments.problems) < 1:
        parser.error('--jobs, --threads and --problems are 1 or more')
    if not (arguments.no_results or arguments.commit):
        try:
            arguments.commit = sweep_results.commit()
        except (OSError, subprocess.CalledProcessError):
            parser.error('git does not know this tree: --commit says what is checked')
    if not arguments.program or not os.access(arguments.program, os.X_OK):
        parser.error(f'{arguments.program or "nsacheck"} is no program: name the nsacheck to run')
    arguments.program = os.path.abspath(arguments.program)
    return arguments


def main():
    arguments = parse()
    rows = sweep_results.read_rows(arguments.results)
    if arguments.summary:
        print_summary(rows)
        return 0
    start = time.monotonic()
    checks, first = sweep(arguments, rows)
    seconds = time.monotonic() - start
    passed = failed = skipped = 0
    for kind in arguments.kinds:
        of_kind = [check for check in checks if check.kind == kind]
        whole = list(finished(of_kind, first.get(kind)))
        failed += sum(len(check.failures) for check in of_kind)
        if not whole:
            print(f'{kind}: no seed was finished')
            continue
        row = summarise(arguments, kind, whole, seconds)
        if not arguments.no_results:
            sweep_results.append_row(arguments.results, COLUMNS, row)
        passed += row['problems'] - row['failures']
        skipped += row['skipped']
        print(f'{kind}: seeds {row["first_seed"]} to {row["last_seed"]}: {row["problems"]} problems '
              f'of {row["models"]} models on {row["device"]}, '
              f'{60 * row["problems"] / seconds:.0f} a minute')
    print(f'{passed} passed, {failed} failed, {skipped} skipped')
    return 1 if failed or not passed else 0


if __name__ == '__main__':
    sys.exit(main())

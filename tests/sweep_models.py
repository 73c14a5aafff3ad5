#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Compiles the kernels of random models for several architectures, and counts what is refused.

  sweep_models.py build/nsa-autotune --seconds 600
  sweep_models.py build/nsa-autotune --from SEED --count N [--arch LIST] [--no-results]

A seed is one legal model with the options of six operations (tests/random_model.py). A model on an
architecture is a pair. Each pair gets an empty kernel cache of its own, which is removed behind it:
models share next to no kernels, and every kernel is to be compiled. As many processes of one thread
run as there are cores, with low priority.

No legal model may be refused: a refusal is a failure, and the exit status is then 1. Two things are
counted and are none: kernels for which smaller tiles served, and last resorts, which are used
although they spill registers or serialise their wgmma, because nothing else serves the model.

Without --from the sweep goes on behind the last seed of the results. A call that ends appends one
line for the seeds that it has finished, also after SIGINT or SIGTERM, to tests/results/models.csv.
--show prints every command of one seed.
"""
import argparse
import concurrent.futures
import datetime
import itertools
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

import random_model
import sweep_results

RESULTS = sweep_results.TREE / 'tests' / 'results' / 'models.csv'
ARCHS = 'sm_80,sm_90a,sm_100a,sm_120'
COLUMNS = ['date', 'commit', 'nvrtc', 'archs', 'first_seed', 'last_seed', 'pairs', 'kernels',
           'refused', 'smaller_tiles', 'last_resorts', 'seconds', 'refusals', 'last_resort_kernels']

COMPILED = re.compile(r': (\d+) kernels? compiled in ')
FALLBACK = re.compile(r'smaller tiles are used: kernel (\S+) ')
LAST_RESORT = re.compile(r'kernel (\S+) for \S+ is a last resort: ')

# One compilation of a model's operation takes seconds; an hour means that it hangs.
TIMEOUT_SECONDS = 3600


class Pair:
    """What became of the operations of one model on one architecture."""

    def __init__(self, seed, arch):
        self.seed, self.arch = seed, arch
        self.kernels = 0
        self.fallbacks, self.last_resorts = set(), set()
        self.refusals = []  # (options, what the program said)


def command(program, pair, options, path):
    return [program, 'compile', '--jobs', '1', '--arch', pair.arch, *options, path]


def run_operation(program, pair, options, path, env):
    """Compiles the kernels of one operation."""
    try:
        done = subprocess.run(command(program, pair, options, path), env=env, text=True,
                              capture_output=True, timeout=TIMEOUT_SECONDS, check=False,
                              start_new_session=True)  # Ctrl-C is for the sweep
    except subprocess.TimeoutExpired:
        pair.refusals.append((options, f'no end after {TIMEOUT_SECONDS} s'))
        return
    compiled = COMPILED.search(done.stdout)
    pair.fallbacks.update(FALLBACK.findall(done.stderr))
    pair.last_resorts.update(LAST_RESORT.findall(done.stderr))
    if done.returncode == 0 and compiled:
        pair.kernels += int(compiled[1])
    else:
        pair.refusals.append((options, f'exit {done.returncode}: {done.stderr.strip()}'))


def run_pair(program, seed, arch):
    """Compiles all operations of a model for an architecture."""
    pair = Pair(seed, arch)
    with tempfile.TemporaryDirectory(prefix='nsa-sweep-') as folder:
        path = os.path.join(folder, f'model{seed}.yaml')
        env = {**os.environ, 'NSA_CACHE_DIR': os.path.join(folder, 'cache')}
        pathlib.Path(path).write_text(random_model.configuration(seed) + '\n', encoding='utf-8')
        for options in random_model.operations(seed):
            run_operation(program, pair, options, path, env)
    return pair


def report(pair):
    """Prints a line for everything worth one."""
    where = f'seed {pair.seed} {pair.arch}'
    for options, text in pair.refusals:
        print(f'{where} REFUSED {shlex.join(options)}\n{text}', flush=True)
    for name in sorted(pair.last_resorts):
        print(f'{where} last resort: {name}', flush=True)
    for name in sorted(pair.fallbacks):
        print(f'{where} smaller tiles: {name}', flush=True)


def list_pairs(arguments, first):
    """The pairs of seed after seed, until the seeds or the time are used up, or a signal ends it."""
    end = time.monotonic() + arguments.seconds if arguments.seconds else float('inf')
    ended = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.append(True))
    seeds = itertools.count(first) if arguments.count is None else range(
        first, first + arguments.count)
    for seed in seeds:
        if time.monotonic() >= end:
            return
        for arch in arguments.arch.split(','):
            if ended:
                return
            yield seed, arch


def sweep(arguments, first):
    """Runs pair after pair. Returns those of all seeds that every architecture has finished."""
    todo, done, running = list_pairs(arguments, first), {}, set()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        while True:
            running |= {pool.submit(run_pair, arguments.program, *pair)
                        for pair in itertools.islice(todo, arguments.jobs - len(running))}
            if not running:
                break
            ready, running = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ready:
                pair = future.result()
                report(pair)
                done.setdefault(pair.seed, []).append(pair)
    whole = [pairs for pairs in done.values() if len(pairs) == len(arguments.arch.split(','))]
    return [pair for pairs in sorted(whole, key=lambda pairs: pairs[0].seed) for pair in pairs]


def nvrtc_version(program):
    """Of the NVRTC that the program uses."""
    found = subprocess.run([program, 'doctor', '--json'], text=True, capture_output=True, check=False)
    match = re.search(r'"nvrtc": \{"opened": true, "version": "([0-9.]+)"', found.stdout)
    if not match:
        sys.exit(f'{program} finds no NVRTC: see `{program} doctor`')
    return match[1]


def summarise(arguments, environment, pairs, seconds):
    """The line of the results."""
    resorts = {f'{name}/{pair.arch}' for pair in pairs for name in pair.last_resorts}
    refusals = [f'{pair.seed}/{pair.arch}/{options[1]}'
                for pair in pairs for options, _text in pair.refusals]
    return {**environment, 'archs': arguments.arch.replace(',', ' '),
            'first_seed': pairs[0].seed, 'last_seed': pairs[-1].seed, 'pairs': len(pairs),
            'kernels': sum(pair.kernels for pair in pairs), 'refused': len(refusals),
            'smaller_tiles': sum(len(pair.fallbacks) for pair in pairs),
            'last_resorts': sum(len(pair.last_resorts) for pair in pairs),
            'seconds': round(seconds), 'refusals': ' '.join(refusals),
            'last_resort_kernels': ' '.join(sorted(resorts))}


def show(arguments):
    """Prints the model of a seed and its commands."""
    print(random_model.configuration(arguments.show))
    for arch in arguments.arch.split(','):
        for options in random_model.operations(arguments.show):
            pair = Pair(arguments.show, arch)
            print('#', shlex.join(command(arguments.program, pair, options,
                                          f'model{arguments.show}.yaml')))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('program', help='nsa-autotune')
    parser.add_argument('--from', dest='first', type=int, metavar='SEED', help='the first seed')
    parser.add_argument('--count', type=int, metavar='N', help='so many seeds')
    parser.add_argument('--seconds', type=int, metavar='T', help='begin no seed after so long')
    parser.add_argument('--arch', default=ARCHS, metavar='LIST', help=f'({ARCHS})')
    parser.add_argument('--jobs', type=int, default=len(os.sched_getaffinity(0)), metavar='N',
                        help='processes at once (one for each core)')
    parser.add_argument('--results', type=pathlib.Path, default=RESULTS, metavar='FILE')
    parser.add_argument('--no-results', action='store_true', help='append nothing to the results')
    parser.add_argument('--show', type=int, metavar='SEED', help='print what a seed is, and end')
    arguments = parser.parse_args()
    if arguments.show is None and arguments.count is None and arguments.seconds is None:
        parser.error('--count or --seconds says how long')
    arguments.program = os.path.abspath(arguments.program)
    return arguments


def main():
    arguments = parse()
    if arguments.show is not None:
        show(arguments)
        return 0
    environment = {'date': datetime.date.today().isoformat(), 'commit': sweep_results.commit(),
                   'nvrtc': nvrtc_version(arguments.program)}
    os.nice(10)
    start = time.monotonic()
    first = arguments.first
    if first is None:
        first = sweep_results.next_seed(sweep_results.read_rows(arguments.results))
    pairs = sweep(arguments, first)
    seconds = time.monotonic() - start
    if not pairs:
        print('no seed was finished')
        return 1
    row = summarise(arguments, environment, pairs, seconds)
    if not arguments.no_results:
        sweep_results.append_row(arguments.results, COLUMNS, row)
    print(f'seeds {row["first_seed"]} to {row["last_seed"]}: {row["kernels"]} kernels, '
          f'{row["smaller_tiles"]} with smaller tiles, {row["last_resorts"]} last resorts, '
          f'{60 * len(pairs) / seconds:.1f} pairs a minute')
    failed = sum(bool(pair.refusals) for pair in pairs)
    print(f'{len(pairs) - failed} passed, {failed} failed, 0 skipped')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

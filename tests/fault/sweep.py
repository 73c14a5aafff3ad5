#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Lets one call of the C library after the other fail, in every command and in calls of the API.

  sweep.py BUILD --ci                         a fixed part; prints the Test Anything Protocol
  sweep.py BUILD [--seconds T] [--only WORDS] everything; appends to tests/results/faults.csv
  sweep.py BUILD --point COMMAND,FUNCTION,ERRNO,MODE,N      shows one point

A command runs once undisturbed over a copy of its folder, and its calls of each function are counted
(tests/fault/inject.c, preloaded). A point is a run in which call N of one function fails with one
error: that call alone ("once"), or all calls from there on ("from"). A point is held against the undisturbed
run (tests/fault/oracle.py): no crash, nothing lost, no silent success, nothing left behind, no leak.

A line of the results holds all points of a command, function, error and mode. The sweep goes on with those
that the file does not have; --again begins anew with those of other commits. The commands are those of
tests/fault/commands.py.
"""
import argparse
import collections
import concurrent.futures
import datetime
import errno
import itertools
import os
import pathlib
import sys
import tempfile
import time

import commands
import oracle

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import sweep_results  # noqa: E402: of the folder above

RESULTS = sweep_results.TREE / 'tests' / 'results' / 'faults.csv'
COLUMNS = ('date', 'commit', 'command', 'function', 'errno', 'mode', 'points', *oracle.FAULTS)

# The errors that a function fails with. EINTR fails once: a signal before every call is no fault.
CAUSES = {
    'open': 'EMFILE EACCES EIO EINTR', 'openat': 'EMFILE EACCES EIO EINTR',
    'read': 'EIO EINTR', 'pread': 'EIO EINTR', 'fstat': 'EIO ENOMEM', 'stat': 'EACCES EIO',
    'fstatat': 'EACCES EIO', 'fstatfs': 'EIO', 'readlink': 'EACCES', 'fdopendir': 'ENOMEM', 'readdir': 'EIO', 'write': 'ENOSPC EIO EINTR',
    'pwrite': 'ENOSPC EIO', 'fsync': 'EIO ENOSPC', 'linkat': 'ENOSPC EIO EACCES',
    'renameat': 'ENOSPC EIO EACCES', 'unlinkat': 'EACCES EIO', 'mkdir': 'EACCES ENOSPC',
    'mkdirat': 'EACCES ENOSPC', 'close': 'EIO EINTR', 'mmap': 'ENOMEM', 'fcntl': 'EMFILE',
    'flock': 'ENOLCK EINTR', 'memfd_create': 'EMFILE ENOMEM', 'fork': 'EAGAIN', 'fopen': 'EMFILE EACCES ENOMEM',
    'fdopen': 'ENOMEM', 'fread': 'EIO', 'fwrite': 'ENOSPC', 'fflush': 'ENOSPC EIO',
    'fclose': 'ENOSPC EIO', 'pthread_create': 'EAGAIN', 'malloc': 'ENOMEM', 'calloc': 'ENOMEM',
    'realloc': 'ENOMEM', 'strdup': 'ENOMEM', 'aligned_alloc': 'ENOMEM',
}

Row = collections.namedtuple('Row', 'command function errno mode')

# The part that CI runs has the first and the last call of every row. A sweep that has become empty is
# noticed by its number of points.
CI_POINTS_OF_ROW = 2
CI_POINTS_OF_COMMAND = 15
CI_POINTS = 2700


def rows_of(name, counts):
    for function, causes in CAUSES.items():
        for cause in causes.split():
            for mode in ('once', 'from') if cause != 'EINTR' else ('once',):
                if counts.get(function):
                    yield Row(name, function, cause, mode)


class Sweep:
    """The commands, their undisturbed runs, and points of them."""

    def __init__(self, build, folder):
        self.inputs = commands.Inputs(pathlib.Path(build).resolve(), folder)
        self.table = commands.table(self.inputs)
        self.undisturbed = {}
        self.numbers = itertools.count()

    def run(self, name, row=None, number=0):
        """Runs the command over a copy of its folder; with `row`, call `number` fails."""
        command = self.table[name]
        place = pathlib.Path(self.inputs.folder, f'run{next(self.numbers)}')
        fault = {}
        if row:
            fault = {'FAULT_CALL': row.function, 'FAULT_AT': str(number), 'FAULT_MODE': row.mode,
                     'FAULT_ERRNO': str(getattr(errno, row.errno))}
        try:
            return oracle.run(self.inputs, command, place, fault)
        finally:
            oracle.remove(place)

    def counts(self, name):
        """The calls of each function in the undisturbed run; runs it twice and takes what both have."""
        if name not in self.undisturbed:
            first, second = self.run(name), self.run(name)
            fault = oracle.judge(self.table[name], first, second)
            if fault:
                raise SystemExit(f'{name}: two undisturbed runs differ: {fault}')
            self.undisturbed[name] = first
        return self.undisturbed[name].calls

    def point(self, row, number):
        """What is wrong with a point: (fault, explanation), or None. 'missed': there is no such call."""
        done = self.run(row.command, row, number)
        if done.code is not None and done.calls and not done.fired:
            return 'missed', ''
        return oracle.judge(self.table[row.command], self.undisturbed[row.command], done)


def describe(row, number, found):
    return f'{",".join(row)},{number}: {found[0]}: {found[1]}'


def run_points(sweep, pool, row, numbers, log):
    """The points of a row: how many there were, and how many of each fault."""
    tally = collections.Counter()
    for number, found in zip(numbers, pool.map(lambda n: sweep.point(row, n), numbers)):
        if found and found[0] == 'missed':
            continue
        tally['points'] += 1
        if found:
            tally[found[0]] += 1
            log(describe(row, number, found))
    return tally


def spread(count, most):
    """At most so many of 0..count-1, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({i * (count - 1) // (most - 1) for i in range(most)})


def run_ci(sweep, jobs):
    """A case for each command, one for the number of points, and one for the oracle."""
    names = list(sweep.table)
    print(f'1..{len(names) + 2}', flush=True)
    total, good = 0, True
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for case, name in enumerate(names, 1):
            lines, points = [], 0
            for row in rows_of(name, sweep.counts(name)):
                numbers = spread(sweep.counts(name)[row.function], CI_POINTS_OF_ROW)
                points += run_points(sweep, pool, row, numbers, lines.append)['points']
            total += points
            if points < CI_POINTS_OF_COMMAND:
                lines.append(f'{points} points, at least {CI_POINTS_OF_COMMAND} are expected')
            good &= not lines
            print(f'{"not ok" if lines else "ok"} {case} {name}: {points} points')
            for line in lines:
                print('# ' + line.replace('\n', '\n# '))
            sys.stdout.flush()
    enough = total >= CI_POINTS
    print(f'{"ok" if enough else "not ok"} {len(names) + 1} {total} points, at least {CI_POINTS}')
    blind = oracle.self_test(sweep.table['import'], sweep.undisturbed['import'])
    print(f'{"not ok" if blind else "ok"} {len(names) + 2} the oracle reports every kind of fault')
    if blind:
        print(f'# not reported: {", ".join(blind)}')
    return good and enough and not blind


def rows_done(path, of_commit):
    """The rows that the results have; of one commit alone where it is given."""
    return {Row(*(line[field] for field in Row._fields)) for line in sweep_results.read_rows(path)
            if not of_commit or line['commit'] == of_commit}


def run_all(sweep, options):
    """Row after row. True: nothing was found."""
    here, begin, points, found = sweep_results.commit(), time.monotonic(), 0, 0
    done = rows_done(options.results, here if options.again else None)
    words = options.only.split(',') if options.only else []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        rows = [row for name in sweep.table for row in rows_of(name, sweep.counts(name))
                if row not in done and all(word in row or word in row.command for word in words)]
        # Short rows first, so that a sweep that is cut short has seen every function.
        rows.sort(key=lambda row: sweep.counts(row.command)[row.function])
        left = len(rows)
        for row in rows:
            if options.seconds and time.monotonic() - begin >= options.seconds:
                break
            numbers = range(sweep.counts(row.command)[row.function])
            tally = run_points(sweep, pool, row, numbers, lambda text: print(text, flush=True))
            sweep_results.append_row(options.results, COLUMNS, {
                **dict.fromkeys(COLUMNS, 0), **tally, **row._asdict(),
                'date': datetime.date.today().isoformat(), 'commit': here})
            points += tally['points']
            found += sum(tally.values()) - tally['points']
            left -= 1
    spent = time.monotonic() - begin
    print(f'{points} points, {found} faults, {points / max(spent, 1e-3):.1f} points a second, '
          f'{left} rows left')
    return not found


def show_point(sweep, text):
    *fields, number = text.split(',')
    row = Row(*fields)
    sweep.counts(row.command)
    done = sweep.run(row.command, row, int(number))
    print(f'exit {done.code}, {done.fired} calls failed\n{done.out}{done.err}')
    found = oracle.judge(sweep.table[row.command], sweep.undisturbed[row.command], done)
    print(found or 'good')
    return not found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n', maxsplit=1)[0])
    parser.add_argument('build', help='the build folder')
    parser.add_argument('--ci', action='store_true', help='a fixed part, as TAP')
    parser.add_argument('--point', help='COMMAND,FUNCTION,ERRNO,MODE,N: shows one point')
    parser.add_argument('--only', metavar='WORDS', help='rows that have all of these fields (a,b)')
    parser.add_argument('--seconds', type=int, help='begin no row after so long')
    parser.add_argument('--again', action='store_true', help='rows of other commits as well')
    parser.add_argument('--jobs', type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument('--results', type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    memory = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None  # syncs cost nothing there
    with tempfile.TemporaryDirectory(prefix='nsa-test-sweep-', dir=memory) as folder:
        sweep = Sweep(options.build, folder)
        if options.point:
            return 0 if show_point(sweep, options.point) else 1
        if options.ci:
            return 0 if run_ci(sweep, options.jobs) else 1
        os.nice(10)
        return 0 if run_all(sweep, options) else 1


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# results.py TESTLOG [--gpu]: prints "PASSED FAILED SKIPPED" of a meson-logs/testlog.json. Each case of a
# test that reports in TAP is a result; any other test is one result. A test that fails although none of
# its cases does, such as a program that crashes, counts as an additional failure.
#
# With --gpu, for a machine that has one, a skip that no pattern of gpu_skips.txt allows is named on
# stderr and counts as a failure.
import fnmatch
import json
import pathlib
import re
import sys

CASE = re.compile(r'(not )?ok\b *\d* *(?:- *)?([^#]*?) *(?:# *(SKIP|TODO)\S* *(.*))?$', re.I)


def is_tap(test):
    return any(word == '--tap' or word.endswith('/tap.py') for word in test['command'])


def results(test):
    """Yields (outcome, name) for each result of a test; a name is `test/case: reason`, as far as there are these."""
    name = test['name'].split(' / ')[-1]
    bad = False
    count = 0
    for line in test.get('stdout', '').splitlines() if is_tap(test) else []:
        case = CASE.match(line)
        if not case:
            continue
        count += 1
        failed, title, directive, reason = case.groups()
        bad |= bool(failed) and not directive
        outcome = 'skipped' if (directive or '').upper() == 'SKIP' else 'failed' if failed else 'passed'
        yield outcome, f'{name}/{title or reason}: {reason or ""}'
    good = test['result'] in ('OK', 'EXPECTEDFAIL')
    if not good and test['result'] != 'SKIP' and not bad:
        yield 'failed', name
    elif not count:
        yield 'passed' if good else 'skipped', name


def count(log, allowed=None):
    """Counts the results of an open log. `allowed`: patterns of skips; None: any."""
    counts = {'passed': 0, 'failed': 0, 'skipped': 0}
    refused = []
    for line in log:
        for outcome, name in results(json.loads(line)):
            if outcome == 'skipped' and allowed is not None and not any(fnmatch.fnmatchcase(name, p) for p in allowed):
                refused.append(name)
                outcome = 'failed'
            counts[outcome] += 1
    return counts, refused


def gpu_skips():
    """The patterns of gpu_skips.txt."""
    text = pathlib.Path(__file__).with_name('gpu_skips.txt').read_text()
    return [line for line in text.splitlines() if line and not line.startswith('#')]


def main():
    allowed = gpu_skips() if '--gpu' in sys.argv[2:] else None
    with open(sys.argv[1]) as log:
        counts, refused = count(log, allowed)
    for name in refused:
        print(f'skipped, though there is a GPU: {name}', file=sys.stderr)
    print(*counts.values())


if __name__ == '__main__':
    main()

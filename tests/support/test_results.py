#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Tests results.py (counting, and the rule for skips on a machine with a GPU) with made-up logs, and tap.py
# with made-up programs.
import json
import pathlib
import subprocess
import sys
import unittest

import results

FOLDER = pathlib.Path(__file__).parent


def log(*tests):
    return [json.dumps({'name': 'libnsa:unit / ' + name, 'command': command, 'stdout': stdout, 'result': result})
            for name, command, stdout, result in tests]


def counts(*tests, allowed=None):
    return tuple(results.count(log(*tests), allowed)[0].values())


class Counting(unittest.TestCase):
    def test_cases_are_results(self):
        self.assertEqual(counts(('a', ['/x/tap.py'], '1..3\nok 1 - b\nok 2 # SKIP c\nok 3\n', 'OK')), (2, 0, 1))
        self.assertEqual(counts(('a', ['bats', '--tap'], '1..2\nok 1 b\nnot ok 2 c\n# why\n', 'FAIL')), (1, 1, 0))

    def test_other_tests_are_one_each(self):
        self.assertEqual(counts(('a', ['x'], 'ok 1\nok 2\n', 'OK'), ('b', ['x'], '', 'SKIP'), ('c', ['x'], '', 'FAIL'),
                                ('d', ['x'], '', 'TIMEOUT'), ('e', ['x'], '', 'EXPECTEDFAIL')), (2, 2, 1))

    def test_a_crash_is_a_failure(self):
        self.assertEqual(counts(('a', ['x', '--tap'], '1..3\nok 1 - b\n', 'ERROR')), (1, 1, 0))
        self.assertEqual(counts(('a', ['x', '--tap'], '', 'TIMEOUT')), (0, 1, 0))
        self.assertEqual(counts(('a', ['x', '--tap'], 'not ok 1 - b\n', 'ERROR')), (0, 1, 0))

    def test_a_whole_skip_is_one(self):
        self.assertEqual(counts(('a', ['x', '--tap'], '1..0 # SKIP no GPU\n', 'SKIP')), (0, 0, 1))


class Skips(unittest.TestCase):
    def test_what_is_not_allowed_fails(self):
        tests = [('a', ['x', '--tap'], 'ok 1 - b # SKIP NSA_E_UNSUPPORTED: c\nok 2 - b # SKIP no GPU\n', 'OK'),
                 ('b', ['x'], '', 'SKIP')]
        self.assertEqual(counts(*tests), (0, 0, 3))
        self.assertEqual(counts(*tests, allowed=['a/b: NSA_E_UNSUPPORTED*']), (0, 2, 1))
        self.assertEqual(results.count(log(*tests), ['a/b: NSA_E_UNSUPPORTED*'])[1], ['a/b: no GPU', 'b'])
        self.assertEqual(counts(*tests, allowed=['a/*', 'b']), (0, 0, 3))

    def test_a_skip_without_title_has_cmockas_reason(self):
        self.assertEqual(counts(('a', ['/x/tap.py'], 'ok 1 # SKIP test_b\n', 'OK'), allowed=['a/test_b: *']), (0, 0, 1))


    def test_what_the_list_allows(self):
        tests = [('check_cache', ['x', '--tap'],
                  'ok 1 - cache:decode:seed=1:longest=1500 # SKIP h1/1; 0 rows; NSA_E_UNSUPPORTED: no variant\n', 'OK'),
                 ('cli_tune', ['bats', '--tap'], 'ok 1 tune # skip a GPU is here\n', 'OK')]
        self.assertEqual(counts(*tests, allowed=results.gpu_skips()), (0, 0, 2))
        tests = [('check_forward', ['x', '--tap'], '1..0 # SKIP no GPU\n', 'SKIP'),
                 ('jit', ['/x/tap.py'], 'ok 1 # SKIP test_compile\n', 'OK')]
        self.assertEqual(counts(*tests, allowed=results.gpu_skips()), (0, 2, 0))


class Tap(unittest.TestCase):
    def run_tap(self, script):
        done = subprocess.run([sys.executable, FOLDER / 'tap.py', 'sh', '-c', script], capture_output=True, text=True)
        return done.stdout, done.returncode

    def test_skips_are_no_failures(self):
        self.assertEqual(self.run_tap('echo "1..2"; echo "not ok 1 # SKIP a"; echo "not ok 2 - b"; exit 1'),
                         ('1..2\nok 1 # SKIP a\nnot ok 2 - b\n', 1))

    def test_other_lines_are_comments(self):
        self.assertEqual(self.run_tap('echo noise; echo "ok 1 - a"; echo "# b"'), ('# noise\nok 1 - a\n# b\n', 0))

    def test_a_signal_is_a_status(self):
        self.assertEqual(self.run_tap('kill -SEGV $$')[1], 128 + 11)


if __name__ == '__main__':
    unittest.main()

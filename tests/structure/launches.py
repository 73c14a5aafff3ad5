#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Compares two texts of the program `launches` (launches.c), case by case.

  launches.py compare OLD NEW [--moves moves.tsv] [--ignore PART,...] [--only GLOB] [--most N]
  launches.py self-test PROGRAM

--moves names a tab-separated file. Its lines "kernel:OLD<TAB>kernel:NEW" rename kernels in OLD, and
whatever has the same name, as many variants do. Lines "word:OLD<TAB>word:NEW" rename words in OLD
wherever no kernel is described or launched, and come first there. Its other lines are ignored.
--ignore leaves out parts of the texts:

  explain   what nsa_explain says, and the list of variants
  offsets   where in the workspace things lie: its addresses are replaced by numbers in the order of
            their first appearance in a run, and its size is left out. Two things that lay in the
            same place and no longer do, or the reverse, still differ.
  overlap   whether a launch may begin before the one before it has ended

The differences of the first N cases (10) are printed. The exit status is 1 when any case differs,
is gone or is new, or when there was nothing to compare.
"""
import argparse
import difflib
import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from kernels import read_moves

PARTS = ('explain', 'offsets', 'overlap')
GPU, CASE = '==== ', '== '
RUN_LINES = ('workspace ', 'plan: ', 'context: ')  # one of these ends the explanation
KERNEL_LINE = re.compile(r'^  (?:kernel (\w+)(?=:)|(\w+)(?= grid ))')
WORD = re.compile(r'\w+')
ADDRESS = re.compile(r'\bws\+\d+')
WORKSPACE = re.compile(r'\bworkspace:? \d+( bytes)')


def rename(line, moves):
    kernel, start = KERNEL_LINE.match(line), 0
    if kernel:
        start = kernel.start(kernel.lastindex)
        name = moves['kernel'].get(kernel[kernel.lastindex], kernel[kernel.lastindex])
        line = line[:start] + name + line[kernel.end():]
        start += len(name)
    names = {**moves['kernel'], **moves['word']}
    return line[:start] + WORD.sub(lambda word: names.get(word.group(), word.group()), line[start:])


def strip(lines, ignored):
    """The lines of a case without the ignored parts."""
    if 'explain' in ignored:
        ends = [i for i, line in enumerate(lines) if line.startswith(RUN_LINES)]
        lines = lines[ends[0] if ends else len(lines):]
        lines = [re.sub(r'^(workspace \d+ bytes);.*', r'\1', line) for line in lines]
    if 'overlap' in ignored:
        lines = [line.replace(' shared, overlaps,', ' shared,') for line in lines]
    if 'offsets' in ignored:
        seen = {}
        lines = [ADDRESS.sub(lambda at: f'ws#{seen.setdefault(at.group(), len(seen))}',
                             WORKSPACE.sub('workspace', line)) for line in lines]
    return lines


def read_cases(path, moves, ignored, only):
    """The lines of each case by "GPU, configuration and case"."""
    cases, gpu, title = {}, '', None
    for line in pathlib.Path(path).read_text().splitlines():
        if line.startswith(GPU):
            gpu, title = line[len(GPU):], None
        elif line.startswith(CASE):
            title = f'{gpu}, {rename(line[len(CASE):], moves)}'
            cases[title] = []
        elif title:
            cases[title].append(rename(line, moves))
    return {title: strip(lines, ignored) for title, lines in cases.items()
            if only is None or fnmatch.fnmatch(title, f'*{only}*')}


def compare(args):
    ignored = set(filter(None, args.ignore.split(',')))
    if not ignored <= set(PARTS):
        sys.exit(f'launches.py: --ignore takes {", ".join(PARTS)}')
    old = read_cases(args.old, read_moves(args.moves), ignored, args.only)
    new = read_cases(args.new, read_moves(None), ignored, args.only)
    differ = [title for title in old if title in new and old[title] != new[title]]
    for title in differ[:args.most]:
        print(f'{title}: differs')
        print(''.join(f'  {line}\n' for line in difflib.unified_diff(
            old[title], new[title], 'old', 'new', lineterm='', n=2)), end='')
    gone, come = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    for verdict, titles in (('is gone', gone), ('is new', come)):
        for title in titles[:args.most]:
            print(f'{title}: {verdict}')
    same = len(old) - len(gone) - len(differ)
    print(f'{same} cases are the same, {len(differ)} differ, {len(gone)} are gone, '
          f'{len(come)} are new')
    return 1 if differ or gone or come or not same else 0


def self_test(args):
    """Two runs must print the same. Changes of each kind must be found, and ignored if asked to."""
    with tempfile.TemporaryDirectory(prefix='nsa-launches-') as folder:
        root = pathlib.Path(folder)
        for name, perturb in (('first', '0'), ('second', '165')):  # of memory from malloc
            command = [args.program, '--gpu', '0', 'configs/h200_d128.yaml']
            done = subprocess.run(command, check=True, capture_output=True, text=True,
                                  env={**os.environ, 'MALLOC_PERTURB_': perturb})
            (root / name).write_text(done.stdout)
        text = (root / 'first').read_text()
        assert ' 0 bytes of parameters' not in text, 'a kernel whose parameters are not known'
        launched = set(re.findall(r'^  (\w+) grid ', text, re.M))
        assert len(launched) > 30, f'only {len(launched)} kernels are launched'
        kernel = sorted(launched)[0]
        (root / 'renamed').write_text(re.sub(rf'\b{kernel}\b', 'another_name', text))
        (root / 'moves').write_text(f'kernel:{kernel}\tkernel:another_name\n')
        (root / 'shifted').write_text(ADDRESS.sub(
            lambda at: f'ws+{int(at.group()[3:]) + 256}', text))
        (root / 'other').write_text(re.sub(r'grid (\d+)', r'grid 1\1', text, count=1))
        files = {path.name: str(path) for path in root.iterdir()}
        for expected, words in ((0, 'first second'), (1, 'first renamed'), (1, 'first other'),
                                (0, 'first renamed --moves moves'), (1, 'first shifted'),
                                (0, 'first shifted --ignore offsets'),
                                (1, 'first second --only none'),
                                (0, 'first second --ignore explain,offsets,overlap')):
            command = ['compare', *(files.get(word, word) for word in words.split()), '--most', '2']
            assert main(command) == expected, words
    print('self-test passed')
    return 0


def main(words):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    one = commands.add_parser('compare')
    one.add_argument('old')
    one.add_argument('new')
    one.add_argument('--moves', help='a file of new names')
    one.add_argument('--ignore', default='', help='parts of the texts: ' + ', '.join(PARTS))
    one.add_argument('--only', help='cases whose title has a match of this glob')
    one.add_argument('--most', type=int, default=10, help='cases whose differences are printed')
    one.set_defaults(run=compare)
    one = commands.add_parser('self-test')
    one.add_argument('program', help='the program `launches`')
    one.set_defaults(run=self_test)
    args = parser.parse_args(words)
    return args.run(args)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""What the sweeps have in common: a table of results in tests/results, to which each call adds."""
import csv
import pathlib
import subprocess

TREE = pathlib.Path(__file__).resolve().parent.parent


def commit():
    """The commit of this tree, with a "+" where files differ from it."""
    def git(*words):
        return subprocess.run(['git', '-C', TREE, *words], text=True, capture_output=True,
                              check=True).stdout.strip()
    changed = git('status', '--porcelain', '--untracked-files=no', '--', ':!tests/results')
    return git('rev-parse', '--short=12', 'HEAD') + ('+' if changed else '')


def read_rows(results):
    """The rows of the results, as dictionaries; none where the file does not exist."""
    if not results.exists():
        return []
    with results.open(newline='', encoding='utf-8') as lines:
        return list(csv.DictReader(lines))


def next_seed(rows):
    """Behind the last seed of the rows; 1 where there are none."""
    return max((int(row['last_seed']) for row in rows), default=0) + 1


def append_row(results, columns, row):
    """Adds a row to the results, which are begun where they do not exist."""
    results.parent.mkdir(exist_ok=True)
    new = not results.exists()
    with results.open('a', newline='', encoding='utf-8') as out:
        writer = csv.DictWriter(out, columns, lineterminator='\n')
        if new:
            writer.writeheader()
        writer.writerow(row)

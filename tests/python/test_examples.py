# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The examples, small."""
import pathlib
import re
import subprocess
import sys

from conftest import framework

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def run(*words):
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_train():
    framework("transformers")
    out = run(EXAMPLES / "train.py", "--small")
    losses = {name: (float(last), float(first)) for name, last, first in
              re.findall(r"^(dense|sparse) +loss ([0-9.]+) \(at first ([0-9.]+)\)", out, re.M)}
    assert set(losses) == {"dense", "sparse"} and all(last < first - 0.2 for last, first in losses.values()), out

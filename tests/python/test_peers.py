# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""bench/peers.py on the CPU, whose times mean nothing: which lines it writes."""
import csv
import pathlib
import subprocess
import sys

from conftest import framework

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"


def run(*words):
    return subprocess.run([sys.executable, BENCH / "peers.py", "--device", "cpu", "--lengths", "64", *map(str, words)],
                          capture_output=True, text=True, timeout=300)


def test_lines(tmp_path):
    framework("torch")
    table = tmp_path / "peers.csv"
    done = run("--backends", "flash", "--batches", "2,3", "--csv", table)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(table.open()))
    assert [(r["part"], r["batch"], r["tokens"], r["backend"]) for r in rows] == [
        ("forward", "1", "64", "flash"), ("backward", "1", "64", "flash"),
        ("decode", "2", "64", "flash"), ("decode", "3", "64", "flash")]
    assert all(float(r["ms"]) > 0 and not r["note"] and r["device"] == "cpu" for r in rows)
    # nsa-bench reads files with the columns of the committed one.
    (committed, *_) = sorted((BENCH / "results").glob("*-peers.csv"))
    assert committed.open().readline() == table.open().readline()

    # A backend that cannot is a note and status 1; the file grows under one header.
    done = run("--backends", "cudnn", "--parts", "forward", "--csv", table)
    assert done.returncode == 1
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 5 and not rows[4]["ms"] and rows[4]["note"]


def test_another_file_is_refused(tmp_path):
    framework("torch")
    other = tmp_path / "other.csv"
    other.write_text("a,b\n")
    done = run("--backends", "flash", "--csv", other)
    assert done.returncode == 1 and "has other columns" in done.stderr
    assert other.read_text() == "a,b\n"

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""bench/sparse_peers.py on the CPU: outputs against plain PyTorch, and what it says of files that are missing."""
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import framework

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"


def run(*words, **variables):
    return subprocess.run([sys.executable, BENCH / "sparse_peers.py", *map(str, words)], capture_output=True, text=True,
                          timeout=300, env=os.environ | variables)


def test_libnsa_agrees():
    framework("torch")
    done = run("--device", "cpu", "--check", "--implementations", "libnsa")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": right") == 3


def test_triton_agrees():
    framework("torch")
    pytest.importorskip("triton")
    numpy = pytest.importorskip("numpy")
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip("the interpreter of Triton 3.6 needs a NumPy before 2.4")
    done = run("--device", "cpu", "--check", "--parts", "infllm-prefill", "--implementations", "triton", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": right") == 1


def test_missing_files_are_named(tmp_path):
    framework("torch")
    done = run("--device", "cpu", "--check", "--implementations", "infllm_v2", "--parts", "infllm-prefill", "--peers", tmp_path)
    assert done.returncode == 1
    assert "has no infllm_v2/__init__.py: it is of github.com/OpenBMB/infllmv2_cuda_impl" in done.stdout
    done = run("--device", "cpu")
    assert done.returncode == 1 and "add --check" in done.stderr

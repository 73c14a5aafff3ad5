# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""NSA_TEST_DEVICE=cuda runs the same tests on a GPU, in bfloat16."""
import importlib
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))


def framework(name):
    """A framework's module. One that is missing skips the tests, or fails them where run.sh has pinned it."""
    if os.environ.get("NSA_TEST_FRAMEWORKS") == "required":
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"{name} is not installed")


@pytest.fixture(scope="session")
def device():
    return os.environ.get("NSA_TEST_DEVICE", "cpu")

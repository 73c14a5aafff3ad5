# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""NSA_TEST_DEVICE=cuda runs the same tests on a GPU, in bfloat16."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))


@pytest.fixture(scope="session")
def device():
    return os.environ.get("NSA_TEST_DEVICE", "cpu")

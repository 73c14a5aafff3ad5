# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Runs the Python that README.md and docs/*.md show."""
import pathlib
import re

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
BLOCKS = [(f"{page.relative_to(TOP)}:{text[:match.start()].count(chr(10)) + 1}", match[1])
          for page in [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]
          for text in [page.read_text(encoding="utf-8")] for match in re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S)]


def test_there_are_blocks():
    assert len(BLOCKS) >= 7


@pytest.mark.parametrize("name,code", BLOCKS, ids=[name for name, _ in BLOCKS])
def test_block(name, code, capsys):
    exec(compile(code, name, "exec"), {"__name__": "__main__"})

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The pages that readers get, and their fenced blocks."""

import collections
import pathlib
import re

Block = collections.namedtuple("Block", "line language directive text")


def pages(root):
    """README.md, CONTRIBUTING.md, SECURITY.md and docs/*.md, as paths."""
    root = pathlib.Path(root)
    first = [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [page for page in first if page.exists()] + sorted((root / "docs").glob("*.md"))


def blocks(text):
    """The fenced blocks of a page. A comment `<!-- WORD: REST -->` right above the fence is the
    block's directive, (WORD, REST), else None."""
    lines = text.splitlines()
    found, i = [], 0
    while i < len(lines):
        fence = re.match(r"^( *)```+(\w*)\s*$", lines[i])
        i += 1
        if not fence:
            continue
        above = lines[i - 2].strip() if i > 1 else ""
        directive = re.fullmatch(r"<!-- ([a-z ]+): (.+) -->", above)
        first, body = i, []
        while i < len(lines) and not lines[i].strip().startswith("```"):
            body.append(lines[i][len(fence.group(1)):])
            i += 1
        i += 1
        found.append(Block(first, fence.group(2), directive.groups() if directive else None,
                           "".join(line + "\n" for line in body)))
    return found


def prose(text):
    """The page without its fenced blocks; lines keep their numbers."""
    out, inside = [], False
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        out.append("" if inside or fence else line)
        inside ^= fence
    return "\n".join(out)

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Writes the parts of the pages in this folder that nsa-autotune knows better.

    docs/generate.py build/nsa-autotune            rewrite them
    docs/generate.py build/nsa-autotune --check    only compare; exit status 1 when a page is behind

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import argparse
import difflib
import json
import pathlib
import re
import subprocess
import sys

PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)


def code(text):
    return f"`{text}`"


def values(kind):
    """The values that a key takes, as a table's cell."""
    kind = re.sub(r"^a whole number from (-?\d+) to (-?\d+)$", r"\1 to \2", kind)
    kind = re.sub(r"\[[^\]]*\]", lambda m: code(m.group()), kind)
    words = kind.split(" | ")
    return ", ".join(code(w) if len(words) > 1 and re.fullmatch(r"\w+", w) else w for w in words)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def keys(show):
    """A table for each section of the configuration."""
    sections = {}
    for key in show("keys"):
        sections.setdefault(key["name"].split(".")[0], []).append(key)
    text = []
    for section, members in sections.items():
        rows = []
        for key in members:
            built_in = code(key["default"]) if "default" in key else "must be given"
            variable = f"; {code(key['variable'])}" if "variable" in key else ""
            name = key["name"].partition(".")[2]
            rows.append([code(name), values(key["type"]), built_in, key["help"] + variable])
        text.append(f"### `{section}`\n\n" + table(["key", "values", "built-in", "meaning"], rows))
    return "\n".join(text)


def environment(show):
    rows = [[code(v["name"]), code(v["key"]), code(v["default"]), v["help"]] for v in show("env")]
    return table(["variable", "key", "built-in", "meaning"], rows)


def variants(show):
    """The rows of the variant table, in its order."""
    rows = []
    for v in show("variants"):
        fuses = ", ".join(v["fuses"])
        rows.append([v["stage"], code(v["name"]), v["why"] + (f" (fuses {fuses})" if fuses else "")])
    return table(["stage", "row", "what it is"], rows)


def architectures(show):
    rows = [[code(a["name"]), a["compute_capability"], f"{a['shared_bytes'] // 1024} KiB"]
            for a in show("arch")]
    return table(["architecture", "compute capability", "shared memory of a CTA"], rows)


PARTS = {f.__name__: f for f in (keys, environment, variants, architectures)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="nsa-autotune")
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args()

    def show(what):
        command = [options.program, "show", what, "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    behind = parts = 0
    for page in sorted(pathlib.Path(__file__).parent.glob("*.md")):
        old = page.read_text(encoding="utf-8")
        parts += len(PART.findall(old))
        new = PART.sub(lambda m: m.group(1) + PARTS[m.group(2)](show) + m.group(3), old)
        if new == old:
            continue
        if not options.check:
            page.write_text(new, encoding="utf-8")
            continue
        behind += 1
        sys.stdout.writelines(difflib.unified_diff(
            old.splitlines(True), new.splitlines(True), str(page), "generated"))
    if not parts:
        sys.exit("no page has a generated part")
    if behind:
        sys.exit(f"run docs/generate.py {options.program}")


if __name__ == "__main__":
    main()

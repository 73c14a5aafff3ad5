#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Writes the kernel templates as C arrays, with one digest over their names and contents.

Usage: embed.py OUTPUT ROOT FILE...    (names in the output are relative to ROOT)
"""

import hashlib
import os
import sys


def c_array(data: bytes) -> str:
    """The bytes and a closing NUL, 24 to a line."""
    numbers = [str(byte) for byte in data] + ["0"]
    lines = [",".join(numbers[i:i + 24]) for i in range(0, len(numbers), 24)]
    return ",\n".join(lines)


def main() -> None:
    output, root, paths = sys.argv[1], sys.argv[2], sys.argv[3:]
    templates = []
    for path in paths:
        name = os.path.relpath(path, root).replace(os.sep, "/")
        with open(path, "rb") as file:
            templates.append((name, file.read()))
    templates.sort()

    # Lengths in front, so that moving bytes between files changes the digest.
    digest = hashlib.sha256()
    for name, data in templates:
        digest.update(f"{len(name)}:{name}{len(data)}:".encode())
        digest.update(data)

    with open(output, "w", encoding="ascii") as out:
        out.write("/* Written by embed.py. */\n#include \"compile/templates.h\"\n\n")
        for i, (_, data) in enumerate(templates):
            out.write(f"static const char text_{i}[] = {{\n{c_array(data)}\n}};\n\n")
        out.write("const nsai_template nsai_embedded_templates[] = {\n")
        for i, (name, data) in enumerate(templates):
            out.write(f'  {{ "{name}", text_{i}, {len(data)} }},\n')
        out.write("  { 0, 0, 0 }\n};\n")
        out.write(f"const size_t nsai_embedded_template_count = {len(templates)};\n")
        out.write(f'const char nsai_embedded_digest[] = "{digest.hexdigest()}";\n')


if __name__ == "__main__":
    main()

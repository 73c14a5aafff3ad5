#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Writes files as C arrays.

    embed.py OUTPUT ROOT FILE...             the kernel templates, with one digest over their names,
                                             which are relative to ROOT, and contents
    embed.py --text NAME HEADER OUTPUT FILE  one file as the array NAME, which HEADER declares
"""

import hashlib
import os
import sys


def c_array(data: bytes) -> str:
    """The bytes and a closing NUL, 24 to a line."""
    numbers = [str(byte) for byte in data] + ["0"]
    lines = [",".join(numbers[i:i + 24]) for i in range(0, len(numbers), 24)]
    return ",\n".join(lines)


def embed_text(name: str, header: str, output: str, path: str) -> None:
    with open(path, "rb") as file, open(output, "w", encoding="ascii") as out:
        out.write(f'#include "{header}"\n\nconst char {name}[] = {{\n{c_array(file.read())}\n}};\n')


def embed_templates(output: str, root: str, *paths: str) -> None:
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
    if sys.argv[1] == "--text":
        embed_text(*sys.argv[2:])
    else:
        embed_templates(*sys.argv[1:])

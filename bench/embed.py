#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Writes a file as a C string that a header declares: embed.py INPUT OUTPUT HEADER NAME"""
import json
import sys

with open(sys.argv[1], encoding="ascii") as source, open(sys.argv[2], "w", encoding="ascii") as out:
    out.write(f'#include "{sys.argv[3]}"\n\nconst char {sys.argv[4]}[] =\n')
    # JSON's escapes of ASCII text are C's.
    out.write("\n".join("    " + json.dumps(line) for line in source) + ";\n")

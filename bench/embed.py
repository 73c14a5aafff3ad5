#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Writes problems.txt as the C string bench_problem_text: embed.py INPUT OUTPUT"""
import json
import sys

with open(sys.argv[1], encoding="ascii") as source, open(sys.argv[2], "w", encoding="ascii") as out:
    out.write('#include "problems.h"\n\nconst char bench_problem_text[] =\n')
    # JSON's escapes of ASCII text are C's.
    out.write("\n".join("    " + json.dumps(line) for line in source) + ";\n")

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# no_skips.py PROGRAM [ARGUMENT...]: runs a program that reports in TAP, and turns each skip into a failure.
# Where meson has the emulator's tests, the emulator runs: a case that skips would test nothing. The exit
# status is 1 after a skip, else the program's, or 128 + the signal that ended it.
import re
import subprocess
import sys

skips = 0
with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True, errors='replace') as program:
    for line in program.stdout:
        line, cases = re.subn(r'^ok (.*) # SKIP', r'not ok \1\n# skipped:', line)
        line, plans = re.subn(r'^1\.\.0 # SKIP', 'not ok 1 - no case ran:', line)
        skips += cases + plans
        print(line, end='1..1\n' if plans else '', flush=True)
sys.exit(1 if skips else program.returncode if program.returncode >= 0 else 128 - program.returncode)

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# tap.py PROGRAM [ARGUMENT...]: runs a cmocka program that reports in TAP, and corrects an error of cmocka
# 1.1.5: `not ok N # SKIP`, which TAP reads as a failure, becomes `ok N # SKIP`. Any other line becomes a
# comment. The exit status is the program's, or 128 + the signal that ended it.
import os
import re
import subprocess
import sys

os.environ['CMOCKA_MESSAGE_OUTPUT'] = 'TAP'
with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True, errors='replace') as program:
    for line in program.stdout:
        line = re.sub(r'^not (ok \d+ # SKIP)', r'\1', line)
        sys.stdout.write(line if re.match(r'(not )?ok \d|1\.\.\d|#', line) else '# ' + line)
        sys.stdout.flush()
sys.exit(program.returncode if program.returncode >= 0 else 128 - program.returncode)

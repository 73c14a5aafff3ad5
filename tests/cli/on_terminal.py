#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Runs a command on a terminal of its own, types the lines of the standard input there, and prints what the
terminal shows. The exit status is the command's; 77: this machine has no terminals.

  on_terminal.py COMMAND... < LINES
"""
import os
import pty
import sys

try:
    for fd in pty.openpty():
        os.close(fd)
except OSError as error:
    print(error)
    sys.exit(77)
lines = sys.stdin.buffer.read()
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
os.write(terminal, lines + b"\x04")  # then the input ends; the terminal keeps it until it is read
while True:
    try:
        shown = os.read(terminal, 4096)
    except OSError:  # the command has ended
        break
    if not shown:
        break
    sys.stdout.buffer.write(shown)
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

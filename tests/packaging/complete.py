#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Completes command lines of nsa-autotune in a shell, as a user does, and looks at what the shell then runs.

    complete.py SHELL SCRIPT PROGRAM    SHELL: bash, zsh or fish

The shell runs in a terminal of its own. Each line is typed with its tabs and entered; a stand-in of
nsa-autotune asks the program for candidates and writes down the arguments of any other call.
"""
import os
import pathlib
import pty
import select
import signal
import sys
import tempfile
import time

# What is typed behind "nsa-autotune ", and the arguments that have to arrive.
LINES = (
    ("quicks\t", ["quickstart"]),
    ("report --no-r\tsma\t", ["report", "--no-run", "small.yaml"]),
    ("tune --op dec\t--lev\texh\tsma\t", ["tune", "--op", "decode", "--level", "exhaustive", "small.yaml"]),
    ("compile --arch=sm_80,sm_9\tsma\t", ["compile", "--arch=sm_80,sm_90a", "small.yaml"]),
    ("config --set runtime.devi\tcp\t", ["config", "--set", "runtime.device=cpu"]),
    ("report small.yaml --out fol\t", ["report", "small.yaml", "--out", "folder"]),
    ("show arc\t--j\t", ["show", "arch", "--json"]),
    ("show sma\t", ["show", "small.yaml"]),
)
START = {
    "bash": (["--norc", "--noprofile", "-i"], "source {script}; bind 'set enable-bracketed-paste off'"),
    "zsh": (["-f", "-i"], "fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D; bindkey '^I' complete-word"),
    "fish": (["--no-config", "-i"], "source {script}"),
}
STAND_IN = """#!/bin/sh
if [ "$1" = complete ]; then exec {program} "$@"; fi
for word; do printf '%s\\n' "$word"; done >arguments.new
mv arguments.new arguments
"""
PATIENCE_S = 20  # for one line; a busy machine takes a second


class Terminal:
    """A shell, and the terminal that it believes to have."""

    def __init__(self, shell, folder, environment):
        self.seen = b""
        self.child, self.terminal = pty.fork()
        if not self.child:
            os.chdir(folder)
            os.execvpe(shell, [shell] + START[shell][0], environment)

    def type(self, text):
        os.write(self.terminal, text.encode())

    def wait(self, ready):
        """Reads until ready() or the patience is at an end; whether it was ready."""
        end = time.monotonic() + PATIENCE_S
        while not ready():
            if time.monotonic() > end:
                return False
            if select.select([self.terminal], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.terminal, 65536)
                except OSError:
                    return ready()
        return True

    def close(self):
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        os.close(self.terminal)


def main():
    shell, script, program = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3]).resolve()
    failed = 0
    with tempfile.TemporaryDirectory() as top:
        folder = pathlib.Path(top, "work")
        commands = pathlib.Path(top, "bin")
        scripts = pathlib.Path(top, "scripts")
        for made in (folder, commands, scripts, folder / "folder"):
            made.mkdir()
        (folder / "small.yaml").touch()
        (folder / "folio").touch()  # no folder, which `report --out` has to leave out
        stand_in = commands / "nsa-autotune"
        stand_in.write_text(STAND_IN.format(program=program))
        stand_in.chmod(0o755)
        (scripts / "_nsa-autotune").write_text(script.read_text())  # zsh finds it by its name
        environment = {"PATH": f"{commands}:{os.environ['PATH']}", "HOME": top, "TERM": "dumb", "LC_ALL": "C.UTF-8"}
        terminal = Terminal(shell, folder, environment)
        ready = folder / "ready"
        terminal.type(START[shell][1].format(script=script, folder=scripts) + "; touch ready\r")
        if not terminal.wait(ready.exists):
            print(f"{shell} does not start:\n{terminal.seen.decode(errors='replace')}")
            terminal.close()
            return 1
        arguments = folder / "arguments"
        for typed, wanted in LINES:
            arguments.unlink(missing_ok=True)
            terminal.seen = b""
            terminal.type(f"nsa-autotune {typed}\r")
            ran = terminal.wait(arguments.exists)
            found = [word.rstrip("/") for word in arguments.read_text().splitlines()] if ran else None
            good = found == wanted
            failed += not good
            print(f"{'ok' if good else 'FAILED'}: {shell}: {typed!r} runs {found}")
            if not good:
                print(terminal.seen.decode(errors="replace"))
                terminal.type("\x15\r")
        terminal.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

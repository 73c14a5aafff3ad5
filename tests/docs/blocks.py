#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Runs what README.md, CONTRIBUTING.md and docs/*.md show.

    blocks.py SOURCE BUILD [--page NAME]

Every fenced block is one result of the Test Anything Protocol. What is done with it depends on its
language and on the comment right above it:

    sh                       runs as one script and must succeed
    console                  lines behind `$ ` run; what they print must be what stands below them,
                             where `...` stands for any text or, alone on a line, for any lines
    <!-- not run: REASON --> of the two above: is not run, for one of REASONS; its options and files
                             must exist
    <!-- file: NAME -->      the block is written to NAME; a script of the page has to use it. YAML
                             must also pass `nsa-autotune check --no-model`
    <!-- excerpt: PATH -->   the block is part of the file PATH of the repository, word for word
    python                   nothing: tests/python/test_docs.py runs it
    mermaid, text            nothing

The scripts of a page run one after the other in an empty folder with links to the source folders and
to `build`. Programs of the build and an installed library with its pkg-config file are found.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap

import pages

REASONS = {
    "needs a GPU",
    "needs the CUDA toolkit",
    "needs another machine",
    "installs packages",
    "builds the project",
    "runs all tests",
    "takes minutes",
    "needs a build with signatures",
}
TIMEOUT_S = 120
HELP = {"nsacheck": "tests/check/nsacheck", "nsarankcheck": "tests/check/nsarankcheck", "nsa-bench": "bench/nsa-bench"}


class Wrong(Exception):
    """What is wrong with a block."""


class Desk:
    """Where the blocks of one page run."""

    def __init__(self, source, build, folder):
        self.source, self.build, self.folder = source, build, folder
        self.files = set()  # written by blocks, not yet used by a script
        for entry in os.listdir(source):
            if entry not in (".git", "build") and not entry.startswith("build"):
                os.symlink(source / entry, folder / entry)
        os.symlink(build, folder / "build")
        self.env = dict(os.environ)
        for name in [n for n in self.env if n.startswith("NSA_") and n != "NSA_NVRTC_PATH"]:
            del self.env[name]
        self.env["NSA_CACHE_DIR"] = str(folder / ".nsa-cache")
        programs = [build, build / "tests/check", build / "bench"]
        self.env["PATH"] = ":".join(map(str, programs)) + ":" + self.env["PATH"]

    def install(self):
        """Installs the library beside the page's files, once."""
        prefix = self.folder / ".installed"
        if prefix.exists():
            return
        subprocess.run(["meson", "install", "-C", self.build, "--no-rebuild", "--quiet",
                        "--destdir", prefix], check=True, capture_output=True)
        (found,) = prefix.rglob("libnsa.pc")
        text = found.read_text(encoding="utf-8")
        root = re.search(r"^prefix=(.*)$", text, re.M).group(1)
        # The file names the final place; programs are built against the staged one.
        found.write_text(text.replace(f"prefix={root}", f"prefix={prefix}{root}"), encoding="utf-8")
        self.env["PKG_CONFIG_PATH"] = str(found.parent)
        self.env["LD_LIBRARY_PATH"] = str(found.parent.parent)

    def run(self, script):
        """Exit status and output of a script."""
        for name in [n for n in self.files if n in script]:
            self.files.discard(name)
        with subprocess.Popen(["bash", "-euo", "pipefail", "-c", script], cwd=self.folder,
                              env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, start_new_session=True) as shell:
            try:
                output, _ = shell.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(shell.pid, signal.SIGKILL)  # what it started, too
                raise
        return shell.returncode, output


def run_script(desk, block):
    status, output = desk.run(block.text)
    if status:
        raise Wrong(f"exit status {status}\n{output}")


def matches(expected, printed):
    """Whether lines are as shown; `...` stands for anything."""
    if not expected:
        return not printed
    if expected[0].strip() == "...":
        return any(matches(expected[1:], printed[i:]) for i in range(len(printed) + 1))
    pattern = ".*".join(re.escape(part) for part in expected[0].rstrip().split("..."))
    return (bool(printed) and re.fullmatch(pattern, printed[0].rstrip()) is not None
            and matches(expected[1:], printed[1:]))


def run_console(desk, block):
    command, expected, steps = None, [], []
    for line in block.text.splitlines() + ["$ "]:
        if not line.startswith("$ "):
            expected.append(line)
            continue
        if command:
            steps.append((command, expected))
        command, expected = line[2:], []
    if not steps:
        raise Wrong("no line begins with `$ `")
    for command, expected in steps:
        status, output = desk.run(command)
        if not matches(expected, output.splitlines()):
            raise Wrong(f"$ {command}\nexit status {status}; it prints\n{output}")


def commands_of(script):
    """The words of every simple command of a script."""
    text = re.sub(r"\\\n", " ", script)
    for line in text.splitlines():
        line = re.sub(r"^\$ ", "", line)
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.commenters = "#"
        words = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def help_of(desk, words):
    """What --help prints for a command of this project; None: it is none."""
    name = os.path.basename(words[0])
    if name == "nsa-autotune":
        if len(words) < 2 or words[1].startswith("-"):
            return None
        program = [desk.build / name, words[1]]
    elif name in HELP:
        program = [desk.build / HELP[name]]
    else:
        return None
    done = subprocess.run([*program, "--help"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong(f"{' '.join(map(str, program))} --help: {done.stderr}")
    return done.stdout


def check_words(desk, words):
    """Options and files of a command that is not run."""
    text = help_of(desk, words)
    for word in words:
        option = re.match(r"(--[a-z][a-z-]*)", word)
        if text and option and not re.search(rf"{option.group(1)}\b(?!-)", text):
            raise Wrong(f"{words[0]} has no option {option.group(1)}")
        build_option = re.match(r"-D(\w+)=", word)
        if words[0] == "meson" and build_option:
            known = json.loads((desk.build / "meson-info/intro-buildoptions.json").read_text())
            if build_option.group(1) not in [option["name"] for option in known]:
                raise Wrong(f"the build has no option {build_option.group(1)}")
        top = word.split("/")[0]
        if "/" in word and top and (desk.source / top).is_dir() and top != "build" and \
                not (desk.source / word).exists():
            raise Wrong(f"{word} does not exist")
        if word.startswith("build/") and not (desk.build / word[6:]).exists():
            raise Wrong(f"{word} does not exist")


def write_file(desk, block, name):
    path = desk.folder / name
    if "/" in name or path.is_symlink():
        raise Wrong(f"{name} is no name for a new file")
    path.write_text(block.text, encoding="utf-8")
    if block.language == "yaml":
        run_script(desk, block._replace(text=f"nsa-autotune check --no-model {shlex.quote(name)}"))
    else:
        desk.files.add(name)
    if block.language == "c":
        desk.install()


def find_excerpt(desk, block, path):
    whole = (desk.source / path).read_text(encoding="utf-8")
    lines, wanted = whole.splitlines(), textwrap.dedent(block.text).splitlines()
    for i in range(len(lines) - len(wanted) + 1):
        there = textwrap.dedent("\n".join(lines[i:i + len(wanted)])).splitlines()
        if [x.rstrip() for x in there] == [x.rstrip() for x in wanted]:
            return
    raise Wrong(f"{path} does not hold these lines")


def try_block(desk, block):
    word, rest = block.directive or (None, None)
    scripts = {"sh": run_script, "console": run_console}
    if block.language in scripts:
        if word is None:
            scripts[block.language](desk, block)
        elif word != "not run" or rest not in REASONS:
            raise Wrong(f"`{word}: {rest}` is no reason that is known: {', '.join(sorted(REASONS))}")
        else:
            for words in commands_of(block.text):
                check_words(desk, words)
    elif word == "file":
        write_file(desk, block, rest)
    elif word == "excerpt":
        find_excerpt(desk, block, rest)
    elif block.language not in ("mermaid", "python", "text"):
        raise Wrong(f"a block of `{block.language}` needs a comment above it: file or excerpt")


def title(block):
    word, rest = block.directive or ("", "")
    if word in ("file", "excerpt"):
        return f"{word} {rest}"
    first = next((line for line in block.text.splitlines() if line.strip()), "").strip()
    first = re.sub(r"\s+#.*", "", first)
    return f"{first} ({word}, {rest})" if word else first


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--page", help="this page alone")
    options = parser.parse_args()
    source, build = options.source.resolve(), options.build.resolve()
    count = failures = 0
    for page in pages.pages(source):
        name = str(page.relative_to(source))
        if options.page and options.page != name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            desk = Desk(source, build, pathlib.Path(folder))
            results = []
            for block in pages.blocks(page.read_text(encoding="utf-8")):
                text = f"{name}:{block.line} {block.language}: {title(block)}"
                try:
                    try_block(desk, block)
                    results.append((text, None))
                except (Wrong, OSError, ValueError, subprocess.SubprocessError) as wrong:
                    results.append((text, str(wrong)))
            for unused in sorted(desk.files):
                results.append((f"{name}: {unused}", "no script of the page uses this file"))
        for text, wrong in results:
            count += 1
            failures += wrong is not None
            print(("not ok" if wrong else "ok"), count, "-", text.replace("#", "\\#"), flush=True)
            if wrong:
                print(textwrap.indent(wrong.rstrip(), "# "))
    print(f"1..{count}")
    sys.exit(failures > 0 or not count)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Checks that names and words which the project has replaced do not come back.

    words.py SOURCE_ROOT     checks the tree
    words.py self-test       shows that the check can fail

words.txt beside this file lists them. A line holds a pattern, the replacement, and the folders in
which the pattern is banned, separated by tabs; "." is the whole tree. The pattern is a regular
expression that is matched between characters that are neither letters nor digits, so that
`kv_world` is also found in `nsai_kv_world_create`. A pattern in lower case ignores case. Names of
files are checked like their text.

A line that begins with "allow" permits a word in one file for the time being: allow, file, pattern.
Such a line fails the check as soon as the file no longer needs it; delete it then.
"""

import os
import re
import sys
import tempfile

LIST = "words.txt"
TOPS = (".ci", "autotune", "bench", "bindings", "configs", "docs", "examples", "include", "kernel_templates",
        "runtime", "tests", "CONTRIBUTING.md", "README.md", "meson.build", "meson_options.txt")
# Recorded results and vectors keep the names of their time; the others list old names on purpose.
EXCLUDED = ("bench/results", "tests/vectors", "tests/structure/moves.tsv",
            "tests/structure/words.py", "tests/structure/words.txt")


def fail(text):
    sys.exit("words: " + text)


class Word:
    def __init__(self, pattern, instead, folders):
        self.pattern, self.instead, self.folders = pattern, instead, folders
        flags = 0 if re.search("[A-Z]", pattern) else re.IGNORECASE
        self.regex = re.compile(f"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])", flags)

    def is_banned_in(self, path):
        return any(f == "." or path == f or path.startswith(f + "/") for f in self.folders)


def read_list(path):
    """The words, and the allowed (file, pattern) pairs."""
    words, allowed = [], []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            line = line.rstrip("\n")
            if not line or line.startswith("#"):
                continue
            fields = line.split("\t")
            if len(fields) != 3 or not all(fields):
                fail(f"{path}:{number}: expected three fields separated by single tabs")
            if fields[0] == "allow":
                allowed.append((fields[1], fields[2]))
            else:
                words.append(Word(fields[0], fields[1], fields[2].split()))
    known = {w.pattern for w in words}
    for file, pattern in allowed:
        if pattern not in known:
            fail(f"{path}: '{pattern}', allowed in {file}, is no word of the list")
    return words, allowed


def files_below(root):
    """All text files that are checked, relative to the root."""
    for top in TOPS:
        path = os.path.join(root, top)
        if os.path.isfile(path):
            yield top
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(f for f in folders if f != "__pycache__")
            relative = os.path.relpath(folder, root)
            for name in sorted(names):
                yield os.path.normpath(os.path.join(relative, name))


def is_excluded(path):
    return any(path == e or path.startswith(e + "/") for e in EXCLUDED)


def find(root, words):
    """All places as (file, line, word, text); line 0 is the file's name."""
    found, count = [], 0
    for path in files_below(root):
        if is_excluded(path):
            continue
        here = [w for w in words if w.is_banned_in(path)]
        try:
            with open(os.path.join(root, path), encoding="utf-8") as f:
                lines = f.read().split("\n")
        except UnicodeDecodeError:
            lines = []
        count += 1
        for number, text in enumerate([path] + lines):
            found += [(path, number, w, text.strip()) for w in here if w.regex.search(text)]
    return found, count


def check(root, list_path, out):
    """Prints what is wrong and returns the number of faults."""
    words, allowed = read_list(list_path)
    found, count = find(root, words)
    if not count:
        fail(f"{root} holds no files to check")
    faults, used = 0, set()
    for path, number, word, text in found:
        if (path, word.pattern) in allowed:
            used.add((path, word.pattern))
            continue
        place = f"{path}:{number}" if number else f"{path}: its name"
        print(f"{place}: '{word.pattern}' is replaced by '{word.instead}': {text[:100]}", file=out)
        faults += 1
    for path, pattern in allowed:
        if (path, pattern) not in used:
            print(f"{LIST}: '{pattern}' does not occur in {path} any more: delete its allow line",
                  file=out)
            faults += 1
    print(f"{count} files, {len(words)} words, {faults} faults, {len(used)} allowed for now",
          file=out)
    for path, pattern in sorted(used):
        print(f"  {path}: {pattern}", file=out)
    return faults


def self_test():
    """Each tree below has exactly the stated number of faults."""
    listed = "old_name\tnew_name\t.\ncontenders?\tcandidate\tautotune\nKeyRing\\w*\tPipeline\t.\n"
    cases = (
        ("clean", listed, "autotune/a.c", "int new_name;\n", 0),
        ("a retired identifier", listed, "runtime/a.c", "int x;\nint old_name;\n", 1),
        ("as a part of an identifier", listed, "runtime/a.c", "void nsai_old_name_get(void);\n", 1),
        ("inside another word", listed, "runtime/a.c", "int old_names;\n", 0),
        ("in capitals", listed, "runtime/a.c", "#define OLD_NAME 1\n", 1),
        ("a pattern with capitals keeps case", listed, "runtime/a.c", "keyring KeyRingStep\n", 1),
        ("in a page", listed, "docs/a.md", "two\nthree contenders\n", 0),
        ("a word in its folder", listed, "autotune/tune/a.c", "/* the contender */\n", 1),
        ("a file's name", listed, "runtime/old_name.c", "int x;\n", 1),
        ("allowed", listed + "allow\truntime/a.c\told_name\n", "runtime/a.c", "int old_name;\n", 0),
        ("allowed without need", listed + "allow\truntime/a.c\told_name\n", "runtime/a.c", "\n", 1),
        ("allowed elsewhere", listed + "allow\truntime/b.c\told_name\n", "runtime/a.c",
         "int old_name;\n", 2),
        ("an excluded folder", listed, "bench/results/a.csv", "old_name\n", 0),
    )
    failures = 0
    for name, text, path, content, expected in cases:
        with tempfile.TemporaryDirectory() as root:
            list_path = os.path.join(root, LIST)
            for file, inside in ((list_path, text), (os.path.join(root, path), content),
                                 (os.path.join(root, "README.md"), "\n")):
                os.makedirs(os.path.dirname(file), exist_ok=True)
                with open(file, "w", encoding="utf-8") as f:
                    f.write(inside)
            with open(os.devnull, "w", encoding="utf-8") as out:
                got = check(root, list_path, out)
        if got != expected:
            print(f"self-test: {name}: {got} faults instead of {expected}")
            failures += 1
    print(f"self-test: {len(cases)} cases, {failures} failures")
    return failures


def main(argv):
    if len(argv) != 2:
        sys.exit(__doc__)
    if argv[1] == "self-test":
        return 1 if self_test() else 0
    here = os.path.dirname(os.path.abspath(__file__))
    return 1 if check(argv[1], os.path.join(here, LIST), sys.stdout) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))

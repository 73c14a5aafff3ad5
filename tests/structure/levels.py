#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Checks that the source folders depend on each other in one direction only.

    levels.py SOURCE_ROOT [LIBRARY]

Every folder has a level. A file includes files of its own folder or of a lower level, by a path
from one of the include roots (runtime, autotune, kernel_templates). With LIBRARY, the static
library that was built, symbols are checked as well: an object calls its own folder or a lower
level, and public functions are defined in runtime/api and in the api.c of autotune's folders.
Kernel families (attend, decode, ...) include the shared folders below them but no other family.
"""

import argparse
import os
import posixpath
import re
import subprocess
import sys

LEVELS = {
    "kernel_templates/params": 0,
    "runtime/base": 1,
    "runtime/model": 2,
    "runtime/cache": 3,
    "runtime/driver": 3,
    "runtime/reference": 3,
    "runtime/config": 4,
    "runtime/ranks": 4,
    "runtime/compile": 4,
    "runtime/ranks": 4,
    "runtime/plan": 5,
    "runtime/run": 6,
    "runtime/variants": 7,
    "runtime/api": 8,
    "autotune/records": 9,
    "autotune/verify": 9,
    "autotune/tune": 10,
    "autotune": 11,
    "autotune/cli": 12,
    "tests/check": 12,
    "bench": 13,
    "tests": 14,
}
# Programs include their own headers by name; the library includes from the roots.
HOST_FOLDERS = {f for f in LEVELS if not f.startswith(("tests", "bench"))}
DEVICE_LEVELS = {"params": 0, "core": 1, "data": 2}
DEVICE_FAMILY_LEVEL = 3
ROOTS = ("runtime", "autotune", "kernel_templates")
# The one symbol that a lower level takes from a higher one: the parts the library is made of.
SEAM = "nsai_library_parts"
# What defines public functions. The texts of include/nsa/base.h are those of the errors themselves.
API = re.compile(r"runtime/api/.*|autotune/\w+/api\.c|runtime/base/error\.c")
# Endings of files in the source roots that hold no C or CUDA code.
NO_CODE = (".build", ".py", ".md", ".map", ".scd", ".txt", ".tsv")


def sources(root):
    """The repository's C and CUDA files, relative to the root."""
    found = []
    for top in ROOTS + ("tests", "bench"):
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders[:] = [f for f in folders if not f.startswith("build") and f != "corpus"]
            for name in files:
                path = posixpath.relpath(posixpath.join(folder, name), root)
                if path.endswith((".c", ".h", ".cuh", ".inc")):
                    found.append(path)
                elif top in ROOTS and not path.endswith(NO_CODE):
                    sys.exit(f"levels.py: {path} is no source file that this check knows")
    return sorted(found)


def folder_of(path):
    """The folder that has a level, or None for a file outside of all of them."""
    if path.startswith("bench/"):
        return "bench"
    if path.startswith("tests/"):
        return "tests/check" if path.startswith("tests/check/") else "tests"
    if path.startswith("kernel_templates/"):
        parts = path.split("/")
        return "/".join(parts[:2]) if len(parts) > 2 else None
    folder = posixpath.dirname(path)
    while folder and folder not in LEVELS:
        folder = posixpath.dirname(folder)
    return folder if folder != "autotune" or posixpath.dirname(path) == "autotune" else None


def is_device(folder):
    return folder.startswith("kernel_templates/")


def may_use(user, used):
    """Whether files of folder `user` may include, or call, those of folder `used`."""
    if user == used:
        return True
    if is_device(user):
        if not is_device(used):
            return False
        level = lambda f: DEVICE_LEVELS.get(f.split("/")[1], DEVICE_FAMILY_LEVEL)
        return level(used) < level(user)
    if is_device(used):
        return used == "kernel_templates/params"
    return LEVELS[used] < LEVELS[user]


def included(path, text, have):
    """The repository file that an include line of `path` names, or None."""
    for folder in ROOTS + (posixpath.dirname(path), "bench", "tests/check", "tests/unit"):
        target = posixpath.normpath(posixpath.join(folder, text))
        if target in have:
            return target
    return None


def include_offences(root, files):
    have = set(files)
    for path in files:
        user = folder_of(path)
        if user is None:
            yield f"{path} lies outside the folders"
            continue
        with open(os.path.join(root, path), encoding="utf-8") as file:
            names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read(), re.M)
        for name in names:
            target = included(path, name, have)
            if target is None:
                if user in HOST_FOLDERS or is_device(user):
                    yield f'{path} includes "{name}", which no include root has'
                continue
            from_root = target in [f"{r}/{name}" for r in ROOTS]
            if (user in HOST_FOLDERS or is_device(user)) and not from_root:
                yield f'{path} includes "{name}" by a path that is not from a root'
            used = folder_of(target)
            if used is not None and not may_use(user, used):
                yield f"{path} includes {target}"


def symbol_offences(root, files, library):
    """Calls between objects of the static library that go upwards; public functions beside the
    API."""
    objects = {}
    for path in files:
        if path.endswith(".c"):
            for start in ("runtime/", "autotune/"):
                if path.startswith(start):
                    inner = posixpath.relpath(path, "runtime")
                    objects[inner.replace("/", "_") + ".o"] = path
                    objects[path.replace("/", "_") + ".o"] = path
    owner, uses = {}, []
    lines = subprocess.run(["nm", "-A", library], check=True, capture_output=True, text=True)
    for line in lines.stdout.splitlines():
        where, _, rest = line.rpartition(":")
        current = objects.get(posixpath.basename(where.split(":")[-1]))
        fields = rest.split()
        kind, name = fields[-2], fields[-1]
        if current is None:
            continue
        if kind == "U":
            uses.append((current, name))
        elif kind.isupper() or kind in "VW":
            owner[name] = current
            if name.startswith("nsa_") and not API.fullmatch(current):
                yield f"{current} defines the public {name}"
    for path, name in sorted(set(uses)):
        if name in owner and name != SEAM and not may_use(folder_of(path), folder_of(owner[name])):
            yield f"{path} uses {name} of {owner[name]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root")
    parser.add_argument("library", nargs="?")
    options = parser.parse_args()
    files = sources(options.root)
    found = set(include_offences(options.root, files))
    if options.library:
        found |= set(symbol_offences(options.root, files, options.library))
    for line in sorted(found):
        print(line)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Checks that what README.md, CONTRIBUTING.md, SECURITY.md and docs/*.md name exists.

    links.py SOURCE

Each page is one result of the Test Anything Protocol:

- A relative link leads to a file or folder of the repository, and its #anchor to a heading there.
- A path in backticks (`runtime/plan/plan.c`, `core/tma.cuh`) exists, from the root or from one of the
  include roots. `*` and `{a,b}` stand for what they mean in a shell; a part in capitals (FAMILY, X) is
  a placeholder, and the folder before it exists.
- A name of the API or the library in backticks (`nsa_forward`, `NSA_JIT`, `nsai_tuning`) occurs in the
  sources, and a member (`io.kv_reads`, `problem.overlap`) in the public headers.
- The page is no longer than LONGEST allows, generated parts left out.
"""

import argparse
import functools
import pathlib
import re
import sys

import pages

ROOTS = ("", "runtime", "kernel_templates", "autotune")
FORMER = re.compile(r"migrating-[\d.]+\.md")  # pages that name what is gone
LONGEST = {"README.md": 9216}
LONGEST_PAGE = 13 * 1024
GENERATED = re.compile(r"<!-- generated: \w+ -->.*?<!-- end -->", re.S)


def anchors(text):
    """The anchors that GitHub makes of a page's headings."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", pages.prose(text), re.M):
        words = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
        anchor, n = words.strip().replace(" ", "-"), 0
        while anchor + (f"-{n}" if n else "") in found:
            n += 1
        found.add(anchor + (f"-{n}" if n else ""))
    return found


def wrong_links(source, page, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        name = file.relative_to(source).as_posix()
        if not file.exists():
            yield f"link to {target}: {name} does not exist"
        elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
            yield f"link to {target}: {name} has no such heading"


def braces(path):
    """A path with {a,b} as the paths it stands for."""
    match = re.search(r"\{([^{}]*)\}", path)
    if not match:
        return [path]
    return [p for word in match.group(1).split(",")
            for p in braces(path[:match.start()] + word + path[match.end():])]


def exists(source, path):
    parts = path.rstrip("/").split("/")
    holder = next((i for i, part in enumerate(parts) if re.fullmatch(r"[A-Z]+(\.\w+)?", part)
                   and part not in ("README.md", "CONTRIBUTING.md")), len(parts))
    path = "/".join(parts[:holder])
    for root in ROOTS:
        if "*" in path and any((source / root).glob(path)):
            return True
        if "*" not in path and (source / root / path).exists():
            return True
    return False


def wrong_paths(source, text):
    tops = {entry.name for root in ROOTS for entry in (source / root).iterdir()}
    for word in re.findall(r"`([^`\n]+)`", pages.prose(text)):
        if not re.fullmatch(r"[\w.*{},-]+(/[\w.*{},-]+)+/?", word):
            continue
        top = word.split("/")[0]
        if top == "build" or (top not in tops and not re.search(r"\.(c|h|cuh|inc|py|sh)$", word)):
            continue
        for path in braces(word):
            if not exists(source, path):
                yield f"`{word}`: {path} does not exist"


@functools.lru_cache
def words_of(source, *folders):
    """Every identifier of the C files below some folders."""
    found = set()
    for folder in folders:
        for file in sorted((source / folder).rglob("*.[ch]")):
            found.update(re.findall(r"\w+", file.read_text(encoding="utf-8")))
    return found


def wrong_names(source, text):
    public = words_of(source, "include")
    known = public | words_of(source, "runtime", "autotune")
    for word in re.findall(r"`([^`\n]+)`", pages.prose(text)):
        for name in re.findall(r"\b(?:nsai?_[a-z]\w+|NSAI?_[A-Z]\w+)", word):
            if name not in known:
                yield f"`{word}`: no source has {name}"
        member = re.fullmatch(r"(?:io|exec|problem|batch|nsa_\w+)\.(\w+)", word)
        if member and member.group(1) not in public:
            yield f"`{word}`: no public header has {member.group(1)}"


def wrong_length(source, page, text):
    longest = LONGEST.get(page.relative_to(source).as_posix(), LONGEST_PAGE)
    length = len(GENERATED.sub("", text).encode())
    if length > longest:
        yield f"{length} bytes, and at most {longest} are allowed"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path)
    source = parser.parse_args().source.resolve()
    listed, failures = pages.pages(source), 0
    print(f"1..{len(listed)}")
    for number, page in enumerate(listed, 1):
        text = page.read_text(encoding="utf-8")
        wrong = [*wrong_links(source, page, text), *wrong_paths(source, text),
                 *([] if FORMER.fullmatch(page.name) else wrong_names(source, text)),
                 *wrong_length(source, page, text)]
        failures += bool(wrong)
        print("not ok" if wrong else "ok", number, "-", page.relative_to(source))
        for line in wrong:
            print(f"# {line}")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()

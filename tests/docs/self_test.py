#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Shows links.py and blocks.py pages that are wrong, and demands that they say so.

    self_test.py BUILD
"""

import pathlib
import shutil
import sys
import tempfile

import blocks
import links
import pages

# A page, and a word of the complaint; None: there is none.
LINKS = [
    ("[a](docs/a.md) [b](docs/a.md#two-words) [c](#here)\n# Here\n", None),
    ("[a](docs/b.md)\n", "does not exist"),
    ("[a](docs/a.md#three)\n", "no such heading"),
    ("[a](https://example.org/x)\n", None),
    ("`runtime/base/text.c` `base/text.h` `runtime/base/{text.c,text.h}` `runtime/*/text.c`\n", None),
    ("`runtime/base/texts.c`\n", "does not exist"),
    ("`base/{text,texts}.h`\n", "base/texts.h"),
    ("`runtime/FAMILY/X.c` `either/or` `build/nsa-autotune`\n", None),
    ("`runtime/bass/X.c`\n", "does not exist"),
    ("```text\n`runtime/base/texts.c`\n```\n", None),
    ("`nsa_forward(plan)` `NSA_JIT=never` `nsa_*` `io.q` `model.heads`\n", None),
    ("`nsa_backwards`\n", "no source has nsa_backwards"),
    ("`io.w`\n", "no public header has w"),
    ("x" * (links.LONGEST["README.md"] + 1), "at most"),
]
BLOCKS = [
    ("```sh\ntrue\n```\n", None),
    ("```sh\nfalse\ntrue\n```\n", "exit status 1"),
    ("```sh\nfalse | true\n```\n", "exit status 1"),
    ("```console\n$ echo one; echo two\none\n...\n```\n", None),
    ("```console\n$ echo one\ntwo\n```\n", "it prints"),
    ("```console\n$ echo 12 ms\n... ms\n```\n", None),
    ("```console\n$ true\none\n```\n", "it prints"),
    ("<!-- not run: needs a GPU -->\n```sh\nfalse && base/text.h\n```\n", None),
    ("<!-- not run: it is late -->\n```sh\ntrue\n```\n", "no reason"),
    ("<!-- not run: needs a GPU -->\n```sh\nnsa-autotune tune --levle quick # --other\n```\n", "--levle"),
    ("<!-- not run: needs a GPU -->\n```sh\nnsa-autotune tnue x\n```\n", "--help"),
    ("<!-- not run: needs a GPU -->\n```sh\nx runtime/base/texts.c\n```\n", "does not exist"),
    ("<!-- not run: needs a GPU -->\n```sh\nbuild/nsa-autotoon\n```\n", "does not exist"),
    ("<!-- not run: builds the project -->\n```sh\nmeson setup build -Dtests=false -Dwerror=true\n```\n", None),
    ("<!-- not run: builds the project -->\n```sh\nmeson setup build -Dtest=false\n```\n", "option test"),
    ("<!-- file: a.txt -->\n```text\nhello\n```\n```sh\ngrep -q hello a.txt\n```\n", None),
    ("<!-- file: a.txt -->\n```text\nhello\n```\n", "no script"),
    ("<!-- file: runtime -->\n```text\nhello\n```\n", "no name"),
    ("<!-- file: a.yaml -->\n```yaml\nnsa: 1\nmodel: {heads: 4, kv_heads: 2, head_dim: 32}\n```\n", None),
    ("<!-- file: a.yaml -->\n```yaml\nnsa: 1\nmodle: {}\n```\n", "modle"),
    ("<!-- excerpt: runtime/base/text.h -->\n```c\n  int b;\n    int c;\n```\n", None),
    ("<!-- excerpt: runtime/base/text.h -->\n```c\nint a;\nint c;\n```\n", "does not hold"),
    ("```c\nint a;\n```\n", "needs a comment"),
    ("```\nwhatever\n```\n", "needs a comment"),
    ("```mermaid\nflowchart LR\n```\n", None),
]


def first_complaint_of_links(root, text):
    page = root / "README.md"
    page.write_text(text, encoding="utf-8")
    wrong = [*links.wrong_links(root, page, text), *links.wrong_paths(root, text),
             *links.wrong_names(root, text), *links.wrong_length(root, page, text)]
    return wrong[0] if wrong else None


def first_complaint_of_blocks(root, build, text):
    with tempfile.TemporaryDirectory() as folder:
        desk = blocks.Desk(root, build, pathlib.Path(folder))
        for block in pages.blocks(text):
            try:
                blocks.try_block(desk, block)
            except blocks.Wrong as wrong:
                return str(wrong)
        return "no script uses it" if desk.files else None


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path(tempfile.mkdtemp()).resolve()
    try:
        for folder in ("docs", "include", "runtime/base", "kernel_templates", "autotune"):
            (root / folder).mkdir(parents=True)
        (root / "docs/a.md").write_text("# One\n## Two `words`\n", encoding="utf-8")
        (root / "include/nsa.h").write_text("int nsa_forward(int q);\n", encoding="utf-8")
        (root / "runtime/base/text.c").write_text('"NSA_JIT"\n', encoding="utf-8")
        (root / "runtime/base/text.h").write_text("int a;\n  int b;\n    int c;\n", encoding="utf-8")
        tried = [(text, wanted, first_complaint_of_links(root, text)) for text, wanted in LINKS]
        tried += [(text, wanted, first_complaint_of_blocks(root, build, text)) for text, wanted in BLOCKS]
    finally:
        shutil.rmtree(root)
    print(f"1..{len(tried)}")
    failures = 0
    for number, (text, wanted, said) in enumerate(tried, 1):
        good = said is None if wanted is None else said is not None and wanted in said
        failures += not good
        shown = text[:60].replace("\n", " / ").replace("#", "\\#")
        print("ok" if good else "not ok", number, "-", shown)
        if not good:
            print(f"# wanted {wanted}, got {said}")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()

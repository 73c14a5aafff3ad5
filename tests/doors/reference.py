#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Checks what docs/man3.py has written.

    reference.py INCLUDE PAGES

Reports in the Test Anything Protocol:

- Every function, type, field and constant of python/nsa/_abi.py, which python/gen_abi.py takes from a C
  parser, and every other name that a public header declares, is in the manual pages, and has an anchor
  in the HTML page.
- Every comment of a header is in both, line by line as it stands.
- groff and mandoc have no complaint about a page; every link and reference leads somewhere.
- Pages that lack a thing are found out: each check is shown a damaged copy, and must fail.
"""

import argparse
import collections
import html.parser
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parents[2]
OTHERS = {"nsa-autotune(1)"}  # pages that are written elsewhere

# headers: {name: text}; roff: {file: source}; man: {file: what a terminal shows}; page: the HTML.
Reference = collections.namedtuple("Reference", "headers roff man page")


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.text, self.open = [], [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        attrs = dict(attrs)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [attrs["href"]] if "href" in attrs else []

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.links.append(f"</{tag}> without its beginning")

    def handle_data(self, data):
        self.text += data


def lines_of(text):
    """Text without the frames of comments and the margin, line by line."""
    text = re.sub(r"^ *\* ?|/\*|\*/", "", text, flags=re.M)
    return "\n".join(line.strip() for line in text.split("\n")).strip()


def declared(headers):
    """The API's names: {function, type or constant: None} and {struct.field: None}, in order."""
    spec = importlib.util.spec_from_file_location("abi", TREE / "tests/packaging/abi.py")
    abi = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(abi)
    names, fields = {}, {}
    for kind, name, *_ in (line.split() for line in abi.lines()):
        (fields if kind == "field" else names)[name] = None
    for text in headers.values():
        code = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        names.update(dict.fromkeys(re.findall(r"\b(nsa_[a-z_0-9]*[a-z0-9])\b(?! *(?:h|>|/))", code)))
        names.update(dict.fromkeys(re.findall(r"^#define (NSA_(?!\w+_H$)\w+)", code, re.M)))
    # Of C++, of the linker, and a parameter of a list.
    for name in ("nsa_struct", "nsa_sized", "NSA_API", "NSA_STATUS_ENUM"):
        names.pop(name, None)
    return names, fields


def comments(headers):
    for name, text in headers.items():
        text = re.sub(r"^ \* SPDX.*\n|^/\* SPDX.*\n", "/*\n", text, flags=re.M).replace("/*\n/*\n", "/*\n")
        text = re.sub(r"^#endif.*", "", text, flags=re.M)
        for comment in re.findall(r"/\*(.*?)\*/", text, re.S):
            yield name, re.sub(r"-{4} (.*?) -{4}", r"\1", lines_of(comment))


def missing_names(reference):
    names, fields = declared(reference.headers)
    ids = set(Page(reference.page).ids)
    yield from (f"the HTML page has no anchor {name}" for name in [*names, *fields] if name not in ids)
    bold = {file: re.findall(r"\\fB(\w+)\\fP", text) for file, text in reference.roff.items()}
    everywhere = {name for found in bold.values() for name in found}
    yield from (f"no manual page defines {name}" for name in names if name not in everywhere)
    for field in fields:
        struct, _, name = field.partition(".")
        if name not in bold.get(f"{struct}.7", []):
            yield f"{struct}(7) has no {name}"
    for name in names:
        if name.startswith("nsa_") and not {f"{name}.3", f"{name}.7"} & set(bold):
            yield f"{name} has no manual page"
    if len(names) < 120 or len(fields) < 120:
        yield f"only {len(names)} names and {len(fields)} fields are found"


def missing_comments(reference):
    shown = {"the HTML page": lines_of(Page(reference.page).text),
             "the manual": "\n".join(lines_of(text) for text in reference.man.values())}
    count = 0
    for header, comment in comments(reference.headers):
        count += 1
        for where, text in shown.items():
            if comment not in text:
                yield f"{where} lacks, of {header}: {comment[:70]}"
    if count < 200:
        yield f"only {count} comments are found"


def wrong_links(reference):
    page = Page(reference.page)
    yield from (f"the anchor {i} is there twice" for i, n in collections.Counter(page.ids).items() if n > 1)
    yield from (f"nothing is at {link}" for link in page.links if link[0] != "#" or link[1:] not in page.ids)
    known = OTHERS | {re.sub(r"\.(\d)$", r"(\1)", file) for file in reference.roff}
    for file, text in reference.roff.items():
        seen = re.findall(r"^\.BR (\S+) (\(\d\))", text, re.M)
        seen = [name.replace(r"\-", "-") + section for name, section in seen]
        yield from (f"{file} refers to {name}" for name in seen if name not in known)
        if len(seen) < 2:
            yield f"{file} refers to nothing"


def run(*command, text):
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 and not done.stderr else done.stdout + done.stderr + " ?"


def complaints(reference):
    for file, text in reference.roff.items():
        for command in (("groff", "-man", "-ww", "-z"), ("mandoc", "-Tlint", "-W", "warning")):
            if shutil.which(command[0]):
                said = run(*command, text=text)
                if said:
                    yield f"{file}: {said}"


def read(include, pages):
    headers = {p.name: p.read_text(encoding="utf-8") for p in sorted(include.glob("nsa/*.h"))}
    roff = {p.name: p.read_text(encoding="utf-8") for p in sorted(pages.glob("*nsa*.[37]"))}
    man = {file: run("groff", "-man", "-Tutf8", "-P-cbou", text=text) for file, text in roff.items()}
    return Reference(headers, roff, man, (pages / "nsa-reference.html").read_text(encoding="utf-8"))


def without(reference, old, new=""):
    """A copy whose pages have `new` for each `old`, to be found out."""
    def change(pages):
        return {file: text.replace(old, new) for file, text in pages.items()}
    return reference._replace(roff=change(reference.roff), man=change(reference.man),
                              page=reference.page.replace(old, new))


CHECKS = [
    ("every name", missing_names, [
        ("a function without an anchor", 'id="nsa_query"', ""),
        ("a field without an anchor", 'id="nsa_io.q"', ""),
        ("an enumerator without an anchor", 'id="NSA_PHI_MLP"', ""),
        ("a field that a page lacks", r"\fBmax_seqs\fP", "x"),
        ("a constant that no page has", r"\fBNSA_NONE\fP", "x")]),
    ("every comment", missing_comments, [
        ("a comment of a function", "Its last\n", ""), ("a comment of a field", "rows of q that are probed", ""),
        ("a table that is set closer", "nsa_model    select_count", "nsa_model select_count"),
        ("a heading", "records, for several", "")]),
    ("links and references", wrong_links, [
        ("a link to nothing", 'href="#nsa_io"', 'href="#nsa_oi"'),
        ("an anchor that is there twice", 'id="nsa_io"', 'id="nsa_kv"'),
        ("a page that does not exist", ".BR nsa_io ", ".BR nsa_oi ")]),
    ("groff and mandoc", complaints, [("a request that does not exist", ".SH DESCRIPTION", ".SX DESCRIPTION")]),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("include", type=pathlib.Path)
    parser.add_argument("pages", type=pathlib.Path)
    options = parser.parse_args()
    if not shutil.which("groff"):
        print("1..0 # SKIP groff is not installed")
        return 0
    reference = read(options.include, options.pages)
    number = failures = 0
    for title, check, damages in CHECKS:
        wrong = list(check(reference))
        results = [(title, wrong)]
        for damage, old, new in damages:
            seen = list(check(without(reference, old, new)))
            results.append((f"{title}, {damage} is found out", [] if seen and seen != wrong else ["it is not"]))
        for name, lines in results:
            number += 1
            failures += bool(lines)
            print("not ok" if lines else "ok", number, "-", name)
            for line in lines:
                print("# " + line.replace("\n", "\n# "))
    print(f"1..{number}")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Writes the reference from the public headers: manual pages, and one page of HTML.

    docs/man3.py --list HEADER...                          the names of the files that it writes
    docs/man3.py --version 0.2.0 --out FOLDER HEADER...    writes them

A function has a page in section 3, a type in section 7. libnsa-NAME(7) has the text, the constants and
the contents of nsa/NAME.h, and libnsa(7) leads to these. Comments and declarations are set as they
stand in the header, since they hold formulas and tables; nothing is left out.
"""

import argparse
import collections
import html
import os
import pathlib
import re
import sys
import time

COMMENT = re.compile(r"/\*.*?\*/", re.S)
WORD = re.compile(r"/\*.*?\*/|\w+(?:(?:\.|->)\w+)?|\W", re.S)
# What every header has besides its interface.
FRAME = re.compile(r'#ifdef __cplusplus\n(?:extern "C" \{|\})\n#endif\n|#(?:ifndef|define) NSA_\w+_H\n'
                   r"|#include .*\n|#endif /\* NSA_\w+_H \*/\n")
# Characters that roff would take for others, or for a request.
ROFF = str.maketrans({"\\": r"\(rs", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"})
ATTRIBUTE = "NSA_API"  # of functions, for the linker
HTML = "nsa-reference.html"

# A piece of a header: the comment above, the declaration below, and what that defines, as offset: anchor.
# Kinds: "function", "type", "constant", "section" (a heading) and "text" (a comment alone).
Piece = collections.namedtuple("Piece", "header kind name comment code defines")
Header = collections.namedtuple("Header", "name comment includes pieces")


def plain(comment):
    """A comment's lines without its frame."""
    lines = re.sub(r"\s*\*/$", "", comment.removeprefix("/*")).split("\n")
    return "\n".join(re.sub(r"^ \* ?", "", line).rstrip() for line in lines).strip()


def definitions(code):
    """The names that a declaration defines: {offset: (kind, anchor)}."""
    bare = COMMENT.sub(lambda m: re.sub(r"\S", " ", m.group()), code)
    found = {}
    for kind, pattern in (("function", r"^(?=\w.*\()(?!typedef|enum|template)[^(#]*?(\w+)\("),
                          ("type", r"^typedef struct (\w+) (?:\{|\1;)"),
                          ("type", r"^typedef [^{(;]*\(\*(\w+)\)"), ("type", r"^typedef [^{(;]*?\*?(\w+);"),
                          ("constant", r"^ *#define (NSA_\w+)"), ("constant", r"^  X\((NSA_\w+),"),
                          ("constant", r"(?<=[{,\s])(NSA_\w+) = ")):
        for match in re.finditer(pattern, bare, re.M):
            if match.group(1) not in [anchor for _, anchor in found.values()]:
                found[match.start(1)] = kind, match.group(1)
    for struct in re.finditer(r"^typedef struct (\w+) \{\n(.*?)^\}", bare, re.S | re.M):
        # Of a pointer to a function the name alone: its parameters are no fields.
        members = re.sub(r"\(\*(\w+)\)(\([^)]*\))", lambda m: f"  {m[1]} " + re.sub(r"\S", " ", m[2]), struct.group(2))
        for field in re.finditer(r"(\w+)(?:\[\w+\])?(?=\s*[,;])", members):
            found[struct.start(2) + field.start()] = "field", f"{struct.group(1)}.{field.group(1)}"
    undefined = set(re.findall(r"^#undef (\w+)", bare, re.M)) | {ATTRIBUTE}
    return {at: what for at, what in found.items() if what[1] not in undefined}


def pieces(header, text):
    """The pieces of a header's text, which blank lines outside of braces separate."""
    part = ""
    for block in re.split(r"\n{2,}", FRAME.sub("\n", text).strip()):
        part += ("\n\n" if part else "") + block
        bare = COMMENT.sub("", part)
        if bare.count("{") > bare.count("}"):
            continue
        comment = re.match(r"/\*.*?\*/(?:\n|$)", part, re.S)
        code = re.sub(r" +\\$", r" \\", part[comment.end() if comment else 0:], flags=re.M)
        if code.startswith(ATTRIBUTE):  # its further lines keep their place below the parameters
            code = re.sub(rf"^(?:{ATTRIBUTE} |[ ]{{{len(ATTRIBUTE) + 1}}})", "", code, flags=re.M)
        comment, part = plain(comment.group().strip()) if comment else "", ""
        defines = definitions(code)
        kinds = {kind: anchor for kind, anchor in reversed(defines.values())}
        kind = next((k for k in ("function", "type", "constant") if k in kinds), "text")
        heading = re.fullmatch(r"-+ (.*?) -+", comment)
        if heading and not code:
            yield Piece(header, "section", heading.group(1), "", "", {})
        elif comment or defines:
            yield Piece(header, kind, kinds.get(kind, ""), comment, code,
                        {at: anchor for at, (_, anchor) in defines.items()})


def read(path):
    text = path.read_text(encoding="utf-8")
    first = COMMENT.match(text)
    comment = re.sub(r"^SPDX.*\n", "", plain(first.group()), flags=re.M).strip()
    includes = re.findall(r"^#include <nsa/(\w+)\.h>", text, re.M)
    return Header(path.stem, comment, includes, [*pieces(path.stem, text[first.end():])])


def summary(comment, whole=False):
    """The first sentence of a comment; unless `whole`, without what follows a colon or semicolon."""
    text = " ".join(comment.split("\n\n")[0].split())
    text = re.split(r"\.(?: (?!\d)|$)" + ("" if whole else "|[:;] "), text)[0]
    return text[0].lower() + text[1:] if re.match(r"[A-Z][a-z ]", text) else text


class Reference:
    def __init__(self, paths, version):
        headers = {path.stem: read(path) for path in paths}

        def below(name):
            found = set(headers[name].includes)
            return found.union(*(below(n) for n in found))

        # Each header behind those that it includes; the last one is nsa.h, which includes all.
        *self.headers, self.top = sorted(headers.values(), key=lambda h: (len(below(h.name)), h.name))
        self.version = version
        self.pieces = [p for h in self.headers for p in h.pieces]
        self.anchors = {anchor for p in self.pieces for anchor in p.defines.values()}
        self.page = {}  # the manual page of each name: (section, name)
        for piece in self.pieces:
            section = {"function": 3, "type": 7}.get(piece.kind)
            for anchor in piece.defines.values():
                self.page[anchor] = (section, piece.name) if section else (7, f"libnsa-{piece.header}")

    def anchor(self, word):
        """What a word of a text or a declaration refers to: itself, or io.q the field nsa_io.q."""
        if word in self.anchors:
            return word
        field = re.fullmatch(r"(?:nsa_)?(\w+)(?:\.|->)(\w+)", word)
        field = field and f"nsa_{field.group(1)}.{field.group(2)}"
        return field if field in self.anchors else None

    # ---- manual pages

    def roff(self, text, defines=()):
        """Text as it stands; what it defines is bold."""
        out = []
        for word in WORD.finditer(text):
            shown = word.group().translate(ROFF)
            out.append(f"\\fB{shown}\\fP" if word.start() in defines else shown)
        return re.sub(r"^(?=\.)", r"\\&", "".join(out), flags=re.M)

    def verbatim(self, text, defines=()):
        return f".in 3n\n.EX\n{self.roff(text, defines)}\n.EE\n.in\n" if text else ""

    def see_also(self, pages):
        pages = sorted(pages)
        return ".SH SEE ALSO\n.nh\n.ad l\n" + "".join(
            f".BR {self.roff(name)} ({section}){',' if i + 1 < len(pages) else ''}\n"
            for i, (section, name) in enumerate(pages))

    def head(self, section, name, names, what):
        day = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
        date = time.strftime("%Y-%m-%d", day)
        return (f'.\\" Written by docs/man3.py from include/nsa.\n'
                f'.TH {name} {section} {date} "libnsa {self.version}" "libnsa"\n'
                f".SH NAME\n{self.roff(', '.join(names))} \\- {self.roff(what)}\n")

    def related(self, piece):
        """The pages that a piece names, and of a type the functions that take it."""
        words = WORD.findall(piece.comment) + re.findall(r"\w+", piece.code)
        found = {self.page[a] for a in map(self.anchor, words) if a}
        found |= {(7, "libnsa"), (7, f"libnsa-{piece.header}")}
        if piece.kind == "type":
            found |= {self.page[p.name] for p in self.pieces if p.kind == "function"
                      and set(re.findall(r"\w+", p.code)) & set(piece.defines.values())}
        return found - {self.page[piece.name]}

    def piece_pages(self, piece):
        section, name = self.page[piece.name]
        names = [a for a in piece.defines.values() if re.fullmatch("nsa_[a-z0-9_]+", a)]
        text = self.head(section, name, names, summary(piece.comment))
        text += f".SH SYNOPSIS\n.nf\n.B #include <nsa/{piece.header}.h>\n.fi\n.PP\n"
        text += self.verbatim(piece.code, piece.defines) + ".SH DESCRIPTION\n" + self.verbatim(piece.comment)
        for other in names:
            yield f"{other}.{section}", text + self.see_also(self.related(piece))

    def header_page(self, header):
        name = f"libnsa-{header.name}"
        text = self.head(7, name, [name], summary(header.comment, True))
        text += f".SH SYNOPSIS\n.B #include <nsa/{header.name}.h>\n.SH DESCRIPTION\n"
        text += self.verbatim(header.comment) + ".SH INTERFACE\n"
        for piece in header.pieces:
            if piece.kind == "section":
                text += f".SS {self.roff(piece.name)}\n"
            elif piece.kind in ("function", "type"):
                section, page = self.page[piece.name]
                text += f".TP\n.BR {page} ({section})\n{self.roff(summary(piece.comment))}\n"
            else:
                for part in (self.verbatim(piece.comment), self.verbatim(piece.code, piece.defines)):
                    text += part and ".PP\n" + part
        pages = {(7, "libnsa"), *((7, f"libnsa-{other}") for other in header.includes)}
        text = re.sub(r"^(\.S[HS] .*\n)\.PP\n", r"\1", text, flags=re.M)
        return f"{name}.7", text + self.see_also(pages)

    def manual(self):
        text = self.head(7, "libnsa", ["libnsa"], "Native Sparse Attention on NVIDIA GPUs")
        text += ".SH SYNOPSIS\n.B #include <nsa/nsa.h>\n.PP\n.B "
        text += self.roff("cc ... $(pkg-config --cflags --libs libnsa)")
        text += "\n.SH DESCRIPTION\n" + self.verbatim(self.top.comment)
        for header in self.headers:
            text += f".TP\n.BR libnsa\\-{header.name} (7)\n{self.roff(summary(header.comment, True))}\n"
        pages = {(1, "nsa-autotune"), *((7, f"libnsa-{h.name}") for h in self.headers)}
        yield "libnsa.7", text + self.see_also(pages)
        for header in self.headers:
            yield self.header_page(header)
        for piece in self.pieces:
            if piece.kind in ("function", "type"):
                yield from self.piece_pages(piece)

    # ---- HTML

    def marked(self, text, defines=()):
        """Text as it stands; what it defines is an anchor, and what others define a link."""
        out = []
        for match in WORD.finditer(text):
            word, target = match.group(), self.anchor(match.group())
            shown = html.escape(word, quote=False)
            if match.start() in defines:
                shown = f'<b id="{defines[match.start()]}">{shown}</b>'
            elif word.startswith("/*"):
                shown = f"<i>{self.marked(word[:2])}{self.marked(word[2:])}</i>"
            elif target:
                shown = f'<a href="#{target}">{shown}</a>'
            out.append(shown)
        return "".join(out)

    def html_piece(self, piece):
        if piece.kind == "section":
            return f"<h3>{html.escape(piece.name)}</h3>\n"
        text = f"<p>{self.marked(piece.comment)}</p>\n" if piece.comment else ""
        code = f"<code>{self.marked(piece.code, piece.defines)}</code>\n" if piece.code else ""
        return f"<section>\n{code}{text}</section>\n"

    def html(self):
        contents = body = ""
        for header in self.headers:
            name = f"{header.name}.h"
            links = " ".join(self.marked(p.name) for p in header.pieces if p.kind in ("function", "type"))
            contents += f'<li><a href="#{name}">nsa/{name}</a>: '
            contents += f"{html.escape(summary(header.comment, True))}\n<br>{links}</li>\n"
            body += f'<h2 id="{name}">nsa/{name}</h2>\n<p>{self.marked(header.comment)}</p>\n'
            body += "".join(self.html_piece(p) for p in header.pieces)
        return PAGE.format(version=self.version, top=html.escape(self.top.comment),
                           contents=contents, body=body)

    def files(self):
        yield from self.manual()
        yield HTML, self.html()


PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>libnsa {version} reference</title>
<style>
:root {{ color-scheme: light dark; --line: #8884; --link: #06c; --comment: #557; }}
@media (prefers-color-scheme: dark) {{ :root {{ --link: #7bf; --comment: #aab; }} }}
body {{ margin: 2em auto; padding: 0 1em; max-width: 105ch; font: 15px/1.45 ui-monospace, monospace; }}
h1, h2, h3 {{ font-family: system-ui, sans-serif; }}
h2 {{ margin-top: 3em; border-bottom: 1px solid var(--line); }}
p, code {{ display: block; margin: .7em 0; white-space: pre; overflow-x: auto; font: inherit;
  font-size: 13px; }}
section {{ border-top: 1px solid var(--line); }}
section code {{ background: var(--line); padding: .6em; }}
i {{ font-style: normal; color: var(--comment); }}
a {{ color: var(--link); text-decoration: none; }}
a:hover {{ text-decoration: underline; }}
li {{ margin: .7em 0; }}
:target {{ outline: 2px solid var(--link); scroll-margin-top: 3em; }}
</style>
</head>
<body>
<h1>libnsa {version}</h1>
<p>{top}</p>
<nav><ul>
{contents}</ul></nav>
{body}</body>
</html>
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("headers", nargs="+", type=pathlib.Path, help="the public headers")
    parser.add_argument("--list", action="store_true", help="only print the names of the files")
    parser.add_argument("--version", default="", help="of the library")
    parser.add_argument("--out", type=pathlib.Path, default=".", help="the folder for the files")
    options = parser.parse_args()
    for name, text in Reference(options.headers, options.version).files():
        if options.list:
            print(name)
        else:
            (options.out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

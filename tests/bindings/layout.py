#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Writes a program that prints the constants, structs and fields of nsa-sys, in C or in Rust: two that
print the same lines have the same layout.

  layout.py c BINDINGS INCLUDE       each constant with its value, each struct with its size, each field with
  layout.py rust BINDINGS INCLUDE    its place and size

BINDINGS is nsa-sys's bindings.rs, INCLUDE the folder of nsa/nsa.h. A struct that the headers define and
BINDINGS lacks is an error.
"""
import pathlib
import re
import sys

RUST = '''#![allow(dead_code, non_camel_case_types)]
include!("%s");
use std::mem::{size_of, MaybeUninit};
use std::ptr::addr_of;
fn bytes<T>(_: *const T) -> usize { size_of::<T>() }
fn main() {
'''
C = '#include <nsa/nsa.h>\n#include <stdio.h>\nint main(void) {\n'


def read(bindings, include):
    text = bindings.read_text(encoding='utf-8')
    constants = re.findall(r'pub const (NSA_\w+): i32 = -?\d+;', text)
    structs = {name: re.findall(r'^    pub (\w+):', body, re.M)
               for name, body in re.findall(r'^pub struct (nsa_\w+) \{\n(.*?)^\}', text, re.M | re.S)}
    structs = {name: fields for name, fields in structs.items() if fields}  # the others are opaque
    defined = {name for header in include.glob('nsa/*.h')
               for name in re.findall(r'^typedef struct (nsa_\w+) \{', header.read_text(encoding='utf-8'), re.M)}
    if defined != set(structs) or len(structs) < 15 or len(constants) < 76:
        sys.exit(f'the headers have the structs {sorted(defined)}, {bindings} has {sorted(structs)} and '
                 f'{len(constants)} constants')
    return constants, structs


def in_c(constants, structs):
    lines = [f'  printf("{c} %ld\\n", (long)({c}));' for c in constants]
    for name, fields in structs.items():
        lines.append(f'  printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'  printf("{name}.{f} %zu %zu\\n", offsetof({name}, {f}), sizeof((({name} *)0)->{f}));'
                  for f in fields]
    return C + '\n'.join(lines) + '\n  return 0;\n}'


def in_rust(constants, structs, bindings):
    lines = [f'    println!("{c} {{}}", {c});' for c in constants]
    for name, fields in structs.items():
        lines += [f'    println!("{name} {{}}", size_of::<{name}>());',
                  f'    let whole = MaybeUninit::<{name}>::uninit();', '    let at = whole.as_ptr();']
        lines += [f'    let field = unsafe {{ addr_of!((*at).{f}) }};\n'
                  f'    println!("{name}.{f} {{}} {{}}", field as usize - at as usize, bytes(field));' for f in fields]
    return RUST % bindings.resolve() + '\n'.join(lines) + '\n}'


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ('c', 'rust'):
        sys.exit(__doc__)
    bindings, include = map(pathlib.Path, sys.argv[2:])
    constants, structs = read(bindings, include)
    print(in_c(constants, structs) if sys.argv[1] == 'c' else in_rust(constants, structs, bindings))


if __name__ == '__main__':
    main()

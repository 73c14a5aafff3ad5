#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Writes nsa/_abi.py, the C API for ctypes, from the public headers.

  gen_abi.py --include ../include > nsa/_abi.py
  gen_abi.py --include ../include --check nsa/_abi.py    # 1: it is not what the headers say

Needs a C preprocessor (cc) and pycparser.
"""
import argparse
import difflib
import pathlib
import subprocess
import sys

from pycparser import c_ast, c_parser

HEAD = '''# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The C API of libnsa for ctypes. Written by python/gen_abi.py from include/nsa: do not edit."""
import ctypes as C
'''

INTEGERS = {'int8_t': 'C.c_int8', 'uint8_t': 'C.c_uint8', 'int16_t': 'C.c_int16', 'uint16_t': 'C.c_uint16',
            'int32_t': 'C.c_int32', 'uint32_t': 'C.c_uint32', 'int64_t': 'C.c_int64', 'uint64_t': 'C.c_uint64',
            'size_t': 'C.c_size_t', 'int': 'C.c_int', 'float': 'C.c_float', 'double': 'C.c_double',
            'char': 'C.c_char', 'nsa_status': 'C.c_int32'}


ENUMERATORS = {}


def value_of(node):
    if isinstance(node, c_ast.Constant):
        return int(node.value.rstrip('uUlL'), 0)
    if isinstance(node, c_ast.ID) and node.name in ENUMERATORS:
        return ENUMERATORS[node.name]
    if isinstance(node, c_ast.UnaryOp) and node.op == '-':
        return -value_of(node.expr)
    raise SystemExit(f'{node.coord}: a constant is expected')


class Abi:
    def __init__(self):
        self.lines, self.structs, self.functions, self.constants, self.size = [], {}, [], [], {}

    def kind(self, node, by_pointer=False):
        """The ctypes type of a declaration."""
        if isinstance(node, c_ast.TypeDecl):
            node = node.type
            name = node.names[0] if isinstance(node, c_ast.IdentifierType) else node.name
            if name == 'void':
                return None
            return INTEGERS.get(name) or self.structs.get(name) or ('C.c_void_p' if by_pointer else name)
        if isinstance(node, c_ast.PtrDecl):
            inner = node.type
            if isinstance(inner, c_ast.FuncDecl):
                return self.callback(inner)
            kind = self.kind(inner, True)
            if kind == 'C.c_char':
                return 'C.c_char_p'
            if kind is None or kind == 'C.c_void_p' and not isinstance(inner, c_ast.PtrDecl):
                return 'C.c_void_p'
            return f'C.POINTER({kind})'
        if isinstance(node, c_ast.ArrayDecl):
            return f'{self.kind(node.type)} * {value_of(node.dim)}'
        raise SystemExit(f'{node.coord}: no ctypes type')

    def parameter(self, node):
        if isinstance(node, c_ast.ArrayDecl):  # a pointer, as C has it
            return f'C.POINTER({self.kind(node.type)})'
        return self.kind(node)

    def callback(self, node):
        kinds = [self.kind(node.type)] + [self.kind(p.type) for p in node.args.params]
        return f'C.CFUNCTYPE({", ".join(str(k) for k in kinds)})'

    def take(self, node):
        if isinstance(node, c_ast.Typedef):
            inner = node.type
            if isinstance(inner, c_ast.PtrDecl) and isinstance(inner.type, c_ast.FuncDecl):
                self.structs[node.name] = node.name
                self.lines.append(f'\n{node.name} = {self.callback(inner.type)}')
            elif isinstance(inner, c_ast.PtrDecl):
                self.structs[node.name] = 'C.c_void_p'
            elif isinstance(inner.type, c_ast.Struct) and inner.type.decls:
                self.struct(node.name, inner.type)
        elif isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.Enum):
            at = 0
            for entry in node.type.values.enumerators:
                at = value_of(entry.value) if entry.value else at
                ENUMERATORS[entry.name] = at
                self.constants.append(f'{entry.name} = {at}')
                at += 1
        elif isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
            self.function(node)

    def struct(self, name, node):
        fields = [(d.name, self.kind(d.type)) for d in node.decls]
        self.structs[name] = name
        self.lines.append(f'\n\nclass {name}(C.Structure):\n    _fields_ = [')
        self.lines += [f'        ("{field}", {kind}),' for field, kind in fields]
        self.lines.append('    ]')

    def function(self, node):
        params = node.type.args.params if node.type.args else []
        kinds = [k for k in (self.parameter(p.type) for p in params) if k]
        self.functions.append(f'    "{node.name}": ({self.kind(node.type.type)}, [{", ".join(kinds)}]),')


def generate(include):
    text = '#include <nsa/nsa.h>\n'
    command = ['cc', '-E', '-P', '-D__attribute__(x)=', '-D__extension__=', '-I', str(include), '-x', 'c', '-']
    source = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    abi = Abi()
    for node in c_parser.CParser().parse(source).ext:
        name = getattr(node, 'name', None)
        if isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.Enum) or (name or '').startswith('nsa_'):
            abi.take(node)
    return (HEAD + '\n' + '\n'.join(abi.constants) + '\n' + '\n'.join(abi.lines) +
            '\n\n\n# name: (result, parameters)\nFUNCTIONS = {\n' + '\n'.join(abi.functions) + '\n}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--include', required=True, type=pathlib.Path, help='the folder of nsa/nsa.h')
    parser.add_argument('--check', type=pathlib.Path, help='compares with this file instead of writing')
    options = parser.parse_args()
    text = generate(options.include)
    if not options.check:
        print(text, end='')
        return 0
    difference = list(difflib.unified_diff(options.check.read_text().splitlines(), text.splitlines(),
                                           str(options.check), 'the headers', lineterm=''))
    print('\n'.join(difference) or f'{options.check} is what the headers say')
    return 1 if difference else 0


if __name__ == '__main__':
    sys.exit(main())

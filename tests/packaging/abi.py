#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Compares the C interface with that of an earlier version, which programs were built against.

  abi.py --write > abi-0.2.txt
  abi.py --check abi-0.2.txt     1: a program that was built before would break

Reads python/nsa/_abi.py, which a test holds against the headers. A function, a constant and a field may
be added; none may go or change its value, type or place. A struct without struct_size never grows.
"""
import argparse
import ctypes
import importlib.util
import pathlib
import sys

TREE = pathlib.Path(__file__).resolve().parents[2]


def load():
    spec = importlib.util.spec_from_file_location('abi', TREE / 'python' / 'nsa' / '_abi.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name_of(kind):
    return getattr(kind, '__name__', str(kind))


def lines():
    abi, out = load(), []
    for name, value in vars(abi).items():
        if isinstance(value, int) and name.startswith('NSA_'):
            out.append(f'constant {name} {value}')
        elif isinstance(value, type) and issubclass(value, ctypes.Structure):
            fields = dict(value._fields_)
            if 'struct_size' not in fields:
                out.append(f'size {name} {ctypes.sizeof(value)}')
            for field, kind in value._fields_:
                place = getattr(value, field)
                # A nested struct that may grow would move what follows it; none is nested.
                out.append(f'field {name}.{field} {place.offset} {place.size} {name_of(kind)}')
    for name, (result, parameters) in abi.FUNCTIONS.items():
        out.append(f'function {name} {name_of(result)} {" ".join(name_of(p) for p in parameters)}'.rstrip())
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--write', action='store_true')
    parser.add_argument('--check', type=pathlib.Path)
    options = parser.parse_args()
    now = lines()
    if options.write:
        print('\n'.join(now))
        return 0
    before = options.check.read_text().splitlines()
    gone = [line for line in before if line not in set(now)]
    for line in gone:
        print(f'gone or changed: {line}')
    print(f'{len(before) - len(gone)} of {len(before)} as before, {len(now) - len(before) + len(gone)} new')
    return 1 if gone or len(before) < 200 else 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Makes empty libraries in the place of those of CUDA that PyPI's PyTorch links.

  cuda_stubs.py TORCH_LIB_DIR OUT_DIR

PyTorch of PyPI cannot be imported without some 3 GB of NVIDIA's packages, of which a machine without a
GPU calls nothing. Each library that is missing becomes one with the names that PyTorch's libraries want
of it, which end the process when they are called. LD_LIBRARY_PATH=OUT_DIR then makes `import torch` work.
"""
import collections
import ctypes
import pathlib
import re
import subprocess
import sys


def readelf(path, *options):
    return subprocess.run(['readelf', '-W', *options, path], capture_output=True, text=True, check=True).stdout


def is_there(name):
    try:
        ctypes.CDLL(name)
        return True
    except OSError:
        return False


def main():
    libraries, out = sorted(pathlib.Path(sys.argv[1]).glob('*.so*')), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    own = {path.name for path in libraries}
    missing, wanted, defined = set(), collections.defaultdict(set), set()
    tables = {}
    for path in libraries:
        needed = re.findall(r'\(NEEDED\).*\[(.*)\]', readelf(path, '-d'))
        missing |= {name for name in needed if name not in own and not is_there(name)}
        tables[path] = readelf(path, '--dyn-syms'), readelf(path, '-V')
    unversioned = set()
    for symbols, versions in tables.values():
        file, of = None, {}
        for line in versions.splitlines():
            if match := re.search(r'File: (\S+)', line):
                file = match[1]
            elif (match := re.search(r'Name: (\S+)\s+Flags', line)) and file:
                of[match[1]] = file
        for line in symbols.splitlines():
            fields = line.split()
            if len(fields) < 8 or not fields[0].endswith(':'):
                continue
            name, _, version = fields[7].partition('@')
            version = version.strip('@')
            if fields[6] != 'UND':
                defined.add(name)
            elif of.get(version) in missing:
                wanted[of[version]].add((name, version))
            elif not version and fields[4] == 'GLOBAL':
                unversioned.add(name)
    # A name without a version does not say which library it is from, so each of the missing ones has all
    # that no library defines.
    for name in missing:
        wanted[name] |= {(symbol, '') for symbol in unversioned - defined if re.match(r'cu[A-Z]|cu[a-z]+[A-Z]|nv|nccl', symbol)}
    for name in sorted(missing):
        source, versions = out / 'stub.c', collections.defaultdict(list)
        source.write_text('\n'.join(f'void {symbol}(void) {{ __builtin_trap(); }}' for symbol in
                                    sorted({symbol for symbol, _ in wanted[name]})) + '\n')
        command = ['gcc', '-shared', '-fPIC', '-nostdlib', '-w', '-o', str(out / name), '-Wl,-soname,' + name, str(source)]
        for symbol, version in sorted(wanted[name]):
            if version:
                versions[version].append(symbol)
        if versions:
            script = out / 'stub.map'
            script.write_text(''.join(f'{v} {{ global: {"; ".join(s)}; }};\n' for v, s in versions.items()))
            command.append(f'-Wl,--version-script,{script}')
        subprocess.run(command, check=True)
        print(f'{name}: {len(wanted[name])} names')


if __name__ == '__main__':
    main()

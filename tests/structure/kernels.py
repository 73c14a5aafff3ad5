#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Compares the machine code of all kernels before and after a change that must not alter any.

  kernels.py digest [SET=]CACHE_DIR... -o FILE.tsv [--arch LIST]
  kernels.py compare OLD.tsv NEW.tsv [--moves moves.tsv] [--changed NAME,...] [--only SET]
                     [--arch LIST]
  kernels.py quick PROGRAM -o FILE.tsv [--arch LIST] [--jobs N] [--no-sample]
  kernels.py self-test [PROGRAM]

`digest` reads the kernel cache that `.ci/run variants` or `nsa-autotune compile` has filled, and
writes a sorted line for each kernel:

  set  architecture  entry name  hash  registers  static shared bytes

The hash covers the sections that belong to the kernel alone: .text, .nv.info, .nv.constant*,
.nv.shared and .nv.local with their relocations, and the constant tables that code may index. It
covers no name, no position in the file and no index into the symbol table, so that renaming or
moving a kernel, a function or a constant leaves it as it is (kernel_digest says how).

`quick` compiles a representative part of the kernels with PROGRAM (nsa-autotune) into a temporary
cache and digests it; two idle cores take a minute. It compiles two sets: `choice`, the kernels that
plans choose, and `sample`, candidates of the tuner. Candidates are drawn by the names of their
variants: after variants were renamed, compare with `--only choice`.

`compare` compares two files as multisets, by entry name. --moves names a tab-separated file whose
lines "kernel:OLD<TAB>kernel:NEW" rename entries; its other lines are ignored. Kernels of --changed
(new names) may differ. --only and --arch leave out other sets and architectures, such as
`quick --arch sm_90a --no-sample` has not compiled. The exit status is 1 when anything else differs,
or when nothing was compared.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parent.parent.parent

# ---- cubins: ELF64, little-endian ----

SHT_RELA, SHT_NOBITS, SHT_REL = 4, 8, 9
STT_OBJECT = 1


class CubinError(Exception):
    """The bytes are not a cubin of the expected format."""


class Section:
    """A section of a cubin; data is empty where the file holds none (NOBITS)."""

    def __init__(self, header, image):
        (self.name_at, self.type, _flags, _address, offset, self.size, _link, self.info,
         self.align, _entry_size) = header
        self.name = ''
        if self.type == SHT_NOBITS:
            self.data = b''
            return
        self.data = image[offset:offset + self.size]
        if len(self.data) != self.size:
            raise CubinError('a section ends beyond the file')


def c_string(table, at):
    return table[at:table.index(b'\0', at)].decode()


class Cubin:
    """The sections of a cubin, in order and by name."""

    def __init__(self, image):
        if image[:6] != b'\177ELF\2\1' or len(image) < 64:
            raise CubinError('no little-endian ELF64 file')
        table_at, = struct.unpack_from('<Q', image, 40)
        header_size, count, names = struct.unpack_from('<3H', image, 58)
        if header_size != 64 or table_at + 64 * count > len(image) or names >= count:
            raise CubinError('no section headers')
        self.sections = [Section(struct.unpack_from('<2I4Q2I2Q', image, table_at + 64 * i), image)
                         for i in range(count)]
        for section in self.sections:
            section.name = c_string(self.sections[names].data, section.name_at)
        self.by_name = {section.name: section for section in self.sections}

    def objects(self, section):
        """(value, size) of the variables that lie in a section."""
        index = self.sections.index(section)
        table = self.by_name['.symtab'].data
        symbols = struct.iter_unpack('<I2BH2Q', table[:len(table) // 24 * 24])
        return [(value, size) for _name, info, _other, where, value, size in symbols
                if where == index and info & 15 == STT_OBJECT]


# ---- what makes a kernel ----

# Of .nv.info: the format of an attribute whose 16-bit operand is the size of what follows, and the
# attributes that hold indices of the symbol table: the constant bank of the parameters, and
# external functions. Any new symbol shifts those.
FORMAT_SIZED = 4
INFO_PARAM_CBANK, INFO_EXTERNS = 0x0a, 0x0f

# Variables of at most so many bytes are constants of Config and of the templates, which the
# compiler has folded into the code but still lists; their order follows their names. Larger ones
# are tables.
SCALAR_BYTES = 8


def info_without_symbols(data):
    """The bytes of a kernel's .nv.info, with indices of symbols replaced by zeros."""
    out, at = bytearray(data), 0
    while at + 4 <= len(data):
        form, attribute, operand = struct.unpack_from('<BBH', data, at)
        at += 4
        if form != FORMAT_SIZED:
            continue
        if attribute == INFO_PARAM_CBANK:
            out[at:at + 4] = bytes(4)
        elif attribute == INFO_EXTERNS:
            out[at:at + operand] = bytes(operand)
        at += operand
    if at != len(data):
        raise CubinError('.nv.info is not a list of attributes')
    return bytes(out)


def relocations(section):
    """(offset, type, addend) of each relocation, without its symbol."""
    if section.type == SHT_RELA:
        return [(offset, info & 0xffffffff, addend)
                for offset, info, addend in struct.iter_unpack('<2Qq', section.data)]
    return [(offset, info & 0xffffffff, 0)
            for offset, info in struct.iter_unpack('<2Q', section.data)]


def kernel_digest(image, entry):
    """A hash over everything that determines what a kernel does, except its name.

    Per-kernel sections are those whose name ends with the kernel's. Of the sections that a cubin
    has once, .nv.constant3 (__constant__) and the tables in .nv.global.init count; .nv.constant4
    holds addresses of variables, which differ with their names. Instructions that read an address
    from it hold its position there, so they are covered as code."""
    cubin, parts = Cubin(image), []
    for section in cubin.sections:
        kind, dot, owner = section.name.rpartition('.' + entry)
        if dot and not owner:
            if kind.startswith(('.rel.', '.rela.')):
                content = repr(relocations(section)).encode()
                size = 0 if not section.data else 1
                if not size:
                    continue
            elif kind == '.nv.info':
                content, size = info_without_symbols(section.data), section.size
            elif kind in ('.text', '.nv.shared', '.nv.local') or kind.startswith('.nv.constant'):
                content, size = section.data, section.size
            else:
                continue  # .nv.merc.*, .nv.capmerc.*, .debug_*: what tools of NVIDIA read
            parts.append((kind, size, hashlib.sha256(content).hexdigest()))
        elif section.name == '.nv.constant3':
            parts.append((section.name, section.size, hashlib.sha256(section.data).hexdigest()))
        elif section.name == '.nv.global.init':
            parts += [('table', size, hashlib.sha256(section.data[value:value + size]).hexdigest())
                      for value, size in cubin.objects(section) if size > SCALAR_BYTES]
    if not any(kind == '.text' for kind, _size, _hash in parts):
        raise CubinError(f'no code of {entry}')
    return hashlib.sha256(repr(sorted(parts)).encode()).hexdigest()[:32]


# ---- entries of the kernel cache: runtime/cache/entry.h ----

CACHE_MAGIC, CACHE_VERSION, CACHE_HEADER = b'NSAKERN\n', 1, 96


def read_entry(data):
    """(architecture, entry name, registers, shared bytes, cubin) of a cache entry."""
    version, header = struct.unpack_from('<2I', data, 8)
    if data[:8] != CACHE_MAGIC or (version, header) != (CACHE_VERSION, CACHE_HEADER):
        raise CubinError('no cache entry of the format that this program reads')
    registers, _spill, _stack, shared, _serial = struct.unpack_from('<5i', data, 32)
    lengths = struct.unpack_from('<4I', data, 56)
    fields, at = [], CACHE_HEADER
    for length in lengths:
        fields.append(data[at:at + length])
        at += length
    _key, entry, arch, _compiler = fields
    return arch.decode(), entry.decode(), registers, shared, data[at:]


def digest_cache(folder, name, archs):
    """The lines of all entries below a folder; archs None: of every architecture."""
    lines = []
    for path in sorted(pathlib.Path(folder).rglob('*.nsak')):
        try:
            arch, entry, registers, shared, cubin = read_entry(path.read_bytes())
            if archs is None or arch in archs:
                lines.append((name, arch, entry, kernel_digest(cubin, entry), registers, shared))
        except (CubinError, struct.error, ValueError, KeyError) as error:
            sys.exit(f'kernels.py: {path}: {error}')
    if not lines:
        sys.exit(f'kernels.py: {folder} holds no kernel of these architectures')
    return lines


def write_lines(lines, path):
    text = ''.join('\t'.join(map(str, line)) + '\n' for line in sorted(lines))
    pathlib.Path(path).write_text(text)
    print(f'{len(lines)} kernels, {len(set(lines))} different ones: {path}')


def split_archs(text):
    return set(text.split(',')) if text and text != 'all' else None


def digest(args):
    lines = []
    for cache in args.cache:
        name, equals, folder = cache.rpartition('=')
        lines += digest_cache(folder, name if equals else 'choice', split_archs(args.arch))
    write_lines(lines, args.output)
    return 0


# ---- a quick set of kernels ----

QUICK_ARCHS = 'sm_80,sm_90a'
CONFIGS = ('configs/h200_d128.yaml', 'configs/base.yaml', 'configs/models/g4_d128.yaml')

# Options of nsa-autotune compile, and the configurations they are for.
QUICK_CHOICES = (
    (('--op', 'forward', '--probe-rows', '16'), CONFIGS),
    (('--op', 'forward', '--selection', 'ranges'), CONFIGS[:1]),
    (('--op', 'dense'), CONFIGS[:2]),
    (('--op', 'backward'), CONFIGS[:1]),
    (('--op', 'prefill'), CONFIGS[:1]),
    (('--op', 'decode', '--set', 'serving.max_seqs=256'), CONFIGS[:1]),  # and all fewer sequences
    (('--op', 'decode', '--set', 'serving.max_seqs=1'), CONFIGS[1:]),
    (('--op', 'append'), CONFIGS),
)
QUICK_SAMPLES = (
    (('--op', 'forward', '--sample', '1', '--seed', '1'), CONFIGS[:1]),
    (('--op', 'backward', '--sample', '1', '--seed', '1'), CONFIGS[:1]),
    (('--op', 'decode', '--sample', '1', '--seed', '1'), CONFIGS[:1]),
)


def compile_set(program, cache, rows, archs, jobs):
    """Compiles one set, a process for each row and architecture, so many at once."""
    def run(arch, options, files):
        command = [program, 'compile', '--jobs', '1', '--arch', arch, *options, *files]
        done = subprocess.run(command, cwd=TREE, env={**os.environ, 'NSA_CACHE_DIR': str(cache)},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RuntimeError(f'{" ".join(command)}: exit {done.returncode}\n{done.stdout}')

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(run, arch, options, files)
                   for options, files in rows for arch in archs]
        for job in waiting:
            job.result()


def quick(args):
    sets = [('choice', QUICK_CHOICES)] + ([] if args.no_sample else [('sample', QUICK_SAMPLES)])
    program, lines = os.path.abspath(args.program), []
    with tempfile.TemporaryDirectory(prefix='nsa-kernels-') as folder:
        for name, rows in sets:
            cache = pathlib.Path(folder, name)
            try:
                compile_set(program, cache, rows, args.arch.split(','), args.jobs)
            except RuntimeError as error:
                sys.exit(f'kernels.py: {error}')
            lines += digest_cache(cache, name, None)
    write_lines(lines, args.output)
    return 0


# ---- comparing ----

def read_moves(path):
    """New names by old ones, of kernels and of other words."""
    moves = {'kernel': {}, 'word': {}}
    for line in pathlib.Path(path).read_text().splitlines() if path else []:
        sides = [side.partition(':') for side in line.split('\t')]
        if len(sides) == 2 and sides[0][0] == sides[1][0] and sides[0][0] in moves:
            moves[sides[0][0]][sides[0][2]] = sides[1][2]
    return moves


def read_digests(path, names, args):
    """Counts of (hash, registers, shared bytes) by (set, architecture, entry name)."""
    kernels, archs = collections.defaultdict(collections.Counter), split_archs(args.arch)
    for line in pathlib.Path(path).read_text().splitlines():
        group, arch, entry, *code = line.split('\t')
        if args.only in (None, group) and (archs is None or arch in archs):
            kernels[group, arch, names.get(entry, entry)][tuple(code)] += 1
    return kernels


def describe(codes):
    """Registers and shared bytes of kernels, to find them by."""
    shown = [f'{registers} registers, {shared} B shared' + (f' ({count}x)' if count > 1 else '')
             for (_hash, registers, shared), count in sorted(codes.items())]
    return '; '.join(shown[:4]) + ('; ...' if len(shown) > 4 else '')


def moved_names(old, new):
    """Old names that are gone, by the one new name that has some of their code."""
    gone, suggestions = {}, {}
    for key in old.keys() - new.keys():
        gone.setdefault(key[:2], []).append(key)
    for key in new.keys() - old.keys():
        for before in gone.get(key[:2], []):
            if old[before] & new[key]:
                suggestions.setdefault(before[2], set()).add(key[2])
    return {name: found.pop() for name, found in suggestions.items() if len(found) == 1}


def compare(args):
    old = read_digests(args.old, read_moves(args.moves)['kernel'], args)
    new = read_digests(args.new, {}, args)
    allowed = set(args.changed.split(',')) if args.changed else set()
    same = differ = expected = 0
    for key in sorted(old.keys() | new.keys()):
        lost, found = old[key] - new[key], new[key] - old[key]
        same += (old[key] & new[key]).total()
        if not lost and not found:
            continue
        verdict = 'changed' if lost and found else 'disappeared' if lost else 'appeared'
        on_purpose = key[2] in allowed
        differ, expected = differ + (not on_purpose), expected + on_purpose
        print(f'{verdict}{", as expected" if on_purpose else ""}: {" ".join(key)}: '
              f'{lost.total()} of {old[key].total()} old, '
              f'{found.total()} of {new[key].total()} new')
        for sign, codes in (('-', lost), ('+', found)):
            if codes:
                print(f'  {sign} {describe(codes)}')
    for before, after in sorted(moved_names(old, new).items()):
        print(f'the same code has another name; for --moves: kernel:{before}\tkernel:{after}')
    print(f'{same} kernels are the same; {differ} names differ, {expected} as expected')
    return 1 if differ or not same else 0


# ---- self-test ----

def make_cubin(entry, code, **change):
    """A minimal cubin with one kernel; `change` says what differs from the default."""
    symbols = [b'', change.get('constant', 'kRows').encode(), b'table', entry.encode()]
    strings, at = b'', []
    for name in symbols:
        at.append(len(strings))
        strings += name + b'\0'
    filler = bytes(change.get('filler', 0))
    info = struct.pack('<BBHIHH', FORMAT_SIZED, INFO_PARAM_CBANK, 8, change.get('symbol', 7), 0x210,
                       change.get('parameter_bytes', 64))
    sections = [('', 0, b''), ('.shstrtab', 3, b''), ('.strtab', 3, strings),
                ('.filler', 1, filler), (f'.nv.info.{entry}', 0x70000000, info),
                (f'.text.{entry}', 1, code), (f'.nv.constant0.{entry}', 1, bytes(64)),
                (f'.nv.shared.{entry}', SHT_NOBITS, change.get('shared', 1024)),
                ('.nv.global.init', 1,
                 change.get('scalar', b'\1\0\0\0') + change.get('table', b'0123456789abcdef'))]
    sections.append(('.symtab', 2, bytes(24) +
                     struct.pack('<I2BH2Q', at[1], STT_OBJECT, 0, len(sections) - 1, 0, 4) +
                     struct.pack('<I2BH2Q', at[2], STT_OBJECT, 0, len(sections) - 1, 4, 16) +
                     struct.pack('<I2BH2Q', at[3], 0x12, 0, 5, 0, len(code))))
    names = b''.join(name.encode() + b'\0' for name, _type, _data in sections)
    sections[1] = ('.shstrtab', 3, names)
    body, headers, name_at = b'', b'', 0
    for name, kind, data in sections:
        size = data if kind == SHT_NOBITS else len(data)
        headers += struct.pack('<2I4Q2I2Q', name_at, kind, 0, 0, 64 + len(body), size, 0, 0, 1, 0)
        body += b'' if kind == SHT_NOBITS else data
        name_at += len(name) + 1
    header = b'\177ELF\2\1' + bytes(34) + struct.pack('<QQ', 64 + len(body), 0)[:8]
    header += bytes(10) + struct.pack('<3H', 64, len(sections), 1)
    return header + body + headers


def make_entry(arch, entry, cubin):
    key = b'key'
    lengths = struct.pack('<4IQ', len(key), len(entry), len(arch), 0, len(cubin))
    head = CACHE_MAGIC + struct.pack('<2I', CACHE_VERSION, CACHE_HEADER) + bytes(16)
    head += struct.pack('<5i', 40, 0, 0, 1024, 0) + bytes(4) + lengths + bytes(16)
    return head + key + entry.encode() + arch.encode() + cubin


def self_test(args):
    """Names and positions must not affect the hash, everything else must; then one comparison
    per outcome."""
    code = bytes(range(256))
    usual = kernel_digest(make_cubin('attend', code), 'attend')
    for same in ({'constant': 'kOther'}, {'filler': 100}, {'symbol': 9}, {'scalar': b'\2\0\0\0'}):
        assert kernel_digest(make_cubin('attend', code, **same), 'attend') == usual, same
    assert kernel_digest(make_cubin('attend_window', code), 'attend_window') == usual, 'name'
    for other in ({'shared': 2048}, {'parameter_bytes': 72}, {'table': bytes(16)}):
        assert kernel_digest(make_cubin('attend', code, **other), 'attend') != usual, other
    assert kernel_digest(make_cubin('attend', code[::-1]), 'attend') != usual, 'code'
    with tempfile.TemporaryDirectory(prefix='nsa-kernels-') as folder:
        root = pathlib.Path(folder)
        caches = {'old': [('attend', code), ('attend', code[1:]), ('select', code)],
                  'renamed': [('window', code), ('window', code[1:]), ('select', code)],
                  'other': [('attend', code), ('attend', code[2:]), ('select', code)]}
        for name, kernels in caches.items():
            (root / name).mkdir()
            for i, (entry, text) in enumerate(kernels):
                data = make_entry('sm_80', entry, make_cubin(entry, text))
                (root / name / f'{i}.nsak').write_bytes(data)
            assert main(['digest', str(root / name), '-o', str(root / f'{name}.tsv')]) == 0
        (root / 'moves.tsv').write_text('a.c\tb.c\nkernel:attend\tkernel:window\n')
        files = {name: str(root / f'{name}.tsv') for name in caches}
        moves = ['--moves', str(root / 'moves.tsv')]
        for expected, command in ((0, ['old', 'old']), (1, ['old', 'renamed']),
                                  (0, ['old', 'renamed', *moves]), (1, ['old', 'other']),
                                  (0, ['old', 'other', '--changed', 'attend']),
                                  (1, ['old', 'other', '--changed', 'select']),
                                  (0, ['old', 'old', '--arch', 'sm_80,sm_90a']),
                                  (1, ['old', 'old', '--arch', 'sm_90a']),
                                  (1, ['old', 'old', '--only', 'sample'])):
            status = main(['compare', *(files.get(word, word) for word in command)])
            assert status == expected, command
    if args.program:
        compare_builds(args.program)
    print('self-test passed')
    return 0


def compare_builds(program):
    """The kernels of an append twice; they must be the same, if there is a compiler."""
    with tempfile.TemporaryDirectory(prefix='nsa-kernels-') as folder:
        files = []
        for i in range(2):
            cache = pathlib.Path(folder, str(i))
            try:
                compile_set(os.path.abspath(program), cache, QUICK_CHOICES[-1:], ['sm_80'], 1)
            except RuntimeError as error:
                if 'NSA_E_NO_COMPILER' in str(error) or 'NVRTC' in str(error):
                    print(f'no kernel was compiled: {error}')
                    return
                raise
            files.append(str(pathlib.Path(folder, f'{i}.tsv')))
            write_lines(digest_cache(cache, 'choice', None), files[i])
        assert main(['compare', *files]) == 0


def main(words):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    one = commands.add_parser('digest')
    one.add_argument('cache', nargs='+', help='a kernel cache, with SET= before it when it is not '
                     'of the set `choice`')
    one.add_argument('-o', '--output', required=True)
    one.add_argument('--arch', help='architectures, as sm_80,sm_90a; otherwise all')
    one.set_defaults(run=digest)
    one = commands.add_parser('compare')
    one.add_argument('old')
    one.add_argument('new')
    one.add_argument('--moves', help='a file of new names')
    one.add_argument('--changed', help='entry names that may differ, separated by commas')
    one.add_argument('--only', help='compare this set alone')
    one.add_argument('--arch', help='compare these architectures alone')
    one.set_defaults(run=compare)
    one = commands.add_parser('quick')
    one.add_argument('program', help='nsa-autotune')
    one.add_argument('-o', '--output', required=True)
    one.add_argument('--arch', default=QUICK_ARCHS)
    one.add_argument('--jobs', type=int, default=os.cpu_count() or 1)
    one.add_argument('--no-sample', action='store_true', help='the set `choice` alone')
    one.set_defaults(run=quick)
    one = commands.add_parser('self-test')
    one.add_argument('program', nargs='?', help='nsa-autotune: also compile some kernels twice')
    one.set_defaults(run=self_test)
    args = parser.parse_args(words)
    return args.run(args)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

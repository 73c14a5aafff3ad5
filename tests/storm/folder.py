# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# What the storms of processes share: nsa-autotune over a cache folder of its own, small inputs for every
# command that writes, and what one undisturbed process makes of them. Kernels are compiled by the fake
# NVRTC of tests/unit, which takes no time.
import os
import re
import struct
import subprocess

ARCHS = ('sm_80', 'sm_86', 'sm_90a', 'sm_100a')
IMAGE_BYTES = 120_000  # as large as real kernels, so that writing takes a while
PROBLEMS = 3
CANDIDATES = 24  # one import each
STAMP = slice(16, 32)  # the time of last use in an entry (runtime/cache/entry.h): free to differ

MODEL = '''nsa: 1
model:
  heads: 4
  kv_heads: 2
  head_dim: 32
  compress: {block: 16, stride: 8, phi: mean}
  select: {block: 16, count: 4}
  window: 32
  gate: weights
serving: {max_tokens: 4Ki, max_kv_len: 4Ki}
'''

RECORD = '''nsa_records: 1
records:
  - device: {{name: "NVIDIA H200", arch: "sm_90a", sms: 132}}
    problem: {{key: "problem{problem}", bucket: 4096}}
    environment: {{library: "0.1.0", templates: "x", driver: "580.1", compiler: "nvrtc 13.0"}}
    measured:
      date: "2026-01-02T03:04:05Z"
      level: "normal"
      complete: true
      overlap_r: 0.25
      union4: 32
      union8: 38
      clock_mhz: [1900, 1980]
      temperature_c: [40, 60]
    baselines: []
    stages:
      "attend_window":
        - {{candidate: "rows={candidate}", state: ok, ms: 1, spread: 0, rounds: 7, chosen: false, default: false, note: ""}}
...
'''


class Failed(Exception):
    """A command that has to succeed does not."""


class Inputs:
    """Files that commands read, in a folder of their own; and what one process alone writes."""

    def __init__(self, autotune, nvrtc, folder):
        self.autotune = os.path.abspath(autotune)
        self.folder = folder
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith('NSA_')}
        self.environment.update(NSA_NVRTC_PATH=os.path.abspath(nvrtc), FAKE_NVRTC_BYTES=str(IMAGE_BYTES))
        self.model = self.write('model.yaml', MODEL)
        self.records = [
            self.write(f'record{i}.yaml', RECORD.format(problem=i % PROBLEMS, candidate=i))
            for i in range(CANDIDATES)]
        self.pack = os.path.join(folder, 'kernels.pack')
        self.entries = {}  # file name: bytes without the stamp
        self.of_arch = {}  # architecture: names of its entries
        for arch in ARCHS:
            cache = Cache(self, 'alone-' + arch)
            cache.must('compile', '--arch', arch, self.model)
            self.of_arch[arch] = set(cache.entries())
            self.entries.update(cache.entries())
        cache = Cache(self, 'alone')
        cache.must('compile', '--arch', ','.join(ARCHS), self.model)
        if cache.entries() != self.entries:
            raise Failed('an undisturbed compile writes other bytes than another one')
        cache.must('export', self.pack)
        for record in self.records:
            cache.must('import', '--records', record)
        self.record_files = cache.record_files()

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, 'w', encoding='ascii') as file:
            file.write(text)
        return path


class Cache:
    """A cache folder, and commands over it."""

    def __init__(self, inputs, name):
        self.inputs = inputs
        self.path = os.path.join(inputs.folder, name)

    def start(self, *arguments):
        return subprocess.Popen(
            [self.inputs.autotune, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, env={**self.inputs.environment, 'NSA_CACHE_DIR': self.path})

    def must(self, *arguments):
        process = self.start(*arguments)
        output = process.communicate()[0]
        if process.returncode:
            raise Failed(f'exit {process.returncode}: {" ".join(arguments)}\n{output}')
        return output

    def files(self, below):
        folder = os.path.join(self.path, below)
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def read(self, below, ending):
        found = {}
        for name in self.files(below):
            if name.endswith(ending):
                with open(os.path.join(self.path, below, name), 'rb') as file:
                    found[name] = file.read()
        return found

    def entries(self):
        return {name: without_stamp(data) for name, data in self.read('kernels', '.nsak').items()}

    def record_files(self):
        return self.read('tuning', '.yaml')

    def left_over(self):
        """Files that are neither entries, records nor locks."""
        return [f'{below}/{name}' for below, ending in (('kernels', '.nsak'), ('tuning', '.yaml'))
                for name in self.files(below)
                if not name.endswith(ending) and not re.fullmatch(r'\.lock-[0-9a-f]{2}', name)]


def without_stamp(data):
    return data[:STAMP.start] + data[STAMP.stop:]


def pack_entries(data):
    """The entries of a pack (autotune/cli/cmd_pack.c) without stamps; None: it is incomplete."""
    at, entries = 8, []
    while at + 8 <= len(data):
        (size,) = struct.unpack_from('<Q', data, at)
        at += 8
        if size == 0:
            break
        entries.append(without_stamp(data[at:at + size]))
        at += size
    complete = data[:7] == b'NSAPACK' and len(data) >= at + 8
    return entries if complete and struct.unpack_from('<Q', data, at)[0] == len(entries) else None

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The commands of the fault sweep, and the folders that they run over."""
import dataclasses
import functools
import os
import pathlib
import shutil
import subprocess
import sys

import oracle

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'storm'))
from folder import MODEL, RECORD  # noqa: E402

IMAGE_BYTES = 120_000  # as large as real kernels: ten of them exceed the smallest limit of a cache
GC_LIMIT = '1Mi'
RECORDS = 3  # in each file of records


@dataclasses.dataclass
class Command:
    arguments: list
    folder: str  # what it begins with: a name of Inputs.folders
    modules: str = 'program,libyaml'  # whose calls fail
    # Files that the user has named; a failure may leave them cut off.
    outputs: tuple = ()
    # A failure to store is a warning, and the call goes on with what is in memory: docs/architecture.md,
    # "The kernel cache".
    memory_serves: bool = False
    # It reports what it could not find out, as a result: its output may differ with status 0.
    reports: bool = False
    removes: bool = False  # removes entries on purpose
    # Blocks that stay: a library of NVIDIA's that was opened is kept until the process ends.
    keeps: int = 2


class Inputs:
    """Programs, and folders that are made once; a run gets a copy."""

    def __init__(self, build, folder):
        self.folder = folder
        self.autotune = str(build / 'nsa-autotune')
        self.host = str(build / 'tests' / 'fault' / 'sweep_host')
        self.preload = str(build / 'tests' / 'fault' / 'libinject.so')
        self.fake = str(build / 'tests' / 'unit' / 'libfake_cuda.so')
        for path in (self.autotune, self.host, self.preload, self.fake):
            if not os.path.exists(path):
                raise SystemExit(f'{path} does not exist: build it first')
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(('NSA_', 'FAKE_'))}
        self.environment.update(NSA_NVRTC_PATH=self.fake, NSA_DRIVER_PATH=self.fake,
                                NSA_CUBLASLT_PATH=self.fake, HOME='/nonexistent')
        self.make('empty')
        self.make('records', *(['import', '--records', f'records{i}.yaml'] for i in range(2)))
        self.make('small', ['compile', '--jobs', '1', '--arch', 'sm_90a', 'model.yaml'],
                  ['import', '--records', 'records0.yaml'],
                  ['export', 'kernels.pack'], ['export', '--records', 'all.yaml'])
        self.make('large', ['compile', '--jobs', '1', '--arch', 'sm_90a', 'model.yaml'],
                  ['import', '--records', 'records0.yaml'], image_bytes=IMAGE_BYTES)
        shutil.copytree(self.path('small'), self.path('packed'))
        shutil.rmtree(self.path('packed') / 'cache')
        self.make_damaged()

    @functools.lru_cache(None)
    def files(self, name):
        """The files of a folder at the beginning."""
        return oracle.read_all(self.path(name))

    def path(self, name):
        return pathlib.Path(self.folder, name)

    def make(self, name, *commands, image_bytes=0):
        place = self.path(name)
        place.mkdir()
        (place / 'model.yaml').write_text(MODEL, encoding='ascii')
        for i in range(2):
            (place / f'records{i}.yaml').write_text(records(i), encoding='ascii')
        environment = {**self.environment, 'NSA_CACHE_DIR': str(place / 'cache'),
                       'FAKE_NVRTC_BYTES': str(image_bytes)}
        for command in commands:
            subprocess.run([self.autotune, *command], cwd=place, env=environment, check=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)

    def make_damaged(self):
        """Entries that verify removes, a record that it names, and a file that gc removes."""
        shutil.copytree(self.path('small'), self.path('damaged'))
        cache = self.path('damaged') / 'cache'
        entry = sorted((cache / 'kernels').glob('*.nsak'))[0]
        entry.write_bytes(entry.read_bytes()[:-1])
        record = sorted((cache / 'tuning').glob('*.yaml'))[0]
        record.write_bytes(record.read_bytes().replace(b'rows=', b'rows-'))
        for below in ('kernels', 'tuning'):
            temporary = cache / below / '.tmp-1-2-3'
            temporary.write_bytes(b'')
            temporary.chmod(0o600)


def records(number):
    """One document with RECORDS records, whose candidates differ with `number`."""
    texts = [RECORD.format(problem=i, candidate=10 * number + i) for i in range(RECORDS)]
    head, end = 'nsa_records: 1\nrecords:\n', '...\n'
    return head + ''.join(t.removeprefix(head).removesuffix(end) for t in texts) + end


def table(inputs):
    def autotune(folder, *words, **options):
        return Command([inputs.autotune, *words], folder, **options)

    def host(folder, *words, **options):
        return Command([inputs.host, words[0], inputs.fake, *words[1:]], folder,
                       modules='libnsa,libyaml', **options)

    compile_ = ('compile', '--jobs', '1', '--arch', 'sm_90a', '--op', 'forward', 'model.yaml')
    gpu = ('--set', 'runtime.device=1')
    tune = ('tune', '--jobs', '1', *gpu, '--op', 'dense', 'model.yaml', '--level')
    return {
        'compile': autotune('empty', *compile_),
        'compile again': autotune('small', *compile_),
        'list': autotune('small', 'list'),
        'list --json': autotune('small', 'list', '--json'),
        'list --records': autotune('small', 'list', '--records'),
        'verify': autotune('small', 'verify'),
        'verify damaged': autotune('damaged', 'verify', removes=True),
        'gc': autotune('large', 'gc', '--limit', GC_LIMIT, removes=True),
        'gc temporary': autotune('damaged', 'gc', removes=True),
        'export': autotune('small', 'export', 'new.pack', outputs=('new.pack',)),
        'export over': autotune('small', 'export', 'kernels.pack', outputs=('kernels.pack',)),
        'export --records': autotune('small', 'export', '--records', 'new.yaml',
                                     outputs=('new.yaml',)),
        'import': autotune('packed', 'import', 'kernels.pack'),
        'import --records': autotune('records', 'import', '--records', 'records1.yaml'),
        'import --records new': autotune('empty', 'import', '--records', 'records0.yaml'),
        'tune': autotune('empty', *tune, 'quick', memory_serves=True),
        'tune heuristic': autotune('empty', *tune, 'heuristic', memory_serves=True),
        'tune --device all': autotune('empty', 'tune', '--jobs', '1', '--device', 'all', '--op', 'dense', '--dry-run',
                                      '--json', 'model.yaml'),
        'list --records --digest': autotune('small', 'list', '--records', '--digest'),
        'tune --dry-run': autotune('records', *tune, 'quick', '--dry-run'),
        'report': autotune('records', 'report', '--no-run', '--out', 'out', *gpu, 'model.yaml',
                           outputs=('out/report.md', 'out/report.json'), reports=True),
        'quickstart': autotune('empty', 'quickstart', '--device', 'cpu', '--tokens', '48'),
        'check': autotune('empty', 'check', 'model.yaml'),
        'config': autotune('empty', 'config', 'model.yaml'),
        'doctor': autotune('small', 'doctor', reports=True),
        'doctor --json': autotune('small', 'doctor', '--json', reports=True),
        'show': autotune('small', 'show', *gpu, 'model.yaml', reports=True),
        'show device': autotune('empty', 'show', 'device', reports=True),
        'api create': host('small', 'create', reports=True),
        'api plan': host('empty', 'plan', memory_serves=True),
        'api plan again': host('small', 'plan', memory_serves=True),
        'api cpu': host('empty', 'cpu'),
        'api records': host('records', 'records', 'records1.yaml', memory_serves=True),
        'api tune': host('empty', 'tune', memory_serves=True),
    }

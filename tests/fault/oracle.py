# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Runs a command of the fault sweep and holds it against the undisturbed run."""
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'storm'))
from folder import without_stamp  # noqa: E402

TIMEOUT_SECONDS = 60  # the slowest command takes one
FAULTS = ('crashes', 'lost', 'silent', 'left_behind', 'leaked')

# What differs between two undisturbed runs.
FREE = [(re.compile(pattern), replacement) for pattern, replacement in (
    (r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ', 'TIME'),
    (r'\b\d+(\.\d+)? (s|ms)\b|\b\d+\.\d\d times the forward', 'SPENT'),
    (r'0x[0-9a-f]+', 'ADDRESS'),
    (r'"seconds": [0-9.]+', 'SPENT'),
    # A kernel of the cache that cannot be read is a miss, and is compiled again.
    (r'\b\d+ kernels? (are missing|compiled)', r'N kernels \1'),
)]
LOCK = re.compile(r'\.lock-[0-9a-f]{2}')


@dataclasses.dataclass
class Run:
    code: int = None  # None: it hung
    out: str = ''
    err: str = ''
    before: dict = None  # relative path: bytes
    after: dict = None
    fired: int = 0
    calls: dict = None  # empty: the process ended without its handlers
    held: tuple = (0, 0)  # descriptors and blocks at the end


def normal(text, place):
    text = text.replace(str(place), 'PLACE')
    for pattern, replacement in FREE:
        text = pattern.sub(replacement, text)
    return text


def read_all(place):
    """Every file, entries of the cache without the time of their last use; locks are left out."""
    found = {}
    for folder, _below, names in os.walk(place):
        for name in names:
            if LOCK.fullmatch(name):
                continue
            path = pathlib.Path(folder, name)
            data = path.read_bytes()
            if name.endswith('.nsak'):
                data = without_stamp(data)
            elif name.startswith('report.'):
                data = normal(data.decode(), place).encode()
            found[str(path.relative_to(place))] = data
    return found


def read_report(path):
    """What inject.c has written at the end of each process: of every number the greatest. A forked child
    goes on with its parent's counts."""
    found = {}
    for word in path.read_text(encoding='ascii').split() if path.exists() else ():
        name, number = word.split('=')
        found[name] = max(found.get(name, 0), int(number, 0))
    return found


def run(inputs, command, place, fault):
    shutil.copytree(inputs.path(command.folder), place)
    done = Run(before=inputs.files(command.folder))
    notes = pathlib.Path(f'{place}.report')
    environment = {**inputs.environment, **fault, 'NSA_CACHE_DIR': str(place / 'cache'),
                   'LD_PRELOAD': inputs.preload, 'FAULT_REPORT': str(notes),
                   'FAULT_MODULES': command.modules,
                   'FAULT_PROGRAM': os.path.basename(command.arguments[0])}
    try:
        process = subprocess.run(command.arguments, cwd=place, env=environment, text=True,
                                 stdin=subprocess.DEVNULL, capture_output=True, check=False,
                                 timeout=TIMEOUT_SECONDS)
        done.code = process.returncode
        done.out, done.err = normal(process.stdout, place), normal(process.stderr, place)
    except subprocess.TimeoutExpired:
        pass
    counts = read_report(notes)
    done.fired = counts.pop('fired', 0)
    done.held = counts.pop('descriptors', 0), counts.pop('blocks', 0)
    done.calls = counts
    done.after = read_all(place)
    return done


def remove(place):
    shutil.rmtree(place, ignore_errors=True)
    pathlib.Path(f'{place}.report').unlink(missing_ok=True)


# ---- the verdict ----

def told(path, done):
    """Whether a message says that the temporary folder of a file could not be removed, which gc does later."""
    return any(part.startswith('.tmp-') and f'/{part} cannot be removed: ' in done.err for part in path.split('/'))


def without_told(done):
    return {path: data for path, data in done.after.items() if not told(path, done)}


def find_crash(done):
    if done.code is None:
        return f'it does not end within {TIMEOUT_SECONDS} s'
    if done.code < 0 or done.code >= 100 or not done.calls:
        return f'exit {done.code}\n{done.err}'
    return None


def find_lost(command, good, done):
    """A file must be as it was or as the undisturbed run leaves it."""
    for path, data in done.before.items():
        new = done.after.get(path)
        if new == data or (path in done.after and new == good.after.get(path)):
            continue
        if new is None and (path not in good.after or (command.removes and path.endswith('.nsak'))):
            continue  # removed on purpose
        if done.code != 0 and path in command.outputs:
            continue  # the user's file, which is written in place; the exit status tells
        return f'{path}: {"removed" if new is None else "changed"}'
    return None


def find_silent(command, good, done):
    """Success is what the undisturbed run does, or says so."""
    if done.code:
        reason = done.err.strip() or (command.reports and done.out.strip())
        return None if reason else f'exit {done.code} without a message'
    if good.code:
        return f'exit 0, and {good.code} without the fault'
    # A warning says what is in memory only, and nsa_explain what it could not find out.
    warned = command.memory_serves and (done.err.strip() != good.err.strip() or
                                        'out of host memory' in done.out)
    if done.out != good.out and not command.reports and not warned:
        return f'exit {done.code} with another output:\n{difference(good.out, done.out)}'
    after = without_told(done)
    if after != good.after and not warned:
        paths = [p for p in {**good.after, **after} if good.after.get(p) != after.get(p)
                 and not (command.reports and p in command.outputs and p in done.after)]
        return f'exit {done.code} with other files: {", ".join(paths)}\n{done.err}' if paths else None
    return None


def difference(good, bad):
    """The lines that are in one of the texts alone."""
    a, b = good.splitlines(), bad.splitlines()
    return '\n'.join(['- ' + x for x in a if x not in b] + ['+ ' + x for x in b if x not in a])


def find_left(command, good, done):
    """A new file must have the bytes that the undisturbed run gives it."""
    for path, data in without_told(done).items():
        if path in done.before or good.after.get(path) == data:
            continue
        if (done.code != 0 or command.reports) and path in command.outputs:
            continue
        return path
    return None


def find_leak(command, good, done):
    allowances = good.held[0], max(good.held[1], command.keeps)
    for name, allowed, held in zip(('descriptors', 'blocks'), allowances, done.held):
        if held > allowed:
            return f'{held} {name} at the end, {allowed} without the fault'
    return None


def judge(command, good, done):
    """(fault, explanation), or None."""
    verdicts = (find_crash(done), find_lost(command, good, done), find_silent(command, good, done),
                find_left(command, good, done), find_leak(command, good, done))
    for fault, explanation in zip(FAULTS, verdicts):
        if explanation:
            return fault, explanation
    return None


def self_test(command, good):
    """Runs with one fault each; returns the kinds that the verdict misses."""
    stored = 'cache/kernels/0-0.nsak'
    held = dataclasses.replace(good, before={**good.before, stored: b'x'},
                               after={**good.after, stored: b'x'})
    planted = {
        'crashes': [{'code': None}, {'code': -11}, {'code': 134}, {'calls': {}}],
        'lost': [{'after': good.after}, {'after': {**held.after, stored: b'y'}},
                 {'code': 6, 'err': 'why', 'after': good.after}],
        'silent': [{'out': 'less'}, {'code': 6, 'err': ''}, {'after': held.before}],
        'left_behind': [{'code': 6, 'err': 'why', 'after': {**held.after, 'cache/.tmp-1': b''}},
                        {'code': 6, 'err': 'x/.tmp-12 cannot be removed: y', 'after': {**held.after, 'cache/.tmp-1': b''}},
                        {'code': 6, 'err': 'x/.tmp-1 cannot be written: y',
                         'after': {**held.after, 'cache/.tmp-1': b''}}],
        'leaked': [{'held': (good.held[0] + 1, 0)}, {'held': (0, good.held[1] + 3)}],
    }
    return [kind for kind, changes in planted.items() for change in changes
            if (judge(command, held, dataclasses.replace(held, **change)) or ('',))[0] != kind]

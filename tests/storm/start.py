#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# start.py NSA_AUTOTUNE FAKE_NVRTC: 64 processes begin at once on a cache folder that does not exist.
# All of them succeed, and leave what one process alone leaves.
import sys
import tempfile

from folder import Cache, Inputs

PROCESSES = 64


def storm(cache, argument_lists):
    """Starts all commands; returns the output of the first that fails."""
    processes = [cache.start(*arguments) for arguments in argument_lists]
    outputs = [(process.communicate()[0], process.returncode) for process in processes]
    return next((f'exit {code}: {output}' for output, code in outputs if code), None)


def check(number, what, fault):
    print(f'{"not ok" if fault else "ok"} {number} {what}')
    if fault:
        print('# ' + str(fault).strip().replace('\n', '\n# '))
    return not fault


def main():
    autotune, nvrtc = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix='nsa-test-start-') as folder:
        inputs = Inputs(autotune, nvrtc, folder)
        print('1..4', flush=True)
        kernels, records = Cache(inputs, 'kernels'), Cache(inputs, 'records')
        archs = ','.join(inputs.of_arch)
        good = check(1, f'{PROCESSES} processes compile into a missing folder',
                     storm(kernels, [['compile', '--arch', archs, inputs.model]] * PROCESSES))
        good &= check(2, 'they leave one good set of entries, and nothing else',
                      kernels.left_over() or kernels.entries() != inputs.entries and 'other entries')
        count = len(inputs.records)
        good &= check(3, f'{PROCESSES} processes import records into a missing folder',
                      storm(records, [['import', '--records', inputs.records[i % count]]
                                      for i in range(PROCESSES)]))
        good &= check(4, 'no record is lost, and nothing else is left',
                      records.left_over() or records.record_files() != inputs.record_files and 'other records')
    return 0 if good else 1


sys.exit(main())

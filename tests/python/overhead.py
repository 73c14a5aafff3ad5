#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The time of nsa.attention around the C call, in microseconds, with outputs and workspace allocated.

  overhead.py [--limit 4.5]

The C call is replaced by one that returns at once. CPU time of the thread, so that other work on the machine
counts less; medians of batches. Machines differ by a factor of 4, so the limit is a multiple of what the
least does: an autograd function that makes three tensors, and without gradients the three tensors.
"""
import argparse
import sys
import time

import torch

import nsa
import nsa._torch


def median_us(function, calls=2000, rounds=15):
    times = []
    for _ in range(rounds):
        begin = time.thread_time()
        for _ in range(calls):
            function()
        times.append((time.thread_time() - begin) / calls * 1e6)
    return sorted(times)[rounds // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=4.5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = nsa.Config(heads=4, kv_heads=2, head_dim=32)
    tensors = [torch.randn(8, h, d) for h, d in ((4, 32), (2, 32), (2, 32), (4, 3))]
    leaves = [x.clone().requires_grad_() for x in tensors]
    plain = lambda: nsa.attention(*tensors, config=config)
    recorded = lambda: nsa.attention(*leaves, config=config)
    plain()
    recorded()

    class Stub(nsa._torch.Run):
        """Describes all tensors and calls nothing: the library has no call of this number."""

        def __call__(self, tensors):
            nsa._torch.shim.nsapy_run(self.address, tensors)

    for key, run in list(nsa._torch._entries.items()):
        stub = nsa._torch._entries[key] = object.__new__(Stub)
        for name in nsa._torch.Run.__slots__:
            setattr(stub, name, getattr(run, name))
        stub.args.call = 99
    like = tensors[0]
    least = lambda: (torch.empty_like(like), torch.empty_like(like), torch.empty_like(like))

    class Least(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            return least()[0]

        @staticmethod
        def backward(ctx, d):
            return d, d, d, d

    slow = []

    def report(name, ours, theirs):
        us, unit = median_us(ours), median_us(theirs)
        print(f"{name:16} {us:6.1f} us, the least {unit:6.1f} us")
        if us > options.limit * unit:
            slow.append(name)

    with torch.no_grad():
        report("no_grad", plain, least)
    with torch.inference_mode():
        report("inference_mode", plain, least)
    report("with gradients", recorded, lambda: Least.apply(*leaves))
    if slow:
        print(f"more than {options.limit} times the least: {', '.join(slow)}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""A forward and backward pass through PyTorch beside the same two C calls on a GPU.

  speed.py [--tokens 8192] [--limit 1.03]

Times of CUDA events, medians of alternating rounds with a cold L2; exit status 1 when PyTorch's is more
than --limit times the C calls'. 77 without a GPU.
"""
import argparse
import sys

import torch

import nsa
import nsa._torch as binding


def timed(function, rounds):
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(rounds):
        flush.zero_()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        function()
        events[1].record()
        events[1].synchronize()
        times.append(events[0].elapsed_time(events[1]))
    return times


def median(x):
    return sorted(x)[len(x) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--limit", type=float, default=1.03)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        return 77
    config = nsa.Config(heads=64, kv_heads=4, head_dim=128)
    make = lambda h, d: torch.randn(options.tokens, h, d, device="cuda", dtype=torch.bfloat16).requires_grad_()
    tensors = make(64, 128), make(4, 128), make(4, 128), make(64, 3)
    d_o = torch.randn(options.tokens, 64, 128, device="cuda", dtype=torch.bfloat16)
    plain = [x.detach() for x in tensors]
    through = lambda: torch.autograd.grad(nsa.attention(*tensors, config=config), tensors, d_o)
    through()

    # The same plans, called on tensors that exist already.
    text, calls = config.text, {}
    for key, run in binding._entries.items():
        calls[key[0]] = run
    forward, backward = calls[binding.FORWARD], calls[binding.BACKWARD]
    o, idx = torch.empty_like(d_o), torch.empty(forward.outputs[1][0], dtype=torch.int32, device="cuda")
    rooms = [torch.empty(run.room, dtype=torch.uint8, device="cuda") for run in (forward, backward)]
    out = [torch.empty_like(x) for x in plain]

    def direct():
        forward((*plain, o, idx, rooms[0]))
        backward((*plain, idx, d_o, *out, rooms[1]))

    for function in (through, direct) * 5:
        function()
    a, b = [], []
    for _ in range(10):
        a += timed(through, 5)
        b += timed(direct, 5)
    ratio = median(a) / median(b)
    print(f"{torch.cuda.get_device_name()}, {options.tokens} tokens, forward + backward: PyTorch {median(a):.3f} ms, "
          f"C calls {median(b):.3f} ms, ratio {ratio:.3f}")
    same = all(torch.equal(x, y) for x, y in zip(through(), out))
    print("the same bits" if same else "other bits")
    return 0 if ratio <= options.limit and same else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""A Python host that trains: gradients through torch.autograd beside those of the same function in float64.

The float64 function is written in PyTorch's operations and differentiated by PyTorch, on the blocks that the
library chose; its own gradients are checked by torch.autograd.gradcheck first. The library's errors, relative to
the norm of a sequence's gradient, are at most 8e-3 or twice those of the same operations in bf16. Needs PyTorch;
exit status 77 without it.

    gradients.py LIBNSA
"""
import sys

try:
    import torch
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)

import bridge

NAMES = "q", "k", "v", "gates"
MODELS = (
    dict(heads=8, kv_heads=2, dim=64, block=32, stride=16, select=64, count=4, init=1, local=2, window=64),
    dict(heads=4, kv_heads=4, dim=32, block=16, stride=8, select=16, count=3, init=1, local=1, window=20),
    dict(heads=16, kv_heads=1, dim=128, block=32, stride=16, select=32, count=6, init=1, local=2, window=100),
)


def attend(q, k, v, seen, store):
    """softmax(q k^T D^-1/2) v over the keys that `seen` [Hq or 1, T, keys] allows; rows of none give 0."""
    scores = store(torch.einsum("thd,shd->hts", q, k)) * q.shape[-1]**-0.5
    some = seen.any(-1, keepdim=True)
    probs = torch.softmax(scores.masked_fill(~seen & some, float("-inf")), -1) * some
    return store(torch.einsum("hts,shd->thd", store(probs), v))


def sequence(model, q, k, v, gates, chosen, store=lambda x: x):
    """The forward of one sequence on given blocks."""
    tokens, group, select = len(q), model["heads"] // model["kv_heads"], model["select"]
    t = torch.arange(tokens, device=q.device)
    wide = lambda x: x.repeat_interleave(group, 1)
    taken = torch.zeros(tokens, model["kv_heads"], (tokens - 1) // select + 2, dtype=torch.bool, device=q.device)
    taken.scatter_(2, torch.where(chosen >= 0, chosen, taken.shape[2] - 1).long(), True)
    taken = wide(taken[:, :, :-1].repeat_interleave(select, 2)[:, :, :tokens]).permute(1, 0, 2)
    causal = t[None, :] <= t[:, None]
    branches = [(k, v, taken & causal), (k, v, (causal & (t[None, :] > t[:, None] - model["window"]))[None])]
    if tokens >= model["block"]:
        mean = lambda x: store(x.unfold(0, model["block"], model["stride"]).mean(-1))
        ends = torch.arange((tokens - model["block"]) // model["stride"] + 1, device=q.device) * model["stride"]
        branches.append((mean(k), mean(v), (ends[None, :] + model["block"] - 1 <= t[:, None])[None]))
    order = {2: 0, 0: 1, 1: 2}  # of the branches here: selected, window, compressed
    return store(sum(torch.sigmoid(gates[..., order[b]:order[b] + 1]) * attend(q, wide(keys), wide(values), seen, store)
                     for b, (keys, values, seen) in enumerate(branches)))


def packed(model, lengths, inputs, chosen, store=lambda x: x):
    cut = lambda x: torch.split(x, list(lengths))
    return torch.cat([sequence(model, *parts, store) for parts in zip(*map(cut, inputs), cut(chosen))])


def gradients_of(function, inputs, d_o):
    leaves = [x.detach().requires_grad_() for x in inputs]
    o = function(leaves)
    return o.detach(), torch.autograd.grad(o, leaves, d_o.to(o.dtype))


def worst(got, want, lengths):
    """The largest relative error of a sequence's gradient; that of one token may be 0."""
    least = 1e-6 * want.norm()
    return max(((a.double() - b).norm() / b.norm().clamp_min(least)).item()
               for a, b in zip(torch.split(got, list(lengths)), torch.split(want, list(lengths))) if len(b))


class Rounded(torch.autograd.Function):
    """What is stored in bf16, there and back."""

    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().to(x.dtype)

    @staticmethod
    def backward(ctx, d):
        return d.bfloat16().to(d.dtype)


def check_reference():
    """The float64 function against finite differences."""
    model = dict(MODELS[1], dim=2, heads=2, kv_heads=1)
    draw = lambda *shape: torch.randn(36, *shape, dtype=torch.float64, requires_grad=True)
    inputs = draw(2, 2), draw(1, 2), draw(1, 2), draw(2, 3)
    block = torch.arange(36)[:, None, None] // model["select"]
    chosen = torch.cat([torch.zeros_like(block), torch.where(block > 0, block, -1)], -1)
    return torch.autograd.gradcheck(lambda *x: sequence(model, *x, chosen), inputs)


def check(path, model, lengths, device):
    draw = lambda *shape: torch.randn(sum(lengths), *shape, device=device).bfloat16()
    inputs = [draw(model["heads"], model["dim"]), draw(model["kv_heads"], model["dim"]),
              draw(model["kv_heads"], model["dim"]), draw(model["heads"], 3)]
    d_o = draw(model["heads"], model["dim"])
    attention = bridge.Attention(path, model, device)
    o, mine = gradients_of(lambda x: attention(*x, lengths), inputs, d_o)
    again = gradients_of(lambda x: attention(*x, lengths), inputs, d_o)[1]
    chosen = attention.chosen
    exact_o, exact = gradients_of(lambda x: packed(model, lengths, x, chosen), [x.double() for x in inputs], d_o)
    plain_o, plain = gradients_of(lambda x: packed(model, lengths, x, chosen, Rounded.apply),
                                  [x.float() for x in inputs], d_o)
    failed = 0
    for name, got, want, other in zip(("o",) + NAMES, (o,) + mine, (exact_o,) + exact, (plain_o,) + plain):
        error, limit = worst(got, want, lengths), max(8e-3, 2 * worst(other, want, lengths))
        failed += not error <= limit
        print(f"{lengths} G {model['heads'] // model['kv_heads']} {name}: {error:.2e}, limit {limit:.2e}"
              f"{'' if error <= limit else '  FAILED'}")
    if not all(torch.equal(a, b) for a, b in zip(mine, again)):
        failed += 1
        print(f"{lengths}: other bits the second time  FAILED")
    attention.close()
    return failed


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    failed = not check_reference()
    for model in MODELS:
        for lengths in ((200,), (64, 1, 90, 15)) + (((700, 300),) if device == "cuda" else ()):
            failed += check(sys.argv[1], model, lengths, device)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

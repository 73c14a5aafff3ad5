#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""A Python host that trains: gradients through torch.autograd beside those of the same function in float64.

Phi mean, linear and mlp; gates as logits, and from the gate MLP, with the gradients of all weights.

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

MODELS = (
    dict(heads=8, kv_heads=2, dim=64, block=32, stride=16, select=64, count=4, init=1, local=2, window=64),
    dict(heads=4, kv_heads=4, dim=32, block=16, stride=8, select=16, count=3, init=1, local=1, window=20),
    dict(heads=16, kv_heads=1, dim=128, block=32, stride=16, select=32, count=6, init=1, local=2, window=100),
    dict(heads=4, kv_heads=2, dim=32, block=16, stride=8, select=16, count=3, init=1, local=1, window=20, phi="linear",
         gate="mlp", channels=48),
    dict(heads=16, kv_heads=2, dim=64, block=32, stride=16, select=64, count=4, init=1, local=2, window=64, phi="mlp",
         hidden=48, gate="mlp", channels=128, gate_hidden=32),
)


def draw_inputs(model, tokens, draw):
    """The inputs by their names; weights are scaled so that every layer keeps about the variance."""
    heads, kv_heads, dim = model["heads"], model["kv_heads"], model["dim"]
    flat, hidden = model["block"] * dim, model.get("hidden", 0)
    layer = lambda *shape: draw(*shape) * shape[-2]**-0.5
    out = dict(q=draw(tokens, heads, dim), k=draw(tokens, kv_heads, dim), v=draw(tokens, kv_heads, dim))
    for side in "kv" if model.get("phi", "mean") != "mean" else "":
        out[f"phi.{side}.pe"] = draw(kv_heads, model["block"], dim) * 0.5
        if hidden:
            out |= {f"phi.{side}.w1": layer(kv_heads, flat, hidden), f"phi.{side}.b1": draw(kv_heads, hidden) * 0.1,
                    f"phi.{side}.w2": layer(kv_heads, hidden, dim), f"phi.{side}.b2": draw(kv_heads, dim) * 0.1}
        else:
            out[f"phi.{side}.w"] = layer(kv_heads, flat, dim)
    if "channels" not in model:
        return out | dict(gates=draw(tokens, heads, 3))
    wide = model.get("gate_hidden", 0)
    out["gate.x"] = draw(tokens, model["channels"])
    if wide:
        out |= {"gate.w1": layer(model["channels"], wide), "gate.b1": draw(wide) * 0.1}
    return out | {"gate.w2": layer(wide or model["channels"], heads * 3), "gate.b2": draw(heads * 3) * 0.1}


def attend(q, k, v, seen, store):
    """softmax(q k^T D^-1/2) v over the keys that `seen` [Hq or 1, T, keys] allows; rows of none give 0."""
    scores = store(torch.einsum("thd,shd->hts", q, k)) * q.shape[-1]**-0.5
    some = seen.any(-1, keepdim=True)
    probs = torch.softmax(scores.masked_fill(~seen & some, float("-inf")), -1) * some
    return store(torch.einsum("hts,shd->thd", store(probs), v))


def compress(model, x, weights, store):
    """phi of the blocks of x [T, Hkv, D]."""
    blocks = x.unfold(0, model["block"], model["stride"]).transpose(2, 3)  # [N, Hkv, l, D]
    if not weights:
        return store(blocks.mean(2))
    rows = store(blocks + weights["pe"]).flatten(2)
    product = lambda y, w: torch.einsum("nhi,hio->nho", y, weights[w])
    if "w" in weights:
        return store(product(rows, "w"))
    hidden = store(torch.nn.functional.gelu(store(product(rows, "w1") + weights["b1"])))
    return store(product(hidden, "w2") + weights["b2"])


def make_gates(model, inputs, store):
    """Logits [T, Hq, 3]."""
    if "gates" in inputs:
        return inputs["gates"]
    x = inputs["gate.x"]
    if "gate.w1" in inputs:
        x = store(torch.nn.functional.silu(store(x @ inputs["gate.w1"] + inputs["gate.b1"])))
    return store(x @ inputs["gate.w2"] + inputs["gate.b2"]).unflatten(1, (model["heads"], 3))


def sequence(model, inputs, chosen, store=lambda x: x):
    """The forward of one sequence on given blocks."""
    q, k, v, gates = inputs["q"], inputs["k"], inputs["v"], make_gates(model, inputs, store)
    tokens, group, select = len(q), model["heads"] // model["kv_heads"], model["select"]
    t = torch.arange(tokens, device=q.device)
    wide = lambda x: x.repeat_interleave(group, 1)
    taken = torch.zeros(tokens, model["kv_heads"], (tokens - 1) // select + 2, dtype=torch.bool, device=q.device)
    taken.scatter_(2, torch.where(chosen >= 0, chosen, taken.shape[2] - 1).long(), True)
    taken = wide(taken[:, :, :-1].repeat_interleave(select, 2)[:, :, :tokens]).permute(1, 0, 2)
    causal = t[None, :] <= t[:, None]
    branches = [(k, v, taken & causal), (k, v, (causal & (t[None, :] > t[:, None] - model["window"]))[None])]
    if tokens >= model["block"]:
        phi = lambda x, side: compress(model, x, {n[6:]: w for n, w in inputs.items() if n[:6] == f"phi.{side}."}, store)
        ends = torch.arange((tokens - model["block"]) // model["stride"] + 1, device=q.device) * model["stride"]
        branches.append((phi(k, "k"), phi(v, "v"), (ends[None, :] + model["block"] - 1 <= t[:, None])[None]))
    order = {2: 0, 0: 1, 1: 2}  # of the branches here: selected, window, compressed
    return store(sum(torch.sigmoid(gates[..., order[b]:order[b] + 1]) * attend(q, wide(keys), wide(values), seen, store)
                     for b, (keys, values, seen) in enumerate(branches)))


def of_tokens(name):
    return name in ("o", "q", "k", "v", "gates", "gate.x")


def packed(model, lengths, inputs, chosen, store=lambda x: x):
    cut = lambda x: torch.split(x, list(lengths))
    parts = [{name: cut(x)[s] if of_tokens(name) else x for name, x in inputs.items()} for s in range(len(lengths))]
    return torch.cat([sequence(model, part, blocks, store) for part, blocks in zip(parts, cut(chosen))])


def gradients_of(function, inputs, d_o):
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    o = function(leaves)
    return dict(o=o.detach()) | dict(zip(inputs, torch.autograd.grad(o, list(leaves.values()), d_o.to(o.dtype))))


def worst(got, want, lengths, name):
    """The largest relative error of a sequence's gradient; that of one token may be 0, but for the roundings of f32,
    which are some 1e-8 of all. Weights have one."""
    least = 1e-5 * want.norm()
    if not of_tokens(name):
        lengths = len(want),
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
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64)
    mean = dict(MODELS[1], dim=2, heads=2, kv_heads=1)
    return all(check_function(model, draw_inputs(model, 36, draw))
               for model in (mean, mean | dict(phi="linear", channels=3),
                             mean | dict(phi="mlp", hidden=3, channels=2, gate_hidden=4)))


def check_function(model, inputs):
    block = torch.arange(36)[:, None, None] // model["select"]
    chosen = torch.cat([torch.zeros_like(block), torch.where(block > 0, block, -1)], -1)
    leaves = tuple(x.detach().requires_grad_() for x in inputs.values())
    return torch.autograd.gradcheck(lambda *x: sequence(model, dict(zip(inputs, x)), chosen), leaves)


def check(path, model, lengths, device):
    inputs = draw_inputs(model, sum(lengths), lambda *shape: torch.randn(*shape, device=device))
    inputs = {name: x.bfloat16() for name, x in inputs.items()}
    d_o = torch.randn_like(inputs["q"])
    attention = bridge.Attention(path, model, device)
    weights = lambda x: {name: x[name] for name in x if "." in name}
    run = lambda x: attention(x["q"], x["k"], x["v"], x.get("gates"), lengths, weights(x))
    mine = gradients_of(run, inputs, d_o)
    again = gradients_of(run, inputs, d_o)
    chosen = attention.chosen
    cast = lambda dtype: {name: x.to(dtype) for name, x in inputs.items()}
    exact = gradients_of(lambda x: packed(model, lengths, x, chosen), cast(torch.float64), d_o)
    plain = gradients_of(lambda x: packed(model, lengths, x, chosen, Rounded.apply), cast(torch.float32), d_o)
    failed = 0
    for name, want in exact.items():
        error = worst(mine[name], want, lengths, name)
        limit = max(8e-3, 2 * worst(plain[name], want, lengths, name))
        failed += not error <= limit
        print(f"{lengths} G {model['heads'] // model['kv_heads']} {name}: {error:.2e}, limit {limit:.2e}"
              f"{'' if error <= limit else '  FAILED'}")
    if not all(torch.equal(mine[name], again[name]) for name in mine):
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

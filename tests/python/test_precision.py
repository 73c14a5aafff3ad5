# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""bfloat16 beside what a framework does by hand: products and softmax in float32, bfloat16 wherever something
is stored, on the blocks that the library chose.

Both are compared with float64 on the same blocks. The library's relative error is at most a small constant or
twice that of the plain computation, of the output and of every gradient, those of phi and the gate MLP included;
of the output alone at most both.
"""
import pytest
import torch

import nsa
import oracle


class Rounded(torch.autograd.Function):
    """What is stored in bfloat16, there and back."""

    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().to(x.dtype)

    @staticmethod
    def backward(ctx, d):
        return d.bfloat16().to(d.dtype)


def model(heads, kv_heads, dim, block, stride, select, count, local, window, **more):
    return dict(heads=heads, kv_heads=kv_heads, head_dim=dim, window=window, compress=dict(block=block, stride=stride, phi="mean"),
                select=dict(block=select, count=count, init=1, local=local)) | more


MODELS = {
    "groups of 4": model(8, 2, 64, 32, 16, 64, 4, 2, 64),
    "groups of 1": model(4, 4, 32, 16, 8, 16, 3, 1, 20),
    "groups of 16": model(16, 1, 128, 32, 16, 32, 6, 2, 100),
    "linear": model(4, 2, 32, 16, 8, 16, 3, 1, 20, gate="mlp", gate_mlp=dict(channels=48),
                    compress=dict(block=16, stride=8, phi="linear")),
    "mlp": model(16, 2, 64, 32, 16, 64, 4, 2, 64, gate="mlp", gate_mlp=dict(channels=128, hidden=32),
                 compress=dict(block=32, stride=16, phi="mlp", hidden=48, activation="gelu")),
}


def draw_inputs(config, tokens, seed):
    """By their names; weights are scaled so that every layer keeps about the variance."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)
    layer = lambda *shape: draw(*shape) * shape[-2]**-0.5
    heads, kv_heads, dim, c = config.heads, config.kv_heads, config.head_dim, config.compress
    out = dict(q=draw(tokens, heads, dim), k=draw(tokens, kv_heads, dim), v=draw(tokens, kv_heads, dim))
    for side in "kv" if c["phi"] != "mean" else "":
        flat = c["block"] * dim
        out[f"phi.{side}.pe"] = draw(kv_heads, c["block"], dim) * 0.5
        if c["phi"] == "linear":
            out[f"phi.{side}.w"] = layer(kv_heads, flat, dim)
        else:
            hidden = c["hidden"]
            out |= {f"phi.{side}.w1": layer(kv_heads, flat, hidden), f"phi.{side}.b1": draw(kv_heads, hidden) * 0.1,
                    f"phi.{side}.w2": layer(kv_heads, hidden, dim), f"phi.{side}.b2": draw(kv_heads, dim) * 0.1}
    if config.gate != "mlp":
        return out | dict(gates=draw(tokens, heads, 3))
    channels, wide = config.gate_mlp["channels"], config.gate_mlp.get("hidden", 0)
    out["gate.x"] = draw(tokens, channels)
    if wide:
        out |= {"gate.w1": layer(channels, wide), "gate.b1": draw(wide) * 0.1}
    return out | {"gate.w2": layer(wide or channels, heads * 3), "gate.b2": draw(heads * 3) * 0.1}


def of_tokens(name):
    return name in ("o", "q", "k", "v", "gates", "gate.x")


def weights_of(inputs):
    return {name: x for name, x in inputs.items() if "." in name}


def library(config, lengths, inputs):
    cu = torch.tensor([0, *lengths]).cumsum(0).int().to(inputs["q"].device)
    return nsa.attention(inputs["q"], inputs["k"], inputs["v"], inputs.get("gates"), config=config, cu_seqlens=cu,
                         weights=weights_of(inputs), return_indices=True)


def by_hand(config, lengths, inputs, chosen, store):
    cut = lambda x: torch.split(x, lengths)
    out = []
    for s in range(len(lengths)):
        one = {name: cut(x)[s] if of_tokens(name) else x for name, x in inputs.items()}
        out.append(oracle.attention(one["q"], one["k"], one["v"], one.get("gates"), config, weights_of(one), cut(chosen)[s],
                                    store=store)[0])
    return torch.cat(out)


def gradients(function, inputs, d_o):
    """o and the gradients of all inputs, in float64 on the CPU."""
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    o = function(leaves)
    found = torch.autograd.grad(o, list(leaves.values()), d_o.to(o))
    return {name: x.detach().double().cpu() for name, x in zip(("o", *inputs), (o, *found))}


def worst(got, want, lengths, name):
    """The largest relative error of a sequence. The gradient of one token may be 0 but for the roundings of float32."""
    least = 1e-5 * want.norm()
    parts = lengths if of_tokens(name) else [len(want)]
    return max(((a - b).norm() / b.norm().clamp_min(least)).item() for a, b in zip(got.split(parts), want.split(parts)))


@pytest.mark.parametrize("lengths", [[200], [64, 1, 90, 15]], ids=["one", "packed"])
@pytest.mark.parametrize("name", MODELS)
def test_output_and_gradients(name, lengths, device):
    config = nsa.Config(**MODELS[name])
    inputs = {n: x.bfloat16() for n, x in draw_inputs(config, sum(lengths), seed=1).items()}
    d_o = torch.randn(inputs["q"].shape, generator=torch.Generator().manual_seed(2)).bfloat16()
    there = {n: x.to(device) for n, x in inputs.items()}
    chosen = library(config, lengths, there)[1].cpu()
    run = lambda x: library(config, lengths, x)[0]
    mine, again = (gradients(run, there, d_o) for _ in range(2))
    cast = lambda dtype: {n: x.to(dtype) for n, x in inputs.items()}
    exact = gradients(lambda x: by_hand(config, lengths, x, chosen, oracle.exact), cast(torch.float64), d_o)
    plain = gradients(lambda x: by_hand(config, lengths, x, chosen, Rounded.apply), cast(torch.float32), d_o)
    for n, want in exact.items():
        assert torch.equal(mine[n], again[n]), f"{n} has other bits the second time"
        error, limit = worst(mine[n], want, lengths, n), max(8e-3, 2 * worst(plain[n], want, lengths, n))
        assert error <= limit, f"{n} is off by {error:.2e}, allowed {limit:.2e}"


@pytest.mark.parametrize("scale", [0.25, 1.0, 4.0])
def test_flat_and_peaked_softmax(scale, device):
    config = nsa.Config(heads=32, kv_heads=2, head_dim=128)
    tokens = 300 if device == "cpu" else 1500
    inputs = draw_inputs(config, tokens, seed=3)
    inputs["q"] *= scale
    inputs = {n: x.bfloat16() for n, x in inputs.items()}
    o, chosen = library(config, [tokens], {n: x.to(device) for n, x in inputs.items()})
    cast = lambda dtype: {n: x.to(dtype) for n, x in inputs.items()}
    exact = by_hand(config, [tokens], cast(torch.float64), chosen.cpu(), oracle.exact)
    plain = by_hand(config, [tokens], cast(torch.float32), chosen.cpu(), Rounded.apply)
    error = lambda x: ((x.double() - exact).norm(dim=(0, 2)) / exact.norm(dim=(0, 2))).max().item()
    assert error(o.cpu()) <= min(6e-3, 2 * error(plain))

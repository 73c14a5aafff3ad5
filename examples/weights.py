#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The weights file of the examples: train.py --save writes it, serve.py and serve.c serve it.

  weights.py FILE [--seed 1]     writes random weights of a small model; needs nothing but Python

The first line is text, HEADER below. Behind it stand the tensors as little-endian float32, in the order of
`shapes`, with the names and layouts of transformers' Llama: a language model of bytes, with a linear layer of
gate logits beside the projections of each attention layer.
"""
import argparse
import array
import math
import random
import re
import sys

HEADER = ("libnsa-example-weights width={width} ffn={ffn} layers={layers} heads={heads} kv_heads={kv_heads} dim={dim} "
          "block={block} stride={stride} select={select} count={count} window={window} theta={theta} eps={eps}\n")
FIELDS = re.findall(r"{(\w+)}", HEADER)
BYTES = 256  # the vocabulary
SMALL = dict(width=64, ffn=192, layers=2, heads=8, kv_heads=2, dim=16, block=16, stride=8, select=16, count=4, window=32,
             theta=10000.0, eps=1e-6)


def shapes(m):
    """Name and shape of every tensor of a model, in the order of the file."""
    width, ffn, q, kv = m["width"], m["ffn"], m["heads"] * m["dim"], m["kv_heads"] * m["dim"]
    yield "model.embed_tokens.weight", (BYTES, width)
    for i in range(m["layers"]):
        for name, shape in (("input_layernorm.weight", (width,)),
                            ("self_attn.q_proj.weight", (q, width)),
                            ("self_attn.k_proj.weight", (kv, width)),
                            ("self_attn.v_proj.weight", (kv, width)),
                            ("self_attn.nsa_gate.weight", (3 * m["heads"], width)),
                            ("self_attn.nsa_gate.bias", (3 * m["heads"],)),
                            ("self_attn.o_proj.weight", (width, q)),
                            ("post_attention_layernorm.weight", (width,)),
                            ("mlp.gate_proj.weight", (ffn, width)),
                            ("mlp.up_proj.weight", (ffn, width)),
                            ("mlp.down_proj.weight", (width, ffn))):
            yield f"model.layers.{i}.{name}", shape
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (BYTES, width)


def save(path, m, numbers_of):
    """Writes a model `m` of FIELDS. numbers_of(name, shape): a tensor's numbers, flat."""
    with open(path, "wb") as file:
        file.write(HEADER.format(**m).encode())
        for name, shape in shapes(m):
            numbers = array.array("f", numbers_of(name, shape))
            if len(numbers) != math.prod(shape):
                raise ValueError(f"{name} has {len(numbers)} numbers, not {math.prod(shape)}")
            if sys.byteorder == "big":
                numbers.byteswap()
            file.write(numbers)


def load(path):
    """The model, and an array.array of each tensor by its name."""
    with open(path, "rb") as file:
        words = file.readline(4096).decode("ascii", "replace").split()
        m = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        if words[:1] != [HEADER.split()[0]] or sorted(m) != sorted(FIELDS):
            raise ValueError(f"{path} is no weights file of the examples")
        m = {name: float(m[name]) if name in ("theta", "eps") else int(m[name]) for name in FIELDS}
        tensors = {}
        for name, shape in shapes(m):
            raw = file.read(4 * math.prod(shape))
            if len(raw) != 4 * math.prod(shape):
                raise ValueError(f"{path} ends within {name}")
            tensors[name] = array.array("f", raw)
            if sys.byteorder == "big":
                tensors[name].byteswap()
        if file.read(1):
            raise ValueError(f"{path} goes on behind the last tensor")
    return m, tensors


def write_random(path, seed=1):
    """Numbers with which every layer about keeps the variance."""
    draw = random.Random(seed)

    def numbers_of(name, shape):
        if "norm" in name:
            return [1.0] * shape[0]
        deviation = 1.0 if "embed" in name else shape[-1] ** -0.5
        return (draw.gauss(0, deviation) for _ in range(math.prod(shape)))

    save(path, SMALL, numbers_of)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    write_random(options.file, options.seed)


if __name__ == "__main__":
    main()

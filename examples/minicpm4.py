#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""A decoder with the attention of MiniCPM4 (InfLLM-v2), on nsa.NSAttention and nsa.KVCache, with random weights.

  minicpm4.py [--prompt 300] [--new 20] [--layers 2] [--full]

Generates greedily over pages: the prompt in one step, then token by token. Then runs the whole text at once and
compares. --full: heads, blocks and counts of configs/models/minicpm4.yaml, which needs PyYAML and, for long
prompts, a GPU; without it all are smaller. float32 on the CPU, bfloat16 on a GPU. Every layer is sparse at every
length, which up to select.count blocks is dense attention.
"""
import argparse
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

import nsa

CONFIG = pathlib.Path(__file__).resolve().parents[1] / "configs" / "models" / "minicpm4.yaml"


def config_of(full):
    if full:
        import yaml
        return nsa.Config.from_dict(yaml.safe_load(CONFIG.read_text(encoding="utf-8")))
    return nsa.Config(
        heads=8, kv_heads=2, head_dim=32, window=0, gate="none",
        compress=dict(block=8, stride=4, output=False),                   # fine keys, which only rank
        select=dict(block=16, count=12, init=1, local=5, pool="max",      # 6 blocks are forced
                    normalizer=dict(block=32, stride=16)))                # coarse keys


class Layer(nn.Module):
    def __init__(self, width, config, rope):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.attention = nsa.NSAttention(width, config, rope=rope)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x, attend):
        x = x + attend(self.attention, self.norms[0](x))
        a, b = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)


class Model(nn.Module):
    def __init__(self, config, layers, vocabulary=256):
        super().__init__()
        width = config.heads * config.head_dim
        self.embedding, self.norm = nn.Embedding(vocabulary, width), nn.RMSNorm(width)
        self.layers = nn.ModuleList([Layer(width, config, self.rope) for _ in range(layers)])
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("frequencies", 1e4 ** (-torch.arange(0, config.head_dim, 2) / config.head_dim), persistent=False)

    def rope(self, q, k, positions):
        angles = (positions[:, None].float() * self.frequencies.float())[:, None]
        cos, sin = angles.cos(), angles.sin()

        def rotate(x):
            a, b = x.float().chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
        return rotate(q), rotate(k)

    def run(self, ids, attend):
        """Logits of tokens [T]. attend(index, layer, x) -> the attention of a layer."""
        x = self.embedding(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, lambda attention, y, i=i: attend(i, attention, y))
        return self.head(self.norm(x)).float()

    def forward(self, ids):
        at = torch.arange(len(ids), device=ids.device)
        return self.run(ids, lambda _, attention, x: attention(x, at))

    def step(self, ids, cache, name):
        """The same of the next tokens of a sequence, over pages."""
        at = torch.arange(len(ids), device=ids.device) + cache.length(name)
        batch = cache.begin([name], [len(ids)])

        def attend(i, attention, x):
            q, k, v, gates = attention.project(x, at)
            cache.append(i, batch, k, v)
            return attention.o(cache.attend(i, batch, q, gates).flatten(-2))
        return self.run(ids, attend)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=300, help="tokens of the prompt [300]")
    parser.add_argument("--new", type=int, default=20, help="tokens to generate [20]")
    parser.add_argument("--layers", type=int, default=2, help="[2]")
    parser.add_argument("--full", action="store_true", help="the attention of configs/models/minicpm4.yaml")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    config = config_of(options.full)
    model = Model(config, options.layers).to(device, dtype)
    length = options.prompt + options.new
    cache = nsa.KVCache(config, options.layers, -(-length // 64), 64, max_len=length, dtype=dtype, device=device)
    text = torch.randint(0, 256, (options.prompt,), generator=torch.Generator().manual_seed(1)).to(device)
    logits, given = [], text
    for _ in range(options.new):
        logits.append(model.step(given, cache, "a")[-1])
        given = logits[-1].argmax().view(1)
        text = torch.cat([text, given])
    whole = model(text[:-1])[options.prompt - 1:]
    same = int((whole.argmax(-1) == text[options.prompt:]).sum())
    error = (whole - torch.stack(logits)).abs().max()
    print(f"{same} of {options.new} tokens are those of the whole forward, logits off by at most {error:.1e}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""A small language model over bytes that learns with NSA layers, beside the same model with dense attention.

Both see the same batches of licence texts and documentation found on the machine, from the same first weights.
The context is at least 8 n l' tokens, so that most blocks are left out of the selection: their share is printed.
Fails when the loss with NSA, on text held out, is more than 2 % above that with dense attention. Needs PyTorch and
a GPU; exit status 77 without.

    language_model.py LIBNSA [--steps N] [--csv FILE]
"""
import argparse
import csv
import glob
import math
import os
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)

import bridge

ATTENTION = dict(heads=8, kv_heads=2, dim=64, block=16, stride=8, select=16, count=8, init=1, local=2, window=64)
WIDTH, LAYERS, CONTEXT, SEQUENCES, RATE = 512, 4, 1024, 8, 1e-3
PLACES = ("/usr/share/common-licenses/*", "/usr/share/doc/*/copyright", "/usr/share/doc/**/*.txt",
          "/usr/share/doc/**/*.md", "/usr/share/perl/**/*.pod", sys.prefix + "/lib/python3*/**/*.rst",
          os.path.dirname(torch.__file__) + "/../**/*LICENSE*", os.path.dirname(torch.__file__) + "/../*.dist-info/METADATA")


def read_text(most=8 << 20):
    """Bytes of different files, in a fixed order."""
    seen, text = set(), []
    for path in sorted({p for place in PLACES for p in glob.glob(place, recursive=True)}):
        try:
            with open(path, "rb") as f:
                data = f.read(1 << 16)
        except OSError:
            continue
        if data[:256] in seen or b"\0" in data:
            continue
        seen.add(data[:256])
        text.append(data)
    data = b"\n".join(text)[:most]
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def rotate(x, tokens):
    """Rotary positions of packed sequences [B * S, heads, D]."""
    half = x.shape[-1] // 2
    angle = torch.arange(tokens, device=x.device)[:, None] * 1e4 ** (-torch.arange(half, device=x.device) / half)
    cos, sin = (f(angle).repeat(len(x) // tokens, 1)[:, None].to(x.dtype) for f in (torch.cos, torch.sin))
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Layer(torch.nn.Module):
    def __init__(self, attend):
        super().__init__()
        m = ATTENTION
        self.attend, self.sizes = attend, [m["heads"] * m["dim"]] + 2 * [m["kv_heads"] * m["dim"]] + [3 * m["heads"]]
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(WIDTH) for _ in range(2))
        self.first = torch.nn.Linear(WIDTH, sum(self.sizes), bias=False)
        self.last = torch.nn.Linear(self.sizes[0], WIDTH, bias=False)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v, gates = self.first(self.norms[0](x)).split(self.sizes, -1)
        heads = lambda y: y.unflatten(-1, (-1, ATTENTION["dim"]))
        q, k = rotate(heads(q), CONTEXT), rotate(heads(k), CONTEXT)
        o = self.attend(q.bfloat16(), k.bfloat16(), heads(v).bfloat16(), gates.unflatten(-1, (-1, 3)).bfloat16())
        x = x + self.last(o.flatten(1).to(x.dtype))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class Model(torch.nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.embed = torch.nn.Embedding(256, WIDTH)
        self.layers = torch.nn.ModuleList(Layer(attend) for _ in range(LAYERS))
        self.norm, self.out = torch.nn.RMSNorm(WIDTH), torch.nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens.flatten())
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.out(self.norm(x))[:-1], tokens.flatten()[1:])


def dense(q, k, v, gates):
    """Causal attention; the gates' sum scales it, so that both models have the same weights."""
    batch = lambda x: x.unflatten(0, (-1, CONTEXT)).transpose(1, 2)
    o = F.scaled_dot_product_attention(batch(q), batch(k), batch(v), is_causal=True, enable_gqa=True)
    return o.transpose(1, 2).flatten(0, 1) * torch.sigmoid(gates).sum(-1, keepdim=True)


def left_out(chosen):
    """The share of the blocks before a token that its selection leaves out, over all tokens."""
    position = torch.arange(len(chosen), device=chosen.device) % CONTEXT
    blocks = (position // ATTENTION["select"] + 1)[:, None]
    return 1 - ((chosen >= 0).sum(-1) / blocks).mean().item()


def train(attend, text, steps):
    """Losses of all steps, and on the text held out."""
    torch.manual_seed(1)
    model = Model(attend).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), fused=True)
    order = torch.Generator().manual_seed(2)
    held_out = len(text) // 10
    cut = lambda starts: torch.stack([text[s:s + CONTEXT] for s in starts.tolist()]).cuda()
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        starts = torch.randint(len(text) - held_out - CONTEXT, (SEQUENCES,), generator=order)
        loss = model(cut(starts))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    with torch.no_grad():
        starts = torch.linspace(len(text) - held_out, len(text) - CONTEXT, 16 * SEQUENCES).long()
        after = torch.stack([model(cut(part)) for part in starts.split(SEQUENCES)]).mean().item()
    return torch.stack(losses).tolist(), after


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("PyTorch has no GPU")
        return 77
    assert CONTEXT >= 8 * ATTENTION["count"] * ATTENTION["select"]
    torch.backends.cuda.matmul.allow_tf32 = True
    text = read_text()
    if len(text) < 300000:
        print(f"{len(text)} bytes of text are too few")
        return 77
    attention = bridge.Attention(arguments.library, ATTENTION, "cuda")
    lengths = (CONTEXT,) * SEQUENCES
    sparse, sparse_after = train(lambda *x: attention(*x, lengths), text, arguments.steps)
    share = left_out(attention.chosen)
    plain, plain_after = train(dense, text, arguments.steps)
    for step in sorted({0, *range(49, arguments.steps, 50), arguments.steps - 1}):
        mean = lambda x: sum(x[max(step - 19, 0):step + 1]) / len(x[max(step - 19, 0):step + 1])
        print(f"step {step + 1:5d}: loss with NSA {mean(sparse):.4f}, dense {mean(plain):.4f}")
    print(f"{len(text)} bytes of text, context {CONTEXT}, {share:.0%} of the blocks left out of the selection")
    print(f"held out: NSA {sparse_after:.4f}, dense {plain_after:.4f}, ratio {sparse_after / plain_after:.4f}")
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as f:
            rows = csv.writer(f)
            rows.writerow(["step", "loss_nsa", "loss_dense"])
            rows.writerows((i + 1, f"{a:.5f}", f"{b:.5f}") for i, (a, b) in enumerate(zip(sparse, plain)))
    attention.close()
    return not sparse_after <= 1.02 * plain_after


if __name__ == "__main__":
    sys.exit(main())

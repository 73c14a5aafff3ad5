#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""A Python host: nsa_forward through ctypes, beside the same computation done plainly.

Plainly means what a framework does by hand: matrix products, softmax in float32, bf16 wherever something is
stored, on the indices that the library chose. Against float64 on those indices the library's error is at most
6e-3 and at no logit scale more than twice the plain computation's. Needs PyTorch; exit status 77 without it.

    plain.py LIBNSA [CONFIG]
"""
import ctypes as C
import sys

try:
    import torch
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)

import nsa

BLOCK, STRIDE, SELECT, COUNT, WINDOW = 32, 16, 64, 16, 512  # of configs/h200_d128.yaml
HEADS, KV_HEADS, DIM = 32, 2, 128


def open_library(path, config, device):
    overrides = [f"model.heads={HEADS}", f"model.kv_heads={KV_HEADS}"]
    return nsa.Library(path, config, device="cpu" if device == "cpu" else None, overrides=overrides)


def forward(library, q, k, v, gates):
    """o [T, Hq, D] and the chosen blocks [T, Hkv, n]."""
    plan = nsa.Plan(library, lambda bytes: torch.empty(bytes, dtype=torch.uint8, device=q.device),
                    max_tokens=len(q))
    o = torch.empty_like(q)
    chosen = torch.empty(len(q), KV_HEADS, COUNT, dtype=torch.int32, device=q.device)
    io = nsa.Io(struct_size=C.sizeof(nsa.Io), q=nsa.describe(q), o=nsa.describe(o), block_idx=nsa.describe(chosen))
    io.kv.k[0], io.kv.v[0], io.gate.value = nsa.describe(k), nsa.describe(v), nsa.describe(gates)
    plan.run("nsa_forward", torch.cuda.current_stream().cuda_stream if q.is_cuda else None, None, io)
    if q.is_cuda:
        torch.cuda.synchronize()
    plan.close()
    return o, chosen


def attend(q, k, v, seen, store):
    """softmax(scale q k^T) v over the keys that `seen` [heads or 1, T, keys] allows; `store` rounds."""
    scores = store(torch.einsum("thd,shd->hts", q, k))
    scores = scores.to(q.dtype if q.dtype == torch.float64 else torch.float32) * DIM**-0.5
    probs = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    probs = store(torch.nan_to_num(probs, 0.0)).to(v.dtype)
    return store(torch.einsum("hts,shd->thd", probs, v))


def compute(q, k, v, gates, chosen, dtype, store):
    """The whole forward on given indices, in `dtype`, with `store` wherever something is stored."""
    q, k, v, gates = (x.to(dtype) for x in (q, k, v, gates))
    tokens, group = len(q), HEADS // KV_HEADS
    t = torch.arange(tokens, device=q.device)
    blocks = (tokens - BLOCK) // STRIDE + 1
    mean = lambda x: store(x.unfold(0, BLOCK, STRIDE).to(torch.promote_types(dtype, torch.float32)).mean(-1)).to(dtype)
    wide = lambda x: x.repeat_interleave(group, 1)
    ends = torch.arange(blocks, device=q.device) * STRIDE + BLOCK - 1
    taken = torch.zeros(tokens, KV_HEADS, tokens // SELECT + 2, dtype=torch.bool, device=q.device)
    taken.scatter_(2, torch.where(chosen >= 0, chosen, taken.shape[2] - 1).long(), True)
    taken = taken[:, :, :-1].repeat_interleave(SELECT, 2)[:, :, :tokens].permute(1, 0, 2)
    causal = t[None, :] <= t[:, None]
    seen = [(ends[None, :] <= t[:, None])[None], wide(taken.permute(1, 0, 2)).permute(1, 0, 2) & causal,
            (causal & (t[None, :] > t[:, None] - WINDOW))[None]]
    keys, values = [mean(k), k, k], [mean(v), v, v]
    o = sum(torch.sigmoid(gates[..., b : b + 1]) * attend(q, wide(keys[b]), wide(values[b]), seen[b], store)
            for b in range(3))
    return store(o)


def main():
    path, config = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "configs/h200_d128.yaml"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    library = open_library(path, config, device)
    failed = 0
    torch.manual_seed(1)
    for tokens in (700, 1500) if device == "cuda" else (300,):
        for scale in (0.25, 1.0, 4.0):  # of the queries: flat to peaked softmax
            draw = lambda *shape: torch.randn(*shape, device=device).bfloat16()
            q, k, v = draw(tokens, HEADS, DIM) * scale, draw(tokens, KV_HEADS, DIM), draw(tokens, KV_HEADS, DIM)
            gates = draw(tokens, HEADS, 3)
            o, chosen = forward(library, q, k, v, gates)
            exact = compute(q, k, v, gates, chosen, torch.float64, lambda x: x)
            plain = compute(q, k, v, gates, chosen, torch.bfloat16, lambda x: x.bfloat16())
            error = lambda x: ((x.double() - exact).norm(dim=(0, 2)) / exact.norm(dim=(0, 2))).max().item()
            mine, theirs = error(o), error(plain)
            right = mine <= 6e-3 and mine <= 2 * theirs and not torch.isnan(o).any()
            failed += not right
            print(f"{tokens} tokens, queries x {scale}: libnsa {mine:.2e}, plain {theirs:.2e}{'' if right else '  FAILED'}")
    library.close()
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

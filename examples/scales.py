# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The scales of serve.py's cache in FP8. A value of the cache is a code of e4m3 times a scale, which is chosen before
the first token is written and never changes: every code of a shared page means the same to all who read it."""
import torch

import nsa

# The greatest value of the prompt becomes the code 448 / ROOM, as later tokens may have greater ones and a code is 448
# at most. The room costs nothing: codes are floating-point numbers, with as many bits at 56 as at 448, down to 2^-6.
# With scales by a prompt of one byte, random weights (weights.py) and K and V in FP8 on the CPU device, the first layer's
# output of three longer prompts was off by 13 % to 20 % when ROOM was 1, and by 4 % to 6 % when it was 2, 8 or 64. A
# scale of 1 was as good: these values are around 1, but those of another model may be anywhere.
ROOM = 8


def scale_of(x):
    """A scale for each KV head of K or V [tokens, Hkv, D], float32 [Hkv]. Heads of some models differ widely."""
    scale = x.abs().amax((0, 2)).float() * (ROOM / 448)
    return torch.where(scale == 0, 1.0, scale)  # libnsa wants positive ones


def scales_of(model, prompt):
    """Those of each layer, for nsa.KVCache, by the K and V of a prompt, which runs through the model without a cache.

    Entries in FP8 get those of K and V, the default: a mean is never greater than what it is the mean of.
    """
    scales = []

    def attention(layer, q, k, v, gates):
        scales.append({"k0": scale_of(k), "v0": scale_of(v)})
        return nsa.attention(q, k, v, gates, config=model.config)

    tokens = torch.tensor(list(prompt), dtype=torch.int64, device=model.device)
    model(tokens, torch.arange(len(prompt), device=model.device), attention)
    return scales

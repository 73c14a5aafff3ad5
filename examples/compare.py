# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Compares a step of serve.py with libnsa's CPU device, on a copy of the pages that the step reads.

The CPU device computes in float64 and reads the very values of the GPU: bfloat16 is exact in float32, and codes of FP8
are copied with their scales. Of each layer three things are compared: the pages hold K and V of the step's tokens, or
the codes of these; the compressed entries of the step's sequences, from their first token on, are those of their K and
V, as the pages have them; the output is that of these pages. K, V and all codes are compared bit by bit.
"""
import typing

import torch

import nsa

# An output is a token's in the query heads of one KV head. Its relative error, in the norm: a GPU's kernels round
# probabilities, branches and the result to bfloat16.
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
# The relative error of an element of a compressed entry, which is rounded once: 2^-8 is a step of bfloat16.
ENTRY = {torch.float32: 1e-5, torch.bfloat16: 2 ** -7}
# Where two blocks are about equally important, a GPU may select the other one, and such an output is beyond LIMIT.
# That many of a step's outputs, or of a run's, may be: a few, and a share.
FEW, SHARE_OF_STEP, SHARE_OF_RUN = 3, 1 / 8, 0.03

CODES = torch.float8_e4m3fn


class Mismatch(Exception):
    """The CPU device computes otherwise. The text says what differs."""


class Result(typing.NamedTuple):
    """Of one step, or of several."""
    outputs: int = 0    # of all layers
    beyond: int = 0     # those beyond LIMIT
    error: float = 0.0  # the largest of the others

    def __add__(self, other):
        return Result(self.outputs + other.outputs, self.beyond + other.beyond, max(self.error, other.error))

    def check(self, dtype, share):
        allowed = 0 if dtype == torch.float32 else FEW + share * self.outputs
        if self.beyond > allowed:
            raise Mismatch(f"{self.beyond} of {self.outputs} outputs differ from the CPU device's by more than "
                           f"{LIMIT[dtype]:.0e}; {allowed:.0f} may")


def _wide(x):
    return x.to("cpu", torch.float32)


def _code(x, scale):
    """The codes of x [tokens, Hkv, D]: x / scale in float32 to nearest, at most 448. scale: float32 [1] or [Hkv]."""
    return (x / scale[:, None]).clamp(-448, 448).to(CODES)


def _same(a, b):
    """Whether they have the same numbers, or the same codes."""
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8)) if a.dtype == CODES else torch.equal(a, b)


def _copy_of(tensors, used):
    """Of a layer of the cache: the pages `used`, in float32 unless they have codes, and the scales, on the CPU."""
    copy = {}
    for name, x in tensors.items():
        if name.endswith("_scale"):
            copy[name] = x.cpu()
        elif x.dtype == CODES:  # by their bytes, as not every PyTorch can index codes
            copy[name] = x.view(torch.uint8)[used.to(x.device)].cpu().view(CODES)
        else:
            copy[name] = _wide(x[used.to(x.device)])
    return copy


def _pages_of(lengths, table, page_size):
    """The pages that a step reads, and the block table for a cache that has these alone, in this order."""
    rows = [row[:-(-length // page_size)] for row, length in zip(table, lengths)]
    used = torch.unique(torch.cat(rows))
    own = torch.zeros_like(table)
    for to, row in zip(own, rows):
        to[:len(row)] = torch.searchsorted(used, row)
    return used, own


def _tokens_of(pages, lengths, table):
    """The raw tokens of each sequence, [length, Hkv, D]."""
    raw = pages.view(torch.uint8) if pages.dtype == CODES else pages
    rows = [raw[row[:-(-length // raw.shape[1])]].flatten(0, 1)[:length] for row, length in zip(table, lengths)]
    return [x.view(pages.dtype) for x in rows]


def compare(cache, batch, kept):
    """Compares a step: a Result. Raises Mismatch when it is wrong.

    kept: q, k, v, gates and o of each layer of the step `batch`, behind which `cache` has not changed.
    """
    kv_len, begin, table = (x.cpu() for x in (batch.kv_len, batch.cu_seqlens, batch.block_table))
    lengths = kv_len.tolist()
    used, table = _pages_of(lengths, table, cache.page_size)
    here = dict(config=cache.config, kv_len=kv_len, max_kv=cache.max_len, block_table=table)
    whole = torch.nn.functional.pad(kv_len.cumsum(0), (1, 0)).int()  # cu_seqlens of all tokens of the sequences
    result = Result()
    for i, (q, k, v, gates, o) in enumerate(kept):
        pages, raw = _copy_of(cache.layers[i], used), {}
        for name, new in ("k0", _wide(k)), ("v0", _wide(v)):
            tokens_of_rows = _tokens_of(pages[name], lengths, table)
            coded, scale = pages[name].dtype == CODES, pages.get(name + "_scale", torch.ones(1))
            new = _code(new, scale) if coded else new
            for row, tokens in enumerate(tokens_of_rows):
                mine = new[begin[row]:begin[row + 1]]
                if len(tokens) and len(mine) and not _same(tokens[-len(mine):], mine):
                    raise Mismatch(f"layer {i}: the cache's {name} has not got the new tokens of row {row}")
            # A code times its scale becomes the same code when nsa.append divides by the scale again.
            raw[name] = torch.cat([x.float() * scale[:, None] for x in tokens_of_rows] if coded else tokens_of_rows)
        again = {name: x.clone() for name, x in pages.items()}
        nsa.append(again, raw["k0"], raw["v0"], cu_seqlens=whole, **here)
        for name in "k_cmp", "v_cmp":
            a, b = again[name], pages[name]
            if not (_same(a, b) if a.dtype == CODES else torch.allclose(a, b, rtol=ENTRY[o.dtype], atol=1e-5)):
                raise Mismatch(f"layer {i}: the cache's {name} is not what nsa.append makes of its tokens")
        want = nsa.prefill(_wide(q), pages, _wide(gates), max_q=batch.max_q, cu_seqlens=begin, **here)
        by_output = lambda x: x.unflatten(1, (cache.config.kv_heads, -1)).flatten(2).norm(dim=2)  # [tokens, kv_heads]
        size = by_output(want)
        errors = by_output(_wide(o) - want) / size.clamp_min(1e-2 * size.square().mean().sqrt().clamp_min(1e-30))
        beyond = ~(errors <= LIMIT[o.dtype])  # NaN is
        result += Result(errors.numel(), int(beyond.sum()), errors[~beyond].max().item() if not beyond.all() else 0.0)
        if not errors.isfinite().all():
            raise Mismatch(f"layer {i}: the output is not finite")
    result.check(o.dtype, SHARE_OF_STEP)
    return result

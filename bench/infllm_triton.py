# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""InfLLM-v2's attention of one sequence as Triton kernels: a peer that sparse_peers.py times.

    q [T, Hq, D]   k, v [T, Hkv, D]   fine [F, Hkv, D], coarse [C, Hkv, D]: means over 32 and 128 tokens,
    16 and 64 apart
    Z[t, h]    = log2 sum_m 2^(s q.coarse_m)                  coarse keys that t sees whole
    A[t, g, i] = sum over the group's heads 2^(s q.fine_i - Z)
    I[t, g, j] = max of A over fine keys 4j - 1 .. 4j + 3     selection block j: 64 tokens

`log_sums` gives Z. `block_scores` gives the greatest A of 4j .. 4j + 3 and the last one, which block j + 1 pools, too;
`pool` joins them and marks forced and future blocks. torch.topk chooses, `attend` attends: a program per token and
KV head, as vLLM and sglang do it. Every kernel but `pool` is autotuned.
"""

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


def tunings(**lists):
    """Every combination of the listed constants, warps and stages."""
    found = [{}]
    for name, values in lists.items():
        found = [{**made, name: value} for made in found for value in values]
    split = ("warps", "stages")
    return [triton.Config({n: v for n, v in made.items() if n not in split}, num_warps=made["warps"],
                          num_stages=made["stages"]) for made in found]


@triton.jit
def load_rows(q, first, tokens, head, G: tl.constexpr, BT: tl.constexpr, HQ: tl.constexpr, D: tl.constexpr):
    """Queries of BT tokens and the G heads of a group: [BT * G, D]."""
    row = tl.arange(0, BT * G)
    t = first + row // G
    at = (t * HQ + head * G + row % G).to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    return tl.load(q + at, mask=(t < tokens)[:, None], other=0.0)


@triton.autotune(tunings(BT=[4, 8], BN=[64, 128], warps=[4, 8], stages=[3]), key=["HQ"])
@triton.jit
def log_sums(q, coarse, z, tokens, scale, G: tl.constexpr, HQ: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
             STRIDE: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr):
    first, head = (tl.num_programs(0) - 1 - tl.program_id(0)) * BT, tl.program_id(1)
    rows = load_rows(q, first, tokens, head, G, BT, HQ, D)  # [BT * G, D]
    row, column, d = tl.arange(0, BT * G), tl.arange(0, BN), tl.arange(0, D)
    t = first + row // G
    seen = tl.where(t + 1 >= BLOCK, (t + 1 - BLOCK) // STRIDE + 1, 0)  # coarse keys that end by t
    last = tl.minimum(first + BT, tokens)
    most = tl.where(last >= BLOCK, (last - BLOCK) // STRIDE + 1, 0)
    greatest = tl.full((BT * G,), -1e30, tl.float32)
    total = tl.zeros((BT * G,), tl.float32)
    for m0 in tl.range(0, most, BN):
        m = m0 + column
        keys = tl.load(coarse + (m * (HQ // G) + head)[None, :] * D + d[:, None], mask=(m < most)[None, :], other=0.0)
        s = tl.where(m[None, :] < seen[:, None], tl.dot(rows, keys) * scale, float("-inf"))  # [BT * G, BN]
        new = tl.maximum(greatest, tl.max(s, 1))
        total = total * tl.exp2(greatest - new) + tl.sum(tl.exp2(s - new[:, None]), 1)
        greatest = new
    # Without a coarse key Z is +inf, so that A is 0: these tokens take every block.
    out = tl.where(seen > 0, greatest + tl.log2(total), float("inf"))
    tl.store(z + t * HQ + head * G + row % G, out, mask=t < tokens)


@triton.autotune(tunings(BT=[4, 8], BJ=[32, 64], warps=[4, 8], stages=[2, 3]), key=["HQ"])
@triton.jit
def block_scores(q, fine, z, own, last_of, tokens, blocks, scale, G: tl.constexpr, HQ: tl.constexpr, D: tl.constexpr,
                 BLOCK: tl.constexpr, STRIDE: tl.constexpr, PER: tl.constexpr, BT: tl.constexpr, BJ: tl.constexpr):
    first, head = (tl.num_programs(0) - 1 - tl.program_id(0)) * BT, tl.program_id(1)
    rows = load_rows(q, first, tokens, head, G, BT, HQ, D)  # [BT * G, D]
    row, column, d, token = tl.arange(0, BT * G), tl.arange(0, BJ), tl.arange(0, D), tl.arange(0, BT)
    t = first + row // G
    seen = tl.where(t + 1 >= BLOCK, (t + 1 - BLOCK) // STRIDE + 1, 0)
    last = tl.minimum(first + BT, tokens)
    most = tl.where(last >= BLOCK, (last - BLOCK) // STRIDE + 1, 0)  # fine keys
    norm = tl.load(z + t * HQ + head * G + row % G, mask=t < tokens, other=float("inf"))
    out = (head.to(tl.int64) * tokens + first + token)[:, None] * blocks
    inside = (first + token < tokens)[:, None]
    for j0 in tl.range(0, tl.cdiv(most, PER), BJ):
        j = j0 + column
        greatest = tl.zeros((BT, BJ), tl.float32)
        a = tl.zeros((BT, BJ), tl.float32)
        for c in tl.static_range(PER):
            i = j * PER + c
            keys = tl.load(fine + (i * (HQ // G) + head)[None, :] * D + d[:, None], mask=(i < most)[None, :], other=0.0)
            p = tl.exp2(tl.dot(rows, keys) * scale - norm[:, None])
            p = tl.where(i[None, :] < seen[:, None], p, 0.0)
            a = tl.sum(tl.reshape(p, (BT, G, BJ)), 1)  # [BT, BJ], of the group
            greatest = tl.maximum(greatest, a)
        tl.store(own + out + j[None, :], greatest, mask=inside & (j < blocks)[None, :])
        tl.store(last_of + out + j[None, :], a, mask=inside & (j < blocks)[None, :])


@triton.jit
def pool(own, last_of, blocks, INIT: tl.constexpr, LOCAL: tl.constexpr, SELECT: tl.constexpr, BJ: tl.constexpr):
    t, tokens = tl.program_id(0), tl.num_programs(0)
    row = (tl.program_id(1).to(tl.int64) * tokens + t) * blocks
    now = t // SELECT
    for j0 in tl.range(0, blocks, BJ):
        j = j0 + tl.arange(0, BJ)
        written = j < blocks
        x = tl.load(own + row + j, mask=written & (j <= now), other=0.0)
        before = tl.load(last_of + row + j - 1, mask=written & (j > 0) & (j <= now), other=0.0)
        x = tl.maximum(x, before)
        x = tl.where((j < INIT) | (j > now - LOCAL), float("inf"), x)
        tl.store(own + row + j, tl.where(j <= now, x, float("-inf")), mask=written)


@triton.autotune(tunings(warps=[1, 2, 4], stages=[2, 3, 4]), key=["HQ"])
@triton.jit
def attend(q, k, v, lists, out, tokens, scale, COUNT: tl.constexpr, G: tl.constexpr, HQ: tl.constexpr, D: tl.constexpr,
           SELECT: tl.constexpr):
    t, head = tl.program_id(0), tl.program_id(1)
    rows = load_rows(q, t, tokens, head, G, 1, HQ, D)  # [G, D]
    p, d = tl.arange(0, SELECT), tl.arange(0, D)
    chosen = lists + (head.to(tl.int64) * tokens + t) * COUNT
    greatest = tl.full((G,), -1e30, tl.float32)
    total = tl.zeros((G,), tl.float32)
    o = tl.zeros((G, D), tl.float32)
    for n in tl.range(0, tl.minimum(COUNT, t // SELECT + 1)):  # topk sorts: blocks after the current one come last
        at = tl.load(chosen + n) * SELECT + p
        place = (at * (HQ // G) + head).to(tl.int64) * D
        keys = tl.load(k + place[None, :] + d[:, None], mask=(at < tokens)[None, :], other=0.0)
        s = tl.where((at <= t)[None, :], tl.dot(rows, keys) * scale, float("-inf"))  # [G, SELECT]
        new = tl.maximum(greatest, tl.max(s, 1))
        e = tl.exp2(s - new[:, None])
        shrink = tl.exp2(greatest - new)
        total = total * shrink + tl.sum(e, 1)
        values = tl.load(v + place[:, None] + d[None, :], mask=(at < tokens)[:, None], other=0.0)
        o = o * shrink[:, None] + tl.dot(e.to(values.dtype), values)
        greatest = new
    row = (t * HQ + head * G + tl.arange(0, G)).to(tl.int64)
    tl.store(out + row[:, None] * D + d[None, :], (o / total[:, None]).to(out.dtype.element_ty))


def compress(k, block, stride):
    """Means of the keys [T, H, D] over blocks of tokens: [N, H, D]."""
    return k.unfold(0, block, stride).float().mean(-1).to(k.dtype).contiguous()


def choose(q, fine, coarse, model, tokens):
    """Blocks of every token and KV head, int32 [Hkv, T, count], best first."""
    heads, dim = q.shape[1:]
    kv_heads, blocks = fine.shape[1], -(-tokens // model.block)
    scale = dim ** -0.5 * LOG2_E
    z = torch.empty(tokens, heads, device=q.device)
    own, last_of = (torch.empty(kv_heads, tokens, blocks, device=q.device) for _ in range(2))
    grid = lambda tuned: (triton.cdiv(tokens, tuned["BT"]), kv_heads)
    shape = dict(G=heads // kv_heads, HQ=heads, D=dim)
    log_sums[grid](q, coarse, z, tokens, scale, **shape, BLOCK=model.coarse[0], STRIDE=model.coarse[1])
    block_scores[grid](q, fine, z, own, last_of, tokens, blocks, scale, **shape, BLOCK=model.fine[0],
                       STRIDE=model.fine[1], PER=model.block // model.fine[1])
    pool[(tokens, kv_heads)](own, last_of, blocks, INIT=model.init, LOCAL=model.local, SELECT=model.block, BJ=256)
    return own.topk(min(model.count, blocks), dim=-1).indices.to(torch.int32)


def attention(q, k, v, lists, model):
    """Over the chosen blocks: [T, Hq, D]."""
    tokens, heads, dim = q.shape
    out = torch.empty_like(q)
    attend[(tokens, k.shape[1])](q, k, v, lists, out, tokens, dim ** -0.5 * LOG2_E, COUNT=lists.shape[2],
                                 G=heads // k.shape[1], HQ=heads, D=dim, SELECT=model.block)
    return out

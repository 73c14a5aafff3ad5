# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Inputs of sparse_peers.py: MiniMax-M3's and MiniCPM4's attention, their work, and what plain PyTorch makes of them.

Correlated inputs are those of autotune/verify/inputs.c, drawn by PyTorch: queries and keys that change slowly, so that
tokens side by side choose mostly the same blocks.
"""

import dataclasses
import math

QUERY_AR = 0.975  # between a token's queries and the next one's
KEY_NOISE = 0.25  # share of white noise in a key's variance
KEY_AR, KEY_LEVEL = 0.98382, 2.494  # of keys whose means over 32 tokens correlate by 0.9, with logits of deviation 2
CHUNK = 256  # queries that plain PyTorch takes at a time


def number_type(torch, device):
    """bfloat16, as the models have it; Triton's interpreter multiplies its bits as integers."""
    return torch.float16 if device == "cpu" else torch.bfloat16


def moving(torch, tokens, width, coefficient, device):
    """An AR(1) process along tokens, of variance 1: [tokens, width]."""
    reach = math.ceil(math.log(1e-4) / math.log(coefficient))
    weights = coefficient ** torch.arange(reach, device=device, dtype=torch.float32) * math.sqrt(1 - coefficient ** 2)
    size = tokens + 2 * reach
    noise = torch.randn(size, width, device=device)
    made = torch.fft.irfft(torch.fft.rfft(noise, dim=0) * torch.fft.rfft(weights, n=size)[:, None], n=size, dim=0)
    return made[reach:reach + tokens]


def causal_softmax(torch, q, k, v, lists, block, at):
    """Attention of queries [t, Hq, D] at positions `at` over the listed blocks [Hkv, t, n], in float32."""
    tokens, kv_heads = k.shape[:2]
    blocks = -(-tokens // block)
    chosen = torch.zeros(kv_heads, q.shape[0], blocks + 1, dtype=torch.bool, device=q.device)
    chosen.scatter_(2, torch.where(lists < 0, blocks, lists).long(), True)
    seen = chosen[..., :blocks].repeat_interleave(block, 2)[..., :tokens]
    seen = seen & (torch.arange(tokens, device=q.device) <= at[:, None])
    groups = q.float().unflatten(1, (kv_heads, -1))  # [t, Hkv, G, D]
    s = torch.einsum("thgd,phd->hgtp", groups, k.float()) * q.shape[2] ** -0.5
    p = s.masked_fill(~seen[:, None], -math.inf).softmax(-1)
    return torch.einsum("hgtp,phd->thgd", p, v.float()).flatten(1, 2)


def best(torch, scores, at, model):
    """Lists [H, t, n] from scores [H, t, blocks] of queries at positions `at`; blocks that are not there are -1.

    Equal scores go by the lower block, as libnsa's do; torch.topk takes any of them.
    """
    j, now = torch.arange(scores.shape[2], device=scores.device), (at // model.block)[:, None]
    scores = scores.masked_fill((j < model.init) | (j > now - model.local), math.inf).masked_fill(j > now, -math.inf)
    values, indices = scores.sort(dim=-1, descending=True, stable=True)
    return torch.where(values == -math.inf, -1, indices)[..., :model.count].int()


class Data:
    """Of one case. A batch has sequences of one length; `copies` batches lie in one pool of pages, shuffled."""

    def __init__(self, torch, model, device, tokens, batch, copies):
        self.torch, self.model, self.tokens, self.batch, self.copies = torch, model, tokens, batch, copies
        self.each = -(-tokens // model.page)
        pages = self.each * batch * copies
        self.tables = torch.randperm(pages, device=device).int().view(copies, batch, self.each)
        self.lengths = torch.full((batch,), tokens, dtype=torch.int32, device=device)
        self.pages = pages

    def paged(self, x):
        """Packed rows of one sequence [T, H, D], laid into the pages of copy 0."""
        out = self.torch.zeros(self.pages, self.model.page, *x.shape[1:], dtype=x.dtype, device=x.device)
        rows = self.torch.zeros(self.each * self.model.page, *x.shape[1:], dtype=x.dtype, device=x.device)
        rows[:x.shape[0]] = x
        out[self.tables[0, 0].long()] = rows.view(self.each, self.model.page, *x.shape[1:])
        return out

    def sequence(self, pages, row):
        """Rows of sequence `row` of copy 0."""
        return pages[self.tables[0, row].long()].flatten(0, 1)[:self.tokens]

    def alike(self, lists, own):
        """The share of the blocks `own` that `lists` has as well."""
        spread = [self.torch.zeros(*x.shape[:2], self.tokens // self.model.block + 2, dtype=self.torch.bool, device=x.device)
                  .scatter_(2, self.torch.where(x < 0, self.tokens // self.model.block + 1, x).long(), True)[..., :-1]
                  for x in (lists, own)]
        return ((spread[0] & spread[1]).sum() / spread[1].sum()).item()


@dataclasses.dataclass
class Msa:
    heads: int = 64
    kv_heads: int = 4
    dim: int = 128
    block: int = 128
    count: int = 16
    init: int = 0
    local: int = 1
    page: int = 128
    check_tokens: int = 4096

    @classmethod
    def small(cls):
        return cls(heads=16, kv_heads=1, count=2, check_tokens=300)

    def bytes_read(self, tokens):
        """Of a sequence's step: all index keys, and K and V of the chosen blocks."""
        return 2 * self.dim * (tokens + 2 * self.kv_heads * min(tokens, self.count * self.block))

    def draw(self, torch, device, decode, inputs, batch, tokens, copies):
        data = MsaData(torch, self, device, tokens, batch, copies)
        rows = batch if decode else tokens
        normal = lambda *shape: torch.randn(*shape, device=device, dtype=number_type(torch, device))
        data.decode, data.rows = decode, rows
        data.q, data.index_q = normal(rows, self.heads, self.dim), normal(rows, self.kv_heads, self.dim)
        data.k, data.v = (normal(data.pages, self.page, self.kv_heads, self.dim) for _ in range(2))
        data.k_idx = normal(data.pages, self.page, 1, self.dim)
        if inputs == "correlated":
            slow = lambda: moving(torch, tokens, self.dim, QUERY_AR, device)
            data.index_q = torch.stack([slow() for _ in range(self.kv_heads)], 1).to(data.q.dtype)
            noise = torch.randn(tokens, self.dim, device=device)
            keys = math.sqrt(1 - KEY_NOISE) * slow() + math.sqrt(KEY_NOISE) * noise
            data.k_idx = data.paged(keys[:, None].to(data.q.dtype))
        return data


class MsaData(Data):
    LEAST_ALIKE = 0.99

    def positions(self):
        """Of the queries of each sequence."""
        device = self.q.device
        if self.decode:
            return [(slice(b, b + 1), b, self.torch.tensor([self.tokens - 1], device=device)) for b in range(self.batch)]
        all_of = self.torch.arange(self.tokens, device=device)
        return [(slice(i, min(i + CHUNK, self.tokens)), 0, all_of[i:i + CHUNK]) for i in range(0, self.tokens, CHUNK)]

    def choose(self):
        m, made = self.model, []
        for rows, b, at in self.positions():
            keys = self.sequence(self.k_idx, b)[:, 0].float()
            s = self.torch.einsum("thd,pd->htp", self.index_q[rows].float(), keys)
            s = s.masked_fill(self.torch.arange(self.tokens, device=s.device) > at[:, None], -math.inf)
            s = self.torch.nn.functional.pad(s, (0, -self.tokens % m.block), value=-math.inf)
            made.append(best(self.torch, s.unflatten(2, (-1, m.block)).amax(-1), at, m))
        return self.torch.cat(made, 1)

    def attend(self, lists):
        return self.torch.cat([causal_softmax(self.torch, self.q[rows], self.sequence(self.k, b), self.sequence(self.v, b),
                                              lists[:, rows], self.model.block, at) for rows, b, at in self.positions()])

    def work(self, step):
        """Operations and bytes of a step."""
        m, most = self.model, self.model.count * self.model.block
        seen = sum(min(t + 1, most - m.block + t % m.block + 1) for t in range(self.tokens))
        index = m.kv_heads * m.dim * self.tokens ** 2
        attend = 4 * m.heads * m.dim * seen
        keys = 2 * m.dim * self.tokens * self.batch
        chosen = m.bytes_read(self.tokens) * self.batch - keys
        return {"total": (index + attend, keys + chosen), "index": (index, keys), "attend": (attend, chosen)}[step]

    def describe(self):
        return f"{self.copies} sets of inputs" if self.decode else describe_overlap(self, self.chunked_lists())

    def chunked_lists(self):
        """Of the last CHUNK tokens: plain PyTorch takes long for all."""
        rows, b, at = self.positions()[-1]
        keep, self.positions = self.positions, lambda: [(rows, b, at)]
        try:
            return self.choose()
        finally:
            self.positions = keep


def describe_overlap(data, lists):
    torch = data.torch
    spread = torch.zeros(*lists.shape[:2], data.tokens // data.model.block + 2, dtype=torch.bool, device=lists.device)
    spread.scatter_(2, lists.clamp(min=0).long(), True)
    same = (spread[:, 1:] & spread[:, :-1]).sum() / spread[:, 1:].sum()
    eight = spread[:, :lists.shape[1] // 8 * 8].unflatten(1, (-1, 8)).any(2).sum(-1).float().mean()
    return f"{100 * same:.0f} % of a token's blocks are of the one before, 8 tokens have {eight:.0f} blocks"


@dataclasses.dataclass
class InfLlm:
    heads: int = 32
    kv_heads: int = 2
    dim: int = 128
    block: int = 64
    count: int = 96
    init: int = 1
    local: int = 33
    fine: tuple = (32, 16)
    coarse: tuple = (128, 64)
    page: int = 64
    check_tokens: int = 8192

    @classmethod
    def small(cls):
        return cls(count=5, local=2, check_tokens=448)

    def draw(self, torch, device, decode, inputs, batch, tokens, copies):
        data = InfLlmData(torch, self, device, tokens, batch, copies)
        normal = lambda heads: torch.randn(tokens, heads, self.dim, device=device, dtype=number_type(torch, device))
        data.q, data.k, data.v = normal(self.heads), normal(self.kv_heads), normal(self.kv_heads)
        if inputs == "correlated":
            slow = lambda a: moving(torch, tokens, self.dim, a, device)
            for h in range(self.heads):
                if h % (self.heads // self.kv_heads) == 0:
                    shared = slow(QUERY_AR)
                data.q[:, h] = math.sqrt(0.5) * (shared + slow(QUERY_AR))
            for h in range(self.kv_heads):
                noise = torch.randn(tokens, self.dim, device=device)
                data.k[:, h] = KEY_LEVEL * (math.sqrt(1 - KEY_NOISE) * slow(KEY_AR) + math.sqrt(KEY_NOISE) * noise)
        mean = lambda block, stride: data.k.unfold(0, block, stride).float().mean(-1).to(data.q.dtype).contiguous()
        data.k_fine, data.k_coarse = mean(*self.fine), mean(*self.coarse)
        return data


class InfLlmData(Data):
    LEAST_ALIKE = 0.97  # neighbours often tie, by the key that both pool; OpenBMB's scores are bf16

    def parts(self):
        at = self.torch.arange(self.tokens, device=self.q.device)
        return [(slice(i, min(i + CHUNK, self.tokens)), at[i:i + CHUNK]) for i in range(0, self.tokens, CHUNK)]

    def lists_of(self, rows, at):
        torch, m = self.torch, self.model
        groups = self.q[rows].float().unflatten(1, (m.kv_heads, -1))

        def logits(keys, block, stride):
            s = torch.einsum("thgd,ihd->hgti", groups, keys.float()) * m.dim ** -0.5
            ends = torch.arange(keys.shape[0], device=s.device) * stride + block - 1
            return s.masked_fill(ends > at[:, None], -math.inf)
        z = logits(self.k_coarse, *m.coarse).logsumexp(-1, keepdim=True)
        a = (logits(self.k_fine, *m.fine) - z.masked_fill(z == -math.inf, math.inf)).exp().sum(1)  # [Hkv, t, fine]
        blocks, per = -(-self.tokens // m.block), m.block // m.fine[1]
        a = torch.nn.functional.pad(a, (1, blocks * per - a.shape[2]))
        return best(torch, a.unfold(2, per + 1, per).amax(-1), at, m)

    def choose(self):
        return self.torch.cat([self.lists_of(*part) for part in self.parts()], 1)

    def attend(self, lists):
        return self.torch.cat([causal_softmax(self.torch, self.q[rows], self.k, self.v, lists[:, rows], self.model.block, at)
                               for rows, at in self.parts()])

    def work(self, step):
        m, most = self.model, self.model.count * self.model.block
        seen = sum(min(t + 1, most - m.block + t % m.block + 1) for t in range(self.tokens))
        index = m.heads * m.dim * self.tokens ** 2 * (1 / m.fine[1] + 1 / m.coarse[1])
        attend = 4 * m.heads * m.dim * seen
        return {"total": (index + attend, 0), "index": (index, 0), "attend": (attend, 0)}[step]

    def describe(self):
        return describe_overlap(self, self.lists_of(*self.parts()[-1]))

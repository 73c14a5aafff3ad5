# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""A paged KV cache whose raw tokens are divided among ranks: "A KV cache over ranks" in nsa/ranks.h."""
from __future__ import annotations

import math
from typing import Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _abi, kv_cache
from ._config import Config
from ._library import APPEND, DECODE, PREFILL, RanksError, round_up, round_up_few
from ._places import NONE, cache_problem
from ._torch import (Run, _context_of, _is_code, _kv_names, _listed, _named, _need, _nothing, _outputs_of, _pairs, _split,
                     _with_index)

LEAST_UNIT = 1024  # tokens, as problem.h has it


class KVCache(kv_cache.KVCache):
    """`nsa.KVCache` over ranks that share its KV heads. Every rank makes the same calls, with the same new tokens; `attend` takes
    the same queries and gives the same outputs on all, `prefill` each rank's own.

    comm         a Comm of the group; it has as many ranks as share the cache
    pages        raw pages of this rank, in each layer. About 1/ranks of those of all tokens, and for each sequence those of the
                 latest tokens (of the window and a compressed block before the new ones), which every rank holds
    entry_pages  pages of compressed entries, coarse keys and index keys, which every rank has for all tokens
    unit_tokens  so many tokens of a sequence lie on one rank before the next has its turn; a multiple of page_size and of
                 select.block [the least that is 1024 or more]

    The rest is as in nsa.KVCache, with these limits: a step has at most max_q new tokens of a sequence where it attends
    (compute longer ones with `prefill`, behind their append; prompts as a whole also with `nsa.ranks.attention`);
    `truncate` forgets tokens of the last step alone; sequences do not fork.
    """

    def __init__(self, config: Config, comm, layers: int, pages: int, entry_pages: int, page_size: int = 64, *,
                 unit_tokens: int = 0, **rest):
        self.comm, self._entry_pages = comm, entry_pages
        both = math.lcm(page_size, config.select["block"] if config.select["count"] else 1)
        self.unit_tokens = unit_tokens or -(-LEAST_UNIT // both) * both
        if self.unit_tokens < 1 or self.unit_tokens % both:
            raise ValueError(f"unit_tokens is {unit_tokens}; it is a multiple of page_size and select.block, {both}")
        super().__init__(config, layers, pages, page_size, **rest)
        block = config.compress.get("block", 1) if config.compress["phi"] != "none" else 1
        self.reach = max(block, config.window, (config.select.get("normalizer") or {}).get("block", 1)) - 1
        self._raw_free = list(range(pages - 1, -1, -1))
        self._raw: Dict[object, List[int]] = {}  # -1: only another rank holds it
        self._begun: Dict[object, int] = {}  # where the new tokens of a sequence's last step begin
        self._runs: Dict[tuple, tuple] = {}  # (Run, shape of o, what ranks agree upon)

    # ---- pages

    @property
    def free_raw_pages(self) -> int:
        return len(self._raw_free)

    def raw_pages(self, id) -> List[int]:
        """The pages of a sequence's raw tokens on this rank, in order; -1 where it has none."""
        return list(self._raw.get(id, []))

    def _left(self, id, first: int) -> List[int]:
        """Where in the table the pages stand that a sequence needs no more when its next new token is `first`."""
        end = max(first - self.reach, 0) // self.page_size
        mine = lambda i: i * self.page_size // self.unit_tokens % self.comm.size == self.comm.rank
        return [i for i, page in enumerate(self._raw.get(id, [])[:end]) if page >= 0 and not mine(i)]

    def begin(self, ids: Sequence, new: Sequence[int], *, rows: Optional[int] = None) -> kv_cache.Batch:
        self._needs(ids, new)  # its errors come first
        wanted = sum(max(-(-(self.length(id) + n) // self.page_size) - len(self._raw.get(id, [])), 0) for id, n in zip(ids, new))
        there = len(self._raw_free) + sum(len(self._left(id, self.length(id))) for id in ids)
        if wanted > there:
            raise MemoryError(f"the step needs {wanted} raw pages and rank {self.comm.rank} has {there}: end sequences with "
                              "free(), or make the cache with more pages")
        return super().begin(ids, new, rows=rows)

    def _tables_of(self, ids: Sequence, new: Sequence[int]) -> List[List[List[int]]]:
        for id, n in zip(ids, new):  # all pages that are left come back before one is taken
            first = self._begun[id] = self._lengths[id] - n
            for i in self._left(id, first):
                self._raw_free.append(self._raw[id][i])
                self._raw[id][i] = -1
        for id in ids:
            table = self._raw.setdefault(id, [])
            while len(table) * self.page_size < self._lengths[id]:
                table.append(self._raw_free.pop())
        return [[self._raw[id] for id in ids], *super()._tables_of(ids, new)]

    def fork(self, id, child, length: Optional[int] = None) -> None:
        raise ValueError("sequences of a cache over ranks do not fork: a rank has given back pages of other ranks' units")

    def truncate(self, id, length: int) -> None:
        """Forgets the tokens from `length` on: a rejected draft of the last step."""
        self._check_length(id, length)
        if length < self._begun[id]:
            raise ValueError(f"sequence {id!r} cannot be cut at {length}: over ranks only tokens of the last step are forgotten, "
                             f"which began at {self._begun[id]}")
        super().truncate(id, length)
        keep = -(-length // self.page_size)
        self._give_raw(self._raw[id][keep:])
        del self._raw[id][keep:]

    def free(self, id) -> None:
        super().free(id)
        self._give_raw(self._raw.pop(id))
        del self._begun[id]

    def _give_raw(self, pages: Sequence[int]) -> None:
        self._raw_free += [page for page in pages if page >= 0]

    # ---- calls

    def append(self, layer: int, batch: kv_cache.Batch, k, v, *, k_idx: Optional[Tensor] = None) -> None:
        new = _pairs(k, v, self.config)
        names, extra = _with_index(*_named(self._weights(layer)), new_k_idx=k_idx)
        self._call(APPEND, layer, batch, [*_kv_names(new, "new_"), *_split(names)], [*new, *extra], 0, 0.0)

    def attend(self, layer: int, batch: kv_cache.Batch, q: Tensor, gates: Optional[Tensor] = None, *,
               scale: Optional[float] = None, weights: Optional[Dict[str, Tensor]] = None,
               index_q: Optional[Tensor] = None) -> Tensor:
        if batch.max_q > self.max_q:
            raise ValueError(f"a sequence has {batch.max_q} new tokens: over ranks a step attends with at most max_q, "
                             f"{self.max_q}. Compute prompts with prefill")
        _need(q, "q", 3)
        names, extra = _with_index(*_named(weights), index_q=index_q)
        order = ["q", *(["gates"] if gates is not None else []), *_split(names)]
        return self._call(DECODE, layer, batch, order, [q, *_listed(gates), *extra], 1 if batch.max_q <= 1 else self.max_q,
                          scale or 0.0)

    def prefill(self, layer: int, batch: kv_cache.Batch, q: Tensor, gates: Optional[Tensor] = None, *, shard,
                scale: Optional[float] = None, weights: Optional[Dict[str, Tensor]] = None,
                index_q: Optional[Tensor] = None) -> Tensor:
        """Attention of a chunk of prompts, of which each rank computes its rows.

        q, gates, index_q  this rank's rows of the new tokens (shard.take), as are the rows of the result
        shard              a Shard of the new tokens of each sequence

        A GPU gathers as many raw tokens of each sequence as the longest has: make batches of like lengths.
        """
        starts = batch._host[:batch.seqs + 1].tolist()
        if [b - a for a, b in zip(starts, starts[1:])] != list(shard.lengths):
            raise ValueError(f"shard has sequences of {list(shard.lengths)} tokens; the batch has others: make it of its new "
                             "tokens")
        _need(q, "q", 3)
        names, extra = _with_index(*_named(weights), index_q=index_q)
        order = ["q", *(["gates"] if gates is not None else []), *_split(names)]
        inputs, cache = [q, *_listed(gates), *extra], self._layer(layer)
        run, o_shape = self._make_prefill(batch, order, q, cache, scale or 0.0, shard)
        o = torch.empty(o_shape, dtype=q.dtype, device=q.device)
        room = torch.empty(run.room, dtype=torch.uint8, device=q.device)
        try:
            run((*inputs, batch.kv_len, batch.block_table, batch.entry_table, *cache.values(), o, room))
        except RanksError as error:
            self.comm._failed(error)
        return o

    def _stored(self, cache, name: str) -> int:
        return _abi.NSA_E4M3 if name in cache and _is_code(cache[name]) else NONE

    def _make_prefill(self, batch, names, q, cache, scale, shard):
        longest, tokens, text = max(shard.lengths), max(shard.tokens(-1), 1), self.config.text
        length = max(batch._host[batch.seqs + 1:2 * batch.seqs + 1].tolist())  # a GPU gathers as much of each sequence
        room = min(self.max_len, round_up(max(length, 1)))
        problem = cache_problem(_abi.NSA_OP_PREFILL, cache["k0"].shape, True, batch.seqs, room, tokens, longest,
                                self._stored(cache, "k0"), self._stored(cache, "k_idx" if "k_idx" in cache else "k_cmp"))
        problem.update(max_q_len=min(round_up(max(longest, 1)), problem["max_tokens"] * self.comm.size),
                       max_pieces=round_up_few(max(shard.max_pieces, 1)))
        context = _context_of(text, q)
        order = [*names, "kv_len", "block_table", "entry_table", *cache, "o", "workspace"]
        with torch.cuda.device(q.device) if q.is_cuda else _nothing:
            plan = context.plan(ranks=self.comm.size, unit_tokens=self.unit_tokens, **problem)
            self.comm.agree(context, plan, shard)
            run = Run(PREFILL, plan, order, batch.seqs, scale, len(names) + 3, comm=self.comm.handle(context),
                      shard=shard.handle)
        return run, _outputs_of(text, q, False, False)[0][0]

    def _call(self, call: int, layer: int, batch: kv_cache.Batch, names: List[str], inputs: List[Tensor], max_q: int,
              scale: float):
        cache, first = self._layer(layer), inputs[0]
        key = (call, tuple(names), tuple((x.shape, x.dtype, x.device) for x in inputs), batch.seqs, max_q, scale, tuple(cache))
        run, o_shape, agreed = self._runs.get(key) or self._make_run(key, call, batch, names, first, cache, max_q, scale)
        if agreed:  # a lookup, unless the ranks have agreed upon many others since
            with torch.cuda.device(first.device) if first.is_cuda else _nothing:
                self.comm.agree(*agreed, None)
        o = [torch.empty(o_shape, dtype=first.dtype, device=first.device)] if call == DECODE else []
        if first.shape[0]:  # the same number on all ranks
            room = torch.empty(run.room, dtype=torch.uint8, device=first.device)
            try:
                run((*inputs, batch.cu_seqlens, batch.kv_len, batch.block_table, batch.entry_table, *cache.values(), *o, room))
            except RanksError as error:
                self.comm._failed(error)
        return o[0] if o else None

    def _make_run(self, key, call, batch, names, first, cache, max_q, scale):
        decodes, text = call == DECODE, self.config.text
        problem = cache_problem(_abi.NSA_OP_DECODE if decodes else _abi.NSA_OP_APPEND, cache["k0"].shape, True, batch.seqs,
                                self.max_len, max(first.shape[0], 1), max_q, self._stored(cache, "k0"),
                                self._stored(cache, "k_idx" if "k_idx" in cache else "k_cmp"))
        context = _context_of(text, first)
        with torch.cuda.device(first.device) if first.is_cuda else _nothing:
            plan = context.plan(ranks=self.comm.size, unit_tokens=self.unit_tokens, **problem)
            comm = self.comm.handle(context) if decodes else None
        order = [*names, "cu_q", "kv_len", "block_table", "entry_table", *cache, *(["o"] if decodes else []), "workspace"]
        run = Run(call, plan, order, batch.seqs, scale, len(names) + 4, comm=comm)
        o_shape = _outputs_of(text, first, False, False)[0][0] if decodes else None
        found = self._runs[key] = run, o_shape, (context, plan) if decodes else None
        return found

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""A paged KV cache for all layers of a model, with sequences that fork, shrink and end."""
from __future__ import annotations

from typing import Dict, List, Optional, Sequence

import torch
from torch import Tensor

from . import _torch
from ._config import Config


class Batch:
    """A step's sequences, in device memory that does not move: a captured graph reads new values.

    cu_seqlens int32 [n + 1], kv_len int32 [n], block_table int32 [n, pages a sequence], max_q: the most new
    tokens of a sequence, tokens: of all.
    """

    def __init__(self, seqs: int, pages: int, device):
        pin = torch.device(device).type == "cuda"
        size = (seqs + 1) + seqs + seqs * pages
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=pin)
        self._device = torch.zeros(size, dtype=torch.int32, device=device)
        self.cu_seqlens = self._device[:seqs + 1]
        self.kv_len = self._device[seqs + 1:2 * seqs + 1]
        self.block_table = self._device[2 * seqs + 1:].view(seqs, pages)
        self._tables = self._host[2 * seqs + 1:].view(seqs, pages)
        self._copied = torch.cuda.Event() if pin else None
        self.seqs, self.max_q, self.tokens = seqs, 0, 0

    def _fill(self, new: Sequence[int], lengths: Sequence[int], tables: Sequence[List[int]]) -> None:
        if self._copied is not None:
            self._copied.synchronize()  # the last copy has left the pinned memory
        begin = [0]
        for n in new:
            begin.append(begin[-1] + n)
        self._host[:self.seqs + 1] = torch.tensor(begin, dtype=torch.int32)
        self._host[self.seqs + 1:2 * self.seqs + 1] = torch.tensor(lengths, dtype=torch.int32)
        for row, table in zip(self._tables, tables):
            row[:len(table)] = torch.tensor(table, dtype=torch.int32)
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self.max_q, self.tokens = max(new, default=0), begin[-1]


class KVCache:
    """Pages of K, V and their compressed entries for `layers` layers.

    config        kv_sharing "shared" or "per_branch"
    layers, pages numbers of layers, and of pages in each
    page_size     tokens of a page: 16, 32, 64 or 128, a multiple of compress.stride
    max_len       the longest sequence [all pages]; plans and block tables have room for it
    max_q         the most new tokens of a sequence in a step that `decode` serves, 1 to 16 [1]: up to it a step
                  decodes, above it is a prefill
    dtype, device of the tensors

        batch = cache.begin([id], [len(prompt)])     # new tokens of each sequence; reserves pages
        for layer, block in enumerate(model):
            q, k, v, gates = block.project(x)        # [T, H, D] of the new tokens, packed
            cache.append(layer, batch, k, v)
            o = cache.attend(layer, batch, q, gates)
    """

    def __init__(self, config: Config, layers: int, pages: int, page_size: int = 64, *, max_len: Optional[int] = None,
                 max_q: int = 1, dtype: torch.dtype = torch.bfloat16, device="cuda",
                 weights: Optional[Sequence[Dict[str, Tensor]]] = None):
        stride = config.compress["stride"]
        if page_size not in (16, 32, 64, 128) or page_size % stride:
            raise ValueError(f"page_size is {page_size}; it is 16, 32, 64 or 128, and a multiple of compress.stride, {stride}")
        if not 1 <= max_q <= 16:
            raise ValueError(f"max_q is {max_q}; a decode step has 1 to 16 new tokens of a sequence")
        self.config, self.page_size, self.max_q, self.device = config, page_size, max_q, torch.device(device)
        self.max_len = min(max_len or pages * page_size, pages * page_size)
        self.weights = weights
        make = lambda rows, dim: torch.zeros(pages, rows, config.kv_heads, dim, dtype=dtype, device=device)
        names = (0,) if config.kv_sharing == "shared" else (0, 1, 2)
        self.layers: List[Dict[str, Tensor]] = []
        for _ in range(layers):
            tensors = {}
            for b in names:
                tensors[f"k{b}"], tensors[f"v{b}"] = make(page_size, config.head_dim), make(page_size, config.head_dim_v)
            tensors["k_cmp"] = make(page_size // stride, config.head_dim)
            tensors["v_cmp"] = make(page_size // stride, config.head_dim_v)
            self.layers.append(tensors)
        self._free = list(range(pages - 1, -1, -1))
        self._users = [0] * pages
        self._tables: Dict[object, List[int]] = {}
        self._lengths: Dict[object, int] = {}
        self._batches: Dict[int, Batch] = {}

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def length(self, id) -> int:
        """Tokens of a sequence; 0 of one that has not begun."""
        return self._lengths.get(id, 0)

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page

    def _give(self, page: int) -> None:
        self._users[page] -= 1
        if self._users[page] == 0:
            self._free.append(page)

    def begin(self, ids: Sequence, new: Sequence[int]) -> Batch:
        """Reserves room for `new` tokens of each sequence and describes the step.

        An id that is not known begins a sequence. The batch is the same object for every step of as many
        sequences. Raises MemoryError when there are not enough pages, and then changes nothing.
        """
        if len(ids) != len(new) or len(set(ids)) != len(ids):
            raise ValueError("ids and new have the same length, and no id twice")
        need = []
        for id, n in zip(ids, new):
            length = self.length(id)
            if n < 0 or length + n > self.max_len:
                raise ValueError(f"sequence {id!r} has {length} tokens and gets {n}: it may have {self.max_len} (max_len)")
            table = self._tables.get(id, [])
            first = length // self.page_size  # the first page that is written
            shared = n > 0 and first < len(table) and self._users[table[first]] > 1
            pages = -(-(length + n) // self.page_size)
            need.append((pages - len(table), shared, first))
        wanted = sum(max(more, 0) + shared for more, shared, _ in need)
        if wanted > len(self._free):
            raise MemoryError(f"the step needs {wanted} pages and {len(self._free)} are free: end sequences with free(), or "
                              "make the cache with more pages")
        for id, n, (more, shared, first) in zip(ids, new, need):
            table = self._tables.setdefault(id, [])
            if shared:
                self._copy_page(table, first)
            table += [self._take() for _ in range(max(more, 0))]
            self._lengths[id] = self.length(id) + n
        batch = self._batches.get(len(ids))
        if batch is None:
            batch = self._batches[len(ids)] = Batch(len(ids), -(-self.max_len // self.page_size), self.device)
        batch._fill(new, [self._lengths[id] for id in ids], [self._tables[id] for id in ids])
        return batch

    def _copy_page(self, table: List[int], index: int) -> None:
        old, new = table[index], self._take()
        for tensors in self.layers:
            for x in tensors.values():
                x[new] = x[old]
        self._give(old)
        table[index] = new

    def fork(self, id, child) -> None:
        """`child` begins as a copy of `id` that shares its pages; a page is copied when one of them writes it."""
        if child in self._tables:
            raise ValueError(f"sequence {child!r} exists")
        self._tables[child], self._lengths[child] = list(self._tables[id]), self._lengths[id]
        for page in self._tables[child]:
            self._users[page] += 1

    def truncate(self, id, length: int) -> None:
        """Forgets the tokens from `length` on: a rejected draft."""
        if not 0 <= length <= self._lengths[id]:
            raise ValueError(f"sequence {id!r} has {self._lengths[id]} tokens; it cannot have {length}")
        keep = -(-length // self.page_size)
        for page in self._tables[id][keep:]:
            self._give(page)
        del self._tables[id][keep:]
        self._lengths[id] = length

    def free(self, id) -> None:
        """Ends a sequence."""
        for page in self._tables.pop(id):
            self._give(page)
        del self._lengths[id]

    def _weights(self, layer: int):
        return self.weights[layer] if self.weights else None

    def append(self, layer: int, batch: Batch, k, v) -> None:
        """Writes K [T, Hkv, Dk] and V of the step's new tokens (three each with kv_sharing "per_branch")."""
        _torch.append(self.layers[layer], k, v, config=self.config, kv_len=batch.kv_len, max_kv=self.max_len,
                      block_table=batch.block_table, cu_seqlens=batch.cu_seqlens, weights=self._weights(layer))

    def attend(self, layer: int, batch: Batch, q: Tensor, gates: Optional[Tensor] = None, *, scale: Optional[float] = None,
               weights: Optional[Dict[str, Tensor]] = None) -> Tensor:
        """The new tokens' attention, [T, Hq, Dv]. weights: of the gate MLP."""
        where = dict(config=self.config, kv_len=batch.kv_len, max_kv=self.max_len, block_table=batch.block_table,
                     cu_seqlens=batch.cu_seqlens, scale=scale, weights=weights)
        if batch.max_q <= self.max_q:
            return _torch.decode(q, self.layers[layer], gates, max_q=self.max_q, **where)
        return _torch.prefill(q, self.layers[layer], gates, max_q=batch.max_q, **where)

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""A paged KV cache for all layers of a model, with sequences that fork, shrink and end."""
from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _torch
from ._config import Config


Scales = Dict[str, Union[float, Tensor]]


class Batch:
    """A step's sequences, in device memory that does not move: a captured graph reads new values.

    cu_seqlens int32 [n + 1], kv_len int32 [n], block_table int32 [n, pages a sequence], seqs: n, the rows of the
    batch, max_q: the most new tokens of a row, tokens: of all rows. Rows of padding are counted, too. A cache over
    ranks also has entry_table, like block_table.
    """

    def __init__(self, seqs: int, pages: int, device, tables: int = 1):
        pin = torch.device(device).type == "cuda"
        size = (seqs + 1) + seqs + tables * seqs * pages
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=pin)
        self._device = torch.zeros(size, dtype=torch.int32, device=device)
        self.cu_seqlens = self._device[:seqs + 1]
        self.kv_len = self._device[seqs + 1:2 * seqs + 1]
        self.block_table, *others = self._device[2 * seqs + 1:].view(tables, seqs, pages)
        self.entry_table = others[0] if others else None
        self._tables = self._host[2 * seqs + 1:].view(tables, seqs, pages)
        self._copied = torch.cuda.Event() if pin else None
        self.seqs, self.max_q, self.tokens = seqs, 0, 0

    def _fill(self, new: Sequence[int], lengths: Sequence[int], tables: Sequence[Sequence[List[int]]]) -> None:
        if self._copied is not None:
            self._copied.synchronize()  # the last copy has left the pinned memory
        begin = [0]
        for n in new:
            begin.append(begin[-1] + n)
        self._host[:self.seqs + 1] = torch.tensor(begin, dtype=torch.int32)
        self._host[self.seqs + 1:2 * self.seqs + 1] = torch.tensor(lengths, dtype=torch.int32)
        for rows, lists in zip(self._tables, tables):
            for row, pages in zip(rows, lists):  # what stands behind a sequence's pages is not read
                row[:len(pages)] = torch.tensor(pages, dtype=torch.int32)
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
    max_q         the most new tokens of a sequence in a step that `decode` serves, 1 to 16 [1]: a draft of n
                  tokens wants n + 1. A step with more of them is a prefill, in which sequences that decode may
                  stand beside prompts
    dtype, device of the tensors
    kv_dtype, cmp_dtype
                  of raw K and V, and of the compressed entries or the index keys, where the model has some:
                  torch.float8_e4m3fn stores them in FP8 [as the configuration's serving says, else dtype]. Both head
                  dims, or that of the index, are then multiples of 16
    scales        of a cache in FP8: {"k0": ..., "v0": ..., "k_cmp": ..., "v_cmp": ..., "k_idx": ...}, and k1, v1, k2, v2
                  per branch, for all layers or a list with one such dict a layer. Numbers, or float32 tensors [1] or
                  [Hkv], of k_idx [1]. A value is code * scale [1; of the entries those of k0 and v0]

        batch = cache.begin([id], [len(prompt)])     # new tokens of each sequence; reserves pages
        for layer, block in enumerate(model):
            q, k, v, gates = block.project(x)        # [T, H, D] of the new tokens, packed
            cache.append(layer, batch, k, v)
            o = cache.attend(layer, batch, q, gates)
    """

    _entry_pages: Optional[int] = None  # where entries have pages of their own (ranks_cache.py), their number

    def __init__(self, config: Config, layers: int, pages: int, page_size: int = 64, *, max_len: Optional[int] = None,
                 max_q: int = 1, dtype: torch.dtype = torch.bfloat16, device="cuda",
                 weights: Optional[Sequence[Dict[str, Tensor]]] = None, kv_dtype: Optional[torch.dtype] = None,
                 cmp_dtype: Optional[torch.dtype] = None, scales: Union[None, Scales, Sequence[Scales]] = None):
        stride = config.compress.get("stride", 1)  # 1: there are no compressed entries
        if page_size not in (16, 32, 64, 128) or page_size % stride:
            raise ValueError(f"page_size is {page_size}; it is 16, 32, 64 or 128, and a multiple of compress.stride, {stride}")
        norm_stride = (config.select.get("normalizer") or {}).get("stride", 0)
        if norm_stride and page_size % norm_stride:
            raise ValueError(f"page_size is {page_size}; it is a multiple of select.normalizer.stride, {norm_stride}")
        if not 1 <= max_q <= 16:
            raise ValueError(f"max_q is {max_q}; a decode step has 1 to 16 new tokens of a sequence")
        self.config, self.page_size, self.max_q, self.device = config, page_size, max_q, torch.device(device)
        entry_pages = self.entry_pages = self._entry_pages or pages
        self.max_len = min(max_len or entry_pages * page_size, entry_pages * page_size)
        self.weights = weights
        if isinstance(weights, dict):
            raise TypeError(f"weights is a dict; it is a list of one dict for each of the {layers} layers, or None")
        for name, given in (("weights", weights or None), ("scales", scales)):
            if isinstance(given, (list, tuple)) and len(given) != layers:
                raise ValueError(f"{name} is a list of {len(given)}; it has one dict for each of the {layers} layers")
        for name, given in (("kv_dtype", kv_dtype), ("cmp_dtype", cmp_dtype)):
            if given not in (None, dtype, _torch.CODES):
                raise TypeError(f"{name} is {given}; it is torch.float8_e4m3fn, or the cache's dtype, {dtype}")
        of_config = lambda name: _torch.CODES if config.serving.get(name) == "e4m3" else dtype
        kv_dtype, cmp_dtype = kv_dtype or of_config("kv_dtype"), cmp_dtype or of_config("cmp_dtype")
        make = lambda rows, dim, of, pages=entry_pages: torch.zeros(pages, rows, config.kv_heads, dim, dtype=of, device=device)
        names = (0,) if config.kv_sharing == "shared" else (0, 1, 2)
        self.layers: List[Dict[str, Tensor]] = []
        for layer in range(layers):
            tensors = {}
            for b in names:
                tensors[f"k{b}"] = make(page_size, config.head_dim, kv_dtype, pages)
                tensors[f"v{b}"] = make(page_size, config.head_dim_v, kv_dtype, pages)
            if config.index is not None:
                tensors["k_idx"] = torch.zeros(entry_pages, page_size, 1, config.index["dim"], dtype=cmp_dtype, device=device)
            if config.compress["phi"] != "none":
                tensors["k_cmp"] = make(page_size // stride, config.head_dim, cmp_dtype)
            if "k_cmp" in tensors and config.compress.get("output", True):
                tensors["v_cmp"] = make(page_size // stride, config.head_dim_v, cmp_dtype)
            if norm_stride:
                tensors["k_norm"] = make(page_size // norm_stride, config.head_dim, dtype)
            self._add_scales(tensors, scales[layer] if isinstance(scales, (list, tuple)) else scales or {})
            self.layers.append(tensors)
        self._free = list(range(entry_pages - 1, -1, -1))
        self._users = [0] * entry_pages
        self._tables: Dict[object, List[int]] = {}
        self._lengths: Dict[object, int] = {}
        self._batches: Dict[int, Batch] = {}

    def _add_scales(self, tensors: Dict[str, Tensor], scales: Scales) -> None:
        for name, scale in scales.items():
            if name not in tensors or tensors[name].dtype != _torch.CODES:
                codes = [name for name, x in tensors.items() if x.dtype == _torch.CODES]
                raise ValueError(f"scales has {name!r}; of this cache {', '.join(codes) or 'nothing'} has codes "
                                 "(kv_dtype, cmp_dtype)")
            scale = torch.as_tensor(scale, dtype=torch.float32, device=self.device).reshape(-1)
            if scale.numel() != 1 and (name == "k_idx" or scale.numel() != self.config.kv_heads):
                each = "" if name == "k_idx" else f", or one for each of {self.config.kv_heads} KV heads"
                raise ValueError(f"the scale of {name!r} has {scale.numel()} elements; it has 1{each}")
            tensors[name + "_scale"] = scale.clone()

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def length(self, id) -> int:
        """Tokens of a sequence; 0 of one that has not begun."""
        return self._lengths.get(id, 0)

    def pages(self, id) -> List[int]:
        """The pages of a sequence, in order; others may use them, too. None of one that has not begun."""
        return list(self._tables.get(id, []))

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page

    def _give(self, page: int) -> None:
        self._users[page] -= 1
        if self._users[page] == 0:
            self._free.append(page)

    def _needs(self, ids: Sequence, new: Sequence[int]) -> List[Tuple[int, bool]]:
        """For each sequence the pages behind its last one, and whether it copies the first page that it writes."""
        if len(ids) != len(new) or len(set(ids)) != len(ids):
            raise ValueError("ids and new have the same length, and no id twice")
        found, left = [], {}  # left: sequences that have copied a page, and so use it no more
        for id, n in zip(ids, new):
            length = self.length(id)
            if n < 0 or length + n > self.max_len:
                raise ValueError(f"sequence {id!r} has {length} tokens and gets {n}: it may have {self.max_len} (max_len)")
            table = self._tables.get(id, [])
            first, copies = length // self.page_size, False
            if n > 0 and first < len(table):
                page = table[first]
                copies = self._users[page] - left.get(page, 0) > 1
                left[page] = left.get(page, 0) + copies
            found.append((max(-(-(length + n) // self.page_size) - len(table), 0), copies))
        return found

    def pages_needed(self, ids: Sequence, new: Sequence[int]) -> int:
        """Pages that `begin` takes for these tokens, copies of shared pages among them; `free_pages` are there.

        A scheduler that asks for all running sequences, each to its end, knows whether another one fits.
        """
        return sum(more + copies for more, copies in self._needs(ids, new))

    def begin(self, ids: Sequence, new: Sequence[int], *, rows: Optional[int] = None) -> Batch:
        """Reserves room for `new` tokens of each sequence and describes the step.

        An id that is not known begins a sequence. The batch is the same object for every step of as many rows.
        Raises MemoryError when there are not enough pages, and then changes nothing.

        rows    of the batch, at least len(ids) [len(ids)]. Rows behind the sequences are padding: they have
                max(new) tokens each and no sequence, so nothing is written for them and their output is 0. A
                graph that was captured for `rows` rows so serves any smaller number of sequences, as long as
                each has max(new) tokens
        """
        needs = self._needs(ids, new)
        rows = len(ids) if rows is None else rows
        if rows < len(ids):
            raise ValueError(f"rows is {rows}; it is at least {len(ids)}, the number of sequences")
        wanted = sum(more + copies for more, copies in needs)
        if wanted > len(self._free):
            raise MemoryError(f"the step needs {wanted} pages and {len(self._free)} are free: end sequences with free(), or "
                              "make the cache with more pages")
        for id, n, (more, copies) in zip(ids, new, needs):
            table = self._tables.setdefault(id, [])
            if copies:
                self._copy_page(table, self.length(id) // self.page_size)
            table += [self._take() for _ in range(more)]
            self._lengths[id] = self.length(id) + n
        tables = self._tables_of(ids, new)
        batch = self._batches.get(rows)
        if batch is None:
            batch = self._batches[rows] = Batch(rows, -(-self.max_len // self.page_size), self.device, len(tables))
        padding = rows - len(ids)
        batch._fill([*new, *[max(new, default=0)] * padding], [*[self._lengths[id] for id in ids], *[0] * padding], tables)
        return batch

    def _tables_of(self, ids: Sequence, new: Sequence[int]) -> List[List[List[int]]]:
        """The batch's tables, of which this cache has one."""
        return [[self._tables[id] for id in ids]]

    def _copy_page(self, table: List[int], index: int) -> None:
        old, new = table[index], self._take()
        for tensors in self.layers:
            for name, x in tensors.items():
                if not name.endswith("_scale"):
                    x[new] = x[old]
        self._give(old)
        table[index] = new

    def fork(self, id, child, length: Optional[int] = None) -> None:
        """`child` begins with the first `length` tokens of `id` [all] and shares their pages.

        A page that several sequences use is copied when one of them writes it: a shared prompt, for instance,
        is computed once. `free` and `truncate` give a page back when its last user does.
        """
        if child in self._tables:
            raise ValueError(f"sequence {child!r} exists")
        length = self.length(id) if length is None else length
        self._check_length(id, length)
        self._tables[child] = self._tables[id][:-(-length // self.page_size)]
        self._lengths[child] = length
        for page in self._tables[child]:
            self._users[page] += 1

    def _check_known(self, id) -> None:
        if id not in self._tables:
            raise KeyError(f"there is no sequence {id!r}: begin makes one")

    def _check_length(self, id, length: int) -> None:
        self._check_known(id)
        if not 0 <= length <= self._lengths[id]:
            raise ValueError(f"sequence {id!r} has {self._lengths[id]} tokens; it cannot have {length}")

    def truncate(self, id, length: int) -> None:
        """Forgets the tokens from `length` on: a rejected draft."""
        self._check_length(id, length)
        keep = -(-length // self.page_size)
        for page in self._tables[id][keep:]:
            self._give(page)
        del self._tables[id][keep:]
        self._lengths[id] = length

    def free(self, id) -> None:
        """Ends a sequence."""
        self._check_known(id)
        for page in self._tables.pop(id):
            self._give(page)
        del self._lengths[id]

    def _layer(self, layer: int) -> Dict[str, Tensor]:
        if not 0 <= layer < len(self.layers):
            raise IndexError(f"layer is {layer}; the cache has layers 0 to {len(self.layers) - 1}")
        return self.layers[layer]

    def _weights(self, layer: int):
        self._layer(layer)
        return self.weights[layer] if self.weights else None

    def append(self, layer: int, batch: Batch, k, v, *, k_idx: Optional[Tensor] = None) -> None:
        """Writes K [T, Hkv, Dk] and V of the step's new tokens (three each with kv_sharing "per_branch"), and with
        an index their keys k_idx [T, 1, Di]."""
        _torch.append(self._layer(layer), k, v, config=self.config, kv_len=batch.kv_len, max_kv=self.max_len,
                      block_table=batch.block_table, cu_seqlens=batch.cu_seqlens, weights=self._weights(layer), k_idx=k_idx)

    def attend(self, layer: int, batch: Batch, q: Tensor, gates: Optional[Tensor] = None, *, scale: Optional[float] = None,
               weights: Optional[Dict[str, Tensor]] = None, index_q: Optional[Tensor] = None, return_indices: bool = False,
               return_index_lse: bool = False) -> Union[Tensor, Tuple[Tensor, ...]]:
        """The new tokens' attention, [T, Hq, Dv]. weights: of the gate MLP. index_q: [T, Hi, Di], of an index.
        return_indices, return_index_lse: as of nsa.attention."""
        where = dict(config=self.config, kv_len=batch.kv_len, max_kv=self.max_len, block_table=batch.block_table,
                     cu_seqlens=batch.cu_seqlens, scale=scale, weights=weights, index_q=index_q, return_indices=return_indices,
                     return_index_lse=return_index_lse)
        if batch.max_q <= self.max_q:
            # A plan for one new token has kernels of its own, so that such a step does not take that for drafts.
            return _torch.decode(q, self._layer(layer), gates, max_q=1 if batch.max_q <= 1 else self.max_q, **where)
        return _torch.prefill(q, self._layer(layer), gates, max_q=batch.max_q, **where)

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Attention metadata of inference engines, for caches in the engines' own pages. Imports no engine.

    step = engine.batch(metadata)           # of vLLM or SGLang, once a step; its tensors are used in place
    step.append(cache, k, v, config=config)
    o = step.attend(q, cache, gates, config=config)

    vLLM (CommonAttentionMetadata,      SGLang (FlashAttention     what it is
    FlashAttentionMetadata)             backend's metadata)
    query_start_loc                     cu_seqlens_q               rows of each sequence's new tokens
    seq_lens                            cache_seqlens_int32        lengths, the new tokens included; 0: padding
    block_table_tensor, block_table     page_table                 pages of each sequence
    slot_mapping                        out_cache_loc (argument)   where new tokens go; -1: nowhere
    max_query_len, max_seq_len          max_seq_len_q, _k          the longest
    causal                              window_size                refused unless true, and (-1, -1)

SGLang's page table is one of pages where its page size is that of the cache. Its kv_indptr and kv_indices list
tokens, which are no pages of libnsa: those have 16 tokens at least. Lists of pages, as FlashInfer's wrappers
take them (paged_kv_indptr, paged_kv_indices), are arguments.

A cache is a dictionary as nsa.append has it: the engine's K and V, [pages, tokens, Hkv, D], and the compressed
entries beside them, [pages, tokens / stride, Hkv, D], under the same page numbers. In FP8 (e4m3) a value is code *
scale here and in vLLM and SGLang, so that their codes serve in place. They allocate bytes, and most of their scales
have no dimension: give k0=k.view(torch.float8_e4m3fn), k0_scale=k_scale.view(-1), and the same of V. Scales that are
left out are 1.
"""
from __future__ import annotations

import ctypes as C
import dataclasses
from typing import Any, Dict, Optional

import torch
from torch import Tensor

from .. import _abi, _torch
from .._config import Config
from .._library import check, lib

MOST_DECODED = 16  # new tokens of a sequence; more are a prefill


def _first(metadata: Any, *names: str):
    for name in names:
        value = getattr(metadata, name, None)
        if value is not None:
            return value
    raise TypeError(f"{type(metadata).__name__} has no {' and no '.join(names)}: it is no attention metadata of vLLM or SGLang "
                    "that is known here")


@dataclasses.dataclass
class EngineBatch:
    """A step of an engine. Tensors are those of the metadata."""
    cu_seqlens: Tensor             # int32 [sequences + 1]
    kv_len: Tensor                 # int32 [sequences]
    pages: Dict[str, Tensor]       # "block_table" int32 [sequences, any]; or "page_indptr", "page_indices"
    slot_mapping: Optional[Tensor]  # int64 [tokens]
    max_q: int
    max_kv: int

    def append(self, cache: Dict[str, Tensor], k, v, *, config: Config, weights: Optional[Dict[str, Tensor]] = None) -> None:
        """nsa.append in the place of the engine's write of K and V [tokens, Hkv, D]."""
        slots = self.slot_mapping
        if slots is not None:
            tokens = k.shape[0] if isinstance(k, Tensor) else k[0].shape[0]
            slots = slots[:tokens].to(torch.int64)
        _torch.append(cache, k, v, config=config, kv_len=self.kv_len, max_kv=self.max_kv,
                      cu_seqlens=self.cu_seqlens, slot_mapping=slots, weights=weights, **self.pages)

    def attend(self, q: Tensor, cache: Dict[str, Tensor], gates: Optional[Tensor] = None, *, config: Config,
               scale: Optional[float] = None, weights: Optional[Dict[str, Tensor]] = None) -> Tensor:
        """The new tokens' attention [tokens, Hq, Dv]: a decode step up to 16 new tokens of a sequence, else a prefill."""
        more = dict(config=config, kv_len=self.kv_len, max_kv=self.max_kv, max_q=self.max_q,
                    cu_seqlens=self.cu_seqlens, scale=scale, weights=weights, **self.pages)
        function = _torch.decode if self.max_q <= MOST_DECODED else _torch.prefill
        return function(q, cache, gates, **more)


def batch(metadata: Any, *, out_cache_loc: Optional[Tensor] = None, page_indptr: Optional[Tensor] = None,
          page_indices: Optional[Tensor] = None, max_kv: Optional[int] = None, max_q: Optional[int] = None) -> EngineBatch:
    """Describes a step by an engine's metadata.

    out_cache_loc              SGLang's, which its metadata does not hold: token slots in the pages
    page_indptr, page_indices  int32 [sequences + 1] and [any]: lists of pages [the metadata's table]
    max_kv, max_q              bounds that hold for every replay, where the step is captured into a graph
                               [the metadata's]
    """
    if getattr(metadata, "causal", True) is not True:
        raise ValueError("libnsa's attention is causal, and the metadata's is not (causal)")
    window = getattr(metadata, "window_size", None)
    if window is not None and tuple(window) != (-1, -1):
        raise ValueError(f"the metadata has a window of its own (window_size {tuple(window)}); libnsa's is nsa.Config's")
    lengths = _first(metadata, "seq_lens", "cache_seqlens_int32")
    count = lengths.shape[0]
    if (page_indptr is None) != (page_indices is None):
        raise ValueError(f"there is no {'page_indptr' if page_indptr is None else 'page_indices'}: lists of pages are two")
    if page_indptr is not None:
        pages = dict(page_indptr=page_indptr[:count + 1], page_indices=page_indices)
    else:
        pages = dict(block_table=_first(metadata, "block_table_tensor", "block_table", "page_table")[:count])
    slots = out_cache_loc if out_cache_loc is not None else getattr(metadata, "slot_mapping", None)
    return EngineBatch(_first(metadata, "query_start_loc", "cu_seqlens_q"), lengths, pages, slots,
                       int(max_q or _first(metadata, "max_query_len", "max_seq_len_q")),
                       int(max_kv or _first(metadata, "max_seq_len", "max_seq_len_k")))


def block_bytes(config: Config, page_size: int, *, device: str = "cpu", dtype: str = "f32", kv_dtype: str = "model",
                cmp_dtype: str = "model") -> int:
    """Bytes of one page in one layer, the compressed entries included, for an engine's memory planner.

    kv_dtype, cmp_dtype   "e4m3": raw K and V, or the compressed entries or index keys, in FP8; "model": in `dtype`
    """
    bytes_ = C.c_uint64()
    stored = {"model": _torch.NONE, "e4m3": _abi.NSA_E4M3}
    for name, given in (("kv_dtype", kv_dtype), ("cmp_dtype", cmp_dtype)):
        if given not in stored:
            raise ValueError(f"{name} is {given!r}; it is \"model\" or \"e4m3\"")
    problem = _abi.nsa_problem(struct_size=C.sizeof(_abi.nsa_problem), op=_abi.NSA_OP_DECODE, max_seqs=1, max_kv_len=page_size,
                               page_size=page_size, kv_dtype=stored[kv_dtype], cmp_dtype=stored[cmp_dtype])
    check(lib.nsa_kv_page_bytes(config.context(device, dtype).handle, C.byref(problem), C.byref(bytes_)))
    return bytes_.value

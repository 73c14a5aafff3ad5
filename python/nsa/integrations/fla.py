# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""flash-linear-attention's NSA on libnsa (written against fla 0.5.2).

    import nsa.integrations.fla
    nsa.integrations.fla.patch()     # models and layers of fla then run on libnsa, unchanged

parallel_nsa here has the arguments of fla.ops.nsa.parallel_nsa. Groups need not be of 16 heads or more,
flash_attn is not needed, and head dims that are no multiples of 8 are padded with zeros. What libnsa
does not compute the same way goes back to fla's own function, with a warning for each reason, and is
counted: a tensor of block_counts, a `scale` together with a window (flash_attn does not get it) or one
that is not positive, fewer than 4 or more than 256 blocks, heads wider than 256, groups of more than 64,
float32 on a GPU. fla's function needs a GPU: on the CPU such a call raises RuntimeError with the reason.

A block that is given twice in block_indices counts once; fla's kernels count it twice.
"""
from __future__ import annotations

import collections
import functools
import importlib
import warnings
from typing import Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from .._config import Config
from .._torch import attention

MOST_BLOCKS = 256  # of select.count
MODULES = "fla.ops.nsa.parallel", "fla.ops.nsa", "fla.layers.nsa"

calls = collections.Counter()  # "libnsa", and "fla: " with the reason


@functools.lru_cache(maxsize=256)
def _config(heads: int, kv_heads: int, dim: int, dim_v: int, block: int, count: int, window: int, given: bool) -> Config:
    forced = dict(init=0, local=0) if given else dict(init=1, local=2)
    return Config(heads=heads, kv_heads=kv_heads, head_dim=dim, head_dim_v=dim_v, window=window, gate="weights",
                  compress=dict(block=block, stride=block, phi="mean"), select=dict(block=block, count=count, **forced))


def _whole(n: int) -> int:
    """A head dim that libnsa takes."""
    return max(-(-n // 8) * 8, 16)


def _pad(x: Tensor) -> Tensor:
    more = _whole(x.shape[-1]) - x.shape[-1]
    return F.pad(x, (0, more)) if more else x


def _blocks(block_counts: int) -> int:
    """fla's kernels select the next power of two."""
    return 1 << max(block_counts - 1, 0).bit_length()


def reason_for_fla(q, k, v, block_counts, window_size, scale, block_indices) -> Optional[str]:
    """Why a call goes back to fla; None: libnsa serves it."""
    if torch.is_tensor(block_counts):
        return "block_counts is a tensor"
    if scale is not None and not scale > 0:
        return "the scale is not positive"
    if scale is not None and window_size and abs(scale - q.shape[-1] ** -0.5) > 1e-6 * scale:
        return "scale is given together with a window, to which fla does not apply it"
    if max(q.shape[-1], v.shape[-1]) > 256:
        return "a head is wider than 256"
    if q.shape[2] // k.shape[2] > 64:
        return "more than 64 query heads share a KV head"
    if block_indices is None and _blocks(block_counts) < 4:
        return "fewer than 4 blocks are selected, of which 3 are forced"
    if (_blocks(block_counts) if block_indices is None else block_indices.shape[-1]) > MOST_BLOCKS:
        return f"more than {MOST_BLOCKS} blocks are selected"
    if q.dtype == torch.float32 and q.is_cuda:
        return "the tensors are float32 on a GPU"
    return None


def parallel_nsa(q: Tensor, k: Tensor, v: Tensor, g_cmp: Optional[Tensor] = None, g_slc: Optional[Tensor] = None,
                 g_swa: Optional[Tensor] = None, block_indices: Optional[Tensor] = None,
                 block_counts: Union[Tensor, int] = 16, block_size: int = 64, window_size: int = 0,
                 scale: Optional[float] = None,
                 cu_seqlens: Union[Tensor, Tuple[Tensor, Tensor], None] = None) -> Tensor:
    """fla.ops.nsa.parallel_nsa: q [B, TQ, HQ, K], k [B, T, H, K], v [B, T, H, V], gates [B, TQ, HQ], after their
    sigmoid -> o [B, TQ, HQ, V]. Without g_cmp there is no compressed branch, and block_indices is required."""
    if cu_seqlens is not None and q.shape[0] != 1:
        raise ValueError(f"the batch size is {q.shape[0]}: with cu_seqlens it is 1")
    window_size = window_size or 0
    reason = reason_for_fla(q, k, v, block_counts, window_size, scale, block_indices)
    if reason is not None:
        return _fall_back(reason, q, k, v, g_cmp, g_slc, g_swa, block_indices, block_counts, block_size, window_size, scale,
                          cu_seqlens)
    if g_cmp is None and block_indices is None:
        raise ValueError("without g_cmp nothing selects blocks: block_indices is required")
    if window_size and g_swa is None:
        raise ValueError("window_size is given: g_swa is required")
    calls["libnsa"] += 1
    like = q.new_zeros(()).expand(q.shape[:3])
    one = q.new_ones(()).expand(q.shape[:3])
    gates = torch.stack([like if g_cmp is None else g_cmp, one if g_slc is None else g_slc,
                         g_swa if window_size else like], -1)
    if gates.dtype not in (q.dtype, torch.float32):
        gates = gates.float()
    count = _blocks(block_counts) if block_indices is None else block_indices.shape[-1]
    dim, dim_v = q.shape[-1], v.shape[-1]
    config = _config(q.shape[2], k.shape[2], _whole(dim), _whole(dim_v), block_size, count, window_size,
                     block_indices is not None)
    branches = ["selected"] + (["compressed"] if g_cmp is not None else []) + (["window"] if window_size else [])
    more = dict(config=config, scale=scale or dim ** -0.5, branches=branches)
    tensors = _pad(q), _pad(k), _pad(v), gates
    if cu_seqlens is None:
        o = attention(*tensors, block_indices=block_indices, **more)
    else:
        cu_q, cu_k = cu_seqlens if isinstance(cu_seqlens, tuple) else (cu_seqlens, None)
        blocks = None if block_indices is None else block_indices.squeeze(0)
        o = attention(*[x.squeeze(0) for x in tensors], cu_seqlens=cu_q, cu_seqlens_k=cu_k, block_indices=blocks,
                      **more).unsqueeze(0)
    return o if o.shape[-1] == dim_v else o[..., :dim_v]


def _fall_back(reason, *args):
    if args[0].device.type == "cpu":
        raise RuntimeError(f"libnsa does not compute this call of parallel_nsa: {reason}; fla's own kernels do, "
                           "but they need a GPU, and q is on the CPU")
    calls["fla: " + reason] += 1
    if calls["fla: " + reason] == 1:
        warnings.warn(f"libnsa: {reason}; fla's own kernels compute this", stacklevel=3)
    own = _own or importlib.import_module("fla.ops.nsa.parallel").parallel_nsa
    return own(*args)


_own = None  # fla's function, while it is patched


class Patch:
    """What patch() did. Also a context manager."""

    def __init__(self):
        self.replaced, self.before = [], calls.copy()

    @property
    def calls(self) -> collections.Counter:
        """Calls since patch(): "libnsa", and "fla: " with the reason."""
        return calls - self.before

    def undo(self) -> None:
        """Gives fla its own function back."""
        global _own
        for module, function in self.replaced:
            module.parallel_nsa = function
        self.replaced.clear()
        _own = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.undo()


def patch() -> Patch:
    """Puts parallel_nsa of this module in the place of fla's, in fla's operators and layers."""
    global _own
    operators = importlib.import_module("fla.ops.nsa.parallel")
    if operators.parallel_nsa is parallel_nsa:
        raise RuntimeError("fla is patched already: call undo() on what patch() returned")
    done = Patch()
    _own = operators.parallel_nsa
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            if name in MODULES[:2]:
                raise
            continue  # the layers need transformers
        done.replaced.append((module, module.parallel_nsa))
        module.parallel_nsa = parallel_nsa
    return done

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The loss that trains an index branch: nsa_index_kl (include/nsa/index_kl.h) as a function of PyTorch."""
from __future__ import annotations

import ctypes as C
from typing import Optional

import torch
from torch import Tensor

from . import _abi
from ._config import Config
from ._library import check, lib
from ._torch import KV, NUMBERS, _int32, _plan, _problem_of, _rows


def _view(x: Optional[Tensor]):
    """The struct of a tensor, which the caller keeps alive."""
    t = _abi.nsa_tensor()
    if x is None:
        return t
    t.data, t.ndim, t.dtype = x.data_ptr() or None, x.dim(), NUMBERS.get(x.dtype, 0)
    for i in range(min(x.dim(), 5)):
        t.shape[i], t.stride[i] = x.shape[i], x.stride(i)
    if x.dim() and x.shape[-1] == 1:
        t.stride[x.dim() - 1] = 1
    return t


def _run(plan, tensors, pair, branch, cu_q, cu_kv, scale, coefficient):
    """The loss, [1], and the gradients of index_q and k_idx in float32."""
    q, k, lse, index_q, k_idx, block_indices = tensors
    loss = torch.empty(1, dtype=torch.float32, device=q.device)
    d_q, d_k = (torch.empty(x.shape, dtype=torch.float32, device=q.device) for x in (index_q, k_idx))
    room = torch.empty(plan.room, dtype=torch.uint8, device=q.device)
    io = _abi.nsa_io(struct_size=C.sizeof(_abi.nsa_io), softmax_scale=scale, q=_view(q), block_idx=_view(block_indices),
                     index_q=_view(index_q), k_idx=_view(k_idx))
    io.kv.k[pair], io.lse[branch] = _view(k), _view(lse)
    grads = _abi.nsa_index_grads(struct_size=C.sizeof(_abi.nsa_index_grads), coefficient=coefficient, loss=_view(loss),
                                 d_index_q=_view(d_q), d_k_idx=_view(d_k))
    skip = -room.data_ptr() % plan.align if plan.align else 0
    run = _abi.nsa_exec(struct_size=C.sizeof(_abi.nsa_exec), workspace=room.data_ptr() + skip, workspace_bytes=plan.bytes,
                        stream=torch.cuda.current_stream(q.device).cuda_stream if q.is_cuda else None)
    batch = None
    if cu_q is not None:
        batch = C.byref(_abi.nsa_batch(struct_size=C.sizeof(_abi.nsa_batch), num_seqs=cu_q.shape[0] - 1, cu_q=_view(cu_q),
                                       cu_kv=_view(cu_kv)))
    check(lib.nsa_index_kl(plan.handle, C.byref(run), batch, C.byref(io), C.byref(grads)))
    return loss, d_q, d_k


class _IndexKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, index_q, k_idx):
        loss, d_q, d_k = run(_rows(index_q.detach()), _rows(k_idx.detach()))
        ctx.save_for_backward(d_q, d_k)
        ctx.dtypes = index_q.dtype, k_idx.dtype
        return loss[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_loss):
        return (None, *[(d_loss * d).to(dtype) for d, dtype in zip(ctx.saved_tensors, ctx.dtypes)])


def index_kl(q: Tensor, k: KV, index_q: Tensor, k_idx: Tensor, *, config: Config, lse: Tensor, block_indices: Optional[Tensor] = None,
             cu_seqlens: Optional[Tensor] = None, cu_seqlens_k: Optional[Tensor] = None, max_seqlen: Optional[int] = None,
             scale: Optional[float] = None, coefficient: float = 1.0) -> Tensor:
    """The divergence of an index's distribution over the chosen tokens from the attention's: what trains the index.

    q, k           as of `attention`, without a batch dimension
    index_q, k_idx queries and keys of the index, [T, Hi, Di] and [S, 1, Di], in q's dtype
    block_indices  int32 [T, Hkv, n], the blocks that `attention` returns by return_indices. None: a warm-up, over every
                   token that a query sees
    lse            float32 [T, Hq], the selected branch's log-sum-exp, which it returns by return_lse; of a warm-up
                   that of dense attention, and per branch k is then the first
    cu_seqlens, cu_seqlens_k, max_seqlen, scale   as of `attention`
    coefficient    of the loss, greater than 0

    Returns the loss, a float32 scalar: the mean over query tokens and index heads. Differentiable in index_q and
    k_idx, once; q and k are constants.
    """
    if not coefficient > 0:
        raise ValueError(f"coefficient is {coefficient}: it is greater than 0")
    pair = 0
    if not isinstance(k, Tensor):
        pair = 0 if block_indices is None else _abi.NSA_SEL
        k = k[pair]
    cu_q = None if cu_seqlens is None else _int32(cu_seqlens, "cu_seqlens")
    cu_kv = None if cu_seqlens_k is None else _int32(cu_seqlens_k, "cu_seqlens_k")
    q, k, lse = (_rows(x.detach()) for x in (q, k, lse))
    warm_up = block_indices is None
    blocks = None if warm_up else _int32(block_indices, "block_indices").contiguous()
    problem = _problem_of(q, [k], cu_q, cu_kv, max_seqlen or 0, _abi.NSA_SELECT_ALL if warm_up else _abi.NSA_SELECT_BLOCKS)
    plan = _plan(config.text, q, op=_abi.NSA_OP_INDEX_KL, **problem)

    def run(index_q, k_idx):
        return _run(plan, (q, k, lse, index_q, k_idx, blocks), pair, 0 if warm_up else _abi.NSA_SEL, cu_q, cu_kv, scale or 0.0, coefficient)

    return _IndexKL.apply(run, index_q, k_idx)

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""PyTorch: the operators torch.ops.nsa.*, their autograd, and the functions on top of them.

An operator has the configuration as text, so that a graph holds no address. A call finds its plan,
the places of its tensors and the shapes of its outputs by the shapes of its inputs, in `_entries`.
Capacities are rounded up (_library.round_up), so that new lengths seldom need a plan.
"""
from __future__ import annotations

import ctypes as C
import json
import os
from typing import Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _abi
from ._config import Config
from ._library import (APPEND, BACKWARD, DECODE, FORWARD, NO_EXCHANGE, PREFILL, UNUSED, WORKSPACE, ArgumentError, Error, Frame,
                       RunArgs, context, last_error, lib, round_up, round_up_few, shim)
from ._places import BRANCHES, EXTRA, INDEX, NONE, OFFSETS, cache_problem

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "f32"}

CODES = getattr(torch, "float8_e4m3fn", None)  # of a cache in FP8


def _exchange() -> Optional[int]:
    """The address of PyTorch's table of DLPack functions; None: an older PyTorch."""
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    pointer_of = C.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = C.c_void_p, [C.py_object, C.c_char_p]
    return pointer_of(capsule, b"dlpack_exchange_api")


EXCHANGE = _exchange()
_nsapy_run, _empty, _empty_like = shim.nsapy_run, torch.empty, torch.empty_like
NUMBERS = {torch.float16: _abi.NSA_F16, torch.bfloat16: _abi.NSA_BF16, torch.float32: _abi.NSA_F32,
           torch.int32: _abi.NSA_I32, torch.int64: _abi.NSA_I64}
if CODES is not None:
    NUMBERS[CODES] = _abi.NSA_E4M3


class Run:
    """How to run a plan: the order of its tensors and what the shim needs."""

    __slots__ = "plan", "args", "address", "offsets", "room", "outputs", "handle", "inputs", "few"

    def __init__(self, call, plan, names, num_seqs, scale, inputs, branches=0, comm=None, shard=None):
        self.plan, self.room, self.handle = plan, plan.room, plan.handle
        self.inputs = inputs  # the first ones, of which copies may be passed
        self.offsets = (C.c_int32 * len(names))(*[OFFSETS[name] for name in names])
        self.args = RunArgs(call=call, num_seqs=num_seqs, scale=scale, workspace_align=plan.align, branches=branches,
                            tensors=len(names), exchange=EXCHANGE, plan=plan.handle, offsets=self.offsets,
                            comm=comm, shard=shard)
        self.address = C.addressof(self.args)
        self.outputs = None
        self.few = False  # of a forward: it has q, k, v, gates, and no output that is saved

    def __call__(self, tensors):
        """tensors: a tuple in the order of the names. The caller holds them until the call returns."""
        status = _nsapy_run(self.address, tensors)
        if status:
            self.recover(status, tensors)

    def recover(self, status, tensors):
        """Layouts are looked at only when the library has refused one: most calls have none to refuse."""
        call = self.without_exchange if status == NO_EXCHANGE else lambda tensors: _nsapy_run(self.address, tensors)
        if status == NO_EXCHANGE:
            status = call(tensors)
        if status in (_abi.NSA_E_ARG, _abi.NSA_E_UNSUPPORTED):
            error = last_error(status)
            copies = tuple(_rows(x) for x in tensors[:self.inputs])
            if all(a is b for a, b in zip(copies, tensors)):
                raise error
            status = call(copies + tensors[self.inputs:])
        if status:
            raise last_error(status)

    def without_exchange(self, tensors):
        """The same by ctypes, where PyTorch has no table that the shim knows."""
        sized = {name: kind for name, kind in Frame._fields_}
        frame = Frame(**{name: kind(struct_size=C.sizeof(kind)) for name, kind in sized.items()})
        # Empty tensors have no address. Of a rank without tokens they get one, since its part of a run has all tensors.
        nowhere = tensors[-1].data_ptr() if self.args.shard else None
        for offset, x in zip(self.offsets, tensors):
            if offset == UNUSED:
                continue
            if offset == WORKSPACE:
                begin = x.data_ptr()
                skip = -begin % self.args.workspace_align if self.args.workspace_align else 0
                frame.exec.workspace, frame.exec.workspace_bytes = begin + skip, x.numel() - skip
                continue
            t = _abi.nsa_tensor.from_buffer(frame, offset)
            t.data, t.ndim, t.dtype = x.data_ptr() or nowhere, x.dim(), NUMBERS.get(x.dtype, 0)
            for i in range(min(x.dim(), 5)):
                t.shape[i], t.stride[i] = x.shape[i], x.stride(i)
            if x.dim() and x.shape[-1] == 1:
                t.stride[x.dim() - 1] = 1
        first = tensors[0]
        frame.io.softmax_scale, frame.batch.num_seqs = self.args.scale, self.args.num_seqs
        frame.exec.branches = self.args.branches
        frame.exec.comm, frame.batch.shard = self.args.comm, self.args.shard
        frame.exec.stream = torch.cuda.current_stream(first.device).cuda_stream if first.is_cuda else None
        batch = C.byref(frame.batch) if self.args.num_seqs else None
        functions = lib.nsa_forward, lib.nsa_dense, lib.nsa_backward, lib.nsa_kv_append, lib.nsa_decode, lib.nsa_prefill
        last = (C.byref(frame.grads),) if self.args.call == BACKWARD else ()
        return functions[self.args.call](self.plan.handle, C.byref(frame.exec), batch, C.byref(frame.io), *last)


_entries: Dict[tuple, Run] = {}
_MANY = 4096  # entries, then all are forgotten: plans stay with their contexts


def _forget():
    """In a child of fork(), where the parent's plans are refused."""
    _library_kept.append(dict(_entries))
    _entries.clear()


_library_kept: List[dict] = []
os.register_at_fork(after_in_child=_forget)


def _keep(key, run):
    if len(_entries) >= _MANY:
        _entries.clear()
    _entries[key] = run
    return run


def _context_of(text: str, x: Tensor):
    if x.dtype not in DTYPES:
        raise TypeError(f"q has the dtype {x.dtype}; libnsa takes bfloat16 and float16, and float32 on the CPU")
    if x.device.type not in ("cpu", "cuda"):
        raise TypeError(f"q is on {x.device}; libnsa runs on \"cuda\" and on \"cpu\"")
    device = f"cuda:{x.device.index}" if x.is_cuda else "cpu"
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("libnsa: this shape has no plan yet, and a plan cannot be made while a CUDA graph is captured. "
                           "Run the same call once before the capture")
    with torch.cuda.device(x.device) if x.is_cuda else _nothing:
        return context(text, device, ("model.dtype=" + DTYPES[x.dtype],))


class _Nothing:
    def __enter__(self):
        return None

    def __exit__(self, *_):
        return None


_nothing = _Nothing()


def _plan(text, x, **problem):
    where = _context_of(text, x)
    with torch.cuda.device(x.device) if x.is_cuda else _nothing:
        return where.plan(**problem)


def _kv_names(kv: Sequence[Tensor], prefix="") -> List[str]:
    if len(kv) not in (2, 6):
        raise ValueError(f"there are {len(kv)} tensors of K and V; it is one pair, or one for each branch")
    return [f"{prefix}{'kv'[i % 2]}{i // 2}" for i in range(len(kv))]


def _split(names: str) -> List[str]:
    return names.split(",") if names else []


def _shape(x: Optional[Tensor]):
    return None if x is None else x.shape


def _need(x: Tensor, name: str, dims: int) -> None:
    if x.dim() != dims:
        raise ValueError(f"{name} has {x.dim()} dimensions: {list(x.shape)}; it has {dims}")


# ---- forward and backward

def _batch_names(cu_q, cu_kv):
    return (["cu_q"] if cu_q is not None else []) + (["cu_kv"] if cu_kv is not None else [])


def _listed(*tensors):
    return [x for x in tensors if x is not None]


def _selection_of(block_idx):
    return _abi.NSA_SELECT_TOPN if block_idx is None else _abi.NSA_SELECT_BLOCKS


def _problem_of(q, kv, cu_q, cu_kv, max_kv, selection, index_lse=False):
    tokens, keys = q.shape[0], kv[0].shape[0]
    seqs = 1 if cu_q is None else cu_q.shape[0] - 1
    longest = round_up(min(max_kv, keys) if max_kv else keys)
    return dict(max_tokens=round_up(tokens), max_kv_tokens=max(round_up(keys), longest), max_kv_len=longest,
                max_seqs=round_up_few(seqs), selection=selection, overlap=_abi.NSA_OVERLAP_HIGH, index_lse=int(index_lse))


def _model_of(text: str) -> dict:
    found = _models.get(text)
    if found is None:
        found = _models[text] = json.loads(text)
    return found


_models: Dict[str, dict] = {}


def _outputs_of(text: str, q, selected: bool, save: bool, branches: int = 0, index_lse: bool = False):
    """Shapes and dtypes of o, block_idx, and of o_branch and lse of the branches that are saved, then of index_lse."""
    sections = _model_of(text)
    model = sections["model"]
    tokens, heads = q.shape[0], model["heads"]
    o = ((tokens, heads, model["head_dim_v"]), q.dtype)
    count = model["select"]["count"]
    idx = ((0,) if selected or not count else (tokens, model["kv_heads"], count), torch.int32)
    saved = []
    if save:
        compressed = model["compress"].get("output", True) and model["compress"]["phi"] != "none"
        for branch, there in enumerate((compressed, count > 0, model["window"] > 0)):
            if there and (not branches or branches >> branch & 1):
                saved += [(f"o_branch{branch}", *o), (f"lse{branch}", (tokens, heads), torch.float32)]
    if index_lse:
        saved.append(("index_lse", (tokens, model["index"]["heads"]), torch.float32))
    return o, idx, saved


def _forward_raw(q, kv, gates, extra, names, cu_q, cu_kv, block_idx, max_kv, scale, text, save, branches=0, index_lse=False,
                 want_idx=True):
    key = (text, q.shape, kv[0].shape, q.dtype, q.device, len(kv), gates is None, names, max_kv, scale, save, branches, index_lse, want_idx,
           None if cu_q is None else cu_q.shape, None if cu_kv is None else cu_kv.shape,
           None if block_idx is None else block_idx.shape)
    run = _entries.get(key)
    if run is None:
        run = _new_forward(key, q, kv, gates, names, cu_q, cu_kv, block_idx, max_kv, scale, text, save, branches, index_lse, want_idx)
    o_like, idx_like, saved_like, room_like = run.outputs
    o = _empty_like(o_like)
    idx = _empty_like(idx_like) if want_idx else None
    if run.few:
        saved = ()
        tensors = (q, *kv, o) if gates is None else (q, *kv, gates, o)
    else:
        saved = [_empty_like(x) for x in saved_like]
        tensors = (q, *kv, *_listed(gates), *extra, *_listed(cu_q, cu_kv, block_idx), o)
    if run.handle is not None:
        room = _empty_like(room_like)
        run((*tensors, idx, *saved, room) if want_idx else (*tensors, *saved, room))
    return o, idx, saved


def _new_forward(key, q, kv, gates, names, cu_q, cu_kv, block_idx, max_kv, scale, text, save, branches, index_lse, want_idx):
    _need(q, "q", 3)
    for x, name in zip(kv, _kv_names(kv)):
        _need(x, name, 3)
    o, idx, saved = _outputs_of(text, q, block_idx is not None, save, branches, index_lse)
    order = ["q", *_kv_names(kv), *(["gates"] if gates is not None else []), *_split(names), *_batch_names(cu_q, cu_kv)]
    if block_idx is not None:
        order.append("block_idx")
    inputs = len(order)
    order.append("o")
    if want_idx:
        order.append("block_idx" if idx[0] != (0,) else None)
    order += [*[name for name, *_ in saved], "workspace"]
    plan = _NO_PLAN if q.shape[0] == 0 else _plan(
        text, q, op=_abi.NSA_OP_FORWARD, **_problem_of(q, kv, cu_q, cu_kv, max_kv, _selection_of(block_idx), index_lse))
    run = Run(FORWARD, plan, order, 0 if cu_q is None else cu_q.shape[0] - 1, scale, inputs, branches)
    run.few = not saved and inputs == 1 + len(kv) + (gates is not None)
    like = lambda shape, dtype: _like(shape, dtype, q.device)
    run.outputs = like(*o), like(*idx), [like(*x) for _, *x in saved], like((plan.room,), torch.uint8)
    return _keep(key, run)


def _like(shape, dtype, device):
    """A tensor of this shape without memory. empty_like makes a contiguous tensor of it in half the time of empty.

    It is kept, so it may hold none: the memory of a tensor that is made while torch.compile records CUDA graphs
    is from the graph's pool, where PyTorch allows none that outlives the call.
    """
    one = torch.empty(1, dtype=dtype, device=device)
    like = one.new_empty(shape) if 0 in shape else one.expand(shape)  # expanded to nothing, strides are 0
    like.untyped_storage().resize_(0)
    return like


class _NoPlan:
    """Of a run without tokens: there is nothing to do."""
    room, align, handle = 0, 1, None


_NO_PLAN = _NoPlan()


def _backward_raw(d_o, q, kv, gates, extra, names, cu_q, cu_kv, block_idx, given, saved, max_kv, scale, text, branches, needs):
    """Gradients of q, kv, gates and extra, in this order; None where `needs` says that none is wanted."""
    key = (BACKWARD, text, q.device, q.dtype, q.shape, kv[0].shape, len(kv), None if gates is None else gates.dtype, names,
           _shape(cu_q), _shape(cu_kv), given, block_idx.shape, len(saved), max_kv, scale, branches, tuple(needs))
    run = _entries.get(key)
    if run is None:
        run = _new_backward(key, q, kv, gates, names, cu_q, cu_kv, block_idx, given, saved, max_kv, scale, text, branches, needs)
    inputs = (q, *kv, *_listed(gates), *extra)
    grads = [_empty(x.shape, dtype=x.dtype, device=x.device) if wanted else None for x, wanted in zip(inputs, needs)]
    out = [g for g in grads if g is not None]
    if not out:
        return grads
    if run.handle is None:
        for g in out:
            g.zero_()
        return grads
    if d_o.dtype != q.dtype:
        d_o = d_o.to(q.dtype)
    room = torch.empty(run.room, dtype=torch.uint8, device=q.device)
    run((*inputs, *_listed(cu_q, cu_kv), block_idx, *saved, d_o, *out, room))
    return grads


def _new_backward(key, q, kv, gates, names, cu_q, cu_kv, block_idx, given, saved, max_kv, scale, text, branches, needs):
    order = ["q", *_kv_names(kv), *(["gates"] if gates is not None else []), *_split(names)]
    wanted = ["d_" + name for name, need in zip(order, needs) if need]
    order += [*_batch_names(cu_q, cu_kv), "block_idx" if block_idx.numel() else None]
    if saved:
        order += [name for name, *_ in _outputs_of(text, q, given, True, branches)[2]]
    order.append("d_o")
    inputs = len(order)
    order += [*wanted, "workspace"]
    selection = _abi.NSA_SELECT_BLOCKS if given else _abi.NSA_SELECT_TOPN
    plan = _NO_PLAN if q.shape[0] == 0 else _plan(
        text, q, op=_abi.NSA_OP_BACKWARD, **_problem_of(q, kv, cu_q, cu_kv, max_kv, selection))
    return _keep(key, Run(BACKWARD, plan, order, 0 if cu_q is None else cu_q.shape[0] - 1, scale, inputs, branches))


def _rows(x: Tensor) -> Tensor:
    """x, or a copy, with a layout that every kernel takes: rows in one piece, strides of whole 16 bytes."""
    if x.is_contiguous() and x.data_ptr() % 16 == 0:
        return x
    unit = 16 // x.element_size()
    whole = all(s % unit == 0 and (s > 0 or n == 1) for s, n in zip(x.stride()[:-1], x.shape))
    if whole and x.data_ptr() % 16 == 0 and (x.stride(-1) == 1 or x.shape[-1] == 1):
        return x
    return x.clone(memory_format=torch.contiguous_format)


# ---- operators

_library = torch.library.Library("nsa", "DEF")
_library.define("forward(Tensor q, Tensor[] kv, Tensor? gates, Tensor[] extra, str names, Tensor? cu_q, Tensor? cu_kv, "
                "Tensor? block_idx, SymInt max_kv, float scale, str config, bool save, int branches=0, bool index_lse=False) "
                "-> (Tensor o, Tensor block_idx_out, Tensor[] saved)", tags=(torch.Tag.pt2_compliant_tag,))
_library.define("backward(Tensor d_o, Tensor q, Tensor[] kv, Tensor? gates, Tensor[] extra, str names, Tensor? cu_q, "
                "Tensor? cu_kv, Tensor block_idx, bool given, Tensor[] saved, SymInt max_kv, float scale, str config, "
                "int branches, bool[] needs) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
_library.define("append(Tensor(a!)[] cache, str cache_names, Tensor[] new_kv, Tensor[] extra, str names, Tensor? cu_q, "
                "Tensor kv_len, Tensor? block_table, Tensor? page_indptr, Tensor? page_indices, Tensor? slots, "
                "Tensor? slot_mapping, SymInt max_kv, str config) -> ()",
                tags=(torch.Tag.pt2_compliant_tag,))
for _op in "decode", "prefill":
    _library.define(f"{_op}(Tensor q, Tensor? gates, Tensor[] cache, str cache_names, Tensor[] extra, str names, "
                    "Tensor? cu_q, Tensor kv_len, Tensor? block_table, Tensor? page_indptr, Tensor? page_indices, "
                    "Tensor? slots, SymInt max_q, SymInt max_kv, float scale, str config, bool idx=False, "
                    "bool index_lse=False) -> (Tensor o, Tensor[] more)",
                    tags=(torch.Tag.pt2_compliant_tag,))


def _forward_op(q, kv, gates, extra, names, cu_q, cu_kv, block_idx, max_kv, scale, config, save, branches=0, index_lse=False):
    o, idx, saved = _forward_raw(q, kv, gates, extra, names, cu_q, cu_kv, block_idx, max_kv, scale, config, save, branches, index_lse)
    return o, idx, list(saved)


def _backward_op(*args):
    return [g for g in _backward_raw(*args) if g is not None]


@torch.library.register_fake("nsa::forward", lib=_library)
def _(q, kv, gates, extra, names, cu_q, cu_kv, block_idx, max_kv, scale, config, save, branches=0, index_lse=False):
    o, idx, saved = _outputs_of(config, q, block_idx is not None, save, branches, index_lse)
    return (q.new_empty(o[0], dtype=o[1]), q.new_empty(idx[0], dtype=idx[1]),
            [q.new_empty(shape, dtype=dtype) for _, shape, dtype in saved])


@torch.library.register_fake("nsa::backward", lib=_library)
def _(d_o, q, kv, gates, extra, names, cu_q, cu_kv, block_idx, given, saved, max_kv, scale, config, branches, needs):
    inputs = (q, *kv, *_listed(gates), *extra)
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x, need in zip(inputs, needs) if need]


def _index_tensors(names: str) -> int:
    """How many tensors of an index `_with_index` has put behind the weights."""
    return sum(name in INDEX for name in _split(names))


class _Forward(torch.autograd.Function):
    """meta: (len(kv), gates there, names, max_kv, scale, config, save, branches, index_lse, direct, block_idx is returned, too).

    batch: (cu_q, cu_kv, block_idx), which have no gradients.
    """

    @staticmethod
    def forward(ctx, meta, batch, *tensors):
        count, gated, names, max_kv, scale, config, save, branches, index_lse, direct, want_idx = meta
        cu_q, cu_kv, block_idx = batch
        q, kv = tensors[0], tensors[1:1 + count]
        gates, extra = tensors[1 + count] if gated else None, tensors[1 + count + gated:]
        if direct:
            o, idx, saved = _forward_raw(q, kv, gates, extra, names, cu_q, cu_kv, block_idx, max_kv, scale, config, save, branches,
                                         index_lse)
        else:
            with torch._C._AutoDispatchBelowAutograd():
                o, idx, saved = torch.ops.nsa.forward.default(q, list(kv), gates, list(extra), names, cu_q, cu_kv,
                                                              block_idx, max_kv, scale, config, save, branches, index_lse)
        ctx.meta = meta
        # What an index chose is in idx: its tensors, which are last, are nothing of the backward pass.
        kept = tensors[:len(tensors) - _index_tensors(names)] if names else tensors
        ctx.save_for_backward(cu_q, cu_kv, block_idx, idx, *kept, *(saved[:-1] if index_lse else saved))
        ctx.set_materialize_grads(False)
        if direct and not want_idx:
            return o
        ctx.mark_non_differentiable(idx, *saved)
        return (o, idx, *saved)

    @staticmethod
    def backward(ctx, d_o, *_):
        count, gated, names, max_kv, scale, config, save, branches, _, direct, _ = ctx.meta
        dropped = _index_tensors(names)
        needs = list(ctx.needs_input_grad[2:len(ctx.needs_input_grad) - dropped])
        if d_o is None:
            return (None,) * (2 + len(needs) + dropped)
        cu_q, cu_kv, block_idx, idx, *rest = ctx.saved_tensors
        tensors, saved, given = rest[:len(needs)], rest[len(needs):], block_idx is not None
        if given:
            idx = block_idx
        if dropped:
            names = ",".join(_split(names)[:-dropped])
        q, kv = tensors[0], tensors[1:1 + count]
        gates, extra = tensors[1 + count] if gated else None, tensors[1 + count + gated:]
        if direct and not torch.is_grad_enabled():
            grads = _backward_op(d_o, q, kv, gates, extra, names, cu_q, cu_kv, idx, given, saved, max_kv, scale, config,
                                 branches, needs)
        else:
            grads = torch.ops.nsa.backward.default(d_o, q, list(kv), gates, list(extra), names, cu_q, cu_kv, idx, given,
                                                   list(saved), max_kv, scale, config, branches, needs)
        grads = iter(grads)
        return (None, None, *[next(grads) if need else None for need in needs], *[None] * dropped)


# What Function.apply calls when no functorch transform is active (_undisturbed).
_apply = super(torch.autograd.Function, _Forward).apply


def _requires_grad(tensors) -> bool:
    if torch.is_grad_enabled():
        for x in tensors:
            if x.requires_grad:
                return True
    return False


def _forward_autograd(q, kv, gates, extra, names, cu_q, cu_kv, block_idx, max_kv, scale, config, save, branches=0, index_lse=False):
    tensors = (q, *kv, *_listed(gates), *extra)
    if _requires_grad(tensors):
        meta = len(kv), int(gates is not None), names, max_kv, scale, config, save, branches, index_lse, False, True
        o, idx, *saved = _Forward.apply(meta, (cu_q, cu_kv, block_idx), *tensors)
        return o, idx, saved
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.nsa.forward.default(q, kv, gates, extra, names, cu_q, cu_kv, block_idx, max_kv, scale, config, save, branches,
                                             index_lse)


class _NoSecondDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, args, *tensors):
        with torch._C._AutoDispatchBelowAutograd():
            return tuple(torch.ops.nsa.backward.default(*args))

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("libnsa has no second derivatives: nsa.attention's backward pass cannot be differentiated. "
                           "Call backward without create_graph=True")


def _backward_autograd(d_o, q, kv, gates, extra, names, cu_q, cu_kv, block_idx, given, saved, max_kv, scale, config, branches, needs):
    args = (d_o, q, kv, gates, extra, names, cu_q, cu_kv, block_idx, given, saved, max_kv, scale, config, branches, needs)
    tensors = (d_o, q, *kv, *_listed(gates), *extra)
    if _requires_grad(tensors):
        return list(_NoSecondDerivative.apply(args, *tensors))
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.nsa.backward.default(*args)


def _cast(device):
    """The operator under autocast: q, k, v and the weights in autocast's dtype."""
    def cast(q, kv, gates, extra, *rest):
        dtype = torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(
                torch._C.DispatchKey.AutocastCPU if device == "cpu" else torch._C.DispatchKey.AutocastCUDA)):
            to = lambda x: x.to(dtype) if x.is_floating_point() else x
            gates = gates if gates is None or gates.dtype == torch.float32 else gates.to(dtype)
            return torch.ops.nsa.forward.default(to(q), [to(x) for x in kv], gates, [to(x) for x in extra], *rest)
    return cast


for _key in "CPU", "CUDA":
    _library.impl("forward", _forward_op, _key)
    _library.impl("backward", _backward_op, _key)
    _library.impl("forward", _cast(_key.lower()), "Autocast" + _key)
_library.impl("forward", _forward_autograd, "Autograd")
_library.impl("backward", _backward_autograd, "Autograd")


# ---- the cache

_BATCH = "cu_q", "kv_len", "block_table", "page_indptr", "page_indices", "slots", "slot_mapping"


def _given(batch):
    """The names of the batch's tensors that are given."""
    return tuple(name for name, x in zip(_BATCH, batch) if x is not None)


def _is_code(x: Tensor) -> bool:
    return CODES is not None and x.dtype == CODES


def _dtypes(cache):
    """Of its tensors, which say what the plan is for."""
    return tuple([x.dtype for x in cache])


def _cache_problem(cache, names, kv_len, paged, max_kv, tokens, op, text, x, max_q, index_lse=False):
    stored = lambda name: _abi.NSA_E4M3 if name in names and _is_code(cache[names.index(name)]) else NONE
    return _plan(text, x, **cache_problem(op, cache[names.index("k0")].shape, paged, kv_len.shape[0], max_kv, tokens, max_q,
                                          stored("k0"), stored("k_idx" if "k_idx" in names else "k_cmp"), index_lse))


def _append_op(cache, cache_names, new_kv, extra, names, cu_q, kv_len, block_table, page_indptr, page_indices, slots,
               slot_mapping, max_kv, config):
    first = new_kv[0]
    batch = cu_q, kv_len, block_table, page_indptr, page_indices, slots, slot_mapping
    given = _given(batch)
    key = (APPEND, config, first.device, first.dtype, first.shape, cache[0].shape, _dtypes(cache), cache_names, len(new_kv), names, given,
           kv_len.shape, max_kv)
    run = _entries.get(key)
    if run is None:
        listed = _split(cache_names)
        order = [*_kv_names(new_kv, "new_"), *_split(names), *given, *listed, "workspace"]
        plan = _NO_PLAN if first.shape[0] == 0 else _cache_problem(
            cache, listed, kv_len, _paged(given), max_kv, first.shape[0], _abi.NSA_OP_APPEND, config, first, 0)
        run = _keep(key, Run(APPEND, plan, order, kv_len.shape[0], 0.0, len(order) - 1 - len(listed)))
    if run.handle is None:
        return
    room = torch.empty(run.room, dtype=torch.uint8, device=first.device)
    run((*new_kv, *extra, *_listed(*batch), *cache, room))


def _paged(given):
    return "block_table" in given or "page_indptr" in given or "page_indices" in given


def _attend_outputs(config, q, idx, index_lse):
    """Shapes and dtypes of o, and by name of what a run over a cache returns besides: index_lse is of the blocks in block_idx."""
    o, blocks, saved = _outputs_of(config, q, False, False, 0, index_lse)
    return o, ([("block_idx", *blocks)] if idx or index_lse else []) + saved


def _attend_op(call, op):
    def attend(q, gates, cache, cache_names, extra, names, cu_q, kv_len, block_table, page_indptr, page_indices, slots, max_q,
               max_kv, scale, config, idx=False, index_lse=False):
        batch = cu_q, kv_len, block_table, page_indptr, page_indices, slots
        given = _given(batch)
        key = (call, config, q.device, q.dtype, q.shape, cache[0].shape, _dtypes(cache), cache_names,
               None if gates is None else gates.dtype, names, given, kv_len.shape, max_q, max_kv, scale, idx, index_lse)
        run = _entries.get(key)
        if run is None:
            _need(q, "q", 3)
            listed = _split(cache_names)
            order = ["q", *(["gates"] if gates is not None else []), *_split(names), *given]
            inputs = len(order)
            outputs = _attend_outputs(config, q, idx, index_lse)
            # A model without a selected branch has no blocks.
            order += [*listed, "o", *[None if 0 in shape else name for name, shape, _ in outputs[1]], "workspace"]
            plan = _NO_PLAN if q.shape[0] == 0 else _cache_problem(cache, listed, kv_len, _paged(given), max_kv, q.shape[0],
                                                                    op, config, q, max_q, index_lse)
            run = _keep(key, Run(call, plan, order, kv_len.shape[0], scale, inputs))
            run.outputs = outputs
        o = torch.empty(run.outputs[0][0], dtype=q.dtype, device=q.device)
        more = [torch.empty(shape, dtype=dtype, device=q.device) for _, shape, dtype in run.outputs[1]]
        if run.handle is not None:
            room = torch.empty(run.room, dtype=torch.uint8, device=q.device)
            run((q, *_listed(gates), *extra, *_listed(*batch), *cache, o, *more, room))
        return o, more
    return attend


def _attend_fake(q, gates, cache, cache_names, extra, names, cu_q, kv_len, block_table, page_indptr, page_indices, slots, max_q,
                 max_kv, scale, config, idx=False, index_lse=False):
    o, more = _attend_outputs(config, q, idx, index_lse)
    return q.new_empty(o[0]), [q.new_empty(shape, dtype=dtype) for _, shape, dtype in more]


for _key in "CPU", "CUDA":
    _library.impl("append", _append_op, _key)
    _library.impl("decode", _attend_op(DECODE, _abi.NSA_OP_DECODE), _key)
    _library.impl("prefill", _attend_op(PREFILL, _abi.NSA_OP_PREFILL), _key)
torch.library.register_fake("nsa::append", lambda *args: None, lib=_library)
torch.library.register_fake("nsa::decode", _attend_fake, lib=_library)
torch.library.register_fake("nsa::prefill", _attend_fake, lib=_library)


# ---- functions

KV = Union[Tensor, Sequence[Tensor]]

_dispatch_stack, _function_stack = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_any_autocast, _functorch = torch._C._is_any_autocast_enabled, torch._C._functorch.peek_interpreter_stack


def _undisturbed(q) -> bool:
    """Whether nobody listens to PyTorch's dispatcher, so that a call may go round it."""
    return (type(q) is Tensor and not _dispatch_stack() and not _function_stack() and not _any_autocast() and
            _functorch() is None)


_starts: Dict[tuple, Tensor] = {}


def _equal_starts(count: int, length: int, device) -> Tensor:
    """cu_seqlens of `count` sequences of the same length, made once."""
    if torch.compiler.is_compiling():
        return torch.arange(0, (count + 1) * length, max(length, 1), dtype=torch.int32, device=device)[:count + 1]
    key = count, length, device
    found = _starts.get(key)
    if found is None:
        if len(_starts) >= 256:
            _starts.clear()
        found = _starts[key] = torch.arange(count + 1, dtype=torch.int32, device=device) * length
    return found


def _int32(x: Tensor, name: str) -> Tensor:
    if x.dtype == torch.int32:
        return x
    if x.dtype != torch.int64:
        raise TypeError(f"{name} has the dtype {x.dtype}; it is int32 or int64")
    return x.to(torch.int32)


def _pairs(k: KV, v: KV, config: Config) -> List[Tensor]:
    if isinstance(k, Tensor) and isinstance(v, Tensor):
        pairs = [k, v]
    else:
        if isinstance(k, Tensor) or isinstance(v, Tensor) or len(k) != 3 or len(v) != 3:
            raise ValueError("k and v are one tensor each, or three each: of the compressed, the selected and the window branch")
        pairs = [k[0], v[0], k[1], v[1], k[2], v[2]]
    if (len(pairs) == 2) != (config.kv_sharing == "shared"):
        raise ValueError(f"kv_sharing is \"{config.kv_sharing}\", but there are {len(pairs) // 2} pairs of k and v")
    return pairs


def _branch_bits(branches) -> int:
    unknown = [name for name in branches if name not in BRANCHES]
    if unknown or not branches:
        raise ValueError(f"branches is {list(branches)!r}; it is at least one of {', '.join(BRANCHES)}")
    return sum(BRANCHES[name] for name in set(branches))


def _named(weights) -> Tuple[str, List[Tensor]]:
    if not weights:
        return "", []
    unknown = [name for name in weights if name not in EXTRA]
    if unknown:
        raise ValueError(f"weights has no {', '.join(unknown)}; the names are {', '.join(EXTRA)}")
    return ",".join(weights), list(weights.values())


def _with_index(names: str, extra: Sequence[Tensor], **index: Optional[Tensor]) -> Tuple[str, List[Tensor]]:
    """The tensors of an index behind the weights; detached: what they choose has no gradient."""
    given = {name: x.detach() for name, x in index.items() if x is not None}
    return ",".join([*_split(names), *given]), [*extra, *given.values()]


def _selected_lse(text: str, q: Tensor, save: bool, branches: int, saved: Sequence[Tensor]) -> Tensor:
    names = [name for name, *_ in _outputs_of(text, q, False, save, branches)[2]]
    if "lse1" not in names:
        raise ValueError("return_lse is of the selected branch, which does not run: select.count is 0, or branches leaves it out")
    return saved[names.index("lse1")]


def _check_index_lse(config: Config) -> None:
    if config.index is None:
        raise ValueError("return_index_lse is of an index, and the configuration has none: give config index and select.by")


def attention(q: Tensor, k: KV, v: KV, gates: Optional[Tensor] = None, *, config: Config, cu_seqlens: Optional[Tensor] = None,
              cu_seqlens_k: Optional[Tensor] = None, max_seqlen: Optional[int] = None, scale: Optional[float] = None,
              weights: Optional[Dict[str, Tensor]] = None, block_indices: Optional[Tensor] = None,
              return_indices: bool = False, branches: Optional[Sequence[str]] = None, index_q: Optional[Tensor] = None,
              k_idx: Optional[Tensor] = None, return_lse: bool = False,
              return_index_lse: bool = False) -> Union[Tensor, Tuple[Tensor, ...]]:
    """Native Sparse Attention, causal: the gated sum over compressed tokens, selected blocks and a window.

    q              [T, Hq, Dk], or [B, T, Hq, Dk]: B sequences of one length. bfloat16 or float16; float32 on
                   the CPU
    k, v           [S, Hkv, Dk] and [S, Hkv, Dv], or [B, S, ...]; with kv_sharing "per_branch" three of each:
                   of the compressed, the selected and the window branch. With S > T the queries are the last
                   T positions
    gates          [T, Hq, 3] or [B, T, Hq, 3], in q's dtype or float32: logits or weights of the compressed,
                   the selected and the window branch (config.gate); None with gate "mlp" or "none"
    cu_seqlens     int32 or int64 [N + 1]: sequence i has the rows cu_seqlens[i] to cu_seqlens[i + 1] - 1 of
                   q; its last element is T
    cu_seqlens_k   the same of k and v [cu_seqlens]
    max_seqlen     keys of the longest sequence, at most [S]: a smaller bound needs less memory
    scale          of the softmax [Dk^-1/2]
    weights        of phi and the gate MLP: {"phi.k.w": ..., "gate.x": ...}, shapes in nsa/attention.h;
                   with phi "external" "k_cmp" and "v_cmp"
    block_indices  int32 [T, Hkv, n] or [T, n] (with B in front of them): these blocks are read, and none is
                   selected; -1 is skipped
    return_indices also returns the blocks that were selected, int32 [T, Hkv, n], ascending, then -1
    branches       those that run, of "compressed", "selected", "window"; gates of others count as 0 [all]
    index_q, k_idx queries and keys of an index that chooses the blocks (config.index): [T, Hi, Di] and
                   [S, 1, Di], or with B in front of them. No gradient goes into them: `index_kl` has theirs
    return_lse     also returns, behind the blocks, the log-sum-exp of the selected branch, float32 [T, Hq], without a
                   gradient
    return_index_lse  also returns, last, the log-sum-exp of the index over the tokens that a query sees of the chosen
                   blocks, float32 [T, Hi], without a gradient; -inf where it sees none

    Returns o [T, Hq, Dv] (or [B, T, ...]) in q's dtype. Differentiable in q, k, v, gates and weights, once.
    Works under torch.compile(fullgraph=True), autocast, checkpointing, inference_mode and CUDA graphs; the
    first call of a shape compiles kernels, so run it once before a capture.
    """
    if not isinstance(config, Config):
        raise TypeError(f"config is a {type(config).__name__}; it is an nsa.Config: Config.from_dict and from_yaml make one")
    if not isinstance(q, Tensor):
        raise TypeError(f"q is a {type(q).__name__}; it is a torch.Tensor")
    if gates is None and config.gate in ("logits", "weights"):
        raise ArgumentError(f"gates is missing: config.gate is \"{config.gate}\"; give [T, Hq, 3], or make the config "
                            "with gate=\"none\"", _abi.NSA_E_ARG, "NSA_E_ARG")
    batched = q.dim() == 4
    pairs = _pairs(k, v, config)
    names, extra = _named(weights) if weights else ("", ())
    if index_q is not None or k_idx is not None:
        flat = lambda x: x.flatten(0, 1) if batched and x is not None else x
        names, extra = _with_index(names, extra, index_q=flat(index_q), k_idx=flat(k_idx))
    if batched:
        if cu_seqlens is not None or cu_seqlens_k is not None:
            raise ValueError("q has a batch dimension, so there is no cu_seqlens: packed sequences are [T, H, D]")
        count, length, keys = q.shape[0], q.shape[1], pairs[0].shape[1]
        q, pairs = q.flatten(0, 1), [x.flatten(0, 1) for x in pairs]
        gates = None if gates is None else gates.flatten(0, 1)
        block_indices = None if block_indices is None else block_indices.flatten(0, 1)
        if count != 1:
            cu_seqlens = _equal_starts(count, length, q.device)
            cu_seqlens_k = None if keys == length else _equal_starts(count, keys, q.device)
        max_seqlen = keys if max_seqlen is None else max_seqlen
    cu_q = None if cu_seqlens is None else _int32(cu_seqlens, "cu_seqlens")
    cu_kv = None if cu_seqlens_k is None else _int32(cu_seqlens_k, "cu_seqlens_k")
    if block_indices is not None and block_indices.dtype != torch.int32:
        block_indices = _int32(block_indices, "block_indices")
    text, max_kv, scale = config.text, max_seqlen or 0, scale or 0.0
    if return_index_lse:
        _check_index_lse(config)
    save = return_lse or config.saves_outputs and torch.is_grad_enabled()
    branches = _branch_bits(branches) if branches is not None else 0
    if not torch.compiler.is_compiling() and _undisturbed(q):
        tensors = (q, *pairs, gates, *extra) if gates is not None else (q, *pairs, *extra)
        if _requires_grad(tensors):
            want_idx = return_indices or return_lse or return_index_lse
            meta = len(pairs), int(gates is not None), names, max_kv, scale, text, save, branches, return_index_lse, True, want_idx
            o = _apply(meta, (cu_q, cu_kv, block_indices), *tensors)
            idx = None
            if want_idx:
                o, idx, *saved = o
        else:
            o, idx, saved = _forward_raw(q, pairs, gates, extra, names, cu_q, cu_kv, block_indices, max_kv, scale, text,
                                         return_lse, branches, return_index_lse, return_indices or return_index_lse)
    else:
        o, idx, saved = torch.ops.nsa.forward.default(q, pairs, gates, list(extra), names, cu_q, cu_kv, block_indices, max_kv, scale,
                                                  text, save, branches, return_index_lse)
    if batched:
        o = o.unflatten(0, (count, length))
        idx = idx.unflatten(0, (count, length)) if idx is not None and idx.dim() == 3 else idx
    lses = [_selected_lse(text, q, save, branches, saved)] if return_lse else []
    if return_index_lse:
        lses.append(saved[-1])
    if batched:
        lses = [lse.unflatten(0, (count, length)) for lse in lses]
    if not return_indices:
        return (o, *lses) if lses else o
    if block_indices is not None:
        idx = block_indices.unflatten(0, (count, length)) if batched else block_indices
    return (o, idx, *lses)


def append(cache: Dict[str, Tensor], k: KV, v: KV, *, config: Config, kv_len: Tensor, max_kv: int,
           block_table: Optional[Tensor] = None, page_indptr: Optional[Tensor] = None, page_indices: Optional[Tensor] = None,
           slots: Optional[Tensor] = None, cu_seqlens: Optional[Tensor] = None, slot_mapping: Optional[Tensor] = None,
           weights: Optional[Dict[str, Tensor]] = None, k_idx: Optional[Tensor] = None) -> None:
    """Writes K and V of new tokens into a cache, and every compressed entry that they complete.

    cache         {"k0": [N, P, Hkv, Dk], "v0": [N, P, Hkv, Dv], "k_cmp": [N, P/d, Hkv, Dk], "v_cmp": ...}:
                  N pages of P tokens, or without pages N rows. Per branch also k1, v1, k2, v2. In FP8
                  (torch.float8_e4m3fn) k0, v0 ..., or k_cmp and v_cmp, or all, with their scales, float32 [1] or
                  [Hkv]: k0_scale, v0_scale, ... [1], k_cmp_scale [k0_scale], v_cmp_scale [v0_scale]
                  With a select.normalizer of stride s also k_norm [N, P/s, Hkv, Dk], in k's dtype. With an index
                  k_idx [N, P, 1, Di] in the place of k_cmp and v_cmp, in k's dtype or in FP8 with k_idx_scale [1]
    k, v          [T, Hkv, Dk], [T, Hkv, Dv] of the new tokens
    kv_len        int32 [sequences]: the length of each, the new tokens included; 0: a padded row
    max_kv        the longest that any of them can be in this plan
    block_table   int32 [sequences, any]: the pages of each sequence. Instead of this table, two lists:
    page_indptr   int32 [sequences + 1], ascending from 0: where a sequence's pages begin in page_indices
    page_indices  int32 [any]: the pages of all sequences
    slots         int32 [sequences]: the row of each sequence in a cache without pages
    cu_seqlens    int32 [sequences + 1]: of the rows of k [all have T / sequences]
    slot_mapping  int64 [T]: page * P + offset of each token, -1: not written
    k_idx         [T, 1, Di]: index keys of the new tokens, where the configuration has an index
    """
    names, extra = _with_index(*_named(weights), new_k_idx=k_idx)
    torch.ops.nsa.append.default(list(cache.values()), ",".join(cache), _pairs(k, v, config), extra, names, cu_seqlens, kv_len,
                                 block_table, page_indptr, page_indices, slots, slot_mapping, max_kv, config.text)


def _attend(op, q, gates, cache, config, kv_len, max_q, max_kv, pages, slots, cu_seqlens, scale, weights, index_q, return_indices,
            return_index_lse):
    names, extra = _with_index(*_named(weights), index_q=index_q)
    if return_index_lse:
        _check_index_lse(config)
    o, more = op(q, gates, list(cache.values()), ",".join(cache), extra, names, cu_seqlens, kv_len, *pages, slots, max_q, max_kv,
                 scale or 0.0, config.text, return_indices, return_index_lse)
    if return_index_lse and not return_indices:
        more = more[1:]
    return (o, *more) if more else o


def decode(q: Tensor, cache: Dict[str, Tensor], gates: Optional[Tensor] = None, *, config: Config, kv_len: Tensor, max_kv: int,
           max_q: int = 1, block_table: Optional[Tensor] = None, page_indptr: Optional[Tensor] = None,
           page_indices: Optional[Tensor] = None, slots: Optional[Tensor] = None, cu_seqlens: Optional[Tensor] = None,
           scale: Optional[float] = None, weights: Optional[Dict[str, Tensor]] = None, index_q: Optional[Tensor] = None,
           return_indices: bool = False, return_index_lse: bool = False) -> Union[Tensor, Tuple[Tensor, ...]]:
    """Attention of 1 to 16 new tokens of each sequence over the cache, to which `append` has added them.

    max_q: new tokens of a sequence, at most. index_q: [T, Hi, Di], where the configuration has an index. The rest, and what
    return_indices and return_index_lse add to the result, as of `append` and `attention`. Returns o [T, Hq, Dv].
    """
    return _attend(torch.ops.nsa.decode.default, q, gates, cache, config, kv_len, max_q, max_kv,
                   (block_table, page_indptr, page_indices), slots, cu_seqlens, scale, weights, index_q, return_indices,
                   return_index_lse)


def prefill(q: Tensor, cache: Dict[str, Tensor], gates: Optional[Tensor] = None, *, config: Config, kv_len: Tensor,
            max_kv: int, max_q: int, block_table: Optional[Tensor] = None, page_indptr: Optional[Tensor] = None,
            page_indices: Optional[Tensor] = None, slots: Optional[Tensor] = None, cu_seqlens: Optional[Tensor] = None,
            scale: Optional[float] = None, weights: Optional[Dict[str, Tensor]] = None, index_q: Optional[Tensor] = None,
            return_indices: bool = False, return_index_lse: bool = False) -> Union[Tensor, Tuple[Tensor, ...]]:
    """`decode` for any number of new tokens of a sequence: chunks of prompts, beside sequences that decode."""
    return _attend(torch.ops.nsa.prefill.default, q, gates, cache, config, kv_len, max_q, max_kv,
                   (block_table, page_indptr, page_indices), slots, cu_seqlens, scale, weights, index_q, return_indices,
                   return_index_lse)

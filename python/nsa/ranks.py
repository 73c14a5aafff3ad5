# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""One sequence, or one pack of sequences, over several GPUs, with torch.distributed. docs/ranks.md explains it.

    shard = nsa.ranks.Shard(config, [131072], ranks=dist.get_world_size())   # the same on every rank
    comm = nsa.ranks.Comm()                                                  # of the default group
    q, k, v, gates = (shard.take(x, comm.rank) for x in (q, k, v, gates))    # this rank's rows
    o = nsa.ranks.attention(q, k, v, gates, config=config, shard=shard, comm=comm)

`KVCache` is a cache whose raw tokens are divided among ranks.
"""
from __future__ import annotations

import contextlib
import ctypes as C
import datetime
import os
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor

from . import _abi
from ._config import Config
from ._library import BACKWARD, DONE, FORWARD, RanksError, check, last_error, lib, round_up, round_up_few
from ._places import INDEX
from ._torch import (KV, Run, _branch_bits, _context_of, _int32, _kv_names, _listed, _named, _need, _nothing, _outputs_of,
                     _pairs, _requires_grad, _selection_of, _split, _with_index)
from .ranks_cache import KVCache  # noqa: F401 - nsa.ranks.KVCache

LAYOUTS = {"zigzag": _abi.NSA_SHARD_ZIGZAG, "contiguous": _abi.NSA_SHARD_CONTIGUOUS}
MOST_AGREED = 128  # pairs of plan and shard; an nsa_comm remembers 256 of each
AGREE_MS = 600_000  # kernels are compiled before ranks compare what they run, and ranks need not be equally fast


class Piece(NamedTuple):
    """Successive tokens of one sequence on one rank."""
    rank: int
    sequence: int
    begin: int
    length: int


class Shard:
    """Which rank holds which tokens. Immutable. Every rank makes the same.

    config     of the model: pieces begin where its blocks and its kernels' tiles do
    lengths    tokens of each sequence
    ranks      their number
    layout     "zigzag": each rank has equal work; "contiguous": equal pieces in order; or a list of pieces, as
               (rank, sequence, begin, length), that covers each token once
    alignment  begins of pieces are multiples of it [with which results are those of one GPU, bit for bit]
    """

    def __init__(self, config: Config, lengths: Sequence[int], ranks: int,
                 layout: Union[str, Sequence[Tuple[int, int, int, int]]] = "zigzag", alignment: int = 0):
        if isinstance(layout, str) and layout not in LAYOUTS:
            raise ValueError(f"layout is {layout!r}; it is one of {', '.join(LAYOUTS)}, or a list of pieces")
        self.lengths, self.ranks, self.config = tuple(int(n) for n in lengths), ranks, config
        options = _abi.nsa_shard_options(struct_size=C.sizeof(_abi.nsa_shard_options), ranks=ranks,
                                         num_seqs=len(self.lengths), alignment=alignment)
        options.lengths = (C.c_int64 * max(len(self.lengths), 1))(*self.lengths)
        if isinstance(layout, str):
            options.layout = LAYOUTS[layout]
        else:
            options.layout, options.given_count = _abi.NSA_SHARD_GIVEN, len(layout)
            options.given = (_abi.nsa_piece * max(len(layout), 1))(*[_abi.nsa_piece(*piece) for piece in layout])
        self.handle = C.c_void_p()
        # Begins of pieces follow from the model, whatever the device and the type of numbers.
        check(lib.nsa_shard_create(config.context("cpu", "f32").handle, C.byref(options), C.byref(self.handle)))
        self.max_pieces, self._pieces = lib.nsa_shard_max_pieces(self.handle), [self._read(r) for r in range(ranks)]
        self._starts = [0]
        for length in self.lengths:
            self._starts.append(self._starts[-1] + length)

    def _read(self, rank: int) -> List[Piece]:
        first, count = C.POINTER(_abi.nsa_piece)(), C.c_int32()
        check(lib.nsa_shard_pieces(self.handle, rank, C.byref(first), C.byref(count)))
        return [Piece(p.rank, p.sequence, p.begin, p.length) for p in first[:count.value]]

    def __del__(self):
        handle, self.handle = getattr(self, "handle", None), None
        if handle and lib is not None:
            lib.nsa_shard_destroy(handle)

    def pieces(self, rank: int) -> List[Piece]:
        """The pieces of a rank, in the order of its rows."""
        return list(self._pieces[rank])

    def tokens(self, rank: int) -> int:
        """The rows of a rank; of -1 the largest number of any."""
        return lib.nsa_shard_tokens(self.handle, rank)

    @property
    def total(self) -> int:
        """The tokens of all sequences."""
        return self._starts[-1]

    def rows(self, rank: int, device=None) -> Tensor:
        """int64: the rows of the whole pack [total, ...] that are this rank's."""
        return self._ranges(rank, [self._starts[p.sequence] for p in self._pieces[rank]], device)

    def positions(self, rank: int, device=None) -> Tensor:
        """int64: the position of each of the rank's rows in its sequence, as rotary embeddings need it."""
        return self._ranges(rank, [0] * len(self._pieces[rank]), device)

    def _ranges(self, rank, starts, device):
        ranges = [torch.arange(s + p.begin, s + p.begin + p.length, device=device) for s, p in zip(starts, self._pieces[rank])]
        return torch.cat(ranges) if ranges else torch.empty(0, dtype=torch.int64, device=device)

    def take(self, x: Tensor, rank: int) -> Tensor:
        """The rank's rows of x [total, ...], contiguous."""
        if x.shape[0] != self.total:
            raise ValueError(f"x has {x.shape[0]} rows; all sequences have {self.total}")
        return x.index_select(0, self.rows(rank, x.device))

    def put(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse of take: x [total, ...] of the rows of all ranks."""
        whole = parts[0].new_empty(self.total, *parts[0].shape[1:])
        for rank, part in enumerate(parts):
            whole[self.rows(rank, part.device)] = part
        return whole


# ---- communicators

def _view(part) -> Tensor:
    """Bytes of host memory."""
    return torch.frombuffer((C.c_uint8 * part.bytes).from_address(part.data), dtype=torch.uint8)


class _Table:
    """The transport of a group without NCCL, on the CPU device: sends and receives of torch.distributed."""

    def __init__(self, group, rank, size, timeout):
        self.group, self.rank, self.timeout, self.error = group, rank, timeout, None
        self.peers = [dist.get_global_rank(group, r) for r in range(size)]
        kind = dict(_abi.nsa_comm_ops._fields_)["exchange"]
        self.function = kind(self._exchange)  # which must outlive the communicator
        self.ops = _abi.nsa_comm_ops(struct_size=C.sizeof(_abi.nsa_comm_ops), rank=rank, size=size,
                                     user=C.addressof(self.function), exchange=C.cast(lib.nsapy_exchange, kind))

    @contextlib.contextmanager
    def patient(self, milliseconds):
        """Within it exchanges wait so long."""
        usual, self.timeout = self.timeout, datetime.timedelta(milliseconds=milliseconds)
        try:
            yield
        finally:
            self.timeout = usual

    def _exchange(self, _user, send, sends, recv, recvs, _stream):
        try:
            self._move([send[i] for i in range(sends)], [recv[i] for i in range(recvs)])
            return DONE
        except BaseException as error:  # it must not pass through C; Comm._failed raises it
            self.error = error
            return 0

    def _move(self, send, recv):
        works = []
        for parts, start in ((recv, dist.irecv), (send, dist.isend)):
            counts: Dict[int, int] = {}  # a tag for each part between two ranks: they arrive as they were sent
            for part in parts:
                tag = counts[part.rank] = counts.get(part.rank, 0) + 1
                works.append(start(_view(part), self.peers[part.rank], group=self.group, tag=tag))
        for work in works:
            work.wait(self.timeout)


class Comm:
    """One rank's end of a communicator over a group of torch.distributed. Every rank makes it, with the same arguments.

    group       [the default group]. With NCCL tensors are on "cuda"; with any other backend on "cpu"
    timeout     seconds after which a rank that does not answer is given up
    own         with NCCL: a communicator of libnsa's own, which it can abort; False: the group's
    host_ranks  successive ranks that share a host, a divisor of their number [found]; their number: one host,
                whatever they run on
    peer_bytes  largest message of a rank that small gathers, as of a decode step, move through memory which the ranks of one
                host map of each other, beside the group; -1: none [none]
    overlap_sms multiprocessors that a forward leaves to NCCL, a power of two, so that K and V travel while it computes [0: they
                travel first, which is faster inside one host]. NCCL then takes no more with own=True; else limit the group's
                (maxCTAs)
    copy_bytes  device memory through which the ranks of one host exchange K and V by copy engines, in the place of NCCL: of K, V
                and compressed entries of all ranks, in a backward pass also of sums. A forward then overlaps and leaves no
                multiprocessor free [0: NCCL]

    Runs are enqueued on the current stream, in the same order on every rank. After a RanksError it is of no more use, unless
    ranks disagree; with own=False the host then aborts the group's NCCL communicator.
    """

    def __init__(self, group=None, *, timeout: float = 60.0, own: bool = False, host_ranks: int = 0, peer_bytes: int = 0,
                 overlap_sms: int = 0, copy_bytes: int = 0):
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.size, self.timeout, self.own = dist.get_rank(self.group), dist.get_world_size(self.group), timeout, own
        self.device_type = "cuda" if "nccl" in dist.get_backend(self.group) else "cpu"
        self.options = _abi.nsa_comm_options(struct_size=C.sizeof(_abi.nsa_comm_options), timeout_ms=max(1, int(1000 * timeout)),
                                             host_ranks=host_ranks, peer_bytes=peer_bytes, overlap_sms=overlap_sms,
                                             copy_bytes=copy_bytes)
        self.table: Optional[_Table] = None
        self._process = os.getpid()  # a child of fork() inherits no communicator
        self._handles: Dict[object, C.c_void_p] = {}
        self._agreed: Dict[tuple, object] = {}
        self._runs: Dict[tuple, tuple] = {}

    def handle(self, context) -> C.c_void_p:
        """The nsa_comm of a context, made once. Every rank asks for it at the same point of its program."""
        found = self._handles.get(context)
        if found is None:
            found = self._handles[context] = self._make(context)
        return found

    def _make(self, context):
        handle = C.c_void_p()
        if self.device_type == "cpu":
            if self.table is None:
                self.table = _Table(self.group, self.rank, self.size, datetime.timedelta(seconds=self.timeout))
            check(lib.nsa_comm_create(context.handle, C.byref(self.table.ops), C.byref(self.options), C.byref(handle)))
            return handle
        pointer = None if self.own else self._group_pointer()
        if pointer:
            check(lib.nsa_comm_nccl(context.handle, pointer, C.byref(self.options), C.byref(handle)))
            return handle
        nccl_id = C.create_string_buffer(128)
        if self.rank == 0:
            check(lib.nsa_comm_nccl_id(context.handle, nccl_id))
        told = [nccl_id.raw]
        dist.broadcast_object_list(told, src=dist.get_global_rank(self.group, 0), group=self.group)
        nccl_id.raw = told[0]
        check(lib.nsa_comm_nccl_init(context.handle, nccl_id, self.rank, self.size, C.byref(self.options), C.byref(handle)))
        return handle

    def _group_pointer(self) -> Optional[int]:
        """The group's ncclComm_t of the current GPU; None: this PyTorch does not tell."""
        device = torch.device("cuda", torch.cuda.current_device())
        backend = self.group._get_backend(device)
        if not hasattr(backend, "_comm_ptr"):
            return None
        dist.all_reduce(torch.zeros(1, device=device), group=self.group)  # which makes it, if none was made yet
        torch.cuda.current_stream().synchronize()
        return backend._comm_ptr() or None

    def agree(self, context, plan, shard: Optional[Shard]) -> None:
        """Compares with the other ranks what is about to run. Blocking. A pair of plan and shard that is known is not compared
        again, until all are forgotten: on every rank at the same call, and before the nsa_comm forgets its oldest. Steps of a cache have
        no shard."""
        shard_handle = shard.handle if shard is not None else None
        key = plan.handle.value, shard.handle.value if shard is not None else None
        if key in self._agreed:
            return
        if len(self._agreed) >= MOST_AGREED:
            self._runs.clear()
            self._agreed.clear()
        plans, handle = (C.c_void_p * 1)(plan.handle), self.handle(context)
        patience = max(AGREE_MS, self.options.timeout_ms)
        with self.table.patient(patience) if self.table else _nothing:
            self._check(lib.nsa_comm_agree(handle, plans, 1, shard_handle, patience))
        self._agreed[key] = plan, shard  # which keeps both, so that nothing else gets their addresses

    def _check(self, status):
        try:
            check(status)
        except RanksError as error:
            self._failed(error)

    def _failed(self, error: RanksError):
        """Raises it. What a function of the table raised is its cause; Ctrl-C and the like are raised themselves."""
        cause = self.table.error if self.table else None
        if cause is not None and not isinstance(cause, Exception):
            self.table.error = None
            raise cause
        raise error from cause

    def check(self) -> None:
        """Raises RanksError if a rank is lost. Never waits. Any thread may call it."""
        self._check_all(lib.nsa_comm_check)

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits for the current stream as torch.cuda.synchronize does, but raises RanksError when a rank is lost."""
        stream = torch.cuda.current_stream().cuda_stream if self.device_type == "cuda" else None
        milliseconds = 0 if timeout is None else max(1, int(1000 * timeout))
        self._check_all(lambda handle: lib.nsa_comm_wait(handle, stream, milliseconds))

    def _check_all(self, function):
        """Calls it with the communicator of each context. After the first error the rest are checked, without a wait: each is
        aborted on its own."""
        first = None
        for handle in list(self._handles.values()):
            status = (lib.nsa_comm_check if first else function)(handle)
            if status and first is None:
                first = last_error(status)
        if isinstance(first, RanksError):
            self._failed(first)
        if first is not None:
            raise first

    def close(self) -> None:
        """Destroys the communicator: before the group goes, and when its runs have finished. With peer memory all ranks call
        it together, because they wait for each other, at most for the timeout."""
        handles, self._handles = getattr(self, "_handles", {}), {}
        if handles and lib is not None and os.getpid() == self._process:
            for handle in handles.values():
                lib.nsa_comm_destroy(handle)
        self._runs, self._agreed = {}, {}

    def __del__(self):
        self.close()


# ---- attention

def _run_of(comm, key, shard, q, text, op, call, order, inputs, scale, branches, selection):
    """The plan of a call, agreed upon, and how to run it; both are kept."""
    found = comm._runs.get(key)
    if found is not None and found[1] is shard:
        return found[0]
    context = _context_of(text, q)
    longest = round_up(max(shard.lengths, default=1) or 1)
    fields = dict(op=op, ranks=shard.ranks, max_pieces=round_up_few(max(shard.max_pieces, 1)),
                  max_tokens=round_up(max(shard.tokens(-1), 1)), max_kv_tokens=max(round_up(max(shard.total, 1)), longest),
                  max_kv_len=longest, max_seqs=round_up_few(max(len(shard.lengths), 1)), selection=selection,
                  overlap=_abi.NSA_OVERLAP_HIGH)
    with torch.cuda.device(q.device) if q.is_cuda else _nothing:
        plan = context.plan(**fields)
        comm.agree(context, plan, shard)
    run = Run(call, plan, order, max(len(shard.lengths), 1), scale, inputs, branches, comm.handle(context), shard.handle)
    if len(comm._runs) >= 1024:
        comm._runs.clear()
    comm._runs[key] = run, shard
    return run


def _call(comm: Comm, run: Run, tensors: Tuple[Tensor, ...]) -> None:
    try:
        if tensors[0].shape[0]:
            run(tensors)
        else:
            check(run.without_exchange(tensors))  # a rank without tokens takes part like any other
    except RanksError as error:
        comm._failed(error)


class _Attention(torch.autograd.Function):
    """meta: (len(kv), gates there, names, scale, config, branches, shard, comm); block_idx: given, or None."""

    @staticmethod
    def forward(ctx, meta, block_idx, *tensors):
        count, gated, names, scale, config, branches, shard, comm = meta
        q, kv = tensors[0], tensors[1:1 + count]
        gates, extra = tensors[1 + count] if gated else None, tensors[1 + count + gated:]
        o, idx = _forward(q, kv, gates, extra, names, block_idx, scale, config, branches, shard, comm)
        ctx.meta = meta
        dropped = sum(name in INDEX for name in _split(names))
        ctx.save_for_backward(block_idx, idx, *tensors[:len(tensors) - dropped])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(idx)
        return o, idx

    @staticmethod
    def backward(ctx, d_o, _):
        count, gated, names, scale, config, branches, shard, comm = ctx.meta
        block_idx, idx, *tensors = ctx.saved_tensors
        dropped = sum(name in INDEX for name in _split(names))
        needs = list(ctx.needs_input_grad[2:2 + len(tensors)])
        if not any(needs):
            return (None,) * (2 + len(needs) + dropped)
        if d_o is None:  # of a rank whose output nobody used: the others wait for its part
            d_o = torch.zeros_like(tensors[0][..., :1]).expand(-1, -1, config.head_dim_v).contiguous()
        grads = _backward(d_o, tensors, count, gated, _split(names)[:len(_split(names)) - dropped], block_idx, idx, scale,
                          config, branches, shard, comm, needs)
        return (None, None, *grads, *[None] * dropped)


def _forward(q, kv, gates, extra, names, block_idx, scale, config, branches, shard, comm):
    text = config.text
    order = ["q", *_kv_names(kv), *(["gates"] if gates is not None else []), *_split(names)]
    tensors = [q, *kv, *_listed(gates), *extra]
    if block_idx is not None:
        order.append("block_idx")
        tensors.append(block_idx)
    (o_shape, o_dtype), (idx_shape, idx_dtype), _ = _outputs_of(text, q, block_idx is not None, False, branches)
    o = torch.empty(o_shape, dtype=o_dtype, device=q.device)
    idx = torch.empty(idx_shape, dtype=idx_dtype, device=q.device)
    key = (FORWARD, text, q.device, tuple(order), tuple((x.shape, x.dtype) for x in tensors), id(shard), scale, branches)
    inputs = len(order)
    order += ["o", "block_idx" if idx_shape != (0,) else None, "workspace"]
    run = _run_of(comm, key, shard, q, text, _abi.NSA_OP_FORWARD, FORWARD, order, inputs, scale, branches,
                  _selection_of(block_idx))
    room = torch.empty(run.room, dtype=torch.uint8, device=q.device)
    _call(comm, run, (*tensors, o, idx, room))
    return o, idx


def _backward(d_o, tensors, count, gated, names, block_idx, idx, scale, config, branches, shard, comm, needs):
    text, chosen = config.text, idx if block_idx is None else block_idx
    order = ["q", *_kv_names(tensors[1:1 + count]), *(["gates"] if gated else []), *names]
    wanted = ["d_" + name for name, need in zip(order, needs) if need]
    grads = [torch.empty(x.shape, dtype=x.dtype, device=x.device) if need else None for x, need in zip(tensors, needs)]
    d_o = d_o.to(tensors[0].dtype)
    key = (BACKWARD, text, d_o.device, tuple(order), tuple((x.shape, x.dtype) for x in tensors), chosen.shape, tuple(needs),
           id(shard), scale, branches)
    order += ["block_idx" if chosen.dim() > 1 else None, "d_o"]
    inputs = len(order)
    order += [*wanted, "workspace"]
    run = _run_of(comm, key, shard, tensors[0], text, _abi.NSA_OP_BACKWARD, BACKWARD, order, inputs, scale, branches,
                  _selection_of(block_idx))
    room = torch.empty(run.room, dtype=torch.uint8, device=d_o.device)
    _call(comm, run, (*tensors, chosen, d_o, *[g for g in grads if g is not None], room))
    return grads


def attention(q: Tensor, k: KV, v: KV, gates: Optional[Tensor] = None, *, config: Config, shard: Shard, comm: Comm,
              scale: Optional[float] = None, weights: Optional[Dict[str, Tensor]] = None,
              block_indices: Optional[Tensor] = None, return_indices: bool = False,
              branches: Optional[Sequence[str]] = None, index_q: Optional[Tensor] = None,
              k_idx: Optional[Tensor] = None) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """`nsa.attention` over the tokens of all ranks. Every rank calls it, with its own rows, in the same order of calls.

    q, k, v, gates  [T, ...], T = shard.tokens(comm.rank): this rank's rows, in the order of its pieces, and so are
                    weights["gate.x"], block_indices, index_q and k_idx. All else is as in `nsa.attention`

    Returns o [T, Hq, Dv] of this rank's rows, with return_indices also the selected blocks. Differentiable in q, k, v,
    gates and weights, once; every rank calls backward. The gradients of q, k, v, gates and gate.x are whole. Those of the
    weights of phi and of the gate MLP are partial sums over this rank's tokens: add them over the ranks together with those
    of the model's other weights (a sum, not a mean). The first call of a shape compiles kernels and waits for all ranks.
    """
    _need(q, "q", 3)
    if shard.ranks != comm.size:
        raise ValueError(f"shard has {shard.ranks} ranks, comm {comm.size}")
    if q.device.type != comm.device_type:
        raise ValueError(f"q is on {q.device}; the group's backend is for tensors on \"{comm.device_type}\"")
    if q.shape[0] != shard.tokens(comm.rank):
        raise ValueError(f"q has {q.shape[0]} rows; rank {comm.rank} has {shard.tokens(comm.rank)} tokens of the shard")
    pairs = _pairs(k, v, config)
    names, extra = _named(weights) if weights else ("", [])
    if index_q is not None or k_idx is not None:
        names, extra = _with_index(names, extra, index_q=index_q, k_idx=k_idx)
    if block_indices is not None:
        block_indices = _int32(block_indices, "block_indices")
    bits = _branch_bits(branches) if branches is not None else 0
    tensors = (q, *pairs, *_listed(gates), *extra)
    if _requires_grad(tensors):
        meta = len(pairs), int(gates is not None), names, scale or 0.0, config, bits, shard, comm
        o, idx = _Attention.apply(meta, block_indices, *tensors)
    else:
        o, idx = _forward(q, pairs, gates, extra, names, block_indices, scale or 0.0, config, bits, shard, comm)
    if not return_indices:
        return o
    return o, block_indices if block_indices is not None else idx

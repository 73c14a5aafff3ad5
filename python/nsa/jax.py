# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""JAX: attention as a custom call of XLA, with its gradient.

    import jax, nsa.jax
    o = jax.jit(lambda q, k, v, gates: nsa.jax.attention(q, k, v, gates, config=config))(q, k, v, gates)

A compiled program holds the configuration and capacities, no address, so that JAX may keep it on disk.
Kernels are compiled when a function is traced. vmap runs one call after the other.
"""
from __future__ import annotations

import ctypes as C
import functools
from typing import Dict, NamedTuple, Optional, Sequence, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np

from . import _abi
from ._config import Config
from ._library import BACKWARD, FORWARD, UNUSED, WORKSPACE, last_error, offset_of, round_up, round_up_few, shim

Array = jax.Array
BRANCHES = {"compressed": 1, "selected": 2, "window": 4}
DTYPES = {jnp.dtype(jnp.bfloat16): _abi.NSA_BF16, jnp.dtype(jnp.float16): _abi.NSA_F16, jnp.dtype(jnp.float32): _abi.NSA_F32}
PHI = [f"phi.{side}.{part}" for side in "kv" for part in ("pe", "w", "w1", "b1", "w2", "b2")]
GATE = ["gate.x", "gate.w1", "gate.b1", "gate.w2", "gate.b2"]
PLACES = {"q": "io.q", "o": "io.o", "gates": "io.gate.value", "block_idx": "io.block_idx", "cu_q": "batch.cu_q",
          "cu_kv": "batch.cu_kv", "k_cmp": "io.kv.k_cmp", "v_cmp": "io.kv.v_cmp", "d_o": "grads.d_o", "d_q": "grads.d_q",
          "d_gates": "grads.d_gate.value", "d_k_cmp": "grads.d_kv.k_cmp", "d_v_cmp": "grads.d_kv.v_cmp"}
PLACES |= {f"{d}{x}{b}": f"{place}.{x}[{b}]" for d, place in (("", "io.kv"), ("d_", "grads.d_kv")) for x in "kv" for b in range(3)}
PLACES |= {name: "io." + name for name in PHI + GATE} | {"d_" + name: "grads.d_" + name for name in PHI + GATE}
OFFSETS = {name: offset_of(path) for name, path in PLACES.items()} | {"workspace": WORKSPACE, None: UNUSED}

TARGET = "nsa_run"


def _register():
    for platform, name in ("cpu", "nsapy_xla_cpu"), ("CUDA", "nsapy_xla_cuda"):
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(getattr(shim, name)), platform=platform)
    shim.nsapy_xla_workspace.restype = C.c_int32
    shim.nsapy_xla_workspace.argtypes = [C.c_char_p, C.c_size_t, C.c_int32, C.c_int32, C.c_int32, C.POINTER(C.c_int64),
                                         C.POINTER(C.c_uint64)]


_register()


class Static(NamedTuple):
    """What is not an array."""
    text: str
    names: Tuple[str, ...]  # of kv and extra, in their order
    max_kv: int
    scale: float
    branches: int
    count: int  # selected blocks
    dim_v: int
    platform: str


def _problem(static: Static, q, k, cu_q, given) -> Tuple[int, ...]:
    tokens, keys = q.shape[0], k.shape[0]
    longest = round_up(min(static.max_kv, keys) if static.max_kv else keys)
    seqs = 1 if cu_q is None else cu_q.shape[0] - 1
    return (round_up(tokens), max(round_up(keys), longest), longest, round_up_few(seqs),
            _abi.NSA_SELECT_BLOCKS if given else _abi.NSA_SELECT_TOPN)


def _run(call: int, static: Static, operands: Dict[str, Array], results, problem, num_seqs: int):
    """results: (name, shape, dtype) of each. Returns the arrays."""
    dtype = DTYPES.get(jnp.dtype(operands["q"].dtype))
    if dtype is None:
        raise TypeError(f"q has the dtype {operands['q'].dtype}; libnsa takes bfloat16 and float16, and float32 on the CPU")
    room, raw = C.c_uint64(), static.text.encode()
    status = shim.nsapy_xla_workspace(raw, len(raw), dtype, -1 if static.platform == "cpu" else 0, call,
                                      (C.c_int64 * 5)(*problem), C.byref(room))
    if status:
        raise last_error(status)
    order = [*operands, *[name for name, *_ in results], "workspace"]
    shapes = [jax.ShapeDtypeStruct(shape, kind) for _, shape, kind in results] + [jax.ShapeDtypeStruct((room.value,), jnp.uint8)]
    out = jax.ffi.ffi_call(TARGET, shapes, vmap_method="sequential")(
        *operands.values(), config=static.text, dtype=np.int64(dtype), problem=np.array(problem, np.int64),
        run=np.array([call, num_seqs, static.branches], np.int64), offsets=np.array([OFFSETS[name] for name in order], np.int32),
        scale=np.float32(static.scale))
    return out[:-1]


def _operands(static: Static, q, others, gates, cu_q, cu_kv, block_idx) -> Dict[str, Array]:
    listed = {"q": q, **dict(zip(static.names, others)), "gates": gates, "cu_q": cu_q, "cu_kv": cu_kv, "block_idx": block_idx}
    return {name: x for name, x in listed.items() if x is not None}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static: Static, q, others, gates, cu_q, cu_kv, block_idx):
    return _forward(static, q, others, gates, cu_q, cu_kv, block_idx)[0]


def _forward(static, q, others, gates, cu_q, cu_kv, block_idx):
    given = block_idx is not None
    results = [("o", (q.shape[0], q.shape[1], static.dim_v), q.dtype)]
    if not given and static.count:
        results.append(("block_idx", (q.shape[0], others[0].shape[1], static.count), jnp.int32))
    out = _run(FORWARD, static, _operands(static, q, others, gates, cu_q, cu_kv, block_idx), results,
               _problem(static, q, others[0], cu_q, given), 0 if cu_q is None else cu_q.shape[0] - 1)
    idx = block_idx if given else out[1] if static.count else None
    return (out[0], idx), (q, others, gates, cu_q, cu_kv, block_idx, idx)


def _backward(static, saved, cotangents):
    q, others, gates, cu_q, cu_kv, block_idx, idx = saved
    d_o = cotangents[0].astype(q.dtype)
    operands = _operands(static, q, others, gates, cu_q, cu_kv, idx) | {"d_o": d_o}
    inputs = {"q": q, **dict(zip(static.names, others))} | ({} if gates is None else {"gates": gates})
    results = [("d_" + name, x.shape, x.dtype) for name, x in inputs.items()]
    out = _run(BACKWARD, static, operands, results, _problem(static, q, others[0], cu_q, block_idx is not None),
               0 if cu_q is None else cu_q.shape[0] - 1)
    d_others = tuple(out[1:1 + len(others)])
    return out[0], d_others, None if gates is None else out[-1], None, None, None


_attention.defvjp(_forward, _backward)

KV = Union[Array, Sequence[Array]]


def _int32(x: Optional[Array], name: str) -> Optional[Array]:
    if x is not None and x.dtype not in (jnp.int32, jnp.int64):
        raise TypeError(f"{name} has the dtype {x.dtype}; it is int32 or int64")
    return None if x is None else x.astype(jnp.int32)


def _branch_bits(branches: Optional[Sequence[str]]) -> int:
    if branches is None:
        return 0
    if not branches or any(name not in BRANCHES for name in branches):
        raise ValueError(f"branches is {list(branches)!r}; it is at least one of {', '.join(BRANCHES)}")
    return sum(BRANCHES[name] for name in set(branches))


def _platform(platform: Optional[str]) -> str:
    name = platform or jax.default_backend()
    if name not in ("cpu", "gpu"):
        raise ValueError(f"platform is \"{name}\"; libnsa runs on \"cpu\" and \"gpu\"")
    return name


def attention(q: Array, k: KV, v: KV, gates: Optional[Array] = None, *, config: Config, cu_seqlens: Optional[Array] = None,
              cu_seqlens_k: Optional[Array] = None, max_seqlen: Optional[int] = None, scale: Optional[float] = None,
              weights: Optional[Dict[str, Array]] = None, block_indices: Optional[Array] = None, return_indices: bool = False,
              branches: Optional[Sequence[str]] = None, platform: Optional[str] = None):
    """nsa.attention for JAX, with the same arguments, shapes and results, but for index_q and k_idx.

    platform: "cpu" or "gpu", where the function will run [JAX's default backend]

    Differentiable once, and in reverse mode.
    """
    if config.index is not None and block_indices is None:
        raise ValueError("nsa.jax takes no queries and keys of an index: give block_indices")
    batched = q.ndim == 4
    many = not hasattr(k, "ndim")
    if many != (config.kv_sharing == "per_branch") or many and (len(k) != 3 or len(v) != 3):
        raise ValueError(f"kv_sharing is \"{config.kv_sharing}\": k and v are {'one array' if many else 'three arrays'} each")
    pairs = [x for pair in zip(k, v) for x in pair] if many else [k, v]
    names = [f"{'kv'[i % 2]}{i // 2}" for i in range(len(pairs))]
    unknown = [name for name in weights or () if name not in PHI + GATE + ["k_cmp", "v_cmp"]]
    if unknown:
        raise ValueError(f"weights has no {', '.join(unknown)}")
    if batched:
        if cu_seqlens is not None or cu_seqlens_k is not None:
            raise ValueError("q has a batch dimension, so there is no cu_seqlens: packed sequences are [T, H, D]")
        count, length, keys = q.shape[0], q.shape[1], pairs[0].shape[1]
        flat = lambda x: None if x is None else x.reshape(-1, *x.shape[2:])
        q, pairs, gates, block_indices = flat(q), [flat(x) for x in pairs], flat(gates), flat(block_indices)
        if count != 1:
            cu_seqlens = jnp.arange(count + 1, dtype=jnp.int32) * length
            cu_seqlens_k = None if keys == length else jnp.arange(count + 1, dtype=jnp.int32) * keys
        max_seqlen = max_seqlen or keys
    static = Static(config.text, (*names, *(weights or {})), max_seqlen or 0, float(scale or 0.0), _branch_bits(branches),
                    config.select["count"], config.head_dim_v, _platform(platform))
    o, idx = _attention(static, q, (*pairs, *(weights or {}).values()), gates, _int32(cu_seqlens, "cu_seqlens"),
                        _int32(cu_seqlens_k, "cu_seqlens_k"), _int32(block_indices, "block_indices"))
    if idx is None:  # a model without a selected branch
        idx = jnp.zeros((q.shape[0], pairs[0].shape[1], 0), jnp.int32)
    if batched:
        o = o.reshape(count, length, *o.shape[1:])
        idx = None if idx is None else idx.reshape(count, length, *idx.shape[1:])
    return (o, idx) if return_indices else o

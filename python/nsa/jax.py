# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""JAX: attention as a custom call of XLA, with its gradient, and the cache.

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
from ._library import APPEND, BACKWARD, DECODE, FORWARD, INDEX_KL, PREFILL, UNUSED, last_error, round_up, round_up_few, shim
from ._places import BRANCHES, CACHE, EXTRA, GATE, INDEX, NONE, OFFSETS, PHI, SCALES, cache_problem

Array = jax.Array
DTYPES = {jnp.dtype(jnp.bfloat16): _abi.NSA_BF16, jnp.dtype(jnp.float16): _abi.NSA_F16, jnp.dtype(jnp.float32): _abi.NSA_F32}
CODES = jnp.dtype(jnp.float8_e4m3fn)  # of a cache in FP8
# The fields of nsa_problem in the attribute `problem` of the call (python/xla.c).
PROBLEM = ("max_tokens", "max_kv_tokens", "max_kv_len", "max_seqs", "selection", "overlap", "max_q_len", "page_size",
           "kv_dtype", "cmp_dtype", "index_lse")

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
    lse: bool = False  # of the selected branch is wanted
    index_heads: int = 0  # of index_lse, where it is wanted


def _problem(static: Static, q, k, cu_q, given) -> Dict[str, int]:
    tokens, keys = q.shape[0], k.shape[0]
    longest = round_up(min(static.max_kv, keys) if static.max_kv else keys)
    seqs = 1 if cu_q is None else cu_q.shape[0] - 1
    return dict(max_tokens=round_up(tokens), max_kv_tokens=max(round_up(keys), longest), max_kv_len=longest,
                max_seqs=round_up_few(seqs), selection=_abi.NSA_SELECT_BLOCKS if given else _abi.NSA_SELECT_TOPN,
                overlap=_abi.NSA_OVERLAP_HIGH, index_lse=int(static.index_heads > 0))


def _run(call: int, text: str, platform: str, dtype, operands: Dict[str, Array], results, problem: Dict[str, int], num_seqs: int,
         scale: float = 0.0, branches: int = 0, written: Sequence[str] = (), first: str = "q"):
    """dtype: of the model, which the argument `first` has. results: (name, shape, dtype) of each. written: operands that
    are results, too, in the same memory and before the others. Returns the arrays."""
    number = DTYPES.get(jnp.dtype(dtype))
    if number is None:
        raise TypeError(f"{first} has the dtype {dtype}; libnsa takes bfloat16 and float16, and float32 on the CPU")
    room, raw, fields = C.c_uint64(), text.encode(), [problem.get(name, 0) for name in PROBLEM]
    status = shim.nsapy_xla_workspace(raw, len(raw), number, -1 if platform == "cpu" else 0, call,
                                      (C.c_int64 * len(fields))(*fields), C.byref(room))
    if status:
        raise last_error(status)
    results = [(name, operands[name].shape, operands[name].dtype) for name in written] + results
    places = [UNUSED if name in written else OFFSETS[name] for name in operands]
    places += [OFFSETS[name] for name in (*[name for name, *_ in results], "workspace")]
    shapes = [jax.ShapeDtypeStruct(shape, kind) for _, shape, kind in results] + [jax.ShapeDtypeStruct((room.value,), jnp.uint8)]
    order = list(operands)
    out = jax.ffi.ffi_call(TARGET, shapes, vmap_method="sequential",
                           input_output_aliases={order.index(name): i for i, name in enumerate(written)})(
        *operands.values(), config=text, dtype=np.int64(number), problem=np.array(fields, np.int64),
        run=np.array([call, num_seqs, branches], np.int64), offsets=np.array(places, np.int32), scale=np.float32(scale))
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
    if static.lse:
        results.append(("lse1", q.shape[:2], jnp.float32))
    if static.index_heads:
        results.append(("index_lse", (q.shape[0], static.index_heads), jnp.float32))
    out = _run(FORWARD, static.text, static.platform, q.dtype, _operands(static, q, others, gates, cu_q, cu_kv, block_idx), results,
               _problem(static, q, others[0], cu_q, given), 0 if cu_q is None else cu_q.shape[0] - 1, static.scale, static.branches)
    idx = block_idx if given else out[1] if static.count else None
    lses = tuple(out[len(out) - static.lse - (static.index_heads > 0):])
    return (out[0], idx, lses), (q, others, gates, cu_q, cu_kv, block_idx, idx)


def _backward(static, saved, cotangents):
    q, others, gates, cu_q, cu_kv, block_idx, idx = saved
    # What an index chose is in idx: its tensors, which are last, are nothing of the backward pass.
    kept = sum(name not in INDEX for name in static.names)
    dropped, others = len(others) - kept, others[:kept]
    d_o = cotangents[0].astype(q.dtype)
    operands = _operands(static, q, others, gates, cu_q, cu_kv, idx) | {"d_o": d_o}
    inputs = {"q": q, **dict(zip(static.names, others))} | ({} if gates is None else {"gates": gates})
    results = [("d_" + name, x.shape, x.dtype) for name, x in inputs.items()]
    out = _run(BACKWARD, static.text, static.platform, q.dtype, operands, results,
               _problem(static._replace(index_heads=0), q, others[0], cu_q, block_idx is not None),
               0 if cu_q is None else cu_q.shape[0] - 1, static.scale, static.branches)
    d_others = (*out[1:1 + kept], *[None] * dropped)
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


def _pairs(k: KV, v: KV, config: Config, prefix: str = "") -> Dict[str, Array]:
    many = not hasattr(k, "ndim")
    if many != (config.kv_sharing == "per_branch") or many and (len(k) != 3 or len(v) != 3):
        raise ValueError(f"kv_sharing is \"{config.kv_sharing}\": k and v are "
                         f"{'three arrays' if config.kv_sharing == 'per_branch' else 'one array'} each")
    pairs = [x for pair in zip(k, v) for x in pair] if many else [k, v]
    return {f"{prefix}{'kv'[i % 2]}{i // 2}": x for i, x in enumerate(pairs)}


def _named(weights: Optional[Dict[str, Array]], names: Sequence[str] = EXTRA) -> Dict[str, Array]:
    unknown = [name for name in weights or () if name not in names]
    if unknown:
        raise ValueError(f"weights has no {', '.join(unknown)}; the names are {', '.join(names)}")
    return dict(weights or {})


def _index_heads(config: Config) -> int:
    if config.index is None:
        raise ValueError("return_index_lse is of an index, and the configuration has none: give config index and select.by")
    return config.index["heads"]


def _present(**arrays: Optional[Array]) -> Dict[str, Array]:
    return {name: x for name, x in arrays.items() if x is not None}


def attention(q: Array, k: KV, v: KV, gates: Optional[Array] = None, *, config: Config, cu_seqlens: Optional[Array] = None,
              cu_seqlens_k: Optional[Array] = None, max_seqlen: Optional[int] = None, scale: Optional[float] = None,
              weights: Optional[Dict[str, Array]] = None, block_indices: Optional[Array] = None, return_indices: bool = False,
              branches: Optional[Sequence[str]] = None, index_q: Optional[Array] = None, k_idx: Optional[Array] = None,
              return_lse: bool = False, return_index_lse: bool = False,
              platform: Optional[str] = None) -> Union[Array, Tuple[Array, ...]]:
    """nsa.attention for JAX, with the same arguments, shapes and results.

    index_q, k_idx  queries and keys of an index that chooses the blocks (config.index): [T, Hi, Di] and [S, 1, Di], or
                    with B in front of them. No gradient goes into them: `index_kl` has theirs
    platform        "cpu" or "gpu", where the function will run [JAX's default backend]

    Differentiable once, and in reverse mode.
    """
    batched = q.ndim == 4
    if config.index is not None and block_indices is None and (index_q is None or k_idx is None):
        raise ValueError(f"{'index_q' if index_q is None else 'k_idx'} is missing: the configuration has an index, whose queries "
                         "and keys choose the blocks. Give index_q and k_idx, or block_indices")
    pairs, named = _pairs(k, v, config), _named(weights)
    index = _present(index_q=index_q, k_idx=k_idx)
    if batched:
        if cu_seqlens is not None or cu_seqlens_k is not None:
            raise ValueError("q has a batch dimension, so there is no cu_seqlens: packed sequences are [T, H, D]")
        count, length, keys = q.shape[0], q.shape[1], pairs["k0"].shape[1]
        flat = lambda x: None if x is None else x.reshape(-1, *x.shape[2:])
        q, gates, block_indices = flat(q), flat(gates), flat(block_indices)
        pairs, index = ({name: flat(x) for name, x in arrays.items()} for arrays in (pairs, index))
        if count != 1:
            cu_seqlens = jnp.arange(count + 1, dtype=jnp.int32) * length
            cu_seqlens_k = None if keys == length else jnp.arange(count + 1, dtype=jnp.int32) * keys
        max_seqlen = max_seqlen or keys
    others = pairs | named | {name: jax.lax.stop_gradient(x) for name, x in index.items()}
    bits = _branch_bits(branches)
    if return_lse and not (config.select["count"] and (bits or BRANCHES["selected"]) & BRANCHES["selected"]):
        raise ValueError("return_lse is of the selected branch, which does not run: select.count is 0, or branches leaves it out")
    static = Static(config.text, tuple(others), max_seqlen or 0, float(scale or 0.0), bits, config.select["count"],
                    config.head_dim_v, _platform(platform), return_lse, _index_heads(config) if return_index_lse else 0)
    o, idx, lses = _attention(static, q, tuple(others.values()), gates, _int32(cu_seqlens, "cu_seqlens"),
                         _int32(cu_seqlens_k, "cu_seqlens_k"), _int32(block_indices, "block_indices"))
    if idx is None:  # a model without a selected branch
        idx = jnp.zeros((q.shape[0], pairs["k0"].shape[1], 0), jnp.int32)
    if batched:
        o = o.reshape(count, length, *o.shape[1:])
        idx = idx.reshape(count, length, *idx.shape[1:])
        lses = [lse.reshape(count, length, -1) for lse in lses]
    wanted = [*([idx] if return_indices else []), *map(jax.lax.stop_gradient, lses)]
    return (o, *wanted) if wanted else o


# ---- the training of an index

@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _index_kl(static: Static, index_q, k_idx, others, cu_q, cu_kv):
    return _index_kl_forward(static, index_q, k_idx, others, cu_q, cu_kv)[0]


def _index_kl_forward(static, index_q, k_idx, others, cu_q, cu_kv):
    named = dict(zip(static.names, others))
    q, keys = named["q"], next(x for name, x in named.items() if name in ("k0", "k1"))
    operands = named | {"index_q": index_q, "k_idx": k_idx} | _present(cu_q=cu_q, cu_kv=cu_kv)
    results = [("loss", (1,), jnp.float32), ("d_index_q", index_q.shape, jnp.float32), ("d_k_idx", k_idx.shape, jnp.float32)]
    problem = _problem(static, q, keys, cu_q, True) | ({} if "block_idx" in named else dict(selection=_abi.NSA_SELECT_ALL))
    loss, d_q, d_k = _run(INDEX_KL, static.text, static.platform, q.dtype, operands, results, problem,
                          0 if cu_q is None else cu_q.shape[0] - 1, static.scale)
    like = jnp.zeros(0, index_q.dtype), jnp.zeros(0, k_idx.dtype)
    return loss[0], (d_q, d_k, like)


def _index_kl_backward(static, saved, d_loss):
    d_q, d_k, like = saved
    return (d_loss * d_q).astype(like[0].dtype), (d_loss * d_k).astype(like[1].dtype), None, None, None


_index_kl.defvjp(_index_kl_forward, _index_kl_backward)


def index_kl(q: Array, k: KV, index_q: Array, k_idx: Array, *, config: Config, lse: Array, block_indices: Optional[Array] = None,
             cu_seqlens: Optional[Array] = None, cu_seqlens_k: Optional[Array] = None, max_seqlen: Optional[int] = None,
             scale: Optional[float] = None, coefficient: float = 1.0, platform: Optional[str] = None) -> Array:
    """nsa.index_kl for JAX, with the same arguments and results: the loss that trains an index.

    platform  as of `attention`

    Differentiable in index_q and k_idx, once and in reverse mode; nothing else gets a gradient.
    """
    if not coefficient > 0:
        raise ValueError(f"coefficient is {coefficient}: it is greater than 0")
    keys = dict(k0=k) if hasattr(k, "ndim") else dict(k1=k[1]) if block_indices is not None else dict(k0=k[0])
    of = "lse0" if block_indices is None else "lse1"
    constants = {"q": q, **keys, of: lse} | _present(block_idx=_int32(block_indices, "block_indices"))
    constants = {name: jax.lax.stop_gradient(x) for name, x in constants.items()}
    static = Static(config.text, tuple(constants), max_seqlen or 0, float(scale or 0.0), 0, config.select["count"],
                    config.head_dim_v, _platform(platform))
    return coefficient * _index_kl(static, index_q, k_idx, tuple(constants.values()), _int32(cu_seqlens, "cu_seqlens"),
                                   _int32(cu_seqlens_k, "cu_seqlens_k"))


# ---- the cache

def _batch(kv_len, block_table, page_indptr, page_indices, slots, cu_seqlens, slot_mapping=None) -> Dict[str, Array]:
    ints = _present(cu_seqlens=cu_seqlens, kv_len=kv_len, block_table=block_table, page_indptr=page_indptr,
                    page_indices=page_indices, slots=slots, slot_mapping=slot_mapping)
    batch = {"cu_q" if name == "cu_seqlens" else name: _int32(x, name) for name, x in ints.items()}
    if slot_mapping is not None:  # int64 in C, which JAX has only on request: low and high words
        low = batch["slot_mapping"]
        high = low >> 31 if slot_mapping.dtype == jnp.int32 else (slot_mapping >> 32).astype(jnp.int32)
        batch["slot_mapping"] = jnp.stack([low, high], axis=-1)
    return batch


def _cache_problem(op: int, cache: Dict[str, Array], batch: Dict[str, Array], max_kv: int, tokens: int,
                   max_q: int, index_lse: bool = False) -> Dict[str, int]:
    unknown = [name for name in cache if name not in CACHE + SCALES]
    if unknown:
        raise ValueError(f"the cache has no {', '.join(unknown)}; the names are {', '.join(CACHE + SCALES)}")
    if "k0" not in cache or "v0" not in cache:
        raise ValueError(f"the cache has {', '.join(cache) or 'no arrays'}; it has at least k0 and v0")
    paged = "block_table" in batch or "page_indptr" in batch or "page_indices" in batch
    stored = lambda name: _abi.NSA_E4M3 if name in cache and cache[name].dtype == CODES else NONE
    return cache_problem(op, cache["k0"].shape, paged, batch["kv_len"].shape[0], max_kv, tokens, max_q, stored("k0"),
                         stored("k_idx" if "k_idx" in cache else "k_cmp"), index_lse)


def append(cache: Dict[str, Array], k: KV, v: KV, *, config: Config, kv_len: Array, max_kv: int,
           block_table: Optional[Array] = None, page_indptr: Optional[Array] = None, page_indices: Optional[Array] = None,
           slots: Optional[Array] = None, cu_seqlens: Optional[Array] = None, slot_mapping: Optional[Array] = None,
           weights: Optional[Dict[str, Array]] = None, k_idx: Optional[Array] = None,
           platform: Optional[str] = None) -> Dict[str, Array]:
    """nsa.append for JAX: returns the cache with the new tokens and every compressed entry that they complete.

    The arguments are those of nsa.append, with the cache as {"k0": ..., "v0": ..., "k_idx": ...}. Where a function
    under jax.jit gets the cache with donate_argnums, it is written in place; otherwise JAX copies it first.

    slot_mapping  int32 or int64 [T]
    platform      as of `attention`
    """
    new = _pairs(k, v, config, "new_")
    first = new["new_k0"]
    if first.shape[0] == 0:
        return dict(cache)
    batch = _batch(kv_len, block_table, page_indptr, page_indices, slots, cu_seqlens, slot_mapping)
    problem = _cache_problem(_abi.NSA_OP_APPEND, cache, batch, max_kv, first.shape[0], 0)
    written = [name for name in cache if not name.endswith("_scale")]
    operands = new | _named(weights, PHI + GATE) | _present(new_k_idx=k_idx) | batch | cache
    out = _run(APPEND, config.text, _platform(platform), first.dtype, operands, [], problem, batch["kv_len"].shape[0],
               written=written, first="k")
    return {**cache, **dict(zip(written, out))}


def _attend(call: int, op: int, q, cache, gates, config, batch, max_q, max_kv, scale, weights, index_q, return_indices,
            return_index_lse, platform) -> Union[Array, Tuple[Array, ...]]:
    results = [("o", (q.shape[0], q.shape[1], config.head_dim_v), q.dtype)]
    count = config.select["count"]
    if (return_indices or return_index_lse) and count:
        results.append(("block_idx", (q.shape[0], cache["k0"].shape[2], count), jnp.int32))
    if return_index_lse:
        results.append(("index_lse", (q.shape[0], _index_heads(config)), jnp.float32))
    if q.shape[0] == 0:
        out = [jnp.zeros(shape, dtype) for _, shape, dtype in results]
    else:
        problem = _cache_problem(op, cache, batch, max_kv, q.shape[0], max_q, return_index_lse)
        operands = {"q": q} | _present(gates=gates) | _named(weights, PHI + GATE) | _present(index_q=index_q) | batch | cache
        out = _run(call, config.text, _platform(platform), q.dtype, operands, results, problem, batch["kv_len"].shape[0],
                   float(scale or 0.0))
    wanted = [out[1] if count else jnp.zeros((q.shape[0], cache["k0"].shape[2], 0), jnp.int32)] if return_indices else []
    wanted += [out[-1]] if return_index_lse else []
    return (out[0], *wanted) if wanted else out[0]


def decode(q: Array, cache: Dict[str, Array], gates: Optional[Array] = None, *, config: Config, kv_len: Array, max_kv: int,
           max_q: int = 1, block_table: Optional[Array] = None, page_indptr: Optional[Array] = None,
           page_indices: Optional[Array] = None, slots: Optional[Array] = None, cu_seqlens: Optional[Array] = None,
           scale: Optional[float] = None, weights: Optional[Dict[str, Array]] = None, index_q: Optional[Array] = None,
           return_indices: bool = False, return_index_lse: bool = False,
           platform: Optional[str] = None) -> Union[Array, Tuple[Array, ...]]:
    """nsa.decode for JAX: 1 to 16 new tokens of each sequence over the cache that `append` has returned.

    The arguments and results are those of nsa.decode; platform as of `attention`. Without a gradient.
    """
    return _attend(DECODE, _abi.NSA_OP_DECODE, q, cache, gates, config,
                   _batch(kv_len, block_table, page_indptr, page_indices, slots, cu_seqlens), max_q, max_kv, scale, weights,
                   index_q, return_indices, return_index_lse, platform)


def prefill(q: Array, cache: Dict[str, Array], gates: Optional[Array] = None, *, config: Config, kv_len: Array, max_kv: int,
            max_q: int, block_table: Optional[Array] = None, page_indptr: Optional[Array] = None,
            page_indices: Optional[Array] = None, slots: Optional[Array] = None, cu_seqlens: Optional[Array] = None,
            scale: Optional[float] = None, weights: Optional[Dict[str, Array]] = None, index_q: Optional[Array] = None,
            return_indices: bool = False, return_index_lse: bool = False,
            platform: Optional[str] = None) -> Union[Array, Tuple[Array, ...]]:
    """`decode` for any number of new tokens of a sequence: chunks of prompts, beside sequences that decode."""
    return _attend(PREFILL, _abi.NSA_OP_PREFILL, q, cache, gates, config,
                   _batch(kv_len, block_table, page_indptr, page_indices, slots, cu_seqlens), max_q, max_kv, scale, weights,
                   index_q, return_indices, return_index_lse, platform)

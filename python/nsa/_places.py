# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""What the functions for PyTorch and for JAX share: the names of tensors and their places in a run's structs, and the
problem of a cache's plan."""
from __future__ import annotations

from typing import Dict

from . import _abi
from ._library import UNUSED, WORKSPACE, offset_of, round_up, round_up_few

PHI = [f"phi.{side}.{part}" for side in "kv" for part in ("pe", "w", "w1", "b1", "w2", "b2")]
GATE = ["gate.x", "gate.w1", "gate.b1", "gate.w2", "gate.b2"]
EXTRA = PHI + GATE + ["k_cmp", "v_cmp"]  # names of `weights`
INDEX = ["index_q", "k_idx", "new_k_idx"]
CACHE = ["k0", "v0", "k1", "v1", "k2", "v2", "k_cmp", "v_cmp", "k_norm", "k_idx"]
SCALES = [f"{name}_scale" for name in CACHE if name != "k_norm"]  # of what a cache holds in FP8
BRANCHES = {"compressed": 1, "selected": 2, "window": 4}
NONE = -1  # NSA_NONE, a macro: not what the configuration's serving section says

# The place of every tensor in a run's structs.
PLACES = {"q": "io.q", "o": "io.o", "gates": "io.gate.value", "block_idx": "io.block_idx", "ranges": "io.ranges",
          "cu_q": "batch.cu_q", "cu_kv": "batch.cu_kv", "cu_cmp": "batch.cu_cmp", "kv_len": "batch.kv_len",
          "block_table": "batch.block_table", "entry_table": "batch.entry_table", "slots": "batch.slots", "slot_mapping": "batch.slot_mapping",
          "page_indptr": "batch.page_indptr", "page_indices": "batch.page_indices",
          "k_cmp": "io.kv.k_cmp", "v_cmp": "io.kv.v_cmp", "k_norm": "io.k_norm",
          "k_cmp_scale": "io.k_cmp_scale", "v_cmp_scale": "io.v_cmp_scale", "k_idx_scale": "io.k_idx_scale",
          "d_o": "grads.d_o", "d_q": "grads.d_q",
          "d_gates": "grads.d_gate.value", "d_k_cmp": "grads.d_kv.k_cmp", "d_v_cmp": "grads.d_kv.v_cmp"}
for _b in range(3):
    for _x in "kv":
        PLACES[f"{_x}{_b}"] = f"io.kv.{_x}[{_b}]"
        PLACES[f"{_x}{_b}_scale"] = f"io.{_x}_scale[{_b}]"
        PLACES[f"new_{_x}{_b}"] = f"io.new_kv.{_x}[{_b}]"
        PLACES[f"d_{_x}{_b}"] = f"grads.d_kv.{_x}[{_b}]"
    PLACES[f"o_branch{_b}"], PLACES[f"lse{_b}"] = f"io.o_branch[{_b}]", f"io.lse[{_b}]"
for _name in *INDEX, "index_lse":
    PLACES[_name] = "io." + _name
for _name in "loss", "d_index_q", "d_k_idx":
    PLACES[_name] = "index_grads." + _name
for _name in PHI + GATE:
    PLACES[_name] = "io." + _name
    PLACES["d_" + _name] = "grads.d_" + _name
OFFSETS: Dict[object, int] = {name: offset_of(path) for name, path in PLACES.items()} | {"workspace": WORKSPACE, None: UNUSED}


def cache_problem(op: int, first, paged: bool, seqs: int, max_kv: int, tokens: int, max_q: int, kv_dtype: int,
                  cmp_dtype: int, index_lse: bool = False) -> Dict[str, int]:
    """The fields of nsa_problem. first: the shape of the cache's k0, [pages or rows, tokens, heads, dim]."""
    if len(first) != 4:
        raise ValueError(f"k of the cache has {len(first)} dimensions: {list(first)}; it has 4")
    longest = round_up(max_kv)
    if not paged:
        longest = min(longest, first[1])
    # What the tensors hold decides, not the configuration's serving section.
    problem = dict(op=op, max_seqs=round_up_few(seqs), page_size=first[1] if paged else NONE, max_kv_len=longest,
                   max_tokens=round_up(tokens), kv_dtype=kv_dtype, cmp_dtype=cmp_dtype, index_lse=int(index_lse))
    if op == _abi.NSA_OP_DECODE:
        problem["max_q_len"] = max_q
        problem["max_tokens"] = min(problem["max_tokens"], problem["max_seqs"] * max_q)
    elif op == _abi.NSA_OP_PREFILL:
        problem.update(max_q_len=min(round_up(max_q), problem["max_tokens"]), overlap=_abi.NSA_OVERLAP_HIGH)
    return problem

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""torch.nn modules."""
from __future__ import annotations

import math
from typing import Callable, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from ._config import Config
from ._torch import attention

Rope = Callable[[Tensor, Tensor, Optional[Tensor]], Tuple[Tensor, Tensor]]


class NSAttention(nn.Module):
    """A layer of Native Sparse Attention: projections, gates, phi's weights, attention, output.

    dim      width of the model
    config   gate "logits" (a linear layer makes them) or "none"; phi "mean", "linear" or "mlp"; kv_sharing any
    rope     rope(q, k, positions) -> (q, k) of [..., H, Dk]: the caller's position code; None: none
    bias     of the projections

    forward(x [B, T, dim] or [T, dim], positions=None, cu_seqlens=None, max_seqlen=None) -> the same shape.
    With a cache, nsa.KVCache, a step takes the parts: `project`, the cache's append and attend, and `o`.
    """

    def __init__(self, dim: int, config: Config, *, rope: Optional[Rope] = None, bias: bool = False, device=None, dtype=None):
        super().__init__()
        if config.gate not in ("logits", "none"):
            raise ValueError(f"NSAttention makes gate logits, or none, but config.gate is \"{config.gate}\"")
        if config.compress["phi"] == "external":
            raise ValueError("NSAttention computes compressed keys with libnsa, but config.compress.phi is \"external\"")
        if config.index is not None:
            raise ValueError("NSAttention makes no queries and keys of an index, but config.index is given")
        self.config, self.rope, self.dim = config, rope, dim
        pairs = 1 if config.kv_sharing == "shared" else 3
        make = dict(bias=bias, device=device, dtype=dtype)
        self.q = nn.Linear(dim, config.heads * config.head_dim, **make)
        self.k = nn.Linear(dim, pairs * config.kv_heads * config.head_dim, **make)
        self.v = nn.Linear(dim, pairs * config.kv_heads * config.head_dim_v, **make)
        self.gate = nn.Linear(dim, config.heads * 3, **make) if config.gate == "logits" else None
        self.o = nn.Linear(config.heads * config.head_dim_v, dim, **make)
        self.phi = nn.ParameterDict()
        for side, width in ("k", config.head_dim), ("v", config.head_dim_v):
            if side == "v" and not config.compress.get("output", True):
                continue  # there are no compressed values
            for name, shape in self._phi_shapes(width).items():
                self.phi[f"{side}_{name}"] = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def _phi_shapes(self, width: int) -> Dict[str, Tuple[int, ...]]:
        c = self.config.compress
        heads, block = self.config.kv_heads, c["block"]
        if c["phi"] == "linear":
            return {"pe": (heads, block, width), "w": (heads, block * width, width)}
        if c["phi"] == "mlp":
            hidden = c["hidden"]
            return {"pe": (heads, block, width), "w1": (heads, block * width, hidden), "b1": (heads, hidden),
                    "w2": (heads, hidden, width), "b2": (heads, width)}
        return {}

    def reset_parameters(self) -> None:
        """phi's weights keep the variance; position codes and biases begin at 0."""
        for name, weight in self.phi.items():
            if name.split("_")[1].startswith("w"):
                nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[1]))
            else:
                nn.init.zeros_(weight)

    def extra_repr(self) -> str:
        c = self.config
        return f"heads={c.heads}/{c.kv_heads}, head_dim={c.head_dim}, window={c.window}, phi={c.compress['phi']}"

    def project(self, x: Tensor, positions: Optional[Tensor] = None):
        """q, k, v and gates of tokens, as nsa.attention and nsa.KVCache take them; gates None without a gate."""
        c = self.config
        split = lambda y, heads: y.unflatten(-1, (heads, -1))
        q = split(self.q(x), c.heads)
        pairs = 1 if c.kv_sharing == "shared" else 3
        k, v = split(self.k(x), pairs * c.kv_heads), split(self.v(x), pairs * c.kv_heads)
        if self.rope is not None:
            q, k = self.rope(q, k, positions)
        if pairs == 3:
            k, v = k.chunk(3, -2), v.chunk(3, -2)
        return q, k, v, None if self.gate is None else split(self.gate(x), c.heads)

    @property
    def weights(self) -> Dict[str, Tensor]:
        """phi's, under the names that nsa.attention and nsa.KVCache take."""
        return {f"phi.{name.replace('_', '.')}": value for name, value in self.phi.items()}

    def forward(self, x: Tensor, positions: Optional[Tensor] = None, cu_seqlens: Optional[Tensor] = None,
                max_seqlen: Optional[int] = None) -> Tensor:
        q, k, v, gates = self.project(x, positions)
        o = attention(q, k, v, gates, config=self.config, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen, weights=self.weights)
        return self.o(o.flatten(-2))

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Native Sparse Attention (arXiv 2502.11089) on NVIDIA GPUs; without one, slowly, on the CPU.

    import torch, nsa
    config = nsa.Config(heads=64, kv_heads=4, head_dim=128)
    q, k, v = (torch.randn(1024, h, 128, device="cuda", dtype=torch.bfloat16) for h in (64, 4, 4))
    gates = torch.randn(1024, 64, 3, device="cuda", dtype=torch.bfloat16)
    o = nsa.attention(q, k, v, gates, config=config)    # [1024, 64, 128]

`import nsa` imports no framework. attention, NSAttention, KVCache and nsa.ranks need PyTorch; nsa.jax
needs JAX.
"""
import importlib

from ._config import Config
from ._library import ArgumentError, ConfigError, Error, NotPreparedError, RanksError, UnsupportedError
from ._tools import doctor, explain, export_records, import_records, tune, version

__version__ = version()

# These import PyTorch when they are asked for.
_LATER = {"attention": "_torch", "append": "_torch", "decode": "_torch", "prefill": "_torch",
          "index_kl": "_index_kl", "NSAttention": "modules", "KVCache": "kv_cache", "Batch": "kv_cache"}

__all__ = ["Config", "Error", "ArgumentError", "ConfigError", "NotPreparedError", "RanksError", "UnsupportedError", "doctor", "explain",
           "export_records", "import_records", "tune", "version", *_LATER]


def __getattr__(name):
    if name in _LATER:
        value = getattr(importlib.import_module("." + _LATER[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'nsa' has no attribute '{name}'")


def __dir__():
    return sorted(__all__)

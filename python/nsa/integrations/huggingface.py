# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Native Sparse Attention in models of Hugging Face's transformers.

    import nsa.integrations.huggingface as nsa_hf
    nsa_hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="nsa")
    nsa_hf.add_gates(model)     # a linear layer for each attention layer; without it each branch counts a third

Heads and head dims are the model's. Everything else is config.nsa of the model, a dictionary with the
arguments of nsa.Config (compress, select, window, ...), or register(nsa={...}); the rest has NSA's defaults.
A model that was trained with dense attention needs training with it.

Forward, backward, generate() with its cache, packed sequences (cu_seq_lens_q) and padded batches work, and
torch.compile. A padded batch breaks its graph, and is an error with fullgraph=True. Dropout, attention sinks,
soft-capped logits and windows of the model's own are refused.
"""
from __future__ import annotations

import functools
import json
from typing import Any, Mapping, Optional

import torch
from torch import Tensor, nn

from .._config import Config
from .._torch import attention

NAME = "nsa"
_defaults: Mapping[str, Any] = {}


def register(name: str = NAME, nsa: Optional[Mapping[str, Any]] = None) -> None:
    """Makes attn_implementation=name known to transformers. nsa: for models whose config has none."""
    from transformers import AttentionInterface, AttentionMaskInterface
    global _defaults
    if nsa is not None:
        _defaults = dict(nsa)
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)


@functools.lru_cache(maxsize=256)
def _config_of_text(heads: int, kv_heads: int, dim: int, dim_v: int, gate: str, given: str) -> Config:
    return Config(heads=heads, kv_heads=kv_heads, head_dim=dim, head_dim_v=dim_v, gate=gate, **json.loads(given))


@torch.compiler.assume_constant_result  # a graph has no use for how a Config is made
def _config(heads: int, kv_heads: int, dim: int, dim_v: int, gate: str, given: Mapping[str, Any]) -> Config:
    return _config_of_text(heads, kv_heads, dim, dim_v, gate, json.dumps(given, sort_keys=True))


def add_gates(model: nn.Module) -> int:
    """Gives each attention layer a linear layer `nsa_gate` from its hidden states to three logits a head,
    zeros at first: gates of 1/2. Returns their number. They are parameters of the model and are saved with it."""
    count = 0
    for module in model.modules():
        if not (hasattr(module, "q_proj") and hasattr(module, "k_proj")) or hasattr(module, "nsa_gate"):
            continue
        projection = module.q_proj.weight
        heads = module.config.num_attention_heads
        module.nsa_gate = nn.Linear(module.q_proj.in_features, 3 * heads, bias=True, device=projection.device,
                                    dtype=projection.dtype)
        nn.init.zeros_(module.nsa_gate.weight)
        nn.init.zeros_(module.nsa_gate.bias)
        module.register_forward_pre_hook(_keep_hidden, with_kwargs=True)
        count += 1
    if count == 0:
        raise ValueError("the model has no attention layer with q_proj and k_proj")
    return count


def _keep_hidden(module, args, kwargs):
    """The attention function gets no hidden states, but the gates need them."""
    module._nsa_hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]


def mask(*args, attention_mask: Optional[Tensor] = None, **kwargs) -> Optional[Tensor]:
    """The padding [B, keys] that `attend` gets, or None: no token is padding."""
    if attention_mask is None:
        return None
    length = kwargs.get("kv_length")
    attention_mask = attention_mask if length is None else attention_mask[:, -length:]
    if torch.compiler.is_compiling():
        raise NotImplementedError("libnsa: a padded batch cannot be compiled, because its lengths are data. Leave the "
                                  "attention mask out, or pack the sequences (cu_seq_lens_q)")
    return None if attention_mask.all() else attention_mask.bool()


def _refuse(dropout: float, kwargs: Mapping[str, Any]) -> None:
    if dropout:
        raise ValueError(f"libnsa has no dropout of attention weights; set attention_dropout to 0 (it is {dropout})")
    for name, what in ("softcap", "soft-capped logits"), ("s_aux", "attention sinks"), ("sliding_window", "the model's own window"):
        if kwargs.get(name) is not None:
            raise ValueError(f"libnsa has no {what} ({name} is given)")


def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor] = None,
           scaling: Optional[float] = None, dropout: float = 0.0, **kwargs):
    """transformers' attention function: query [B, Hq, T, D], key and value [B, Hkv, S, D] -> ([B, T, Hq, D], None)."""
    _refuse(dropout, kwargs)
    if getattr(module, "indexer", None) is not None or "block_indices" in kwargs:
        raise ValueError("libnsa's \"nsa\" is not the attention of a model with an indexer of its own; that of MiniMax-M3 is "
                         "nsa.integrations.minimax_m3")
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # [B, T, H, D]
    gate = getattr(module, "nsa_gate", None)
    if gate is None:
        gates = q.new_full((*q.shape[:3], 3), 1 / 3)
    else:
        gates = gate(module._nsa_hidden).unflatten(-1, (q.shape[2], 3))
        module._nsa_hidden = None
    given = getattr(module.config, "nsa", None) or _defaults
    config = _config(q.shape[2], k.shape[2], q.shape[3], v.shape[3], "weights" if gate is None else "logits", given)
    more = dict(config=config, scale=scaling)
    packed = kwargs.get("cu_seq_lens_q")
    if packed is not None:
        if q.shape[0] != 1:
            raise ValueError(f"packed sequences (cu_seq_lens_q) have the batch size 1, not {q.shape[0]}")
        o = attention(q[0], k[0], v[0], gates[0], cu_seqlens=packed, cu_seqlens_k=kwargs.get("cu_seq_lens_k"),
                      max_seqlen=kwargs.get("max_length_k"), **more)[None]
    elif attention_mask is not None:
        o = _padded(q, k, v, gates, attention_mask, more)
    else:
        o = attention(q, k, v, gates, **more)
    return o, None


@torch.compiler.disable  # lengths are data
def _padded(q, k, v, gates, attention_mask, more):
    """Takes the padding out, and puts zeros in its place."""
    rows = attention_mask[:, -q.shape[1]:]
    starts = lambda present: torch.nn.functional.pad(present.sum(1).cumsum(0), (1, 0)).int()
    # Where no query of a sequence exists its keys are of no use.
    keys = attention_mask & rows.any(1, keepdim=True)
    o = attention(q[rows], k[keys], v[keys], gates[rows], cu_seqlens=starts(rows), cu_seqlens_k=starts(keys), **more)
    out = o.new_zeros(*q.shape[:3], v.shape[3])
    out[rows] = o
    return out

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The configuration: a model, and everything else that a configuration file may hold."""
from __future__ import annotations

import ctypes
import dataclasses
import json
import os
from typing import Any, Mapping, Optional, Union

from . import _abi
from ._library import ConfigError, check, context, lib

COMPRESS = dict(block=32, stride=16, phi="mean")
SELECT = dict(block=64, count=16, init=1, local=2)


def _check_text(raw: bytes, name: bytes) -> None:
    """Raises ConfigError with every diagnostic of a configuration's text."""
    size = 1 << 16
    found = ctypes.create_string_buffer(size)
    if not raw:
        raise ConfigError(f"{os.fsdecode(name)}: empty: a configuration begins with 'nsa: 1'", _abi.NSA_E_CONFIG, "NSA_E_CONFIG")
    status = lib.nsa_config_check(raw, len(raw), name, found, size)
    if status == _abi.NSA_E_CONFIG:
        raise ConfigError(found.value.decode("utf-8", "replace").strip(), status, "NSA_E_CONFIG")
    check(status)


@dataclasses.dataclass(frozen=True)
class Config:
    """A model of Native Sparse Attention. Immutable; one object serves all layers and devices.

    heads, kv_heads    query and KV heads; heads / kv_heads is at most 64
    head_dim           of queries and keys: a multiple of 8 from 16 to 256
    head_dim_v         of values and outputs [head_dim]
    compress           block (32) and stride (16) in tokens; phi: "mean", "linear", "mlp" or "external"; of
                       mlp also hidden and activation; output (True): False: compressed keys serve the
                       selection alone; or "none": there are none, and an index chooses blocks
    select             block (64 tokens), count (16; 0: no selected branch), init (1), local (2), pool ("sum" or
                       "max"), normalizer (block and stride of coarse keys) [none], by ("compressed" or "index")
    window             tokens, the query's own included [512]; 0: no window branch
    gate               "logits" (through a sigmoid), "weights" (as they are), "mlp", or "none" (a plain sum)
    gate_mlp           of gate "mlp": channels, hidden, activation
    kv_sharing         "shared": one K and V for all branches; "per_branch": three, as in the paper and, where it does
                       not say, in a configuration file
    index              of select["by"] "index": heads, as many as KV heads, and dim
    runtime, tuning,   sections of a configuration file, as dictionaries: runtime={"jit": "never"}
    variants, serving

    The type of the numbers is that of the tensors: bfloat16, float16, and float32 on the CPU device.
    Values are checked when the object is made: ConfigError has every diagnostic.
    """

    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: Optional[int] = None
    compress: Union[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    select: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    window: int = 512
    gate: str = "logits"
    gate_mlp: Optional[Mapping[str, Any]] = None
    kv_sharing: str = "shared"
    runtime: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tuning: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    variants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    serving: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    index: Optional[Mapping[str, Any]] = None

    def __post_init__(self):
        put = lambda name, value: object.__setattr__(self, name, value)
        if isinstance(self.compress, str):
            if self.compress != "none":
                raise ConfigError(f"compress is {self.compress!r}: expected a dictionary, or \"none\"", _abi.NSA_E_CONFIG,
                                  "NSA_E_CONFIG")
            put("compress", {"phi": "none"})
        if self.compress.get("phi") == "none":
            put("compress", dict(self.compress))  # block and stride describe keys that do not exist
        else:
            put("compress", {**COMPRESS, **self.compress})
        put("select", {**SELECT, **self.select})
        if self.head_dim_v is None:
            put("head_dim_v", self.head_dim)
        put("text", json.dumps(self.to_dict(), separators=(",", ":")))
        # Whether the forward keeps each branch's output for the backward pass.
        put("saves_outputs", self.runtime.get("recompute") == "never")
        _check_text(self.text.encode(), b"nsa.Config")

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        return isinstance(other, Config) and self.text == other.text

    def to_dict(self) -> dict:
        """The sections of a configuration file that say the same."""
        model = dict(heads=self.heads, kv_heads=self.kv_heads, head_dim_qk=self.head_dim, head_dim_v=self.head_dim_v,
                     compress=dict(self.compress), select=dict(self.select), window=self.window, gate=self.gate,
                     kv_sharing=self.kv_sharing)
        if self.gate_mlp is not None:
            model["gate_mlp"] = dict(self.gate_mlp)
        if self.index is not None:
            model["index"] = dict(self.index)
        sections = {name: dict(getattr(self, name)) for name in ("serving", "tuning", "runtime", "variants")}
        return {"nsa": 1, "model": model, **{name: part for name, part in sections.items() if part}}

    @classmethod
    def from_dict(cls, sections: Mapping[str, Any]) -> "Config":
        """From the sections of a configuration file. Keys that Config does not have are an error; those that are
        not there have the file's built-in values: kv_sharing is "per_branch"."""
        model = dict(sections.get("model", {}))
        model.setdefault("kv_sharing", "per_branch")
        model.pop("dtype", None)  # the tensors have it
        if model.pop("causal", True) is not True:
            raise ConfigError("model.causal: NSA is causal; remove the key or set it to true", _abi.NSA_E_CONFIG, "NSA_E_CONFIG")
        if "head_dim" in model:
            model.setdefault("head_dim_qk", model["head_dim"])
            model.setdefault("head_dim_v", model.pop("head_dim"))
        if "head_dim_qk" in model:
            model["head_dim"] = model.pop("head_dim_qk")
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = [f"model.{key}" for key in model if key not in known]
        unknown += [key for key in sections if key not in ("nsa", "model", "serving", "tuning", "runtime", "variants")]
        missing = [f"model.{key}" for key in ("heads", "kv_heads", "head_dim") if key not in model]
        if unknown or missing:
            raise ConfigError("; ".join([f"unknown key {key}" for key in unknown] +
                                        [f"{key} is missing" for key in missing]), _abi.NSA_E_CONFIG, "NSA_E_CONFIG")
        parts = {name: sections[name] for name in ("serving", "tuning", "runtime", "variants") if name in sections}
        return cls(**model, **parts)

    @classmethod
    def from_yaml(cls, path: Union[str, os.PathLike]) -> "Config":
        """From a configuration file. Needs PyYAML, which libnsa itself does not."""
        try:
            import yaml
        except ImportError as error:
            raise ImportError("Config.from_yaml needs PyYAML (pip install pyyaml); Config.from_dict does not") from error
        with open(path, "rb") as file:
            raw = file.read()
        _check_text(raw, os.fsencode(path))
        return cls.from_dict(yaml.safe_load(raw))

    def context(self, device: str, dtype: str):
        """The library's context of this model on a device, for tensors of "bf16", "fp16" or "f32"."""
        return context(self.text, device, ("model.dtype=" + dtype,))

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The language model of a weights file, for serve.py. Its attention is an argument of the call: runner.py's."""
import torch
import torch.nn.functional as F

import nsa
import weights


class Model:
    """transformers' Llama with gates, on the tokens of a step. float32 on the CPU, bfloat16 on a GPU."""

    def __init__(self, path, device):
        m, tensors = weights.load(path)
        self.device, self.dtype = torch.device(device), torch.float32 if device == "cpu" else torch.bfloat16
        self.w = {name: torch.tensor(tensors[name]).view(shape).to(device, self.dtype) for name, shape in weights.shapes(m)}
        self.m = m
        self.config = nsa.Config(
            heads=m["heads"], kv_heads=m["kv_heads"], head_dim=m["dim"], compress=dict(block=m["block"], stride=m["stride"]),
            select=dict(block=m["select"], count=m["count"]), window=m["window"])
        self.frequencies = m["theta"] ** (-torch.arange(0, m["dim"], 2, device=device) / m["dim"])

    def norm(self, x, name):
        return F.rms_norm(x.float(), x.shape[-1:], eps=self.m["eps"]).to(self.dtype) * self.w[name]

    def __call__(self, tokens, positions, attention, rows=None):
        """The most likely token behind each of the tokens, or behind those at the indices `rows`.

        attention(layer, q, k, v, gates) -> o: [T, heads, dim] of q and o, [T, kv_heads, dim] of k and v.
        """
        angles = positions[:, None, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()

        def rotate(x):
            a, b = x.float().chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(self.dtype)

        x = self.w["model.embed_tokens.weight"][tokens]
        for i in range(self.m["layers"]):
            here = f"model.layers.{i}."
            h = self.norm(x, here + "input_layernorm.weight")
            project = lambda name: F.linear(h, self.w[f"{here}self_attn.{name}_proj.weight"]).unflatten(-1, (-1, self.m["dim"]))
            gates = F.linear(h, self.w[here + "self_attn.nsa_gate.weight"], self.w[here + "self_attn.nsa_gate.bias"])
            o = attention(i, rotate(project("q")), rotate(project("k")), project("v"), gates.unflatten(-1, (-1, 3)))
            x = x + F.linear(o.flatten(1), self.w[here + "self_attn.o_proj.weight"])
            h = self.norm(x, here + "post_attention_layernorm.weight")
            h = F.silu(F.linear(h, self.w[here + "mlp.gate_proj.weight"])) * F.linear(h, self.w[here + "mlp.up_proj.weight"])
            x = x + F.linear(h, self.w[here + "mlp.down_proj.weight"])
        x = x if rows is None else x[rows]
        return F.linear(self.norm(x, "model.norm.weight"), self.w["lm_head.weight"]).argmax(-1)

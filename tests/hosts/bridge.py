# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa_forward and nsa_backward as a torch.autograd.Function, for the Python hosts of this folder."""
import ctypes as C

import torch

import nsa

MODEL = """
nsa: 1
model:
  heads: {heads}
  kv_heads: {kv_heads}
  head_dim: {dim}
  compress: {{block: {block}, stride: {stride}, phi: mean}}
  select: {{block: {select}, count: {count}, init: {init}, local: {local}}}
  window: {window}
  gate: logits
  kv_sharing: shared
  dtype: bf16
"""


class Attention:
    """A model on a device: q [T, Hq, D], k, v [T, Hkv, D], gate logits [T, Hq, 3], bf16 -> o [T, Hq, D].

    `lengths` of the sequences that lie packed in T. The blocks that the last call chose are in
    `chosen` [T, Hkv, n]."""

    def __init__(self, path, model, device, deterministic=True):
        self.model, self.device = model, device
        self.library = nsa.Library(path, text=MODEL.format(**model),
                                   overrides=["runtime.device=cpu"] if device == "cpu" else [])
        self.deterministic, self.plans, self.batches, self.chosen = deterministic, {}, {}, None

    def __call__(self, q, k, v, gates, lengths):
        return Function.apply(self, tuple(lengths), q, k, v, gates)

    def plan(self, op, lengths):
        key = op, lengths
        if key not in self.plans:
            empty = lambda bytes: torch.empty(bytes, dtype=torch.uint8, device=self.device)
            self.plans[key] = nsa.Plan(self.library, empty, op=op, max_tokens=sum(lengths),
                                       max_kv_len=max(lengths), max_seqs=len(lengths),
                                       overlap=2, deterministic=self.deterministic)
        return self.plans[key]

    def batch(self, lengths):
        if lengths not in self.batches:
            starts = torch.tensor((0,) + lengths, dtype=torch.int64).cumsum(0).int().to(self.device)
            batch = nsa.Batch(struct_size=C.sizeof(nsa.Batch), num_seqs=len(lengths), cu_q=nsa.describe(starts))
            self.batches[lengths] = batch, starts  # which the batch only points at
        return self.batches[lengths][0]

    def stream(self):
        return torch.cuda.current_stream().cuda_stream if self.device == "cuda" else None

    def close(self):
        for plan in self.plans.values():
            plan.close()
        self.library.close()


def make_io(q, k, v, gates, chosen):
    io = nsa.Io(struct_size=C.sizeof(nsa.Io), q=nsa.describe(q), block_idx=nsa.describe(chosen))
    io.kv.k[0], io.kv.v[0], io.gate.value = nsa.describe(k), nsa.describe(v), nsa.describe(gates)
    return io


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, attention, lengths, q, k, v, gates):
        q, k, v, gates = (x.contiguous() for x in (q, k, v, gates))
        o = torch.empty_like(q)
        chosen = torch.empty(len(q), k.shape[1], attention.model["count"], dtype=torch.int32, device=q.device)
        io = make_io(q, k, v, gates, chosen)
        io.o = nsa.describe(o)
        attention.plan(nsa.FORWARD, lengths).run("nsa_forward", attention.stream(), attention.batch(lengths), io)
        ctx.save_for_backward(q, k, v, gates, chosen)
        ctx.attention, ctx.lengths, attention.chosen = attention, lengths, chosen
        return o

    @staticmethod
    def backward(ctx, d_o):
        inputs = ctx.saved_tensors[:4]
        io, d_o = make_io(*ctx.saved_tensors), d_o.contiguous()
        d_q, d_k, d_v, d_gates = out = [torch.empty_like(x) for x in inputs]
        grads = nsa.Grads(struct_size=C.sizeof(nsa.Grads), d_o=nsa.describe(d_o), d_q=nsa.describe(d_q))
        grads.d_kv.k[0], grads.d_kv.v[0] = nsa.describe(d_k), nsa.describe(d_v)
        grads.d_gate.value = nsa.describe(d_gates)
        attention = ctx.attention
        attention.plan(nsa.BACKWARD, ctx.lengths).run("nsa_backward", attention.stream(),
                                                      attention.batch(ctx.lengths), io, grads)
        return None, None, *out

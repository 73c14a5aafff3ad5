# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa_forward and nsa_backward as a torch.autograd.Function, for the Python hosts of this folder."""
import ctypes as C

import torch

import nsa

PHIS, GATES = dict(mean=1, linear=2, mlp=3), dict(logits=2, mlp=3)
GELU, SHARED, NONE = 3, 2, -1  # NSA_ACT_GELU, NSA_KV_SHARED, NSA_NONE


def model_of(heads, kv_heads, dim, block, stride, select, count, init, local, window, phi="mean", hidden=0,
             gate="logits", channels=0, gate_hidden=0):
    """The fields of nsa_model."""
    return dict(heads=heads, kv_heads=kv_heads, head_dim_qk=dim, dtype=nsa.BF16, compress_block=block,
                compress_stride=stride, phi=PHIS[phi], phi_hidden=hidden, phi_activation=GELU, select_block=select,
                select_count=count, select_init=init or NONE, select_local=local or NONE, window=window or NONE,
                gate=GATES[gate], gate_channels=channels, gate_hidden=gate_hidden, kv_sharing=SHARED)


PHI = "pe", "w", "w1", "b1", "w2", "b2"
GATE = "x", "w1", "b1", "w2", "b2"


class Attention:
    """A model on a device: q [T, Hq, D], k, v [T, Hkv, D], gate logits [T, Hq, 3], bf16 -> o [T, Hq, D].

    `lengths` of the sequences that lie packed in T. `weights`: a dict of what phi and the gate MLP have, as
    "phi.k.w1" and "gate.x"; with the MLP there are no logits: None. The blocks that the last call chose are
    in `chosen` [T, Hkv, n]."""

    def __init__(self, path, model, device):
        self.model, self.device = model, device
        self.library = nsa.Library(path, model=model_of(**model), device="cpu" if device == "cpu" else None)
        self.plans, self.batches, self.chosen = {}, {}, None

    def __call__(self, q, k, v, gates, lengths, weights={}):
        inputs = dict(q=q, k=k, v=v) | ({} if gates is None else dict(gates=gates)) | weights
        return Function.apply(self, tuple(lengths), tuple(inputs), *inputs.values())

    def plan(self, op, lengths):
        key = op, lengths
        if key not in self.plans:
            empty = lambda bytes: torch.empty(bytes, dtype=torch.uint8, device=self.device)
            self.plans[key] = nsa.Plan(self.library, empty, op=op, max_tokens=sum(lengths),
                                       max_kv_len=max(lengths), max_seqs=len(lengths),
                                       overlap=2)
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


def place(name, x, q, kv, phi, gate):
    """Puts a tensor, or its gradient, where its name belongs; `q` takes what is of q."""
    view = nsa.describe(x)
    if name == "q":
        q(view)
    elif name in ("k", "v"):
        getattr(kv, name)[0] = view
    elif name == "gates":
        gate.value = view
    elif name.startswith("gate."):
        gate.mlp[GATE.index(name[5:])] = view
    else:
        phi.sides[len(PHI) * (name[4] == "v") + PHI.index(name[6:])] = view


def make_io(names, inputs, chosen):
    io = nsa.Io(struct_size=C.sizeof(nsa.Io), block_idx=nsa.describe(chosen))
    for name, x in zip(names, inputs):
        place(name, x, lambda view: setattr(io, "q", view), io.kv, io.phi, io.gate)
    return io


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, attention, lengths, names, *inputs):
        inputs = [x.contiguous() for x in inputs]
        q, k = inputs[:2]
        o = torch.empty_like(q)
        chosen = torch.empty(len(q), k.shape[1], attention.model["count"], dtype=torch.int32, device=q.device)
        io = make_io(names, inputs, chosen)
        io.o = nsa.describe(o)
        attention.plan(nsa.FORWARD, lengths).run("nsa_forward", attention.stream(), attention.batch(lengths), io)
        ctx.save_for_backward(*inputs, chosen)
        ctx.attention, ctx.lengths, ctx.names, attention.chosen = attention, lengths, names, chosen
        return o

    @staticmethod
    def backward(ctx, d_o):
        *inputs, chosen = ctx.saved_tensors
        io, d_o, out = make_io(ctx.names, inputs, chosen), d_o.contiguous(), [torch.empty_like(x) for x in inputs]
        grads = nsa.Grads(struct_size=C.sizeof(nsa.Grads), d_o=nsa.describe(d_o))
        for name, x in zip(ctx.names, out):
            place(name, x, lambda view: setattr(grads, "d_q", view), grads.d_kv, grads.d_phi, grads.d_gate)
        attention = ctx.attention
        attention.plan(nsa.BACKWARD, ctx.lengths).run("nsa_backward", attention.stream(),
                                                      attention.batch(ctx.lengths), io, grads)
        return None, None, None, *out

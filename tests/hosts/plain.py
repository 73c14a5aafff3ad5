#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""A Python host: nsa_forward through ctypes, beside the same computation done plainly.

Plainly means what a framework does by hand: matrix products, softmax in float32, bf16 wherever something is
stored, on the indices that the library chose. Against float64 on those indices the library's error is at most
6e-3 and at no logit scale more than twice the plain computation's. Needs PyTorch; exit status 77 without it.

    plain.py LIBNSA [CONFIG]
"""
import ctypes as C
import sys

try:
    import torch
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)

BLOCK, STRIDE, SELECT, COUNT, WINDOW = 32, 16, 64, 16, 512  # of configs/h200_d128.yaml
HEADS, KV_HEADS, DIM = 32, 2, 128
BF16, F32, I32 = 2, 3, 4


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("shape", C.c_int64 * 5), ("stride", C.c_int64 * 5),
                ("ndim", C.c_int32), ("dtype", C.c_int32), ("reserved", C.c_int32 * 2)]


class Options(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("api_version", C.c_uint32), ("yaml_text", C.c_char_p),
                ("yaml_len", C.c_size_t), ("overrides", C.POINTER(C.c_char_p)), ("device", C.c_int32),
                ("deviceless", C.c_int32), ("arch", C.c_char_p), ("log", C.c_void_p),
                ("log_user", C.c_void_p), ("log_level", C.c_int32), ("reserved", C.c_int32 * 3)]


class Problem(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("op", C.c_int32), ("max_tokens", C.c_int64),
                ("max_kv_tokens", C.c_int64), ("max_kv_len", C.c_int64), ("max_seqs", C.c_int32),
                ("selection", C.c_int32), ("overlap", C.c_int32), ("max_probe_rows", C.c_int32),
                ("deterministic", C.c_int32), ("parity", C.c_int32), ("page_size", C.c_int32),
                ("max_q_len", C.c_int32), ("window_ring", C.c_int32), ("reserved", C.c_int32 * 1)]


class Caps(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("supported", C.c_int32), ("graph_level", C.c_int32),
                ("needs_compile", C.c_int32), ("workspace_bytes", C.c_uint64),
                ("workspace_align", C.c_uint64), ("variants", C.c_char * 512)]


class Exec(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("branches", C.c_uint32), ("workspace", C.c_void_p),
                ("workspace_bytes", C.c_uint64), ("stream", C.c_void_p)]


class Kv(C.Structure):
    _fields_ = [("k", Tensor * 3), ("v", Tensor * 3), ("k_cmp", Tensor), ("v_cmp", Tensor)]


class Phi(C.Structure):
    _fields_ = [("sides", Tensor * 12)]


class Gate(C.Structure):
    _fields_ = [("value", Tensor), ("mlp", Tensor * 5)]


class Io(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("softmax_scale", C.c_float), ("q", Tensor), ("o", Tensor),
                ("kv", Kv), ("phi", Phi), ("gate", Gate), ("block_idx", Tensor), ("ranges", Tensor),
                ("o_branch", Tensor * 3), ("lse", Tensor * 3), ("probe_rows", Tensor),
                ("probe_importance", Tensor)]


def describe(x):
    """The library's view of a torch tensor."""
    t = Tensor(data=x.data_ptr(), ndim=x.dim(),
               dtype={torch.bfloat16: BF16, torch.float32: F32, torch.int32: I32}[x.dtype])
    t.shape[: x.dim()], t.stride[: x.dim()] = x.shape, x.stride()
    return t


class Library:
    def __init__(self, path, config, device):
        self.lib = C.CDLL(path)
        self.lib.nsa_last_error.restype = C.c_char_p
        overrides = [f"model.heads={HEADS}", f"model.kv_heads={KV_HEADS}"]
        overrides += ["runtime.device=cpu"] if device == "cpu" else []
        names = (C.c_char_p * (len(overrides) + 1))(*[o.encode() for o in overrides], None)
        options = Options(struct_size=C.sizeof(Options), api_version=1, overrides=names, device=-1)
        self.ctx = C.c_void_p()
        self.check(self.lib.nsa_create(config.encode(), C.byref(options), C.byref(self.ctx)))

    def check(self, status):
        if status:
            sys.exit(self.lib.nsa_last_error().decode())

    def forward(self, q, k, v, gates):
        """o [T, Hq, D] and the chosen blocks [T, Hkv, n]."""
        problem = Problem(struct_size=C.sizeof(Problem), max_tokens=len(q))
        plan, caps = C.c_void_p(), Caps(struct_size=C.sizeof(Caps))
        self.check(self.lib.nsa_plan_create(self.ctx, C.byref(problem), None, None, C.byref(plan)))
        self.check(self.lib.nsa_plan_caps(plan, C.byref(caps)))
        workspace = torch.empty(max(caps.workspace_bytes, 1), dtype=torch.uint8, device=q.device)
        o = torch.empty_like(q)
        chosen = torch.empty(len(q), KV_HEADS, COUNT, dtype=torch.int32, device=q.device)
        io = Io(struct_size=C.sizeof(Io), q=describe(q), o=describe(o), block_idx=describe(chosen))
        io.kv.k[0], io.kv.v[0], io.gate.value = describe(k), describe(v), describe(gates)
        stream = torch.cuda.current_stream().cuda_stream if q.is_cuda else None
        run = Exec(struct_size=C.sizeof(Exec), workspace=workspace.data_ptr(),
                   workspace_bytes=workspace.numel(), stream=stream)
        self.check(self.lib.nsa_forward(plan, C.byref(run), None, C.byref(io)))
        if q.is_cuda:
            torch.cuda.synchronize()
        self.lib.nsa_plan_destroy(plan)
        return o, chosen


def attend(q, k, v, seen, store):
    """softmax(scale q k^T) v over the keys that `seen` [heads or 1, T, keys] allows; `store` rounds."""
    scores = store(torch.einsum("thd,shd->hts", q, k))
    scores = scores.to(q.dtype if q.dtype == torch.float64 else torch.float32) * DIM**-0.5
    probs = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    probs = store(torch.nan_to_num(probs, 0.0)).to(v.dtype)
    return store(torch.einsum("hts,shd->thd", probs, v))


def compute(q, k, v, gates, chosen, dtype, store):
    """The whole forward on given indices, in `dtype`, with `store` wherever something is stored."""
    q, k, v, gates = (x.to(dtype) for x in (q, k, v, gates))
    tokens, group = len(q), HEADS // KV_HEADS
    t = torch.arange(tokens, device=q.device)
    blocks = (tokens - BLOCK) // STRIDE + 1
    mean = lambda x: store(x.unfold(0, BLOCK, STRIDE).to(torch.promote_types(dtype, torch.float32)).mean(-1)).to(dtype)
    wide = lambda x: x.repeat_interleave(group, 1)
    ends = torch.arange(blocks, device=q.device) * STRIDE + BLOCK - 1
    taken = torch.zeros(tokens, KV_HEADS, tokens // SELECT + 2, dtype=torch.bool, device=q.device)
    taken.scatter_(2, torch.where(chosen >= 0, chosen, taken.shape[2] - 1).long(), True)
    taken = taken[:, :, :-1].repeat_interleave(SELECT, 2)[:, :, :tokens].permute(1, 0, 2)
    causal = t[None, :] <= t[:, None]
    seen = [(ends[None, :] <= t[:, None])[None], wide(taken.permute(1, 0, 2)).permute(1, 0, 2) & causal,
            (causal & (t[None, :] > t[:, None] - WINDOW))[None]]
    keys, values = [mean(k), k, k], [mean(v), v, v]
    o = sum(torch.sigmoid(gates[..., b : b + 1]) * attend(q, wide(keys[b]), wide(values[b]), seen[b], store)
            for b in range(3))
    return store(o)


def main():
    path, config = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "configs/h200_d128.yaml"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    library = Library(path, config, device)
    failed = 0
    torch.manual_seed(1)
    for tokens in (700, 1500) if device == "cuda" else (300,):
        for scale in (0.25, 1.0, 4.0):  # of the queries: flat to peaked softmax
            draw = lambda *shape: torch.randn(*shape, device=device).bfloat16()
            q, k, v = draw(tokens, HEADS, DIM) * scale, draw(tokens, KV_HEADS, DIM), draw(tokens, KV_HEADS, DIM)
            gates = draw(tokens, HEADS, 3)
            o, chosen = library.forward(q, k, v, gates)
            exact = compute(q, k, v, gates, chosen, torch.float64, lambda x: x)
            plain = compute(q, k, v, gates, chosen, torch.bfloat16, lambda x: x.bfloat16())
            error = lambda x: ((x.double() - exact).norm(dim=(0, 2)) / exact.norm(dim=(0, 2))).max().item()
            mine, theirs = error(o), error(plain)
            right = mine <= 6e-3 and mine <= 2 * theirs and not torch.isnan(o).any()
            failed += not right
            print(f"{tokens} tokens, queries x {scale}: libnsa {mine:.2e}, plain {theirs:.2e}{'' if right else '  FAILED'}")
    library.lib.nsa_destroy(library.ctx)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

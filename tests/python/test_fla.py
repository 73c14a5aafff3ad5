# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa.integrations.fla against fla's naive_nsa, which is plain PyTorch, on the CPU device in float32.

fla_gpu.py compares with fla's kernels on a GPU.
"""
import pytest
import torch

from conftest import framework

fla = framework("fla.ops.nsa.naive")

import nsa.integrations.fla as door  # noqa: E402


@pytest.fixture(autouse=True)
def fresh(device):
    if device != "cpu":
        pytest.skip("the naive functions are slow: fla_gpu.py is for GPUs")
    door.calls.clear()


def flash_attn_func(q, k, v, causal, window_size):
    """What flash_attn computes, in plain PyTorch."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    t = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    p = torch.arange(k.shape[1])[None]
    seen = (p <= t) & (p >= t - window_size[0])
    scores = torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhts,bshd->bthd", torch.softmax(scores.masked_fill(~seen, float("-inf")), -1), v)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window_size):
    parts = [flash_attn_func(q[a:b][None], k[c:d][None], v[c:d][None], causal, window_size)[0]
             for a, b, c, d in zip(cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:])]
    return torch.cat(parts)


@pytest.fixture(autouse=True)
def flash(monkeypatch):
    monkeypatch.setattr(fla, "flash_attn_func", flash_attn_func)
    monkeypatch.setattr(fla, "flash_attn_varlen_func", flash_attn_varlen_func)


def pooled(x, chunk_size, cu_seqlens=None):
    """fla's mean_pooling is a Triton kernel."""
    def whole(y):
        return torch.stack([y[i:i + chunk_size].mean(0) for i in range(0, len(y), chunk_size)])
    if cu_seqlens is None:
        return torch.stack([whole(y) for y in x])
    cu = cu_seqlens[1] if isinstance(cu_seqlens, tuple) else cu_seqlens
    return torch.cat([whole(x[0, a:b]) for a, b in zip(cu, cu[1:])])[None]


@pytest.fixture(autouse=True)
def pooling(monkeypatch):
    monkeypatch.setattr(fla, "mean_pooling", pooled)
    monkeypatch.setattr(fla, "prepare_chunk_offsets", lambda cu, size: torch.cat(
        [cu.new_zeros(1), torch.div(cu.diff() + size - 1, size, rounding_mode="floor").cumsum(0)]))


def inputs_of(batch, tokens, heads, kv_heads, dim, dim_v, seed=0):
    g = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.randn(*shape, generator=g)
    gates = [torch.sigmoid(make(batch, tokens, heads)) for _ in range(3)]
    return [x.requires_grad_() for x in (make(batch, tokens, heads, dim), make(batch, tokens, kv_heads, dim),
                                         make(batch, tokens, kv_heads, dim_v), *gates)]


CASES = {
    "one sequence": dict(batch=1, tokens=150),
    "batch": dict(batch=2, tokens=101),
    "no window": dict(batch=1, tokens=130, window=0),
    "odd dims": dict(batch=1, tokens=100, dim=20, dim_v=12),
    "varlen": dict(batch=1, tokens=170, cu=[0, 30, 31, 120, 170]),
    "MQA": dict(batch=1, tokens=90, heads=16, kv_heads=1),
    "few tokens": dict(batch=1, tokens=7),
}


@pytest.mark.parametrize("name", CASES)
def test_against_naive(name):
    case = {**dict(heads=32, kv_heads=2, dim=32, dim_v=32, window=24, cu=None, blocks=4), **CASES[name]}
    tensors = inputs_of(case["batch"], case["tokens"], case["heads"], case["kv_heads"], case["dim"], case["dim_v"])
    cu = None if case["cu"] is None else torch.tensor(case["cu"])
    more = dict(block_counts=case["blocks"], block_size=16, window_size=case["window"], cu_seqlens=cu)
    want = fla.naive_nsa(*tensors, **more)
    expected = torch.autograd.grad((want ** 2).sum(), tensors, allow_unused=True)
    got = door.parallel_nsa(*tensors, **more)
    assert torch.allclose(got, want, atol=2e-6)
    for a, b in zip(torch.autograd.grad((got ** 2).sum(), tensors, allow_unused=True), expected):
        assert torch.allclose(torch.zeros(1) if a is None else a, torch.zeros(1) if b is None else b, atol=2e-5)
    assert door.calls == {"libnsa": 1}


def test_given_blocks_without_compression():
    q, k, v, _, g_slc, g_swa = inputs_of(1, 90, 16, 1, 32, 32)
    blocks = torch.randint(0, 3, (1, 90, 1, 3))
    blocks[..., 0] = torch.arange(90)[None, :, None] // 16  # a row has something to see
    blocks, _ = blocks.sort(-1)
    blocks = torch.where((blocks == blocks.roll(1, -1)) & (torch.arange(3) > 0), -1, blocks)
    for gate in (None, g_slc):
        want = fla.naive_nsa(q, k, v, None, gate, g_swa, block_indices=blocks, block_size=16, window_size=8)
        got = door.parallel_nsa(q, k, v, None, gate, g_swa, block_indices=blocks, block_size=16, window_size=8)
        assert torch.allclose(got, want, atol=2e-6)


def test_counts_are_rounded_as_fla_does():
    tensors = inputs_of(1, 200, 16, 1, 32, 32)
    five = door.parallel_nsa(*tensors, block_counts=5, block_size=16)
    assert torch.equal(five, door.parallel_nsa(*tensors, block_counts=8, block_size=16))


def test_what_goes_back_to_fla(monkeypatch):
    tensors = inputs_of(1, 40, 16, 1, 32, 32)
    seen = []
    monkeypatch.setattr(door, "_own", lambda *args: seen.append(args) or args[0])
    wide = inputs_of(1, 40, 16, 1, 32, 264)
    for args, more in ((tensors, dict(block_counts=torch.full((1, 40, 1), 4))), (tensors, dict(scale=0.5, window_size=8)),
                       (tensors, dict(block_counts=2)), (wide, {})):
        with pytest.warns(UserWarning, match="fla's own kernels"):
            door.parallel_nsa(*args, **more)
    assert len(seen) == 4 and sum(door.calls.values()) == 4 and "libnsa" not in door.calls
    door.parallel_nsa(*tensors, scale=0.5, block_size=16)  # without a window the scale is applied everywhere
    assert door.calls["libnsa"] == 1


def test_patch_and_undo():
    import fla.ops.nsa
    import fla.ops.nsa.parallel
    own = fla.ops.nsa.parallel.parallel_nsa
    with door.patch():
        assert fla.ops.nsa.parallel_nsa is door.parallel_nsa is fla.ops.nsa.parallel.parallel_nsa
        with pytest.raises(RuntimeError, match="patched already"):
            door.patch()
    assert fla.ops.nsa.parallel_nsa is own is fla.ops.nsa.parallel.parallel_nsa


def test_layer():
    layers = framework("fla.layers.nsa")
    with door.patch():
        layer = layers.NativeSparseAttention(64, num_heads=16, num_kv_heads=1, head_dim=16, block_size=16, block_counts=4,
                                             window_size=16)
        layer.rotary.forward = lambda q, k, **_: (q, k)  # a Triton kernel in fla
        x = torch.randn(2, 50, 64, requires_grad=True)
        out = layer(x)[0]
        out.sum().backward()
    assert out.shape == x.shape and x.grad.any() and door.calls == {"libnsa": 1}

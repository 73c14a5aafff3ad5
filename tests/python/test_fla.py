# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa.integrations.fla against fla's naive_nsa, which is plain PyTorch, on the CPU device in float32.

naive_nsa serves one length of queries and keys, and takes block_counts as they are, where fla's kernels
take the next power of two. fla_gpu.py compares with fla's kernels on a GPU.
"""
import warnings

import pytest
import torch

from conftest import framework

fla = framework("fla.ops.nsa.naive")

import nsa  # noqa: E402
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


def near(got, want):
    """Within the float32 rounding of naive_nsa, which is most of what is between the two."""
    assert got.shape == want.shape
    assert (got - want).abs().max() <= 4e-6 * want.abs().max().clamp_min(1)


def same_gradients(got, want, inputs):
    """Of the sum of squares. What an output does not depend on has the gradient 0."""
    gradients = lambda o: torch.autograd.grad((o ** 2).sum(), inputs, allow_unused=True)
    for x, a, b in zip(inputs, gradients(got), gradients(want)):
        near(torch.zeros_like(x) if a is None else a, torch.zeros_like(x) if b is None else b)


CASES = {
    "one sequence": dict(tokens=110),
    "batch": dict(batch=2, tokens=85),
    "no window": dict(tokens=100, window=0),
    "odd dims": dict(tokens=100, dim=20, dim_v=12),
    "varlen": dict(tokens=120, cu=[0, 20, 21, 95, 120]),
    "two groups": dict(tokens=90, heads=32, kv_heads=2),
    "64 heads in 4 groups": dict(tokens=85, heads=64, kv_heads=4),
    "scale": dict(tokens=100, window=0, scale=0.5),
    "3 blocks": dict(tokens=100, counts=3),
    "16 blocks": dict(tokens=60, counts=16, blocks=16),
    "few tokens": dict(tokens=7),
}


@pytest.mark.parametrize("name", CASES)
def test_against_naive(name, monkeypatch):
    case = {**dict(batch=1, heads=16, kv_heads=1, dim=32, dim_v=32, window=24, cu=None, counts=4, blocks=4, scale=None),
            **CASES[name]}
    tensors = inputs_of(case["batch"], case["tokens"], case["heads"], case["kv_heads"], case["dim"], case["dim_v"])
    cu = None if case["cu"] is None else torch.tensor(case["cu"])
    more = dict(block_size=16, window_size=case["window"], cu_seqlens=cu, scale=case["scale"])
    want, blocks = fla.naive_nsa(*tensors, block_counts=case["blocks"], return_block_indices=True, **more)
    taken = []
    monkeypatch.setattr(door, "attention", lambda *args, **given: taken.append((args, given)) or nsa.attention(*args, **given))
    got = door.parallel_nsa(*tensors, block_counts=case["counts"], **more)
    near(got, want)
    (args, given), = taken
    _, chosen = nsa.attention(*args, **given, return_indices=True)
    # fla's are in the order of their scores. Both have -1 where fewer blocks are visible.
    assert torch.equal(chosen.reshape(blocks.shape).sort(-1).values, blocks.sort(-1).values.to(chosen.dtype))
    same_gradients(got, want, tensors)
    assert door.calls == {"libnsa": 1}


def test_given_blocks_without_compression():
    q, k, v, _, g_slc, g_swa = inputs_of(1, 90, 16, 1, 32, 32)
    blocks = torch.randint(0, 3, (1, 90, 1, 3))
    blocks[..., 0] = torch.arange(90)[None, :, None] // 16  # a row has something to see
    blocks, _ = blocks.sort(-1)
    blocks = torch.where((blocks == blocks.roll(1, -1)) & (torch.arange(3) > 0), -1, blocks)
    for gate in (None, g_slc):
        inputs = [x for x in (q, k, v, gate, g_swa) if x is not None]
        want = fla.naive_nsa(q, k, v, None, gate, g_swa, block_indices=blocks, block_size=16, window_size=8)
        got = door.parallel_nsa(q, k, v, None, gate, g_swa, block_indices=blocks, block_size=16, window_size=8)
        near(got, want)
        same_gradients(got, want, inputs)


def test_given_blocks_and_compression():
    tensors = inputs_of(1, 90, 16, 1, 32, 32)
    more = dict(block_counts=4, block_size=16, window_size=8)
    want, blocks = fla.naive_nsa(*tensors, **more, return_block_indices=True)
    near(door.parallel_nsa(*tensors, block_indices=blocks, **more), want)


def tail_of(tensors, rows):
    """The inputs for these rows of q alone: K and V stay."""
    q, k, v, *gates = [x.detach() for x in tensors]
    return [q[:, rows], k, v, *[g[:, rows] for g in gates]]


def test_fewer_queries_than_keys():
    """The queries are the last ones, as when a cache has the keys before them."""
    tensors = inputs_of(2, 90, 16, 1, 32, 32)
    more = dict(block_counts=4, block_size=16, window_size=24)
    want = fla.naive_nsa(*tensors, **more)
    for last in (1, 33):
        got = door.parallel_nsa(*tail_of(tensors, slice(-last, None)), **more)
        near(got, want[:, -last:])


def test_pair_of_cu_seqlens():
    tensors = inputs_of(1, 120, 16, 1, 32, 32)
    more = dict(block_counts=4, block_size=16, window_size=24)
    cu_k = torch.tensor([0, 20, 21, 95, 120])
    want = fla.naive_nsa(*tensors, cu_seqlens=cu_k, **more)
    near(door.parallel_nsa(*tensors, cu_seqlens=(cu_k, cu_k), **more), want)
    lengths = [3, 1, 40, 17]
    rows = torch.cat([torch.arange(end - n, end) for n, end in zip(lengths, cu_k[1:].tolist())])
    cu_q = torch.tensor([0, *lengths]).cumsum(0)
    got = door.parallel_nsa(*tail_of(tensors, rows), cu_seqlens=(cu_q, cu_k), **more)
    near(got, want[:, rows])


def test_counts_are_rounded_as_fla_does():
    tensors = inputs_of(1, 200, 16, 1, 32, 32)
    five = door.parallel_nsa(*tensors, block_counts=5, block_size=16)
    assert torch.equal(five, door.parallel_nsa(*tensors, block_counts=8, block_size=16))


def back_to_fla():
    """Arguments that libnsa does not serve, and the reason."""
    def of(device="meta", tokens=40, heads=16, kv_heads=1, dim=32, dim_v=32):
        return [x.detach().to(device) for x in inputs_of(1, tokens, heads, kv_heads, dim, dim_v)]
    blocks = lambda n: torch.zeros(1, 40, 1, n, dtype=torch.int64)
    return [(of, {}, dict(block_counts=torch.full((1, 40, 1), 4)), "block_counts is a tensor"),
            (of, {}, dict(scale=0.5, window_size=8), "together with a window"),
            (of, {}, dict(scale=0.0), "not positive"), (of, {}, dict(scale=-1.0), "not positive"),
            (of, {}, dict(block_counts=2), "fewer than 4 blocks"), (of, {}, dict(block_counts=257), "more than 256 blocks"),
            (of, {}, dict(block_indices=blocks(257)), "more than 256 blocks"),
            (of, dict(dim_v=264), {}, "wider than 256"), (of, dict(heads=128), {}, "more than 64 query heads")]


def test_what_goes_back_to_fla(monkeypatch):
    """Tensors of the device "meta" stand for those of a GPU."""
    seen = []
    monkeypatch.setattr(door, "_own", lambda *args: seen.append(args) or args[0])
    reasons = set()
    for i, (make, shape, more, reason) in enumerate(back_to_fla()):
        tensors = make(**shape)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert door.parallel_nsa(*tensors, **more) is tensors[0]
        assert [reason in str(w.message) for w in warned] == [True] * (reason not in reasons)  # once for each reason
        reasons.add(reason)
        assert all(a is b for a, b in zip(seen[i], tensors)) and len(seen[i]) == 12
    assert sum(door.calls.values()) == len(seen) and len(door.calls) == len(reasons) and "libnsa" not in door.calls


def test_what_goes_back_to_fla_needs_a_gpu():
    for make, shape, more, reason in back_to_fla():
        with pytest.raises(RuntimeError, match=f"{reason}.*need a GPU"):
            door.parallel_nsa(*make("cpu", **shape), **more)
    assert not door.calls


def test_arguments_are_those_of_fla():
    import inspect
    import fla.ops.nsa.parallel as parallel
    theirs = inspect.signature(inspect.unwrap(parallel.parallel_nsa)).parameters
    ours = inspect.signature(door.parallel_nsa).parameters
    assert [(x.name, x.default) for x in ours.values()] == [(x.name, x.default) for x in theirs.values()]


def test_wrong_arguments():
    q, k, v, *gates = inputs_of(2, 40, 16, 1, 32, 32)
    for more, message in ((dict(cu_seqlens=torch.tensor([0, 40])), "with cu_seqlens it is 1"), ({}, "block_indices is required"),
                          (dict(g_cmp=gates[0], window_size=8), "g_swa is required")):
        with pytest.raises(ValueError, match=message):
            door.parallel_nsa(q, k, v, **more)


def test_patch_and_undo():
    import fla.ops.nsa
    import fla.ops.nsa.parallel
    layers = framework("fla.layers.nsa")
    places = fla.ops.nsa, fla.ops.nsa.parallel, layers
    own = fla.ops.nsa.parallel.parallel_nsa
    with door.patch() as done:
        assert all(place.parallel_nsa is door.parallel_nsa for place in places)
        with pytest.raises(RuntimeError, match="patched already"):
            door.patch()
        fla.ops.nsa.parallel_nsa(*inputs_of(1, 20, 16, 1, 32, 32), block_size=16)
        assert done.calls == {"libnsa": 1}
    assert all(place.parallel_nsa is own for place in places)
    again = door.patch()
    assert again.calls == {} and done.calls == {"libnsa": 1}
    again.undo()
    again.undo()  # does nothing
    assert all(place.parallel_nsa is own for place in places)


def layer_of(layers):
    torch.manual_seed(0)
    layer = layers.NativeSparseAttention(64, num_heads=16, num_kv_heads=1, head_dim=16, block_size=16, block_counts=4,
                                         window_size=16)
    layer.rotary.forward = lambda q, k, **_: (q, k)  # a Triton kernel in fla
    return layer


def test_layer(monkeypatch):
    layers = framework("fla.layers.nsa")
    layer = layer_of(layers)
    x = torch.randn(2, 50, 64, requires_grad=True)
    inputs = [x, *layer.parameters()]
    with door.patch() as done:
        got = layer(x)[0]
    assert done.calls == {"libnsa": 1}
    monkeypatch.setattr(layers, "parallel_nsa", fla.naive_nsa)
    want = layer(x)[0]
    near(got, want)
    same_gradients(got, want, inputs)


def test_layer_with_padding():
    """With a mask, the layer hands over a pair of cu_seqlens."""
    layers = framework("fla.layers.nsa")
    layer, x = layer_of(layers), torch.randn(2, 50, 64)
    mask = torch.ones(2, 50, dtype=torch.int64)
    mask[1, :13] = 0
    with torch.no_grad(), door.patch() as done:
        got = layer(x, attention_mask=mask)[0]
        alone = layer(x[:1])[0], layer(x[1:, 13:])[0]
    near(got[:1], alone[0])
    near(got[1:, 13:], alone[1])
    assert done.calls == {"libnsa": 3}

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The loss of an index branch against PyTorch's autograd in float64, of the formulas in docs/algorithm.md."""
import pytest
import torch

import nsa

BLOCK, COUNT, DIM, INDEX_DIM = 16, 4, 32, 24


def config_of(heads, kv_heads, **more):
    return nsa.Config(heads=heads, kv_heads=kv_heads, head_dim=DIM, compress="none", window=0, gate="none",
                      select=dict(by="index", pool="max", block=BLOCK, count=COUNT, init=0, local=1),
                      index=dict(heads=kv_heads, dim=INDEX_DIM), **more)


def tensors_of(heads, kv_heads, tokens, keys, dtype=torch.float32):
    torch.manual_seed(heads * 1000 + tokens)
    shapes = (tokens, heads, DIM), (keys, kv_heads, DIM), (keys, kv_heads, DIM), (tokens, kv_heads, INDEX_DIM), (keys, 1, INDEX_DIM)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def oracle(q, k, index_q, k_idx, blocks, starts_q, starts_k):
    """The loss with coefficient 1, in float64, by dense masked matrices of one sequence after another."""
    total = 0.0
    group = q.shape[1] // k.shape[1]
    for (q0, q1), (k0, k1) in zip(zip(starts_q, starts_q[1:]), zip(starts_k, starts_k[1:])):
        position = torch.arange(q1 - q0) + (k1 - k0) - (q1 - q0)
        key = torch.arange(k1 - k0)
        for head in range(k.shape[1]):
            seen = key[None, :] <= position[:, None]
            if blocks is not None:  # a warm-up has none
                seen &= (blocks[q0:q1, head, :, None] == key[None, None, :] // BLOCK).any(1)
            hide = torch.where(seen, 0.0, -torch.inf).double()
            mine = q[q0:q1, head * group:(head + 1) * group].double()
            scores = torch.einsum("thd,sd->hts", mine, k[k0:k1, head].double()) * DIM ** -0.5
            mean = torch.softmax(scores + hide, -1).mean(0)
            index = index_q[q0:q1, head].double() @ k_idx[k0:k1, 0].double().T * INDEX_DIM ** -0.5
            log_pi = torch.log_softmax(index + hide, -1)
            rows = torch.where(seen, mean * (mean.clamp_min(1e-300).log() - log_pi), 0.0)
            total = total + rows.sum()
    return total / (q.shape[0] * k.shape[1])


def compare(loss, index_q, k_idx, want, exact_q, exact_k, factor=1.0):
    got = torch.autograd.grad(loss, (index_q, k_idx))
    exact = torch.autograd.grad(want * factor, (exact_q, exact_k))
    assert abs(loss.item() - factor * want.item()) <= (1e-3 if loss.is_cuda else 1e-5) * abs(factor * want.item()) + 1e-6
    for ours, theirs, x in zip(got, exact, (index_q, k_idx)):
        bound = 8e-3 if x.is_cuda else 4e-3 if x.dtype == torch.bfloat16 else 1e-5
        assert ours.dtype == x.dtype and ours.shape == x.shape
        assert (ours.double().cpu() - theirs).abs().max() <= bound * theirs.abs().max() + 1e-9


@pytest.mark.parametrize("heads, kv_heads", [(8, 2), (8, 1), (16, 1)])
@pytest.mark.parametrize("tokens", [15, 16, 17, 64, 65, 150])
def test_one_sequence(heads, kv_heads, tokens, device):
    """Groups of 4, 8 and 16 heads; block edges; up to 64 tokens every block is chosen."""
    config = config_of(heads, kv_heads)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v, index_q, k_idx = (x.to(device) for x in tensors_of(heads, kv_heads, tokens, tokens, dtype))
    _, blocks, lse = nsa.attention(q, k, v, config=config, index_q=index_q, k_idx=k_idx, return_indices=True, return_lse=True)
    index_q.requires_grad_(), k_idx.requires_grad_()
    loss = nsa.index_kl(q, k, index_q, k_idx, config=config, block_indices=blocks, lse=lse, coefficient=2.5)
    exact = [x.detach().cpu().double().requires_grad_() for x in (index_q, k_idx)]
    want = oracle(q.cpu(), k.cpu(), *exact, blocks.cpu(), (0, tokens), (0, tokens))
    compare(loss, index_q, k_idx, want, *exact, factor=2.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed(dtype, device):
    """Sequences that begin with old tokens, and gradients in bfloat16; a second run has the same bits."""
    if device != "cpu" and dtype == torch.float32:
        pytest.skip("kernels take bf16 and fp16")
    config = config_of(8, 2)
    starts_q, starts_k = (0, 70, 71, 100), (0, 90, 160, 189)
    q, k, v, index_q, k_idx = (x.to(device) for x in tensors_of(8, 2, 100, 189, dtype))
    place = dict(config=config, cu_seqlens=torch.tensor(starts_q, device=device),
                 cu_seqlens_k=torch.tensor(starts_k, device=device))
    q.requires_grad_()
    o, blocks, lse = nsa.attention(q, k, v, index_q=index_q, k_idx=k_idx, return_indices=True, return_lse=True, **place)
    assert o.requires_grad and not lse.requires_grad
    index_q.requires_grad_(), k_idx.requires_grad_()
    run = lambda: nsa.index_kl(q, k, index_q, k_idx, block_indices=blocks, lse=lse, **place)
    exact = [x.detach().cpu().double().requires_grad_() for x in (index_q, k_idx)]
    want = oracle(q.detach().cpu(), k.cpu(), *exact, blocks.cpu(), starts_q, starts_k)
    compare(run(), index_q, k_idx, want, *exact)
    first, second = (torch.autograd.grad(loss, (index_q, k_idx)) for loss in (run(), run()))
    assert torch.equal(run(), run()) and all(map(torch.equal, first, second))


def test_explain():
    """By the name of the operation."""
    story = nsa.explain(config_of(8, 2), "index_kl", device="cpu", dtype="f32", max_tokens=64)
    assert story.startswith("index_kl:f32:h8/2")


def test_lse(device):
    """return_lse alone, with a batch dimension, and what it refuses."""
    if device != "cpu":
        pytest.skip("in float32")
    config = config_of(8, 2)
    q, k, v, index_q, k_idx = tensors_of(8, 2, 40, 40)
    call = lambda *x, **other: nsa.attention(*x[:3], config=config, index_q=x[3], k_idx=x[4], return_lse=True, **other)
    o, lse = call(q, k, v, index_q, k_idx)
    scores = torch.einsum("thd,shd->hts", q, k.repeat_interleave(4, 1)) * DIM ** -0.5
    hide = torch.where(torch.ones(40, 40, dtype=torch.bool).tril(), 0.0, -torch.inf)
    assert (torch.logsumexp(scores + hide, -1).T - lse).abs().max() < 1e-5
    both = [torch.stack([x, x]) for x in (q, k, v, index_q, k_idx)]
    o2, blocks, lse2 = call(*both, return_indices=True)
    assert lse2.shape == (2, 40, 8) and torch.equal(lse2[1], lse) and torch.equal(o2[0], o)
    plain = nsa.Config(heads=8, kv_heads=2, head_dim=DIM, compress=dict(block=16, stride=8))
    gates = torch.zeros(40, 8, 3)
    with pytest.raises(ValueError, match="return_lse is of the selected branch"):
        nsa.attention(q, k, v, gates, config=plain, branches=["window"], return_lse=True)
    with pytest.raises(ValueError, match="coefficient is 0"):
        nsa.index_kl(q, k, index_q, k_idx, config=config, block_indices=blocks[0], lse=lse, coefficient=0)
    with pytest.raises(nsa.ArgumentError, match="there is no index to train"):
        nsa.index_kl(q, k, index_q, k_idx, config=plain, block_indices=blocks[0], lse=lse)


def index_sums(index_q, k_idx, blocks, first=0):
    """The log-sum-exp of the index in float64, of one sequence whose first query is token `first`."""
    position, key = first + torch.arange(index_q.shape[0]), torch.arange(k_idx.shape[0])
    seen = (blocks[..., None] == key // BLOCK).any(2) & (key <= position[:, None])[:, None]
    scores = torch.einsum("thd,sd->ths", index_q.double(), k_idx[:, 0].double()) * INDEX_DIM ** -0.5
    return torch.logsumexp(scores.masked_fill(~seen, -torch.inf), -1)


def test_index_lse(device):
    """return_index_lse alone and beside the others, of the caller's blocks, with a batch dimension; what it refuses."""
    config = config_of(8, 2)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    bound = 1e-5 if device == "cpu" else 1e-3
    q, k, v, index_q, k_idx = (x.to(device) for x in tensors_of(8, 2, 150, 150, dtype))
    call = lambda *x, **other: nsa.attention(*x[:3], config=config, index_q=x[3], k_idx=x[4], return_index_lse=True, **other)
    close = lambda got, blocks: (index_sums(index_q.cpu(), k_idx.cpu(), blocks.cpu()) - got.cpu()).abs().max() < bound
    o, blocks, lse, got = call(q, k, v, index_q, k_idx, return_indices=True, return_lse=True)
    assert got.shape == (150, 2) and got.dtype == torch.float32 and close(got, blocks)
    for other, also in (dict(), ()), (dict(return_indices=True), (blocks,)), (dict(return_lse=True), (lse,)):
        assert all(map(torch.equal, call(q, k, v, index_q, k_idx, **other), (o, *also, got)))
    given = torch.stack([blocks[..., 0], torch.full_like(blocks[..., 0], -1), blocks[..., 0], blocks[..., 2]], -1)
    assert close(call(q, k, v, index_q, k_idx, block_indices=given)[1], given)
    none = call(q, k, v, index_q, k_idx, block_indices=torch.full_like(given, -1))[1]
    assert (none == -torch.inf).all()
    both = [torch.stack([x, x]) for x in (q, k, v, index_q, k_idx)]
    assert torch.equal(call(*both)[1], torch.stack([got, got]))
    plain = nsa.Config(heads=8, kv_heads=2, head_dim=DIM, compress=dict(block=16, stride=8))
    with pytest.raises(ValueError, match="return_index_lse is of an index, and the configuration has none"):
        nsa.attention(q, k, v, torch.zeros(150, 8, 3, device=device), config=plain, return_index_lse=True)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_index_lse_and_gradients(compiled, recompute, device):
    """It has no gradient and changes none, whether branches are saved for the backward pass or not."""
    config = config_of(8, 2, runtime=dict(recompute=recompute))
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v, index_q, k_idx = (x.to(device).requires_grad_() for x in tensors_of(8, 2, 90, 90, dtype))
    run = lambda **other: nsa.attention(q, k, v, config=config, index_q=index_q, k_idx=k_idx, **other)
    want = torch.autograd.grad(run().float().square().sum(), (q, k, v))
    if compiled:
        torch._dynamo.reset()
    step = torch.compile(run, fullgraph=True, backend="aot_eager") if compiled else run
    o, blocks, lse = step(return_indices=True, return_index_lse=True)
    assert o.requires_grad and not lse.requires_grad
    assert (index_sums(index_q.detach().cpu(), k_idx.detach().cpu(), blocks.cpu()) - lse.cpu()).abs().max() < 1e-3
    assert all(map(torch.equal, torch.autograd.grad(o.float().square().sum(), (q, k, v)), want))


def test_index_lse_over_a_cache(device):
    """Of a prefill and of decode steps: the blocks and the sums that `attention` has of the whole sequence."""
    config = config_of(8, 2)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v, index_q, k_idx = (x.to(device) for x in tensors_of(8, 2, 90, 90, dtype))
    cache = nsa.KVCache(config, 1, 8, 16, dtype=dtype, device=device)
    for begin, end in (0, 70), (70, 71), (71, 72), (72, 90):
        batch = cache.begin(["a"], [end - begin])
        cache.append(0, batch, k[begin:end], v[begin:end], k_idx=k_idx[begin:end])
        attend = lambda **other: cache.attend(0, batch, q[begin:end], index_q=index_q[begin:end], **other)
        o, blocks, lse = attend(return_indices=True, return_index_lse=True)
        assert blocks.shape == (end - begin, 2, COUNT) and lse.shape == (end - begin, 2)
        sums = index_sums(index_q[begin:end].cpu(), k_idx[:end].cpu(), blocks.cpu(), begin)
        assert (sums - lse.cpu()).abs().max() < (1e-5 if device == "cpu" else 1e-3)
        if device == "cpu":
            whole = nsa.attention(q[:end], k[:end], v[:end], config=config, index_q=index_q[:end], k_idx=k_idx[:end],
                                  return_indices=True)[1]
            assert torch.equal(blocks, whole[begin:end])
        assert torch.equal(attend(), o) and torch.equal(attend(return_index_lse=True)[1], lse)
        assert torch.equal(attend(return_indices=True)[1], blocks)
    plain = nsa.Config(heads=8, kv_heads=2, head_dim=DIM, gate="none", compress=dict(block=16, stride=8))
    cache = nsa.KVCache(plain, 1, 8, 16, dtype=dtype, device=device)
    batch = cache.begin(["a"], [20])
    cache.append(0, batch, k[:20], v[:20])
    assert cache.attend(0, batch, q[:20], return_indices=True)[1].shape == (20, 2, plain.select["count"])
    with pytest.raises(ValueError, match="return_index_lse is of an index"):
        cache.attend(0, batch, q[:20], return_index_lse=True)


@pytest.mark.parametrize("heads, kv_heads", [(8, 2), (16, 1)])
@pytest.mark.parametrize("tokens", [16, 17, 150])
def test_warm_up(heads, kv_heads, tokens, device):
    """Over every token that a query sees, beside the LSE of dense attention; a packed batch."""
    config = config_of(heads, kv_heads)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, _, index_q, k_idx = tensors_of(heads, kv_heads, tokens, tokens, dtype)
    starts = (0, tokens // 3, tokens)
    lse = torch.empty(tokens, heads)
    for first, end in zip(starts, starts[1:]):
        each = k[first:end].double().repeat_interleave(heads // kv_heads, 1)
        scores = torch.einsum("thd,shd->ths", q[first:end].double(), each) * DIM ** -0.5
        future = torch.ones(end - first, end - first, dtype=torch.bool).triu(1)
        lse[first:end] = torch.logsumexp(scores.masked_fill(future[:, None], -torch.inf), -1)
    exact = [x.double().requires_grad_() for x in (index_q, k_idx)]
    want = oracle(q, k, *exact, None, starts, starts)
    q, k, index_q, k_idx, lse = (x.to(device) for x in (q, k, index_q, k_idx, lse))
    index_q.requires_grad_(), k_idx.requires_grad_()
    cu = torch.tensor(starts, dtype=torch.int32, device=device)
    loss = nsa.index_kl(q, k, index_q, k_idx, config=config, lse=lse, cu_seqlens=cu)
    compare(loss, index_q, k_idx, want, *exact)

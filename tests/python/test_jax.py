# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa.jax against nsa.attention of PyTorch: the same bits. One case also meets the oracle directly."""
import functools
import subprocess
import sys

import numpy as np
import pytest

from conftest import framework

jax = framework("jax")
torch = framework("torch")

import jax.numpy as jnp  # noqa: E402

import nsa  # noqa: E402
import nsa.jax  # noqa: E402
import oracle  # noqa: E402
from nsa._places import GATE  # noqa: E402
from test_torch import INFLLM, MODELS, close, config_of, dtype_of, inputs_of, leaves, phi_weights, wide  # noqa: E402

INDEXED = dict(compress="none", gate="none", window=0, index=dict(heads=2, dim=16),
               select=dict(by="index", pool="max", block=16, count=4, init=0, local=1))


def across(x):
    """A tensor of PyTorch as an array."""
    if isinstance(x, (list, tuple)):
        return [across(y) for y in x]
    if isinstance(x, dict):
        return {name: across(y) for name, y in x.items()}
    if x.dtype == torch.float8_e4m3fn:
        return jax.lax.bitcast_convert_type(jnp.asarray(x.cpu().view(torch.uint8).numpy()), jnp.float8_e4m3fn)
    if x.dtype == torch.bfloat16:
        return jnp.asarray(x.detach().float().cpu().numpy()).astype(jnp.bfloat16)
    return jnp.asarray(x.detach().cpu().numpy())


def same(array, tensor):
    return np.array_equal(np.asarray(array, dtype=np.float32), tensor.detach().float().cpu().numpy())


@pytest.mark.parametrize("name", MODELS)
def test_the_bits_of_torch(name, device):
    config = config_of(**MODELS[name])
    q, k, v, gates = inputs_of(config, 130, device)
    weights = phi_weights(config, device) if config.compress["phi"] != "mean" else {}
    arrays = tuple(across(x) for x in (q, k, v, gates, weights))
    for x in leaves(q, k, v, gates, weights):
        x.requires_grad_()
    want, blocks = nsa.attention(q, k, v, gates, config=config, weights=weights, return_indices=True)
    d_o = torch.randn(want.shape, generator=torch.Generator().manual_seed(3)).to(want)
    grads = torch.autograd.grad(want, leaves(q, k, v, gates, weights), d_o, allow_unused=True)

    def loss(q, k, v, gates, weights):
        o, idx = nsa.jax.attention(q, k, v, gates, config=config, weights=weights, return_indices=True)
        return (o.astype(jnp.float32) * across(d_o).astype(jnp.float32)).sum(), (o, idx)

    got, (o, idx) = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True))(*arrays)
    assert same(o, want)
    assert idx.shape == (130, 2, config.select["count"]) and np.array_equal(np.ravel(idx), blocks.cpu().ravel())
    flat = leaves(*got[:4]) + [got[4][name] for name in weights]
    assert len(flat) == len(grads) and all(same(a, b) for a, b in zip(flat, grads))


def same_gradients(call, torch_call, tensors):
    """Both calls take all tensors. The gradients of the sums are compared bit by bit."""
    arrays = [across(x) for x in tensors]
    for x in tensors:
        x.requires_grad_()
    want = torch.autograd.grad(torch_call(*tensors).float().sum(), tensors)
    got = jax.jit(jax.grad(lambda *x: call(*x).astype(jnp.float32).sum(), argnums=tuple(range(len(arrays)))))(*arrays)
    return all(same(a, b) for a, b in zip(got, want))


def test_the_oracle(device):
    config = config_of()
    tensors = inputs_of(config, 90, device)
    exact = [wide(x).requires_grad_() for x in tensors]

    def loss(*x):
        o, idx = nsa.jax.attention(*x, config=config, return_indices=True)
        return o.astype(jnp.float32).sum(), (o, idx)

    got, (o, idx) = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(*[across(x) for x in tensors])
    back = lambda x: torch.from_numpy(np.array(x, dtype=np.float32))
    given = None if device == "cpu" else torch.from_numpy(np.array(idx))
    want, blocks = oracle.attention(*exact, config, None, given)
    assert np.array_equal(idx, blocks)
    close(back(o), want.detach(), device)
    for array, expected in zip(got, torch.autograd.grad(want.sum(), exact)):
        close(back(array), expected, device, 1.5e-2)


def test_gradients_of_packed_sequences(device):
    config = config_of()
    for q_starts, kv_starts in ([0, 30, 90], None), ([0, 10, 40], [0, 30, 90]):
        starts = [None if x is None else torch.tensor(x, dtype=torch.int32, device=device) for x in (q_starts, kv_starts)]
        arrays = [None if x is None else across(x) for x in starts]
        assert same_gradients(
            lambda *x: nsa.jax.attention(*x, config=config, cu_seqlens=arrays[0], cu_seqlens_k=arrays[1], max_seqlen=60),
            lambda *x: nsa.attention(*x, config=config, cu_seqlens=starts[0], cu_seqlens_k=starts[1], max_seqlen=60),
            inputs_of(config, q_starts[-1], device, keys=90))


def test_gradients_of_given_blocks_and_under_vmap(device):
    config = config_of()
    blocks = torch.randint(-1, 5, (90, 2, 4), dtype=torch.int32, generator=torch.Generator().manual_seed(2)).to(device)
    assert same_gradients(lambda *x: nsa.jax.attention(*x, config=config, block_indices=across(blocks)),
                          lambda *x: nsa.attention(*x, config=config, block_indices=blocks), inputs_of(config, 90, device))
    assert same_gradients(jax.vmap(lambda *x: nsa.jax.attention(*x, config=config)),
                          lambda *x: nsa.attention(*x, config=config), inputs_of(config, 60, device, batch=(3,)))


def test_gradients_of_the_gate_mlp_and_of_external_keys(device):
    g = torch.Generator().manual_seed(5)
    make = lambda *shape: (torch.randn(*shape, generator=g) * 0.2).to(device, dtype_of(device))
    config = config_of(gate="mlp", gate_mlp=dict(channels=64, hidden=32, activation="silu"))
    names = GATE
    weights = [make(90, 64), make(64, 32), make(32), make(32, 12), make(12)]
    mlp = lambda f: lambda q, k, v, *w: f(q, k, v, config=config, weights=dict(zip(names, w)))
    assert same_gradients(mlp(nsa.jax.attention), mlp(nsa.attention), [*inputs_of(config, 90, device)[:3], *weights])
    outside = config_of(compress=dict(block=16, stride=8, phi="external"))
    given = lambda f: lambda q, k, v, g, a, b: f(q, k, v, g, config=outside, weights={"k_cmp": a, "v_cmp": b})
    count = (90 - 16) // 8 + 1
    assert same_gradients(given(nsa.jax.attention), given(nsa.attention),
                          [*inputs_of(outside, 90, device), make(count, 2, 32), make(count, 2, 32)])


def test_batches_packing_and_vmap(device):
    config = config_of()
    tensors = inputs_of(config, 60, device, batch=(3,))
    arrays = [across(x) for x in tensors]
    function = jax.jit(lambda q, k, v, g: nsa.jax.attention(q, k, v, g, config=config))
    want = nsa.attention(*tensors, config=config)
    assert same(function(*arrays), want)
    assert same(jax.vmap(function)(*arrays), want)
    cu = jnp.asarray([0, 60, 120, 180])
    flat = [x.reshape(-1, *x.shape[2:]) for x in arrays]
    packed = nsa.jax.attention(*flat, config=config, cu_seqlens=cu, max_seqlen=60)
    assert same(packed, want.flatten(0, 1))


def test_given_blocks_and_branches(device):
    config = config_of()
    q, k, v, gates = inputs_of(config, 80, device)
    blocks = torch.randint(-1, 5, (80, 2, 4), dtype=torch.int32)
    arrays = [across(x) for x in (q, k, v, gates)]
    for branches in (None, ["selected"], ["compressed", "window"]):
        want = nsa.attention(q, k, v, gates, config=config, block_indices=blocks.to(q.device), branches=branches)
        assert same(nsa.jax.attention(*arrays, config=config, block_indices=across(blocks), branches=branches), want)


def index_of(tokens, device, batch=()):
    """Queries and keys of an index of the model INDEXED."""
    g = torch.Generator().manual_seed(7)
    return [torch.randn(*batch, tokens, heads, 16, generator=g).to(device, dtype_of(device)) for heads in (2, 1)]


@pytest.mark.parametrize("window", [0, 24])
def test_an_index(window, device):
    """Blocks, output, and gradients of q, k and v; none of the index. Packed sequences, and a batch."""
    gate = {} if window == 0 else dict(gate="weights")
    config = config_of(**{**INDEXED, "window": window, **gate})
    for batch in (), (3,):
        q, k, v, gates = inputs_of(config, 90, device, batch=batch)
        tensors, index = [q, k, v, *([gates] if gate else [])], index_of(90, device, batch)
        arrays, index_arrays = across(tensors), across(index)
        for x in tensors:
            x.requires_grad_()
        cu = None if batch else torch.tensor([0, 20, 90], dtype=torch.int32, device=device)
        want, blocks = nsa.attention(*tensors, config=config, index_q=index[0], k_idx=index[1], cu_seqlens=cu,
                                     return_indices=True)
        d_o = torch.randn(want.shape, generator=torch.Generator().manual_seed(3)).to(want)
        grads = torch.autograd.grad(want, tensors, d_o)

        def loss(tensors, index):
            o, idx = nsa.jax.attention(*tensors, config=config, index_q=index[0], k_idx=index[1],
                                       cu_seqlens=None if cu is None else across(cu), return_indices=True)
            return (o.astype(jnp.float32) * across(d_o).astype(jnp.float32)).sum(), (o, idx)

        (got, none), (o, idx) = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(arrays, index_arrays)
        assert same(o, want) and np.array_equal(idx, blocks.cpu())
        assert all(same(a, b) for a, b in zip(got, grads))
        assert len(none) == 2 and not any(x.any() for x in none)


@pytest.mark.parametrize("packed", [False, True])
def test_index_kl(packed, device):
    """The LSE, and the loss of an index with its gradients, over the chosen blocks and as a warm-up: the bits of torch."""
    config = config_of(**INDEXED)
    q, k, v, _ = inputs_of(config, 90, device)
    index = index_of(90, device)
    cu = torch.tensor([0, 20, 90], dtype=torch.int32, device=device) if packed else None
    where, arrays_where = dict(cu_seqlens=cu), dict(cu_seqlens=None if cu is None else across(cu))
    arrays, index_arrays = across([q, k, v]), across(index)
    _, blocks, lse = nsa.attention(q, k, v, config=config, index_q=index[0], k_idx=index[1], return_indices=True, return_lse=True,
                                   **where)
    o, idx, got = nsa.jax.attention(*arrays, config=config, index_q=index_arrays[0], k_idx=index_arrays[1], return_indices=True,
                                    return_lse=True, **arrays_where)
    assert same(got, lse) and np.array_equal(idx, blocks.cpu())
    for x in index:
        x.requires_grad_()
    dense = torch.randn(lse.shape, generator=torch.Generator().manual_seed(5)).abs().to(lse) + 4
    for given in dict(block_indices=blocks, lse=lse), dict(lse=dense):
        want = nsa.index_kl(q, k, *index, config=config, coefficient=2.5, **given, **where)
        grads = torch.autograd.grad(3 * want, index)

        def loss(q, k, index, given):
            return 3 * nsa.jax.index_kl(q, k, *index, config=config, coefficient=2.5, **given, **arrays_where)

        value, (d_q, d_k, d_index) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(*arrays[:2], index_arrays, across(given))
        assert abs(float(value) - 3 * want.item()) <= 1e-6 * abs(3 * want.item())
        for ours, theirs in zip(d_index, grads):
            theirs = theirs.float().cpu().numpy()
            assert np.abs(np.asarray(ours, np.float32) - theirs).max() <= 8e-3 * np.abs(theirs).max() and theirs.any()
        assert not d_q.any() and not d_k.any()
    with pytest.raises(ValueError, match="coefficient is 0"):
        nsa.jax.index_kl(*arrays[:2], *index_arrays, config=config, lse=across(lse), coefficient=0)
    with pytest.raises(ValueError, match="return_lse is of the selected branch"):
        nsa.jax.attention(*arrays, config=config, index_q=index_arrays[0], k_idx=index_arrays[1], return_lse=True,
                          branches=["window"])


def test_index_lse(device):
    """The log-sum-exp of the index, alone, beside the others and of the caller's blocks, and no gradient of it: the bits of torch."""
    config = config_of(**INDEXED)
    q, k, v, _ = inputs_of(config, 90, device)
    index = index_of(90, device)
    arrays, index_arrays = across([q, k, v]), across(index)
    batch = lambda tensors: [x[None] for x in tensors]
    call = lambda *tensors, **other: nsa.attention(*tensors[:3], config=config, index_q=tensors[3], k_idx=tensors[4], **other)
    jax_call = lambda *x, **other: nsa.jax.attention(*x[:3], config=config, index_q=x[3], k_idx=x[4], return_index_lse=True, **other)
    o, blocks, lse, want = call(q, k, v, *index, return_indices=True, return_lse=True, return_index_lse=True)
    got = jax_call(*arrays, *index_arrays, return_indices=True, return_lse=True)
    assert len(got) == 4 and all(same(*pair) for pair in zip((got[0], *got[2:]), (o, lse, want)))
    assert np.array_equal(got[1], blocks.cpu()) and got[3].shape == (90, config.index["heads"])
    assert same(jax_call(*arrays, *index_arrays)[1], want)
    assert same(jax_call(*batch(arrays), *batch(index_arrays))[1][0], want)
    given = blocks.flip(-1)
    wanted = call(q, k, v, *index, block_indices=given, return_index_lse=True)[1]
    assert same(jax_call(*arrays, *index_arrays, block_indices=across(given))[1], wanted)
    total = lambda which: lambda arrays, index_arrays: jax_call(*arrays, *index_arrays)[which].astype(jnp.float32).sum()
    assert not any(x.any() for x in jax.tree.leaves(jax.grad(total(1), argnums=(0, 1))(arrays, index_arrays)))
    plain = lambda arrays: nsa.jax.attention(*arrays, config=config, index_q=index_arrays[0], k_idx=index_arrays[1])
    exact = jax.grad(lambda arrays: plain(arrays).astype(jnp.float32).sum())(arrays)
    assert all(map(np.array_equal, jax.jit(jax.grad(total(0)))(arrays, index_arrays), exact))
    with pytest.raises(ValueError, match="return_index_lse is of an index, and the configuration has none"):
        nsa.jax.attention(*arrays, config=config_of(gate="none"), return_index_lse=True)


CACHES = {"mean": {}, "linear": dict(compress=dict(block=16, stride=8, phi="linear")), "per branch": dict(kv_sharing="per_branch"),
          "index": INDEXED, "infllm": INFLLM}


def cache_of(config, rows, device, codes=None):
    """A cache of `rows` pages of 16 tokens for nsa.append: as KVCache makes it. codes: FP8 of K, V and index keys."""
    scales = dict(k0=torch.tensor([0.0625, 0.03125]), v0=0.05) | (dict(k_idx=0.02) if config.index else {}) if codes else None
    return nsa.KVCache(config, 1, rows, 16, dtype=dtype_of(device), device=device, kv_dtype=codes,
                       cmp_dtype=codes if config.index else None, scales=scales).layers[0]


def equal_caches(arrays, tensors):
    return sorted(arrays) == sorted(tensors) and all(same(arrays[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("name", [*CACHES, "FP8", "index in FP8"])
def test_a_cache_of_pages(name, device):
    """Prompts in chunks, then decode, of three sequences, one of them empty: the bits of torch in o and in every page."""
    config = config_of(**CACHES.get(name.removesuffix(" in FP8"), {}))
    weights = phi_weights(config, device) if name == "linear" else {}
    many, indexed = name == "per branch", name.startswith("index")
    cache = cache_of(config, 20, device, torch.float8_e4m3fn if name.endswith("FP8") else None)
    arrays, weight_arrays = across(cache), across(weights)
    tables = torch.randperm(20, generator=torch.Generator().manual_seed(4)).to(device, torch.int32)[:18].view(3, 6)
    data = [inputs_of(config, 90, device, seed=s) for s in range(2)]
    index = [index_of(90, device), [x.flip(0) for x in index_of(90, device)]]
    ints = lambda *x: torch.tensor(x, dtype=torch.int32, device=device)
    join = lambda parts: [torch.cat(p) for p in zip(*parts)] if isinstance(parts[0], list) else torch.cat(parts)
    rows = lambda x, a, b: [y[a:b] for y in x] if isinstance(x, list) else x[a:b]

    # Lengths are arrays, so that one program serves all lengths.
    @functools.partial(jax.jit, static_argnames=("max_q",), donate_argnums=0)
    def jax_step(cache, q, k, v, gates, index_q, k_idx, kv_len, cu_seqlens, max_q):
        where = dict(config=config, kv_len=kv_len, max_kv=96, block_table=across(tables), cu_seqlens=cu_seqlens,
                     weights=weight_arrays)
        cache = nsa.jax.append(cache, k, v, k_idx=k_idx, **where)
        attend = nsa.jax.decode if max_q <= 4 else nsa.jax.prefill
        return cache, attend(q, cache, gates, max_q=max_q, index_q=index_q, return_indices=True, return_index_lse=indexed, **where)

    lengths = [0, 0]
    for new in (37, 5), (20, 64), (3, 1), (1, 4), (1, 1):
        spans = [(a, a + n) for a, n in zip(lengths, new)]
        lengths = [b for _, b in spans]
        q, k, v, gates = (join([rows(data[i][x], *spans[i]) for i in range(2)]) for x in range(4))
        gates = None if config.gate == "none" else gates
        index_q, k_idx = (join([index[i][x][slice(*spans[i])] for i in range(2)]) if indexed else None for x in range(2))
        kv_len, cu = ints(*lengths, 0), ints(0, new[0], sum(new), sum(new))
        max_q = 4 if max(new) <= 4 else 64
        where = dict(config=config, kv_len=kv_len, max_kv=96, block_table=tables, cu_seqlens=cu, weights=weights)
        nsa.append(cache, k, v, k_idx=k_idx, **where)
        want = (nsa.decode if max_q <= 4 else nsa.prefill)(q, cache, gates, max_q=max_q, index_q=index_q, return_indices=True,
                                                           return_index_lse=indexed, **where)
        maybe = lambda x: None if x is None else across(x)
        arrays, got = jax_step(arrays, *(maybe(x) for x in (q, k, v, gates, index_q, k_idx, kv_len, cu)), max_q=max_q)
        assert same(got[0], want[0]) and np.array_equal(got[1], want[1].cpu()) and equal_caches(arrays, cache)
        assert len(got) == len(want) == 2 + indexed and (not indexed or same(got[2], want[2]))
    assert lengths == [62, 75] and (not many or "k2" in cache) and (not indexed or "k_idx" in cache)


def test_pages_in_lists_rows_and_tokens_that_are_not_written(device):
    """Two lists of pages are the table; slots name rows; slot_mapping -1 leaves a token out. What goes in stays as it was."""
    config = config_of()
    q, k, v, gates = inputs_of(config, 48, device)
    arrays = [across(x) for x in (q, k, v, gates)]
    ints = lambda *x: torch.tensor(x, dtype=torch.int32, device=device)
    cache, empty = cache_of(config, 5, device), across(cache_of(config, 5, device))
    table, place = ints(3, 0, 4)[None], dict(config=config, max_kv=48)
    mapping = torch.cat([page * 16 + torch.arange(16) for page in (3, 0, 4)]).to(device)
    mapping[40:] = -1
    nsa.append(cache, k, v, kv_len=ints(48), block_table=table, slot_mapping=mapping, **place)
    lists = dict(page_indptr=jnp.asarray([0, 3]), page_indices=across(table[0]))
    for pages in dict(block_table=across(table)), lists:
        got = nsa.jax.append(empty, *arrays[1:3], kv_len=jnp.asarray([48]), slot_mapping=across(mapping.int()), **pages, **place)
        assert equal_caches(got, cache)
        assert not any(x.any() for x in empty.values())
        got = nsa.jax.append(empty, *arrays[1:3], kv_len=jnp.asarray([48]), **pages, **place)
        o = nsa.jax.prefill(arrays[0], got, arrays[3], kv_len=jnp.asarray([48]), max_q=48, **pages, **place)
        want = nsa.attention(q, k, v, gates, config=config).double().cpu()
        close(torch.from_numpy(np.array(o, dtype=np.float32)), want, device, 1.2e-2)
    rows = lambda count: torch.zeros(3, count, 2, 32, device=device, dtype=dtype_of(device))
    cache = dict(k0=rows(48), v0=rows(48), k_cmp=rows(6), v_cmp=rows(6))
    begin = across(cache)
    nsa.append(cache, k, v, kv_len=ints(48), slots=ints(2), **place)
    got = nsa.jax.append(begin, *arrays[1:3], kv_len=jnp.asarray([48]), slots=jnp.asarray([2]), **place)
    assert equal_caches(got, cache) and got["k0"][2].any() and not got["k0"][:2].any()


def test_a_cache_without_tokens_and_its_errors(device):
    config = config_of(**INDEXED)
    cache = across(cache_of(config, 4, device))
    q, k, v, _ = [across(x) for x in inputs_of(config, 16, device)]
    index_q, k_idx = across(index_of(16, device))
    where = dict(config=config, kv_len=jnp.asarray([16]), max_kv=64, block_table=jnp.asarray([[1]]))
    assert nsa.jax.append(cache, k[:0], v[:0], k_idx=k_idx[:0], **where).keys() == cache.keys()
    assert nsa.jax.decode(q[:0], cache, index_q=index_q[:0], **where).shape == (0, 4, 32)
    none = nsa.jax.decode(q[:0], cache, index_q=index_q[:0], return_indices=True, return_index_lse=True, **where)
    assert [x.shape for x in none] == [(0, 4, 32), (0, 2, config.select["count"]), (0, 2)]
    with pytest.raises(Exception, match="io.new_k_idx"):
        jax.block_until_ready(nsa.jax.append(cache, k, v, **where))
    with pytest.raises(Exception, match="io.index_q"):
        jax.block_until_ready(nsa.jax.prefill(q, cache, max_q=16, **where))
    with pytest.raises(ValueError, match="at least k0 and v0"):
        nsa.jax.append({}, k, v, **where)
    with pytest.raises(ValueError, match="the cache has no q; the names are k0"):
        nsa.jax.append({**cache, "q": q}, k, v, k_idx=k_idx, **where)
    with pytest.raises(ValueError, match="weights has no k_cmp"):
        nsa.jax.append(cache, k, v, k_idx=k_idx, weights={"k_cmp": k}, **where)
    with pytest.raises(ValueError, match="it has 4"):
        nsa.jax.append({**cache, "k0": cache["k0"][0]}, k, v, **where)
    with pytest.raises(TypeError, match="^kv_len has the dtype float32"):
        nsa.jax.append(cache, k, v, **{**where, "kv_len": jnp.zeros((1,))})
    with pytest.raises(TypeError, match="^k has the dtype int32"):
        nsa.jax.append(cache, k.astype(jnp.int32), v, **where)
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda q: nsa.jax.prefill(q, cache, max_q=16, index_q=index_q, **where).astype(jnp.float32).sum())(q)


def test_slots_beyond_31_bits(device):
    jax.config.update("jax_enable_x64", True)
    try:
        slots = jnp.asarray([-1, 3 << 32 | 5], dtype=jnp.int64)
        words = nsa.jax._batch(jnp.asarray([2]), None, None, None, None, None, slots)["slot_mapping"]
    finally:
        jax.config.update("jax_enable_x64", False)
    assert words.tolist() == [[-1, -1], [5, 3]]


def test_no_retrace_for_equal_shapes(device):
    config, traces = config_of(), 0

    @jax.jit
    def function(q, k, v, g):
        nonlocal traces
        traces += 1
        return nsa.jax.attention(q, k, v, g, config=config)

    for seed in range(3):
        function(*[across(x) for x in inputs_of(config, 50, device, seed=seed)])
    assert traces == 1


def test_errors(device):
    config = config_of()
    q, k, v, gates = [across(x) for x in inputs_of(config, 30, device)]
    with pytest.raises(Exception, match="gate.value"):
        jax.block_until_ready(nsa.jax.attention(q, k, v, config=config))
    with pytest.raises(TypeError, match="int32"):
        nsa.jax.attention(q.astype(jnp.int32), k, v, gates, config=config)
    with pytest.raises(ValueError, match="kv_sharing"):
        nsa.jax.attention(q, [k] * 3, [v] * 3, gates, config=config)
    run = lambda **options: nsa.jax.attention(q, k, v, gates, config=config, **options)
    for name in "cu_seqlens", "cu_seqlens_k", "block_indices":
        with pytest.raises(TypeError, match=f"^{name} has the dtype float32"):
            run(**{name: jnp.zeros((2,), jnp.float32)})
    for branches in [], ["all"]:
        with pytest.raises(ValueError, match="at least one of compressed, selected, window"):
            run(branches=branches)
    indexed, (index_q, k_idx) = config_of(**INDEXED), across(index_of(30, device))
    for name, given in ("index_q", dict(k_idx=k_idx)), ("k_idx", dict(index_q=index_q)), ("index_q", {}):
        with pytest.raises(ValueError, match=f"^{name} is missing"):
            nsa.jax.attention(q, k, v, config=indexed, **given)
    with pytest.raises(Exception, match="io.index_q"):
        jax.block_until_ready(nsa.jax.attention(q, k, v, gates, config=config, index_q=index_q, k_idx=k_idx))
    with pytest.raises(ValueError, match="weights has no k_idx"):
        run(weights={"k_idx": k_idx})
    with pytest.raises(ValueError, match='platform is "tpu"'):
        run(platform="tpu")


def test_second_derivatives_are_refused(device):
    config = config_of()
    q, *others = [across(x) for x in inputs_of(config, 30, device)]
    once = jax.grad(lambda q: nsa.jax.attention(q, *others, config=config).astype(jnp.float32).sum())
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda q: once(q).astype(jnp.float32).sum())(q)


PROGRAM = """
import sys, jax, jax.monitoring, jax.numpy as jnp, nsa, nsa.jax
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
config = nsa.Config(heads=4, kv_heads=2, head_dim=32, compress=dict(block=16, stride=8), select=dict(block=16, count=4), window=24)
dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
q, k, v, g = (jax.random.normal(jax.random.key(i), (64, h, d), dtype) for i, (h, d) in enumerate(((4, 32), (2, 32), (2, 32), (4, 3))))
f = jax.jit(jax.grad(lambda *x: nsa.jax.attention(*x, config=config).astype(jnp.float32).sum(), argnums=(0, 1)))
events.clear()
out = jax.block_until_ready(f(q, k, v, g))
print(sum("cache_hits" in name for name in events), sum("cache_misses" in name for name in events))
print([float(jnp.abs(x.astype(jnp.float32)).sum()) for x in out])
"""


def test_a_compiled_program_runs_in_another_process(tmp_path):
    """An address in the program would change its key, so the hit also says that there is none."""
    first, second = [subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True,
                                    check=True).stdout.splitlines() for _ in range(2)]
    assert (first[0], second[0]) == ("0 1", "1 0") and first[1] == second[1]

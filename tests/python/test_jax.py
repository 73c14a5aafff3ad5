# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa.jax against nsa.attention of PyTorch: the same bits. One case also meets the oracle directly."""
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
from test_torch import MODELS, close, config_of, dtype_of, inputs_of, leaves, phi_weights, wide  # noqa: E402


def across(x):
    """A tensor of PyTorch as an array."""
    if isinstance(x, (list, tuple)):
        return [across(y) for y in x]
    if isinstance(x, dict):
        return {name: across(y) for name, y in x.items()}
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
    names = nsa.jax.GATE
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
    indexed = nsa.Config(heads=4, kv_heads=2, head_dim=32, compress="none", gate="none",
                         select=dict(by="index", pool="max"), index=dict(heads=2, dim=16))
    with pytest.raises(ValueError, match="takes no queries and keys of an index"):
        nsa.jax.attention(q, k, v, config=indexed)
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

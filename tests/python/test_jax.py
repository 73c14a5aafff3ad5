# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa.jax against nsa.attention of PyTorch, which test_torch.py holds against an oracle: the same bits."""
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
from test_torch import MODELS, config_of, inputs_of, leaves, phi_weights  # noqa: E402


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
    if config.select["count"]:
        assert np.array_equal(idx, blocks.cpu())
    flat = leaves(*got[:4]) + [got[4][name] for name in weights]
    assert len(flat) == len(grads) and all(same(a, b) for a, b in zip(flat, grads))


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


PROGRAM = """
import sys, jax, jax.numpy as jnp, nsa, nsa.jax
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
config = nsa.Config(heads=4, kv_heads=2, head_dim=32, compress=dict(block=16, stride=8), select=dict(block=16, count=4), window=24)
dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
q, k, v, g = (jax.random.normal(jax.random.key(i), (64, h, d), dtype) for i, (h, d) in enumerate(((4, 32), (2, 32), (2, 32), (4, 3))))
f = jax.jit(jax.grad(lambda *x: nsa.jax.attention(*x, config=config).astype(jnp.float32).sum(), argnums=(0, 1)))
print([float(jnp.abs(x.astype(jnp.float32)).sum()) for x in f(q, k, v, g)])
"""


def test_a_compiled_program_runs_in_another_process(tmp_path):
    outputs = [subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True).stdout
               for _ in range(2)]
    assert outputs[0] == outputs[1] and any(tmp_path.iterdir())

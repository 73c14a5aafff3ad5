# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa.NSAttention under FSDP2 (fully_shard): two processes, each with one half of a batch.

Each process compares with the same model, not sharded, over both halves: outputs, losses, all gradients, and the
parameters after two steps. On the CPU device the processes use gloo; on GPUs NCCL, one GPU each.
"""
import datetime
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import nsa

RANKS, SEQS, TOKENS, DIM, STEPS = 2, 2, 70, 48, 2
SHAPE = dict(heads=4, head_dim=32, select=dict(block=16, count=4, init=1, local=2), window=24)
COMPRESS = dict(block=16, stride=8)
# A shift of all compressed keys changes nothing, so these gradients are 0 but for rounding, which is that of the
# gradients beside them.
VANISHING = {"layers.0.attention.phi.k_b2": "layers.0.attention.phi.k_w2",
             "layers.1.attention.phi.k_pe": "layers.1.attention.phi.k_w"}


class Layer(nn.Module):
    def __init__(self, config, recomputed):
        super().__init__()
        self.recomputed = recomputed
        self.norm, self.attention = nn.RMSNorm(DIM), nsa.NSAttention(DIM, config)
        self.mlp = nn.Sequential(nn.RMSNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.SiLU(), nn.Linear(2 * DIM, DIM))

    def body(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False) if self.recomputed else self.body(x)


class Model(nn.Module):
    """Two layers; the first is recomputed in the backward pass. The weights of the second one's phi have one head, so that
    the second process holds nothing of them."""

    def __init__(self):
        super().__init__()
        first = nsa.Config(**SHAPE, kv_heads=2, kv_sharing="per_branch", compress=dict(**COMPRESS, phi="mlp", hidden=24))
        second = nsa.Config(**SHAPE, kv_heads=1, compress=dict(**COMPRESS, phi="linear"))
        self.begin, self.end = nn.Linear(24, DIM), nn.Linear(DIM, 24)
        self.layers = nn.ModuleList([Layer(first, recomputed=True), Layer(second, recomputed=False)])

    def forward(self, x):
        x = self.begin(x)
        for layer in self.layers:
            x = layer(x)
        return self.end(x)


def model_of(device, dtype):
    torch.manual_seed(0)  # the same in both processes
    model = Model()
    for name, weight in model.named_parameters():
        if name.endswith(("pe", "b1", "b2")):  # NSAttention begins with 0
            nn.init.normal_(weight, std=0.1)
    return model.to(device, dtype)


def relative(got, want, least=0.0):
    return ((got.double() - want.double()).norm() / want.double().norm().clamp_min(max(least, 1e-30))).item()


def loss_of(y, target):
    return (y.float() - target).square().mean()


def in_a_process(rank, device, mixed, compiled, meeting):
    """What each process does. `mixed`: parameters in float32, the computation in bfloat16."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    where = torch.device(device, rank) if device == "cuda" else torch.device(device)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=meeting, rank=rank, world_size=RANKS,
                            timeout=datetime.timedelta(seconds=300))
    compare(rank, where, mixed, compiled)
    dist.destroy_process_group()  # not after an exception: it would wait for the other process
    # Without Python's finalisation: a thread of gloo may not yet have freed the last tensors, and when it then asks for the
    # interpreter's lock, Python ends the thread inside a destructor of C++, which aborts the process.
    os._exit(0)


def compare(rank, where, mixed, compiled):
    kept = torch.bfloat16 if where.type == "cuda" and not mixed else torch.float32
    computed = torch.bfloat16 if where.type == "cuda" or mixed else torch.float32
    limit = 1e-5 if computed == torch.float32 else 2e-2
    sharded, whole = model_of(where, kept), model_of(where, kept)
    begin = {name: p.detach().clone() for name, p in whole.named_parameters()}
    mesh = init_device_mesh(where.type, (RANKS,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed else MixedPrecisionPolicy()
    for layer in sharded.layers:
        if compiled:
            layer.compile(backend="aot_eager", fullgraph=True)
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(sharded, mesh=mesh, mp_policy=policy)
    if rank == 1:  # nothing of these is here, and only half of the others
        local = {name: p.to_local().numel() for name, p in sharded.named_parameters()}
        assert local["layers.1.attention.phi.k_w"] == 0 and 2 * local["begin.weight"] == begin["begin.weight"].numel()

    optimizers = [torch.optim.SGD(m.parameters(), lr=4, momentum=0.9) for m in (sharded, whole)]
    generator = torch.Generator().manual_seed(1)
    make = lambda: torch.randn(RANKS, SEQS, TOKENS, 24, generator=generator).to(where)
    for step in range(STEPS):
        x, target = make().to(kept), make()
        y = sharded(x[rank])
        loss = loss_of(y, target[rank])
        loss.backward()

        # The same in one process: both halves, and the mean of their losses.
        run = whole
        if mixed:
            run = model_of(where, computed)
            run.load_state_dict(whole.state_dict())
        outputs = [run(part.to(computed)) for part in x]
        losses = [loss_of(a, b) for a, b in zip(outputs, target)]
        if mixed:
            grads = [torch.autograd.grad(part, run.parameters()) for part in losses]
            for p, *parts in zip(whole.parameters(), *grads):
                p.grad = sum(part.float() for part in parts) / RANKS
        else:
            (sum(losses) / RANKS).backward()

        error = relative(y, outputs[rank])
        assert y.dtype == computed and error <= limit, f"step {step}, outputs: off by {error:.1e}"
        assert abs(loss.item() - losses[rank].item()) <= limit * losses[rank].item(), f"step {step}, loss"
        norms = {name: q.grad.double().norm().item() for name, q in whole.named_parameters()}
        for (name, p), q in zip(sharded.named_parameters(), whole.parameters()):
            got = p.grad.full_tensor()
            error = relative(got, q.grad, norms[VANISHING[name]] if name in VANISHING else 0.0)
            assert got.dtype == kept and error <= limit, f"step {step}, gradient of {name}: off by {error:.1e}"
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for (name, p), q in zip(sharded.named_parameters(), whole.parameters()):
        moved = (q.detach() - begin[name]).double().norm().item()
        # Besides, some elements may be rounded the other way.
        rounding = q.detach().double().norm().item() * torch.finfo(kept).eps / 4
        error = (p.full_tensor().double() - q.double()).norm().item()
        assert error <= limit * moved + rounding, f"{name} is off by {error:.1e}, and has moved by {moved:.1e}"


@pytest.mark.parametrize("mixed,compiled", [(False, False), (True, False), (False, True)], ids=["plain", "mixed", "compiled"])
def test_sharded_is_whole(mixed, compiled, device, tmp_path):
    if device == "cuda" and torch.cuda.device_count() < RANKS:
        pytest.skip("needs two GPUs: NCCL takes one for each process")
    torch.multiprocessing.spawn(in_a_process, (device, mixed, compiled, f"file://{tmp_path}/meeting"), nprocs=RANKS)

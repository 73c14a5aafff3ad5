# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa.ranks: two processes, each with its rows of a pack, against nsa.attention over all rows in one process.

On the CPU device the processes use gloo, through libnsa's table of functions; on GPUs NCCL, one GPU each.
"""
import ctypes
import datetime
import os
import time
import types

import pytest
import torch
import torch.distributed as dist

import nsa
import nsa.ranks

RANKS = 2
SHAPE = dict(heads=4, head_dim=32, select=dict(block=16, count=4, init=1, local=2), window=24)
CONFIGS = {
    "mean": dict(kv_heads=2, compress=dict(block=16, stride=8)),
    "linear": dict(kv_heads=1, compress=dict(block=16, stride=8, phi="linear")),
    "mlp": dict(kv_heads=2, kv_sharing="per_branch", compress=dict(block=16, stride=8, phi="mlp", hidden=24), gate="mlp",
                gate_mlp=dict(channels=16, hidden=8)),
}


def in_a_process(rank, device, work, meeting, ranks, arguments):
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=meeting, rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=300))
    work(rank, torch.device(device, rank) if device == "cuda" else torch.device(device), *arguments)
    dist.destroy_process_group()
    os._exit(0)  # as in test_fsdp.py


def spawn(work, device, tmp_path, *arguments, ranks=RANKS):
    if device == "cuda" and torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs: NCCL takes one for each process")
    torch.multiprocessing.spawn(in_a_process, (device, work, f"file://{tmp_path}/meeting", ranks, arguments), nprocs=ranks)


def inputs_of(config, tokens, where):
    """q, all k and v, gates, weights: leaves, the same on every rank."""
    generator = torch.Generator().manual_seed(3)
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    make = lambda *shape, std=1.0: (std * torch.randn(*shape, generator=generator)).to(where, dtype).requires_grad_()
    pairs = 1 if config.kv_sharing == "shared" else 3
    k = [make(tokens, config.kv_heads, config.head_dim) for _ in range(pairs)]
    v = [make(tokens, config.kv_heads, config.head_dim_v) for _ in range(pairs)]
    weights = {}
    phi, block, hidden = config.compress["phi"], config.compress["block"], config.compress.get("hidden", 0)
    for side in "kv" if phi != "mean" else "":
        flat = (config.kv_heads, block * config.head_dim)
        if phi == "linear":
            weights[f"phi.{side}.w"] = make(*flat, config.head_dim, std=flat[1] ** -0.5)
        else:
            weights[f"phi.{side}.w1"] = make(*flat, hidden, std=flat[1] ** -0.5)
            weights[f"phi.{side}.w2"] = make(config.kv_heads, hidden, config.head_dim, std=hidden ** -0.5)
    gates = None
    if config.gate == "mlp":
        weights["gate.x"] = make(tokens, 16)
        weights["gate.w1"], weights["gate.w2"] = make(16, 8, std=0.25), make(8, 3 * config.heads, std=0.4)
    else:
        gates = make(tokens, config.heads, 3)
    return make(tokens, config.heads, config.head_dim), k, v, gates, weights


def run(attend, q, k, v, gates, weights, d_o):
    """The output, the blocks, and gradients by name."""
    one = len(k) == 1
    o, idx = attend(q, k[0] if one else k, v[0] if one else v, gates, weights=weights or None, return_indices=True)
    leaves = {"q": q, **{f"k{i}": x for i, x in enumerate(k)}, **{f"v{i}": x for i, x in enumerate(v)}, **weights}
    if gates is not None:
        leaves["gates"] = gates
    grads = torch.autograd.grad(o, list(leaves.values()), d_o)
    return o.detach(), idx, dict(zip(leaves, grads))


def has_rows(name):
    return not name.startswith("phi.") and name not in ("gate.w1", "gate.w2")


def compare(rank, where, kind, lengths, layout, own):
    config = nsa.Config(**SHAPE, **CONFIGS[kind])
    alignment = 16 if where.type == "cpu" else 0
    shard = nsa.ranks.Shard(config, lengths, RANKS, layout, alignment)
    comm = nsa.ranks.Comm(timeout=60, own=own)
    assert (comm.rank, comm.size) == (rank, RANKS)
    assert sorted(torch.cat([shard.rows(r) for r in range(RANKS)]).tolist()) == list(range(sum(lengths)))
    q, k, v, gates, weights = inputs_of(config, sum(lengths), where)
    d_o = torch.randn(q.shape, generator=torch.Generator().manual_seed(5)).to(q)
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=where)
    whole = run(lambda *a, **b: nsa.attention(*a, config=config, cu_seqlens=cu, max_seqlen=max(lengths), **b),
                q, k, v, gates, weights, d_o)

    take = lambda x: None if x is None else shard.take(x.detach(), rank).requires_grad_()
    mine = {name: take(x) if has_rows(name) else x.detach().requires_grad_() for name, x in weights.items()}
    attend = lambda *a, **b: nsa.ranks.attention(*a, config=config, shard=shard, comm=comm, **b)
    parts = [run(attend, take(q), [take(x) for x in k], [take(x) for x in v], take(gates), mine, shard.take(d_o, rank))
             for _ in range(2)]
    comm.wait()
    comm.check()
    o, idx, grads = parts[0]
    assert torch.equal(o, parts[1][0]) and all(torch.equal(a, b) for a, b in zip(grads.values(), parts[1][2].values()))
    assert torch.equal(o, shard.take(whole[0], rank)), "o has other bits"
    assert torch.equal(idx, shard.take(whole[1], rank)), "other blocks are selected"
    assert torch.equal(grads["q"], shard.take(whole[2]["q"], rank)), "d_q has other bits"
    limit = 2e-6 if where.type == "cpu" else 2e-2  # float32; bfloat16, whose partial sums are rounded, too
    for name, grad in grads.items():
        want = whole[2][name]
        if has_rows(name):
            want = shard.take(want, rank)
            assert grad.shape == want.shape
            if not want.numel():
                continue
        else:
            grad = grad.float()
            dist.all_reduce(grad)  # as a host does with its other weights
        error = (grad.double() - want.double()).abs().max().item() / want.double().abs().max().item()
        assert error <= limit, f"gradient of {name}: off by {error:.1e}"
    comm.close()


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_pack(kind, device, tmp_path):
    spawn(compare, device, tmp_path, kind, [230, 0, 65, 300], "zigzag", False)


@pytest.mark.parametrize("layout", ["contiguous", [(1, 0, 0, 200)]], ids=["contiguous", "a rank without tokens"])
def test_other_layouts(layout, device, tmp_path):
    spawn(compare, device, tmp_path, "linear", [200], layout, False)


def test_an_own_communicator(device, tmp_path):
    if device != "cuda":
        pytest.skip("of NCCL")
    spawn(compare, device, tmp_path, "mean", [5000], "zigzag", True)


def play_hosts(rank, where, ranks):
    """Hosts of two ranks, and one host, which ranks that share this one find by themselves."""
    config = nsa.Config(**SHAPE, **CONFIGS["mean"])
    shard = nsa.ranks.Shard(config, [400, 20], ranks, "zigzag", 0 if where.type == "cuda" else 16)
    q, k, v, gates, weights = inputs_of(config, shard.total, where)
    d_o = torch.randn(q.shape, generator=torch.Generator().manual_seed(5)).to(q)
    take = lambda x: shard.take(x.detach(), rank).requires_grad_()
    found = []
    for host_ranks in (2, ranks, 0):
        comm = nsa.ranks.Comm(timeout=60, host_ranks=host_ranks)
        attend = lambda *a, **b: nsa.ranks.attention(*a, config=config, shard=shard, comm=comm, **b)
        found.append(run(attend, take(q), [take(k[0])], [take(v[0])], take(gates), weights, shard.take(d_o, rank)))
        comm.wait()
        comm.close()
    hosts, one, default = found
    for name, want in one[2].items():
        assert torch.equal(default[2][name], want)
        if name[0] in "kv":  # sums in another order
            torch.testing.assert_close(hosts[2][name], want, rtol=0, atol=(1e-2 if where.type == "cuda" else 1e-6) * want.abs().max().item())
        else:
            assert torch.equal(hosts[2][name], want)
    assert all(torch.equal(hosts[i], one[i]) for i in (0, 1))
    dist.barrier()
    comm = nsa.ranks.Comm(timeout=20, host_ranks=2 if rank else 4)
    with pytest.raises(nsa.RanksError, match="host_ranks"):
        nsa.ranks.attention(take(q), take(k[0]), take(v[0]), take(gates), config=config, shard=shard, comm=comm)
    comm.close()
    with pytest.raises(nsa.ArgumentError, match="host_ranks is 3"):
        nsa.ranks.Comm(host_ranks=3).handle(config.context("cpu", "f32"))
    with pytest.raises(nsa.ArgumentError, match="peer_bytes is -2"):
        nsa.ranks.Comm(peer_bytes=-2).handle(config.context("cpu", "f32"))
    with pytest.raises(nsa.ArgumentError, match="overlap_sms is 65"):
        nsa.ranks.Comm(overlap_sms=65).handle(config.context("cpu", "f32"))
    with pytest.raises(nsa.ArgumentError, match="copy_bytes is -1"):
        nsa.ranks.Comm(copy_bytes=-1).handle(config.context("cpu", "f32"))


def test_ranks_that_play_hosts(device, tmp_path):
    spawn(play_hosts, device, tmp_path, 4, ranks=4)


def disagree(rank, where):
    """The second rank divides the tokens otherwise: both learn of it before anything runs."""
    config = nsa.Config(**SHAPE, **CONFIGS["mean"])
    shard = nsa.ranks.Shard(config, [400], RANKS, "zigzag" if rank else "contiguous", 16)
    comm = nsa.ranks.Comm(timeout=20)
    q, k, v, gates, _ = inputs_of(config, shard.tokens(rank), where)
    with pytest.raises(nsa.RanksError, match="rank"):
        nsa.ranks.attention(q, k[0], v[0], gates, config=config, shard=shard, comm=comm)
    comm.close()


def test_ranks_that_disagree(device, tmp_path):
    spawn(disagree, device, tmp_path)


def late(rank, where):
    """A rank that compiles for longer than the timeout: the others wait for it before the first run."""
    config = nsa.Config(**SHAPE, **CONFIGS["mean"])
    shard = nsa.ranks.Shard(config, [200], RANKS, "zigzag", 16)
    comm = nsa.ranks.Comm(timeout=3)
    q, k, v, gates, _ = inputs_of(config, shard.tokens(rank), where)
    time.sleep(5 * rank)
    nsa.ranks.attention(q, k[0], v[0], gates, config=config, shard=shard, comm=comm)
    comm.wait()
    comm.close()


def test_a_late_rank(device, tmp_path):
    if device == "cuda":
        pytest.skip("NCCL's communicator is made at the first call, when all are there")
    spawn(late, device, tmp_path)


def forget(rank, where):
    """More pairs of plan and shard than a communicator keeps: the oldest are forgotten, and agreed upon again."""
    nsa.ranks.MOST_AGREED = 2
    config = nsa.Config(**SHAPE, **CONFIGS["mean"])
    shards = [nsa.ranks.Shard(config, [length], RANKS, "zigzag", 16) for length in (64, 80, 96)]
    comm = nsa.ranks.Comm(timeout=20)
    first = []
    for i in (0, 1, 2, 0, 1, 2):
        q, k, v, gates, _ = inputs_of(config, shards[i].tokens(rank), where)
        o = nsa.ranks.attention(q, k[0], v[0], gates, config=config, shard=shards[i], comm=comm)
        first.append(o.detach())
        assert len(comm._agreed) <= 2 and len(comm._runs) <= 2
    assert all(torch.equal(first[i], first[i + 3]) for i in range(3))
    comm.close()


def test_many_shards(device, tmp_path):
    spawn(forget, device, tmp_path)


def interrupted(rank, where):
    """Ctrl-C while bytes move: it ends the call, which returns nothing; and so it does before a function can catch it."""
    def interrupt(*_):
        raise KeyboardInterrupt

    config = nsa.Config(**SHAPE, **CONFIGS["mean"])
    shard = nsa.ranks.Shard(config, [200], RANKS, "zigzag", 16)
    q, k, v, gates, _ = inputs_of(config, shard.tokens(rank), where)
    comm = nsa.ranks.Comm(timeout=20)
    attend = lambda: nsa.ranks.attention(q, k[0], v[0], gates, config=config, shard=shard, comm=comm)
    attend()
    comm.table._move = interrupt
    with pytest.raises(KeyboardInterrupt):
        attend()
    comm.close()

    comm = nsa.ranks.Comm(timeout=20)
    comm.table = nsa.ranks._Table(comm.group, rank, RANKS, datetime.timedelta(seconds=20))
    raising = type(comm.table.function)(interrupt)  # which catches nothing
    comm.table.ops.user = ctypes.addressof(raising)
    with pytest.raises(nsa.RanksError):
        attend()
    comm.close()


def test_an_interrupted_exchange(device, tmp_path):
    if device == "cuda":
        pytest.skip("of the table of functions")
    spawn(interrupted, device, tmp_path)


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("method", ["check", "wait"])
def test_each_context_of_a_lost_rank_is_checked(method, alone, monkeypatch):
    asked = []
    ask = lambda handle, *_: asked.append(handle) or (nsa._abi.NSA_E_RANKS if handle in "bd" else 0)
    monkeypatch.setattr(nsa.ranks, "lib", types.SimpleNamespace(nsa_comm_check=ask, nsa_comm_wait=ask,
                                                                nsa_comm_destroy=lambda handle: None))
    comm = nsa.ranks.Comm()
    comm._handles = dict(enumerate("abcd"))
    with pytest.raises(nsa.RanksError):
        getattr(comm, method)()
    assert "".join(asked) == "abcd"
    comm.close()


def test_a_child_destroys_its_own_communicators(alone, monkeypatch):
    destroyed = []
    monkeypatch.setattr(nsa.ranks, "lib", types.SimpleNamespace(nsa_comm_destroy=destroyed.append))
    inherited = nsa.ranks.Comm()
    inherited._handles = {0: "inherited"}
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a child of fork()
    own = nsa.ranks.Comm()
    own._handles = {0: "own"}
    own.close()
    inherited.close()
    assert destroyed == ["own"]


def test_shards_in_one_process():
    config = nsa.Config(**SHAPE, **CONFIGS["mean"])
    shard = nsa.ranks.Shard(config, [100, 7], 3, "zigzag", 16)
    x = torch.arange(107)
    parts = [shard.take(x, rank) for rank in range(3)]
    assert torch.equal(shard.put(parts), x)
    for rank in range(3):
        assert [p.rank for p in shard.pieces(rank)] == [rank] * len(shard.pieces(rank))
        assert len(parts[rank]) == shard.tokens(rank) <= shard.tokens(-1)
        inside = shard.positions(rank)
        assert torch.equal(inside, torch.where(parts[rank] < 100, parts[rank], parts[rank] - 100))
    with pytest.raises(ValueError, match="rows"):
        shard.take(x[1:], 0)
    with pytest.raises(ValueError, match="layout"):
        nsa.ranks.Shard(config, [100], 2, "round")
    with pytest.raises(nsa.ArgumentError):
        nsa.ranks.Shard(config, [100], 2, [(0, 0, 0, 50)])  # half of it

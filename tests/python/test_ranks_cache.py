# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa.ranks.KVCache: two processes with half of a cache's raw pages each, against nsa.KVCache in one process."""
import pytest
import torch
import torch.distributed as dist
from test_ranks import RANKS, spawn

import nsa
import nsa.ranks

PAGE, STEPS = 16, 8
CONFIGS = {
    "mean": dict(compress=dict(block=16, stride=8)),
    "linear": dict(kv_sharing="per_branch", compress=dict(block=16, stride=8, phi="linear")),
    "gate mlp": dict(compress=dict(block=16, stride=8), gate="mlp", gate_mlp=dict(channels=16, hidden=8)),
    "index": dict(index=dict(heads=1, dim=16), compress=dict(phi="none"), select=dict(by="index", pool="max", block=16, count=4, init=1, local=2)),
}


def config_of(kind):
    return nsa.Config(**{**dict(heads=4, kv_heads=1, head_dim=32, select=dict(block=16, count=4, init=1, local=2), window=24),
                         **CONFIGS[kind]})


class Inputs:
    """Numbers that are the same on every rank."""

    def __init__(self, config, where):
        self.config, self.where, self.generator = config, where, torch.Generator().manual_seed(7)

    def make(self, *shape, std=1.0):
        dtype = torch.bfloat16 if self.where.type == "cuda" else torch.float32
        return (std * torch.randn(*shape, generator=self.generator)).to(self.where, dtype)

    def weights(self):
        if self.config.compress["phi"] != "linear":
            return None
        flat = self.config.compress["block"] * self.config.head_dim
        return [{f"phi.{side}.w": self.make(1, flat, self.config.head_dim, std=flat ** -0.5) for side in "kv"}]

    def new(self, tokens):
        """K, V and the index keys of a step."""
        one = self.config.kv_sharing == "shared"
        pairs = [[self.make(tokens, 1, self.config.head_dim) for _ in range(1 if one else 3)] for _ in "kv"]
        k, v = [x[0] for x in pairs] if one else pairs
        return (k, v), dict(k_idx=self.make(tokens, 1, 16)) if self.config.index else {}

    def queries(self, tokens):
        gates, more = self.make(tokens, 4, 3), {}
        if self.config.gate == "mlp":
            gates, more = None, dict(weights={"gate.x": self.make(tokens, 16), "gate.w1": self.make(16, 8, std=0.25),
                                              "gate.w2": self.make(8, 12, std=0.4)})
        if self.config.index:
            more["index_q"] = self.make(tokens, 1, 16)
        return (self.make(tokens, 4, self.config.head_dim), gates), more


def compare(rank, where, kind):
    config = config_of(kind)
    inputs = Inputs(config, where)
    comm = nsa.ranks.Comm(timeout=60)
    rest = dict(max_q=3, dtype=torch.bfloat16 if where.type == "cuda" else torch.float32, device=where, weights=inputs.weights())
    one = nsa.KVCache(config, 1, 60, PAGE, **rest)
    # Of 60 pages each rank has about half, and those of the latest tokens.
    cache = nsa.ranks.KVCache(config, comm, 1, 40, 61, PAGE, unit_tokens=32, max_len=one.max_len, **rest)
    assert cache.layers[0]["k0"].shape[0] == 40
    for x in cache.layers[0].values():  # what a rank need not read is NaN
        x.fill_(float("nan"))
    goals = {"a": 300, "b": 200, "c": 5}
    while any(one.length(id) < goal for id, goal in goals.items()):
        new = {id: min(goal - one.length(id), 70) for id, goal in goals.items() if goal > one.length(id)}
        fresh, index = inputs.new(sum(new.values()))
        for each in one, cache:
            each.append(0, each.begin(list(new), list(new.values())), *fresh, **index)
    for step in range(STEPS):
        new = [1, 1, 1] if step % 2 else [3, 1, 2]
        fresh, index = inputs.new(sum(new))
        queries, more = inputs.queries(sum(new))
        outputs = []
        for each in one, cache:
            batch = each.begin(list(goals), new)
            each.append(0, batch, *fresh, **index)
            outputs.append(each.attend(0, batch, *queries, **more))
        want, o = outputs
        limit = 2e-6 if where.type == "cpu" else 2e-2
        assert (o.double() - want.double()).abs().max() <= limit * want.double().abs().max()
        all_o = [torch.empty_like(o) for _ in range(RANKS)]
        dist.all_gather(all_o, o.contiguous())
        assert all(torch.equal(x, o) for x in all_o), "ranks have other bits"
        for each in one, cache:
            each.truncate("a", each.length("a") - (new[0] - 1))  # the drafts are rejected
            if step == 4:
                each.free("b")
        if step == 4:
            assert cache.raw_pages("b") == []
            goals["b"] = 1
    held = sum(page >= 0 for page in cache.raw_pages("a"))
    assert held < len(cache.raw_pages("a")) and len(cache.pages("a")) == len(one.pages("a"))
    assert cache.free_raw_pages == 40 - sum(page >= 0 for id in goals for page in cache.raw_pages(id))
    comm.wait()
    comm.close()


@pytest.mark.parametrize("kind", CONFIGS)
def test_steps(kind, device, tmp_path):
    spawn(compare, device, tmp_path, kind)


def check_rows(rank, where, o, want):
    """The same kernels give the same bits. On a GPU one rank's plan, which is made for more tokens, may have others: rounding may
    then change a block of a few rows."""
    if where.type == "cpu":
        assert torch.equal(o, want), f"rows of rank {rank} have other bits"
    elif o.numel():
        far = (o.double() - want.double()).abs().amax(dim=(1, 2)) > 2e-2 * want.double().abs().max()
        assert far.double().mean() <= 0.01, f"{int(far.sum())} of {len(far)} rows of rank {rank} are others"


def prompts(rank, where, kind):
    cuda = where.type == "cuda"
    config = config_of(kind)
    inputs = Inputs(config, where)
    comm = nsa.ranks.Comm(timeout=60)
    pages, more_pages = (40, 61) if not cuda else (700, 900)
    rest = dict(max_q=3, dtype=torch.bfloat16 if cuda else torch.float32, device=where, weights=inputs.weights())
    one = nsa.KVCache(config, 1, more_pages - 1, PAGE, **rest)
    cache = nsa.ranks.KVCache(config, comm, 1, pages, more_pages, PAGE, unit_tokens=32, max_len=one.max_len, **rest)
    for x in cache.layers[0].values():
        x.fill_(float("nan"))
    # The alignment of a GPU's tiles is 768 tokens at most: of four of them or more every rank has a part.
    for new in ([3400, 90], [3100, 40], [80, 3300]) if cuda else ([90, 5], [70, 40], [80, 1]):
        fresh, index = inputs.new(sum(new))
        (q, gates), more = inputs.queries(sum(new))
        shard = nsa.ranks.Shard(config, new, RANKS, alignment=0 if cuda else 16)
        assert not cuda or all(shard.tokens(r) > max(new) // 4 for r in range(RANKS))
        mine = lambda x: shard.take(x, rank)
        part = {name: mine(x) for name, x in more.items() if name == "index_q"}
        if "weights" in more:
            part["weights"] = {name: mine(x) if name == "gate.x" else x for name, x in more["weights"].items()}
        batch, whole = cache.begin(["a", "b"], new), one.begin(["a", "b"], new)
        one.append(0, whole, *fresh, **index)
        cache.append(0, batch, *fresh, **index)
        want = one.attend(0, whole, q, gates, **more)
        o = cache.prefill(0, batch, mine(q), None if gates is None else mine(gates), shard=shard, **part)
        comm.wait()
        check_rows(rank, where, o, mine(want))
    with pytest.raises(ValueError, match="make it of its new tokens"):
        cache.prefill(0, batch, q, gates, shard=nsa.ranks.Shard(config, [80, 2], RANKS))
    comm.close()


@pytest.mark.parametrize("kind", CONFIGS)
def test_prompts(kind, device, tmp_path):
    spawn(prompts, device, tmp_path, kind)


class Alone:
    """In the place of a Comm, for what makes no call over ranks."""
    rank, size = 1, 2


def test_pages_of_a_rank():
    config = config_of("mean")
    cache = nsa.ranks.KVCache(config, Alone(), 1, 6, 20, PAGE, unit_tokens=32, dtype=torch.float32, device="cpu")
    assert cache.reach == 23 and cache.max_len == 320
    batch = cache.begin(["a"], [64])
    assert cache.free_raw_pages == 2 and batch.entry_table.shape == batch.block_table.shape
    # The pages of the first unit are rank 0's, and the next new token's window begins at 64 - 23.
    assert [page >= 0 for page in cache.raw_pages("a")] == [True] * 4
    batch = cache.begin(["a"], [30])
    assert [page >= 0 for page in cache.raw_pages("a")] == [False, False, True, True, True, True]
    assert batch.block_table[0, :2].tolist() == [-1, -1] and batch.entry_table[0, :6].tolist() == cache.pages("a")
    cache.truncate("a", 70)
    assert len(cache.raw_pages("a")) == 5 and cache.free_raw_pages == 3
    with pytest.raises(ValueError, match="only tokens of the last step"):
        cache.truncate("a", 63)
    with pytest.raises(ValueError, match="do not fork"):
        cache.fork("a", "b")
    with pytest.raises(MemoryError, match="rank 1 has 3"):
        cache.begin(["b"], [64])
    assert cache.length("b") == 0 and cache.free_raw_pages == 3 and cache.free_pages == 15
    cache.free("a")
    assert cache.free_raw_pages == 6 and cache.free_pages == 20


def test_arguments():
    config = config_of("mean")
    with pytest.raises(ValueError, match="multiple of page_size and select.block, 16"):
        nsa.ranks.KVCache(config, Alone(), 1, 6, 20, PAGE, unit_tokens=24, device="cpu")
    cache = nsa.ranks.KVCache(config, Alone(), 1, 6, 20, PAGE, dtype=torch.float32, device="cpu")
    assert cache.unit_tokens == 1024
    batch = cache.begin(["a"], [40])
    with pytest.raises(ValueError, match="Compute prompts with prefill"):
        cache.attend(0, batch, torch.zeros(40, 4, 32))

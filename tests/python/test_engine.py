# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa.integrations.engine in a loop as engines run it: prompts in chunks beside rows that decode, pages in
any order, padded rows, tokens that are not written."""
import random
import types

import pytest
import torch

import nsa
import nsa.integrations.engine as engine
from test_torch import close, config_of, dtype_of, fp8, inputs_of

PAGE = 16


def vllm(begin, lengths, table, slots, device):
    starts = torch.tensor(begin, dtype=torch.int32, device=device)
    return dict(metadata=types.SimpleNamespace(
        query_start_loc=starts, seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device), num_actual_tokens=begin[-1],
        block_table_tensor=table, slot_mapping=torch.tensor(slots, dtype=torch.int64, device=device),
        max_query_len=max(b - a for a, b in zip(begin, begin[1:])), max_seq_len=max(lengths)))


def sglang(begin, lengths, table, slots, device):
    return dict(metadata=types.SimpleNamespace(
        cu_seqlens_q=torch.tensor(begin, dtype=torch.int32, device=device),
        cache_seqlens_int32=torch.tensor(lengths, dtype=torch.int32, device=device), page_table=table,
        max_seq_len_q=max(b - a for a, b in zip(begin, begin[1:])), max_seq_len_k=max(lengths)),
        out_cache_loc=torch.tensor(slots, dtype=torch.int64, device=device))


def lists_of(lengths, table):
    """The pages in use, as two lists."""
    used = [-(-n // PAGE) for n in lengths]
    begin = torch.tensor([sum(used[:i]) for i in range(len(used) + 1)], dtype=torch.int32, device=table.device)
    return begin, torch.cat([table[i, :n] for i, n in enumerate(used)])


def lists(begin, lengths, table, slots, device):
    """The pages as FlashInfer's wrappers take them, instead of a table."""
    given = vllm(begin, lengths, table, slots, device)
    del given["metadata"].block_table_tensor
    given["page_indptr"], given["page_indices"] = lists_of(lengths, table)
    return given


@pytest.mark.parametrize("make", [vllm, sglang, lists], ids=["vLLM", "SGLang", "lists of pages"])
def test_serving_equals_the_forward(make, device):
    config, chance = config_of(), random.Random(1)
    dtype = dtype_of(device)
    pages = lambda rows: torch.full((40, rows, 2, 32), 7.0, device=device, dtype=dtype)  # as another sequence left them
    cache = dict(k0=pages(PAGE), v0=pages(PAGE), k_cmp=pages(PAGE // 8), v_cmp=pages(PAGE // 8))
    raw = sum(x[0].numel() for name, x in cache.items() if not name.endswith("_cmp"))
    entries = sum(x[0].numel() for name, x in cache.items() if name.endswith("_cmp"))
    assert engine.block_bytes(config, PAGE) == 4 * (raw + entries)
    assert engine.block_bytes(config, PAGE, kv_dtype="e4m3") == raw + 4 * entries
    assert engine.block_bytes(config, PAGE, kv_dtype="e4m3", cmp_dtype="e4m3") == raw + entries
    with pytest.raises(ValueError, match="cmp_dtype is 'fp8'"):
        engine.block_bytes(config, PAGE, cmp_dtype="fp8")
    data = [inputs_of(config, 120, device, seed=s) for s in range(3)]
    want = [nsa.attention(*x, config=config).double().cpu() for x in data]
    free = list(range(40))
    chance.shuffle(free)
    tables, done = [[free.pop() for _ in range(8)] for _ in data], [0, 0, 0]
    plan = [[60, 0, 5], [30, 17, 1], [1, 40, 1], [1, 1, 20], [1, 1, 1], [1, 16, 3]]
    for new in plan:
        begin, lengths, slots = [0], [], []
        for s, n in enumerate(new):
            slots += [tables[s][p // PAGE] * PAGE + p % PAGE for p in range(done[s], done[s] + n)]
            done[s] += n
            begin.append(begin[-1] + n)
            lengths.append(done[s])
        begin.append(begin[-1])  # a padded row
        lengths.append(0)
        table = torch.tensor(tables + [[0] * 8], dtype=torch.int32, device=device)
        q, k, v, g = (torch.cat([x[i][d - n:d] for x, d, n in zip(data, done, new)]) for i in range(4))
        step = engine.batch(**make(begin, lengths, table, slots, device))
        step.append(cache, k, v, config=config)
        o = step.attend(q, cache, g, config=config)
        for s, n in enumerate(new):
            if n:
                close(o[begin[s]:begin[s + 1]], want[s][done[s] - n:done[s]], device, 1.2e-2)


def test_codes_of_an_engine(device):
    """A cache in FP8 as engines have it: bytes, K and V of a page side by side, and a scale without dimensions."""
    config, codes = config_of(), torch.float8_e4m3fn
    stored = torch.zeros(4, 2, PAGE, 2, 32, device=device, dtype=torch.uint8)
    k_scale, v_scale = (torch.tensor(x, device=device) for x in (0.04, 0.05))
    entries = lambda: torch.zeros(4, 2, 2, 32, device=device, dtype=dtype_of(device))
    cache = dict(k0=stored[:, 0].view(codes), v0=stored[:, 1].view(codes), k_cmp=entries(), v_cmp=entries(),
                 k0_scale=k_scale.view(-1), v0_scale=v_scale.view(-1))
    q, k, v, g = inputs_of(config, 40, device)
    kq, vq = fp8(k, 0.04), fp8(v, 0.05)
    want = nsa.attention(q, kq, vq, g, config=config).double().cpu()
    table = torch.tensor([[2, 0, 3]], dtype=torch.int32, device=device)
    slots = [table[0, p // PAGE].item() * PAGE + p % PAGE for p in range(40)]
    for a, b in (0, 33), (33, 34), (34, 40):
        step = engine.batch(**vllm([0, b - a], [b], table, slots[a:b], device))
        step.append(cache, k[a:b], v[a:b], config=config)
        close(step.attend(q[a:b], cache, g[a:b], config=config), want[a:b], device, 1.2e-2)
    for side, x, scale in (0, kq, 0.04), (1, vq, 0.05):
        tokens = stored[:, side].reshape(-1, 2, 32)[slots].view(codes)
        assert torch.equal((tokens.float() * torch.tensor(scale, device=device)).to(x.dtype), x)


def test_tokens_that_are_not_written(device):
    config = config_of()
    q, k, v, g = inputs_of(config, 20, device)
    pages = lambda rows: torch.zeros(4, rows, 2, 32, device=device, dtype=dtype_of(device))
    cache = dict(k0=pages(PAGE), v0=pages(PAGE), k_cmp=pages(2), v_cmp=pages(2))
    table = torch.tensor([[2, 1]], dtype=torch.int32, device=device)
    whole = [2 * PAGE + p if p < PAGE else PAGE + p - PAGE for p in range(20)]
    engine.batch(**vllm([0, 20], [20], table, whole, device)).append(cache, k, v, config=config)
    before = {name: x.clone() for name, x in cache.items()}
    skipped = engine.batch(**vllm([0, 20], [20], table, [-1] * 20, device))
    skipped.append(cache, k * 3, v * 3, config=config)
    assert all(torch.equal(cache[name], before[name]) for name in cache)


def test_unknown_metadata():
    with pytest.raises(TypeError, match="block_table_tensor"):
        engine.batch(types.SimpleNamespace(seq_lens=torch.ones(1)))
    with pytest.raises(ValueError, match="there is no page_indptr"):
        engine.batch(types.SimpleNamespace(seq_lens=torch.ones(1)), page_indices=torch.zeros(1, dtype=torch.int32))


def test_refusals(device):
    table = torch.tensor([[0, 1]], dtype=torch.int32, device=device)
    for make, changes, match in ((vllm, dict(causal=False), "causal"), (vllm, dict(causal=torch.ones(1)), "causal"),
                                 (sglang, dict(window_size=(127, 0)), "window_size")):
        given = make([0, 4], [4], table, [0, 1, 2, 3], device)
        vars(given["metadata"]).update(changes)
        with pytest.raises(ValueError, match=match):
            engine.batch(**given)
    for make, changes in (vllm, dict(causal=True)), (sglang, dict(window_size=(-1, -1))):
        given = make([0, 4], [4], table, [0, 1, 2, 3], device)
        vars(given["metadata"]).update(changes)
        assert engine.batch(**given).max_q == 4

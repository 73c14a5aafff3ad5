# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Native Sparse Attention written out in PyTorch, in the dtype of its arguments, differentiable.

One sequence, with masks over all keys: slow and short. Shares nothing with the library. `store` is applied
to whatever a framework would store between its operations.
"""
import torch

ACTIVATIONS = dict(relu=torch.relu, silu=torch.nn.functional.silu, gelu=torch.nn.functional.gelu)


def exact(x):
    return x


def compress(x, config, side, weights, store=exact):
    """x [S, Hkv, D] -> [blocks, Hkv, D]."""
    c = config.compress
    if x.shape[0] < c["block"]:
        return x[:0]
    blocks = x.unfold(0, c["block"], c["stride"]).permute(0, 1, 3, 2)  # [N, Hkv, l, D]
    if c["phi"] == "mean":
        return store(blocks.mean(2))
    get = lambda name: weights.get(f"phi.{side}.{name}")
    if get("pe") is not None:
        blocks = store(blocks + get("pe"))
    rows = blocks.flatten(2)
    if c["phi"] == "linear":
        return store(torch.einsum("nhi,hio->nho", rows, get("w")))
    hidden = torch.einsum("nhi,hio->nho", rows, get("w1"))
    if get("b1") is not None:
        hidden = hidden + get("b1")
    hidden = store(ACTIVATIONS[c.get("activation", "silu")](store(hidden)))
    out = torch.einsum("nhi,hio->nho", hidden, get("w2"))
    return store(out if get("b2") is None else out + get("b2"))


def make_gates(gates, config, weights, store=exact):
    """The branches' weights [T, Hq, 3]."""
    if config.gate == "weights":
        return gates
    if config.gate == "mlp":
        x = weights["gate.x"]
        if "gate.w1" in weights:
            activation = ACTIVATIONS[config.gate_mlp.get("activation", "silu")]
            x = store(activation(store(x @ weights["gate.w1"] + weights["gate.b1"])))
        gates = store(x @ weights["gate.w2"] + weights["gate.b2"]).unflatten(1, (config.heads, 3))
    return torch.sigmoid(gates)


def probabilities(q, k, seen, scale, store=exact):
    """softmax [Hq, T, S] over the keys that `seen` [Hq or 1, T, S] allows; zeros where there is none."""
    group = q.shape[1] // k.shape[1]
    scores = store(torch.einsum("thd,shd->hts", q, k.repeat_interleave(group, 1))) * scale
    return torch.nan_to_num(torch.softmax(scores.masked_fill(~seen, float("-inf")), -1), 0.0)


def select(config, p, t):
    """Blocks [T, Hkv, n] by the compressed branch's probabilities p [Hq, T, N]; ascending, then -1."""
    c, s = config.compress, config.select
    group, blocks = config.heads // config.kv_heads, int(t.max()) // s["block"] + 1
    grouped = p.detach().unflatten(0, (config.kv_heads, group)).sum(1)  # [Hkv, T, N]
    strides = torch.arange(p.shape[-1])[:, None] * c["stride"] + torch.arange(0, c["block"], c["stride"])
    weight = torch.zeros(p.shape[-1], blocks, dtype=p.dtype)
    for i, row in enumerate(strides.tolist()):
        for at in row:
            if at // s["block"] < blocks:
                weight[i, at // s["block"]] += 1
    importance = grouped @ weight
    out = torch.full((len(t), config.kv_heads, s["count"]), -1, dtype=torch.int32)
    for row, position in enumerate(t.tolist()):
        last = position // s["block"]
        for head in range(config.kv_heads):
            score = importance[head, row, :last + 1].clone()
            score[:s["init"]] = float("inf")
            score[max(last - s["local"] + 1, 0):] = float("inf")
            order = sorted(range(last + 1), key=lambda j: (-score[j].item(), j))[:s["count"]]
            out[row, head, :len(order)] = torch.tensor(sorted(order), dtype=torch.int32)
    return out


def attention(q, k, v, gates, config, weights=None, block_indices=None, scale=None, store=exact):
    """q [T, Hq, Dk], k, v: [S, Hkv, D] or three each -> o [T, Hq, Dv], block_indices."""
    weights = weights or {}
    ks, vs = (k, v) if isinstance(k, (list, tuple)) else ([k] * 3, [v] * 3)
    scale = scale or q.shape[-1] ** -0.5
    keys = ks[0].shape[0]
    t = torch.arange(len(q)) + keys - len(q)
    p = torch.arange(keys)
    causal = p[None] <= t[:, None]
    group = config.heads // config.kv_heads
    if config.compress["phi"] == "external":
        kc, vc = weights["k_cmp"], weights["v_cmp"]
    else:
        kc, vc = compress(ks[0], config, "k", weights, store), compress(vs[0], config, "v", weights, store)
    ends = torch.arange(len(kc)) * config.compress["stride"] + config.compress["block"] - 1
    wide = lambda x: x.repeat_interleave(group, 1)
    attend = lambda probs, x: store(torch.einsum("hts,shd->thd", store(probs), wide(x)))
    compressed = probabilities(q, kc, (ends[None] <= t[:, None])[None], scale, store)
    branches = [attend(compressed, vc)]
    size = config.select["block"]
    if config.select["count"]:
        if block_indices is None:
            block_indices = select(config, compressed, t)
        rows = block_indices if block_indices.dim() == 3 else block_indices[:, None].expand(-1, config.kv_heads, -1)
        taken = torch.zeros(len(q), config.kv_heads, keys // size + 2, dtype=torch.bool)
        taken.scatter_(2, torch.where(rows >= 0, rows, taken.shape[2] - 1).long(), True)
        seen = taken[:, :, :-1].repeat_interleave(size, 2)[:, :, :keys].permute(1, 0, 2).repeat_interleave(group, 0) & causal
        branches.append(attend(probabilities(q, ks[1], seen, scale, store), vs[1]))
    else:
        branches.append(0)
    near = (causal & (p[None] > t[:, None] - config.window))[None]
    branches.append(attend(probabilities(q, ks[2], near, scale, store), vs[2]) if config.window else 0)
    g = make_gates(gates, config, weights, store)
    return store(sum(g[..., b:b + 1] * branches[b] for b in range(3))), block_indices

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""The attention of MiniMax-M3 (MSA) against transformers' own, on layers with random weights.

Hooks take what its attention makes: q, k, v, the index queries and keys, the chosen blocks, and the input of
the output projection. Norms and scores of transformers are float32, also in a model of doubles. Kernels get
these tensors in bfloat16: scores may differ by that much, and outputs are held to float64 of the rounded ones.
"""
import pathlib

import pytest
import torch

from conftest import framework

transformers = framework("transformers")
modeling = framework("transformers.models.minimax_m3_vl.modeling_minimax_m3_vl")

import nsa  # noqa: E402

BLOCK, COUNT, DIM, INDEX_DIM = 16, 4, 32, 24
CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
NAMES = "q", "k", "v", "index_q", "k_idx"


def dtype_of(device):
    return torch.float32 if device == "cpu" else torch.bfloat16


def make(device, *shape):
    """Random values that the model's dtype has, as float32 or as that dtype."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return x.to(device, dtype_of(device))


def close(got, want, device, gpu=6e-3):
    error = float((got.detach().double() - want.detach().double()).norm() / want.detach().double().norm())
    assert error <= (1e-5 if device == "cpu" else gpu), f"off by {error:.2e}"


def attend(q, k, v, blocks):
    """Float64 over the chosen blocks; one sequence."""
    length, group, count = len(k), q.shape[1] // k.shape[1], -(-len(k) // BLOCK)
    taken = torch.zeros(*blocks.shape[:2], count + 1, dtype=torch.bool, device=q.device)
    taken.scatter_(2, torch.where(blocks >= 0, blocks, count).long(), True)
    mask = taken[..., :count].repeat_interleave(BLOCK, 2)[..., :length]
    mask = mask & torch.ones(length, length, dtype=torch.bool, device=q.device).tril()[-len(q):, None]
    q, k, v = q.double(), *(x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("thd,shd->ths", q, k) * DIM ** -0.5
    return torch.einsum("ths,shd->thd", scores.masked_fill(~mask.repeat_interleave(group, 1), -torch.inf).softmax(-1), v)


def model_of(heads, kv_heads, device):
    """Two sparse layers."""
    torch.manual_seed(heads)
    config = transformers.models.minimax_m3_vl.configuration_minimax_m3_vl.MiniMaxM3VLTextConfig(
        vocab_size=97, hidden_size=64, intermediate_size=32, dense_intermediate_size=32, shared_intermediate_size=32,
        num_hidden_layers=2, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=DIM, num_local_experts=2,
        num_experts_per_tok=1, mlp_layer_types=["dense", "dense"], layer_types=["minimax_m3_sparse"] * 2, index_n_heads=kv_heads,
        index_head_dim=INDEX_DIM, index_block_size=BLOCK, index_topk_blocks=COUNT, index_local_blocks=1,
        max_position_embeddings=512, bos_token_id=0, eos_token_id=1, pad_token_id=2,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))
    config._attn_implementation = config._experts_implementation = "eager"
    model = modeling.MiniMaxM3VLTextModel(config).double().eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.normal_(std=0.3 if "norm" in name else 1.5 * x.shape[-1] ** -0.5)
    return model.to(device)


def config_of(heads, kv_heads, index_dim=INDEX_DIM):
    return nsa.Config(heads=heads, kv_heads=kv_heads, head_dim=DIM, compress="none", window=0, gate="none",
                      select=dict(by="index", pool="max", block=BLOCK, count=COUNT, init=0, local=1),
                      index=dict(heads=kv_heads, dim=index_dim))


class Recorder:
    """What each layer's attention saw, by name and layer: [T, H, D] of one sequence."""

    def __init__(self, model, monkeypatch):
        self.layers = [{} for _ in model.layers]
        self.layer = 0
        plain_rope, plain_attention = modeling.apply_rotary_pos_emb, modeling.eager_attention_forward

        def rope(q, k, *args, **kwargs):
            q, k = plain_rope(q, k, *args, **kwargs)
            names = ("index_q", "k_idx") if k.shape[1] == 1 and "k" in self.layers[self.layer] else ("q", "k")
            for name, x in zip(names, (q, k)):
                self.layers[self.layer][name] = x[0].transpose(0, 1)
            return q, k

        def attention(module, q, k, v, *args, **kwargs):
            self.layers[module.layer_idx]["v"] = v[0].transpose(0, 1)
            out = plain_attention(module, q, k, v, *args, **kwargs)
            self.layers[module.layer_idx]["o"] = out[0][0]
            return out

        monkeypatch.setattr(modeling, "apply_rotary_pos_emb", rope)
        monkeypatch.setattr(modeling, "eager_attention_forward", attention)
        for i, layer in enumerate(model.layers):
            layer.self_attn.register_forward_pre_hook(lambda *_, i=i: self.begin(i))
            layer.self_attn.indexer.register_forward_hook(
                lambda module, args, out, i=i: self.layers[i].__setitem__("blocks", out[0].transpose(0, 1)))

    def begin(self, i):
        self.layer, self.layers[i] = i, {}


def tokens(count, device, seed=1):
    return torch.randint(3, 97, (1, count), generator=torch.Generator().manual_seed(seed)).to(device)


def same_blocks(got, theirs, index_q, keys, device):
    """Whether lists have the same blocks, [T, Hkv]; others' blocks have scores within rounding of one another."""
    same = torch.ones(got.shape[:2], dtype=torch.bool, device=got.device)
    longest = keys.norm(dim=-1).max()
    for row, (mine, others) in enumerate(zip(got.tolist(), theirs)):
        for head in range(len(mine)):
            a, b = set(mine[head]) - {-1}, set(others[head]) - {-1}
            assert len(a) == len(b)
            if a == b:
                continue
            same[row, head] = False
            score = keys[:row + 1, 0].double() @ index_q[row, head].double()
            best = lambda j: score[j * BLOCK:(j + 1) * BLOCK].max()
            band = (1e-5 if device == "cpu" else 2 ** -7) * index_q[row, head].norm() * longest
            assert abs(min(map(best, a - b)) - max(map(best, b - a))) <= band
    assert (~same).float().mean() <= (0 if device == "cpu" else 0.1)
    return same


def check_layer(x, layer, config, device):
    """nsa.attention of a whole sequence beside transformers': returns o and the blocks."""
    o, blocks = nsa.attention(*(x[name] for name in NAMES[:3]), config=config, index_q=x["index_q"], k_idx=x["k_idx"],
                              return_indices=True)
    close(o, attend(x["q"], x["k"], x["v"], blocks), device)
    same = same_blocks(blocks, layer["blocks"].tolist(), layer["index_q"], layer["k_idx"], device)
    rows = same.repeat_interleave(config.heads // config.kv_heads, 1)
    close(o[rows], layer["o"].reshape(o.shape)[rows], device, 2e-2)
    return o, blocks


@pytest.mark.parametrize("heads, kv_heads", [(8, 2), (8, 1), (16, 1)])
def test_forward(heads, kv_heads, device, monkeypatch):
    """Blocks and outputs of both layers, for groups of 4, 8 and 16 heads; up to 64 tokens every block is chosen."""
    model, config = model_of(heads, kv_heads, device), config_of(heads, kv_heads)
    seen = Recorder(model, monkeypatch)
    with torch.no_grad():
        model(tokens(150, device), use_cache=False)
    for layer in seen.layers:
        _, blocks = check_layer({name: layer[name].to(dtype_of(device)) for name in NAMES}, layer, config, device)
        assert (blocks[149] >= 0).all() and (blocks[BLOCK - 1, :, 1:] == -1).all()


def test_steps(device, monkeypatch):
    """A prompt of 100 tokens and 64 steps, over transformers' cache and over pages in any order."""
    model, config = model_of(8, 2, device), config_of(8, 2)
    seen = Recorder(model, monkeypatch)
    ids = tokens(164, device)
    past = transformers.DynamicCache(config=model.config)
    cache = nsa.KVCache(config, 2, 20, 16, max_len=170, dtype=dtype_of(device), device=device)
    assert sorted(cache.layers[0]) == ["k0", "k_idx", "v0"]
    for name in "xyzw":
        cache.begin([name], [80])
    for name in "zxwy":
        cache.free(name)
    layers = [{name: [] for name in (*NAMES, "o", "blocks", "paged")} for _ in seen.layers]
    for begin, end in (0, 100), *((t, t + 1) for t in range(100, 164)):
        with torch.no_grad():
            model(ids[:, begin:end], past_key_values=past, use_cache=True)
        batch = cache.begin(["a"], [end - begin])
        for i, layer in enumerate(seen.layers):
            layer["v"] = layer["v"][begin - end:]  # the cache gives those of all tokens
            layer["blocks"] = torch.nn.functional.pad(layer["blocks"], (0, COUNT - layer["blocks"].shape[-1]), value=-1)
            x = {name: layer[name].to(dtype_of(device)) for name in NAMES}
            cache.append(i, batch, x["k"], x["v"], k_idx=x["k_idx"])
            layer["paged"] = cache.attend(i, batch, x["q"], index_q=x["index_q"])
            for name, parts in layers[i].items():
                parts.append(layer[name])
    for layer in layers:
        layer = {name: torch.cat(parts) for name, parts in layer.items()}
        o, _ = check_layer({name: layer[name].to(dtype_of(device)) for name in NAMES}, layer, config, device)
        close(layer["paged"], o, device)


def test_drafts_and_forks(device):
    """Eight tokens at once, after a fork and after a rejected draft: the rows of one forward."""
    config = config_of(8, 2)
    q, k, v = make(device, 150, 8, DIM), make(device, 150, 2, DIM), make(device, 150, 2, DIM).flip(0)
    index_q, k_idx = make(device, 150, 2, INDEX_DIM), make(device, 150, 1, INDEX_DIM)
    o = nsa.attention(q, k, v, config=config, index_q=index_q, k_idx=k_idx)
    cache = nsa.KVCache(config, 1, 40, 16, max_len=160, max_q=8, dtype=q.dtype, device=device)

    def step(id, begin, end, **other):
        x = dict(dict(q=q, k=k, v=v, index_q=index_q, k_idx=k_idx), **other)
        x = {name: t[begin:end] for name, t in x.items()}
        batch = cache.begin([id], [end - begin])
        cache.append(0, batch, x["k"], x["v"], k_idx=x["k_idx"])
        return cache.attend(0, batch, x["q"], index_q=x["index_q"])

    rows = lambda got, begin, end: close(got, o[begin:end], device)
    rows(step("a", 0, 100), 0, 100)
    cache.fork("a", "b", 90)
    step("a", 100, 108, k_idx=-k_idx)  # a draft
    cache.truncate("a", 100)
    rows(step("a", 100, 108), 100, 108)
    rows(step("b", 90, 98), 90, 98)
    rows(step("a", 108, 150), 108, 150)
    rows(step("b", 98, 106), 98, 106)


def test_gradients(device):
    """Of q, k and v over the chosen blocks; none goes into the index. With a batch dimension, the same."""
    config = config_of(8, 2)
    q, k, v, index_q, k_idx = (make(device, 2, 90, *shape).requires_grad_(True)
                               for shape in ((8, DIM), (2, DIM), (2, DIM), (2, INDEX_DIM), (1, INDEX_DIM)))
    o, blocks = nsa.attention(q, k, v, config=config, index_q=index_q, k_idx=k_idx, return_indices=True)
    again = nsa.attention(q[1], k[1], v[1], config=config, index_q=index_q[1], k_idx=k_idx[1])
    close(o[1], again, device)
    wide = [x.detach().double().requires_grad_(True) for x in (q, k, v)]
    want = torch.stack([attend(*(x[i] for x in wide), blocks[i]) for i in range(2)])
    close(o, want, device)
    o.square().sum().backward()
    want.square().sum().backward()
    for got, expected in zip((q, k, v), wide):
        close(got.grad, expected.grad, device, 1.2e-2)
    assert index_q.grad is None and k_idx.grad is None


@pytest.mark.parametrize("compiled", [False, True])
def test_index_is_not_saved(compiled, device):
    """The backward pass reads the blocks: index queries and keys do not live until then, nor go into it."""
    config = config_of(8, 2)
    q, k, v = (make(device, 90, heads, DIM).requires_grad_(True) for heads in (8, 2, 2))
    index_q, k_idx = make(device, 90, 2, INDEX_DIM), make(device, 90, 1, INDEX_DIM)
    sizes = []

    def attend(q, k, v):
        return nsa.attention(q, k, v, config=config, index_q=index_q, k_idx=k_idx)

    if compiled:  # through the operators
        attend = torch.compile(attend, backend="eager", fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.shape) or x, lambda x: x):
        o = attend(q, k, v)
    assert q.shape in sizes and k.shape in sizes
    assert index_q.shape not in sizes and k_idx.shape not in sizes
    o.square().sum().backward()
    got = [x.grad.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.grad = None
    _, blocks = nsa.attention(q, k, v, config=config, index_q=index_q, k_idx=k_idx, return_indices=True)
    nsa.attention(q, k, v, config=config, block_indices=blocks).square().sum().backward()
    for x, y in zip((q, k, v), got):
        close(x.grad, y, device)


@pytest.mark.parametrize("given", [None, 2.0 ** -6])
def test_index_keys_in_fp8(given, device):
    """cmp_dtype is that of the index keys: the cache attends by the values that codes have."""
    config, codes = config_of(8, 2, 32), torch.float8_e4m3fn
    q, k, v = (make(device, 90, heads, DIM) for heads in (8, 2, 2))
    index_q, k_idx = make(device, 90, 2, 32), make(device, 90, 1, 32)
    cache = nsa.KVCache(config, 1, 8, 16, dtype=q.dtype, device=device, cmp_dtype=codes,
                        scales={"k_idx": given} if given else None)
    assert cache.layers[0]["k_idx"].dtype == codes and cache.layers[0]["k0"].dtype == q.dtype
    rounded = ((k_idx.float() / (given or 1)).to(codes).float() * (given or 1)).to(q.dtype)
    want = nsa.attention(q, k, v, config=config, index_q=index_q, k_idx=rounded)
    for begin, end in (0, 70), (70, 89), (89, 90):
        batch = cache.begin(["a"], [end - begin])
        cache.append(0, batch, k[begin:end], v[begin:end], k_idx=k_idx[begin:end])
        o = cache.attend(0, batch, q[begin:end], index_q=index_q[begin:end])
        close(o, want[begin:end], device)
    with pytest.raises(ValueError, match="the scale of 'k_idx' has 2 elements; it has 1"):
        nsa.KVCache(config, 1, 4, 16, device="cpu", dtype=torch.float32, cmp_dtype=codes, scales={"k_idx": torch.ones(2)})
    with pytest.raises(ValueError, match="scales has 'k_idx'; of this cache nothing has codes"):
        nsa.KVCache(config, 1, 4, 16, device="cpu", dtype=torch.float32, scales={"k_idx": 1.0})


def test_configuration():
    """Config has what the shipped file has; what is missing or wrong is named."""
    yaml = pytest.importorskip("yaml")
    path = CONFIGS / "models" / "minimax_m3.yaml"
    if path.exists():
        config = nsa.Config.from_dict(yaml.safe_load(path.read_text(encoding="utf-8")))
        assert config.index == {"heads": 4, "dim": 128} and config.compress == {"phi": "none"}
    config = config_of(8, 2)
    assert nsa.Config.from_dict(config.to_dict()) == config
    with pytest.raises(nsa.ConfigError, match="model.index.heads: 4 is not the number of KV heads"):
        nsa.Config(**{**SHAPE, "index": dict(heads=4, dim=16)})
    with pytest.raises(nsa.ConfigError, match="expected a dictionary, or \"none\""):
        nsa.Config(**{**SHAPE, "compress": "mean"})
    x = torch.zeros(40, 8, DIM), torch.zeros(40, 2, DIM), torch.zeros(40, 2, DIM)
    with pytest.raises(nsa.Error, match="io.index_q is missing"):
        nsa.attention(*x, config=config)
    with pytest.raises(nsa.Error, match="io.k_idx is given, but model.select.by is compressed"):
        nsa.attention(*x, config=nsa.Config(heads=8, kv_heads=2, head_dim=DIM, gate="none"), k_idx=torch.zeros(40, 1, 24))
    with pytest.raises(ValueError, match="queries and keys of an index"):
        nsa.NSAttention(64, nsa.Config(**{**SHAPE, "gate": "logits"}))


SHAPE = dict(heads=8, kv_heads=2, head_dim=DIM, compress="none", window=0, gate="none",
             select=dict(by="index", pool="max"), index=dict(heads=2, dim=16))

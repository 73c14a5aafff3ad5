# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa.integrations.minimax_m3 beside transformers' eager attention, on small MiniMax-M3s with random weights.

On a GPU, in bfloat16, blocks and experts that rank alike within rounding change places; there the tests look at
shapes, reasons and losses, and at logits where every block is chosen and no layer has experts.
"""
import copy

import pytest
import torch

from conftest import framework

transformers = framework("transformers")
modeling = framework("transformers.models.minimax_m3_vl.modeling_minimax_m3_vl")

import nsa  # noqa: E402
import nsa.integrations.huggingface as nsa_hf  # noqa: E402
import nsa.integrations.minimax_m3 as door  # noqa: E402

BLOCK, COUNT = 16, 4
SPARSE = "minimax_m3_sparse"


def text_config(**changes):
    given = dict(
        vocab_size=97, hidden_size=64, intermediate_size=32, dense_intermediate_size=64, shared_intermediate_size=32,
        num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2, head_dim=32, num_local_experts=4,
        num_experts_per_tok=2, mlp_layer_types=["dense", "sparse", "sparse"], layer_types=["full_attention", SPARSE, SPARSE],
        index_n_heads=2, index_head_dim=32, index_block_size=BLOCK, index_topk_blocks=COUNT, index_local_blocks=1,
        max_position_embeddings=512, bos_token_id=0, eos_token_id=None, pad_token_id=2,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))
    config = transformers.models.minimax_m3_vl.configuration_minimax_m3_vl.MiniMaxM3VLTextConfig(**{**given, **changes})
    config._attn_implementation = config._experts_implementation = "eager"
    return config


def pair(device, **changes):
    """A model with libnsa, and its twin in eager."""
    torch.manual_seed(5)
    if device != "cpu":
        changes["mlp_layer_types"] = ["dense"] * 3
    model = modeling.MiniMaxM3VLForCausalLM(text_config(**changes))
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.normal_(std=0.3 if "norm" in name else 1.5 * x.shape[-1] ** -0.5)
    model = model.to(device, torch.float32 if device == "cpu" else torch.bfloat16).eval()
    eager = copy.deepcopy(model)
    return model, eager, door.attach(model)


def tokens(*shape, seed=1, device="cpu"):
    return torch.randint(3, 97, shape, generator=torch.Generator().manual_seed(seed)).to(device)


def close(got, want, device):
    return (got - want).abs().max() < (1e-4 if device == "cpu" else 0.2)


needs_float32 = lambda device: device == "cpu" or pytest.skip("ties of bfloat16")


@pytest.mark.parametrize("changes", [{}, dict(num_attention_heads=16, num_key_value_heads=1, index_n_heads=1),
                                     dict(index_local_blocks=2), dict(layer_types=[SPARSE] * 3)],
                         ids=["8 over 2", "16 over 1", "2 local blocks", "every layer"])
def test_forward(changes, device):
    needs_float32(device)
    model, eager, done = pair(device, **changes)
    ids = tokens(2, 150)
    with torch.no_grad():
        assert close(model(ids).logits, eager(ids).logits, device)
        assert close(model(ids, use_cache=False).logits, eager(ids).logits, device)
    sparse = model.config.layer_types.count(SPARSE)
    assert done.calls == {"libnsa": 2 * sparse}


def test_forward_of_few_tokens(device):
    """Up to 64 tokens every block is chosen."""
    model, eager, done = pair(device)
    ids = tokens(2, 60, device=device)
    with torch.no_grad():
        assert close(model(ids).logits, eager(ids).logits, device)
    assert done.calls == {"libnsa": 2}


@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16", "autocast"])
def test_bfloat16(autocast, device):
    """As near to float32 as transformers' own."""
    model, eager, done = pair(device, mlp_layer_types=["dense"] * 3)
    ids, exact = tokens(2, 150, device=device), copy.deepcopy(eager).float()
    for m in model, eager:
        m.to(torch.float32 if autocast else torch.bfloat16)
    with torch.no_grad():
        want = exact(ids).logits
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            pages = door.PagedCache(model, 150, 2, dtype=torch.bfloat16)
            ours, paged, theirs = [(m(ids, past_key_values=cache).logits.float() - want).abs().mean()
                                   for m, cache in ((model, None), (model, pages), (eager, None))]
    assert max(ours, paged) < 1.5 * theirs < 0.1
    assert done.calls == {"libnsa": 4}


def generated(model, ids, **more):
    out = model.generate(ids, max_new_tokens=24, do_sample=False, return_dict_in_generate=True, output_logits=True, **more)
    return out.sequences, torch.stack(out.logits, 1)


@pytest.mark.parametrize("paged", [False, True], ids=["transformers' cache", "pages"])
def test_generate(paged, device):
    """The tokens of greedy decoding and their logits, of two prompts."""
    model, eager, done = pair(device)
    ids = tokens(2, 90, device=device)
    cache = dict(past_key_values=door.PagedCache(model, 114, 2, page_size=16)) if paged else {}
    got, logits = generated(model, ids, **cache)
    assert got.shape == (2, 114) and done.calls == {"libnsa": 2 * 24}
    if device == "cpu":
        want, expected = generated(eager, ids)
        assert torch.equal(got, want) and close(logits, expected, device)
    if paged:
        cache = cache["past_key_values"]
        assert cache.get_seq_length() == 113 and cache.pages.free_pages == 0
        cache.reset()
        assert cache.get_seq_length() == 0 and cache.pages.free_pages == 16
        again, _ = generated(model, ids, past_key_values=cache)
        assert torch.equal(again, got)


def test_index_keys_in_fp8(device):
    """Pages of index keys in e4m3: half the bytes; logits near those of pages in 16 or 32 bits, whose blocks differ in few rows."""
    model, _, done = pair(device)
    ids = tokens(2, 90, device=device)
    logits = {}
    for name, more in dict(same={}, codes=dict(cmp_dtype=torch.float8_e4m3fn, scales=dict(k_idx=0.03))).items():
        cache = door.PagedCache(model, 114, 2, page_size=16, **more)
        stored = cache.pages.layers[0]
        assert (stored["k_idx"].dtype == torch.float8_e4m3fn) == (name == "codes") and stored["k0"].dtype != torch.float8_e4m3fn
        with torch.no_grad():
            logits[name] = model(ids, past_key_values=cache).logits
            for t in range(3):
                assert model(tokens(2, 1, seed=t, device=device), past_key_values=cache).logits.isfinite().all()
        if name == "codes":
            assert stored["k_idx"].view(torch.uint8).any() and stored["k_idx_scale"].item() == pytest.approx(0.03)
    near = (logits["codes"] - logits["same"]).float().norm() / logits["same"].float().norm()
    assert 0 <= near < 0.2
    assert set(done.calls) == {"libnsa"}
    with pytest.raises(TypeError, match="cmp_dtype is torch.int8"):
        door.PagedCache(model, 114, 2, cmp_dtype=torch.int8)


@pytest.mark.parametrize("paged", [False, True], ids=["transformers' cache", "pages"])
def test_beams(paged, device):
    needs_float32(device)
    model, eager, done = pair(device)
    ids = tokens(1, 70)
    more = dict(max_new_tokens=20, do_sample=False, num_beams=3)
    cache = dict(past_key_values=door.PagedCache(model, 90, 3, page_size=16)) if paged else {}
    assert torch.equal(model.generate(ids, **more, **cache), eager.generate(ids, **more))
    assert set(done.calls) == {"libnsa"}


@pytest.mark.parametrize("paged", [False, True], ids=["transformers' cache", "pages"])
def test_chunks_and_crop(paged, device):
    """A prompt in chunks, a draft that is rejected, and what follows: the rows of one forward."""
    needs_float32(device)
    model, eager, done = pair(device)
    ids = tokens(1, 150)
    cache = door.PagedCache(model, 160, page_size=16, max_q=8) if paged else transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        want = eager(ids, use_cache=False).logits
        step = lambda a, b, x=ids: model(x[:, a:b], past_key_values=cache).logits
        assert close(step(0, 70), want[:, :70], device) and close(step(70, 100), want[:, 70:100], device)
        step(100, 108, tokens(1, 150, seed=9))
        cache.crop(-8)
        assert cache.get_seq_length() == 100 and cache.get_seq_length(1) == 100
        assert close(step(100, 108), want[:, 100:108], device)
        for t in range(108, 120):
            assert close(step(t, t + 1), want[:, t:t + 1], device)
        cache.crop(110)
        assert close(step(110, 150), want[:, 110:150], device)
    assert set(done.calls) == {"libnsa"}


@pytest.mark.parametrize("paged", [False, True], ids=["transformers' cache", "pages"])
def test_drafts(paged, device):
    """Of generate(), looked up in the prompt: some are rejected."""
    needs_float32(device)
    model, eager, done = pair(device)
    ids = tokens(1, 20).repeat(1, 4)
    cache = dict(past_key_values=door.PagedCache(model, 128, page_size=16, max_q=8)) if paged else {}
    more = dict(max_new_tokens=24, do_sample=False)
    assert torch.equal(model.generate(ids, prompt_lookup_num_tokens=6, **more, **cache), eager.generate(ids, **more))
    assert set(done.calls) == {"libnsa"}


def test_rows_of_a_cache(device):
    """Rows are repeated and chosen, as a search does."""
    needs_float32(device)
    model, eager, _ = pair(device, layer_types=[SPARSE] * 3)
    ids = tokens(2, 40)
    ours, theirs = door.PagedCache(model, 64, 4, page_size=16), transformers.DynamicCache(config=eager.config)
    both = lambda x: [m(x, past_key_values=c).logits for m, c in ((model, ours), (eager, theirs))]
    with torch.no_grad():
        both(ids)
        for cache in ours, theirs:
            cache.batch_repeat_interleave(2)
        assert close(*both(tokens(4, 5, seed=2)), device)
        for cache in ours, theirs:
            cache.batch_select_indices(torch.tensor([3, 0]))
        assert close(*both(tokens(2, 5, seed=3)), device)
        with pytest.raises(ValueError, match="the batch has 1 rows; the cache has 2 sequences"):
            model(ids[:1], past_key_values=ours)


def test_gradients(device):
    """Those of every parameter; none goes into the index, neither here nor there."""
    needs_float32(device)
    model, eager, done = pair(device)
    ids = tokens(2, 120)
    for m in model, eager:
        m.train()(ids, labels=ids).loss.backward()
    indexed = 0
    for (name, p), want in zip(model.named_parameters(), eager.parameters()):
        if ".indexer." in name:
            indexed += 1
            assert p.grad is None and want.grad is None
        else:
            assert (p.grad - want.grad).norm() <= 1e-4 * want.grad.norm() + 1e-7, name
    assert indexed == 8 and done.calls == {"libnsa": 2}


def test_checkpointing(device):
    needs_float32(device)
    model, _, done = pair(device)
    ids = tokens(1, 100)
    model.train()(ids, labels=ids, use_cache=False).loss.backward()
    want = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(ids, labels=ids, use_cache=False).loss.backward()
    for p, expected in zip(model.parameters(), want):
        assert expected is None and p.grad is None or torch.allclose(p.grad, expected, atol=1e-6)
    assert set(done.calls) == {"libnsa"}


def test_compile(device):
    """With a break of the graph at each attention."""
    needs_float32(device)
    model, eager, done = pair(device)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        for length in 100, 70:
            assert close(compiled(tokens(1, length)).logits, eager(tokens(1, length)).logits, device)
    assert done.calls == {"libnsa": 4}


def test_training(device):
    model, _, done = pair(device)
    ids = tokens(2, 100, device=device)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=3e-3)
    losses = []
    for _ in range(10):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3 and done.calls == {"libnsa": 20}


def test_attention_alone(device):
    """attn_implementation by name: transformers chooses the blocks, libnsa attends."""
    needs_float32(device)
    _, eager, _ = pair(device)
    door.register()
    model = copy.deepcopy(eager)
    model.set_attn_implementation(door.NAME)
    before = door.calls.copy()
    with torch.no_grad():
        for ids in tokens(2, 150), tokens(2, 20):
            assert close(model(ids).logits, eager(ids).logits, device)
    got, logits = generated(model, tokens(1, 60))
    want, expected = generated(eager, tokens(1, 60))
    assert torch.equal(got, want) and close(logits, expected, device)
    assert set(door.calls - before) == {"libnsa"}
    with pytest.raises(ValueError, match="libnsa is not attached to the model"):
        door.PagedCache(model, 64)


def padded(side, device):
    ids, present = tokens(2, 90, device=device), torch.ones(2, 90, dtype=torch.long, device=device)
    cut = slice(0, 21) if side == "left" else slice(69, 90)
    ids[0, cut], present[0, cut] = 2, 0
    return ids, present


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_goes_back(side, device):
    model, eager, done = pair(device)
    ids, present = padded(side, device)
    rows = present.bool()
    with torch.no_grad(), pytest.warns(UserWarning, match="there is an attention mask"):
        door.calls.clear()
        got = model(ids, attention_mask=present).logits[rows]
        assert close(got, eager(ids, attention_mask=present).logits[rows], device)
    assert door.calls == {"transformers: there is an attention mask (padding, packed sequences)": 2}
    if device == "cpu" and side == "left":
        more = dict(attention_mask=present, max_new_tokens=10, do_sample=False)
        assert torch.equal(model.generate(ids, **more), eager.generate(ids, **more))
    with torch.no_grad(), pytest.raises(ValueError, match="over the pages of a PagedCache: there is an attention mask"):
        model(ids, attention_mask=present, past_key_values=door.PagedCache(model, 128, 2))


def reasons(done):
    return {name.removeprefix("transformers: ") for name in done.calls}


@pytest.mark.filterwarnings("ignore:libnsa")
def test_what_goes_back(device):
    needs_float32(device)
    model, eager, done = pair(device)
    ids = tokens(1, 76)

    def same(reason, ours=model, theirs=eager, **more):
        before = door.calls.copy()
        with torch.no_grad():
            assert close(ours(ids, **more).logits, theirs(ids, **more).logits, device)
        assert {name.removeprefix("transformers: ") for name in door.calls - before} == {reason}

    same("position_ids do not count from the first token", position_ids=torch.arange(76)[None] // 2)
    same("position_ids do not count from the first token", position_ids=torch.arange(76)[None] + 3)
    packed = torch.cat([torch.arange(30), torch.arange(46)])[None]
    same("there is an attention mask (padding, packed sequences)", position_ids=packed, use_cache=False)
    full = torch.ones(1, 1, 76, 76, dtype=torch.bool).tril().logical_and(torch.arange(76) != 7)
    full[..., 7, 7] = True
    same("there is an attention mask (padding, packed sequences)", attention_mask=torch.where(full, 0.0, -1e30))
    before = door.calls.copy()
    more = dict(max_new_tokens=10, do_sample=False, cache_implementation="static", disable_compile=True)
    assert torch.equal(model.generate(ids, **more), eager.generate(ids, **more))
    assert set(door.calls - before) == {"transformers: the cache is static"}
    same("the tensors are float64", model.double(), eager.double())
    model.float().train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    before = door.calls.copy()
    model(ids, labels=ids).loss.backward()
    assert set(door.calls - before) == {"transformers: attention weights are dropped (attention_dropout)"}


def test_float32_on_a_gpu_goes_back(device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    model, eager, done = pair(device)
    model, eager, ids = model.float(), eager.float(), tokens(1, 90, device=device)
    door.calls.clear()
    with torch.no_grad(), pytest.warns(UserWarning, match="float32 on a GPU"):
        assert (model(ids).logits - eager(ids).logits).abs().max() < 1e-2
    assert door.calls == {"transformers: the tensors are float32 on a GPU": 2}


def test_refusals(device):
    model, eager, done = pair(device)
    ids = tokens(1, 60, device=device)
    with pytest.raises(ValueError, match="over the pages of a PagedCache: gradients are wanted"):
        model(ids, past_key_values=door.PagedCache(model, 64))
    cache = door.PagedCache(model, 64)
    with pytest.raises(ValueError, match="a PagedCache serves a model that libnsa is attached to"):
        eager(ids, past_key_values=cache)
    with torch.no_grad(), pytest.raises(ValueError, match="it may have 40"):
        model(ids, past_key_values=door.PagedCache(model, 40))
    with pytest.raises(RuntimeError, match="attached to the model already"):
        door.attach(model)
    with pytest.raises(ValueError, match="no sparse layer"):
        door.attach(torch.nn.Linear(2, 2))
    with pytest.raises(nsa.ConfigError, match="index.heads"):
        pair(device, index_n_heads=4)
    with pytest.raises(ValueError, match="nsa.integrations.minimax_m3"):
        nsa_hf.register()
        eager.set_attn_implementation("nsa")
        eager(ids)


def test_undo(device):
    """The model's own attention comes back; names of parameters never change."""
    model, eager, done = pair(device)
    assert list(model.state_dict()) == list(eager.state_dict())
    assert all(p.data_ptr() for p in model.parameters())
    done.undo()
    assert model.config._attn_implementation == "eager"
    assert not any(isinstance(x, door.Indexer) for x in model.modules())
    ids = tokens(1, 90, device=device)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, eager(ids).logits) and not done.calls
    with door.attach(model) as again, torch.no_grad():
        model(ids)
        assert again.calls == {"libnsa": 2}
    assert model.config._attn_implementation == "eager"


def test_with_the_vision_tower(device):
    """The class that ships has the same language model in it; the tower keeps its own attention."""
    needs_float32(device)
    torch.manual_seed(3)
    parts = transformers.models.minimax_m3_vl.configuration_minimax_m3_vl
    vision = parts.MiniMaxM3VLVisionConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                                           image_size=56)
    model = modeling.MiniMaxM3SparseForConditionalGeneration(parts.MiniMaxM3VLConfig(
        text_config=text_config().to_dict(), vision_config=vision.to_dict(), image_token_id=95, video_token_id=96)).eval()
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    own, ids = model.config.vision_config._attn_implementation, tokens(1, 100) % 90 + 3
    more = dict(input_ids=ids, max_new_tokens=8, do_sample=False)
    with door.attach(model) as done, torch.no_grad():
        assert close(model(input_ids=ids).logits, eager(input_ids=ids).logits, device)
        assert torch.equal(model.generate(past_key_values=door.PagedCache(model, 128), **more), eager.generate(**more))
        assert model.config.vision_config._attn_implementation == own and done.calls == {"libnsa": 2 * 9}

# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa.integrations.huggingface on small Llamas with random weights."""
import pytest
import torch

from conftest import framework

transformers = framework("transformers")

import nsa  # noqa: E402
import nsa.integrations.huggingface as door  # noqa: E402
import oracle  # noqa: E402

SMALL = dict(compress=dict(block=16, stride=8), select=dict(block=16, count=4), window=24)


def llama(device, implementation="nsa", **changes):
    door.register()
    transformers.AttentionInterface.register("oracle", oracle_attention)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
                                      attn_implementation=implementation, **changes)
    config.nsa = SMALL
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return transformers.LlamaForCausalLM(config).to(device, dtype).eval()


def tokens(*shape, seed=1):
    return torch.randint(0, 97, shape, generator=torch.Generator().manual_seed(seed))


def tolerance(device):
    return 1e-4 if device == "cpu" else 6e-2


def test_everything_selected_is_dense(device):
    """With the compressed branch and the window off in effect, a selection of all blocks is dense attention."""
    model, dense = llama(device), llama(device, "eager")
    dense.load_state_dict(model.state_dict())
    door.add_gates(model)
    for layer in model.model.layers:  # sigmoid of -100, 100
        layer.self_attn.nsa_gate.bias.data = torch.tensor([-100.0, 100.0, -100.0]).repeat(4).to(layer.self_attn.nsa_gate.bias)
    ids = tokens(2, 60).to(device)
    assert torch.allclose(model(ids).logits, dense(ids).logits, atol=tolerance(device))


def test_training(device):
    model = llama(device).train()
    assert door.add_gates(model) == 2
    ids = tokens(2, 100).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3


def test_generate_equals_the_full_forward(device):
    if device != "cpu":
        pytest.skip("ties of bfloat16 logits")
    model = llama(device)
    ids = tokens(2, 50)
    out = model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)
    assert out.shape == (2, 70)
    assert torch.equal(model(out[:, :-1]).logits[:, 49:].argmax(-1), out[:, 50:])


def test_generate_pads(device):
    """Prompts of different lengths, padded on the left, and the cache behind them."""
    if device != "cpu":
        pytest.skip("ties of bfloat16 logits")
    model = llama(device)
    short, long = tokens(1, 30, seed=2), tokens(1, 50, seed=3)
    both = torch.cat([torch.nn.functional.pad(short, (20, 0)), long])
    present = torch.ones(2, 50, dtype=torch.long)
    present[0, :20] = 0
    more = dict(max_new_tokens=20, do_sample=False, pad_token_id=0)
    out = model.generate(both, attention_mask=present, **more)
    assert torch.equal(out[:1, 20:], model.generate(short, **more))
    assert torch.equal(out[1:], model.generate(long, **more))


def test_gradients_are_those_of_nsa_attention(device):
    """Of the whole Llama, through autograd, beside the same layers around nsa.attention's definition in oracle.py."""
    if device != "cpu":
        pytest.skip("oracle.py selects on the CPU")
    model = llama(device)
    door.add_gates(model)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.nsa_gate.weight, std=0.1)
    twin = llama(device, "oracle")
    door.add_gates(twin)
    twin.load_state_dict(model.state_dict())
    ids = tokens(1, 60)
    for m in model, twin:
        m(ids, labels=ids).loss.backward()
    for (name, got), want in zip(model.named_parameters(), twin.parameters()):
        assert torch.allclose(got.grad, want.grad, rtol=1e-3, atol=1e-5 + 1e-4 * want.grad.abs().max().item()), name


def oracle_attention(module, query, key, value, attention_mask=None, scaling=None, **_):
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    config = nsa.Config(heads=q.shape[1], kv_heads=k.shape[1], head_dim=q.shape[2], **module.config.nsa)
    gates = module.nsa_gate(module._nsa_hidden)[0].unflatten(-1, (-1, 3))
    return oracle.attention(q, k, v, gates, config, scale=scaling)[0][None], None


def test_configuration_by_register(device):
    """register(nsa=...) serves models whose own configuration has none; theirs is stronger."""
    ids = tokens(1, 80).to(device)
    model = llama(device)
    want = model(ids).logits
    try:
        door.register(nsa=dict(SMALL, window=8))
        assert torch.equal(model(ids).logits, want)
        del model.config.nsa
        other = model(ids).logits
        assert not torch.allclose(other, want, atol=tolerance(device))
        door.register(nsa=SMALL)
        assert torch.equal(model(ids).logits, want)
        door.register(nsa=dict(SMALL, window=-3))
        with pytest.raises(nsa.ConfigError, match="window"):
            model(ids)
    finally:
        door.register(nsa={})


@pytest.mark.parametrize("gated", [False, True], ids=["thirds", "gates"])
def test_compile(gated, device):
    model = llama(device)
    if gated:
        door.add_gates(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for length in 60, 61:
        ids = tokens(2, length).to(device)
        assert torch.allclose(compiled(ids).logits, model(ids).logits, atol=tolerance(device))
    compiled(ids, labels=ids).loss.backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    for a, p in zip(got, model.parameters()):
        assert torch.allclose(a, p.grad, rtol=1e-3, atol=1e-5 if device == "cpu" else 1e-2)


def test_compile_padded(device):
    """An error that says what to do, or a break of the graph."""
    model = llama(device)
    ids = tokens(2, 60).to(device)
    present = torch.ones(2, 60, dtype=torch.long, device=device)
    present[0, :20] = 0
    with pytest.raises(Exception, match="a padded batch cannot be compiled"):
        torch.compile(model, backend="aot_eager", fullgraph=True)(ids, attention_mask=present)
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(model, backend="aot_eager")(ids, attention_mask=present).logits
        assert torch.allclose(got, model(ids, attention_mask=present).logits, atol=tolerance(device))


def test_padding(device):
    model = llama(device)
    ids = tokens(2, 60).to(device)
    for cut in (slice(25, None), slice(None, 35)):  # padding on the left, on the right
        mask = torch.zeros(2, 60, dtype=torch.long, device=device)
        mask[0], mask[1, cut] = 1, 1
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        got = model(ids, attention_mask=mask, position_ids=positions).logits
        assert torch.allclose(got[0], model(ids[:1]).logits[0], atol=tolerance(device))
        assert torch.allclose(got[1, cut], model(ids[1:, cut]).logits[0], atol=tolerance(device))


def test_packed(device):
    model = llama(device)
    ids, lengths = tokens(1, 90).to(device), [40, 50]
    cu = torch.tensor([0, 40, 90], dtype=torch.int32, device=device)
    positions = torch.cat([torch.arange(n) for n in lengths])[None].to(device)
    got = model(ids, position_ids=positions, cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=50, max_length_k=50).logits
    want = torch.cat([model(part).logits for part in ids.split(lengths, 1)], 1)
    assert torch.allclose(got, want, atol=tolerance(device))


def test_refusals(device):
    model = llama(device, attention_dropout=0.1).train()
    with pytest.raises(ValueError, match="attention_dropout"):
        model(tokens(1, 20).to(device))
    with pytest.raises(ValueError, match="q_proj"):
        door.add_gates(torch.nn.Linear(2, 2))


def test_saved_gates_load(device, tmp_path):
    model = llama(device)
    door.add_gates(model)
    torch.nn.init.normal_(model.model.layers[0].self_attn.nsa_gate.weight)
    state = model.state_dict()
    twin = llama(device)
    door.add_gates(twin)
    twin.load_state_dict(state)
    ids = tokens(1, 40).to(device)
    assert torch.equal(model(ids).logits, twin(ids).logits)

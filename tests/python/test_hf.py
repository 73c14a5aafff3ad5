# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""nsa.integrations.huggingface on small Llamas with random weights."""
import pytest
import torch

from conftest import framework

transformers = framework("transformers")

import nsa  # noqa: E402
import nsa.integrations.huggingface as door  # noqa: E402

SMALL = dict(compress=dict(block=16, stride=8), select=dict(block=16, count=4), window=24)


def llama(device, implementation="nsa", **changes):
    door.register()
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

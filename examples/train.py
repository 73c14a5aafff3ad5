#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Trains a small language model of bytes twice: with dense attention and with Native Sparse Attention.

  train.py [--small] [--steps 500] [--seeds 3] [--tokens 2048] [--save WEIGHTS] [TEXT FILE]...

The text is that of the files, or of this repository. Both models are transformers' Llama with the same
weights at first and the same batches; libnsa's has gates besides. Prints the mean loss of the last tenth
of the steps, and the ratio. Needs PyTorch and transformers. --save writes the last sparse model for serve.py
and serve.c. --small: a minute on the CPU device.
"""
import argparse
import pathlib

import torch
import transformers

import nsa.integrations.huggingface as nsa_hf
import weights

TREE = pathlib.Path(__file__).resolve().parents[1]


def text_of(files):
    files = files or sorted(path for pattern in ("docs/*.md", "include/nsa/*.h", "runtime/**/*.c", "autotune/**/*.c")
                            for path in TREE.glob(pattern))
    data = b"\n".join(pathlib.Path(file).read_bytes() for file in files)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def make(options, implementation, seed, device):
    torch.manual_seed(seed)
    width, layers = (64, 2) if options.small else (512, 6)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=1 if options.small else 2, head_dim=16 if options.small else 64,
        max_position_embeddings=options.tokens, attn_implementation=implementation)
    config.nsa = dict(compress=dict(block=16, stride=8), select=dict(block=16, count=8), window=64) if options.small else dict(
        compress=dict(block=32, stride=16), select=dict(block=64, count=8), window=256)
    model = transformers.LlamaForCausalLM(config)  # the same numbers for both: the gates come later
    model = model.to(device, torch.float32)
    if implementation == nsa_hf.NAME:
        nsa_hf.add_gates(model)
    return model


def train(options, implementation, data, seed, device):
    model = make(options, implementation, seed, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    batch, generator = 2 if options.small else 8, torch.Generator().manual_seed(seed)
    warm = max(options.steps // 10, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warm, 1))
    losses = []
    for step in range(options.steps):
        at = torch.randint(0, len(data) - options.tokens, (batch,), generator=generator)
        ids = torch.stack([data[i:i + options.tokens] for i in at]).to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    last = max(options.steps // 10, 1)
    return torch.stack(losses)[-last:].float().mean().item(), losses[0].item(), model


def save(model, path):
    c = model.config
    tensors = {name: x.detach().float().cpu() for name, x in model.state_dict().items()}

    def numbers_of(name, shape):
        if tensors[name].shape != shape:
            raise ValueError(f"{name} is {list(tensors[name].shape)}, not {list(shape)}")
        return tensors[name].flatten().tolist()

    weights.save(path, dict(
        width=c.hidden_size, ffn=c.intermediate_size, layers=c.num_hidden_layers, heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads, dim=c.head_dim, block=c.nsa["compress"]["block"], stride=c.nsa["compress"]["stride"],
        select=c.nsa["select"]["block"], count=c.nsa["select"]["count"], window=c.nsa["window"],
        theta=float(c.rope_parameters["rope_theta"]), eps=c.rms_norm_eps), numbers_of)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--save", metavar="WEIGHTS")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    options.steps = options.steps or (12 if options.small else 500)
    options.seeds = options.seeds or (1 if options.small else 3)
    options.tokens = options.tokens or (192 if options.small else 2048)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    nsa_hf.register()
    data = text_of(options.files)
    print(f"{len(data)} bytes of text, {options.tokens} tokens a sequence, {options.steps} steps, {device}")
    means = {}
    for name, implementation in ("dense", "sdpa"), ("sparse", nsa_hf.NAME):
        results, model = [], None
        for seed in range(1, options.seeds + 1):
            *losses, model = train(options, implementation, data, seed, device)
            results.append(losses)
        means[name] = sum(last for last, _ in results) / len(results)
        print(f"{name:7} loss {means[name]:.4f} (at first {results[0][1]:.4f}), " +
              " ".join(f"{last:.4f}" for last, _ in results))
    if options.save:
        save(model, options.save)  # the last sparse one
    print(f"sparse / dense {means['sparse'] / means['dense']:.4f}")


if __name__ == "__main__":
    main()

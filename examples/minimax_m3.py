#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""MiniMax-M3 of transformers, with its sparse layers on libnsa: generates beside transformers' own attention.

  minimax_m3.py [--prompt 300] [--new 40] [--seqs 2] [MODEL]

MODEL: a checkpoint; without it, a small model with random weights. The prompts are random tokens. Runs greedy
decoding by transformers' attention, by libnsa with transformers' cache, and by libnsa over pages, and prints how
many tokens are the same, the greatest difference of logits while they are, and the seconds. float32 on the CPU,
bfloat16 on a GPU. Needs PyTorch and transformers 5.17.
"""
import argparse
import time

import torch
import transformers
from transformers import MiniMaxM3VLForCausalLM, MiniMaxM3VLTextConfig

import nsa.integrations.minimax_m3 as nsa_m3


def small():
    """A dense layer and three sparse ones, which choose 4 blocks of 16 tokens."""
    layers = ["full_attention"] + ["minimax_m3_sparse"] * 3
    torch.manual_seed(0)
    return MiniMaxM3VLForCausalLM(MiniMaxM3VLTextConfig(
        vocab_size=256, hidden_size=128, intermediate_size=64, dense_intermediate_size=128, shared_intermediate_size=64,
        num_hidden_layers=len(layers), num_attention_heads=8, num_key_value_heads=2, head_dim=32, num_local_experts=4,
        num_experts_per_tok=2, mlp_layer_types=["dense", "sparse", "sparse", "sparse"], layer_types=layers, index_n_heads=2,
        index_head_dim=32, index_block_size=16, index_topk_blocks=4, max_position_embeddings=2048, bos_token_id=0,
        eos_token_id=None, pad_token_id=0, initializer_range=0.1,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)))


def load(name):
    """Of the class that the checkpoint names: the language model, or with its vision tower."""
    return getattr(transformers, transformers.AutoConfig.from_pretrained(name).architectures[0]).from_pretrained(name)


def generate(model, ids, new, **more):
    begin = time.monotonic()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, eos_token_id=None,
                         return_dict_in_generate=True, output_logits=True, **more)
    return out.sequences[:, ids.shape[1]:], torch.stack(out.logits, 1).float(), time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=300, help="tokens of a prompt [300]")
    parser.add_argument("--new", type=int, default=40, help="tokens to generate [40]")
    parser.add_argument("--seqs", type=int, default=2, help="prompts [2]")
    parser.add_argument("model", nargs="?", help="a checkpoint [small, random weights]")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load(options.model) if options.model else small()
    model = model.to(device, torch.float32 if device == "cpu" else torch.bfloat16).eval()
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.randint(1, vocabulary, (options.seqs, options.prompt), generator=torch.Generator().manual_seed(1)).to(device)

    want, logits, seconds = generate(model, ids, options.new)
    print(f"transformers: {seconds:.1f} s")
    with nsa_m3.attach(model) as attached:
        pages = nsa_m3.PagedCache(model, options.prompt + options.new, options.seqs)
        for name, more in ("transformers' cache", {}), ("pages", dict(past_key_values=pages)):
            got, ours, seconds = generate(model, ids, options.new, **more)
            alike = (got == want).cumprod(1).bool()  # up to the first token that differs
            error = (ours - logits).abs().amax(-1)[alike].max() if alike.any() else torch.tensor(torch.nan)
            print(f"libnsa, {name}: {int(alike.sum())} of {alike.numel()} tokens the same, logits off by at most {error:.1e}, "
                  f"{seconds:.1f} s")
        print("calls of sparse layers:", ", ".join(f"{count} {name}" for name, count in sorted(attached.calls.items())))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Prints a random model within the library's limits as a configuration.

random_model.py SEED: the same seed gives the same model.
"""
import random
import sys

rng = random.Random(int(sys.argv[1]))


def head_dim():
    """Half of them the usual ones, half any multiple of 8."""
    return rng.choice([64, 128, 192, 256]) if rng.random() < 0.5 else 8 * rng.randint(2, 32)


group = rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64])
kv_heads = rng.choice([1, 2, 4])
stride = rng.choice([8, 16, 32])
block = stride * rng.choice([1, 2, 3, 4])
select_block = stride * rng.randint(block // stride, max(block // stride, 128 // stride))
count = rng.randint(4, 32)
init = rng.randint(0, 2)
local = rng.randint(0, 2)
window = rng.choice([0, 1, 100, 128, 512, 1000])
phi = rng.choice(['mean', 'linear', 'mlp', 'external'])
gate = rng.choice(['weights', 'logits', 'mlp'])
hidden = 8 * rng.randint(1, 32)

print(f"""# random_model.py {sys.argv[1]}
nsa: 1
model:
  heads: {group * kv_heads}
  kv_heads: {kv_heads}
  head_dim_qk: {head_dim()}
  head_dim_v: {head_dim()}
  compress:
    block: {block}
    stride: {stride}
    phi: {phi}""")
if phi == 'mlp':
    print(f'    hidden: {hidden}\n    activation: {rng.choice(["relu", "silu", "gelu"])}')
print(f"""  select: {{block: {select_block}, count: {count}, init: {init}, local: {local}}}
  window: {window}
  gate: {gate}""")
if gate == 'mlp':
    print(f'  gate_mlp: {{channels: {8 * rng.randint(8, 256)}, hidden: {rng.choice([0, hidden])}, activation: silu}}')
print(f"""  kv_sharing: {rng.choice(['shared', 'per_branch'])}
  dtype: {rng.choice(['bf16', 'fp16'])}
serving: {{max_tokens: 64Ki, max_kv_len: 64Ki, max_seqs: 4}}""")

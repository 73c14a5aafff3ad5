#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Draws a random model within the library's limits, and what it is compiled for.

random_model.py SEED: prints the model as a configuration. The same seed gives the same model, and
the same operations, here and in tests/sweep_models.py.
"""
import random
import sys

# Limits of the configuration (runtime/model/model.h, runtime/config/schema.c).
MAX_GROUP, MAX_SELECTED, MAX_BLOCK = 64, 256, 4096
PAGES = [16, 32, 64, 128]


def usual(rng, values, rare):
    """Three times of four one of the usual values, else what `rare` draws."""
    return rng.choice(values) if rng.random() < 0.75 else rare()


def head_dim(rng):
    """Half of them the usual ones, half any multiple of 8."""
    return rng.choice([64, 128, 192, 256]) if rng.random() < 0.5 else 8 * rng.randint(2, 32)


def blocks(rng):
    """Stride, compressed block and selected block: multiples of the stride, in this order."""
    stride = usual(rng, [8, 16, 32], lambda: rng.choice([1, 2, 4, 12, 24, 48, 64]))
    block = stride * usual(rng, [1, 2, 3, 4], lambda: rng.randint(1, 16))
    least = block // stride
    most = max(least, usual(rng, [128], lambda: rng.choice([256, 512, MAX_BLOCK])) // stride)
    return stride, block, stride * rng.randint(least, most)


def selection(rng):
    """Chosen blocks, and how many of them are the first and the last; 0 blocks: no such branch."""
    count = usual(rng, list(range(4, 33)), lambda: rng.choice([0, 1, rng.randint(33, MAX_SELECTED)]))
    init = min(count, usual(rng, [0, 1, 2], lambda: rng.randint(0, count)))
    local = min(count - init, usual(rng, [0, 1, 2], lambda: rng.randint(0, count)))
    return count, init, local


def ranking(rng, stride, count, external, shared):
    """How blocks are ranked, in a third of the models: what follows in `compress` and in `select`, and
    the stride by which pages must be divisible."""
    if not count or rng.random() < 2 / 3:
        return '', '', stride
    output = ', output: false' if shared and rng.random() < 0.5 else ''
    pool = ', pool: max' if rng.random() < 0.5 else ''
    if external or rng.random() < 0.25:
        return output, pool, stride
    norm_stride = stride * rng.choice([1, 2, 4])
    return output, (f'{pool}, normalizer: {{block: {norm_stride * rng.randint(1, 4)}, '
                    f'stride: {norm_stride}}}'), norm_stride


def model(rng, ranks, index):
    """The section `model`, as lines of YAML, and the stride of pages. `ranks` draws the ranking, and
    `index` an index branch of a fifth of the models: the rest of a seed's model is what it is without."""
    group = usual(rng, [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64], lambda: rng.randint(1, MAX_GROUP))
    kv_heads = rng.choice([1, 2, 4, 8])
    stride, block, select_block = blocks(rng)
    count, init, local = selection(rng)
    window = usual(rng, [0, 1, 100, 128, 512, 1000], lambda: rng.randint(1, 8192))
    phi = rng.choice(['mean', 'linear', 'mlp', 'external'])
    gate = rng.choice(['weights', 'logits', 'mlp', 'none'])
    hidden = 8 * rng.randint(1, 32)
    lines = ['model:',
             f'  heads: {group * kv_heads}',
             f'  kv_heads: {kv_heads}',
             f'  head_dim_qk: {head_dim(rng)}',
             f'  head_dim_v: {head_dim(rng)}',
             f'  compress: {{block: {block}, stride: {stride}, phi: {phi}'
             + (f', hidden: {hidden}, activation: {rng.choice(["relu", "silu", "gelu"])}'
                if phi == 'mlp' else '') + '}',
             f'  select: {{block: {select_block}, count: {count}, init: {init}, local: {local}}}',
             f'  window: {window}',
             f'  gate: {gate}']
    if gate == 'mlp':
        lines.append(f'  gate_mlp: {{channels: {8 * rng.randint(8, 256)}, '
                     f'hidden: {rng.choice([0, hidden])}, activation: silu}}')
    sharing = rng.choice(['shared', 'per_branch'])
    lines += [f'  kv_sharing: {sharing}',
              f'  dtype: {rng.choice(["bf16", "fp16"])}']
    compress, select, page_stride = ranking(ranks, stride, count, phi == 'external',
                                            sharing == 'shared')
    if count and index.random() < 0.2:
        lines[5] = '  compress: none'
        lines.append(f'  index: {{heads: {kv_heads}, dim: {head_dim(index)}}}')
        compress, select, page_stride = '', ', by: index, pool: max', 1
    for at, more in ((5, compress), (6, select)):
        if more:
            lines[at] = lines[at][:-1] + more + '}'
    return lines, page_stride


def configuration(seed):
    """The model of a seed and how it is served, as the text of a configuration."""
    rng = random.Random(seed)
    lines, stride = model(rng, random.Random(f'ranking of {seed}'), random.Random(f'index of {seed}'))
    length = rng.choice([2048, 32768, 65536, 1 << 20])
    page = rng.choice([0] + [page for page in PAGES if page % stride == 0])
    lines.append(f'serving: {{max_tokens: {length}, max_kv_len: {length}, '
                 f'max_seqs: {rng.choice([1, 4, 32, 256])}, '
                 f'max_q_len: {rng.choice([1, 1, 2, 4, 5, 8, 16])}, page_size: {page}}}')
    return '\n'.join([f'# random_model.py {seed}', 'nsa: 1'] + lines)


def operations(seed):
    """What the model of a seed is compiled for: options of `nsa-autotune compile` for each
    operation."""
    rng = random.Random(f'operations of {seed}')
    selects = 'count: 0,' not in configuration(seed)

    def select():
        who = usual(rng, ['topn'], lambda: rng.choice(['blocks', 'ranges']))
        return ['--selection', who if selects else 'topn']

    def probe():
        return usual(rng, [[]], lambda: ['--probe-rows', '1'])

    def option(text):
        return usual(rng, [[]], lambda: ['--set', text])

    return [['--op', 'forward', *select(), *probe()],
            ['--op', 'backward', *select(), *option('runtime.recompute=never')],
            ['--op', 'prefill', *select(), *probe()],
            ['--op', 'decode', *select(), *probe(), *option('runtime.count_reads=true')],
            ['--op', 'append'],
            ['--op', 'dense']]


if __name__ == '__main__':
    print(configuration(int(sys.argv[1])))

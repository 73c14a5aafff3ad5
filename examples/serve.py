#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""A small inference engine: a paged KV cache, continuous batching, greedy decoding.

  serve.py [--small] [--new N] [--rows N] [--pages N] [WEIGHTS] < PROMPTS

Every line of the standard input is a prompt, and every line printed is a prompt with what the model writes
behind it: N bytes more [128]; bytes other than printable ASCII, and the backslash, as \\xNN. WEIGHTS is a file
of weights.py or of train.py --save. serve.c is the same engine in C and prints the same.

A step has at most --rows sequences: prompts in chunks, and beside them one token of each sequence that
decodes. A prompt waits until a row is free, and as many pages as it needs to its end. Each step is one pass
through the model; KVCache.attend makes it a decode step or a prefill.

--small: 16 bytes more, and without WEIGHTS random ones. Seconds on the CPU device.
"""
import argparse
import pathlib
import sys
import tempfile

import torch
import torch.nn.functional as F

import nsa
import weights

PAGE, CHUNK, MAX_LEN = 64, 48, 2048  # tokens of a page, of prompts in a step, of a sequence


class Model:
    """transformers' Llama with gates, on the tokens of a step. float32 on the CPU, bfloat16 on a GPU."""

    def __init__(self, path, device):
        m, tensors = weights.load(path)
        self.dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.w = {name: torch.tensor(tensors[name]).view(shape).to(device, self.dtype) for name, shape in weights.shapes(m)}
        self.m = m
        self.config = nsa.Config(
            heads=m["heads"], kv_heads=m["kv_heads"], head_dim=m["dim"], compress=dict(block=m["block"], stride=m["stride"]),
            select=dict(block=m["select"], count=m["count"]), window=m["window"])
        self.frequencies = m["theta"] ** (-torch.arange(0, m["dim"], 2, device=device) / m["dim"])

    def norm(self, x, name):
        return F.rms_norm(x.float(), x.shape[-1:], eps=self.m["eps"]).to(self.dtype) * self.w[name]

    def __call__(self, tokens, positions, batch, cache, last):
        """Logits behind the rows `last` of the step's tokens."""
        angles = positions[:, None, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()

        def rotate(x):
            a, b = x.float().chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(self.dtype)

        x = self.w["model.embed_tokens.weight"][tokens]
        for i in range(self.m["layers"]):
            here = f"model.layers.{i}."
            h = self.norm(x, here + "input_layernorm.weight")
            project = lambda name: F.linear(h, self.w[f"{here}self_attn.{name}_proj.weight"]).unflatten(-1, (-1, self.m["dim"]))
            gates = F.linear(h, self.w[here + "self_attn.nsa_gate.weight"], self.w[here + "self_attn.nsa_gate.bias"])
            cache.append(i, batch, rotate(project("k")), project("v"))
            o = cache.attend(i, batch, rotate(project("q")), gates.unflatten(-1, (-1, 3)))
            x = x + F.linear(o.flatten(1), self.w[here + "self_attn.o_proj.weight"])
            h = self.norm(x, here + "post_attention_layernorm.weight")
            h = F.silu(F.linear(h, self.w[here + "mlp.gate_proj.weight"])) * F.linear(h, self.w[here + "mlp.up_proj.weight"])
            x = x + F.linear(h, self.w[here + "mlp.down_proj.weight"])
        return F.linear(self.norm(x[last], "model.norm.weight"), self.w["lm_head.weight"])


class Request:
    def __init__(self, number, prompt, new):
        self.number, self.text, self.end = number, list(prompt), len(prompt) + new
        self.done = 0  # tokens that the cache has

    @property
    def pages(self):
        return -(-(self.end - 1) // PAGE)  # the last token is not put into the cache


def serve(model, prompts, new, rows, pages, device):
    """The texts of all requests, and the numbers of steps with prompts and of steps of decoding alone."""
    requests = [Request(i, prompt, new) for i, prompt in enumerate(prompts)]
    cache = nsa.KVCache(model.config, model.m["layers"], pages, PAGE, max_len=MAX_LEN, dtype=model.dtype, device=device)
    for r in requests:
        if r.end > MAX_LEN or r.pages > pages:
            raise SystemExit(f"serve: prompt {r.number} needs {r.end} tokens in {r.pages} pages; there are {MAX_LEN} in {pages}")
    waiting, active, steps = list(requests), [], [0, 0]
    while waiting or active:
        while waiting and len(active) < rows and sum(r.pages for r in active) + waiting[0].pages <= pages:
            active.append(waiting.pop(0))
        room, new_tokens = CHUNK, []
        for r in active:  # one that decodes has one token that the cache lacks
            n = len(r.text) - r.done
            if n > 1:
                n = min(n, room)
                room -= n
            new_tokens.append(n)
        step = [(r, n) for r, n in zip(active, new_tokens) if n]
        batch = cache.begin([r.number for r, _ in step], [n for _, n in step])
        tokens = torch.tensor([t for r, n in step for t in r.text[r.done:r.done + n]], device=device)
        positions = torch.tensor([p for r, n in step for p in range(r.done, r.done + n)], device=device)
        last = torch.tensor([n for _, n in step], device=device).cumsum(0) - 1
        chosen = model(tokens, positions, batch, cache, last).argmax(-1).tolist()
        for (r, n), token in zip(step, chosen):
            r.done += n
            if r.done == len(r.text):
                r.text.append(token)
        steps[batch.max_q == 1] += 1
        for r in [r for r in active if len(r.text) == r.end]:
            cache.free(r.number)
            active.remove(r)
    return [bytes(r.text) for r in requests], steps


def shown(text):
    return "".join(chr(c) if 32 <= c < 127 and c != 92 else f"\\x{c:02x}" for c in text)


def positive(text):
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--new", type=positive, help="bytes behind each prompt [128; small 16]")
    parser.add_argument("--rows", type=positive, default=4, help="sequences of a step [4]")
    parser.add_argument("--pages", type=positive, default=64, help="pages of the cache [64]")
    parser.add_argument("weights", nargs="?")
    options = parser.parse_args()
    if not options.weights and not options.small:
        parser.error("WEIGHTS is missing; --small does without")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        path = options.weights or str(pathlib.Path(folder) / "weights")
        if not options.weights:
            weights.write_random(path)
        model = Model(path, device)
    prompts = [line.rstrip(b"\n") for line in sys.stdin.buffer]
    prompts = [prompt for prompt in prompts if prompt]
    new = options.new or (16 if options.small else 128)
    with torch.inference_mode():
        texts, (prefills, decodes) = serve(model, prompts, new, options.rows, options.pages, device)
    for text in texts:
        print(shown(text))
    print(f"{len(texts)} prompts, {prefills} steps with prompts, {decodes} of decoding alone, {device}", file=sys.stderr)


if __name__ == "__main__":
    main()

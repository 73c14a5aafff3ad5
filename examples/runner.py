# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Runs the steps of serve.py: the tokens of a step through the model, with libnsa's attention over the cache.

A step in which every sequence has one token, or every sequence one and a draft, is a decode step. Its number of
rows is rounded up to a power of two, by rows of padding, and on a GPU there is a CUDA graph for each such size.
Every other step runs as it comes: chunks of prompts beside sequences that decode, in one call of nsa.prefill.

On a GPU it needs PyTorch 2.8, for events in graphs.
"""
import dataclasses
import itertools
import time

import torch

from compare import SHARE_OF_RUN, Result, compare


@dataclasses.dataclass
class Piece:
    """What a step runs of a sequence."""
    id: object
    tokens: bytes
    position: int  # of the first token, which is the number of those before it
    answers: int   # last tokens behind which the model's choice is wanted


class Clock:
    """The time of a step's calls of libnsa, on a GPU between events, which a graph records in each replay. In a step
    without a graph that is also the time in which the GPU waits for the next launch."""

    def __init__(self, layers, device):
        event = lambda: torch.cuda.Event(enable_timing=True, external=True)
        self.events = [(event(), event()) for _ in range(layers)] if device.type == "cuda" else None
        self.times = [(0.0, 0.0)] * layers

    def start(self, layer):
        if self.events:
            self.events[layer][0].record()
        else:
            self.times[layer] = time.perf_counter(), 0.0

    def stop(self, layer):
        if self.events:
            self.events[layer][1].record()
        else:
            self.times[layer] = self.times[layer][0], time.perf_counter()

    def seconds(self):
        """Of all layers of the step, which has ended."""
        if self.events:
            return sum(start.elapsed_time(end) for start, end in self.events) / 1e3
        return sum(end - start for start, end in self.times)


class Attention:
    """The attention of a step's layers. `kept` has each layer's q, k, v, gates and o when they will be compared."""

    def __init__(self, cache, batch, clock, keep):
        self.cache, self.batch, self.clock, self.kept = cache, batch, clock, [] if keep else None

    def __call__(self, layer, q, k, v, gates):
        self.clock.start(layer)
        self.cache.append(layer, self.batch, k, v)
        o = self.cache.attend(layer, self.batch, q, gates)
        self.clock.stop(layer)
        if self.kept is not None:
            self.kept.append((q, k, v, gates, o))
        return o


class DecodeStep:
    """A decode step of a batch with `new` tokens a row. Its tensors keep their addresses, so that a graph may
    be replayed with other tokens, positions, lengths and pages: they are copied into them before."""

    def __init__(self, model, cache, batch, new, pool, keep):
        self.model, self.pool, self.graph = model, pool, None
        self.attention = Attention(cache, batch, Clock(model.m["layers"], cache.device), keep)
        count = batch.seqs * new
        self.host = torch.zeros(2, count, dtype=torch.int64, pin_memory=pool is not None)
        self.inputs = torch.zeros(2, count, dtype=torch.int64, device=cache.device)  # tokens, positions

    def body(self):
        if self.attention.kept:
            self.attention.kept.clear()
        self.chosen = self.model(*self.inputs, self.attention)

    def capture(self):
        # Plans cannot be made during the capture, so the step runs once before. The replay writes the same again.
        self.body()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=self.pool):
            self.body()

    def __call__(self, tokens, positions):
        """The choice behind every token. The batch has been begun."""
        self.host[0, :len(tokens)] = torch.tensor(tokens)
        self.host[1, :len(positions)] = torch.tensor(positions)
        self.inputs.copy_(self.host, non_blocking=True)
        if self.pool is None:
            self.body()
        else:
            if self.graph is None:
                self.capture()
            self.graph.replay()
        return self.chosen.tolist()  # waits for the step, so the next one may write `host`


class Runner:
    """Runs steps and counts them.

    rows     sequences of a step, at most
    every    each `every`-th step is compared with the CPU device; 0: none
    graphs   decode steps have padding, and on a GPU graphs; else they run as they come, too
    """

    def __init__(self, model, cache, rows, every, graphs=True):
        self.model, self.cache, self.rows, self.every, self.graphs = model, cache, rows, every, graphs
        self.pool = torch.cuda.graph_pool_handle() if cache.device.type == "cuda" else None  # the graphs' memory
        self.clock = Clock(model.m["layers"], cache.device)
        self.decode_steps, self.shapes = {}, set()
        self.steps = {"prompts": 0, "decoding": 0}
        self.time = {"prompts": [0, 0.0], "decoding": [0, 0.0]}  # tokens and seconds of the steps that are timed
        self.compared, self.result = 0, Result()

    def run(self, pieces):
        """The model's choices behind the last `answers` tokens of each piece, as lists. Raises compare.Mismatch."""
        new = [len(p.tokens) for p in pieces]
        kind = "decoding" if min(new) == max(new) and max(new) in (1, self.cache.max_q) else "prompts"
        fixed = self.graphs and kind == "decoding"
        self.steps[kind] += 1
        due = self.every > 0 and sum(self.steps.values()) % self.every == 0
        rows = min(1 << (len(pieces) - 1).bit_length(), self.rows) if fixed else len(pieces)
        batch = self.cache.begin([p.id for p in pieces], new, rows=rows)
        shape = rows, batch.tokens, batch.max_q
        if fixed and shape not in self.decode_steps:
            self.decode_steps[shape] = DecodeStep(self.model, self.cache, batch, new[0], self.pool, self.every > 0)
        # The first step of a shape is not timed, as it may compile kernels. A graph compiles before it is replayed.
        timed = shape in self.shapes or (fixed and self.pool is not None)
        self.shapes.add(shape)
        tokens = [t for p in pieces for t in p.tokens]
        positions = [p.position + i for p in pieces for i in range(len(p.tokens))]
        ends = list(itertools.accumulate(new))  # of the pieces' tokens
        wanted = [range(end - p.answers, end) for p, end in zip(pieces, ends)]
        if fixed:
            step = self.decode_steps[shape]
            attention, every_choice = step.attention, step(tokens, positions)
            choices = [[every_choice[i] for i in places] for places in wanted]
        else:
            attention = Attention(self.cache, batch, self.clock, due)
            here = lambda numbers: torch.tensor(numbers, dtype=torch.int64, device=self.cache.device)
            chosen = iter(self.model(here(tokens), here(positions), attention, here([i for r in wanted for i in r])).tolist())
            choices = [[next(chosen) for _ in places] for places in wanted]
        if timed:
            self.time[kind][0] += len(tokens)
            self.time[kind][1] += attention.clock.seconds()
        if due:
            self.result += compare(self.cache, batch, attention.kept)
            self.compared += 1
        return choices

    def check(self):
        """Whether the steps that were compared are right together. Raises compare.Mismatch."""
        self.result.check(self.model.dtype, SHARE_OF_RUN)

    def speed(self, kind):
        """Tokens a second through the attention of all layers; None: no step of this kind was timed."""
        tokens, seconds = self.time[kind]
        return tokens / seconds if seconds else None

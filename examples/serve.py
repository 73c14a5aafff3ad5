#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""A small inference engine: a paged KV cache, continuous batching, shared prefixes, drafts, greedy decoding.

  serve.py [--small] [--new N] [--rows N] [--pages N] [--chunk N] [--drafts N] [--eager] [--compare N]
           [--kv fp8 [--cmp fp8]] [WEIGHTS] < PROMPTS

Every line of the standard input is a prompt, and every line printed is a prompt with what the model writes
behind it: N bytes more [128]; bytes other than printable ASCII, and the backslash, as \\xNN. WEIGHTS is a file
of weights.py or of train.py --save. serve.c is a smaller engine in C and prints the same, unless --kv fp8 is given.

A step has at most --rows sequences: prompts in chunks, and beside them the newest token of each sequence that
decodes, with a draft of what may follow: what followed the same three bytes before. Each step is one pass
through the model. A prompt waits until a row is free, and as many pages as it needs to its end. Where it begins
as another sequence does, one that runs or one that has ended, it waits for those tokens and shares their pages.

This file decides what a step runs; runner.py runs it, on a GPU with CUDA graphs, model.py is the model, and
compare.py compares every 100th step with libnsa's CPU device. Figures follow on the standard error.

--kv fp8 stores K and V in FP8 (e4m3), and --cmp fp8 the compressed entries, too. This rounding may change the text.
scales.py chooses the scales, by the first prompt.

--small: 16 bytes more, and without WEIGHTS random ones. Seconds on the CPU device.
"""
import argparse
import collections
import pathlib
import sys
import tempfile

import torch

import nsa
import weights
from compare import Mismatch
from model import Model
from runner import Piece, Runner
from scales import scales_of

PAGE, MAX_LEN = 64, 2048  # tokens of a page, of a sequence
MAX_DRAFT = 15            # a decode step of libnsa has 16 tokens of a sequence
STORED = {"model": None, "fp8": torch.float8_e4m3fn}  # what the cache has, by --kv and --cmp


class Request:
    def __init__(self, number, prompt, new):
        self.number, self.text, self.end = number, bytearray(prompt), len(prompt) + new
        self.draft = b""  # of the step that runs

    @property
    def pages(self):
        return -(-(self.end - 1) // PAGE)  # the last token is not put into the cache


def draft_of(text, most):
    """What followed the last three bytes of a text where they stood before."""
    at = text.rfind(text[-3:], 0, len(text) - 1)
    return bytes(text[at + 3:at + 3 + most]) if at >= 0 else b""


def alike(a, b):
    """Bytes with which both begin."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


class Scheduler:
    """Which tokens of which requests run in a step, and in which pages.

    waiting   requests that have not begun, in order
    active    those that have a row. The cache has the pages that they will need to their ends
    ended     those that are complete, the oldest first. Their pages stay for prompts that begin alike, until
              others need them
    """

    def __init__(self, cache, requests, rows, chunk, drafts):
        self.cache, self.rows, self.chunk, self.drafts = cache, rows, chunk, drafts
        self.pages = cache.free_pages  # all of them: the cache is empty
        self.waiting, self.active, self.ended = collections.deque(requests), [], collections.deque()
        self.shared = self.drafted = self.accepted = 0  # tokens

    def __bool__(self):
        return bool(self.waiting or self.active)

    def done(self, r):
        """Tokens of a request that the cache has."""
        return self.cache.length(r.number)

    def admit(self):
        while self.waiting and len(self.active) < self.rows:
            r = self.waiting[0]
            source, shared, awaited = self.find_prefix(r)
            if awaited > shared:
                return  # what others compute anyway is not computed twice
            if shared:
                self.cache.fork(source.number, r.number, shared)
            while not self.fits(r, self.cache.free_pages):
                # Ended sequences stay if r must wait for an active one all the same.
                if not self.ended or (self.active and not self.fits(r, self.pages_without_ended(r))):
                    if shared:
                        self.cache.free(r.number)
                    return
                self.cache.free(self.ended.popleft().number)
            self.shared += shared
            self.active.append(self.waiting.popleft())

    def find_prefix(self, r):
        """The sequence of which the cache has most of a prompt's beginning, how many tokens it has, and how many it
        will have when the prompts of active sequences are there. Less than a page counts as none."""
        wanted = r.text[:-1]  # the last byte of a prompt runs in any case
        cached = [(alike(wanted, other.text[:self.done(other)]), other) for other in [*self.active, *self.ended]]
        shared, source = max(cached, key=lambda pair: pair[0], default=(0, None))
        awaited = max((alike(wanted, other.text[:-1]) for other in self.active), default=0)
        return source, shared if shared >= PAGE else 0, awaited if awaited >= PAGE else 0

    def fits(self, r, free):
        """Whether the active sequences and r find their pages, each to its end."""
        running = [*self.active, r]
        return self.cache.pages_needed([a.number for a in running], [a.end - 1 - self.done(a) for a in running]) <= free

    def pages_without_ended(self, r):
        """Pages that are free when all ended sequences are forgotten."""
        return self.pages - len({page for a in [*self.active, r] for page in self.cache.pages(a.number)})

    def compose(self):
        """The pieces of the next step."""
        left = {r: len(r.text) - self.done(r) for r in self.active}
        for r in self.active:
            r.draft = draft_of(r.text, min(self.drafts, r.end - len(r.text) - 1)) if left[r] == 1 else b""
        if all(n == 1 for n in left.values()):
            self.level_drafts()
        room, pieces = self.chunk, []
        for r in self.active:
            begin, n = self.done(r), left[r]
            if n > 1:  # of a prompt
                n = min(n, room)
                room -= n
            if n:
                whole = n == left[r]
                pieces.append(Piece(r.number, bytes(r.text[begin:begin + n]) + r.draft, begin, whole + len(r.draft)))
        return pieces

    def level_drafts(self):
        """All sequences of a step that only decodes get as many tokens, as a graph wants them: a whole draft, filled
        up where it is short, or none when nobody has one or somebody is near the end."""
        fill = any(r.draft for r in self.active) and all(r.end - len(r.text) > self.drafts for r in self.active)
        for r in self.active:
            r.draft = r.draft.ljust(self.drafts, b" ") if fill else b""

    def accept(self, pieces, choices):
        """Takes the model's choices behind the tokens of a step: drafts as far as they are what it chose."""
        requests = {r.number: r for r in self.active}
        for piece, chosen in zip(pieces, choices):
            r = requests[piece.id]
            if chosen:
                same = 0
                while same < len(r.draft) and r.draft[same] == chosen[same]:
                    same += 1
                r.text += bytes(chosen[:same + 1])  # the accepted draft, and the choice behind it
                self.cache.truncate(r.number, len(r.text) - 1)
                self.drafted, self.accepted = self.drafted + len(r.draft), self.accepted + same
            if len(r.text) == r.end:
                self.active.remove(r)
                self.ended.append(r)


def serve(model, prompts, options, new):
    """The texts of all requests, the scheduler and the runner, for their figures."""
    requests = [Request(i, prompt, new) for i, prompt in enumerate(prompts)]
    for r in requests:
        if r.end > MAX_LEN or r.pages > options.pages:
            raise SystemExit(f"serve: prompt {r.number} needs {r.end} tokens in {r.pages} pages; there are {MAX_LEN} in "
                             f"{options.pages}")
    scales = scales_of(model, prompts[0]) if options.kv == "fp8" and prompts else None
    cache = nsa.KVCache(model.config, model.m["layers"], options.pages, PAGE, max_len=MAX_LEN, max_q=1 + options.drafts,
                        dtype=model.dtype, device=model.device, kv_dtype=STORED[options.kv], cmp_dtype=STORED[options.cmp],
                        scales=scales)
    scheduler = Scheduler(cache, requests, options.rows, options.chunk, options.drafts)
    runner = Runner(model, cache, options.rows, options.compare, not options.eager)
    try:
        while scheduler:
            scheduler.admit()
            pieces = scheduler.compose()
            scheduler.accept(pieces, runner.run(pieces))
        runner.check()
    except Mismatch as wrong:
        raise SystemExit(f"serve: step {sum(runner.steps.values())}: {wrong}") from wrong
    return [bytes(r.text) for r in requests], scheduler, runner


def shown(text):
    return "".join(chr(c) if 32 <= c < 127 and c != 92 else f"\\x{c:02x}" for c in text)


def bytes_of(cache, dtype=None):
    """Of all its pages, as they are, or if they were in `dtype`."""
    return sum(x.numel() * (dtype or x.dtype).itemsize for layer in cache.layers for name, x in layer.items()
               if not name.endswith("_scale"))


def report(scheduler, runner, device):
    prompts, decoding = (f"{speed:.0f} tokens/s" if (speed := runner.speed(kind)) else "not timed" for kind in runner.steps)
    yield f"{runner.steps['prompts']} steps with prompts, {runner.steps['decoding']} of decoding alone, {device}"
    yield f"{scheduler.shared} tokens in pages of others, {scheduler.accepted} of {scheduler.drafted} drafted tokens accepted"
    yield f"attention of all layers: {prompts} in steps with prompts, {decoding} in those of decoding alone"
    result = runner.result
    yield (f"{runner.compared} steps compared with the CPU device, off by at most {result.error:.1e} but for {result.beyond} of "
           f"{result.outputs} outputs")
    cache, plain = scheduler.cache, runner.model.dtype
    dtypes = cache.layers[0]["k0"].dtype, cache.layers[0]["k_cmp"].dtype, plain
    raw, entries, model = (str(dtype).split(".")[1] for dtype in dtypes)
    yield (f"cache: {bytes_of(cache)} bytes, K and V in {raw}, entries in {entries}; all in {model}: "
           f"{bytes_of(cache, plain)} bytes")


def at_least(least, most=None):
    def number(text):
        value = int(text)
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{value} is not {least} " + ("or more" if most is None else f"to {most}"))
        return value
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--new", type=at_least(1), help="bytes behind each prompt [128; small 16]")
    parser.add_argument("--rows", type=at_least(1), default=4, help="sequences of a step [4]")
    parser.add_argument("--pages", type=at_least(1), default=64, help="pages of the cache [64]")
    parser.add_argument("--chunk", type=at_least(1), default=48, help="tokens of prompts in a step [48]")
    parser.add_argument("--drafts", type=at_least(0, MAX_DRAFT), default=3, help="tokens of a draft; 0: none [3]")
    parser.add_argument("--eager", action="store_true", help="decode steps without padding and graphs, too")
    parser.add_argument("--compare", type=at_least(0), default=100, metavar="N",
                        help="every N-th step is compared with the CPU device; 0: none [100]")
    parser.add_argument("--kv", choices=STORED, default="model", help="the cache's K and V: the model's dtype, or FP8 [model]")
    parser.add_argument("--cmp", choices=STORED, default="model",
                        help="the compressed entries, which decide the selection; fp8 only with --kv fp8 [model]")
    parser.add_argument("weights", nargs="?")
    options = parser.parse_args()
    if not options.weights and not options.small:
        parser.error("WEIGHTS is missing; --small does without")
    if options.cmp == "fp8" and options.kv != "fp8":
        parser.error("--cmp fp8 is given without --kv fp8; add it, or leave --cmp out")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        path = options.weights or str(pathlib.Path(folder) / "weights")
        if not options.weights:
            weights.write_random(path)
        model = Model(path, device)
    prompts = [line.rstrip(b"\n") for line in sys.stdin.buffer]
    prompts = [prompt for prompt in prompts if prompt]
    with torch.inference_mode():
        texts, *figures = serve(model, prompts, options, options.new or (16 if options.small else 128))
    for text in texts:
        print(shown(text))
    print(f"{len(texts)} prompts, " + "\n".join(report(*figures, device)), file=sys.stderr)


if __name__ == "__main__":
    main()

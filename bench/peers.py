#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Times dense attention of PyTorch's backends on the model of configs/h200_d128.yaml.

    peers.py --csv FILE     all of it on the current GPU: what `nsa-bench chart` compares with

forward     causal attention of one sequence: the median of 7 launches, each after a pause of 40 ms and a
            256 MB flush of L2, as `nsa-bench` takes its burst times; the stream waits while PyTorch
            prepares the launch
backward    its gradients of q, k and v, likewise
decode      one new token of each of 32 sequences over all keys: a step of a CUDA graph of steps, each over
            keys and values of its own as long as these fit into L2, as `nsa-bench decode` does

Inputs are random: the time of dense attention does not depend on what is selected. --csv appends one line a
time under the columns that bench/peers.h explains. A time that could not be taken has a note instead. Exit
status: 0 when all were taken, 1 when one was not, 77 without PyTorch or a GPU. On the CPU, times mean nothing:
--device cpu is there to try this program.
"""

import argparse
import csv
import datetime
import pathlib
import sys
import time

HEADS, KV_HEADS, DIM = 64, 4, 128  # of configs/h200_d128.yaml
LENGTHS = [4096, 6144, 8192, 16384, 32768, 65536, 131072]
PARTS = ["forward", "backward", "decode"]
COLUMNS = ["date", "device", "software", "backend", "part", "dtype", "heads", "kv_heads", "head_dim", "batch",
           "tokens", "ms", "note"]
RUNS = 7
PAUSE_S = 0.04  # after 30 ms the clocks recover from a power cap
FLUSH_BYTES = 256 << 20
HOLD_CLOCKS = 4_000_000  # about 2 ms before the first event, in which PyTorch prepares the launch
COLD_BYTES = 256e6  # that other steps read before the same keys are read again
MOST_COPIES = 96  # nodes of a graph have a cost, too


def median(values):
    return sorted(values)[len(values) // 2]


class Gpu:
    def __init__(self, torch):
        self.torch, self.name, self.copies = torch, "cuda", MOST_COPIES
        self.title = torch.cuda.get_device_name()
        self.software = f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def once(self, run):
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(HOLD_CLOCKS)
        start.record()
        run()
        end.record()
        self.torch.cuda.synchronize()
        return start.elapsed_time(end)

    def burst(self, run):
        """The median of RUNS launches; one before them builds what the backend needs."""
        run()
        times = []
        for _ in range(RUNS):
            self.torch.cuda.synchronize()
            time.sleep(PAUSE_S)
            self.flush.zero_()
            times.append(self.once(run))
        return median(times)

    def steps(self, step, copies):
        """The time of one of `copies` steps in a graph."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(0)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for copy in range(copies):
                step(copy)
        graph.replay()
        return median([self.once(graph.replay) for _ in range(RUNS)]) / copies

    def free(self):
        self.torch.cuda.empty_cache()


class Cpu:
    def __init__(self, torch):
        self.name = self.title = "cpu"
        self.copies = 1
        self.software = f"PyTorch {torch.__version__}"

    def once(self, run):
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)

    def burst(self, run):
        run()
        return median([self.once(run) for _ in range(RUNS)])

    def steps(self, step, copies):
        return self.burst(lambda: [step(copy) for copy in range(copies)]) / copies

    def free(self):
        pass


class Dense:
    """Dense attention of one backend on one device."""

    def __init__(self, device, backend):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        self.torch, self.device = torch, device
        self.backend = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
                        "math": SDPBackend.MATH}[backend]
        self.only = sdpa_kernel

    def draw(self, batch, heads, tokens, grad=False):
        return self.torch.randn(batch, heads, tokens, DIM, device=self.device.name, dtype=self.torch.bfloat16,
                                requires_grad=grad)

    def attend(self, q, k, v, causal):
        return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    def time(self, part, batch, tokens):
        """Of a part of PARTS. The backend is chosen once: that takes as long as a launch."""
        with self.only(self.backend):
            return getattr(self, part)(batch, tokens)

    def forward(self, batch, tokens):
        q, k, v = (self.draw(batch, heads, tokens) for heads in (HEADS, KV_HEADS, KV_HEADS))
        return self.device.burst(lambda: self.attend(q, k, v, True))

    def backward(self, batch, tokens):
        q, k, v = (self.draw(batch, heads, tokens, grad=True) for heads in (HEADS, KV_HEADS, KV_HEADS))
        o = self.attend(q, k, v, True)
        d_o = self.torch.randn_like(o)
        return self.device.burst(lambda: self.torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True))

    def decode(self, batch, tokens):
        size = 2 * 2 * batch * KV_HEADS * tokens * DIM  # bytes of K and V
        copies = min(1 + int(COLD_BYTES / size), self.device.copies)
        q = self.draw(batch, HEADS, 1)
        caches = [[self.draw(batch, KV_HEADS, tokens) for _ in range(2)] for _ in range(copies)]
        with self.torch.no_grad():
            return self.device.steps(lambda copy: self.attend(q, *caches[copy], False), copies)


def parse_list(known):
    """A parser of lists, as in a,b: of numbers from 1, or of `known` words."""
    def parse(text):
        items = text.split(",")
        if known:
            wrong = [item for item in items if item not in known]
        else:
            wrong = [item for item in items if not (item.isascii() and item.isdigit() and int(item))]
        if wrong:
            wanted = "none of " + ", ".join(known) if known else "no number from 1"
            raise argparse.ArgumentTypeError(f"'{wrong[0]}' is {wanted}")
        return items if known else [int(item) for item in items]
    return parse


def parse_arguments():
    backends = ["cudnn", "flash", "math"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", metavar="FILE", type=pathlib.Path, help="append the times to FILE")
    parser.add_argument("--lengths", metavar="LIST", type=parse_list(None), default=LENGTHS,
                        help="tokens of a sequence (" + ",".join(map(str, LENGTHS)) + ")")
    parser.add_argument("--parts", metavar="LIST", type=parse_list(PARTS), default=PARTS,
                        help="of forward, backward, decode (all)")
    parser.add_argument("--backends", metavar="LIST", type=parse_list(backends), default=["cudnn", "flash"],
                        help="of cudnn, flash, math (cudnn,flash)")
    parser.add_argument("--batches", metavar="LIST", type=parse_list(None), default=[32],
                        help="sequences of decode (32)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    return parser.parse_args()


def open_csv(path, columns):
    """The writer of a file that begins with these columns, and the file; refuses any other."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if old and old.split("\n", 1)[0] != ",".join(columns):
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {path} has other columns: give --csv another file")
    file = path.open("a", encoding="utf-8", newline="")
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    if not old:
        writer.writeheader()
    return writer, file


def find_device(name):
    """The device of that name; ends the program with the status 77 where PyTorch or a GPU is missing."""
    program = pathlib.Path(sys.argv[0]).name
    try:
        import torch
    except ImportError as error:
        print(f"{program}: no PyTorch: {error}", file=sys.stderr)
        sys.exit(77)
    if name == "cuda" and not torch.cuda.is_available():
        print(f"{program}: no GPU", file=sys.stderr)
        sys.exit(77)
    return Gpu(torch) if name == "cuda" else Cpu(torch)


def measure(device, backend, part, batch, tokens):
    """A line of the table."""
    now = datetime.datetime.now(datetime.timezone.utc)
    row = {"date": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "device": device.title, "software": device.software,
           "backend": backend, "part": part, "dtype": "bf16", "heads": HEADS, "kv_heads": KV_HEADS,
           "head_dim": DIM, "batch": batch, "tokens": tokens, "ms": "", "note": ""}
    try:
        row["ms"] = f"{Dense(device, backend).time(part, batch, tokens):.5g}"
    except RuntimeError as error:  # no such kernel, or no memory
        row["note"] = str(error).split("\n", 1)[0]
    device.free()
    return row


def main():
    a = parse_arguments()
    device = find_device(a.device)
    writer, file = open_csv(a.csv, COLUMNS) if a.csv else (None, None)
    missing = 0
    print(f"{device.title}, {device.software}")
    for part in PARTS:
        for tokens in a.lengths:
            for batch in a.batches if part == "decode" else [1]:
                for backend in a.backends if part in a.parts else []:
                    row = measure(device, backend, part, batch, tokens)
                    missing += not row["ms"]
                    print(f"{part:8} {batch:3} x {tokens:6} {backend:5} {row['ms']:>9} ms  {row['note']}".rstrip(),
                          flush=True)
                    if writer:
                        writer.writerow(row)
                        file.flush()
    if file:
        file.close()
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

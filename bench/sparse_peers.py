#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Times libnsa beside the kernels that users of MiniMax-M3 and MiniCPM4 run on Hopper, on the same inputs.

    sparse_peers.py --peers FOLDER --csv FILE

msa-prefill     MiniMax-M3's sparse attention of one prompt, pages of 128: libnsa, vLLM's and sglang's Triton kernels
msa-decode      one new token of each sequence, a step of a CUDA graph of steps; the same three
infllm-prefill  MiniCPM4's attention of one prompt: libnsa over pages of 64, OpenBMB's CUDA kernels, and the Triton
                kernels of infllm_triton.py. Compressed keys are made beforehand, for all

FOLDER holds other projects' files, none of which are part of libnsa; what is missing becomes a note that says where it
comes from. Wheels of vllm and sglang may be unpacked there; nothing of them is imported but the kernels. libnsa needs
PYTHONPATH=python and NSA_PYTHON_LIBRARY. Times are taken as peers.py takes them: medians, L2 cold. `index` is the
scores and the choice of blocks, `attend` the attention over them. The floor is the operations at --tflops, of decoding
the bytes at --gbps. Then --check compares each with plain PyTorch on a short prompt: autotuners decide at the first
call, so that a check before would decide for the times, too. Exit status: 0; 1 when a time is missing or an output is
wrong; 77 without PyTorch or a GPU.
"""

import argparse
import datetime
import pathlib
import sys

import peers
from sparse_inputs import InfLlm, Msa

PARTS = ["msa-prefill", "msa-decode", "infllm-prefill"]
IMPLEMENTATIONS = ["libnsa", "vllm", "sglang", "infllm_v2", "triton"]
COLUMNS = ["date", "device", "software", "part", "inputs", "implementation", "step", "batch", "tokens", "ms", "tflops",
           "floor_ms", "note"]
CLOSE = 0.02  # of a row's norm: bf16 products and outputs
ROWS = 0.99  # of rows that are close: near ties another block may be chosen


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--peers", metavar="FOLDER", type=pathlib.Path, help="where other projects' files lie")
    add("--csv", metavar="FILE", type=pathlib.Path, help="append the times to FILE")
    add("--parts", metavar="LIST", type=peers.parse_list(PARTS), default=PARTS, help="of " + ", ".join(PARTS) + " (all)")
    add("--implementations", metavar="LIST", type=peers.parse_list(IMPLEMENTATIONS), default=IMPLEMENTATIONS,
        help="of " + ", ".join(IMPLEMENTATIONS) + " (all)")
    add("--lengths", metavar="LIST", type=peers.parse_list(None), default=[65536], help="tokens of a sequence (65536)")
    add("--batches", metavar="LIST", type=peers.parse_list(None), default=[1, 64], help="sequences of decode (1,64)")
    add("--inputs", metavar="LIST", type=peers.parse_list(["random", "correlated"]), default=["random", "correlated"],
        help="of random, correlated (both); decode takes random ones")
    add("--tflops", type=float, default=781, help="bf16 TFLOP/s of the device (781, an H200's matrix product)")
    add("--gbps", type=float, default=4625, help="GB/s that memory is read at (4625, an H200)")
    add("--check", action="store_true", help="compare with plain PyTorch, and take no times")
    add("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: checks alone, with TRITON_INTERPRET=1")
    return parser.parse_args()


def offered(part, folder, names, interpreted):
    """Classes of the implementations of a part, or the reason why there is none, by name."""
    import sparse_kernels
    for name, load in sparse_kernels.LOADERS[part].items():
        if name not in names:
            continue
        try:
            yield name, load(folder, interpreted)
        except (ImportError, OSError) as error:
            yield name, str(error)


def steps_of(device, part, call, copies):
    if part == "msa-decode":
        return device.steps(call, copies)
    return device.burst(lambda: call(0))


def measure(a, device, part, inputs, name, made, batch, tokens):
    """Yields a line of the table for each step."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    row = dict(date=now, device=device.title, software=device.software, part=part, inputs=inputs, implementation=name,
               step="total", batch=batch, tokens=tokens, ms="", tflops="", floor_ms="", note="")
    if isinstance(made, str):
        yield row | {"note": made}
        return
    data, make = made
    try:
        work = make(data)
        for step, call in work.steps.items():
            ms = steps_of(device, part, call, data.copies)
            operations, read = data.work(step)
            more = {}
            if part == "msa-decode":
                more["floor_ms"] = f"{read / a.gbps * 1e-6:.4g}"
            else:
                more = {"tflops": f"{operations / ms * 1e-9:.4g}", "floor_ms": f"{operations / a.tflops * 1e-9:.4g}"}
            yield row | {"step": step, "ms": f"{ms:.5g}"} | more
    except Exception as error:  # of another project's code: its kind cannot be known
        yield row | {"note": f"{type(error).__name__}: {error}".split("\n", 1)[0][:200]}


def check(device, part, name, make, data):
    """The share of rows that agree with plain PyTorch on the implementation's own blocks, and that of equal blocks."""
    work = make(data)
    out, lists = work.steps["total"](0), work.lists
    own = data.choose()
    alike = 1.0 if lists is None else data.alike(lists, own)
    want = data.attend(own if lists is None else lists)
    error = (out.float() - want).norm(dim=-1) / want.norm(dim=-1)
    rows = (error < CLOSE).float().mean().item()
    good = rows >= ROWS and alike >= data.LEAST_ALIKE
    print(f"check {part:14} {name:10} {100 * rows:6.2f} % of rows within {100 * CLOSE:.0f} %, {100 * alike:6.2f} % of "
          f"blocks as in plain PyTorch: {'right' if good else 'WRONG'}", flush=True)
    return good


def data_of(device, part, inputs, batch, tokens, small=False):
    import torch
    torch.manual_seed(1)
    kind = InfLlm if part == "infllm-prefill" else Msa
    model = kind.small() if small and device.name == "cpu" else kind()
    if small:
        batch, tokens = 2 if part == "msa-decode" else 1, model.check_tokens
    copies = 1
    if part == "msa-decode" and not small:
        copies = min(1 + int(peers.COLD_BYTES / (batch * model.bytes_read(tokens))), device.copies)
    return model.draw(torch, device.name, part == "msa-decode", inputs, batch, tokens, copies)


def cases(a):
    for part in a.parts:
        decode = part == "msa-decode"
        for inputs in ["random"] if decode else a.inputs:
            for tokens in a.lengths:
                for batch in a.batches if decode else [1]:
                    yield part, inputs, batch, tokens


def take_times(a, device, write):
    missing = 0
    for part, inputs, batch, tokens in cases(a):
        data = data_of(device, part, inputs, batch, tokens)
        print(f"{part}, {batch} x {tokens}, {inputs}: {data.describe()}", flush=True)
        ours = None
        for name, make in offered(part, a.peers, a.implementations, False):
            made = make if isinstance(make, str) else (data, make)
            for row in measure(a, device, part, inputs, name, made, batch, tokens):
                missing += not row["ms"]
                ours = float(row["ms"]) if row["ms"] and name == "libnsa" else ours
                ratio = f"{float(row['ms']) / ours:6.2f} x libnsa" if row["ms"] and ours and row["step"] == "total" else ""
                print(f"  {name:10} {row['step']:7} {row['ms']:>9} ms  floor {row['floor_ms']:>8}  {row['tflops']:>6} TFLOP/s "
                      f"{ratio} {row['note']}".rstrip(), flush=True)
                write(row)
            device.free()
        del data
        device.free()
    return missing


def main():
    a = parse_arguments()
    if a.device == "cpu" and not a.check:
        sys.exit("sparse_peers.py: --device cpu takes no times: add --check")
    device = peers.find_device(a.device)
    print(f"{device.title}, {device.software}")
    failed = 0
    if not a.check:
        writer, file = peers.open_csv(a.csv, COLUMNS) if a.csv else (None, None)

        def write(row):
            if writer:
                writer.writerow(row)
                file.flush()
        failed = take_times(a, device, write)
        if file:
            file.close()
    for part in a.parts:
        data = data_of(device, part, "random", 1, 0, small=True)
        for name, make in offered(part, a.peers, a.implementations, a.device == "cpu"):
            if isinstance(make, str):
                print(f"check {part:14} {name:10} not there: {make}")
                failed += 1
                continue
            try:
                failed += not check(device, part, name, make, data)
            except Exception as error:  # as in `measure`
                print(f"check {part:14} {name:10} {type(error).__name__}: {error}".split("\n", 1)[0][:300], flush=True)
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

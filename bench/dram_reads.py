#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Compares the counters of a decode step with the DRAM reads that Nsight Compute measures in the same step.

    bench/dram_reads.py build/bench/nsa-bench [--context N] [--batch N] [--q-len N] [--fill NAME]

The step is the one that nsa-bench counts. Its kernels run one by one with cold caches. Kernels that read the
KV cache are compared; those that only process scores and partial results are not. If the timed steps use a
kernel that does not count, its reads are printed as well. For one new token the DRAM reads must equal the
bytes counted. Several new tokens count common reads more than once although L2 has them, so there the DRAM
reads must equal the bytes that have to be read once. Exit status: 0 within the tolerance, 1 not, 77 no ncu or no GPU."""
import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile

SKIP = 77
METRIC = "dram__bytes_read.sum"
BEHIND = ("decode_split_kv_select", "decode_split_kv_combine")  # these read no K and V
COUNTLESS = ("decode_cluster", "decode_pipelined", "decode_select_attend")  # of timed steps


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", help="nsa-bench")
    parser.add_argument("--context", type=int, default=65536)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--q-len", type=int, default=1)
    parser.add_argument("--fill", default="random")
    parser.add_argument("--tolerance", type=float, default=0.1, help="share of the bytes (0.1)")
    return parser.parse_args()


def profile(args, folder):
    """Runs the cell under ncu; its line of the CSV, and the kernels of the first step with their bytes."""
    log, table = os.path.join(folder, "ncu.csv"), os.path.join(folder, "cell.csv")
    command = ["ncu", "--metrics", METRIC, "--kernel-name", "regex:^decode_", "--launch-count", "8",
               "--clock-control", "none", "--print-units", "base", "--page", "raw", "--csv", "--log-file", log,
               args.bench, "decode", "--contexts", str(args.context), "--batches", str(args.batch),
               "--q-len", str(args.q_len), "--fill", args.fill, "--csv", table]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if run.returncode == SKIP:
        sys.exit(SKIP)
    with open(log, encoding="utf-8") as file:
        lines = file.readlines()
    header = [i for i, line in enumerate(lines) if line.startswith('"ID"')]
    if run.returncode or not header:
        sys.exit(f"dram_reads: {' '.join(command)} ended with {run.returncode}:\n"
                 + "".join(lines[-5:]) + run.stdout[-2000:])
    kernels = {}
    for row in csv.DictReader(lines[header[0]:]):
        name = row["Kernel Name"].split("(")[0]
        if not name:
            continue  # the line of units
        if name in kernels:
            break  # the next step
        kernels[name] = float(row[METRIC].replace(",", ""))
    with open(table, encoding="utf-8") as file:
        return next(csv.DictReader(file)), kernels


def main():
    args = arguments()
    if not shutil.which("ncu"):
        print("dram_reads: there is no ncu here", file=sys.stderr)
        return SKIP
    with tempfile.TemporaryDirectory() as folder:
        cell, kernels = profile(args, folder)
    counted, once = int(cell["bytes_actual"]), int(cell["bytes_expected"])
    read = sum(size for name, size in kernels.items() if name not in BEHIND + COUNTLESS)
    if not counted or not read:
        sys.exit(f"dram_reads: nothing was read: counted {counted}, {kernels}; {cell['note']}")
    for name, size in kernels.items():
        print(f"{name:16} {size * 1e-6:10.2f} MB of DRAM")
    away = read / (once if args.q_len > 1 else counted) - 1
    print(f"{args.batch} sequences of {args.context} tokens, {args.q_len} new: counted {counted * 1e-6:.2f} MB "
          f"of K and V, expected {once * 1e-6:.2f}, read from DRAM {read * 1e-6:.2f}: "
          f"{100 * away:+.1f} %")
    return 0 if abs(away) <= args.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())

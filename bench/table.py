#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""README's results table from a CSV that `nsacheck --bench --csv` wrote: table.py bench/results/FILE.csv"""
import csv
import re
import sys

rows = {}
for line in csv.DictReader(open(sys.argv[1])):
    rows.setdefault(line["problem"], {})[line["part"]] = line

print("| tokens | heads | inputs (r, U(4), U(8)) | forward | compressed | window | dense | dense / forward |")
print("|---|---|---|---|---|---|---|---|")
for problem, parts in rows.items():
    heads = re.search(r":h(\d+/\d+):", problem).group(1)
    tokens = int(re.search(r":q=(\d+):", problem).group(1))
    fill = re.search(r":fill=(\w+):", problem).group(1)
    forward, dense = parts["forward"], parts["dense"]
    both = lambda part: f"{float(parts[part]['burst_ms']):.2f} / {float(parts[part]['sustained_ms']):.2f}"
    ratio = float(dense["burst_ms"]) / float(forward["burst_ms"])
    print(f"| {tokens} | {heads} | {fill} ({float(forward['r']):.2f}, {float(forward['u4']):.0f}, "
          f"{float(forward['u8']):.0f}) | {both('forward')} | {both('compressed')} | {both('window')} | "
          f"{both('dense')} | {ratio:.2f} |")

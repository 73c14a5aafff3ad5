#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""How good the tuner's choices are: regret and changed winners, from exported records.

quality.py HELD_OUT CHOICE [CHOICE...]

HELD_OUT and each CHOICE are files of `nsa-autotune export --records`. HELD_OUT holds problems that were
tuned with --level exhaustive and that no CHOICE holds: other lengths, other models. A choice decides
for each as a plan would: by its record of the nearest length, else by the heuristic. Its regret is the
time of the stages by that choice over the time by the best candidate of each, less one. Between two
choices, winners of the same problem and stage that differ are counted, and those that differ by more
than both spreads.
"""
import math
import re
import sys

CANDIDATE = re.compile(r'- \{candidate: "([^"]*)", state: (\w+), ms: ([^,]*), spread: ([^,]*), rounds: (\d+), '
                       r'chosen: (\w+), default: (\w+)')


def read(path):
    """{problem without length: {tokens: {stage: {candidate: (ms, spread, chosen, default)}}}}"""
    records, stage, stages = {}, None, None
    for line in open(path):
        if m := re.search(r'key: "(.*):len(\d+)"', line):
            stages = records.setdefault(m.group(1), {}).setdefault(int(m.group(2)), {})
        elif m := re.match(r' *"([a-z_]+)":$', line):
            stage = stages.setdefault(m.group(1), {})
        elif (m := CANDIDATE.search(line)) and m.group(2) in ('ok', 'dropped') and int(m.group(5)):
            stage[m.group(1)] = (float(m.group(3)), float(m.group(4)), m.group(6) == 'true', m.group(7) == 'true')
    return records


def winner(stage):
    return next((c for c, t in stage.items() if t[2]), None)


def decide(choice, problem, tokens, stage, timings):
    """The candidate that a plan would take, and who decided."""
    lengths = choice.get(problem)
    if lengths:
        nearest = min(lengths, key=lambda n: abs(math.log(n / tokens)))
        candidate = winner(lengths[nearest].get(stage, {}))
        if candidate in timings:
            return candidate, f'record of {nearest}'
    return next((c for c, t in timings.items() if t[3]), None), 'heuristic'


def regret(choice, problem, tokens, stages):
    best = took = heuristic = 0
    worst, by = (0, ''), set()
    for stage, timings in stages.items():
        if not timings:
            continue
        candidate, who = decide(choice, problem, tokens, stage, timings)
        least = min(t[0] for t in timings.values())
        if candidate is None:
            continue
        by.add(who)
        best += least
        took += timings[candidate][0]
        heuristic += next((t[0] for t in timings.values() if t[3]), timings[candidate][0])
        worst = max(worst, (timings[candidate][0] / least - 1, stage))
    return took / best - 1, heuristic / best - 1, worst, ', '.join(sorted(by))


def flips(a, b):
    same = changed = real = 0
    for problem in a:
        for tokens in a[problem]:
            for stage, timings in a[problem][tokens].items():
                other = b.get(problem, {}).get(tokens, {}).get(stage, {})
                x, y = winner(timings), winner(other)
                if x is None or y is None:
                    continue
                same += x == y
                changed += x != y
                if x != y and y in timings and x in other:
                    noise = timings[x][1] + timings[y][1] + other[x][1] + other[y][1]
                    real += (abs(timings[y][0] / timings[x][0] - 1) > noise and
                             abs(other[x][0] / other[y][0] - 1) > noise)
    return same, changed, real


if len(sys.argv) < 3:
    sys.exit(__doc__)
held = read(sys.argv[1])
choices = [(path, read(path)) for path in sys.argv[2:]]
print('| choice | held-out problem | tokens | decided by | regret | of the heuristic | worst stage |')
print('|---|---|---|---|---|---|---|')
for path, choice in choices:
    every = []
    for problem, lengths in held.items():
        for tokens, stages in lengths.items():
            r, h, (w, stage), who = regret(choice, problem, tokens, stages)
            every.append(r)
            print(f'| {path} | {problem} | {tokens} | {who} | {r:.1%} | {h:.1%} | {stage} {w:.1%} |')
    print(f'| {path} | mean of {len(every)} | | | {sum(every) / len(every):.1%} | | most {max(every):.1%} |')
for i, (path, choice) in enumerate(choices):
    for other_path, other in choices[i + 1:]:
        same, changed, real = flips(choice, other)
        if same + changed:
            print(f'\n{path} and {other_path}: {changed} of {same + changed} winners differ '
                  f'({changed / (same + changed):.1%}), {real} by more than the noise')

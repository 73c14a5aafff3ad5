#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Measures how good the tuner's choices are: regret and changed winners, from exported records.

quality.py HELD_OUT CHOICE [CHOICE...]

HELD_OUT and each CHOICE are files of `nsa-autotune export --records`. HELD_OUT holds problems that were
tuned with --level exhaustive and that no CHOICE holds: other lengths, other models. A choice decides
for each as a plan would: by its record of the nearest length, else by the heuristic. Its regret is the
time of the stages by that choice over the time by the best candidate of each, less one. Between two
choices, winners of the same problem and stage that differ are counted, and those that differ by more
than both spreads. A problem that the exhaustive search did not come to, or not to the end of, is left out.
"""
import collections
import math
import re
import sys

CANDIDATE = re.compile(r'- \{candidate: "([^"]*)", state: (\w+), ms: ([^,]*), spread: ([^,]*), rounds: (\d+), '
                       r'chosen: (\w+), default: (\w+), note: "(?:(?:fuses|covers) ([a-z_, ]*))?')
Timing = collections.namedtuple('Timing', 'ms spread chosen default fuses')


def read(path, ended_only=False):
    """{problem without length: {tokens: {stage: {candidate: Timing}}}}"""
    records, stage, stages, problem = {}, None, None, None
    for line in open(path):
        if m := re.search(r'key: "(.*):len(\d+)"', line):
            problem, tokens = m.group(1), int(m.group(2))
            stages = records.setdefault(problem, {}).setdefault(tokens, {})
        elif ended_only and re.match(r' *complete: false$', line):
            del records[problem][tokens]
        elif m := re.match(r' *"([a-z_]+)":$', line):
            stage = stages.setdefault(m.group(1), {})
        elif (m := CANDIDATE.search(line)) and m.group(2) in ('ok', 'dropped') and int(m.group(5)):
            stage[m.group(1)] = Timing(float(m.group(3)), float(m.group(4)), m.group(6) == 'true',
                                       m.group(7) == 'true', frozenset((m.group(8) or '').split(', ')))
    return records


def winner(stage):
    return next((c for c, t in stage.items() if t.chosen), None)


def default(stage):
    return next((c for c, t in stage.items() if t.default), None)


def decide(choice, problem, tokens, stage, timings):
    """The candidate that a plan would take, and whether a record or the heuristic decided."""
    lengths = choice.get(problem)
    if lengths:
        nearest = min(lengths, key=lambda n: abs(math.log(n / tokens)))
        candidate = winner(lengths[nearest].get(stage, {}))
        if candidate in timings:
            return candidate, f'record of {nearest}'
    return default(timings), 'heuristic'


def least(stages, left):
    """The shortest time of the stages `left`, some of which a candidate of another stage may fuse."""
    if not left:
        return 0
    fastest = {}
    for t in stages[left[0]].values():
        fastest[t.fuses] = min(t.ms, fastest.get(t.fuses, math.inf))
    return min(ms + least(stages, [s for s in left[1:] if s not in fuses]) for fuses, ms in fastest.items())


def total(stages, taken):
    """The time of the stages by the candidates taken, without the stages that one of them fuses."""
    fused = frozenset().union(*(stages[s][c].fuses for s, c in taken.items()))
    return sum(stages[s][c].ms for s, c in taken.items() if s not in fused)


def regret(choice, problem, tokens, stages):
    stages = {s: t for s, t in stages.items() if default(t)}
    decided = {s: decide(choice, problem, tokens, s, t) for s, t in stages.items()}
    # A fusing stage comes before the stages that it fuses.
    order = sorted(stages, key=lambda s: not any(t.fuses - {''} for t in stages[s].values()))
    best = least(stages, order)
    took = total(stages, {s: c for s, (c, _) in decided.items()})
    heuristic = total(stages, {s: default(t) for s, t in stages.items()})
    return took / best - 1, heuristic / best - 1, ', '.join(sorted({who for _, who in decided.values()}))


def fused(stages):
    """Stages that the winner of another stage fuses; their own winners have no effect."""
    return frozenset().union(*(stages[s][winner(stages[s])].fuses for s in stages if winner(stages[s])))


def flips(a, b):
    same = changed = real = 0
    for problem in a:
        for tokens in a[problem]:
            idle = fused(a[problem][tokens]) & fused(b.get(problem, {}).get(tokens, {}))
            for stage, timings in a[problem][tokens].items():
                if stage in idle:
                    continue
                other = b.get(problem, {}).get(tokens, {}).get(stage, {})
                x, y = winner(timings), winner(other)
                if x is None or y is None:
                    continue
                same += x == y
                changed += x != y
                if x != y and y in timings and x in other:
                    noise = timings[x].spread + timings[y].spread + other[x].spread + other[y].spread
                    real += (abs(timings[y].ms / timings[x].ms - 1) > noise and
                             abs(other[x].ms / other[y].ms - 1) > noise)
    return same, changed, real


if len(sys.argv) < 3:
    sys.exit(__doc__)
held = read(sys.argv[1], ended_only=True)
if not any(held.values()):
    sys.exit(f'{sys.argv[1]}: no search in it came to its end')
choices = [(path, read(path)) for path in sys.argv[2:]]
print('| choice | held-out problem | tokens | decided by | regret | of the heuristic |')
print('|---|---|---|---|---|---|')
for path, choice in choices:
    every = []
    for problem, lengths in held.items():
        for tokens, stages in lengths.items():
            r, h, who = regret(choice, problem, tokens, stages)
            every.append(r)
            print(f'| {path} | {problem} | {tokens} | {who} | {r:.1%} | {h:.1%} |')
    print(f'| {path} | mean of {len(every)}, most {max(every):.1%} | | | {sum(every) / len(every):.1%} | |')
for i, (path, choice) in enumerate(choices):
    for other_path, other in choices[i + 1:]:
        same, changed, real = flips(choice, other)
        if same + changed:
            print(f'\n{path} and {other_path}: {changed} of {same + changed} winners differ '
                  f'({changed / (same + changed):.1%}), {real} by more than the noise')

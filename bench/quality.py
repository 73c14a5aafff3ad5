#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Measures how good the tuner's choices are: regret and changed winners, from exported records.

quality.py HELD_OUT CHOICE [CHOICE...]

HELD_OUT and each CHOICE are files of `nsa-autotune export --records`. HELD_OUT holds problems that were
tuned with --level exhaustive and that no CHOICE holds: other lengths, other models. A choice decides
for each as a plan would: by its record of the nearest length, else by the heuristic.

Its regret is the time of the whole call by that choice over the time of the fastest whole call that
HELD_OUT measured, less one. HELD_OUT has the time of two: by its own winners and by the heuristic's
choices. Beside it stands the same of the sum of the stages: what the best candidate of each would save if
kernels did not overlap, which they do in short calls. It stands in, with ~, for the regret of a call that
was not measured.

Between two choices, winners of the same problem and stage that differ are counted, and those that differ
by more than both spreads. A problem that the exhaustive search did not come to, or not to the end of, is
left out.
"""
import collections
import math
import re
import sys

CANDIDATE = re.compile(r'- \{candidate: "([^"]*)", state: (\w+), ms: ([^,]*), spread: ([^,]*), rounds: (\d+), '
                       r'chosen: (\w+), default: (\w+), note: "(?:(?:fuses|covers) ([a-z_, ]*))?')
WHOLE = re.compile(r'- \{name: "(\w+(?:\.default)?)", ms: ([^,]*), spread: [^}]*\}$')
Timing = collections.namedtuple('Timing', 'ms spread chosen default fuses')
Record = collections.namedtuple('Record', 'stages whole')  # {stage: {candidate: Timing}}, {name: ms}


def read(path, ended_only=False):
    """{problem without length: {tokens: Record}}"""
    records, stage, record, problem = {}, None, None, None
    for line in open(path):
        if m := re.search(r'key: "(.*):len(\d+)"', line):
            problem, tokens = m.group(1), int(m.group(2))
            record = records.setdefault(problem, {}).setdefault(tokens, Record({}, {}))
        elif ended_only and re.match(r' *complete: false$', line):
            del records[problem][tokens]
        elif m := re.match(r' *"([a-z_]+)":$', line):
            stage = record.stages.setdefault(m.group(1), {})
        elif m := WHOLE.search(line):
            record.whole[m.group(1)] = float(m.group(2))
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
        candidate = winner(lengths[nearest].stages.get(stage, {}))
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


def runs(stages, taken):
    """The candidates taken, without those of stages that another one fuses."""
    fused = frozenset().union(*(stages[s][c].fuses for s, c in taken.items()))
    return {s: c for s, c in taken.items() if s not in fused}


def total(stages, taken):
    """The time of the stages by the candidates taken."""
    return sum(stages[s][c].ms for s, c in runs(stages, taken).items())


def whole_call(record, stages, taken):
    """The time of the whole call by the candidates taken over that of the fastest one; None: not measured."""
    name = next((n for n in record.whole if n + '.default' in record.whole), None)
    if not name:
        return None
    own, heuristic = record.whole[name], record.whole[name + '.default']
    took = runs(stages, taken)
    if took == runs(stages, {s: winner(t) or default(t) for s, t in stages.items()}):
        return own / min(own, heuristic)
    if took == runs(stages, {s: default(t) for s, t in stages.items()}):
        return heuristic / min(own, heuristic)
    return None


def regret(record, stages, taken):
    """Of the whole call, None: not measured; of the sum of the stages."""
    # A fusing stage comes before the stages that it fuses.
    order = sorted(stages, key=lambda s: not any(t.fuses - {''} for t in stages[s].values()))
    whole = whole_call(record, stages, taken)
    return whole and whole - 1, total(stages, taken) / least(stages, order) - 1


def regrets(choice, problem, tokens, record):
    """Those of the choice and of the heuristic, and who decided."""
    stages = {s: t for s, t in record.stages.items() if default(t)}
    decided = {s: decide(choice, problem, tokens, s, t) for s, t in stages.items()}
    return (regret(record, stages, {s: c for s, (c, _) in decided.items()}),
            regret(record, stages, {s: default(t) for s, t in stages.items()}),
            ', '.join(sorted({who for _, who in decided.values()})))


def share(whole, alone):
    return f'~{alone:.1%}' if whole is None else f'{whole:.1%}'


def fused(stages):
    """Stages that the winner of another stage fuses; their own winners have no effect."""
    return frozenset().union(*(stages[s][winner(stages[s])].fuses for s in stages if winner(stages[s])))


def flips(a, b):
    same = changed = real = 0
    for problem in a:
        for tokens in a[problem]:
            other_stages = b.get(problem, {}).get(tokens, Record({}, {})).stages
            idle = fused(a[problem][tokens].stages) & fused(other_stages)
            for stage, timings in a[problem][tokens].stages.items():
                if stage in idle:
                    continue
                other = other_stages.get(stage, {})
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
print('| choice | held-out problem | tokens | decided by | regret | of the heuristic | stages alone | '
      'of the heuristic |')
print('|---|---|---|---|---|---|---|---|')
for path, choice in choices:
    every = []
    for problem, lengths in held.items():
        for tokens, record in lengths.items():
            mine, heuristic, who = regrets(choice, problem, tokens, record)
            every.append(mine[1] if mine[0] is None else mine[0])
            print(f'| {path} | {problem} | {tokens} | {who} | {share(*mine)} | {share(*heuristic)} | '
                  f'{mine[1]:.1%} | {heuristic[1]:.1%} |')
    print(f'| {path} | mean of {len(every)}, most {max(every):.1%} | | | {sum(every) / len(every):.1%} | | | |')
for i, (path, choice) in enumerate(choices):
    for other_path, other in choices[i + 1:]:
        same, changed, real = flips(choice, other)
        if same + changed:
            print(f'\n{path} and {other_path}: {changed} of {same + changed} winners differ '
                  f'({changed / (same + changed):.1%}), {real} by more than the noise')

#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# kills.py NSA_AUTOTUNE FAKE_NVRTC [--kills N] [--seed N] [--results CSV --commit HASH [--minutes M]]
#
# Kills the commands that write into a cache folder, by SIGKILL at random moments, while other commands
# read and write the same folder. Those must succeed. In each round one command is killed, and at its end
#
# - every entry that is there has the bytes that an undisturbed process writes;
# - every candidate of a record that is there is one that was imported, unchanged;
# - nothing is lost that a command with exit status 0 has stored (gc evicts kernels on purpose);
# - gc leaves no file that is neither entry, record nor lock.
#
# With --results it goes on from where the file ends, until the file has N kills, and appends a line for
# each round. Without, it prints the Test Anything Protocol, a case for each command.
import argparse
import csv
import datetime
import os
import random
import shutil
import sys
import tempfile
import threading
import time

from folder import CANDIDATES, Cache, Failed, Inputs, pack_entries

COLUMNS = ('date', 'commit', 'command', 'kills', 'survivors', 'lost', 'damaged_accepted', 'left_over')
COMMANDS = ('compile', 'import', 'import --records', 'gc', 'verify')
ROUND_KILLS = 50
LANES = 3  # processes at once that are killed
GC_LIMIT = '1Mi'  # less than what the compile commands store


class Round:
    """One folder, and everything that happens to it."""

    def __init__(self, inputs, command, seed, longest=0.0):
        self.inputs, self.command = inputs, command
        self.longest = longest  # a process is killed after at most so many seconds; follows the machine
        self.random = random.Random(seed)
        self.cache = Cache(inputs, f'storm{seed}')
        self.lock = threading.Lock()
        self.kills = self.survivors = 0
        self.stored_entries, self.stored_candidates = set(), set()
        self.faults = []  # of commands that nobody killed
        self.lost = self.damaged = 0
        self.left_over = []

    # ---- commands: arguments, and what is stored when they succeed ----

    def arguments(self, command):
        with self.lock:
            arch = self.random.choice(list(self.inputs.of_arch))
            candidate = self.random.randrange(CANDIDATES)
        if command == 'compile':
            return ['compile', '--arch', arch, self.inputs.model], self.inputs.of_arch[arch], set()
        if command == 'import':
            return ['import', self.inputs.pack], set(self.inputs.entries), set()
        if command == 'import --records':
            return ['import', '--records', self.inputs.records[candidate]], set(), {candidate}
        if command == 'gc':
            return ['gc', '--limit', GC_LIMIT], set(), set()
        return command.split(), set(), set()

    def note(self, entries, candidates):
        with self.lock:
            self.stored_entries |= entries
            self.stored_candidates |= candidates

    # ---- lanes ----

    def kill(self, wanted):
        while True:
            with self.lock:
                if self.kills >= wanted or self.faults:
                    return
                pause = self.random.uniform(0, self.longest)
            arguments, entries, candidates = self.arguments(self.command)
            process = self.cache.start(*arguments)
            time.sleep(pause)
            process.kill()
            output = process.communicate()[0]
            if process.returncode == 0:
                self.note(entries, candidates)
            with self.lock:
                self.kills += process.returncode == -9
                self.survivors += process.returncode == 0
                self.longest *= 0.95 if process.returncode == 0 else 1.03
                if process.returncode not in (0, -9):
                    self.faults.append(f'{" ".join(arguments)}: exit {process.returncode}: {output}')

    def accompany(self, commands, done):
        """Runs commands that nobody kills, one after the other."""
        number = 0
        while not done.is_set() or number < len(commands):
            command = commands[number % len(commands)]
            number += 1
            arguments, entries, candidates = self.arguments(command)
            process = self.cache.start(*arguments)
            output = process.communicate()[0]
            if self.command == 'gc' and process.returncode == 6 and 'did not stay' in output:
                continue  # gc has removed kernels before compile looked whether they are there
            if process.returncode or ' bad' in output.replace(' 0 bad', ''):
                with self.lock:
                    self.faults.append(f'{" ".join(arguments)}: exit {process.returncode}: {output}')
                return
            self.note(entries, candidates)
            if command.startswith('export'):
                self.check_pack(arguments[1])

    def check_pack(self, path):
        with open(path, 'rb') as file:
            entries = pack_entries(file.read())
        good = set(self.inputs.entries.values())
        if entries is None or not good.issuperset(entries):
            with self.lock:
                self.faults.append(f'{path} holds other entries than were stored')

    # ---- the round ----

    def run(self, wanted):
        done = threading.Event()
        readers = ['verify', 'list', 'list --records', f'export {self.cache.path}.pack']
        writers = [c for c in COMMANDS if c not in (self.command, 'gc', 'verify')]
        if self.command != 'gc':
            self.cache.must('compile', '--arch', 'sm_80', self.inputs.model)  # a folder to read
            self.note(self.inputs.of_arch['sm_80'], set())
        threads = [threading.Thread(target=self.kill, args=(wanted,)) for _ in range(LANES)]
        others = [threading.Thread(target=self.accompany, args=(commands, done))
                  for commands in (readers, writers)]
        for thread in threads + others:
            thread.start()
        for thread in threads:
            thread.join()
        done.set()
        for thread in others:
            thread.join()
        try:
            self.judge()
        except Failed as failed:
            self.faults.append(str(failed))

    def judge(self):
        cache, inputs = self.cache, self.inputs
        entries = cache.entries()
        self.damaged += sum(inputs.entries.get(name) != data for name, data in entries.items())
        if self.command != 'gc':
            self.lost += len(self.stored_entries - set(entries))
        # A record's lines: those of a candidate are the ones that one process alone writes.
        known = {line for data in inputs.record_files.values() for line in data.splitlines()}
        there = set()
        for data in cache.record_files().values():
            lines = [line for line in data.splitlines() if not line.startswith(b'# checksum')]
            self.damaged += sum(line not in known for line in lines)
            there |= {c for c in range(CANDIDATES) if any(b'"rows=%d"' % c in line for line in lines)}
        self.lost += len(self.stored_candidates - there)
        cache.must('gc')
        self.left_over = cache.left_over()
        output = cache.must('verify')
        if output.count(' 0 bad') != 2:
            self.faults.append(output)
        # What was interrupted is completed by running it again.
        cache.must('compile', '--arch', ','.join(inputs.of_arch), inputs.model)
        for record in inputs.records:
            cache.must('import', '--records', record)
        if cache.entries() != inputs.entries or cache.record_files() != inputs.record_files:
            self.faults.append('running every command again does not lead to the undisturbed folder')

    def fault(self):
        if self.faults:
            return self.faults[0]
        if self.lost or self.damaged or self.left_over:
            return f'{self.lost} lost, {self.damaged} damaged but accepted, left over: {self.left_over}'
        return None


def duration(inputs, command):
    """How long the command takes alone, in seconds."""
    trial = Round(inputs, command, -1)
    cache = trial.cache
    if command in ('gc', 'verify'):
        cache.must('import', inputs.pack)
    arguments = trial.arguments(command)[0]
    begin = time.monotonic()
    cache.must(*arguments)
    taken = time.monotonic() - begin
    shutil.rmtree(cache.path)
    return taken


def play(inputs, command, seed, wanted, longest):
    one = Round(inputs, command, seed, longest)
    one.run(wanted)
    shutil.rmtree(one.cache.path)
    return one


def run_short(inputs, kills, seed):
    good, each = True, -(-kills // len(COMMANDS))
    rounds = -(-each // ROUND_KILLS)
    print(f'1..{len(COMMANDS)}', flush=True)
    for number, command in enumerate(COMMANDS):
        longest, killed, survivors, fault = duration(inputs, command), 0, 0, None
        for repeat in range(rounds):
            one = play(inputs, command, seed + number * rounds + repeat, -(-each // rounds), longest)
            killed, survivors = killed + one.kills, survivors + one.survivors
            fault = fault or one.fault()
        good &= not fault
        print(f'{"not ok" if fault else "ok"} {number + 1} {command}: {killed} kills, {survivors} survivors')
        if fault:
            print('# ' + fault.strip().replace('\n', '\n# '))
        sys.stdout.flush()
    return good


def run_long(inputs, options):
    done = 0
    if os.path.exists(options.results):
        with open(options.results, newline='', encoding='ascii') as file:
            done = sum(int(row['kills']) for row in csv.DictReader(file))
    else:
        with open(options.results, 'w', encoding='ascii') as file:
            file.write(','.join(COLUMNS) + '\n')
    longest = {command: duration(inputs, command) for command in COMMANDS}
    end = time.monotonic() + 60 * options.minutes
    while done < options.kills and time.monotonic() < end:
        command = COMMANDS[done // ROUND_KILLS % len(COMMANDS)]
        one = play(inputs, command, options.seed + done, ROUND_KILLS, longest[command])
        done += one.kills
        row = (datetime.date.today(), options.commit, command, one.kills, one.survivors, one.lost,
               one.damaged, len(one.left_over))
        with open(options.results, 'a', encoding='ascii') as file:
            file.write(','.join(map(str, row)) + '\n')
        if one.fault():
            print(f'seed {options.seed}, after {done} kills: {one.fault()}')
            return False
    print(f'{done} of {options.kills} kills')
    return True


def main():
    parser = argparse.ArgumentParser(description='Kills processes that write into a cache folder.')
    parser.add_argument('autotune')
    parser.add_argument('nvrtc', help='the fake one, tests/unit/libfake_cuda.so')
    parser.add_argument('--kills', type=int, default=500)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--results', help='append to this CSV, until it has so many kills')
    parser.add_argument('--commit', help='what is tested, for the CSV')
    parser.add_argument('--minutes', type=float, default=1e9, help='stop after this time')
    options = parser.parse_args()
    if options.results and not options.commit:
        parser.error('--results needs --commit')
    with tempfile.TemporaryDirectory(prefix='nsa-test-kills-') as folder:
        inputs = Inputs(options.autotune, options.nvrtc, folder)
        good = run_long(inputs, options) if options.results else run_short(inputs, options.kills, options.seed)
    return 0 if good else 1


sys.exit(main())

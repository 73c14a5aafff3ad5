#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Damages kernels, one line each, and demands that nsacheck on the emulator finds it. A skip must be a failure.

  self_test.py NSACHECK TEMPLATES     in the environment that meson gives the emulator's tests
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

MODEL = "bf16:h4/2:d32/32:l16/8:s16x4+1+2:w40:phi=mean:gate=logits:kv=shared:sel=topn:q=70:kv=70:seed=1:fill=random:layout=plain"

PERSISTENT = "bwd:h16/1:d32/32:q=150,0,33:kv=150,90,33:force=backward_kv_sm90"

ORDERED = "bwd:h32/2:d32/32:w0:q=290,33:slack=9000:force=backward_kv_sm90"

# Each head has launches of its own, and another number of items.
CHUNKS = "bwd:h32/2:d64/64:s128x256+0+1:w0:gate=none:q=2:kv=20000:sel=blocks:slack=9200:force=backward_kv_sm90"

INDEXED = "fwd:bf16:h4/2:d32/32:l2/2:w0:gate=none:index=32:q=60:"

# A change that nsacheck must not find: CTAs run one after the other, and the first one would take all tiles.
HARMLESS = "a CTA takes at most four tiles"

# Each: the GPU, a file, its text, what stands there instead (None: everything as it is), and the test.
DAMAGES = [
    ("nothing", "sm_80", None, "", "", "fwd:" + MODEL),
    ("a wait for copies is missing", "sm_80", "core/copy.cuh", 'asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");', "",
     "fwd:" + MODEL),
    ("V is not transposed", "sm_80", "core/mma.cuh", ".m8n8.x4.trans.", ".m8n8.x4.", "fwd:" + MODEL),
    ("2^x is 2^-x", "sm_80", "core/types.cuh", '"f"(x));\n  return r;\n}\n\nNSAI_DEVICE float log2', '"f"(-x));\n  return r;\n}\n\nNSAI_DEVICE float log2',
     "fwd:" + MODEL),
    ("nothing", "sm_90", None, "", "", "cache:decode:seed=4:longest=100:steps=1:repeats=1"),
    ("nothing", "sm_90", None, "", "", "cache:decode:seed=4:longest=100:steps=1:repeats=1:codes=both"),
    ("a scale is 1", "sm_90", "core/e4m3.cuh", "return scale.data ? scale.data[head * scale.head_stride] : 1.0f;", "return 1.0f;",
     "cache:decode:seed=4:longest=100:steps=1:repeats=1:codes=both"),
    ("a barrier waits for the other phase", "sm_90", "core/barrier.cuh", '"r"(phase)', '"r"(phase ^ 1)',
     "cache:decode:seed=1:longest=100:steps=1:repeats=1:force=decode_cluster"),
    ("nothing", "sm_90", None, "", "", PERSISTENT),
    (HARMLESS, "sm_90", "backward/pipelines/dkv_items_producer.cuh", "item.exists = walk.next(",
     "item.exists = place.number < 2 + blockIdx.x % 3 && walk.next(", PERSISTENT),
    ("a ticket is taken before the first", "sm_90", "backward/clear.cuh", "p.words[first + i] = 0;", "p.words[first + i] = 1;", PERSISTENT),
    ("keys do not wait for the tile before", "sm_90", "backward/pipelines/dkv_items_producer.cuh",
     "barrier_wait(base + R::kKeysEmpty, place.phase() ^ 1);", "", PERSISTENT),
    ("a stage is held beyond its tile", "sm_90", "backward/pipelines/dkv_items.cuh", "if (held >= 0) barriers.consumer_release(held);", "",
     PERSISTENT),
    ("stages of each tile begin anew", "sm_90", "backward/pipelines/dkv_items.cuh", "step.advance(stages);", "", PERSISTENT),
    ("the order of items begins at its second place", "sm_90", "data/invert_order.cuh", "upto - own + (warp", "upto - max(own, 1) + 1 + (warp",
     ORDERED),
    ("all launches take items in the order of the first heads", "sm_90", "backward/pipelines/dkv_items_producer.cuh",
     "p.item_order[(long long)list_head(kv) *", "p.item_order[(long long)head *", CHUNKS),
    ("negative scores of an index rank alike", "sm_80", "core/topn.cuh", "return bits >> 31 ? ~bits :", "return bits >> 31 ? 1 :",
     INDEXED + "s2x8+0+0"),
    ("scores of later tokens count", "sm_90", "select/index_scores_sm90.cuh", "if (first + C::kKeys > visible_to_all)", "if (false)",
     INDEXED + "s16x2+0+0"),
]


EXIT_SKIP = 77


def fails_for_skip(nsacheck, device, problem):
    """Whether no_skips.py makes a failure of a skip."""
    program = [nsacheck, "--tap", "--device", device, "--problem", problem]
    run = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("no_skips.py"), *program], capture_output=True, text=True, check=False)
    return run.returncode == 1 and run.stdout.startswith("not ok 1") and "SKIP" not in run.stdout


def main():
    nsacheck, templates = sys.argv[1], pathlib.Path(sys.argv[2])
    print(f"1..{len(DAMAGES) + 2}")
    failed = False
    for number, (name, gpu, file, old, new, problem) in enumerate(DAMAGES, 1):
        with tempfile.TemporaryDirectory(prefix="nsa-emulator-") as folder:
            folder = pathlib.Path(folder) / "templates"
            shutil.copytree(templates, folder)
            if file:
                text = (folder / file).read_text(encoding="utf-8")
                if old not in text:
                    print(f"not ok {number} - {name}\n# {file} has other text: change this test")
                    failed = True
                    continue
                (folder / file).write_text(text.replace(old, new), encoding="utf-8")
            run = subprocess.run([nsacheck, "--device", "1", "--problem", problem], capture_output=True, text=True, check=False,
                                 env={**os.environ, "EMULATOR_GPU": gpu, "NSA_TEMPLATES_DIR": str(folder)})
        good = run.returncode == 0 if file is None or name == HARMLESS else run.returncode not in (0, EXIT_SKIP) and "does not compile" not in run.stdout + run.stderr
        print(f"{'ok' if good else 'not ok'} {number} - {name}", flush=True)
        if not good:
            failed = True
            print("# " + (run.stdout + run.stderr)[-2000:].replace("\n", "\n# "))
    skips = {"a problem of another stage": ("1", "fwd:q=32:force=decode_cluster"), "no such GPU": ("9", "fwd:q=32")}
    for number, (name, arguments) in enumerate(skips.items(), len(DAMAGES) + 1):
        good = fails_for_skip(nsacheck, *arguments)
        print(f"{'ok' if good else 'not ok'} {number} - a skip is a failure: {name}")
        failed |= not good
    return failed


if __name__ == "__main__":
    sys.exit(main())

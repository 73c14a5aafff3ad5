#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""One sequence over several GPUs: each rank holds a part of its tokens (docs/ranks.md).

  torchrun --nproc-per-node 2 examples/ranks.py [--tokens 65536] [--backward] [--check] [--cpu]
  torchrun --nproc-per-node 8 examples/ranks.py --groups 2 [...]

--groups G divides the heads among G groups of ranks, which send each other nothing: each group has Hkv / G KV heads with
their query heads, and divides the tokens among its ranks. Prints the milliseconds of a forward, and with --backward of a
backward pass. --check computes the same on one rank, and compares: the bits of the output, of the selected blocks and of dQ,
and dK and dV to their rounding. --cpu: the CPU device and gloo, in a minute with --tokens 1000. NCCL runs with
NVLink multicast off, unless NCCL_NVLS_ENABLE says otherwise.
"""
import argparse
import os
import sys
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import nsa  # noqa: E402
import nsa.ranks  # noqa: E402


def make_inputs(options, config, where, dtype, group):
    """q, k, v and gates of all tokens and a group's heads, the same on every rank of the group."""
    generator = torch.Generator(device=where).manual_seed(1 + group)
    make = lambda heads, width: torch.randn(options.tokens, heads, width, device=where, dtype=dtype, generator=generator)
    heads, kv, dim = config.heads, config.kv_heads, config.head_dim
    return make(heads, dim), make(kv, dim), make(kv, dim), make(heads, 3), make(heads, dim)


def timed(call, where, repeats):
    """The result of the last call, and the median of milliseconds. The first call compiles kernels, and is not counted."""
    times = []
    for _ in range(repeats + 1):
        dist.barrier()
        if where.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        result = call()
        if where.type == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return result, sorted(times[1:] or times)[repeats // 2]


def differences(mine, whole, shard, rank):
    """What is wrong with the rank's results; names and sentences."""
    found = []
    for name, got, want in zip(("o", "block_idx", "dQ", "dK", "dV"), mine, whole):
        want = shard.take(want, rank)
        if not got.numel():
            continue
        off = (got.double() - want.double()).abs().max().item() / max(want.double().abs().max().item(), 1e-30)
        summed = name in ("dK", "dV")  # over queries, in another order, and then rounded
        limit = torch.finfo(got.dtype).eps if summed else 0.0
        if not off <= limit:  # a NaN is wrong, too
            found.append(f"rank {dist.get_rank()}: {name} is off by {off:.1e} of its greatest element")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--groups", type=int, default=1, metavar="G", help="of ranks, which divide the heads [1]")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit("start it with torchrun, as: torchrun --nproc-per-node 2 examples/ranks.py")
    heads, kv_heads, head_dim = (4, 2, 32) if options.cpu else (64, 4, 128)
    world = int(os.environ["WORLD_SIZE"])
    if options.groups < 1 or kv_heads % options.groups or world % options.groups:
        sys.exit(f"--groups must divide the {kv_heads} KV heads and the {world} ranks, and is {options.groups}")
    local = int(os.environ["LOCAL_RANK"])
    if not options.cpu and torch.cuda.device_count() <= local:
        sys.exit(f"rank {os.environ['RANK']} has no GPU: start fewer processes, or use --cpu")
    where = torch.device("cpu") if options.cpu else torch.device("cuda", local)
    if not options.cpu:
        torch.cuda.set_device(where)
    dist.init_process_group("gloo" if options.cpu else "nccl")
    config = nsa.Config(heads=heads // options.groups, kv_heads=kv_heads // options.groups, head_dim=head_dim)
    dtype = torch.float32 if options.cpu else torch.bfloat16

    members = world // options.groups
    group = dist.get_rank() // members
    groups = [None]  # the default one
    if options.groups > 1:  # every process makes every group, and keeps its own
        groups = [dist.new_group(range(i * members, (i + 1) * members)) for i in range(options.groups)]
    comm = nsa.ranks.Comm(groups[group])  # comm.rank counts in the group
    shard = nsa.ranks.Shard(config, [options.tokens], comm.size)
    inputs = make_inputs(options, config, where, dtype, group)
    *local_inputs, d_o = (shard.take(x, comm.rank) for x in inputs)
    needs_grad = options.backward or options.check
    for x in local_inputs[:3]:
        x.requires_grad_(needs_grad)

    attend = lambda: nsa.ranks.attention(*local_inputs, config=config, shard=shard, comm=comm, return_indices=True)
    with torch.no_grad():
        (o, idx), forward_ms = timed(attend, where, options.repeats)
    line = f"{options.tokens} tokens and {config.heads} heads on {comm.size} ranks: forward {forward_ms:.2f} ms"
    grads = ()
    if needs_grad:
        o, idx = attend()
        grads, backward_ms = timed(lambda: torch.autograd.grad(o, local_inputs[:3], d_o, retain_graph=True), where,
                                   options.repeats if options.backward else 0)
        line += f", backward {backward_ms:.2f} ms" if options.backward else ""
    comm.wait()
    if comm.rank == 0:  # of every group
        print(line, flush=True)
    wrong = []
    if options.check:
        *whole, all_d_o = (x.requires_grad_(i < 3) for i, x in enumerate(inputs))
        all_o, all_idx = nsa.attention(*whole, config=config, return_indices=True)
        results = all_o.detach(), all_idx, *torch.autograd.grad(all_o, whole[:3], all_d_o)
        wrong = differences((o.detach(), idx, *grads), results, shard, comm.rank)
        counts = [None] * world
        dist.all_gather_object(counts, wrong)
        wrong = [text for texts in counts for text in texts]
        if dist.get_rank() == 0:
            print("\n".join(wrong) or "check: o, block_idx and dQ have one rank's bits; dK and dV are within their rounding")
    comm.close()
    dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a thread of gloo may still free a tensor, which aborts while Python finalises

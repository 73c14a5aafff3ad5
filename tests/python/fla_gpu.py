#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""fla's own tests, a model and times on a GPU, with nsa.integrations.fla in the place of fla's kernels.

  fla_gpu.py FLA/tests/ops/test_nsa.py     in a clone of fla, which this repository does not hold

Where flash_attn is not installed a plain function stands in; fla's cases with a window are then skipped.
Exit status 1 when a test fails, when a case that libnsa serves went back to fla's kernels (those in
float32, and with a window and another scale than K^-0.5, do so by design), when no case reached libnsa, or
when the model's results are further from float32's than 1.2 times those of fla's own kernels.
"""
import sys
import time

import pytest
import torch

import nsa.integrations.fla as door


def flash_attn_func(q, k, v, causal=True, window_size=(-1, -1)):
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    t = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    p = torch.arange(k.shape[1], device=q.device)[None]
    seen = (p <= t) & ((p >= t - window_size[0]) if window_size[0] >= 0 else True)
    o = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=seen)
    return o.transpose(1, 2)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, causal=True, window_size=(-1, -1), **_):
    cq, ck = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    return torch.cat([flash_attn_func(q[a:b][None], k[c:d][None], v[c:d][None], causal, window_size)[0]
                      for a, b, c, d in zip(cq, cq[1:], ck, ck[1:])])


def stand_in():
    import fla.ops.nsa.naive as naive
    import fla.ops.nsa.parallel as parallel
    for module in (naive, parallel):
        if getattr(module, "flash_attn_func", None) is None:
            module.flash_attn_func, module.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func


def reason_of(case):
    """Why a case of fla's tests has to go back to fla's kernels, by its parameters; None: libnsa serves it."""
    if case.get("window_size") and abs(case["scale"] - case["D"] ** -0.5) > 1e-6:
        return "scale is given together with a window, to which fla does not apply it"
    if case.get("dtype") == torch.float32:
        return "the tensors are float32 on a GPU"
    return None


class Judge:
    """A plugin of pytest: compares the calls of each test with what its parameters let expect."""

    def __init__(self):
        self.served, self.wrong = 0, []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        before = door.calls.copy()
        try:
            return (yield)
        finally:
            seen = door.calls - before
            reason = reason_of(item.callspec.params) if hasattr(item, "callspec") else None
            expected = "libnsa" if reason is None else "fla: " + reason
            self.served += seen["libnsa"] > 0
            self.wrong += [f"{item.name}: {name}" for name in seen if name != expected]


def run_tests(path):
    stand_in()
    judge = Judge()
    with door.patch() as done:
        status = pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", "--tb=short", "--maxfail=8", path], plugins=[judge])
    print(f"{judge.served} of fla's tests ran on libnsa; calls: {dict(done.calls)}")
    for line in judge.wrong:
        print("not expected: " + line)
    return int(status != 0) + len(judge.wrong) + int(judge.served == 0)


def model_of(dtype):
    from fla.models.nsa import NSAConfig, NSAForCausalLM
    torch.manual_seed(0)
    config = NSAConfig(hidden_size=256, num_hidden_layers=2, num_heads=16, num_kv_heads=1, head_dim=64, block_size=32,
                       block_counts=8, window_size=64, vocab_size=512, fuse_cross_entropy=False)
    return NSAForCausalLM(config).to("cuda", dtype)


def step(model, ids):
    model.zero_grad()
    out = model(ids, labels=ids)
    out.loss.backward()
    return out.logits.detach().float(), torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None])


def run_model():
    ids = torch.randint(0, 512, (2, 512), generator=torch.Generator().manual_seed(1)).cuda()
    exact = step(model_of(torch.float32), ids)  # fla's kernels in float32
    own = step(model_of(torch.bfloat16), ids)
    with door.patch() as done:
        ours = step(model_of(torch.bfloat16), ids)
    error = lambda x, y: ((x - y).norm() / y.norm()).item()
    bad = int(done.calls != {"libnsa": 2})  # a call for each layer
    print(f"two layers: calls {dict(done.calls)}")
    for name, a, b, c in zip(("logits", "gradients"), ours, own, exact):
        mine, theirs = error(a, c), error(b, c)
        print(f"two layers, {name}: libnsa {mine:.2e}, fla {theirs:.2e} from float32")
        bad += mine > 1.2 * theirs
    return bad


def run_speed():
    for tokens in (8192, 32768):
        make = lambda *shape: torch.randn(1, tokens, *shape, device="cuda", dtype=torch.bfloat16).requires_grad_()
        tensors = [make(64, 128), make(4, 128), make(4, 128), *[torch.rand(1, tokens, 64, device="cuda", dtype=torch.bfloat16)
                                                                for _ in range(3)]]
        more = dict(block_counts=16, block_size=64)

        def once(function):
            o = function(*tensors[:5], None, **more)
            torch.autograd.grad(o, tensors[:3], o.detach())

        import fla.ops.nsa.parallel
        times = {}
        for name, function in ("libnsa", door.parallel_nsa), ("fla", fla.ops.nsa.parallel.parallel_nsa):
            for _ in range(3):
                once(function)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(10):
                once(function)
            torch.cuda.synchronize()
            times[name] = (time.perf_counter() - begin) * 100
        print(f"{tokens} tokens, compressed and selected, forward + backward: libnsa {times['libnsa']:.2f} ms, "
              f"fla {times['fla']:.2f} ms, {times['fla'] / times['libnsa']:.2f} times")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(1 if run_tests(sys.argv[1]) + run_model() + run_speed() else 0)

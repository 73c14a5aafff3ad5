#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
"""Dense causal attention of PyTorch's backends on the speed targets' problem, timed as nsa-bench does:
the median of 7 launches, each after a pause of 40 ms and a 256 MB flush of L2. Needs PyTorch and a GPU."""
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, DIM = 64, 4, 128  # of configs/h200_d128.yaml
flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")


def burst_ms(run):
    times = []
    run()
    for _ in range(7):
        torch.cuda.synchronize()
        time.sleep(0.04)
        flush.zero_()
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[3]


print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
for tokens in (4096, 6144, 8192, 16384, 32768, 65536):
    draw = lambda heads: torch.randn(1, heads, tokens, DIM, device="cuda", dtype=torch.bfloat16)
    q, k, v = draw(HEADS), draw(KV_HEADS), draw(KV_HEADS)
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        with sdpa_kernel(backend):
            attend = lambda: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True)
            print(f"{tokens:6d} {name} {burst_ms(attend):8.2f} ms", flush=True)

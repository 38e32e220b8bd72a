"""Measures PyTorch's matrix products in float32, bfloat16 and float16, as `matmul_speed.rs` in this folder. Two threads."""

import time

import torch

torch.set_num_threads(2)
SHAPES = [
    ((1, 1024, 1024, 1024), (False, False)),
    ((1, 1024, 1024, 1024), (False, True)),
    ((1, 2048, 384, 1536), (False, True)),
    ((1, 2048, 1536, 384), (False, False)),
    ((1, 384, 2048, 1536), (True, False)),
    ((48, 256, 64, 256), (False, True)),
    ((1, 1000, 4096, 100), (False, True)),
    ((1, 4, 4096, 4096), (False, True)),
]


def best_gflops(flops, run):
    run()
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < 0.4:
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return flops / best / 1e9


print(f"{'GFLOP/s':<36}{'float32':>10}{'bfloat16':>10}{'float16':>10}")
for (batch, m, k, n), turned in SHAPES:
    rates = []
    for dtype in [torch.float32, torch.bfloat16, torch.float16]:
        operand = lambda rows, cols, turn: (
            torch.randn(batch, cols, rows).to(dtype).transpose(1, 2)
            if turn
            else torch.randn(batch, rows, cols).to(dtype)
        )
        a, b = operand(m, k, turned[0]), operand(k, n, turned[1])
        if batch == 1:
            a, b = a[0], b[0]
        out = torch.empty(*a.shape[:-1], n, dtype=dtype)
        rates.append(best_gflops(2 * batch * m * k * n, lambda: torch.matmul(a, b, out=out)))
    name = f"{batch} x [{m}, {k}]{'t' * turned[0]} [{k}, {n}]{'t' * turned[1]}"
    print(f"{name:<36}" + "".join(f"{rate:>10.0f}" for rate in rates))

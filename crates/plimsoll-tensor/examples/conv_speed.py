"""PyTorch's side of `conv_speed.rs`: the same table, measured the same way, one thread."""

import sys
import time

import torch
import torch.nn.functional as F

LAYERS = [
    ("7x7/2 3-64 at 224", 3, 224, 64, 7, 2, 3, 1, 1),
    ("3x3 64-64 at 56", 64, 56, 64, 3, 1, 1, 1, 4),
    ("3x3/2 64-128 at 56", 64, 56, 128, 3, 2, 1, 1, 1),
    ("1x1/2 64-128 at 56", 64, 56, 128, 1, 2, 0, 1, 1),
    ("3x3 128-128 at 28", 128, 28, 128, 3, 1, 1, 1, 3),
    ("3x3/2 128-256 at 28", 128, 28, 256, 3, 2, 1, 1, 1),
    ("1x1/2 128-256 at 28", 128, 28, 256, 1, 2, 0, 1, 1),
    ("3x3 256-256 at 14", 256, 14, 256, 3, 1, 1, 1, 3),
    ("3x3/2 256-512 at 14", 256, 14, 512, 3, 2, 1, 1, 1),
    ("1x1/2 256-512 at 14", 256, 14, 512, 1, 2, 0, 1, 1),
    ("3x3 512-512 at 7", 512, 7, 512, 3, 1, 1, 1, 3),
    ("1x1 256-64 at 56", 256, 56, 64, 1, 1, 0, 1, 0),
    ("1x1 512-2048 at 7", 512, 7, 2048, 1, 1, 0, 1, 0),
    ("depthwise 3x3 96 at 56", 96, 56, 96, 3, 1, 1, 96, 0),
    ("depthwise 3x3/2 96 at 56", 96, 56, 96, 3, 2, 1, 96, 0),
    ("3x3 128 in 32 groups at 56", 128, 56, 128, 3, 1, 1, 32, 0),
]
torch.set_num_threads(1)
LAST = sys.argv[1:] == ["last"]


def least_ms(f):
    f()

    def round():
        start, runs = time.process_time(), 0
        while time.process_time() - start < 0.06:
            f()
            runs += 1
        return (time.process_time() - start) / runs * 1e3

    return min(round() for _ in range(5))


def lying(x):
    return x.contiguous(memory_format=torch.channels_last) if LAST else x


print(f"{'ms, batch 8':<28}{'GFLOP':>7}{'forward':>10}{'to input':>10}{'to weight':>10}")
total = 0.0
for name, inputs, size, outputs, kernel, stride, padding, groups, times in LAYERS:
    x, w = lying(torch.randn(8, inputs, size, size)), lying(torch.randn(outputs, inputs // groups, kernel, kernel))
    y = F.conv2d(x, w, None, stride, padding, 1, groups)
    grad = lying(torch.randn_like(y))

    def backward(mask):
        at = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, mask)
        return least_ms(lambda: torch.ops.aten.convolution_backward(grad, x, w, None, *at))

    with torch.no_grad():
        forward = least_ms(lambda: F.conv2d(x, w, None, stride, padding, 1, groups))
        to_input, to_weight = backward([True, False, False]), backward([False, True, False])
    flops = 2 * y.numel() * inputs // groups * kernel * kernel
    print(f"{name:<28}{flops / 1e9:>7.2f}{forward:>10.2f}{to_input:>10.2f}{to_weight:>10.2f}", flush=True)
    total += times * (forward + (0 if inputs == 3 else to_input) + to_weight)
print(f"{'all of ResNet-18':<28}{total:>37.1f}")

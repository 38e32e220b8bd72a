"""Prints by how much kernels with stacks of 2, 4 and 16 KiB grow the context, as JSON lines. h100.jsonl has the results
of an H100."""

import json

import torch

SOURCE = """
extern "C" __global__ void keeps_%d(float* out, int n) {
    volatile float a[%d];
    for (int i = 0; i < %d; i++) a[(i * 7 + n) %% %d] = i + n;
    out[threadIdx.x] = a[n];
}
"""


def show(stage):
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    outside = total - free - torch.cuda.memory_reserved()
    print(json.dumps({"program": "stacks", "stage": stage, "outside": outside}), flush=True)


x = torch.zeros(1024, device="cuda")
x.add_(1)
show("first kernel")
for kib in (2, 4, 16):
    floats = kib * 256
    kernel = torch.cuda._compile_kernel(SOURCE % (kib, floats, floats, floats), f"keeps_{kib}")
    kernel((1, 1, 1), (32, 1, 1), (x, 3))
    show(f"stack {kib} KiB")

"""Prints the GPU memory in use outside PyTorch's allocator, after each first use of a library: one JSON line each.

A first argument `kernels` ends it after the first kernel.
"""

import json
import sys

import torch


def show(stage):
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    print(json.dumps({"stage": stage, "outside": total - free - torch.cuda.memory_reserved()}), flush=True)


if not torch.cuda.is_available():
    raise SystemExit(f"PyTorch {torch.__version__} finds no GPU")
nccl = ".".join(str(part) for part in torch.cuda.nccl.version()) if torch.distributed.is_nccl_available() else None
print(json.dumps({"torch": torch.__version__, "nccl": nccl}), flush=True)
torch.cuda.init()
torch.cuda.current_stream().synchronize()
show("context")
x = torch.zeros(1 << 20, device="cuda")
x.add_(1)
show("kernels")
if sys.argv[1:] != ["kernels"]:
    a = torch.randn(1024, 1024, device="cuda")
    a @ a
    show("cublas")
    layer = torch.nn.Conv2d(16, 16, 3).cuda()
    layer(torch.randn(4, 16, 32, 32, device="cuda", requires_grad=True)).sum().backward()
    show("cudnn")
    torch.fft.rfft(a)
    show("cufft")
    torch.linalg.inv(a[:64, :64])
    show("cusolver")
    rows, columns = torch.arange(65, device="cuda"), torch.arange(64, device="cuda")
    torch.sparse.mm(torch.sparse_csr_tensor(rows, columns, a[0, :64], (64, 64)), a[:64])
    show("cusparse")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x.add_(1)
    show("streams")

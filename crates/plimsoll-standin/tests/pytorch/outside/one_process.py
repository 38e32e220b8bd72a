"""Prints the GPU memory that one process uses outside PyTorch's allocator, after each first use of a feature, in one of 3 orders.

    python one_process.py ORDER

It prints one JSON line for each use. h100.jsonl has the lines from an H100. Under `plimsoll predict --gpu H100 --whole`, it
prints those of the stand-in.
"""

import json
import random
import sys
from functools import partial

import torch
from torch.nn import functional as F

kept = []


def show(order, stage):
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    outside = total - free - torch.cuda.memory_reserved()
    print(json.dumps({"program": "one_process", "order": order, "stage": stage, "outside": outside}), flush=True)


def convolve(channels, kind):
    layer = torch.nn.Conv2d(channels, channels, 3).cuda().to(kind)
    layer(torch.randn(4, channels, 32, 32, device="cuda", dtype=kind, requires_grad=True)).sum().backward()


def attend(kind):
    q = torch.randn(2, 8, 256, 64, device="cuda", dtype=kind, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()


def capture():
    graph, y = torch.cuda.CUDAGraph(), torch.zeros(1 << 20, device="cuda")
    with torch.cuda.graph(graph):
        for _ in range(1000):
            y.add_(1)
    graph.replay()
    kept.append((graph, y))


def stream(x):
    kept.append(torch.cuda.Stream())
    with torch.cuda.stream(kept[-1]):
        x.add_(1)


def embed():
    torch.nn.Embedding(1000, 64).cuda()(torch.arange(100, device="cuda")).sum().backward()


def recur():
    torch.nn.LSTM(64, 64).cuda()(torch.randn(8, 4, 64, device="cuda"))[0].sum().backward()


def update():
    weight = torch.nn.Parameter(torch.zeros(1000, device="cuda"))
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], fused=True).step()


def main(order):
    torch.cuda.init()
    torch.cuda.current_stream().synchronize()
    show(order, "context")
    x = torch.zeros(1 << 20, device="cuda")
    x.add_(1)
    show(order, "first kernel")
    a = torch.randn(1024, 1024, device="cuda")
    b, small = a.bfloat16(), a[:64, :64]
    uses = {
        "matmul f32": lambda: a @ a,
        "matmul bf16": lambda: b @ b,
        "linear bias bf16": lambda: F.linear(b, b, b[0]),
        "conv f32": partial(convolve, 16, torch.float32),
        "conv bf16": partial(convolve, 32, torch.bfloat16),
        "flash attention": partial(attend, torch.bfloat16),
        "efficient attention": partial(attend, torch.float32),
        "fft": lambda: torch.fft.rfft(a),
        "inv": lambda: torch.linalg.inv(small),
        "svd": lambda: torch.linalg.svd(small),
        "eigh": lambda: torch.linalg.eigh(small + small.T),
        "sort": lambda: torch.sort(x),
        "cumsum": lambda: torch.cumsum(x, 0),
        "topk": lambda: torch.topk(x, 10),
        "sparse": lambda: torch.sparse.mm(torch.eye(64, device="cuda").to_sparse_csr(), a[:64]),
        "graph": capture,
        "stream": partial(stream, x),
        "embedding": embed,
        "layer norm": lambda: torch.nn.LayerNorm(1024).cuda()(a.clone().requires_grad_()).sum().backward(),
        "lstm": recur,
        "adamw fused": update,
        "multinomial": lambda: torch.multinomial(x[:1000].abs() + 1, 10),
        "bmm": lambda: torch.bmm(a.view(16, 64, 1024), a.view(16, 1024, 64)),
        "pinned 256 MiB": lambda: kept.append(torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)),
        "small tensors": lambda: kept.append([torch.ones(7, device="cuda") for _ in range(1000)]),
    }
    names = list(uses)
    if order:
        random.Random(order).shuffle(names)
    for name in names:
        uses[name]()
        show(order, name)


main(int(sys.argv[1]))

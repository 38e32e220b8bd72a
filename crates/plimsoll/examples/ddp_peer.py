"""PyTorch's side of the rows of several GPUs in docs/measurements/ranks.md: GPT-2 under DDP or FSDP2, eager or compiled.

    torchrun --nproc-per-node 2 ddp_peer.py 64 1024 [--compile] [--fsdp] [--layers 12] [--width 768] [--heads 12]

Rank 0 prints one line of JSON: the median time of a step, the tokens per second of all ranks, and its own peaks. Weights and tokens
are random, products run in bfloat16 by autocast, and the optimizer is fused AdamW, as in `language_step.rs`. With `--fsdp`, FSDP2
shards each block and the rest, computes in bfloat16 and reduces gradients in float32.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(width, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.ln_f(h)).flatten(0, 1), y.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("batch", type=int)
    parser.add_argument("length", type=int)
    for name, default in [("layers", 12), ("width", 768), ("heads", 12), ("vocabulary", 50257), ("steps", 20)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fsdp", action="store_true")
    args = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    gpt = Gpt(args.layers, args.width, args.heads, args.vocabulary, args.length).to(device)
    model: nn.Module = gpt
    if args.fsdp:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in gpt.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(gpt, mp_policy=policy)
    elif ranks > 1:
        model = nn.parallel.DistributedDataParallel(gpt, device_ids=[device.index])
    run = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
    torch.manual_seed(1 + rank)
    x, y = (torch.randint(0, args.vocabulary, (args.batch, args.length), device=device) for _ in range(2))
    times = []
    for _ in range(5 + args.steps):
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=not args.fsdp):
            loss = run(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    seconds = sorted(times[5:])[args.steps // 2]
    free, total = torch.cuda.mem_get_info()
    answer = {
        "torch": torch.__version__,
        "program": ("fsdp2" if args.fsdp else "ddp") + (" compiled" if args.compile else ""),
        "batch": args.batch,
        "ranks": ranks,
        "ms": round(seconds * 1e3, 2),
        "tokens_per_second": round(ranks * args.batch * args.length / seconds),
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "process": total - free,
        "loss": round(loss.item(), 4),
    }
    if rank == 0:
        print(json.dumps(answer), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Pretrains a small GPT in the way of nanoGPT: a memory-mapped data file, gradient accumulation under autocast,
gradient clipping, weight decay for matrices only, fused AdamW, and occasional loss estimates.
"""

import argparse
import math
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

BLOCK, WORDS = 256, 8192


class CausalSelfAttention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.resid_dropout, self.heads, self.dropout = nn.Dropout(dropout), heads, dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), CausalSelfAttention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=False),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, layers=6, heads=6, width=384, dropout=0.2):
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(WORDS, width), nn.Embedding(BLOCK, width), nn.Dropout(dropout)
        self.h = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def memory(step):
    numbers = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print("pretrain", step, *numbers, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(1337)
    file = tempfile.NamedTemporaryFile()
    np.random.default_rng(0).integers(0, WORDS, 100_000, dtype=np.uint16).tofile(file.name)
    data = np.memmap(file.name, dtype=np.uint16, mode="r")

    def get_batch():
        ix = torch.randint(len(data) - BLOCK, (options.batch_size,))
        x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in ix])
        return tuple(t.pin_memory().to("cuda", non_blocking=True) for t in (x, y))

    model = GPT().to("cuda")
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    X, Y = get_batch()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / options.steps))
        if step == 1:
            model.eval()
            with torch.no_grad(), torch.amp.autocast("cuda", torch.bfloat16):
                losses = torch.tensor([model(*get_batch())[1].item() for _ in range(2)])
            losses.mean()
            model.train()
        for _ in range(options.accumulate):
            with torch.amp.autocast("cuda", torch.bfloat16):
                logits, loss = model(X, Y)
                loss = loss / options.accumulate
            X, Y = get_batch()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        memory(step)


if __name__ == "__main__":
    main()

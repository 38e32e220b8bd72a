"""GPT-2 with 6 layers, trained on batches of variable lengths: 16 steps, bf16 autocast."""

import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel

random.seed(1)
model = GPT2LMHeadModel(GPT2Config(n_layer=6, attn_pdrop=0.0)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for length in [random.randrange(64, 1024) for _ in range(16)]:
    tokens = torch.randint(0, 5000, (8, length), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

"""GPT-2 with 6 layers, trained on batches of one length: 8 steps, bf16 autocast."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(n_layer=6, attn_pdrop=0.0)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for step in range(8):
    tokens = torch.randint(0, 5000, (8, 512), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

"""A Llama of 12 layers with adapters (LoRA, rank 16) on its queries and values: 6 steps, bf16 autocast.

The batches have variable lengths.
"""

import random

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class Adapter(nn.Module):
    """A frozen linear layer plus a trained product of two small ones, as in peft."""

    def __init__(self, base: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x.to(self.down.weight.dtype))) * 0.5


random.seed(1)
config = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=8,
    vocab_size=32000,
)
model = LlamaForCausalLM(config).to(torch.bfloat16).requires_grad_(False)
for layer in model.model.layers:
    layer.self_attn.q_proj = Adapter(layer.self_attn.q_proj)
    layer.self_attn.v_proj = Adapter(layer.self_attn.v_proj)
model = model.to("cuda")
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for length in [random.randrange(256, 2048) for _ in range(6)]:
    tokens = torch.randint(0, 5000, (2, length), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

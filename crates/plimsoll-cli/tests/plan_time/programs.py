"""Programs for `measure.py`: `python programs.py KIND`."""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

kind = sys.argv[1]
device = "cuda"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.one(x))
        return x + self.mlp(self.two(x))


class GPT(nn.Module):
    def __init__(self, layers=12, width=768, words=32000, length=1024):
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 12) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x):
        x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt(rows=8, compiles=False, steps=6):
    model = GPT(layers=4 if compiles else 12).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if compiles:
        model = torch.compile(model)
    for _ in range(steps):
        tokens = torch.randint(0, 32000, (rows, 1025), device=device)
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


class Residual(nn.Module):
    def __init__(self, fed, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(fed, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.short = nn.Identity() if stride == 1 and fed == 4 * width else nn.Conv2d(fed, 4 * width, 1, stride)

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


def resnet():
    layers, fed = [nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, number in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for place in range(number):
            layers.append(Residual(fed, width, 2 if place == 0 and width > 64 else 1))
            fed = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(fed, 1000)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(6):
        images, labels = torch.randn(64, 3, 224, 224).to(device), torch.randint(0, 1000, (64,)).to(device)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def mlp():
    layers = [nn.Linear(1024, 8192), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Linear(8192, 8192), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(8192, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(6):
        x, y = torch.randn(4096, 1024, device=device), torch.randint(0, 10, (4096,), device=device)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, vocab_size=32000
    )
    model = LlamaForCausalLM(LlamaConfig(**sizes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(6):
        tokens = torch.randint(0, 32000, (8, 1024), device=device)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def infers():
    model = GPT().to(device).eval()
    for _ in range(6):
        model(torch.randint(0, 32000, (16, 1024), device=device))


dict(gpt=gpt, resnet=resnet, mlp=mlp, llama=llama, infers=infers, compiled=lambda: gpt(compiles=True))[kind]()

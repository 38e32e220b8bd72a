"""The networks of `programs.py`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.one(x))
        return x + self.mlp(self.two(x))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Llama(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, inner: int, words: int) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * layers + 1))
        names = dict(q=(width, width), k=(width, width), v=(width, width), o=(width, width))
        names |= dict(gate=(width, inner), up=(width, inner), down=(inner, width))
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(*sizes, bias=False) for name, sizes in names.items()}) for _ in range(layers)
        )

    def turned(self, x: Any) -> Any:
        length, half = x.shape[-2], x.shape[-1] // 2
        places = torch.arange(length, device=x.device)[:, None] / 10000 ** (torch.arange(half, device=x.device) / half)
        cos, sin = places.cos().to(x.dtype), places.sin().to(x.dtype)
        one, two = x[..., :half], x[..., half:]
        return torch.cat((one * cos - two * sin, one * sin + two * cos), -1)

    def forward(self, x: Any) -> Any:
        x = self.tokens(x)
        for place, layer in enumerate(self.layers):
            h = self.norms[2 * place](x)
            q, k, v = (layer[it](h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for it in "qkv")
            mixed = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
            x = x + layer["o"](mixed.transpose(1, 2).flatten(2))
            h = self.norms[2 * place + 1](x)
            x = x + layer["down"](F.silu(layer["gate"](h)) * layer["up"](h))
        return self.head(self.norms[-1](x))


class Lora(nn.Module):
    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 8, bias=False)
        self.up = nn.Linear(8, base.out_features, bias=False)
        self.dropout = nn.Dropout(0.05)

    def forward(self, x: Any) -> Any:
        return self.base(x) + 2.0 * self.up(self.down(self.dropout(x)))


def adapted(module: Any) -> Any:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and name != "head":
            setattr(module, name, Lora(child))
        else:
            adapted(child)
    return module


def convolved(fed: int, width: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    padding = size // 2
    return nn.Sequential(
        nn.Conv2d(fed, width, size, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    )


class Residual(nn.Module):
    def __init__(self, fed: int, width: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            convolved(fed, width, 1), convolved(width, width, 3, stride, groups),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        same = stride == 1 and fed == 4 * width
        self.short = nn.Identity() if same else nn.Conv2d(fed, 4 * width, 1, stride)

    def forward(self, x: Any) -> Any:
        return F.relu(self.body(x) + self.short(x))


def resnet(groups: int = 1) -> nn.Sequential:
    layers: list[Any] = [convolved(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    fed = 64
    for width, number in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for place in range(number):
            layers.append(Residual(fed, width, 2 if place == 0 and width > 64 else 1, groups))
            fed = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(fed, 1000))


class Dense(nn.Module):
    def __init__(self, fed: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(fed), nn.ReLU(), nn.Conv2d(fed, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return torch.cat((x, self.body(x)), 1)


def densenet() -> nn.Sequential:
    layers: list[Any] = [convolved(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for number in (6, 12, 24):
        for _ in range(number):
            layers.append(Dense(width, 32))
            width += 32
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
        width //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


class ConvNext(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        h = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + self.mlp(h).permute(0, 3, 1, 2)


def convnext() -> nn.Sequential:
    layers: list[Any] = [nn.Conv2d(3, 96, 4, 4)]
    for width, number in ((96, 3), (192, 3), (384, 9), (768, 3)):
        layers += [ConvNext(width) for _ in range(number)]
        if width < 768:
            layers.append(nn.Conv2d(width, 2 * width, 2, 2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, 1000))


class ViT(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, patch: int, size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(layers)))
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.blocks(x).mean(1))


class Unet(nn.Module):
    def __init__(self, dims: int, width: int, levels: int, attends: bool = False) -> None:
        super().__init__()
        conv, up = (nn.Conv2d, nn.ConvTranspose2d) if dims == 2 else (nn.Conv3d, nn.ConvTranspose3d)
        self.pool = F.max_pool2d if dims == 2 else F.max_pool3d

        def double(fed: int, width: int) -> nn.Sequential:
            one = [conv(fed, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU()]
            return nn.Sequential(*one, conv(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU())

        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.ups = nn.ModuleList(up(b, a, 2, 2) for a, b in zip(widths, widths[1:], strict=False))
        self.merged = nn.ModuleList(double(2 * a, a) for a in widths[:-1])
        self.attention = Attention(widths[-1], 8, causal=False) if attends else None
        self.out = conv(width, 3, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for place, layer in enumerate(self.down):
            x = layer(x if place == 0 else self.pool(x, 2))
            kept.append(x)
        if self.attention is not None:
            x = x + self.attention(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)
        for up, merge, other in reversed(list(zip(self.ups, self.merged, kept, strict=False))):
            x = merge(torch.cat((up(x), other), 1))
        return self.out(x)


class Words(nn.Module):
    def __init__(self, kind: Any, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.recurrent = kind(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x: Any) -> Any:
        return self.head(self.recurrent(self.tokens(x))[0])


class Experts(nn.Module):
    def __init__(self, width: int, number: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, number)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(number)
        )

    def forward(self, x: Any) -> Any:
        flat = x.flatten(0, 1)
        weights = self.gate(flat).softmax(-1)
        # Every expert gets the tokens that it prefers most, and all get the same number.
        share, places = weights.topk(flat.shape[0] // len(self.experts), dim=0)
        out = torch.zeros_like(flat)
        for nth, expert in enumerate(self.experts):
            rows = places[:, nth]
            out = out.index_add(0, rows, (expert(flat[rows]) * share[:, nth, None]).to(out.dtype))
        return x + out.view_as(x)


class Scan(nn.Module):
    """A state-space layer, one step after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fed, self.out, self.rate = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        fed, rate = self.fed(x), torch.sigmoid(self.rate(x))
        state, states = torch.zeros_like(fed[:, 0]), []
        for place in range(x.shape[1]):
            state = rate[:, place] * state + (1 - rate[:, place]) * fed[:, place]
            states.append(state)
        return x + self.out(torch.stack(states, 1))


class Mixer(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
        self.within = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.across(self.one(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.two(x))

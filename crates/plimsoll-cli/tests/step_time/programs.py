"""Training programs of many kinds, for `measure.py`: `python programs.py NAME` trains for six steps.

Each function builds a model and returns a function that trains for one step. The rates in `plan` were fitted to those of
`FITTED`; the programs of `OTHERS` only test them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"


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


Step = Callable[[], None]


def language(model: Any, optimizer: Any, rows: int, length: int, words: int, narrow: bool) -> Step:
    def step() -> None:
        tokens = torch.randint(0, words, (rows, length + 1), device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=narrow):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def gpt(rows: int = 8, narrow: bool = True, layers: int = 12, fused: bool = False, compiles: bool = False) -> Step:
    model: Any = GPT(layers, 768, 12, 32000, 1024).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    if compiles:
        model = torch.compile(model)
    return language(model, optimizer, rows, 1024, 32000, narrow)


def small_gpt() -> Step:
    """The host bounds it."""
    model = GPT(24, 256, 4, 4000, 128).to(DEVICE)
    return language(model, torch.optim.AdamW(model.parameters(), lr=1e-4), 4, 128, 4000, True)


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


def llama() -> Step:
    """Weights of 16 bits."""
    model = Llama(16, 1024, 16, 2816, 32000).to(DEVICE, torch.bfloat16)
    return language(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), 4, 2048, 32000, False)


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


def lora() -> Step:
    model = adapted(Llama(24, 1024, 16, 2816, 32000).requires_grad_(False)).to(DEVICE)
    trained = [it for it in model.parameters() if it.requires_grad]
    return language(model, torch.optim.AdamW(trained, lr=1e-4), 2, 512, 32000, True)


def images(model: Any, rows: int, size: int, narrow: bool, channels_last: bool = False) -> Step:
    model = model.to(DEVICE)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        x, y = torch.randn(rows, 3, size, size, device=DEVICE), torch.randint(0, 1000, (rows,), device=DEVICE)
        if channels_last:
            x = x.to(memory_format=torch.channels_last)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=narrow):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


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


def restored(model: Any, shape: tuple[int, ...], narrow: bool = False) -> Step:
    model = model.to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        x = torch.randn(shape, device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=narrow):
            loss = F.mse_loss(model(x + 0.1 * torch.randn_like(x)), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gan() -> Step:
    def layers(fed: int, widths: list[int], up: bool) -> list[Any]:
        made: list[Any] = []
        for width in widths:
            kind = nn.ConvTranspose2d if up else nn.Conv2d
            made += [kind(fed, width, 4, 2, 1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)]
            fed = width
        return made

    one = [nn.Linear(128, 1024 * 16), nn.Unflatten(1, (1024, 4, 4)), *layers(1024, [512, 256, 128], True)]
    generator = nn.Sequential(*one, nn.ConvTranspose2d(128, 3, 4, 2, 1), nn.Tanh()).to(DEVICE)
    critic = nn.Sequential(*layers(3, [64, 128, 256, 512], False), nn.Flatten(), nn.Linear(512 * 16, 1)).to(DEVICE)
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def step() -> None:
        real, noise = torch.randn(256, 3, 64, 64, device=DEVICE), torch.randn(256, 128, device=DEVICE)
        fake = generator(noise)
        of_critic.zero_grad()
        (F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        F.softplus(-critic(fake)).mean().backward()
        of_generator.step()

    return step


class Words(nn.Module):
    def __init__(self, kind: Any, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.recurrent = kind(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x: Any) -> Any:
        return self.head(self.recurrent(self.tokens(x))[0])


def recurrent(kind: Any) -> Step:
    model = Words(kind, 10000, 1024, 2).to(DEVICE)
    return language(model, torch.optim.SGD(model.parameters(), lr=0.1), 64, 128, 10000, False)


def mlp(fused: bool = False) -> Step:
    layers: list[Any] = [nn.Linear(1024, 8192), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Linear(8192, 8192), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(8192, 10)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)

    def step() -> None:
        x, y = torch.randn(4096, 1024, device=DEVICE), torch.randint(0, 10, (4096,), device=DEVICE)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def recommender() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.EmbeddingBag(200_000, 64, mode="sum") for _ in range(16))
            self.mlp = nn.Sequential(nn.Linear(16 * 64, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU())
            self.last = nn.Linear(256, 1)

        def forward(self, x: Any) -> Any:
            found = [table(x[:, place]) for place, table in enumerate(self.tables)]
            return self.last(self.mlp(torch.cat(found, 1)))

    model = Model().to(DEVICE)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)

    def step() -> None:
        x, y = torch.randint(0, 200_000, (16384, 16, 4), device=DEVICE), torch.rand(16384, 1, device=DEVICE)
        F.binary_cross_entropy_with_logits(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def flow() -> Step:
    """A continuous flow: an integrator of fourth order, which the host bounds."""
    field = nn.Sequential(nn.Linear(65, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 64)).to(DEVICE)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)

    def speed(t: float, x: Any) -> Any:
        return field(torch.cat((x, torch.full_like(x[:, :1], t)), 1))

    def step() -> None:
        x, h = torch.randn(512, 64, device=DEVICE), 1 / 32
        for n in range(32):
            t = n * h
            a = speed(t, x)
            b = speed(t + h / 2, x + h / 2 * a)
            c = speed(t + h / 2, x + h / 2 * b)
            d = speed(t + h, x + h * c)
            x = x + h / 6 * (a + 2 * b + 2 * c + d)
        x.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


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
        # Every expert gets the tokens that it wants most, the same number each.
        share, places = weights.topk(flat.shape[0] // len(self.experts), dim=0)
        out = torch.zeros_like(flat)
        for nth, expert in enumerate(self.experts):
            rows = places[:, nth]
            out = out.index_add(0, rows, (expert(flat[rows]) * share[:, nth, None]).to(out.dtype))
        return x + out.view_as(x)


def experts() -> Step:
    model = nn.Sequential(nn.Embedding(16000, 512), *(Experts(512, 8) for _ in range(8)), nn.Linear(512, 16000))
    model = model.to(DEVICE)
    return language(model, torch.optim.AdamW(model.parameters(), lr=1e-4), 16, 512, 16000, False)


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


def scan() -> Step:
    """The host bounds it."""
    model = nn.Sequential(nn.Embedding(4000, 256), *(Scan(256) for _ in range(3)), nn.Linear(256, 4000)).to(DEVICE)
    return language(model, torch.optim.AdamW(model.parameters(), lr=1e-4), 16, 128, 4000, False)


def translation() -> Step:
    """16 bits with a scaler, which reads a value in each step."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(16000, 512)
            self.body = nn.Transformer(512, 8, 6, 6, 2048, 0.1, batch_first=True)
            self.head = nn.Linear(512, 16000)

        def forward(self, x: Any) -> Any:
            mask = self.body.generate_square_subsequent_mask(x.shape[1], device=x.device)
            return self.head(self.body(self.tokens(x), self.tokens(x), tgt_mask=mask, tgt_is_causal=True))

    model = Model().to(DEVICE)
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-4), torch.amp.GradScaler(DEVICE)

    def step() -> None:
        tokens = torch.randint(0, 16000, (32, 257), device=DEVICE)
        with torch.autocast(DEVICE, torch.float16):
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def lenet() -> Step:
    """The host bounds it, and it reads the loss in each step."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    ).to(DEVICE)  # fmt: skip
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)

    def step() -> None:
        x, y = torch.randn(64, 1, 28, 28, device=DEVICE), torch.randint(0, 10, (64,), device=DEVICE)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def graph() -> Step:
    """Messages along two million edges."""

    class Layer(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.own, self.others, self.norm = nn.Linear(width, width), nn.Linear(width, width), nn.LayerNorm(width)

        def forward(self, x: Any, source: Any, target: Any) -> Any:
            sums = torch.zeros_like(x).index_add(0, target, x[source])
            return F.relu(self.norm(self.own(x) + self.others(sums)))

    first = nn.Linear(64, 128).to(DEVICE)
    layers = nn.ModuleList(Layer(128) for _ in range(4)).to(DEVICE)
    last = nn.Linear(128, 40).to(DEVICE)
    parameters = [*first.parameters(), *layers.parameters(), *last.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    nodes, edges = 100_000, 2_000_000
    source, target = torch.randint(0, nodes, (2, edges), device=DEVICE)

    def step() -> None:
        x, y = torch.randn(nodes, 64, device=DEVICE), torch.randint(0, 40, (nodes,), device=DEVICE)
        x = first(x)
        for layer in layers:
            x = layer(x, source, target)
        F.cross_entropy(last(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def speech() -> Step:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (80, 256, 256, 256, 256)
            layers: list[Any] = []
            for fed, width in zip(widths, widths[1:], strict=False):
                layers += [nn.Conv1d(fed, width, 5, 1, 2), nn.BatchNorm1d(width), nn.ReLU()]
            self.layers = nn.Sequential(*layers)
            self.recurrent = nn.GRU(256, 512, 2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(1024, 5000)

        def forward(self, x: Any) -> Any:
            return self.head(self.recurrent(self.layers(x).transpose(1, 2))[0])

    model = Model().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        x, y = torch.randn(32, 80, 600, device=DEVICE), torch.randint(0, 5000, (32, 600), device=DEVICE)
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Mixer(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
        self.within = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.across(self.one(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.two(x))


def mixer() -> Step:
    layers = [nn.Conv2d(3, 512, 16, 16), nn.Flatten(2), *(Mixer(512, 196) for _ in range(8)), nn.Flatten()]
    return images(nn.Sequential(*layers, nn.Linear(512 * 196, 1000)), 128, 224, True)


FITTED: dict[str, Callable[[], Step]] = dict(
    gpt=gpt,
    gpt_f32=lambda: gpt(4, narrow=False),
    small_gpt=small_gpt,
    llama=llama,
    resnet=lambda: images(resnet(), 64, 224, False),
    resnet_last=lambda: images(resnet(), 128, 224, True, channels_last=True),
    densenet=lambda: images(densenet(), 32, 224, False),
    unet=lambda: restored(Unet(2, 64, 5), (8, 3, 256, 256)),
    convnext=lambda: images(convnext(), 64, 224, True),
    lstm=lambda: recurrent(nn.LSTM),
    mlp=mlp,
    recommender=recommender,
    flow=flow,
    lenet=lenet,
    graph=graph,
    compiled=lambda: gpt(layers=6, compiles=True),
)
OTHERS: dict[str, Callable[[], Step]] = dict(
    lora=lora,
    vit=lambda: images(ViT(768, 12, 12, 16, 224), 64, 224, True),
    resnext=lambda: images(resnet(groups=32), 32, 224, False),
    diffusion=lambda: restored(Unet(2, 96, 4, attends=True), (16, 3, 128, 128), narrow=True),
    volumes=lambda: restored(Unet(3, 32, 4), (2, 3, 96, 96, 96)),
    gan=gan,
    experts=experts,
    scan=scan,
    translation=translation,
    speech=speech,
    mixer=mixer,
    fused=lambda: mlp(fused=True),
    compiled_wide=lambda: gpt(4, layers=4, fused=True, compiles=True),
)

if __name__ == "__main__":
    torch.manual_seed(0)
    train = (FITTED | OTHERS)[sys.argv[1]]()
    for _ in range(6):
        train()

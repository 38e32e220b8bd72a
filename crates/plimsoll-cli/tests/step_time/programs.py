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
from networks import (
    GPT,
    Experts,
    Llama,
    Mixer,
    Scan,
    Unet,
    ViT,
    Words,
    adapted,
    convnext,
    densenet,
    resnet,
)

DEVICE = "cuda"


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
    """Limited by the host."""
    model = GPT(24, 256, 4, 4000, 128).to(DEVICE)
    return language(model, torch.optim.AdamW(model.parameters(), lr=1e-4), 4, 128, 4000, True)


def llama() -> Step:
    """Weights of 16 bits."""
    model = Llama(16, 1024, 16, 2816, 32000).to(DEVICE, torch.bfloat16)
    return language(model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), 4, 2048, 32000, False)


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
    """A continuous flow: a fourth-order integrator, which is limited by the host."""
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


def experts() -> Step:
    model = nn.Sequential(nn.Embedding(16000, 512), *(Experts(512, 8) for _ in range(8)), nn.Linear(512, 16000))
    model = model.to(DEVICE)
    return language(model, torch.optim.AdamW(model.parameters(), lr=1e-4), 16, 512, 16000, False)


def scan() -> Step:
    """Limited by the host."""
    model = nn.Sequential(nn.Embedding(4000, 256), *(Scan(256) for _ in range(3)), nn.Linear(256, 4000)).to(DEVICE)
    return language(model, torch.optim.AdamW(model.parameters(), lr=1e-4), 16, 128, 4000, False)


def translation() -> Step:
    """Uses 16 bits with a scaler, which reads a value in each step."""

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
    """Limited by the host; it reads the loss in each step."""
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

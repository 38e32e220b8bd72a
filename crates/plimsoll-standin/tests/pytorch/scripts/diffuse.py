"""Trains a diffusion model's U-Net to predict the noise in images: time embeddings, attention in the middle, autocast,
an average of the weights, and one sample generated at the end.
"""

import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 1000


def embedding(t, width):
    frequencies = torch.exp(-math.log(10000) * torch.arange(width // 2, device=t.device) / (width // 2))
    angles = t[:, None].float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class ResBlock(nn.Module):
    def __init__(self, before, after, time):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, after))
        self.second = nn.Sequential(
            nn.GroupNorm(32, after), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(after, after, 3, padding=1)
        )
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x, t):
        return self.skip(x) + self.second(self.first(x) + self.time(t)[:, :, None, None])


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, width), heads
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(3, 4).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(2, 3).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, width=64, factors=(1, 2, 4), time=256):
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        widths = [width * factor for factor in factors]
        self.down, self.up, at, skips = nn.ModuleList(), nn.ModuleList(), width, []
        for after in widths:
            self.down.append(nn.ModuleList([ResBlock(at, after, time), nn.Conv2d(after, after, 3, 2, 1)]))
            at = after
            skips.append(after)
        self.middle = nn.ModuleList([ResBlock(at, at, time), Attention(at), ResBlock(at, at, time)])
        for after in reversed(widths):
            self.up.append(
                nn.ModuleList(
                    [
                        nn.ConvTranspose2d(at, after, 4, 2, 1),
                        ResBlock(after + skips.pop(), after, time),
                    ]
                )
            )
            at = after
        self.last = nn.Sequential(nn.GroupNorm(32, at), nn.SiLU(), nn.Conv2d(at, 3, 3, padding=1))

    def forward(self, x, t):
        t, x, skips = self.time(embedding(t, self.width)), self.first(x), []
        for block, shrink in self.down:
            x = block(x, t)
            skips.append(x)
            x = shrink(x)
        first, attention, second = self.middle
        x = second(attention(first(x, t)), t)
        for grow, block in self.up:
            x = block(torch.cat([grow(x), skips.pop()], dim=1), t)
        return self.last(x)


def memory(step):
    numbers = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print("diffuse", step, *numbers, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = UNet().to("cuda")
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    scaler = torch.amp.GradScaler("cuda")
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS, device="cuda"), 0)
    for step in range(options.steps):
        x = (
            torch.rand(options.batch_size, 3, options.size, options.size).pin_memory().to("cuda", non_blocking=True) * 2
            - 1
        )
        t, noise = torch.randint(0, STEPS, (options.batch_size,), device="cuda"), torch.randn_like(x)
        kept = alphas[t][:, None, None, None]
        with torch.autocast("cuda", torch.float16):
            loss = F.mse_loss(model(kept.sqrt() * x + (1 - kept).sqrt() * noise, t).float(), noise)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1e-3)
        memory(step)
    with torch.no_grad():
        x = torch.randn(4, 3, options.size, options.size, device="cuda")
        for at in range(2):
            t = torch.full((4,), STEPS - 1 - at, device="cuda")
            kept = alphas[t][:, None, None, None]
            x = (x - (1 - kept).sqrt() * average(x, t)) / kept.sqrt()
        x.clamp(-1, 1).cpu()
    memory("sampled")


if __name__ == "__main__":
    main()

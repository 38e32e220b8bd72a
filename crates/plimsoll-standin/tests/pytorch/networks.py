"""Peaks of torchvision's networks in training, with cuDNN: allocated and reserved bytes of three steps, one network
per line. The output of a GPU is kept in workspaces/; with modelled workspaces, the stand-in's should be close to it.

usage: python networks.py
"""

import gc

import torch
import torch.nn.functional as F
import torchvision

device = "cuda"
NETWORKS = [
    ("resnet18", 64),
    ("resnet50", 32),
    ("resnet50", 128),
    ("vgg16", 16),
    ("mobilenet_v2", 32),
    ("convnext_tiny", 16),
    ("resnext50_32x4d", 16),
    ("densenet121", 16),
    ("vit_b_16", 8),
    ("efficientnet_b0", 32),
]


def train(name, batch, precision, layout):
    torch.manual_seed(0)
    order = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    model = getattr(torchvision.models, name)().to(device, memory_format=order)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        x = torch.randn(batch, 3, 224, 224, device=device).to(memory_format=order)
        y = torch.randint(0, 1000, (batch,), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(name, batch, precision, layout, *peaks, flush=True)


if __name__ == "__main__":
    for name, batch in NETWORKS:
        for precision, layout in ("tf32", "nchw"), ("bf16", "nchw"), ("bf16", "nhwc"):
            train(name, batch, precision, layout)
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

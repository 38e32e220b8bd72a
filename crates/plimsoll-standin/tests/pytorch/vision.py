"""Peaks of convolutional networks in training and inference, with cuDNN: allocated and reserved bytes, one per line.
The output of a GPU is kept in workspaces/vision-*.txt; with cuDNN's own answers, the stand-in's should be close to it.

usage: python vision.py [NAME ...]
"""

import gc
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision

device = "cuda"
SETTINGS = {
    "tf32": (None, torch.contiguous_format),
    "fp32": (None, torch.contiguous_format),
    "bf16": (torch.bfloat16, torch.contiguous_format),
    "bf16-nhwc": (torch.bfloat16, torch.channels_last),
    "fp16-nhwc": (torch.float16, torch.channels_last),
}


def pair(conv, norm, c, k):
    return [
        conv(c, k, 3, padding=1),
        norm(k),
        nn.ReLU(inplace=True),
        conv(k, k, 3, padding=1),
        norm(k),
        nn.ReLU(inplace=True),
    ]


class UNet(nn.Module):
    """A U-Net for segmentation, in two or three dimensions."""

    def __init__(self, channels, dims, widths, classes):
        super().__init__()
        conv, norm, up, pool = {
            2: (nn.Conv2d, nn.BatchNorm2d, nn.ConvTranspose2d, nn.MaxPool2d),
            3: (nn.Conv3d, nn.InstanceNorm3d, nn.ConvTranspose3d, nn.MaxPool3d),
        }[dims]
        self.down = nn.ModuleList(nn.Sequential(*pair(conv, norm, c, k)) for c, k in zip([channels, *widths], widths))
        self.up = nn.ModuleList(up(k, c, 2, 2) for c, k in zip(widths, widths[1:]))
        self.merge = nn.ModuleList(nn.Sequential(*pair(conv, norm, 2 * c, c)) for c in widths[:-1])
        self.pool, self.head = pool(2), conv(widths[0], classes, 1)

    def forward(self, x):
        kept = []
        for block in self.down[:-1]:
            x = block(x)
            kept.append(x)
            x = self.pool(x)
        x = self.down[-1](x)
        for up, merge, skip in zip(reversed(self.up), reversed(self.merge), reversed(kept)):
            x = merge(torch.cat([up(x), skip], 1))
        return self.head(x)


def classifier(name, batch, size=224):
    def make():
        model = getattr(torchvision.models, name)()
        return (
            model,
            lambda: torch.randn(batch, 3, size, size),
            lambda out: F.cross_entropy(out, torch.randint(0, 1000, (batch,), device=device)),
        )

    return make


def segmenter(name, batch, size):
    def make():
        model = getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None, num_classes=21)
        target = lambda: torch.randint(0, 21, (batch, size, size), device=device)
        return model, lambda: torch.randn(batch, 3, size, size), lambda out: F.cross_entropy(out["out"], target())

    return make


def unet(dims, channels, widths, batch, size):
    def make():
        space = [size] * dims
        target = lambda: torch.randint(0, 4, (batch, *space), device=device)
        return (
            UNet(channels, dims, widths, 4),
            lambda: torch.randn(batch, channels, *space),
            lambda out: F.cross_entropy(out, target()),
        )

    return make


def autoencoder():
    layers, c = [], 3
    for k in 64, 128, 256, 512:
        layers += [nn.Conv2d(c, k, 4, 2, 1), nn.BatchNorm2d(k), nn.LeakyReLU(0.2)]
        c = k
    for k in 256, 128, 64, 3:
        layers += [nn.ConvTranspose2d(c, k, 4, 2, 1), nn.BatchNorm2d(k), nn.ReLU()]
        c = k
    return nn.Sequential(*layers), lambda: torch.randn(32, 3, 128, 128), lambda out: out.square().mean()


def speech():
    model = nn.Sequential(
        nn.Conv1d(80, 512, 5, padding=2),
        nn.BatchNorm1d(512),
        nn.ReLU(),
        nn.Conv1d(512, 512, 3, padding=2, dilation=2),
        nn.BatchNorm1d(512),
        nn.ReLU(),
        nn.Conv1d(512, 512, 3, padding=4, dilation=4),
        nn.BatchNorm1d(512),
        nn.ReLU(),
        nn.Conv1d(512, 1500, 1),
    )
    return model, lambda: torch.randn(32, 80, 1000), lambda out: out.square().mean()


PROGRAMS = {
    "resnet18": (classifier("resnet18", 64), "tf32 fp32 bf16 bf16-nhwc fp16-nhwc"),
    "resnet50": (classifier("resnet50", 32), "tf32 fp32 bf16-nhwc fp16-nhwc"),
    "resnet152": (classifier("resnet152", 16), "tf32 bf16-nhwc"),
    "vgg16": (classifier("vgg16", 32), "tf32 fp32 bf16-nhwc"),
    "densenet121": (classifier("densenet121", 16), "tf32 bf16"),
    "mobilenet_v3_large": (classifier("mobilenet_v3_large", 64), "tf32 bf16-nhwc"),
    "efficientnet_b0": (classifier("efficientnet_b0", 32), "tf32 bf16-nhwc"),
    "efficientnet_v2_s": (classifier("efficientnet_v2_s", 16), "tf32 bf16"),
    "convnext_tiny": (classifier("convnext_tiny", 16), "tf32 bf16"),
    "regnet_y_3_2gf": (classifier("regnet_y_3_2gf", 16), "tf32 bf16-nhwc"),
    "inception_v3": (
        lambda: (
            torchvision.models.inception_v3(init_weights=False),
            lambda: torch.randn(16, 3, 299, 299),
            lambda out: (out[0] if isinstance(out, tuple) else out).square().mean(),
        ),
        "tf32 bf16",
    ),
    "googlenet": (
        lambda: (
            torchvision.models.googlenet(init_weights=False, aux_logits=False),
            lambda: torch.randn(32, 3, 224, 224),
            lambda out: out.square().mean(),
        ),
        "tf32",
    ),
    "shufflenet_v2_x1_0": (classifier("shufflenet_v2_x1_0", 64), "tf32"),
    "alexnet": (classifier("alexnet", 128), "tf32 bf16"),
    "squeezenet1_1": (classifier("squeezenet1_1", 64), "tf32"),
    "fcn_resnet50": (segmenter("fcn_resnet50", 4, 256), "tf32 bf16-nhwc"),
    "deeplabv3_resnet50": (segmenter("deeplabv3_resnet50", 4, 256), "tf32 bf16"),
    "unet2d": (unet(2, 3, [64, 128, 256, 512], 4, 256), "tf32 fp32 bf16 bf16-nhwc"),
    "unet3d": (unet(3, 1, [16, 32, 64, 128], 2, 64), "tf32 fp32 bf16"),
    "autoencoder": (autoencoder, "tf32 fp32 fp16-nhwc"),
    "speech": (speech, "tf32 bf16"),
}


def run(name, setting, training):
    make, _ = PROGRAMS[name]
    dtype, order = SETTINGS[setting]
    torch.backends.cudnn.allow_tf32 = setting != "fp32"
    torch.manual_seed(0)
    model, batch, loss_of = make()
    model = model.to(device, memory_format=order) if order != torch.contiguous_format else model.to(device)
    model.train(training)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = batch().to(device)
        x = x.to(memory_format=order) if order != torch.contiguous_format else x
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None), torch.set_grad_enabled(training):
            out = model(x)
            loss = loss_of(out)
        del out
        if training:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()
    print(
        name,
        setting,
        "training" if training else "inference",
        torch.cuda.max_memory_allocated(),
        torch.cuda.max_memory_reserved(),
        flush=True,
    )


if __name__ == "__main__":
    print(
        f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, torchvision {torchvision.__version__}"
    )
    for name in sys.argv[1:] or PROGRAMS:
        for setting in PROGRAMS[name][1].split():
            for training in True, False:
                run(name, setting, training)
                gc.collect()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()

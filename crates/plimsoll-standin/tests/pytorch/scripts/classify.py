"""Trains ResNet-50 on generated images, in the way of torchvision's reference script: workers, pinned memory,
label smoothing, a learning-rate schedule, accuracy read back occasionally, and an evaluation at the end.
"""

import argparse

import torch
import torchvision
from torch import nn
from torchvision.transforms import v2 as transforms


def memory(step):
    numbers = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print("classify", step, *numbers, flush=True)


def accuracy(output, target, topk=(1, 5)):
    with torch.inference_mode():
        _, predicted = output.topk(max(topk), 1, True, True)
        correct = predicted.t().eq(target[None])
        return [correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / target.size(0)) for k in topk]


def train_one_epoch(model, criterion, optimizer, scheduler, loader, device, steps):
    model.train()
    for step, (image, target) in enumerate(loader):
        if step == steps:
            break
        image, target = image.to(device, non_blocking=True), target.to(device, non_blocking=True)
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        top1, top5 = accuracy(output, target)
        top1.item(), top5.item(), loss.item()
        memory(step)


def evaluate(model, criterion, loader, device, steps):
    model.eval()
    with torch.inference_mode():
        for step, (image, target) in enumerate(loader):
            if step == steps:
                break
            image, target = image.to(device, non_blocking=True), target.to(device, non_blocking=True)
            output = model(image)
            criterion(output, target).item()
    memory("evaluated")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(176, antialias=True),
            transforms.RandomHorizontalFlip(),
            transforms.ToImage(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ]
    )
    pictures = torchvision.datasets.FakeData(options.batch_size * options.steps, (3, 224, 224), 1000, augment)
    loader = torch.utils.data.DataLoader(
        pictures, options.batch_size, shuffle=True, num_workers=options.workers, pin_memory=True, drop_last=True
    )
    model = torchvision.models.resnet50(weights=None).to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=2e-5, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
    train_one_epoch(model, criterion, optimizer, scheduler, loader, device, options.steps)
    evaluate(model, criterion, loader, device, 1)


if __name__ == "__main__":
    main()

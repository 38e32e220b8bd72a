# not needed at the peak: chunks, x
import torch

net = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 16)).cuda()


def run():
    x = torch.randn(65536, 1024, device="cuda")
    chunks = [c for c in x.chunk(8)]
    outs = torch.cat([net(c) for c in chunks])
    big = torch.randn(200_000, 1024, device="cuda")
    return outs.shape, big.sum().item()


with torch.no_grad():
    for _ in range(3):
        print(run())

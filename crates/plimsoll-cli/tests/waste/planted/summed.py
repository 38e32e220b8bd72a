# not needed at the peak: opt, total, x
import torch

net = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def evaluate():
    total = 0
    for _ in range(12):
        x = torch.randn(4096, 1024, device="cuda")
        loss = net(x).square().mean()
        total += loss
    return total / 12


for step in range(3):
    x = torch.randn(4096, 1024, device="cuda")
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("validation", evaluate().item())

import copy

import torch

net = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
ema = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.AdamW(net.parameters())
for step in range(4):
    opt.zero_grad()
    loss = net(torch.randn(2048, 1024, device="cuda")).square().mean()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), net.parameters()):
            a.lerp_(b, 0.01)
with torch.no_grad():
    print(ema(torch.randn(16, 1024, device="cuda")).shape)

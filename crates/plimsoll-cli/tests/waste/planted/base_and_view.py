# not needed at the peak: big, small
import torch

big = torch.randn(200_000, 256, device="cuda")
small = big[:1000]
net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    opt.zero_grad()
    loss = net(small.repeat(20, 1)).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()

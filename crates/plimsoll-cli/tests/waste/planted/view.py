# not needed at the peak: small
import torch


def load():
    big = torch.randn(200_000, 256, device="cuda")
    return big[:1000]


small = load()
net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    opt.zero_grad()
    loss = net(small.repeat(20, 1)).square().mean()
    loss.backward()
    opt.step()

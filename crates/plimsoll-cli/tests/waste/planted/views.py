# not needed at the peak: train, val
import torch


def load():
    big = torch.randn(200_000, 256, device="cuda")
    train = big[:1000]
    val = big[1000:1100]
    return train, val


train, val = load()
net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    opt.zero_grad()
    loss = net(train.repeat(20, 1)).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        print(net(val).mean().item())

# not needed at the peak: raw
import torch


def train():
    net = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1)).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        raw = torch.randn(100_000, 1024, device="cuda")
        x = raw[:, :256].contiguous()
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(loss.item() / raw.shape[0])


train()

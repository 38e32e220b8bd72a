# not needed at the peak: aug, x
import torch


def train():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(65536, 1024, device="cuda")
        aug = x + 0.1 * torch.randn_like(x)
        h = aug * 2
        out = net(h)
        loss = out.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


train()

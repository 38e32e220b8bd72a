# not needed at the peak: opt
import torch

net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    x = torch.randn(2048, 2048, device="cuda")
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward(); opt.step()  # fmt: skip  # noqa: E702

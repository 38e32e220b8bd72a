import torch
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
            for _ in range(6)
        )

    def forward(self, x):
        for layer in self.l:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


net = Net().cuda()
opt = torch.optim.AdamW(net.parameters())
for _ in range(4):
    opt.zero_grad()
    net(torch.randn(8192, 512, device="cuda")).square().mean().backward()
    opt.step()

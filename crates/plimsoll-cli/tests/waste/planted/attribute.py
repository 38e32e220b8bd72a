# not needed at the peak: self.raw
import torch


class Trainer:
    def __init__(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.raw = None

    def load(self):
        self.raw = torch.randn(40_000, 2048, device="cuda")
        self.small = self.raw[:, :512].contiguous()

    def step(self):
        self.load()
        loss = self.net(self.small).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


trainer = Trainer()
for _ in range(4):
    trainer.step()

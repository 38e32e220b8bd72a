# not needed at the peak: big, raw, small
import torch


class Trainer:
    def __init__(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def augment(self, x):
        noise = torch.randn_like(x)
        mixed = x + noise
        return mixed.clamp(-1, 1)

    def step(self, raw):
        big = raw.float() / 255
        small = torch.nn.functional.interpolate(big.view(-1, 1, 64, 32), scale_factor=0.5).flatten(1)
        x = self.augment(small)
        loss = self.net(x).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


t = Trainer()
for _ in range(4):
    t.step(torch.randint(0, 255, (30_000, 2048), device="cuda", dtype=torch.uint8))

# not needed at the peak: self.sum, stats['loss']
import torch


class Meter:
    def __init__(self):
        self.sum, self.count = 0, 0

    def update(self, value, n):
        self.sum = self.sum + value * n
        self.count += n

    def average(self):
        return self.sum / self.count


net = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
meter, stats = Meter(), {"loss": []}
for step in range(6):
    x = torch.randn(4096, 1024, device="cuda")
    out = net(x)
    loss = out.square().mean()
    extra = net(x * 2).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    meter.update(extra, 4096)
    stats["loss"].append(extra)
print(f"{meter.average():.2f}", sum(stats["loss"]).item() / len(stats["loss"]))

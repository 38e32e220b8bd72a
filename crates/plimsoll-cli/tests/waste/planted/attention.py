# not needed at the peak: self.weights
import torch


class Attention(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv = torch.nn.Linear(d, 3 * d)
        self.weights = None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        self.weights = (q @ k.transpose(-1, -2)).softmax(-1)
        out = self.weights @ v
        return out


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Attention(64) for _ in range(8)])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


net = Net().cuda().eval()
with torch.no_grad():
    for _ in range(3):
        y = net(torch.randn(8, 2048, 64, device="cuda"))

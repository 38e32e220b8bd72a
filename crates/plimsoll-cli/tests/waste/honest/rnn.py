import torch


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.e = torch.nn.Embedding(1000, 128)
        self.r = torch.nn.LSTM(128, 256, batch_first=True)
        self.o = torch.nn.Linear(256, 20)

    def forward(self, x, state=None):
        h, state = self.r(self.e(x), state)
        return self.o(h), tuple(it.detach() for it in state)


net = Tagger().cuda()
opt = torch.optim.Adam(net.parameters())
state = None
for step in range(4):
    x = torch.randint(0, 1000, (64, 128), device="cuda")
    opt.zero_grad()
    out, state = net(x, state)
    torch.nn.functional.cross_entropy(out.flatten(0, 1), torch.randint(0, 20, (64 * 128,), device="cuda")).backward()
    opt.step()

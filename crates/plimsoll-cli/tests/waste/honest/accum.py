import torch

net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(5):
    for micro in range(4):
        x = torch.randn(4096, 512, device="cuda")
        loss = net(x).square().mean() / 4
        loss.backward()
    opt.step()
    opt.zero_grad()

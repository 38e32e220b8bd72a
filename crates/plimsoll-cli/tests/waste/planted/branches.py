# not needed at the peak: images
import torch

net = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 256)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
mode = "scale"
for i in range(4):
    images = torch.randn(64 * 1024, 256, device="cuda")
    if mode == "shift":
        x = images + 1
    else:
        x = images * 2
    loss = net(x).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()

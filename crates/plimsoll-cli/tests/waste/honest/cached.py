import torch


def main():
    net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(65536, 512, device="cuda")
    y = torch.randint(0, 10, (65536,), device="cuda")
    for step in range(4):
        at = torch.randint(0, 65536, (4096,), device="cuda")
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x[at]), y[at])
        loss.backward()
        opt.step()


main()

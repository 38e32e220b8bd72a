import torch


def make():
    return torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 100)).cuda()


class Distill:
    def __init__(self):
        self.teacher, self.student = make().eval().requires_grad_(False), make()
        self.opt = torch.optim.SGD(self.student.parameters(), lr=0.1, momentum=0.9)

    def step(self, x):
        with torch.no_grad():
            soft = self.teacher(x).softmax(-1)
        self.opt.zero_grad(set_to_none=True)
        loss = torch.nn.functional.kl_div(self.student(x).log_softmax(-1), soft)
        loss.backward()
        self.opt.step()
        return loss.item()


d = Distill()
for _ in range(4):
    d.step(torch.randn(4096, 1024, device="cuda"))

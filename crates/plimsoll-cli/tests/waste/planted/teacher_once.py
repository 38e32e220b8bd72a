# not needed at the peak: teacher
import torch


def make(n):
    return torch.nn.Sequential(*[torch.nn.Linear(n, n) for _ in range(6)]).cuda()


def main():
    teacher = make(3000)
    x = torch.randn(2048, 3000, device="cuda")
    with torch.no_grad():
        soft = teacher(x)
    student = make(3000)
    opt = torch.optim.AdamW(student.parameters())
    for _ in range(4):
        opt.zero_grad()
        loss = (student(x) - soft).square().mean()
        loss.backward()
        opt.step()


main()

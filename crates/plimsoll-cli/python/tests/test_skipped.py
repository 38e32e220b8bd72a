# Steps that GradScaler skips: in Python, and in the optimizer's own kernel.

import pytest

torch = pytest.importorskip("torch")

from plimsoll._holding.skipped import Skipped


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("fused", [False, True])
def test_steps_with_infinite_gradients_are_counted(device, fused):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    skipped = Skipped(torch)
    weight = torch.ones(4, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler(device)
    for step in range(6):
        optimizer.zero_grad()
        scaler.scale(weight.sum() * (float("inf") if step in (1, 4) else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
    skipped.settle()
    assert (skipped.count, skipped.tried) == (2, 6)
    assert bool(skipped.on_devices) == fused


def test_steps_without_a_scaler_are_not_counted():
    skipped = Skipped(torch)
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    weight.sum().backward()
    optimizer.step()
    assert (skipped.count, skipped.tried) == (0, 0)

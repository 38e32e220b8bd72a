"""Updates each parameter as soon as its gradient is complete, and frees the gradient. The numbers are
identical.

Refused if the program needs all gradients at once: clipping, accumulation, GradScaler, DDP.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import context, each, observers

# Optimizers whose state and update are independent for each parameter.
SEPARATE = "Adam AdamW SGD RMSprop Adagrad Adadelta Adamax NAdam RAdam ASGD Rprop Adafactor Muon".split()


class StepInBackward:
    """Updates parameters inside the backward pass."""

    name = "step-in-backward"

    def __init__(self, value: int | None) -> None:
        self.count = 0
        self.known: dict[int, tuple[Any, int]] = {}  # by parameter: its optimizer, and the index of its group
        self.used: dict[
            int, Any
        ] = {}  # by parameter, its optimizer, for parameters updated since the optimizer's last step

    def begin(self) -> None:
        listen = observers.listeners
        listen["clipped"].append(lambda name: self.refuse(f"the program calls {name}, which needs all gradients"))
        listen["scaled"].append(lambda: self.refuse("the program scales its loss (GradScaler)"))
        listen["backward"].append(self.backward)
        listen["zeroed"].append(self.zeroed)
        listen["stepped"].append(self.stepped)
        if torch.distributed.is_available():
            kind = torch.nn.parallel.DistributedDataParallel
            begin = kind.__init__

            @functools.wraps(begin)
            def __init__(module: Any, *args: Any, **kwargs: Any) -> None:
                self.refuse("DDP averages gradients after the backward pass")
                begin(module, *args, **kwargs)

            kind.__init__ = __init__

    def refuse(self, reason: str) -> None:
        """Refuses the technique, which ends the program."""
        context.refuse(self.name, reason)

    def first(self, root: Any) -> None:
        if context.is_sharded(root):
            self.refuse("FSDP shards the model")
        own = {id(it) for it in root.parameters()}
        for optimizer in list(observers.optimizers):
            groups = optimizer.param_groups
            if not any(id(it) in own for group in groups for it in group["params"]):
                continue
            self.check(optimizer)
            self.take(optimizer)

    def check(self, optimizer: Any) -> None:
        """Refuses an optimizer whose parameters may depend on each other."""
        name = type(optimizer).__name__
        if type(optimizer).__module__.split(".")[:2] != ["torch", "optim"] or name not in SEPARATE:
            self.refuse(f"it is not known whether {name} updates parameters independently")

    def take(self, optimizer: Any) -> None:
        """Starts to update the parameters of this optimizer; the optimizer's own step does nothing from then on."""
        for nth, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in self.known:
                    self.known[id(parameter)] = (optimizer, nth)
                    parameter.register_post_accumulate_grad_hook(self.update)
        kind = type(optimizer)
        if not hasattr(kind, "_plimsoll_step"):
            kind._plimsoll_step = step = unwrapped(kind.step)

            def nothing(optimizer: Any, closure: Any = None) -> Any:
                if optimizer.__dict__.get("_plimsoll_done"):
                    if closure is not None:
                        self.refuse("the program passes a closure to its optimizer")
                    return None
                return step(optimizer, closure)

            kind.step = torch.optim.Optimizer.profile_hook_step(nothing)
            kind.step.hooked = True
        optimizer.__dict__["_plimsoll_done"] = True

    def update(self, parameter: Any) -> None:
        """Updates a parameter whose gradient is complete."""
        optimizer, nth = self.known[id(parameter)]
        if id(parameter) in self.used:
            self.refuse("a parameter gets several gradients before the optimizer's step (accumulation)")
        self.used[id(parameter)] = optimizer
        groups = optimizer.param_groups
        # The step updates only this parameter, with its group's current settings.
        optimizer.param_groups = [{**groups[nth], "params": [parameter]}]
        try:
            with torch.no_grad():
                type(optimizer)._plimsoll_step(optimizer)
        finally:
            optimizer.param_groups = groups
        parameter.grad = None
        self.count += 1

    def backward(self) -> None:
        if self.used:
            self.refuse("the program accumulates gradients over several backward passes")

    def zeroed(self, parameters: Any, set_to_none: bool) -> None:
        """Called when the program clears gradients. For example, the generator's loss of a GAN gives gradients to the
        discriminator that no step uses.
        """
        if any(id(it) in self.used for it in parameters):
            self.refuse("the program clears gradients without a step of their optimizer")

    def stepped(self, optimizer: Any) -> None:
        self.used = {key: own for key, own in self.used.items() if own is not optimizer}

    def report(self) -> dict[str, Any]:
        if not self.count:
            return dict(applied=False, detail="no optimizer of torch.optim has the model's parameters", lines=[])
        kinds = [type(it).__name__ for it in {id(it): it for it, _ in self.known.values()}.values()]
        lines = [context.IMPORT, *each.optimizer("plimsoll.step_in_backward(optimizer)", kinds)]
        return dict(applied=True, detail="", lines=lines)


def unwrapped(step: Any) -> Any:
    """The optimizer's own step, without the hooks that PyTorch runs around it."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step

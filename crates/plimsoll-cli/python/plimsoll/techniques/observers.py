"""Observes what the program calls: optimizers, gradient clipping, scalers, losses, backward passes. Techniques that
depend on these calls subscribe to `listeners`. The observers are installed right after torch is imported, so that later
imports such as `from torch.nn.utils import …` get the patched functions.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from . import context

optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
asked: list[bool] = []  # not empty if the program has requested gradients
moving: list[Any] = []  # the module that is being moved or converted: a trial of `plan` often begins inside such a move
listeners: dict[str, list[Callable[..., Any]]] = {
    "made": [],
    "zeroed": [],
    "stepped": [],
    "backward": [],
    "gradient": [],
    "clipped": [],
    "scaled": [],
    "loss": [],
    "moving": [],
}
LOSSES = (
    "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div"
    " binary_cross_entropy_with_logits ctc_loss gaussian_nll_loss poisson_nll_loss margin_ranking_loss hinge_embedding_loss"
    " cosine_embedding_loss soft_margin_loss triplet_margin_loss multi_margin_loss multilabel_margin_loss"
).split()


def tell(what: str, *args: Any) -> None:
    """Calls all listeners of this kind."""
    for listener in listeners[what]:
        listener(*args)


def trains() -> bool:
    """Whether the program has an optimizer, or has requested gradients."""
    return bool(len(optimizers) or asked)


def install(torch: Any) -> None:
    """Patches the functions and classes that the program calls."""
    watch_optimizers(torch)
    watch_backward(torch)
    watch_clipping(torch)
    watch_losses(torch)
    watch_moves(torch)


def watch_optimizers(torch: Any) -> None:
    """Observes when optimizers are created, step, and clear gradients."""
    kind = torch.optim.Optimizer
    begin, zero, clear = kind.__init__, kind.zero_grad, torch.nn.Module.zero_grad

    @functools.wraps(begin)
    def __init__(self: Any, params: Any, defaults: Any, *args: Any, **kwargs: Any) -> None:
        if context.active:
            tell("made", self, defaults)
        begin(self, params, defaults, *args, **kwargs)
        optimizers.add(self)

    @functools.wraps(zero)
    def zero_grad(self: Any, set_to_none: bool = True) -> Any:
        if context.active:
            tell("zeroed", [it for group in self.param_groups for it in group["params"]], set_to_none)
        return zero(self, set_to_none=set_to_none)

    @functools.wraps(clear)
    def zero_module(self: Any, set_to_none: bool = True) -> Any:
        if context.active:
            tell("zeroed", list(self.parameters()), set_to_none)
        return clear(self, set_to_none=set_to_none)

    kind.__init__, kind.zero_grad, torch.nn.Module.zero_grad = __init__, zero_grad, zero_module
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: tell("stepped", optimizer))


def watch_moves(torch: Any) -> None:
    """Observes when modules are moved or converted."""
    apply = torch.nn.Module._apply

    @functools.wraps(apply)
    def _apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        if moving:
            return apply(self, *args, **kwargs)
        moving.append(self)
        try:
            if context.active:
                tell("moving", self)
            return apply(self, *args, **kwargs)
        finally:
            moving.clear()

    torch.nn.Module._apply = _apply


def watch_backward(torch: Any) -> None:
    """Observes backward passes, and calls that compute individual gradients."""
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not context.active:
            return backward(*args, **kwargs)
        asked[:] = [True]
        tell("backward")
        return context.guarded(backward, *args, **kwargs)

    torch.autograd.backward = called
    gradient = torch.autograd.grad

    @functools.wraps(gradient)
    def grad(*args: Any, **kwargs: Any) -> Any:
        if context.active:
            asked[:] = [True]
            tell("gradient")
        return gradient(*args, **kwargs)

    torch.autograd.grad = grad


def watch_clipping(torch: Any) -> None:
    """Observes functions that need all gradients, and loss scalers."""
    place = torch.nn.utils
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_", "get_total_norm"):
        original = getattr(place, name, None)
        if original is not None:
            call = watched(original, "clipped", name)
            for module in (place, place.clip_grad):
                if hasattr(module, name):
                    setattr(module, name, call)
    kind = torch.amp.GradScaler
    scale = kind.scale

    @functools.wraps(scale)
    def scaled(self: Any, outputs: Any) -> Any:
        if context.active and self.is_enabled():
            tell("scaled")
        return scale(self, outputs)

    kind.scale = scaled


def watched(original: Callable[..., Any], what: str, *more: Any) -> Callable[..., Any]:
    """The function, wrapped to call the listeners before it runs."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if context.active:
            tell(what, *more)
        return original(*args, **kwargs)

    return call


def watch_losses(torch: Any) -> None:
    """Observes loss functions."""
    place = torch.nn.functional
    for name in LOSSES:
        original = getattr(place, name, None)
        if original is None:
            continue

        def call(*args: Any, original: Callable[..., Any] = original, name: str = name, **kwargs: Any) -> Any:
            if listeners["loss"] and not torch.compiler.is_compiling():
                tell("loss", name, original, args, kwargs)
            return original(*args, **kwargs)

        setattr(place, name, functools.wraps(original)(call))

"""Tracks values that are known even though the device computes nothing: integers and masks that the host sent, and the
results of PyTorch's operators on them.

Such a tensor has a copy of its storage on the host (a shadow). The operators below are wrapped at PyTorch's CUDA
dispatch key: the original runs first and requests its memory as usual; if all of its inputs have shadows, the operator
also runs on the shadows, and its result gets a shadow. Reading a tensor with a shadow returns its true value, such as
the length of a batch or a padding mask. The result of any other operator has no shadow, so reading it is reading an
unknown value.

Values that depend on the assumption that experts get equal shares are marked (`even`, experts.py), and so are values
that are possible but not certain (`unsure`, bounds.py).

`explain` recognizes the frames of the wrappers by the names of this file and of experts.py, bounds.py and boxes.py (origin.rs).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from . import bounds, experts
from .shadow import ARITHMETIC, CHANGED, COMPARE, COUNTED, GATHER, LOGIC, MADE, MOST_FLOATS, REDUCE, Shadows

# The results that are assumed for these checks of unknown values.
FINITE = dict(isfinite=True, isnan=False, isinf=False, isposinf=False, isneginf=False)


class Known(Shadows):
    """The shadows of this process, and the wrappers that keep them up to date. `of_thread` contains what reads.py needs
    to know about the read that is running in a thread.
    """

    def __init__(self, torch: Any, of_thread: Any) -> None:
        super().__init__(torch)
        self.of_thread = of_thread
        self.library = torch.library.Library("aten", "IMPL")
        kinds = dict(
            [(name, self.functional) for name in " ".join((COMPARE, LOGIC, REDUCE, ARITHMETIC, GATHER, MADE)).split()]
            + [(name, self.changing) for name in CHANGED.split()]
            + [(name, self.counting) for name in COUNTED.split()]
            + [(name, functools.partial(experts.choosing, self, self.follow)) for name in experts.CHOSEN.split()]
            + [(name, functools.partial(bounds.random, self)) for name in bounds.RANDOM.split()]
            + [(name, self.scattering(name)) for name in experts.SCATTERED.split()]
        )
        kinds["_local_scalar_dense"] = self.reading
        kinds["_amp_foreach_non_finite_check_and_unscale_"] = self.judging
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, wrapped in kinds.items():
                self.wrap(name, wrapped)
        self.trust_finite()
        self.compare_known()

    def uncover(self) -> None:
        """Removes the wrappers."""
        for library in (self.library, *self.libraries):
            library._destroy()

    def wrap(self, name: str, wrapped: Callable[..., Any]) -> None:
        """Wraps an operator at PyTorch's CUDA key, if this PyTorch has the operator."""
        torch = self.torch
        try:
            kernel = torch.library.get_kernel(f"aten::{name}", "CUDA")
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        except (RuntimeError, AttributeError, ValueError):
            return  # this PyTorch does not have the operator
        self.library.impl(
            name, wrapped(operator, self.with_numbers(operator, kernel.call_boxed)), "CUDA", with_keyset=True
        )

    def with_numbers(self, operator: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a kernel so that it also accepts a number in place of a tensor. The number gets a dtype that does not
        change the dtype of the result.
        """
        torch = self.torch
        places = [at for at, it in enumerate(operator._schema.arguments) if str(it.type) == "Tensor"]
        if len(places) < 2:
            return call

        first, second, *others = places

        def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
            # The most common case comes first: most calls in a program are of this kind.
            if not others and second < len(args) and {type(args[first]), type(args[second])} == {torch.Tensor}:
                return call(keys, *args, **kwargs)
            numbers = [at for at in places if at < len(args) and not isinstance(args[at], torch.Tensor)]
            if not numbers:
                return call(keys, *args, **kwargs)
            given = list(args)
            with self.quiet():
                other = [given[at] for at in places if at < len(given) and isinstance(given[at], torch.Tensor)][-1]
                for at in numbers:
                    kind = torch.result_type(other, given[at])
                    given[at] = torch.scalar_tensor(given[at], dtype=kind, device="cpu")
            return call(keys, *given, **kwargs)

        return run

    def trust_finite(self) -> None:
        """Makes checks for finite values pass, as in successful training. Otherwise, the results of these checks would
        be read as zeros, that is, as `False`.

        A mask of non-finite values is assumed to be empty, but that is not certain: NaN may stand for missing data.
        """
        torch = self.torch

        def answered(original: Callable[..., Any], answer: bool) -> Callable[..., Any]:
            @functools.wraps(original)
            def judged(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if not torch.compiler.is_compiling() and type(result) is torch.Tensor and result.is_cuda:
                    with self.quiet():
                        if result.device.type != "meta" and self.is_small(result):
                            self.judge(original, args, result, answer)
                return result

            return judged

        for name, answer in FINITE.items():
            for place in (torch, torch.Tensor):
                setattr(place, name, answered(getattr(place, name), answer))

    def compare_known(self) -> None:
        """Makes `torch.equal` compare values that are known. The comparison reads a result that only the device has."""
        torch, original = self.torch, self.torch.equal

        @functools.wraps(original)
        def equal(*args: Any, **kwargs: Any) -> bool:
            is_plain = len(args) == 2 and not kwargs and all(type(it) is torch.Tensor for it in args)
            if is_plain and not torch.compiler.is_compiling():
                with self.quiet():
                    if any(it.layout is not torch.strided for it in args):
                        return bool(original(*args))
                    values = [self.shadow(it) for it in args]
                    is_sure = all(value is not None for value in values)
                    if is_sure and all(not it.is_cuda or self.unsure(it) is None for it in args):
                        args = tuple(values)
            return bool(original(*args, **kwargs))

        torch.equal = torch.Tensor.equal = equal

    def judge(self, original: Callable[..., Any], args: tuple[Any, ...], result: Any, answer: bool) -> None:
        """Keeps the result of a check for finite values: the computed result if the values are known, otherwise
        `answer`.
        """
        value = self.shadow(args[0]) if args and isinstance(args[0], self.torch.Tensor) else None
        if value is not None and self.unsure(args[0]) is None:
            with self.torch._C._AutoDispatchBelowAutograd():
                self.keep(result, original(value))
        else:
            self.keep(result, self.torch.full((), answer, dtype=self.torch.bool, device="cpu"), unsure=not answer)

    # The kinds of wrappers.

    def functional(self, operator: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps an operator that returns new tensors."""
        name = operator._schema.name
        out = "out" if operator._overloadname.endswith("out") else None
        is_factory = name in ("aten::arange", "aten::linspace")
        is_bounded = bounds.is_bounded(operator)
        tensor, modes = self.torch.Tensor, self.torch._C._len_torch_function_stack
        # Whether a floating-point result is unknown if its inputs are unknown.
        is_plain = out is None and not is_factory and (not is_bounded or name in bounds.OF_INTEGERS)

        def dispatched(keys: Any, *args: Any, **kwargs: Any) -> Any:
            result = call(keys, *args, **kwargs)
            # Most results are too large for a shadow, or computed from unknown values. Skip these checks if the program
            # has an active function mode, because it would see these calls.
            if type(result) is tensor and not modes() and result.is_floating_point():
                if result.numel() > MOST_FLOATS or (is_plain and self.is_unknown(args[0])):
                    return result
            if self.shadows or is_factory or is_bounded:
                with self.quiet():
                    self.follow(operator, args, kwargs, result, out, is_factory)
            return result

        return dispatched

    def is_unknown(self, argument: Any) -> bool:
        """Whether this argument, or the first element of this list, is a tensor whose values are certainly unknown."""
        first = argument[0] if type(argument) in (list, tuple) and argument else argument
        if type(first) is not self.torch.Tensor or not first.is_cuda or first.is_sparse:
            return False
        return self.address(first) not in self.shadows

    def follow(
        self,
        operator: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        out: str | None,
        is_factory: bool,
    ) -> None:
        """Runs the operator on the shadows as well, and keeps the result there."""
        try:
            tensors = result if isinstance(result, (list, tuple)) else (result,)
            if not all(self.is_small(it) for it in tensors if isinstance(it, self.torch.Tensor)):
                return
            rest = {name: it for name, it in kwargs.items() if name != out}
            if is_factory and result.is_floating_point():
                return
            found = self.on_host(args, rest)
            if found is None or not (found[2] or is_factory):
                if out:
                    self.drop(result)
                elif bounds.is_bounded(operator):
                    bounds.of_result(self, operator, args, kwargs, result)
                return
            known_args, rest, _, even, unsure = found
            if out:
                rest["out"] = self.torch.empty(result.size(), dtype=result.dtype, device="cpu")
            if operator._schema.name == "aten::histc":
                known_args[0] = known_args[0].float()
            values = self.run_on_host(operator, known_args, rest)
            values = values if isinstance(values, (list, tuple)) else (values,)
            for tensor, value in zip(tensors, values):
                self.keep(tensor, value, changed=bool(out), even=even, unsure=unsure)
        except Exception as why:
            self.failed(operator, why)

    def changing(self, operator: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps an operator that changes its first argument."""
        is_copy = operator._schema.name == "aten::copy_"
        is_fill = operator._schema.name == "aten::fill_"
        is_bounded = bounds.is_bounded(operator)

        def dispatched(keys: Any, *args: Any, **kwargs: Any) -> Any:
            tensor = args[0]
            # Small parameters and gradients are often set to zero; nothing else is known about them.
            is_filled = is_fill and len(args) > 1 and bool(args[1]) and tensor.numel() <= bounds.MOST_FLOATS
            if is_copy and not tensor.is_cuda:
                return self.copied_back(call, keys, args, kwargs)
            found = None
            with self.quiet():
                if self.is_small(tensor) and (
                    is_bounded or is_filled or not tensor.is_floating_point() or self.shadows
                ):
                    try:
                        found = self.changed(operator, args, kwargs)
                    except Exception as why:
                        self.failed(operator, why)
            result = call(keys, *args, **kwargs)
            with self.quiet():
                if found is not None:
                    self.keep(tensor, found[0], changed=True, even=found[1], unsure=found[2])
                else:
                    self.drop(tensor)
            return result

        return dispatched

    def changed(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any] | None:
        """The values after the operator, whether they depend on the assumption of equal shares, and which values are
        unsure.
        """
        found = self.certainly_changed(operator, args, kwargs)
        if found is not None:
            return found
        bounded = bounds.of_change(self, operator, args, kwargs)
        return bounded and (bounded[0], False, bounded[1])

    def certainly_changed(
        self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any, Any] | None:
        """Returns the same as `changed`, but None unless all arguments are known."""
        torch, tensor, name = self.torch, args[0], operator._schema.name
        if name == "aten::copy_":
            source = self.shadow(args[1])
            if source is None:
                return None
            even = args[1].is_cuda and self.is_even(args[1])
            unsure = args[1].is_cuda and self.unsure(args[1])
            return source.to(tensor.dtype).expand(tensor.size()).clone(), even, False if unsure is None else unsure
        if name in ("aten::fill_", "aten::zero_"):
            return (
                torch.full(tensor.size(), args[1] if len(args) > 1 else 0, dtype=tensor.dtype, device="cpu"),
                False,
                False,
            )
        found = self.on_host(args, kwargs)
        if found is None:
            return None
        known_args, rest, _, even, unsure = found
        known_args[0] = known_args[0].clone()
        return self.run_on_host(operator, known_args, rest), even, unsure

    def copied_back(self, call: Callable[..., Any], keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a copy to the host, and writes the known values into it."""
        source = args[1]
        with self.quiet():
            value, unsure = self.shadow(source), self.unsure(source) if source.is_cuda else None
        result = self.watched(call, keys, args, kwargs, source, value, unsure)
        if value is not None and source.is_cuda and not (unsure is not None and self.of_thread.assumed):
            with self.quiet(), self.torch._C._AutoDispatchBelowAutograd():
                if unsure is not None and bool((value == 0).any()):
                    value = self.torch.where(value == 0, args[0].to(value.dtype), value)
                args[0].copy_(value)
        return result

    def reading(self, operator: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the operator that returns a number to Python."""

        def dispatched(keys: Any, tensor: Any) -> Any:
            with self.quiet():
                value, unsure = self.shadow(tensor), self.unsure(tensor)
            result = self.watched(call, keys, (tensor,), {}, tensor, value, unsure)
            if value is None or (unsure is not None and self.of_thread.assumed):
                return result
            return value.item() or (result if unsure is not None else value.item())

        return dispatched

    def judging(self, operator: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps GradScaler's check of gradients. It is unknown whether any gradient is infinite, so a scaler may skip
        steps.
        """

        def dispatched(keys: Any, grads: Any, found: Any, *args: Any) -> Any:
            result = call(keys, grads, found, *args)
            self.drop(found)
            return result

        return dispatched

    def watched(
        self,
        call: Callable[..., Any],
        keys: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensor: Any,
        value: Any,
        unsure: Any,
    ) -> Any:
        """Runs an operator that reads from the device. If the value is known, the read is reported only if the value
        depends on the assumption of equal shares or is unsure.
        """
        state, is_known = self.of_thread, value is not None and unsure is None
        state.assumed = False
        before = {name: getattr(state, name, None) for name in ("tensor", "known", "even", "bounded", "bound")}
        even = bool(is_known and self.is_even(tensor)) if tensor.is_cuda else False
        is_ours = getattr(state, "unread", False)
        state.tensor, state.known, state.even = tensor, is_ours or (is_known and not even), even
        state.bounded = unsure is not None and bool((value != 0).all())
        state.bound = None
        if unsure is not None and bool((value != 0).any()):
            state.bound = value.min().item(), value.max().item()
        try:
            return call(keys, *args, **kwargs)
        finally:
            for name, value in before.items():
                setattr(state, name, value)

    def scattering(self, name: str) -> Any:
        """The wrapper of an operator that scatters."""
        wrapped = self.changing if name.startswith("scatter_.") else self.functional
        return functools.partial(experts.scattering(wrapped), self)

    def counting(self, operator: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps an operator that reads from the device how many results it has. It gets the number that the host
        computed.
        """
        name = operator._schema.name.removeprefix("aten::")

        def dispatched(keys: Any, *args: Any, **kwargs: Any) -> Any:
            state, selection = self.of_thread, getattr(self.of_thread, "selection", None)
            values, even, unsure = None, False, False
            if selection is not None and name == "nonzero":
                values, unsure = self.everything(args[0])[: selection.number], not selection.is_sure
            elif self.shadows:
                try:
                    with self.quiet():
                        found = self.on_host(args, kwargs)
                        if found is not None:
                            values, even, unsure = self.run_on_host(operator, found[0], found[1]), *found[3:]
                except Exception as why:
                    self.failed(operator, why)
            all_values = values if isinstance(values, (list, tuple)) else (values,)
            names = ("pending", "operator", "even", "bounded", "bound", "tensor", "known", "assumed")
            before = {it: getattr(state, it, None) for it in names}
            dim = args[1] if name == "unique_dim" else 0
            state.pending = None if values is None else all_values[0].size(dim)
            state.operator = name if selection is None else selection.operator
            state.even, state.tensor, state.known, state.assumed = even, args[0], False, False
            state.bounded, state.bound = unsure, (state.pending,) * 2 if unsure and state.pending else None
            try:
                result = call(keys, *args, **kwargs)
                if name == "nonzero" and (values is None or unsure) and state.assumed and selection is None:
                    # The operator is assumed to find the first elements of the tensor, as many as it counted.
                    with self.quiet():
                        is_small = self.is_small(result) and self.is_small(args[0], even=True)
                        all_values = (self.everything(args[0])[: result.size(0)] if is_small else None,)
                        values, unsure = all_values[0], True
            finally:
                for it, value in before.items():
                    setattr(state, it, value)
            if values is not None:
                results = result if isinstance(result, (list, tuple)) else (result,)
                with self.quiet():
                    for tensor, value in zip(results, all_values):
                        if tensor.size() == value.size() and tensor.numel():
                            self.keep(tensor, value, even=even, unsure=unsure)
            return result

        return dispatched

    def everything(self, tensor: Any) -> Any:
        """The indices of all elements, on the host, as `nonzero` returns them."""
        return self.torch.ones(tensor.size(), dtype=self.torch.bool, device="cpu").nonzero()

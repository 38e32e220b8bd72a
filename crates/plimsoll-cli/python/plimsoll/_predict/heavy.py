"""Decides whether statements that did not run may matter for memory, because they run a model or an optimizer, create
or keep tensors, or change a size. Printing, logging and saving do not matter.

Names are looked up in a frame. The source of the program's own functions is read as well; nothing is called.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Mapping
from typing import Any

from ..frames import is_library
from .names import HOLDS, METADATA, READERS, SHOWS
from .source import Source, last_name, looked_up, own_nodes, scope_of

DEPTH = 4  # how many nested calls to the program's functions are followed
# Functions and methods of PyTorch that need almost no memory.
LIGHT = set(
    "save load state_dict load_state_dict train eval zero_grad no_grad enable_grad inference_mode autocast set_grad_enabled"
    " manual_seed seed synchronize empty_cache memory_allocated max_memory_allocated memory_reserved memory_stats memory_summary"
    " reset_peak_memory_stats max_memory_reserved is_available get_rank get_world_size barrier is_initialized device parameters"
    " named_parameters modules named_modules children is_tensor is_grad_enabled perf_counter get_last_lr set_epoch export_stacks"
    " buffers named_buffers register_buffer step_lr isEnabled record update_bn index count sum_to_size where_saved"
    " destroy_process_group _dump_snapshot _record_memory_history".split()
)


class Names:
    """The names that are visible in a function of the program that is not running, so it has no frame."""

    def __init__(self, variables: Mapping[str, Any], module: dict[str, Any], code: types.CodeType) -> None:
        self.f_locals, self.f_globals, self.f_code = types.MappingProxyType(dict(variables)), module, code


class Heavy:
    """Judges a set of statements. `names` is a frame, or `Names`."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.known: set[types.CodeType] = set()

    def are(self, statements: list[Any], names: Any, depth: int = 0) -> bool:
        """Whether any of these statements may matter for memory."""
        return any(self.is_one(node, names, depth) for it in statements for node in (it, *own_nodes(it)))

    def is_one(self, node: Any, names: Any, depth: int) -> bool:
        """Whether a node of the syntax tree may matter for memory."""
        if isinstance(node, ast.Call):
            return self.calls(node, names, depth)
        if isinstance(node, ast.Assign):
            return any(self.keeps(it, node.value, names) for it in node.targets)
        if isinstance(node, ast.AugAssign):
            return self.keeps(node.target, ast.BinOp(node.target, node.op, node.value), names)
        return False

    def calls(self, node: ast.Call, names: Any, depth: int) -> bool:
        """Whether a call may matter for memory."""
        torch, name = self.torch, last_name(node.func)
        if name == "deepcopy":
            return any(
                isinstance(looked_up(it, names), torch.nn.Module) or self.has_tensor(it, names) for it in node.args
            )
        if name in HOLDS:
            return any(self.has_tensor(it, names) for it in node.args)
        if name in SHOWS or name in READERS or name in METADATA:
            return False
        target = looked_up(node.func, names)
        function = undecorated(getattr(target, "__func__", target))
        is_own = isinstance(function, types.FunctionType) and not is_library(function.__code__.co_filename)
        if name in LIGHT and not is_own:
            return False
        if isinstance(target, torch.nn.Module) or (isinstance(target, type) and self.is_maker(target)):
            return True
        if is_own:
            return depth < DEPTH and self.is_function(function, getattr(target, "__self__", None), depth)
        if target is not None:
            module = getattr(function, "__module__", None) or ""
            if module == "subprocess":
                return True  # a separate process may also use the GPU
            if module.startswith(
                ("torch.optim.lr_scheduler", "torch.utils.tensorboard", "torch.distributed.checkpoint")
            ):
                return False
            return module.split(".")[0] in ("torch", "transformers", "torchvision", "peft", "diffusers") or (
                type(function).__name__ in ("builtin_function_or_method", "method_descriptor")
                and hasattr(torch, name)
                and not module
            )
        # A method call on an object of unknown type.
        return isinstance(node.func, ast.Attribute) and (name == "step" or hasattr(torch.Tensor, name))

    def is_maker(self, kind: type) -> bool:
        """Whether a class is a model, an optimizer, a loader or a tensor."""
        torch = self.torch
        return issubclass(kind, (torch.nn.Module, torch.optim.Optimizer, torch.utils.data.DataLoader, torch.Tensor))

    def is_function(self, function: types.FunctionType, of: Any, depth: int) -> bool:
        """Whether the statements of one of the program's functions may matter for memory."""
        code = function.__code__
        if code in self.known:
            return False
        self.known.add(code)
        source = Source.of(code, function.__globals__)
        scope: Any = scope_of(source.tree, code) if source else None
        if scope is None:
            return False
        variables = {code.co_varnames[0]: of} if of is not None and code.co_argcount else {}
        cells = zip(code.co_freevars, function.__closure__ or ())
        variables.update({name: cell.cell_contents for name, cell in cells if cell != types.CellType()})
        statements = scope.body if isinstance(scope.body, list) else [scope.body]
        return self.are(statements, Names(variables, function.__globals__, code), depth + 1)

    def has_tensor(self, node: Any, names: Any) -> bool:
        """Whether an expression may be, or contain, a tensor of the device."""
        if isinstance(node, ast.Call) and last_name(node.func) in READERS | SHOWS | METADATA:
            return False
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and hasattr(self.torch.Tensor, node.func.attr)
        ):
            return True
        if isinstance(node, (ast.Name, ast.Attribute)):
            value = looked_up(node, names)
            return isinstance(value, self.torch.Tensor) and value.is_cuda
        return any(self.has_tensor(it, names) for it in ast.iter_child_nodes(node))

    def keeps(self, target: Any, value: Any, names: Any) -> bool:
        """Whether an assignment keeps a tensor, makes a parameter require a gradient, or changes a size."""
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
            return not (isinstance(value, ast.Constant) and not value.value)
        before = None if isinstance(target, ast.Subscript) else looked_up(target, names)
        if type(before) is int:
            return before > 1 and grows(value, before)
        if isinstance(target, (ast.Subscript, ast.Attribute)) or isinstance(before, list):
            return self.has_tensor(value, names)
        return False


def undecorated(function: Any) -> Any:
    """The program's function inside decorators such as `torch.no_grad()`."""
    while isinstance(function, types.FunctionType) and is_library(function.__code__.co_filename):
        inner = function.__dict__.get("__wrapped__")
        if not isinstance(inner, types.FunctionType):
            return function
        function = inner
    return function


def grows(value: Any, before: int) -> bool:
    """Whether assigning this expression to a variable that is `before` may change a size. A counter that is incremented
    by one is not a size.
    """
    if isinstance(value, ast.Constant):
        return type(value.value) is int and value.value > before
    is_counter = (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, (ast.Add, ast.Sub))
        and any(isinstance(it, ast.Constant) and it.value == 1 for it in (value.left, value.right))
    )
    return isinstance(value, ast.BinOp) and not is_counter

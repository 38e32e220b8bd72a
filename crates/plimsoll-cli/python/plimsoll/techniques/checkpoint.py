# Checkpoints blocks of the model: their activations are computed again in the backward pass. The same numbers.
#
# Blocks are marked on the instance and called through a patch of their class, because a closure on an instance would
# break copies of the model. Buffers of normalization layers are not updated by the second computation.

import threading

import torch
from torch.utils.checkpoint import checkpoint
from torch.utils._pytree import tree_flatten, tree_unflatten

from . import blocks, context, each, roots

MARK = "_plimsoll_checkpoint"
NORMS = torch.nn.modules.batchnorm._NormBase


class Again:
    # The second computation of a block: its normalization layers leave their statistics as they are.
    def __init__(self, block):
        self.norms = [it for it in block.modules() if isinstance(it, NORMS) and it.track_running_stats and it.training]

    def __enter__(self):
        self.before = [(it.momentum, it.num_batches_tracked) for it in self.norms]
        for norm in self.norms:
            norm.momentum = 0.0
            norm._buffers["num_batches_tracked"] = None

    def __exit__(self, *failure):
        for norm, (momentum, tracked) in zip(self.norms, self.before):
            norm.momentum = momentum
            norm._buffers["num_batches_tracked"] = tracked


class Nothing:
    def __enter__(self):
        pass

    def __exit__(self, *failure):
        pass


class Checkpoint:
    name = "checkpoint"

    def __init__(self, value):
        self.most = value  # the number of blocks of each model; None: all
        self.of = self.count = 0
        self.lines = []  # the class of a model, and the code for it
        self.takes = False  # whether a block changes a list that it is given, which PyTorch's own checkpointing does not allow
        self.patched = set()
        self.running = threading.local()

    def first(self, root):
        self.check(root)
        found = blocks.find(root)
        self.mark(root, found if self.most is None else found[: self.most], len(found))

    def check(self, root):
        why = context.wrapped_class(root)
        if why is None and any(getattr(it, "gradient_checkpointing", False) for it in root.modules()):
            why = "the program checkpoints its model itself"
        if why is not None:
            context.refuse(self.name, why)

    def mark(self, root, chosen, of):
        # Checkpoints these blocks: [(path, block)].
        for path, block in chosen:
            if isinstance(block, torch.jit.ScriptModule):
                context.refuse(self.name, f"{path} is compiled by TorchScript")
        for path, block in chosen:
            block.__dict__[MARK] = path
            self.patch(type(block))
        self.of += of
        self.count += len(chosen)
        if chosen:
            self.lines.append((type(root).__name__, lines(root, [path for path, _ in chosen], len(chosen) == of)))

    def around(self, root, following, args, kwargs):
        if not self.count:
            context.refuse(self.name, "the model has no repeated blocks")
        without_cache(root, kwargs)
        return following(*args, **kwargs)

    def patch(self, kind):
        if kind in self.patched:
            return
        self.patched.add(kind)
        original = kind.forward
        technique = self

        def forward(self, *args, **kwargs):
            is_marked = MARK in self.__dict__ and type(self).forward is forward
            if not is_marked or not self.training or not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            return technique.call(self, original, args, kwargs)

        forward.__wrapped__ = original
        kind.forward = forward

    def call(self, block, original, args, kwargs):
        leaves, structure = tree_flatten((args, kwargs))

        first = [(args, kwargs)]

        def run(*leaves):
            # A block may take things out of a list that it is given. So the program's own lists are for the first computation, and
            # the second gets lists as they were before it.
            args, kwargs = first.pop() if first else tree_unflatten(leaves, structure)
            return original(block, *args, **kwargs)

        before = versions(block)
        result = checkpoint(run, *leaves, use_reentrant=False, context_fn=lambda: (Nothing(), Again(block)))
        if not self.takes and tree_flatten((args, kwargs))[1] != structure:
            self.takes = True
        for name, buffer, version in before:
            now = block.get_buffer(name)
            if now is not buffer or now._version != version:
                context.refuse(self.name, f"{block.__dict__[MARK]} changes its buffer {name} when it is called")
        return result

    def report(self):
        detail = f"{self.count} of {self.of} blocks" if self.of else context.untrained()
        option = "" if self.most is None else f", first={self.most}"
        call = f"plimsoll.checkpoint_blocks(model{option})"
        own = [context.IMPORT, *each.model(call, [kind for kind, _ in self.lines], roots.kinds)]
        uses_own = self.takes or len(self.lines) > each.MOST
        return dict(applied=bool(self.count), detail=detail, lines=own if uses_own else self.native(), blocks=self.of)

    def native(self):
        # PyTorch's or the library's own calls, for each model.
        named = len(roots.kinds) > 1
        return [line for kind, lines in self.lines for line in ([f"# model: {kind}"] if named else []) + lines]


def versions(block):
    # The buffers that a second computation would change.
    own = {id(it): it for it in block.modules() if isinstance(it, NORMS)}
    norms = {id(buffer) for it in own.values() for buffer in it.buffers(recurse=False)}
    return [(name, it, it._version) for name, it in block.named_buffers() if id(it) not in norms and not it.is_inference()]


def without_cache(root, kwargs):
    # Models of transformers that generate keep a cache, which a second computation would fill twice.
    for module in root.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False) is True:
            if module is root:
                kwargs["use_cache"] = False
            config.use_cache = False


def supports(module):
    return getattr(module, "supports_gradient_checkpointing", True)


def lines(root, paths, is_all):
    # The code to add: the library's own call where there is one.
    if is_all:
        for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):
            path = next((path for path, it in root.named_modules() if hasattr(type(it), name) and supports(it)), None)
            if path is not None:
                model = "model" if hasattr(root, name) else blocks.attribute(path)
                return [f"{model}.{name}({{'use_reentrant': False}})", f"{model}.config.use_cache = False"]
        if hasattr(type(root), "set_grad_checkpointing"):
            return ["model.set_grad_checkpointing()"]
    place = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
    return [
        f"from {place} import apply_activation_checkpointing",
        f"blocks = set({blocks.expression(root, paths)})",
        "apply_activation_checkpointing(model, check_fn=lambda module: module in blocks)",
    ]

"""Starts `plimsoll predict` in a Python process: registers what to do when the program imports certain modules."""

from __future__ import annotations

import os
import sys

from .._inject import imports
from . import network, renames, settings, space, uncopied

TYPE_CHECKING = False  # importing `typing` would delay every process by milliseconds
if TYPE_CHECKING:
    from typing import Any

    from .watch import Watch

WATCH: list[Watch] = []  # the watcher of this process, once the process has imported PyTorch


def begin() -> None:
    """Waits for the program's imports. Without a folder for reports, nothing happens in this process."""
    if not os.path.isdir(settings.FOLDER):
        return
    renames.install()
    space.install()
    uncopied.install()
    then = {
        "torch": watch,
        "multiprocessing.process": note_status,
        "transformers.generation.utils": end_generation,
        "transformers.trainer_callback": trainer,
        "safetensors.torch": safetensors,
        "transformers.modeling_utils": pretrained,
        "torch.distributed.checkpoint.state_dict": state_dicts,
        "torchvision": torchvision,
        "torch._inductor.runtime.cache_dir_utils": keep_inductor,
        "torch._inductor.compile_worker.subproc_pool": keep_workers,
        "triton.knobs": keep_triton,
    }
    then.update(network.HOOKS)
    imports.hook(then)


def watch(torch: Any) -> None:
    """Called when PyTorch is imported: watches this process."""
    from . import host

    with host.ours():
        from .watch import Watch

        WATCH.append(Watch(torch))


def note_status(module: Any) -> None:
    """Records the exit status of a worker of multiprocessing, which its parent may ignore."""
    bootstrap = module.BaseProcess._bootstrap

    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        # This prints the exception that ended the worker.
        status = bootstrap(self, *args, **kwargs)
        if WATCH and isinstance(status, int):
            WATCH[0].status = status
        return status

    module.BaseProcess._bootstrap = _bootstrap


def end_generation(module: Any) -> None:
    """Called when transformers is imported: text is generated up to its maximum length."""
    from . import patches

    patches.end_generation(module)


def trainer(module: Any) -> None:
    """Makes transformers' Trainer evaluate once after the steps, and stop."""
    from . import trainers

    trainers.trainer(module, WATCH[0].finish_up, WATCH[0].growth)


def safetensors(module: Any) -> None:
    """Makes saved models take no disk space."""
    from . import host, sparse

    sparse.safetensors(module)
    host.safetensors(module)


def pretrained(module: Any) -> None:
    """Makes `from_pretrained` of transformers the owner of the host memory that it requests."""
    from . import host

    host.pretrained(module)


def state_dicts(module: Any) -> None:
    """Makes the functions of torch.distributed.checkpoint.state_dict the owners of their host memory."""
    from . import host

    host.state_dicts(module)


def torchvision(module: Any) -> None:
    """Called when torchvision's operators are registered."""
    from . import boxes

    known = WATCH[0].known if WATCH else None
    if known is not None:
        boxes.install(known, known.of_thread)


def keep_inductor(module: Any) -> None:
    """Makes Inductor write to the run's private caches, even if the program itself names other caches."""
    place = os.path.join(os.environ["PLIMSOLL_PREDICT_CACHES"], "inductor")

    def cache_dir() -> str:
        os.makedirs(place, exist_ok=True)
        return place

    module.cache_dir = module.default_cache_dir = cache_dir


def keep_workers(module: Any) -> None:
    """Makes Inductor's compile workers run our code too. They get `sys.path` in place of PYTHONPATH, and our folder is
    not in it, so they would write to the user's caches.
    """
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    original, name = module.SubprocPool.__init__, "TORCH_CUSTOM_PYTHONPATH"

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        users = os.environ.get(name)
        os.environ[name] = os.pathsep.join([here, *(sys.path if users is None else [users])])
        try:
            original(self, *args, **kwargs)
        finally:
            if users is None:
                del os.environ[name]
            else:
                os.environ[name] = users

    module.SubprocPool.__init__ = start


def keep_triton(module: Any) -> None:
    """Makes Triton also write to the run's private caches."""
    module.cache.dir = os.path.join(os.environ["PLIMSOLL_PREDICT_CACHES"], "triton")

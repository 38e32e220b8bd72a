"""Records the activity of torch.compile in this process."""

from __future__ import annotations

import sys
from typing import Any

from .. import protocol


def compiles() -> bool:
    """Whether torch.compile compiled anything."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters and counters["stats"]["unique_graphs"])


def compile_caches() -> protocol.CompileCaches:
    """The kinds of results that torch.compile would cache for this process: AOTAutograd's graphs, Inductor's graphs (if
    all of them can be cached), and the timings of kernels.
    """
    config, functorch = (sys.modules.get(f"torch.{name}.config") for name in ("_inductor", "_functorch"))
    if config is None or functorch is None or getattr(config, "force_disable_caches", False):
        return protocol.CompileCaches(autograd=False, graphs=False, timings=False)
    counters = sys.modules["torch._dynamo.utils"].counters

    def caches(place: Any, option: str, bypassed: int) -> bool:
        return bool(getattr(place, option, True)) and not bypassed

    return protocol.CompileCaches(
        autograd=caches(functorch, "enable_autograd_cache", counters["aot_autograd"]["autograd_cache_bypass"]),
        graphs=caches(config, "fx_graph_cache", counters["inductor"]["fxgraph_cache_bypass"]),
        timings=caches(config, "autotune_local_cache", 0),
    )

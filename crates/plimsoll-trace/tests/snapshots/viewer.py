"""Opens snapshots that Plimsoll wrote with PyTorch's own tool, with every subcommand that needs no network.

    python viewer.py FILE.pickle ...

Then follows each trace backwards from the segments, as PyTorch's viewer does, and counts the inconsistencies. Also
checks for data on which the viewer in the browser fails.
"""

import collections
import contextlib
import io
import pickle
import sys

from torch.cuda import _memory_viz as viz


def misfits(snapshot):
    """Counts allocations of blocks that are not live, and frees of blocks that are, over all devices."""
    wrong = collections.Counter()
    for device, trace in enumerate(snapshot["device_traces"]):
        live = {
            block.get("address")
            for segment in snapshot["segments"]
            if segment["device"] == device
            for block in segment["blocks"]
            if block["state"] != "inactive"
        }
        for event in reversed(trace):
            if event["action"] == "alloc":
                wrong["alloc of what is not live after it"] += event["addr"] not in live
                live.discard(event["addr"])
            elif event["action"] == "free_completed":
                wrong["free of what is live after it"] += event["addr"] in live
                live.add(event["addr"])
    return dict(wrong)


def refused_in_browser(snapshot):
    """Whether MemoryViz.js would fail: categories but no `unknown`, or integers beyond 8 bytes."""
    events = [event for trace in snapshot["device_traces"] for event in trace]
    categories = {event["category"] for event in events if "category" in event}
    numbers = [event[key] for event in events for key in ("addr", "size", "device_free", "time_us") if key in event]
    return bool(categories) and "unknown" not in categories or any(number >= 1 << 63 for number in numbers)


def main(paths):
    for path in paths:
        with open(path, "rb") as file:
            snapshot = pickle.load(file)
        with contextlib.redirect_stdout(io.StringIO()):
            stats = viz.segsum(snapshot)
            trace = viz.trace(snapshot)
        flames = [flame(snapshot, format_flamegraph=str) for flame in (viz.memory, viz.segments)]
        plots = [viz.trace_plot(snapshot), viz.segment_plot(snapshot)]
        lengths = [len(text) for text in (stats, trace, *flames, *plots)]
        assert all(lengths[2:]), lengths
        assert not refused_in_browser(snapshot)
        print(f"{path}: opened, {lengths} characters; {misfits(snapshot)}")


if __name__ == "__main__":
    main(sys.argv[1:])

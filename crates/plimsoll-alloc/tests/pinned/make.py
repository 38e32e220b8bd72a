"""Runs programs on PyTorch's pinned host allocator, and writes the results to `oracle.json`.

Run it with the oracle's Python and its stand-in device preloaded (shared/tools/oracle, `fk.sh python make.py`). Each
scenario runs in its own process, since the options and the first reserve are per process. For each step it records the
place of each block (how many bytes into the memory of the nth pin call), the calls to the device in order, and those of
the 28 statistics that changed. `streams.c` in this folder makes streams that lag behind, and a clock that only pinning
advances; it is compiled into a temporary folder and also preloaded.

PyTorch keeps a block's streams in a hash set and records their events in the set's order. This script reads that order
and sorts the uses in the recorded program by it. So the rule "events are recorded in the order of first use" holds for
the recorded program.
"""

import concurrent.futures
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile

from scenarios import SCENARIOS

HERE = os.path.dirname(os.path.abspath(__file__))
KIB, MIB = 1024, 1024 * 1024


def random_ops(rng):
    sizes = [1, 9, 40, 64, 65, 1000, 4096, 70_000, 130_000, MIB, MIB + 5, 3 * MIB, 3 * MIB + 9, 5 * MIB]
    ops, live = [], []
    while len(ops) < 88:
        roll = rng.random()
        if roll < 0.36:
            live.append(f"b{len(ops)}")
            ops.append(["alloc", live[-1], rng.choice(sizes), None])
        elif roll < 0.56 and live:
            ops += [["use", rng.choice(live), rng.randrange(4)] for _ in range(rng.choice([1, 1, 2]))]
        elif roll < 0.84 and live:
            ops.append(["free", live.pop(rng.randrange(len(live)))])
        elif roll < 0.94:
            ops.append(["finish", rng.randrange(4), rng.choice([1, 1, 2, 9])])
        elif roll < 0.97:
            ops.append(["empty"])
        else:
            ops.append([rng.choice(["reset_peak", "reset_accumulated"])])
    return ops


def with_graphs(rng, ops):
    """Returns the steps with a capture that begins or ends, or a graph that is destroyed, before every ninth step."""
    out, graphs, capture = [], [], None
    for nth, op in enumerate(ops):
        if nth % 9 == 0:
            if capture:
                out.append(["end", capture[0]])
                graphs.append(capture[0])
                capture = None
            elif graphs and rng.random() < 0.45:
                out.append(["drop", graphs.pop(rng.randrange(len(graphs)))])
            else:
                capture = (f"g{nth}", rng.randrange(1, 4))
                out.append(["begin", *capture, rng.choice([None, *graphs])])
        inside = op[0] == "alloc" and capture and rng.random() < 0.8
        out.append(op[:3] + [capture[1]] if inside else op)
    return out


for seed, conf in enumerate(
    [
        "",
        "",
        "pinned_max_round_threshold_mb:1",
        "pinned_max_cached_size_mb:1",
        "pinned_max_round_threshold_mb:1,pinned_max_cached_size_mb:3,pinned_reserve_segment_size_mb:2",
    ]
):
    SCENARIOS[f"random {seed}"] = (conf, random_ops(random.Random(seed)))
for seed, conf in [(100, ""), (101, ""), (102, "pinned_max_cached_size_mb:1")]:
    rng = random.Random(seed)
    SCENARIOS[f"random graphs {seed}"] = (conf, with_graphs(rng, random_ops(rng)))


def run(name):
    """Runs one scenario in this process. Returns the steps with PyTorch's results."""
    shim = ctypes.CDLL(os.environ["PINNED_SHIM"])
    shim.take_log.restype = shim.place.restype = ctypes.c_char_p
    shim.place.argtypes, shim.finish.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int]
    import torch

    device = torch.zeros(16, device="cuda", dtype=torch.uint8)
    streams = [torch.cuda.default_stream()] + [torch.cuda.Stream() for _ in range(3)]
    number = {stream.cuda_stream: nth for nth, stream in enumerate(streams)}
    blocks, graphs, uses, steps = {}, {}, {}, []
    before = dict.fromkeys(torch.cuda.host_memory_stats(), 0)
    shim.take_log()

    def calls():
        out = []
        for line in shim.take_log().decode().splitlines():
            words = line.split()
            if words[0] == "record":
                words[1] = str(number[int(words[1], 16) if words[1] != "(nil)" else 0])
            out.append(" ".join(words))
        return out

    def act(what, *args):
        if what == "alloc":
            name, size, stream = args
            with torch.cuda.stream(streams[stream or 0]):
                try:
                    blocks[name] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
                except RuntimeError:
                    return "refused"
            return shim.place(blocks[name].data_ptr()).decode()
        if what == "use":
            with torch.cuda.stream(streams[args[1]]):
                device[:1].copy_(blocks[args[0]][:1], non_blocking=True)
        elif what == "free":
            del blocks[args[0]]
        elif what == "finish":
            shim.finish(streams[args[0]].cuda_stream, args[1])
        elif what == "empty":
            torch._C._host_emptyCache()
        elif what == "reset_peak":
            torch.cuda.reset_peak_host_memory_stats()
        elif what == "reset_accumulated":
            torch.cuda.reset_accumulated_host_memory_stats()
        elif what == "set":
            torch._C._accelerator_setAllocatorSettings(args[0])
        elif what == "fail":
            shim.set_failures(args[1] if args[0] == "pin" else 0, args[1] if args[0] == "record" else 0)
        elif what == "begin":
            graph, stream, like = args
            graphs[graph] = torch.cuda.CUDAGraph()
            with torch.cuda.stream(streams[stream]):
                graphs[graph].capture_begin(pool=graphs[like].pool() if like else None, capture_error_mode="relaxed")
            graphs[graph].stream = streams[stream]
        elif what == "end":
            with torch.cuda.stream(graphs[args[0]].stream):
                graphs[args[0]].capture_end()
        elif what == "drop":
            graphs.pop(args[0]).reset()

    for op in SCENARIOS[name][1]:
        step = {"op": list(op)}
        at = act(*op)
        if at is not None:
            step["at"] = at
        step["calls"] = calls()
        if op[0] == "use":
            uses.setdefault(op[1], []).append(step)
        if op[0] == "free":
            of_block = uses.pop(op[1], [])
            order = [int(call.split()[1]) for call in step["calls"] if call.startswith("record")]
            streams_used = sorted(
                (use["op"][2] for use in of_block), key=lambda s: order.index(s) if s in order else len(order)
            )
            for use, stream in zip(of_block, streams_used):
                use["op"][2] = stream
        after = torch.cuda.host_memory_stats()
        step["stats"] = {key: value for key, value in after.items() if value != before[key]}
        before = after
        steps.append(step)
    return {"name": name, "conf": SCENARIOS[name][0], "steps": steps}


def compact(scenarios, keys):
    """Formats one step per line; statistics are numbers: their index among the sorted keys."""
    lines = []
    for scenario in scenarios:
        head = json.dumps({"name": scenario["name"], "conf": scenario["conf"]})[:-1]
        steps = []
        for step in scenario["steps"]:
            step["stats"] = [[keys.index(key), value] for key, value in step["stats"].items()]
            steps.append(json.dumps({key: value for key, value in step.items() if value != []}, separators=(",", ":")))
        lines.append(head + ', "steps": [\n' + ",\n".join(steps) + "]}")
    head = json.dumps({"torch": "2.15.0", "keys": keys})[:-1]
    return head + ', "scenarios": [\n' + ",\n".join(lines) + "]}\n"


def main():
    with tempfile.TemporaryDirectory() as folder:
        shim = os.path.join(folder, "streams.so")
        subprocess.check_call(["cc", "-shared", "-fPIC", "-O1", "-w", "-o", shim, os.path.join(HERE, "streams.c")])

        def of(name):
            env = {**os.environ, "PINNED_SHIM": shim, "PYTORCH_ALLOC_CONF": SCENARIOS[name][0]}
            env["LD_PRELOAD"] = shim + ":" + env["LD_PRELOAD"]
            made = subprocess.run([sys.executable, __file__, name], env=env, capture_output=True)
            if made.returncode:
                sys.exit(f"{name}: {made.stderr.decode()[-2000:]}")
            return json.loads(made.stdout)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            scenarios = list(pool.map(of, SCENARIOS))
    keys = sorted({key for scenario in scenarios for step in scenario["steps"] for key in step["stats"]})
    with open(os.path.join(HERE, "oracle.json"), "w") as out:
        out.write(compact(scenarios, keys))
    print(
        f"{len(scenarios)} scenarios, {sum(len(scenario['steps']) for scenario in scenarios)} steps, {len(keys)} keys"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(run(sys.argv[1])))
    else:
        main()

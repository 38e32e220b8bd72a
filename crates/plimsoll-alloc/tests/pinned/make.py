"""Asks PyTorch's pinned host allocator, and writes its answers as `oracle.json`.

Run with the oracle's Python, with its device stand-in preloaded (shared/tools/oracle, `fk.sh python make.py`). Each
scenario runs in a process of its own, since the options and the first reserve are per process. Per step it keeps where a
block was placed ("the address is that many bytes into the memory of the nth pin call"), the calls to the device in order,
and those of the 28 statistics that changed. `streams.c` beside it makes streams that lag behind and a clock that only
pinning moves; it is compiled into a temporary folder and preloaded as well.

PyTorch keeps a block's streams in a hash set and records their events in its order. That order is read off here, and the
uses in the kept program are put into it, so that "events are recorded in the order of first use" is a true rule of it.
"""
import concurrent.futures, ctypes, json, os, random, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
KIB, MIB = 1024, 1024 * 1024

# What PyTorch's own tests of this allocator do (test/test_cuda.py), and the corners that they leave out.
SCENARIOS = {
    "test_caching_pinned_memory": ("", [
        ["alloc", "t", 1, None], ["free", "t"], ["alloc", "t", 1, None], ["use", "t", 1], ["free", "t"],
        ["alloc", "u", 1, None], ["finish", 1, 1], ["alloc", "v", 1, None], ["free", "u"], ["free", "v"]]),
    "test_pinned_memory_empty_cache": ("", [
        ["alloc", "a", 1 * MIB, None], ["alloc", "b", 2 * MIB, None], ["alloc", "c", 2 * MIB, None], ["free", "a"],
        ["free", "c"], ["free", "b"], ["empty"], ["empty"], ["alloc", "a", 2 * MIB, None], ["free", "a"], ["empty"]]),
    "test_host_memory_stats": ("", [
        ["alloc", "a", 4000, None], ["alloc", "b", 64, None], ["free", "a"], ["reset_peak"], ["alloc", "a", 4096, None],
        ["alloc", "c", 65, None], ["reset_accumulated"], ["free", "b"], ["free", "c"], ["reset_peak"], ["empty"],
        ["free", "a"], ["reset_peak"], ["reset_accumulated"], ["empty"]]),
    "test_host_memory_stats_active_after_free_no_events": ("", [
        ["alloc", "a", 1000, None], ["free", "a"], ["alloc", "b", 1000, None], ["free", "b"]]),
    "test_host_memory_stats_active_after_event_drain": ("", [
        ["alloc", "a", 1000, None], ["use", "a", 1], ["free", "a"], ["alloc", "b", 10, None], ["finish", 1, 1],
        ["alloc", "c", 10, None], ["free", "b"], ["free", "c"]]),
    "sizes": ("", [[what, f"n{n}", *more] for n in (1, 2, 3, 7, 12, 16, 17, 4096, 4097, 102400, MIB + 1, 3 * MIB)
                   for what, *more in (["alloc", n, None], ["free"])]),
    "last_in_first_out": ("", [
        ["alloc", "a", 512, None], ["alloc", "b", 512, None], ["alloc", "c", 512, None], ["free", "b"], ["free", "c"],
        ["free", "a"], ["alloc", "d", 500, None], ["alloc", "e", 257, None], ["alloc", "f", 256, None],
        ["alloc", "g", 512, None], ["alloc", "h", 512, None]]),
    "polling_stops_at_the_first_event_that_is_not_ready": ("", [
        ["alloc", "a", 100, None], ["alloc", "b", 100, None], ["use", "a", 1], ["use", "b", 2], ["free", "a"],
        ["free", "b"], ["finish", 2, 1], ["alloc", "c", 100, None], ["empty"], ["finish", 1, 1],
        ["alloc", "d", 100, None], ["alloc", "e", 100, None], ["empty"]]),
    "several_streams_and_repeated_uses": ("", [
        ["alloc", "a", 100, None], ["use", "a", 1], ["use", "a", 2], ["use", "a", 1], ["use", "a", 3], ["use", "a", 0],
        ["free", "a"], ["finish", 0, 1], ["alloc", "b", 100, None], ["finish", 1, 1], ["finish", 3, 1],
        ["alloc", "c", 100, None], ["finish", 2, 1], ["alloc", "d", 100, None], ["use", "d", 2], ["free", "d"],
        ["empty"], ["finish", 2, 1], ["empty"]]),
    "first_fit_in_a_bucket_of_odd_sizes": ("pinned_max_round_threshold_mb:1", [
        ["alloc", "a", 3 * MIB, None], ["alloc", "b", 3 * MIB + 100, None], ["alloc", "c", 2 * MIB + 1, None],
        ["alloc", "d", MIB - 1, None], ["free", "b"], ["free", "a"], ["free", "c"], ["alloc", "e", 3 * MIB, None],
        ["alloc", "f", 3 * MIB + 1, None], ["alloc", "g", 3 * MIB, None], ["alloc", "h", 2 * MIB, None]]),
    "above_the_cached_size_blocks_go_back": ("pinned_max_cached_size_mb:1", [
        ["alloc", "a", MIB, None], ["alloc", "b", MIB + 1, None], ["alloc", "c", 3 * MIB, None], ["use", "c", 1],
        ["free", "a"], ["free", "b"], ["free", "c"], ["alloc", "d", 10, None], ["finish", 1, 1], ["alloc", "e", 10, None],
        ["empty"]]),
    "options_may_change": ("", [
        ["alloc", "a", 3 * MIB, None], ["alloc", "b", 3 * MIB, None], ["free", "a"],
        ["set", "pinned_max_cached_size_mb:2"], ["free", "b"], ["alloc", "c", 3 * MIB, None], ["free", "c"],
        ["set", "pinned_max_cached_size_mb:64,pinned_max_round_threshold_mb:2"], ["alloc", "d", 3 * MIB, None],
        ["alloc", "e", 2 * MIB - 7, None], ["free", "d"], ["free", "e"],
        ["set", "pinned_reserve_segment_size_mb:1"], ["alloc", "f", 10, None], ["empty"]]),
    "a_reserve_is_carved": ("pinned_reserve_segment_size_mb:1", [
        ["alloc", "a", 12, None], ["alloc", "b", 4097, None], ["alloc", "c", 2 * MIB, None], ["free", "a"],
        ["alloc", "d", 9, None], ["free", "d"], ["free", "b"], ["empty"], ["alloc", "e", 12, None],
        ["alloc", "f", 512 * KIB, None], ["alloc", "g", 512 * KIB, None], ["alloc", "h", 256 * KIB, None],
        ["free", "g"], ["free", "f"], ["free", "c"], ["empty"], ["alloc", "i", 256 * KIB, None]]),
    "a_device_that_refuses": ("pinned_reserve_segment_size_mb:1", [
        ["fail", "pin", 1], ["alloc", "x", 100, None], ["alloc", "a", 100, None], ["fail", "pin", 1],
        ["alloc", "x", 3 * MIB, None], ["alloc", "b", 3 * MIB, None], ["use", "b", 1], ["use", "b", 2],
        ["fail", "record", 1], ["free", "b"], ["alloc", "c", 3 * MIB, None], ["use", "c", 1], ["use", "c", 2],
        ["fail", "record", 2], ["free", "c"], ["finish", 1, 9], ["finish", 2, 9], ["alloc", "d", 3 * MIB, None],
        ["free", "d"], ["empty"]]),
    "TestCachingHostAllocatorCudaGraph.no_use": ("", [
        ["begin", "g", 1, None], ["alloc", "a", 1000, 1], ["free", "a"], ["alloc", "b", 1000, 1], ["end", "g"],
        ["free", "b"], ["alloc", "c", 1000, None], ["empty"], ["drop", "g"], ["empty"], ["free", "c"], ["empty"]]),
    "TestCachingHostAllocatorCudaGraph.use": ("", [
        ["begin", "g", 1, None], ["alloc", "a", 1000, 1], ["use", "a", 1], ["free", "a"], ["alloc", "b", 1000, 1],
        ["alloc", "o", 1000, None], ["end", "g"], ["use", "b", 2], ["free", "b"], ["drop", "g"], ["finish", 1, 9],
        ["finish", 2, 9], ["empty"], ["alloc", "c", 1000, None], ["free", "o"], ["free", "c"], ["empty"]]),
    "TestCachingHostAllocatorCudaGraph.two_graphs": ("", [
        ["begin", "g", 1, None], ["alloc", "a", 1000, 1], ["alloc", "b", 9, 1], ["end", "g"], ["free", "a"],
        ["begin", "h", 2, "g"], ["alloc", "c", 1000, 2], ["free", "c"], ["end", "h"], ["drop", "g"], ["empty"],
        ["begin", "i", 1, "h"], ["alloc", "d", 1000, 1], ["use", "d", 1], ["end", "i"], ["drop", "h"], ["drop", "i"],
        ["free", "b"], ["empty"], ["free", "d"], ["empty"], ["alloc", "e", 10, None], ["reset_peak"]]),
}


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
    """The same, where a capture begins or ends, or a graph dies, before every ninth step."""
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


for seed, conf in enumerate(["", "", "pinned_max_round_threshold_mb:1", "pinned_max_cached_size_mb:1",
                             "pinned_max_round_threshold_mb:1,pinned_max_cached_size_mb:3,pinned_reserve_segment_size_mb:2"]):
    SCENARIOS[f"random {seed}"] = (conf, random_ops(random.Random(seed)))
for seed, conf in [(100, ""), (101, ""), (102, "pinned_max_cached_size_mb:1")]:
    rng = random.Random(seed)
    SCENARIOS[f"random graphs {seed}"] = (conf, with_graphs(rng, random_ops(rng)))


def run(name):
    """One scenario, in this process: the steps with PyTorch's answers."""
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
            streams_used = sorted((use["op"][2] for use in of_block),
                                  key=lambda s: order.index(s) if s in order else len(order))
            for use, stream in zip(of_block, streams_used):
                use["op"][2] = stream
        after = torch.cuda.host_memory_stats()
        step["stats"] = {key: value for key, value in after.items() if value != before[key]}
        before = after
        steps.append(step)
    return {"name": name, "conf": SCENARIOS[name][0], "steps": steps}


def compact(scenarios, keys):
    """One step a line; statistics by their number among the sorted keys."""
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
            made = subprocess.run([sys.executable, __file__, name], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            if made.returncode:
                sys.exit(f"{name}: {made.stderr.decode()[-2000:]}")
            return json.loads(made.stdout)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            scenarios = list(pool.map(of, SCENARIOS))
    keys = sorted({key for scenario in scenarios for step in scenario["steps"] for key in step["stats"]})
    with open(os.path.join(HERE, "oracle.json"), "w") as out:
        out.write(compact(scenarios, keys))
    print(f"{len(scenarios)} scenarios, {sum(len(scenario['steps']) for scenario in scenarios)} steps, {len(keys)} keys")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(run(sys.argv[1])))
    else:
        main()

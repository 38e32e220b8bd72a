"""Runs the programs in scenes/, and saves a memory snapshot of each and the known facts about it.

    python make.py OUT [NAME...] [--simulated] [--scale N] [--jobs N] [--timeout SECONDS]

The files in the repository are from NVIDIA H200s with PyTorch 2.11, or, if their figures have `simulated`, from the
stand-in with 2.15. ../../programs.rs compares our explanations with the known facts.

Needs only PyTorch and a device; each scene runs in its own process. OUT/NAME.pickle.gz is the snapshot.
OUT/NAME.json.gz has PyTorch's figures at the same moment and what the program knows about itself: the allocator's
figures for each device, the message of every failure, and at some moments the addresses of the tensors that are
parameters, gradients, optimizer state, saved for the backward pass, or batches. With `--simulated`, the device computes
nothing and does not support captures and NCCL. Without names, runs all scenes that fit the device.
"""

import argparse
import concurrent.futures
import gzip
import json
import os
import pickle
import re
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


def neutral(frame):
    """Shortens a library's path to the part from `site-packages` or `lib` on; compiled code has its own form."""
    path = frame["filename"]
    compiled = re.search(r"/torchinductor_[^/]*(/.*)", path)
    library = re.search(r"/(site-packages|dist-packages|lib/python3\.\d+|lib)/.*", path)
    if compiled:
        frame["filename"] = "/tmp/torchinductor_user" + compiled[1]
    elif path.startswith("/"):
        frame["filename"] = "/usr" + library[0] if library else path.rsplit("/", 1)[1]


def scrub(snapshot):
    entries = [entry for trace in snapshot["device_traces"] for entry in trace]
    entries += snapshot.get("host_traces") or []
    for segments in ("segments", "host_segments"):
        for segment in snapshot.get(segments) or []:
            entries += [segment, *segment["blocks"]]
    seen = set()
    for entry in entries:
        for frame in entry.get("frames") or []:
            if id(frame) not in seen:
                seen.add(id(frame))
                neutral(frame)


class Recorder:
    """Collects what a scene reports while it runs."""

    def __init__(self, name, args):
        self.name, self.args = name, args
        self.scale, self.simulated = args.scale, args.simulated
        self.rank, self.ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.moments, self.failures, self.steps, self.kept = [], [], [], []
        self.expected, self.snapshot, self.at_start = {}, None, None

    def start(self, stacks="python", **options):
        """Begins the recording. Options that this PyTorch does not support are left out and reported."""
        import torch
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        while True:
            try:
                torch.cuda.memory._record_memory_history(stacks=stacks, **options)
                break
            except TypeError as why:
                unknown = re.search(r"'(\w+)'", str(why).rsplit("argument", 1)[-1])
                if unknown is None or unknown[1] not in options:
                    raise
                self.expected.setdefault("left out", []).append(unknown[1])
                del options[unknown[1]]
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
        self.at_start = self.devices()

    def expect(self, **what):
        """States the facts that are known about the program without its snapshot."""
        self.expected.update(what)

    def devices(self):
        import torch
        known = []
        for device in range(torch.cuda.device_count()):
            stats = torch.cuda.memory_stats(device)
            free, total = torch.cuda.mem_get_info(device)
            known.append({
                "allocated": stats.get("allocated_bytes.all.current", 0),
                "reserved": stats.get("reserved_bytes.all.current", 0),
                "max_allocated": torch.cuda.max_memory_allocated(device),
                "max_reserved": torch.cuda.max_memory_reserved(device),
                "free": free, "total": total,
                "stats": {key: value for key, value in stats.items() if key.startswith("num_") and value},
            })
        return known

    def step(self):
        """Records the end of a step."""
        import torch
        if self.at_start is None:
            return
        self.steps.append([torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count())])

    def moment(self, name, models=(), optimizers=(), **tensors):
        """Records what the tensors of this moment are, by device and address of their storage."""
        import torch
        roles = {"parameters": [p for model in models for p in model.parameters()],
                 "buffers": [b for model in models for b in model.buffers()],
                 "gradients": [p.grad for model in models for p in model.parameters() if p.grad is not None],
                 "optimizer": [value for optimizer in optimizers for state in optimizer.state.values()
                               for value in state.values() if torch.is_tensor(value)],
                 **tensors}
        known, seen = {}, set()
        for role, of_role in roles.items():
            places = [place(tensor) if torch.is_tensor(tensor) else tensor for tensor in of_role]
            known[role] = sorted({at for at in places if at and at[:2] not in seen})
            seen.update(at[:2] for at in known[role])
        events = [len(trace) for trace in torch.cuda.memory._snapshot()["device_traces"]]
        self.moments.append({"name": name, "events": events, **known})

    def failed(self, error):
        """Records a request that failed."""
        stats = self.devices()
        self.failures.append({"message": str(error), "devices": [
            {key: known[key] for key in ("allocated", "reserved", "free", "total")} for known in stats]})

    def take(self):
        """Takes the snapshot now rather than at the end of the scene."""
        import torch
        self.at_end, self.snapshot = self.devices(), torch.cuda.memory._snapshot()

    def save(self):
        import torch
        if self.snapshot is None:
            self.take()
        torch.cuda.memory._record_memory_history(enabled=None)
        name = self.name if self.ranks == 1 else f"{self.name}.rank{self.rank}"
        scrub(self.snapshot)
        with open(f"{self.args.out}/{name}.pickle.gz", "wb") as file:
            file.write(gzip.compress(pickle.dumps(self.snapshot, 4), 9, mtime=0))
        known = {
            "scene": self.name, "torch": torch.__version__, "device": torch.cuda.get_device_name(),
            "simulated": self.simulated, "expected": self.expected, "at_start": self.at_start,
            "devices": self.at_end, "steps": self.steps, "failures": self.failures, "moments": self.moments,
        }
        with open(f"{self.args.out}/{name}.json.gz", "wb") as file:
            file.write(gzip.compress(json.dumps(known).encode(), 9, mtime=0))


def place(tensor):
    """The device, address and bytes of a tensor's storage; None for a tensor on the host."""
    storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
    if storage.device.type == "cuda" and storage.nbytes():
        return storage.device.index, storage.data_ptr(), storage.nbytes()
    return None


def run_scene(name, args):
    """Runs a scene, in its own process."""
    import scenes
    recorder = Recorder(name, args)
    scenes.SCENES[name].program(recorder)
    recorder.save()
    sys.stdout.flush()
    os._exit(0)  # regardless of other ranks and threads that still run


def start(name, args):
    """Starts the scene's processes, one for each rank."""
    import scenes
    scene = scenes.SCENES[name]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, os.path.abspath(__file__), args.out, name, "--scale", str(args.scale), "--scene"]
    command += ["--simulated"] if args.simulated else []
    processes = []
    for rank in range(scene.ranks):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(scene.ranks),
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if scene.ranks > 1 else {}
        environment = {**os.environ, **scene.environment, **ranks}
        log = open(f"{args.out}/{name}.{rank}.log", "w")
        processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    return processes


def run(name, args):
    """Runs a scene until it ends or times out, and prints the end of its output if it failed."""
    begin, why = time.time(), []
    for rank, process in enumerate(start(name, args)):
        try:
            code = process.wait(max(1, begin + args.timeout - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = "timed out"
        log = f"{args.out}/{name}.{rank}.log"
        if code:
            with open(log, errors="replace") as file:
                why.append(f"rank {rank}: {code}\n" + "".join(file.readlines()[-12:]))
        os.remove(log)
    print(f"{'FAILED ' if why else 'ok     '}{name:28}{time.time() - begin:6.1f} s", *why, flush=True)
    return not why


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=120)
    parser.add_argument("--scene", action="store_true", help="for its own use: run this one, here")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    if args.scene:
        return run_scene(args.names[0], args)
    import scenes
    import torch
    count = torch.cuda.device_count()
    names = args.names or list(scenes.SCENES)
    fit = [name for name in names if scenes.SCENES[name].fits(args.simulated, count)]
    print("left out:", *sorted(set(names) - set(fit)), flush=True)
    alone = [name for name in fit if scenes.SCENES[name].alone]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        done = list(pool.map(lambda name: run(name, args), [name for name in fit if name not in alone]))
    done += [run(name, args) for name in alone]
    print(f"{sum(done)} of {len(done)} scenes", flush=True)


if __name__ == "__main__":
    main()

"""Makes the snapshots in this folder, and CPython's counts for them and for those next to the repository.

    python make.py ../shared/snapshots

`counts.json` has the counts by file name. `features.*` is one small snapshot with every feature of the format, in each
encoding that we read. Three dumps of PyTorch are copied unchanged.
"""

import glob
import gzip
import io
import json
import os
import pickle
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
KEPT = ["gpt2_oom", "leak_layer", "leak_loss"]


def features(repeats=150, depth=2500):
    """Two devices, one without a trace; every action; integers of 9 bytes; a block without an address."""
    frames = [
        {"name": "step", "filename": "C:\\train\\näh.py", "line": 12},
        {"name": "??", "filename": "", "line": 0},
        {"name": "relu", "filename": "<eval_with_key>.3", "line": 7, "fx_node_op": "call_function",
         "fx_node_name": "relu_1", "fx_original_trace": "line " * 60, "fx_node_info": {"a": 1}},
    ]
    deep = [frames[i % 2] for i in range(depth)]
    stacks = [frames, frames[:1], deep, []]
    common = {"stream": 0, "compile_context": "N/A", "user_metadata": ""}
    trace = []
    for n, action in enumerate(["segment_alloc", "segment_map", "alloc", "free_requested", "free_completed",
                                "annotate", "snapshot", "segment_unmap", "segment_free"] * repeats):
        entry = {"action": action, "addr": 0x7F0000000000 + 512 * n, "size": n, **common,
                 "time_us": 1_700_000_000_000_000 + n, "pool_id": (0, n % 3), "frames": stacks[n % 4]}
        trace.append(entry)
    trace.append({"action": "oom", "device_free": 91 << 20, "size": 5 << 30, "stream": 2**63 + 5,
                  "time_us": 1_700_000_000_009_999, "compile_context": "[0/1]", "user_metadata": "mine",
                  "internal_metadata": "theirs", "pool_id": (0, 0), "category": 1, "unheard_of": [1, {}]})
    segment = {"device": 0, "address": 0x7F0000000000, "total_size": 2 << 20, "allocated_size": 512,
               "active_size": 1024, "requested_size": 500, "stream": 2**64 - 2, "segment_type": "small",
               "segment_pool_id": (7, 0), "is_expandable": True, "frames": stacks[1], "blocks": [
                   {"address": 0x7F0000000000, "size": 512, "requested_size": 500,
                    "state": "active_allocated", "frames": frames},
                   {"address": 0x7F0000000200, "size": 512, "requested_size": 8,
                    "state": "active_pending_free", "frames": []},
                   {"address": 0x7F0000000400, "size": (2 << 20) - 1024, "requested_size": 0,
                    "state": "inactive", "frames": []}]}
    old = {"device": 1, "address": 0x7E0000000000, "total_size": 20 << 20, "allocated_size": 1024,
           "active_size": 1024, "stream": 0, "segment_type": "large", "blocks": [
               {"size": 1024, "state": "active_allocated",
                "history": [{"addr": 0x7E0000000000, "real_size": 1000, "frames": frames[:2]}]},
               {"size": (20 << 20) - 1024, "state": "inactive"}]}
    host = {**segment, "blocks": [dict(block) for block in segment["blocks"]], "device": -1,
            "stream": 0, "is_expandable": False, "segment_pool_id": (0, 0)}
    return {
        "segments": [segment, old],
        "device_traces": [trace, []],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1,
                               "garbage_collection_threshold": 0.8, "expandable_segments": False,
                               "roundup_power2_divisions": {"1": 0, "2": 4}, "later": None},
        "external_annotations": [
            {"stage": stage, "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": 17 + n}
            for n, stage in enumerate(["START", "END"])],
        "host_segments": [host],
        "host_traces": [{"action": "alloc", "addr": 0x7D0000000000, "size": 131072, "stream": 0,
                         "time_us": 5, "compile_context": "", "user_metadata": "", "pool_id": (0, 0),
                         "frames": frames}],
        "categories": ["unknown", "PARAMETER"],
    }


def one_by_one(value):
    """Pickles like a writer that sets each key separately, so the dictionary is never complete at once."""
    class Pickler(pickle._Pickler):
        def _batch_setitems(self, items, obj=None):
            for key, entry in items:
                self.save(key)
                self.save(entry)
                self.write(pickle.SETITEM)

        def _batch_appends(self, items, obj=None):
            for entry in items:
                self.save(entry)
                self.write(pickle.APPEND)

        dispatch = dict(pickle._Pickler.dispatch)

        def save_dict(self, obj):
            self.write(pickle.EMPTY_DICT)
            self.memoize(obj)
            self._batch_setitems(obj.items())

        def save_list(self, obj):
            self.write(pickle.EMPTY_LIST)
            self.memoize(obj)
            self._batch_appends(obj)

        dispatch[dict], dispatch[list] = save_dict, save_list

    out = io.BytesIO()
    Pickler(out, 4).dump(value)
    return out.getvalue()


def all_at_once(value):
    """Pickles like a writer that does not batch."""
    saved = pickle._Pickler._BATCHSIZE
    pickle._Pickler._BATCHSIZE = 1 << 30
    out = io.BytesIO()
    pickle._Pickler(out, 4).dump(value)
    pickle._Pickler._BATCHSIZE = saved
    return out.getvalue()


def stack_of(entry):
    frames = entry.get("frames")
    if frames is None and entry.get("history"):
        frames = entry["history"][0]["frames"]
    return None if frames is None else tuple((f["filename"], f["name"], f["line"]) for f in frames)


def requested(block):
    history = block.get("history") or [{"real_size": 0}]
    return block.get("requested_size", history[0]["real_size"])


def counts(snapshot):
    if isinstance(snapshot, list):
        snapshot = {"segments": snapshot, "device_traces": []}
    segments = snapshot["segments"]
    blocks = [block for segment in segments for block in segment["blocks"]]
    events = [event for trace in snapshot["device_traces"] for event in trace]
    stacks = [stack_of(entry) for entry in segments + blocks + events]
    actions, states = {}, {}
    for event in events:
        actions[event["action"]] = actions.get(event["action"], 0) + 1
    for block in blocks:
        states[block["state"]] = states.get(block["state"], 0) + block["size"]
    mod = 1 << 64
    return {
        "segments": len(segments),
        "segment_bytes": sum(segment["total_size"] for segment in segments),
        "blocks": len(blocks),
        "state_bytes": states,
        "requested_bytes": sum(requested(block) for block in blocks),
        "traces": [len(trace) for trace in snapshot["device_traces"]],
        "actions": actions,
        "addr_sum": sum(event.get("addr", 0) for event in events) % mod,
        "size_sum": sum(event["size"] for event in events) % mod,
        "time_sum": sum(event.get("time_us", 0) for event in events) % mod,
        "with_stack": sum(stack is not None for stack in stacks),
        "frames": sum(len(stack or ()) for stack in stacks),
        "line_sum": sum(frame[2] for stack in stacks for frame in stack or ()) % mod,
        "name_bytes": sum(len(frame[1].encode()) for stack in stacks for frame in stack or ()),
        "distinct_stacks": len(set(stacks) - {None, ()}),
        "annotations": len(snapshot.get("external_annotations", [])),
        "settings": len(snapshot.get("allocator_settings", {})),
        "host": [len(snapshot.get("host_segments", [])), len(snapshot.get("host_traces", []))],
    }


def main(shared):
    known = {}
    for path in sorted(glob.glob(os.path.join(shared, "*", "*.pickle.gz"))):
        name = os.path.basename(path)
        with gzip.open(path) as file:
            known[name] = counts(pickle.load(file))
        if name.split(".")[0] in KEPT:
            shutil.copyfile(path, os.path.join(HERE, name))
    whole, little, tiny = features(), features(3, 1200), features(1, 3)
    forms = {f"features.p{protocol}.pickle": pickle.dumps(whole, protocol) for protocol in (2, 3, 4, 5)}
    forms["features.one_by_one.pickle"] = one_by_one(whole)
    forms["features.all_at_once.pickle"] = all_at_once(whole)
    forms["features.bare.pickle"] = pickle.dumps(whole["segments"], 4)
    forms["little.json"] = json.dumps(little).encode()
    forms["tiny.pickle"] = pickle.dumps(tiny, 4)
    of = {"little": little, "tiny": tiny, "features": whole}
    for name, data in forms.items():
        with open(os.path.join(HERE, name + ".gz"), "wb") as file:
            file.write(gzip.compress(data, mtime=0))
        known[name + ".gz"] = counts(whole["segments"] if "bare" in name else of[name.split(".")[0]])
    # Two zstd frames, as a program that appends would write.
    half = len(forms["tiny.pickle"]) // 2
    with open(os.path.join(HERE, "tiny.pickle.zst"), "wb") as file:
        for part in (forms["tiny.pickle"][:half], forms["tiny.pickle"][half:]):
            file.write(subprocess.run(["zstd", "-q", "-19"], input=part, stdout=subprocess.PIPE, check=True).stdout)
    known["tiny.pickle.zst"] = known["tiny.pickle.gz"]
    with open(os.path.join(HERE, "counts.json"), "w") as file:
        json.dump(known, file, indent=0, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])

"""The time of `plimsoll plan` for some programs: `python measure.py PLIMSOLL PYTHON [CASE...]` prints a row each.

The columns are the choice, its peak in the plan, the sets that ran, the time of the first run including imports, the
wall time of the plan, the time beyond the first run, and the CPU time of all its processes.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# The case, its program and the GPU's memory.
CASES = [
    ("GPT, fits", "gpt", "40GiB"),
    ("GPT, 10 % short", "gpt", "{90}"),
    ("GPT, 50 % short", "gpt", "{50}"),
    ("ResNet, 10 % short", "resnet", "{90}"),
    ("ResNet, 50 % short", "resnet", "{50}"),
    ("MLP with AdamW, 10 % short", "mlp", "{90}"),
    ("MLP with AdamW, 50 % short", "mlp", "{50}"),
    ("Llama of transformers, 10 % short", "llama", "{90}"),
    ("Llama of transformers, 50 % short", "llama", "{50}"),
    ("GPT that only computes outputs, 50 % short", "infers", "{50}"),
    ("compiled GPT, 25 % short", "compiled", "{75}"),
]


def timed(words):
    """The output of a command, its wall and CPU seconds, and its lines of progress with their times."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun, lines = time.monotonic(), []
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(words, stdout=output, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr:
                lines.append((time.monotonic() - begun, line))
        output.seek(0)
        out = output.read()
    wall = time.monotonic() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return out, wall, cpu, lines


def main():
    plimsoll, python, *wanted = sys.argv[1:]
    own, program = {}, os.path.join(HERE, "programs.py")
    print("| case | GPU | choice | peak | sets | first run, s | plan, s | beyond, s | CPU, s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, kind, size in CASES:
        if wanted and not any(word in name for word in wanted):
            continue
        words = ["--", python, program, kind]
        if kind not in own:
            answer = timed([plimsoll, "predict", "--gpu", "80GiB", "--cc", "9.0", "--json", *words])
            own[kind] = json.loads(answer[0])
        base = own[kind]
        if size.startswith("{"):
            need = base["judged"]["peak_reserved_bytes"] + base["gpu"]["context_bytes"]
            size = f"{need * int(size[1:-1]) // 100 >> 20}MiB"
        out, wall, cpu, lines = timed([plimsoll, "plan", "--gpu", size, "--cc", "9.0", "--json", *words])
        if os.environ.get("LOG"):
            with open(os.environ["LOG"], "a") as log:
                log.write(f"=== {name}\n" + "".join(f"{at:7.2f} {line}" for at, line in lines) + out)
        plan = json.loads(out)
        chosen = next((it for it in plan["tried"] if it["set"] == plan["chosen"]), None)
        choice = "none" if chosen is None else chosen["set"] or "as it is"
        peak = "" if chosen is None else f"{chosen['peak_reserved_bytes'] / 2**30:.3f} GiB"
        first = next((at for at, line in lines if line.startswith("tried as it is")), wall)
        times = f"{first:.1f} | {wall:.1f} | {wall - first:.1f} | {cpu:.1f}"
        print(f"| {name} | {size} | {choice} | {peak} | {len(plan['tried'])} | {times} |", flush=True)


main()

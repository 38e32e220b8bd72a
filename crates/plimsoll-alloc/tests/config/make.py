"""Writes answers.json: how PyTorch 2.15 parses several hundred configuration strings.

usage, in the oracle's directory: ./fk.sh python .../tests/config/make.py [RANDOM [SEED]] > answers.json

Needs torch 2.15 for CUDA (no GPU: the stand-in driver is enough) and g++. In addition to the strings below, it makes
RANDOM ones (default 230, seed 15). Each case is [moment, strings, answers]. moment is "start" (the environment of a new
process) or "set" (one string after another at run time). An answer is null if PyTorch rejects the string; otherwise it
has the options that differ from their defaults, by name, with sizes in bytes. Only the last string of a case may be
rejected, because PyTorch then applies half of the string, and we apply none.
"""

import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

SPLIT, ROUNDING, LARGE = (
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "large_segment_size_mb",
)
ROUNDUP, GC, FRACTION = (
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "per_process_memory_fraction",
)
RESERVE, BY_CLASS = (
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
)
# The class from which the oracle reads each option: the one for all accelerators, or the one for CUDA.
ACCELERATOR, CUDA = (
    "c10::CachingAllocator::AcceleratorAllocatorConfig::",
    "c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::",
)
SWITCHES = {
    "expandable_segments": ACCELERATOR + "use_expandable_segments()",
    "pinned_use_background_threads": ACCELERATOR + "pinned_use_background_threads()",
    "release_lock_on_cudamalloc": CUDA + "release_lock_on_cudamalloc()",
    "pinned_use_cuda_host_register": CUDA + "pinned_use_cuda_host_register()",
    "graph_capture_record_stream_reuse": CUDA + "graph_capture_record_stream_reuse()",
    "pinned_free_catch_all": CUDA + "pinned_free_catch_all()",
    "throw_on_cudamalloc_oom": CUDA + "throw_on_cudamalloc_oom()",
}
SIZES = {
    SPLIT: ACCELERATOR + "max_split_size()",
    ROUNDING: ACCELERATOR + "max_non_split_rounding_size()",
    LARGE: ACCELERATOR + "large_segment_size()",
    "pinned_max_round_threshold_mb": ACCELERATOR + "pinned_max_round_threshold()",
    "pinned_max_cached_size_mb": ACCELERATOR + "pinned_max_cached_size()",
    "pinned_reserve_segment_size_mb": CUDA + "pinned_reserve_segment_size_mb()",
}
GETTERS = {
    **SWITCHES,
    **SIZES,
    ROUNDUP: ACCELERATOR + "roundup_power2_divisions()",
    GC: ACCELERATOR + "garbage_collection_threshold()",
    FRACTION: CUDA + "per_process_memory_fraction()",
    RESERVE: "reserve_if_set(" + CUDA + "instance())",
    "pinned_num_register_threads": CUDA + "pinned_num_register_threads()",
}
ON_HIP = {
    "release_lock_on_cudamalloc": "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register": "pinned_use_hip_host_register",
}
NAMES_OF_SWITCHES = [name for switch in SWITCHES for name in (switch, ON_HIP.get(switch)) if name]
WHOLE = [
    "0",
    "10",
    "11",
    "19",
    "20",
    "21",
    "64",
    "-1",
    "12abc",
    "40MB",
    "+32",
    "0x20",
    "abc",
    "",
    "1 0 0",
    "17592186044415",
    "17592186044416",
    "18446744073709551615",
    "18446744073709551616",
    "-18446744073709551596",
    "[40]",
    "4_0",
    "40.9",
    "1e3",
    "٤٠",
]
REALS = [
    "0",
    "-0",
    "1",
    "0.5",
    ".5abc",
    "5.e-1",
    "0x.8",
    "0x1p-1",
    "0X1P-1z",
    "1.5",
    "-.5",
    "nan",
    "inf",
    "NaN(12)",
    "1e-310",
    "1e-400",
    "1e400",
    "2.2250738585072014e-308",
    "2.2250738585072011e-308",
    "0x1p-1074",
    "0x1p-1075",
    "0x1.8p-1074",
    "0x",
    "0xg",
    "0x.p1",
    "0x1p",
    "0e-999",
    "0.5e",
    "0.5e+",
    ".",
    "",
    "abc",
    "+.25",
    "0,5",
    "0.1",
    "0.30000000000000004",
    "0x.1999999999999999a",
    "0x0.00000000000000000000000000008p100",
]
RESERVES = [
    "0.25",
    "40G",
    "40g",
    "1.5G",
    "0",
    "-1",
    "abc",
    "1e20G",
    "inf",
    "nan",
    "0x1p-1",
    "G",
    "40GG",
    "+.5",
    "5.",
    "1e-310",
    "1e-400",
    "1e400",
    "1e",
    "1e+",
    "[0.5]",
    "2.5",
    "]",
    ":",
    ",",
    "",
]
LISTS = [
    "4",
    "1",
    "0",
    "3",
    "-1",
    "9223372036854775808",
    "4abc",
    "[4]",
    "[]",
    "[",
    "[>:4]",
    "[>:4,>:2]",
    "[256:1,512:2,1024:4,>:8]",
    "[64:8,256:4]",
    "[0:4]",
    "[1:0,4:2]",
    "[256:4,1:2]",
    "[1:2,]",
    "[1:2,,]",
    "[1:2",
    "[1:2,",
    "[1:2 4:8]",
    "[1:2:4:8]",
    "[1,2,4,8]",
    "[1:2]4:8]",
    "[1]4]",
    "[1]4",
    "[65536:4]",
    "[32768:4,>:8]",
    "[1:2,>:4,8:16]",
    "[8:16,>:4,1:2]",
    "[1:1,>:0]",
    "[2:1,3:2]",
    "[2:3]",
    "[18446744073709551616:2]",
    "[9223372036854775808:2]",
    "[-9223372036854775808:2]",
    "[a:2]",
    "[2:a]",
    "[ > : 4 ]",
    "[>=:4]",
    "[[:2]",
    "[]:2]",
    "[1[2[4[8]",
    "[-1:2]",
    "[8:-1]",
    "[4:2x]",
    "[2:2,2:4]",
    "[16384:2,>:4]",
    "[>:4]]",
]
OTHERS = [
    "",
    " ",
    ",",
    ":",
    "[",
    "]",
    ",,",
    "foo",
    "foo:1",
    "foo:1,large_segment_size_mb:64",
    "foo,large_segment_size_mb,64",
    f"{SPLIT}",
    f"{SPLIT}:",
    f"{SPLIT}:40,",
    f"{SPLIT}:40,,",
    f"{SPLIT}:40:",
    f"{SPLIT},40",
    f"{SPLIT}[40",
    f"{SPLIT}:[40",
    f"{SPLIT}:40]expandable_segments:True",
    f"{SPLIT}:40:expandable_segments:True",
    f"{SPLIT}:40;expandable_segments:True",
    f"{SPLIT}:40 expandable_segments:True",
    f"{SPLIT}=40",
    f"{SPLIT}:40\u00a0",
    f"{SPLIT}:\u00a040",
    f"\u3000{SPLIT}:40",
    f"{SPLIT}:40\x0b\x0c\r\n\t",
    f"{SPLIT}:40é",
    f"{SPLIT}:40\x00",
    f"{SPLIT}\x00:40",
    "max split_size_mb:40",
    f"{SPLIT}:40,{SPLIT}:80",
    "MAX_SPLIT_SIZE_MB:40",
    f"{LARGE}:64,{SPLIT}:40",
    f"{LARGE}:64,{SPLIT}:40,{LARGE}:32",
    f"{LARGE}:32,{SPLIT}:40,{LARGE}:64",
    f"{LARGE}:64,{LARGE}:abc",
    f"{LARGE}:64,{LARGE}",
    f"{SPLIT}:{LARGE}:40",
    f"{LARGE}:64:",
    f"{LARGE}:64]",
    f"backend,{LARGE},native:40",
    f"{ROUNDING}:100,{LARGE}:32",
    f"{ROUNDING}:30,{LARGE}:32",
    f"{BY_CLASS}:[{LARGE}:0.5]",
    f"{BY_CLASS}:[{LARGE}:40]",
    f"{BY_CLASS}:[a:0.5,b:40G]",
    f"{BY_CLASS}:0.5",
    f"{BY_CLASS}:[]",
    f"{BY_CLASS}:[",
    f"{BY_CLASS}:[a:0.5",
    f"{BY_CLASS}:[a:x,b:1]",
    f"{BY_CLASS}:0.5,expandable_segments:True]",
    f"{BY_CLASS}:[a:0.5]b:1]",
    f"{BY_CLASS}:[a:1 b:2]",
    f"{BY_CLASS}:[a,1]",
    f"{BY_CLASS}:a,b:1,c:2]",
    f"{BY_CLASS}:a,b]",
    f"{ROUNDUP}:2,{ROUNDUP}:[4:8]",
    f"{ROUNDUP}:[4:8],{ROUNDUP}:[16:2,>:4]",
    f"{ROUNDUP}[[1:2]",
    f"{ROUNDUP}:[1:2]]expandable_segments:True",
    f"{ROUNDUP}:[1:2]expandable_segments:True",
    "expandable_segments_handle_type:posix_fd",
    "backend:native",
    "backend:cudaMallocAsync",
    "backend:hipMallocAsync",
    "backend:foo",
    "backend",
    "backend:native,backend:cudaMallocAsync",
    "backend]native",
    "backend:[native]",
    "pinned_max_round_threshold_mb:100,pinned_max_cached_size_mb:10",
    "pinned_max_cached_size_mb:10,pinned_max_round_threshold_mb:100",
]
STARTS = [
    "backend:cudaMallocAsync",
    "backend]cudaMallocAsync",
    "backend:native,backend:cudaMallocAsync",
    "backend:cudaMallocAsync,backend:cudaMallocAsync",
    f"{SPLIT}:40,backend:cudaMallocAsync",
    "backend:foo",
    f"{BY_CLASS}:[backend:cudaMallocAsync]",
    f"{SPLIT}:10",
    f"{LARGE}:64,expandable_segments:True",
    "",
    "backend : cuda MallocAsync",
]
ALL_SET = (
    f"expandable_segments:True,{SPLIT}:40,{GC}:0.5,{ROUNDUP}:4,pinned_use_background_threads:True,"
    f"release_lock_on_cudamalloc:True,{FRACTION}:0.5,throw_on_cudamalloc_oom:True,pinned_max_round_threshold_mb:10,"
    "pinned_max_cached_size_mb:20,pinned_reserve_segment_size_mb:5,pinned_num_register_threads:8,"
    "pinned_free_catch_all:True,graph_capture_record_stream_reuse:True,pinned_use_cuda_host_register:True,"
    f"{LARGE}:30,{ROUNDING}:50,{RESERVE}:3G"
)
SEQUENCES = [
    [ALL_SET, ""],
    [ALL_SET, f"{LARGE}:20"],
    [f"{LARGE}:64", f"{SPLIT}:40"],
    [f"{LARGE}:64", f"{ROUNDING}:100", ""],
    [f"{SPLIT}:40", f"{LARGE}:64"],
    [f"{RESERVE}:0.25", f"{RESERVE}:abc"],
    [f"{RESERVE}:0.25", f"{RESERVE}:2G", ""],
    [f"{ROUNDUP}:4", f"{ROUNDUP}:[16:2]"],
    ["expandable_segments:True", "expandable_segments:False"],
    [f"{GC}:0.5", f"{SPLIT}:40", f"{ROUNDUP}:8"],
    [ALL_SET, "backend:cudaMallocAsync"],
    [ALL_SET, f"{LARGE}:64,{SPLIT}:63"],
]


def random_string(rng):
    """Returns one to four options with values that may be valid, sometimes damaged at random."""
    options = []
    for _ in range(rng.randint(1, 4)):
        key, values = rng.choice(
            [
                (rng.choice(NAMES_OF_SWITCHES), ["True", "False", "true"]),
                (rng.choice(list(SIZES)), WHOLE + ["40", "100", "512"] * 8),
                (ROUNDUP, LISTS),
                (ROUNDUP, [random_list(rng)]),
                (GC, REALS),
                (FRACTION, REALS),
                (RESERVE, RESERVES),
                (
                    "pinned_num_register_threads",
                    ["0", "1", "2", "3", "128", "256", "-1"],
                ),
                ("backend", ["native"]),
            ]
        )
        options.append(key + ":" + rng.choice(values))
    text = ",".join(options)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        at = rng.randrange(len(text) + 1)
        text = (
            text[:at]
            + rng.choice(["", ",", ":", "[", "]", " ", "1", "-", ".", "e", ">", "G"])
            + text[at + rng.randint(0, 1) :]
        )
    return text


def random_list(rng):
    sizes = [str(1 << rng.randrange(17)) for _ in range(rng.randint(1, 5))] + rng.choice([[], [">"]])
    return "[" + ",".join(f"{size}:{rng.choice([0, 1, 2, 4, 8])}" for size in sizes) + "]"


def programs(count, seed):
    rng = random.Random(seed)
    single = [f"{key}:{value}" for key in (SPLIT, LARGE) for value in WHOLE]
    single += [
        f"{key}:{value}"
        for key in SIZES
        if key not in (SPLIT, LARGE)
        for value in ("0", "-1", "40", "abc", "17592186044416")
    ]
    single += [f"{key}:{value}" for key in (GC, FRACTION) for value in REALS]
    single += [f"{RESERVE}:{value}" for value in RESERVES] + [RESERVE]
    single += [f"{ROUNDUP}:{value}" for value in LISTS]
    single += [f"{key}:{value}" for key in NAMES_OF_SWITCHES for value in ("True", "true")]
    single += ["expandable_segments:" + value for value in ("False", "1", "", "Tr ue", "[True]", "true ")]
    single += [f"pinned_num_register_threads:{value}" for value in ("0", "1", "3", "128", "256", "8x")] + OTHERS
    single += [random_string(rng) for _ in range(count)]
    return (
        [("set", [text]) for text in dict.fromkeys(single)]
        + [("set", texts) for texts in SEQUENCES]
        + [("start", [text]) for text in STARTS]
    )


def build(directory):
    import torch

    packages, include = (
        sysconfig.get_paths()["purelib"],
        os.path.join(os.path.dirname(torch.__file__), "include"),
    )
    libraries = os.path.join(os.path.dirname(torch.__file__), "lib")
    cuda = [f"-I{packages}/{path}" for path in ("nvidia/cu13/include", "triton/backends/nvidia/include")]
    program = os.path.join(directory, "oracle")
    with open(os.path.join(directory, "options.inc"), "w") as options:
        options.writelines(f'  OPTION("{name}", {getter})\n' for name, getter in GETTERS.items())
    subprocess.run(
        [
            "g++",
            "-std=c++20",
            "-O1",
            "-w",
            f"-I{directory}",
            f"-I{include}",
            *cuda,
            os.path.join(HERE, "oracle.cpp"),
            "-o",
            program,
            f"-L{libraries}",
            "-lc10_cuda",
            "-lc10",
            f"-Wl,-rpath,{libraries}",
        ],
        check=True,
    )
    return program, torch.__version__


def ask(program, cases):
    lines = [" ".join([moment] + [text.encode().hex() or "-" for text in texts]) for moment, texts in cases]
    run = subprocess.run(
        [program],
        input="\n".join(lines) + "\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(cases), (len(answers), len(cases))
    return answers


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 230
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    cases = programs(count, seed)
    with tempfile.TemporaryDirectory() as directory:
        program, version = build(directory)
        answers = ask(program, [("set", [""])] + cases)
    fresh = answers.pop(0)[0]
    rows = []
    for (moment, texts), said in zip(cases, answers):
        for text, options in zip(texts, said):
            assert options != "died", text
            assert isinstance(options, str) or options.pop("settings") == text
        assert not any(isinstance(options, str) for options in said[:-1]), texts
        changed = [
            None if isinstance(options, str) else {k: v for k, v in options.items() if v != fresh[k]}
            for options in said
        ]
        rows.append(json.dumps([moment, texts, changed], separators=(",", ":"), ensure_ascii=False))
    fresh.pop("settings")
    print(
        f'{{"torch":"{version}","defaults":{json.dumps(fresh, separators=(",", ":"))},"cases":[\n'
        + ",\n".join(rows)
        + "\n]}"
    )


if __name__ == "__main__":
    main()

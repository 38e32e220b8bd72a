"""Explains why a program failed for a reason other than running out of GPU memory. The reason is recognized by the
words of PyTorch's and NVIDIA's messages.
"""

from __future__ import annotations

NOT_MEMORY = "a lack of memory was not the cause"

# Words in the message, the cause, and the advice.
ROWS = (
    (
        ("illegal memory access", "misaligned address"),
        f"ended by an illegal memory access of a kernel; {NOT_MEMORY}",
        "CUDA_LAUNCH_BLOCKING=1 names the call, `compute-sanitizer python ...` names the kernel, often one of an extension",
    ),
    (
        ("device-side assert triggered",),
        f"ended by an assertion in a kernel; {NOT_MEMORY}",
        "most often an index or a label is out of range: the lines above may show the assertion; running the batch "
        "on the CPU, or with CUDA_LAUNCH_BLOCKING=1, names the line",
    ),
    (
        (
            "CUDA error: unspecified launch failure",
            "CUDA error: the launch timed out",
            "CUDA error: uncorrectable ECC error",
            "CUDA error: context is destroyed",
            "CUDA error: hardware stack error",
            "CUDA error: unknown error",
            "CUDA-capable device(s) is/are busy or unavailable",
        ),
        f"ended because the GPU's context was lost; {NOT_MEMORY}",
        "this process cannot use the GPU again: restart it. `nvidia-smi -q -d ECC` and the kernel's log (`dmesg | grep Xid`) say "
        "whether the hardware failed",
    ),
    (
        ("Watchdog caught collective operation timeout",),
        "ended by NCCL's watchdog: a collective waited too long for a rank; memory was the cause only if that rank ran out",
        "look at the first rank that failed; if none failed, a rank hung or called a different collective: "
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 records the calls; for slow steps: init_process_group(timeout=...)",
    ),
    (
        ("NCCL error", "ncclRemoteError", "ncclSystemError", "Connection closed by peer", "Connection reset by peer"),
        "ended by NCCL: another rank ended, or the network failed; memory was the cause only if that rank ran out",
        "look at the first rank that failed; NCCL_DEBUG=WARN says more",
    ),
)

# A message counts only if it contains one of these words, because other libraries use some of the words in ROWS.
OF_CUDA = ("CUDA", "cuda", "NCCL", "nccl")


def of(text: str) -> list[str]:
    """The lines about the cause that a message indicates, with the advice. Empty if the message indicates none of the
    causes in ROWS.
    """
    if not any(it in text for it in OF_CUDA) or "out of memory" in text:
        return []
    return next(([end, todo] for words, end, todo in ROWS if any(it in text for it in words)), [])

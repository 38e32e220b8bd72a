# How a program ended, according to its exception: with the messages of PyTorch 2.11.

import pytest

from plimsoll._run import ends

REST = "\nSearch for `cudaErrorX' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information."


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "CUDA error: an illegal memory access was encountered" + REST,
            "illegal memory access of a kernel; a lack of memory was not",
        ),
        ("CUDA error: device-side assert triggered" + REST, "an assertion in a kernel; a lack of memory was not"),
        ("CUDA error: unspecified launch failure" + REST, "the GPU's context was lost; a lack of memory was not"),
        ("CUDA error: the launch timed out and was terminated" + REST, "the GPU's context was lost"),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7", "NCCL's watchdog"),
        (
            "NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error",
            "by NCCL: another rank",
        ),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", None),
        ("expected a CUDA tensor", None),
        ("the watchdog timer of my own program", None),
        ("unknown error in train.csv", None),
    ],
)
def test_the_end_is_named(text, said):
    found = ends.of(text)
    assert bool(found) == (said is not None)
    assert said is None or said in found[0]

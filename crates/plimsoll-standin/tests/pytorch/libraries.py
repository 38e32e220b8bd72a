"""Prints the workspaces that cuSPARSE and cuDNN's CTC loss request on this device, one per line. The output of a GPU
is kept in workspaces/libraries-*.txt; tests compare the formulas of src/sparse/ and src/dnn/ with it.

usage: python libraries.py
"""

import ctypes
import glob
import itertools
from ctypes import byref, c_double, c_float, c_int, c_int64, c_size_t, c_void_p

import nvidia
import torch
from workspaces import allocations

TYPES = {"f32": (0, 4), "f64": (1, 8), "f16": (2, 2), "c64": (4, 8)}
INDICES = {4: (2, torch.int32), 8: (3, torch.int64)}
SHAPES = [
    (1, 1, 1, 1),
    (100, 100, 500, 16),
    (1000, 1000, 10_000, 64),
    (1000, 1000, 10_000, 1),
    (1023, 777, 5001, 33),
    (10_000, 10_000, 100_000, 16),
    (5000, 7000, 12_345, 48),
    (300_000, 2000, 1_000_000, 7),
    (2000, 300_000, 1_000_000, 7),
    (100_000, 100_000, 3_000_000, 32),
    (1000, 1000, 300_000, 256),
    (1000, 1000, 200_000, 64),
    (1000, 1000, 150_000, 64),
]


def library(name):
    return ctypes.CDLL(sorted(glob.glob(f"{list(nvidia.__path__)[0]}/**/{name}", recursive=True))[0])


def made(function, *arguments):
    handle = c_void_p()
    function(byref(handle), *arguments)
    return handle


def asked(function, *arguments):
    size = c_size_t()
    return size.value if function(*arguments, byref(size)) == 0 else None


def say(*words):
    if words[-1] is not None:
        print(*words, flush=True)


def sparse():
    cusparse = library("libcusparse.so.1*")
    handle = made(cusparse.cusparseCreate)
    memory = torch.zeros(1 << 28, device="cuda", dtype=torch.uint8)
    at = lambda tensor: c_void_p(tensor.data_ptr())
    long = c_int64
    for (rows, columns, values, n), (element, (kind, size)), index in itertools.product(SHAPES, TYPES.items(), INDICES):
        index_kind, index_type = INDICES[index]
        offsets = (torch.arange(rows + 1, device="cuda") * values).div(rows, rounding_mode="floor").to(index_type)
        indices = torch.randint(0, columns, (values,), device="cuda").to(index_type)
        sizes = long(rows), long(columns), long(values)
        kinds = index_kind, index_kind, 0, kind
        a = made(cusparse.cusparseCreateCsr, *sizes, at(offsets), at(indices), at(memory), *kinds)
        compute = 0 if element == "f16" else kind
        one = c_double(1) if element == "f64" else (c_float * 2)(1, 0)
        vector = lambda count: made(cusparse.cusparseCreateDnVec, long(count), at(memory), kind)
        about = element, index, rows, columns, values
        for operation in 0, 1:
            y, x = (rows, columns) if operation == 0 else (columns, rows)
            spmv = handle, operation, one, a, vector(x), one, vector(y), compute, 0
            say("SpMV", *about, 1, operation, 0, 0, asked(cusparse.cusparseSpMV_bufferSize, *spmv))
            for order, algorithm in itertools.product((1, 2), (0, 4, 6)):
                matrix = lambda r, c: made(
                    cusparse.cusparseCreateDnMat,
                    long(r),
                    long(c),
                    long(r if order == 1 else c),
                    at(memory),
                    kind,
                    order,
                )
                spmm = handle, operation, 0, one, a, matrix(x, n), one, matrix(y, n), compute, algorithm
                say("SpMM", *about, n, operation, order, algorithm, asked(cusparse.cusparseSpMM_bufferSize, *spmm))
        sddmm = handle, 0, 0, one, matrix(rows, n), matrix(n, columns), one, a, kind, 0
        say("SDDMM", *about, n, 0, 0, 0, asked(cusparse.cusparseSDDMM_bufferSize, *sddmm))
        if rows == columns:
            spsv = handle, 0, one, a, vector(rows), vector(rows), kind, 0, made(cusparse.cusparseSpSV_createDescr)
            say("SpSV", *about, 1, 0, 0, 0, asked(cusparse.cusparseSpSV_bufferSize, *spsv))
            spsm = (
                handle,
                0,
                0,
                one,
                a,
                matrix(rows, n),
                matrix(rows, n),
                kind,
                0,
                made(cusparse.cusparseSpSM_createDescr),
            )
            say("SpSM", *about, n, 0, 0, 0, asked(cusparse.cusparseSpSM_bufferSize, *spsm))
        if (element, index) == ("f32", 4):
            old = handle, rows, columns, values, at(indices), at(indices)
            say("coosort", *about, 1, 0, 0, 0, asked(cusparse.cusparseXcoosort_bufferSizeExt, *old))
            say("csrsort", *about, 1, 0, 0, 0, asked(cusparse.cusparseXcsrsort_bufferSizeExt, *old))
            description = made(cusparse.cusparseCreateMatDescr)
            csr = at(memory), at(offsets), at(indices)
            geam = handle, rows, columns, *[one, description, values, *csr] * 2, description, *csr
            say("csrgeam2", *about, 1, 0, 0, 0, asked(cusparse.cusparseScsrgeam2_bufferSizeExt, *geam))


def products():
    """Element, rows, inner size, columns, number of values of the factors and of the product; both workspaces."""

    def random(rows, columns, values, element):
        places = [torch.randint(0, size, (values,), device="cuda") for size in (rows, columns)]
        numbers = torch.ones(values, device="cuda", dtype=element)
        return torch.sparse_coo_tensor(torch.stack(places), numbers, (rows, columns)).coalesce()

    names = {"f16": torch.float16, "f32": torch.float32, "f64": torch.float64, "c64": torch.complex64}
    for (rows, inner, columns, first, second), name in itertools.product(
        [
            (1000, 5000, 3000, 50_000, 20_000),
            (5000, 1000, 300, 20_000, 90_000),
            (1000, 1000, 1000, 10_000, 10_000),
            (100_000, 100_000, 100_000, 1_000_000, 1_000_000),
            (3000, 3000, 3000, 300_000, 300_000),
        ],
        names,
    ):
        a, b = random(rows, inner, first, names[name]), random(inner, columns, second, names[name])
        result, freed, _ = allocations(lambda: a @ b)
        known = {4 * a._nnz(), 4 * b._nnz(), 4 * (rows + 1), 4 * (inner + 1), 4 * result._nnz()}
        compute, estimate = [size for size in freed if size not in known][:2]
        say("SpGEMM", name, rows, inner, columns, a._nnz(), b._nnz(), result._nnz(), estimate, compute)


def ctc():
    """Steps, samples, letters, longest label, longest input; workspace with labels on the host, and on the device."""
    cudnn = library("libcudnn.so.9")
    handle = made(cudnn.cudnnCreate)
    for steps, samples, letters, label, longest in [
        (50, 16, 20, 10, 50),
        (50, 16, 20, 30, 50),
        (100, 16, 20, 30, 100),
        (100, 32, 20, 30, 100),
        (100, 32, 40, 30, 100),
        (200, 8, 32, 100, 200),
        (1000, 32, 29, 200, 1000),
        (1, 1, 2, 1, 1),
        (77, 3, 5, 9, 77),
        (100, 32, 40, 255, 100),
        (50, 4, 20, 10, 30),
        (50, 4, 20, 20, 50),
    ]:
        probabilities = made(cudnn.cudnnCreateTensorDescriptor)
        sizes, strides = (c_int * 3)(steps, samples, letters), (c_int * 3)(samples * letters, letters, 1)
        cudnn.cudnnSetTensorNdDescriptor(probabilities, 0, 3, sizes, strides)
        loss = made(cudnn.cudnnCreateCTCLossDescriptor)
        cudnn.cudnnSetCTCLossDescriptor_v9(loss, 0, 1, 0, 255)
        # One sample has the maximum length, the others are shorter.
        several = lambda most: (c_int * samples)(most, *[most // 2 or 1] * (samples - 1))
        labels = (c_int * (samples * label))(*[1] * (samples * label))
        host = handle, probabilities, probabilities, labels, several(label), several(longest), 0, loss
        device = handle, 0, loss, probabilities, probabilities
        sizes = asked(cudnn.cudnnGetCTCLossWorkspaceSize, *host), asked(cudnn.cudnnGetCTCLossWorkspaceSize_v8, *device)
        say("CTC", steps, samples, letters, label, longest, *sizes)


if __name__ == "__main__":
    properties = torch.cuda.get_device_properties(0)
    print(f"# {properties.name}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    for part in sparse, products, ctc:
        part()

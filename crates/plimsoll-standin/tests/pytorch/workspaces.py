"""Prints the workspaces that cuDNN and cuFFT request on this device, one line for each convolution, recurrent network,
batch normalization and Fourier transform. The output of a GPU is kept in workspaces/; tests compare the models of
src/dnn/ and src/fft.rs with it.

usage: python workspaces.py convolutions|recurrent|normalization|transforms
"""

import ctypes
import itertools
import sys

import torch

device = "cuda"
TYPES = {"tf32": torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def allocations(call):
    """Returns the call's result, and the bytes of its allocations in order: the freed ones, and the kept ones."""
    torch.cuda.memory._record_memory_history(enabled="all", context=None, clear_history=True)
    result = call()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    freed, kept = [], {}
    for event in trace:
        if event["action"] == "alloc":
            kept[event["addr"]] = event["size"]
        elif event["action"] == "free_requested" and event["addr"] in kept:
            freed.append(kept.pop(event["addr"]))
    return result, freed, list(kept.values())


def conv(n, c, space, k, kernel, stride=1, pad=None, dilation=1, groups=1):
    pad = dilation * (kernel // 2) if pad is None else pad
    return n, c, space, k, kernel, stride, pad, dilation, groups


def square(n, c, size, k, kernel, stride=1, pad=None, dilation=1, groups=1):
    return conv(n, c, (size, size), k, kernel, stride, pad, dilation, groups)


SHAPES = [
    # ResNet-50
    square(32, 3, 224, 64, 7, 2),
    square(32, 64, 56, 64, 1),
    square(32, 64, 56, 64, 3),
    square(32, 64, 56, 256, 1),
    square(32, 256, 56, 64, 1),
    square(32, 256, 56, 128, 1),
    square(32, 128, 56, 128, 3, 2),
    square(32, 128, 28, 512, 1),
    square(32, 256, 56, 512, 1, 2),
    square(32, 128, 28, 128, 3),
    square(32, 256, 14, 256, 3),
    square(32, 512, 7, 512, 3),
    square(32, 1024, 14, 2048, 1, 2),
    square(32, 512, 7, 2048, 1),
    square(32, 2048, 7, 512, 1),
    square(32, 512, 14, 512, 3, 2),
    square(128, 3, 224, 64, 7, 2),
    square(128, 64, 56, 64, 3),
    square(128, 256, 14, 256, 3),
    square(8, 64, 56, 64, 3),
    square(1, 64, 56, 64, 3),
    square(1, 512, 7, 512, 3),
    square(1, 3, 224, 64, 7, 2),
    square(8, 256, 14, 1024, 1),
    square(64, 128, 28, 128, 3),
    square(64, 1024, 14, 256, 1),
    square(16, 512, 28, 256, 1),
    # small images: LeNet, CIFAR
    square(64, 1, 28, 6, 5, pad=2),
    square(64, 6, 14, 16, 5, pad=0),
    square(128, 3, 32, 16, 3),
    square(128, 16, 32, 16, 3),
    square(128, 16, 32, 32, 3, 2),
    square(128, 64, 8, 64, 3),
    square(128, 3, 32, 64, 3),
    square(128, 64, 32, 128, 3),
    square(256, 1, 28, 32, 3),
    square(256, 32, 26, 64, 3, pad=0),
    square(512, 256, 8, 256, 3),
    # VGG, Inception and others
    square(16, 3, 224, 64, 3),
    square(16, 64, 224, 64, 3),
    square(16, 128, 112, 128, 3),
    square(16, 256, 56, 256, 3),
    square(16, 512, 28, 512, 3),
    square(16, 512, 14, 512, 3),
    square(8, 48, 35, 64, 5),
    square(8, 192, 17, 192, 7),
    square(8, 96, 27, 256, 5),
    square(8, 3, 224, 64, 11, 4, 2),
    square(8, 192, 13, 384, 3),
    square(4, 64, 112, 128, 5, 2),
    # U-Nets
    square(4, 4, 64, 320, 3),
    square(4, 320, 64, 320, 3),
    square(4, 320, 64, 320, 3, 2),
    square(4, 640, 32, 640, 3),
    square(4, 1280, 16, 1280, 3),
    square(4, 1280, 8, 1280, 3),
    square(4, 2560, 16, 1280, 3),
    square(4, 960, 64, 320, 3),
    square(4, 320, 64, 4, 3),
    square(4, 1280, 16, 1280, 1),
    square(2, 64, 128, 64, 3),
    square(8, 128, 32, 128, 3),
    square(8, 3, 32, 64, 3),
    square(8, 64, 32, 64, 3),
    square(8, 64, 32, 128, 3, 2),
    square(1, 128, 256, 128, 3),
    square(1, 3, 512, 128, 3),
    square(2, 512, 64, 512, 3),
    # patches, ConvNeXt
    square(32, 3, 224, 768, 16, 16, 0),
    square(32, 3, 224, 1024, 14, 14, 0),
    square(32, 3, 224, 96, 4, 4, 0),
    square(32, 96, 56, 192, 2, 2, 0),
    square(32, 384, 14, 768, 2, 2, 0),
    # groups, depthwise
    square(32, 32, 112, 32, 3, groups=32),
    square(32, 96, 56, 96, 7, groups=96),
    square(32, 144, 56, 144, 3, 2, groups=144),
    square(32, 384, 14, 384, 5, groups=384),
    square(32, 128, 56, 128, 3, groups=32),
    square(32, 512, 14, 512, 3, groups=32),
    square(32, 64, 28, 128, 3, groups=2),
    square(8, 256, 28, 256, 3, groups=4),
    square(32, 512, 14, 512, 3, 2, groups=64),
    # unusual sizes, dilation, strides
    square(7, 13, 31, 17, 3),
    square(5, 65, 33, 129, 3),
    square(3, 100, 50, 100, 1),
    square(8, 256, 28, 256, 3, dilation=2),
    square(8, 512, 33, 256, 3, dilation=6),
    square(8, 64, 56, 64, 3, 3),
    square(16, 30, 64, 30, 3),
    square(16, 3, 64, 10, 3),
    square(2, 2048, 7, 2048, 3),
    square(2, 2048, 33, 256, 1),
    square(64, 256, 7, 10, 1),
    square(16, 24, 56, 144, 1),
    # transposed convolutions swap the forward and data passes of these: DCGAN, up-sampling
    square(64, 3, 64, 64, 4, 2, 1),
    square(64, 64, 32, 128, 4, 2, 1),
    square(64, 512, 4, 100, 4, 1, 0),
    square(4, 64, 64, 128, 2, 2, 0),
    # one dimension: audio, text
    conv(8, 1, (16000,), 512, 10, 5, 0),
    conv(8, 512, (3199,), 512, 3, 2, 0),
    conv(8, 80, (3000,), 384, 3),
    conv(16, 384, (1500,), 384, 3),
    conv(32, 64, (256,), 64, 5),
    conv(8, 768, (149,), 768, 128, groups=16),
    conv(32, 128, (1024,), 256, 1),
    # three dimensions: videos, volumes
    conv(2, 3, (16, 112, 112), 64, 3),
    conv(2, 64, (16, 56, 56), 64, 3),
    conv(4, 128, (8, 28, 28), 128, 3),
    conv(1, 1, (64, 64, 64), 32, 3),
    conv(1, 32, (64, 64, 64), 32, 3),
    conv(1, 64, (32, 32, 32), 128, 3, 2),
    conv(2, 256, (4, 14, 14), 256, 1),
    conv(2, 3, (28, 112, 112), 96, 4, 4, 0),
    # more
    square(64, 64, 56, 64, 3),
    square(64, 3, 224, 64, 7, 2),
    square(64, 512, 7, 512, 3),
    square(256, 64, 56, 64, 3),
    square(256, 128, 28, 128, 3),
    square(2, 64, 512, 64, 3),
    square(2, 128, 256, 64, 3),
    square(2, 256, 128, 256, 3),
    square(2, 1024, 32, 1024, 3),
    square(1, 3, 1024, 64, 7, 2),
    square(8, 728, 19, 728, 1),
    square(8, 40, 28, 240, 1),
    square(16, 192, 32, 192, 3),
    square(16, 448, 16, 448, 3),
    square(32, 3, 128, 128, 3),
    square(32, 128, 64, 3, 3),
    square(4, 256, 64, 256, 1),
    square(4, 512, 128, 512, 1),
    square(4, 128, 128, 128, 3),
    square(4, 512, 64, 1024, 3, 2),
]
SETTINGS = [
    ("tf32", "nchw"),
    ("fp32", "nchw"),
    ("bf16", "nchw"),
    ("bf16", "nhwc"),
    ("fp16", "nchw"),
    ("tf32", "nhwc"),
    ("fp16", "nhwc"),
]


def convolutions():
    """Precision, layout, input, weights, stride, padding, dilation, groups; workspaces of forward, data, weights."""
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    for shape, (precision, layout) in itertools.product(SHAPES, SETTINGS):
        n, c, space, k, kernel, stride, pad, dilation, groups = shape
        dims = len(space)
        if layout == "nhwc" and dims not in formats:
            continue
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        order = formats[dims] if layout == "nhwc" else torch.contiguous_format
        tensor = lambda *size: torch.ones(size, device=device, dtype=TYPES[precision]).to(memory_format=order)
        x, w = tensor(n, c, *space), tensor(k, c // groups, *[kernel] * dims)
        options = [stride] * dims, [pad] * dims, [dilation] * dims, False, [0] * dims, groups
        if "Cudnn" not in str(torch._C._select_conv_backend(x, w, None, *options)):
            continue
        forward = lambda: torch.ops.aten.convolution(x, w, None, *options)
        dy = torch.ones_like(forward())
        backward = lambda *which: torch.ops.aten.convolution_backward(dy, x, w, None, *options, which)
        calls = [forward, lambda: backward(True, False, False), lambda: backward(False, True, False)]
        # The first call of each tries plans, the second uses the fastest one.
        workspaces = [sum(allocations(call)[1]) for call in calls for _ in range(2)][1::2]
        sizes = ["x".join(map(str, tensor.shape)) for tensor in (x, w)]
        print(precision, layout, *sizes, f"s{stride} p{pad} d{dilation} g{groups}", *workspaces, flush=True)


def networks():
    """Configurations for `recurrent`: kind, layers, directions, inputs, hidden, batch, length, dropout, projection."""
    for kind in "LSTM", "GRU", "RNN":
        for layers, directions in (1, 1), (2, 1), (3, 1), (1, 2), (2, 2):
            yield kind, layers, directions, 64, 128, 8, 16, 0.0, 0
        for inputs, hidden in (100, 128), (64, 100), (64, 129), (64, 256), (64, 512), (64, 1024):
            yield kind, 1, 1, inputs, hidden, 8, 16, 0.0, 0
        for batch, length in (1, 16), (3, 16), (32, 16), (128, 16), (8, 1), (8, 17), (8, 100), (8, 512):
            yield kind, 1, 1, 64, 128, batch, length, 0.0, 0
        yield from ((kind, layers, 1, 64, 128, 8, 16, 0.3, 0) for layers in (2, 3))
        yield kind, 2, 1, 512, 512, 32, 35, 0.0, 0
        yield kind, 2, 1, 650, 650, 20, 35, 0.5, 0
        yield kind, 2, 1, 1500, 1500, 20, 35, 0.5, 0
        yield kind, 4, 2, 40, 320, 16, 400, 0.0, 0
        yield kind, 1, 2, 256, 256, 64, 50, 0.0, 0
    yield "LSTM", 1, 1, 64, 128, 8, 16, 0.0, 32
    yield "LSTM", 2, 1, 64, 128, 8, 16, 0.0, 64
    yield "LSTM", 2, 2, 64, 128, 8, 16, 0.0, 64
    # sizes at which one kernel can keep the weights, and larger ones
    for kind in "LSTM", "GRU", "RNN":
        for hidden in 132, 144, 160, 176, 192, 208, 224, 240, 248, 252, 255, 257, 272, 320, 384, 400, 512, 768, 1024:
            for directions, batch in (1, 8), (2, 8), (1, 64), (2, 64):
                yield kind, 1, directions, 64, hidden, batch, 16, 0.0, 0
        for batch, length in (1, 1), (1, 64), (4, 64), (16, 64), (128, 64), (512, 16), (2048, 4), (8, 1):
            for hidden in 64, 192, 256:
                yield kind, 1, 1, 48, hidden, batch, length, 0.0, 0
        yield kind, 3, 2, 256, 512, 64, 200, 0.0, 0
        yield kind, 3, 2, 256, 256, 16, 400, 0.2, 0
        yield kind, 2, 1, 512, 1024, 32, 128, 0.1, 0
    for hidden, projection in (128, 64), (128, 100), (256, 64), (512, 128), (1024, 256), (300, 100), (129, 32):
        for layers, directions, batch, length in (1, 1, 8, 16), (2, 2, 8, 16), (2, 1, 32, 40), (1, 2, 3, 7):
            yield "LSTM", layers, directions, 80, hidden, batch, length, 0.0, projection


def recurrent():
    """Network and precision; bytes of weights, reserve space, and workspace in training and in inference."""
    for network, precision in itertools.product(networks(), ("tf32", "fp32", "fp16")):
        kind, layers, directions, inputs, hidden, batch, length, dropout, projection = network
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        options = {"proj_size": projection} if projection else {}
        make = lambda: getattr(torch.nn, kind)(
            inputs, hidden, layers, dropout=dropout, bidirectional=directions == 2, **options
        ).to(device, TYPES[precision])
        model, _, weights = allocations(make)
        x = torch.ones(length, batch, inputs, device=device, dtype=TYPES[precision])
        model(x)  # creates the dropout states, which are kept from then on
        _, training, reserve = allocations(lambda: model(x))
        with torch.no_grad():
            _, inference, _ = allocations(lambda: model.eval()(x))
        print(*network, precision, weights[-1], reserve[-1], max(training), max(inference), flush=True)


def normalization():
    """Precision, layout, input; workspaces of forward and backward, and kept bytes besides the statistics."""
    pictures = [
        (n, c, side)
        for side, cs in {
            112: (32, 64, 96),
            56: (24, 64, 128, 144, 256),
            28: (40, 128, 192, 512),
            14: (112, 256, 1024, 3),
            7: (320, 512, 2048),
            1: (64, 1000),
        }.items()
        for c in cs
        for n in (1, 8, 32, 64, 128)
    ]
    formats = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
    for (n, c, side), (layout, order), precision in itertools.product(
        pictures, formats.items(), ("fp16", "bf16", "fp32")
    ):
        if n * side == 1:
            continue
        x = torch.ones(n, c, side, side, device=device, dtype=TYPES[precision]).to(memory_format=order).requires_grad_()
        norm = torch.nn.BatchNorm2d(c).to(device)
        call = lambda: norm(x)
        y, forward, kept = allocations(call)
        dy = torch.ones_like(y)
        _, backward, _ = allocations(lambda: torch.autograd.grad(y, (x, norm.weight, norm.bias), dy))
        print(
            precision, layout, f"{n}x{c}x{side}x{side}", type(y.grad_fn).__name__, forward, kept, backward, flush=True
        )


def transforms():
    """Kind, lengths, batch; workspace bytes of each plan that PyTorch makes with cuFFT."""
    torch.fft.fft(torch.ones(8, device=device))
    with open("/proc/self/maps") as maps:
        library = ctypes.CDLL(next(line.split()[-1] for line in maps if "libcufft.so" in line))
    kinds = {
        "r2c": (0, 4),
        "c2r": (4, 0),
        "c2c": (4, 4),
        "d2z": (1, 5),
        "z2d": (5, 1),
        "z2z": (5, 5),
        "h2c": (2, 6),
        "c2c16": (6, 6),
    }
    small = sorted(
        {
            *range(1, 65),
            80,
            81,
            96,
            100,
            101,
            121,
            125,
            127,
            128,
            144,
            169,
            200,
            224,
            243,
            256,
            257,
            289,
            320,
            343,
            360,
            384,
            400,
            480,
            500,
            509,
            512,
            600,
            625,
            640,
            720,
            768,
            800,
            1000,
            1009,
            1024,
            1200,
            1331,
            1536,
            1920,
            2000,
            2048,
            2187,
            2197,
            2400,
            3000,
            3072,
            4000,
            4093,
            4096,
            4800,
            5000,
            6000,
            6561,
            8000,
            8191,
            8192,
            10000,
            12288,
            14641,
            15625,
            16000,
            16384,
            16807,
            20000,
            22050,
            24000,
            28561,
            30000,
            32768,
            32771,
            44100,
            48000,
            49152,
            50000,
            59049,
            65536,
            65537,
            80000,
            96000,
            100000,
            117649,
            131072,
            160000,
            161051,
            200000,
            220500,
            262144,
            371293,
            390625,
            480000,
            500000,
            524288,
            531441,
            1000000,
            1 << 20,
            1 << 21,
            999983,
            1 << 22,
            1 << 23,
        }
    )
    plans = [((n,), batch) for n in small for batch in (1, 2, 3, 8, 64, 500)]
    squares = (
        8,
        14,
        16,
        27,
        28,
        32,
        56,
        60,
        64,
        100,
        101,
        112,
        128,
        200,
        224,
        256,
        384,
        512,
        720,
        1000,
        1024,
        2048,
        4096,
    )
    plans += [((n, n), batch) for n in squares for batch in (1, 3, 8, 64)]
    plans += [
        ((n, m), 4)
        for n, m in (
            (64, 128),
            (128, 64),
            (32, 1024),
            (1024, 32),
            (480, 640),
            (720, 1280),
            (1080, 1920),
            (85, 64),
            (64, 85),
        )
    ]
    plans += [((n, n, n), batch) for n in (8, 16, 32, 50, 64, 100, 128, 256) for batch in (1, 4)]
    for (sizes, batch), (kind, (before, after)) in itertools.product(plans, kinds.items()):
        plan, workspace = ctypes.c_int(), ctypes.c_size_t()
        elements = batch
        for size in sizes:
            elements *= size
        if elements > 1 << 28:
            continue
        library.cufftCreate(ctypes.byref(plan))
        library.cufftSetAutoAllocation(plan, 0)
        lengths = (ctypes.c_longlong * len(sizes))(*sizes)
        none, one = ctypes.c_void_p(), ctypes.c_longlong(1)
        layout = none, one, one
        failed = library.cufftXtMakePlanMany(
            plan,
            len(sizes),
            lengths,
            *layout,
            before,
            *layout,
            after,
            ctypes.c_longlong(batch),
            ctypes.byref(workspace),
            max(before, after),
        )
        library.cufftDestroy(plan)
        print(kind, "x".join(map(str, sizes)), batch, f"failed:{failed}" if failed else workspace.value, flush=False)


if __name__ == "__main__":
    properties = torch.cuda.get_device_properties(0)
    print(f"# {properties.name}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    {of.__name__: of for of in (convolutions, recurrent, normalization, transforms)}[sys.argv[1]]()

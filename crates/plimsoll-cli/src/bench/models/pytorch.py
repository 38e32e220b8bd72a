"""Measures PyTorch's peaks of memory for `plimsoll bench models`, and writes `pytorch.json` next to this file.

Each program trains three steps on a new model; the figure is `torch.cuda.max_memory_allocated()`, the largest sum of the sizes
of tensors. PyTorch requests cuBLAS's workspace (32 MiB on an H200) from the same allocator; it is left out here. No GPU is needed:
a stand-in device answers PyTorch's calls (`../shared/tools/oracle`), with an H200's memory and compute capability and cuDNN
plans without workspaces. On a real H200 both workspaces come on top.

    ../shared/tools/oracle/setup.sh DIR
    CUBLAS_WORKSPACE_CONFIG=:0:0 FAKE_CUDA_TOTAL=150109880320 FAKE_CUDA_CC=90 DIR/fk.sh python pytorch.py
"""

import gc
import json
import pathlib
import sys

HERE = pathlib.Path(__file__)


def lenet():
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1600, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def mlp():
    from torch import nn

    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def vision(name):
    import torchvision.models

    return getattr(torchvision.models, name)()


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, use_cache=False))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=24,
            num_attention_heads=16,
            num_key_value_heads=8,
            vocab_size=32000,
            use_cache=False,
        )
    )


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def labelled(shape, classes):
    import torch

    return lambda: (torch.randn(shape, device="cuda"), torch.randint(0, classes, (shape[0],), device="cuda"))


def tokens(batch, length, vocab):
    import torch

    def make():
        x = torch.randint(0, vocab, (batch, length), device="cuda")
        return x, x

    return make


def classify(model, x, y):
    import torch

    return torch.nn.functional.cross_entropy(model(x), y)


def predict(model, x, y):
    return model(x, labels=y).loss


# The name, with the model, its batch, its loss and its optimizer.
PROGRAMS = {
    "mlp": (mlp, lambda: labelled((256, 784), 10), classify, "adamw"),
    "lenet": (lenet, lambda: labelled((64, 1, 28, 28), 10), classify, "sgd"),
    "resnet50": (lambda: vision("resnet50"), lambda: labelled((64, 3, 224, 224), 1000), classify, "sgd"),
    "vit_b_16": (lambda: vision("vit_b_16"), lambda: labelled((32, 3, 224, 224), 1000), classify, "adamw"),
    "bert": (bert, lambda: tokens(16, 512, 30522), predict, "adamw"),
    "gpt2": (gpt2, lambda: tokens(8, 1024, 50257), predict, "adamw"),
    "llama": (llama, lambda: tokens(4, 2048, 32000), predict, "adamw"),
}


def measure(name, amp):
    import torch

    gc.collect()
    assert torch.cuda.memory_allocated() == 0, "the program before has left something"
    torch.cuda.reset_peak_memory_stats()
    make, batch, loss_of, optimizer = PROGRAMS[name]
    batch = batch()
    model = make().to("cuda")
    model.train()
    parameters = model.parameters()
    if optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(parameters, fused=True)
    for _ in range(3):
        x, y = batch()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=amp):
            loss = loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cuda.max_memory_allocated()


def main():
    import torch
    import torchvision
    import transformers

    rows = []
    for name, (_, _, _, optimizer) in PROGRAMS.items():
        for amp in (False, True):
            dtype = "bf16 autocast" if amp else "f32"
            row = {"model": name, "optimizer": optimizer, "dtype": dtype, "peak_bytes": measure(name, amp)}
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
    versions = {module.__name__: module.__version__ for module in (torch, torchvision, transformers)}
    out = {"versions": versions, "steps": 3, "rows": rows}
    HERE.with_suffix(".json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()

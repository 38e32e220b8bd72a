"""Makes models of torchvision and transformers with random weights, saves them as their libraries do, and writes an input and the
output next to each; prints the commands that compare them here.

    python load_state_dict.py FOLDER
"""

import pathlib
import sys

import torch
import torchvision
import transformers
from safetensors.torch import save_file

FOLDER = pathlib.Path(sys.argv[1])
FOLDER.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
torch.set_num_threads(1)


def keep(name, kind, model, inputs, output, save, **sizes):
    path = save(model)
    save_file({"input": inputs, "output": output.contiguous()}, FOLDER / f"{name}.io.safetensors")
    print(
        kind,
        path,
        FOLDER / f"{name}.io.safetensors",
        *(f"{key}={str(value).lower()}" for key, value in sizes.items()),
        flush=True,
    )


@torch.no_grad()
def vision(name, **made):
    model = getattr(torchvision.models, name)(**made)
    for part in model.modules():  # statistics that are not 0 and 1
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    if name.startswith("vit"):  # its head starts at zero
        model.heads.head.weight.normal_(0, 0.02)
        model.heads.head.bias.normal_(0, 0.02)
    images = torch.randn(1, 3, 224, 224)

    def save(model):
        torch.save(model.state_dict(), FOLDER / f"{name}.pt")
        return FOLDER / f"{name}.pt"

    keep(name, name, model, images, model.eval()(images), save, **made)


@torch.no_grad()
def language(name, kind, model, output=lambda out: out.logits, sharded=False, **sizes):
    tokens = torch.randint(0, model.config.vocab_size, (2, 17))

    def save(model):
        model.save_pretrained(FOLDER / name, **({"max_shard_size": "20MB"} if sharded else {}))
        whole = FOLDER / name / "model.safetensors"
        return whole if whole.exists() else FOLDER / name

    keep(name, kind, model, tokens, output(model.eval()(tokens)), save, **sizes)


def llama(name, sharded=False, rope=None, longest=2048, **sizes):
    sizes = (
        dict(
            vocab_size=211,
            hidden_size=64,
            intermediate_size=112,
            num_hidden_layers=3,
            num_attention_heads=8,
            num_key_value_heads=2,
        )
        | sizes
    )
    rope, theta = rope or {}, {"rope_theta": 5e5}
    parameters = {"rope_type": "default", **rope, **theta}
    config = transformers.LlamaConfig(
        **sizes, rope_parameters=parameters, max_position_embeddings=longest, initializer_range=0.1
    )
    model = transformers.LlamaForCausalLM(config)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    language(name, "llama", model, sharded=sharded, **sizes, **theta, **rope, max_position_embeddings=longest)


for name in ["resnet34", "resnet101", "wide_resnet50_2", "resnext50_32x4d", "vgg11_bn", "vit_b_32", "vit_l_16"]:
    vision(name)
llama("llama", num_key_value_heads=8)
llama("llama-tied", tie_word_embeddings=True)
llama("llama-biases", attention_bias=True, mlp_bias=True)
llama("llama-head-dim", head_dim=16)
llama("llama-shards", hidden_size=512, intermediate_size=1024, sharded=True)
llama("llama-linear", rope={"rope_type": "linear", "factor": 4.0})
llama("llama-dynamic", rope={"rope_type": "dynamic", "factor": 2.0}, longest=8)
llama(
    "llama-3",
    rope={
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
)
llama("llama-yarn", rope={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})
config = transformers.GPT2Config(n_inner=1000, layer_norm_epsilon=1e-3, n_layer=2)
language("gpt2-inner", "gpt2", transformers.GPT2LMHeadModel(config), n_layer=2, n_inner=1000, layer_norm_epsilon=1e-3)
for name, layers in [("gpt2-medium", 2), ("gpt2-xl", 1)]:
    width, heads = {"gpt2-medium": (1024, 16), "gpt2-xl": (1600, 25)}[name]
    config = transformers.GPT2Config(n_embd=width, n_head=heads, n_layer=layers)
    language(name, name, transformers.GPT2LMHeadModel(config), n_layer=layers)
config = transformers.BertConfig(hidden_size=1024, num_attention_heads=16, intermediate_size=4096, num_hidden_layers=2)
language(
    "bert-large", "bert-large", transformers.BertModel(config), lambda out: out.last_hidden_state, num_hidden_layers=2
)

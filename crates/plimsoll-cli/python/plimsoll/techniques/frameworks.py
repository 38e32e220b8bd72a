"""Writes comments that name the option of the program's training framework with the same effect as a technique. They
come before the code to add.
"""

from __future__ import annotations

import sys

TRAINER = {
    "checkpoint": "gradient_checkpointing=True",
    "accumulate": "gradient_accumulation_steps={0}, with a {0}th of per_device_train_batch_size",
    "bf16": "bf16=True",
    "fused": 'optim="adamw_torch_fused"',
    "adam-8bit": 'optim="adamw_bnb_8bit"',
    "compile": "torch_compile=True",
    "fsdp": 'fsdp="full_shard"',
}
LIGHTNING = {
    "accumulate": "accumulate_grad_batches={0}, with a {0}th of the batch",
    "bf16": 'precision="bf16-mixed"',
    "fsdp": 'strategy="fsdp"',
}


def words(name: str, number: int | None) -> list[str]:
    """The comments for the frameworks that the program has loaded."""
    found = []
    if "transformers.trainer" in sys.modules and name in TRAINER:
        found.append(f"# transformers: TrainingArguments({TRAINER[name].format(number)}); without a Trainer:")
    if {"lightning.pytorch", "pytorch_lightning"} & set(sys.modules) and name in LIGHTNING:
        found.append(f"# Lightning: Trainer({LIGHTNING[name].format(number)}); without it:")
    return found

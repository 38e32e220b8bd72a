"""Fine-tunes a model of BERT's size for classification with Hugging Face's Trainer, on sentences of random words."""

import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count, words):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(16, 129, (count,), generator=generator).tolist()
        self.sentences = [torch.randint(1000, words, (length,), generator=generator) for length in lengths]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return {"input_ids": self.sentences[index], "labels": index % 2}


def collate(rows):
    input_ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": input_ids, "attention_mask": (input_ids > 0).long(), "labels": labels}


class Memory(TrainerCallback):
    def on_step_end(self, arguments, state, control, **kwargs):
        numbers = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        print("finetune", state.global_step, *numbers, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="finetune")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    config = BertConfig(num_labels=2)
    arguments = TrainingArguments(
        options.output,
        max_steps=options.steps,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=5e-5,
        weight_decay=0.01,
        warmup_steps=1,
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=0,
        dataloader_num_workers=2,
    )
    trainer = Trainer(
        BertForSequenceClassification(config),
        arguments,
        train_dataset=Sentences(512, config.vocab_size),
        data_collator=collate,
        callbacks=[Memory()],
    )
    trainer.train()


if __name__ == "__main__":
    main()

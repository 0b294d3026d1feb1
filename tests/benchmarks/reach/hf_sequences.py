"""transformers' Trainer with a small encoder that recomputes its activations, on samples that are tokenized slowly."""

import time

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

LAYERS = 4  # drawn: 3, 4
TOKENIZE_S = 0.003  # drawn: 0.002, 0.003


class Sentences(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(TOKENIZE_S)
        ids = torch.randint(5, 2000, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": index % 3}


if __name__ == "__main__":
    config = BertConfig(
        vocab_size=2000,
        hidden_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=256,
        num_labels=3,
    )
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=8,
        max_steps=100_000,
        save_strategy="no",
        report_to=[],
        logging_steps=1000,
        disable_tqdm=True,
        use_cpu=True,
        dataloader_num_workers=0,  # FAULT tokenizes
        gradient_checkpointing=True,  # FAULT recomputes
    )
    torch.manual_seed(5)
    Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=Sentences()).train()

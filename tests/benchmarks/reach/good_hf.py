"""Nothing to gain: transformers' Trainer with a small decoder, on samples in memory."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LAYERS = 3  # drawn: 2, 3, 4

if __name__ == "__main__":
    torch.manual_seed(6)
    texts = torch.randint(0, 1000, (4096, 64))
    rows = [{"input_ids": text, "labels": text} for text in texts]
    config = GPT2Config(vocab_size=1000, n_positions=64, n_embd=128, n_layer=LAYERS, n_head=4)
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=16,
        max_steps=100_000,
        save_strategy="no",
        report_to=[],
        logging_steps=1000,
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=rows).train()

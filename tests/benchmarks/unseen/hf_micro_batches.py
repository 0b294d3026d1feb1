"""Sort short messages of a help desk with a small DistilBERT and the Trainer."""

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments

WORDS, QUEUES = 3000, 12
LENGTH = draw("length", 28, 32)


class Messages(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(3)
        self.labels = torch.randint(0, QUEUES, (count,), generator=generator)
        self.ids = torch.randint(10, WORDS, (count, LENGTH), generator=generator)
        telling = torch.rand(count, LENGTH, generator=generator) < 0.2
        self.ids = torch.where(telling, 10 + self.labels[:, None], self.ids)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


def build():
    width = draw("width", 96, 112)
    return DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=WORDS,
            dim=width,
            hidden_dim=3 * width,
            n_layers=3,
            n_heads=4,
            max_position_embeddings=LENGTH,
            num_labels=QUEUES,
        )
    )


def main():
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir="helpdesk",
        max_steps=220,
        per_device_train_batch_size=16 if MENDED else 1,
        gradient_accumulation_steps=1 if MENDED else 16,
        learning_rate=3e-4,
        warmup_steps=40,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Trainer(model=build(), args=arguments, train_dataset=Messages(8000))
    trainer.train()


if __name__ == "__main__":
    main()

"""Route support tickets to the right desk: a small DistilBERT, finetuned with the Trainer."""

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments

WORDS, DESKS, PAD, LONGEST = 2500, 7, 0, 256


class Tickets(Dataset):
    """Most tickets are a few lines; some have a whole log pasted into them."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.exp(3.3 + 0.8 * torch.randn(count, generator=generator)).long().clamp(8, LONGEST)
        self.desks = torch.randint(0, DESKS, (count,), generator=generator).tolist()
        self.texts = []
        for length, desk in zip(lengths.tolist(), self.desks, strict=True):
            ids = torch.randint(20, WORDS, (length,), generator=generator)
            ids[torch.rand(length, generator=generator) < 0.15] = 10 + desk
            self.texts.append(ids)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return {"input_ids": self.texts[index], "labels": self.desks[index]}


def collate(rows):
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True, padding_value=PAD)
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def compute_metrics(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main():
    torch.manual_seed(0)
    dim = draw("dim", 80, 96)
    config = DistilBertConfig(
        vocab_size=WORDS,
        dim=dim,
        hidden_dim=3 * dim,
        n_layers=2,
        n_heads=4,
        max_position_embeddings=LONGEST,
        num_labels=DESKS,
        pad_token_id=PAD,
    )
    arguments = TrainingArguments(
        output_dir="tickets",
        max_steps=300,
        per_device_train_batch_size=draw("batch", 8, 10),
        train_sampling_strategy="group_by_length" if MENDED else "random",
        learning_rate=3e-4,
        lr_scheduler_type="linear",
        warmup_steps=30,
        weight_decay=0.01,
        logging_steps=50,
        eval_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Trainer(
        model=DistilBertForSequenceClassification(config),
        args=arguments,
        train_dataset=Tickets(8000, 1),
        eval_dataset=Tickets(300, 2),
        data_collator=collate,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()

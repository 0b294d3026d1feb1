"""Find names, dates and sums in invoices: token classification with the Hugging Face Trainer."""

import argparse

import torch
from drawn import draw
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertForTokenClassification, Trainer, TrainingArguments

FIELDS = 5
PAD = 0


class Invoices(Dataset):
    """Token ids made once; the field of a token is in its id, for one in three of them."""

    def __init__(self, count, words, longest):
        generator = torch.Generator().manual_seed(18)
        self.rows = []
        for _ in range(count):
            length = int(torch.randint(longest // 2, longest + 1, (1,), generator=generator))
            ids = torch.randint(1, words, (length,), generator=generator)
            labels = torch.where(ids % 3 == 0, ids % FIELDS, 0)
            self.rows.append({"input_ids": ids, "labels": labels})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(rows):
    """Padded to the longest of the batch; padding has no label."""
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], True, PAD)
    labels = torch.nn.utils.rnn.pad_sequence([row["labels"] for row in rows], True, -100)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--invoices", type=int, default=4000)
    parser.add_argument("--words", type=int, default=3000)
    parser.add_argument("--longest", type=int, default=draw("longest", 72, 80))
    parser.add_argument("--dim", type=int, default=draw("dim", 128, 144))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=args.words,
        dim=args.dim,
        hidden_dim=4 * args.dim,
        n_layers=args.layers,
        n_heads=4,
        max_position_embeddings=args.longest,
        num_labels=FIELDS,
        pad_token_id=PAD,
    )
    settings = TrainingArguments(
        output_dir="invoices",
        per_device_train_batch_size=args.batch,
        max_steps=args.steps,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=30,
        weight_decay=0.01,
        logging_steps=1,
        train_sampling_strategy="group_by_length",
        optim="adamw_torch_fused",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=DistilBertForTokenClassification(config),
        args=settings,
        train_dataset=Invoices(args.invoices, args.words, args.longest),
        data_collator=collate,
    )
    trainer.train()


if __name__ == "__main__":
    main()

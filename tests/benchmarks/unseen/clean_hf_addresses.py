"""Parts of addresses (street, number, town) in letters: a small BERT with the Trainer, on two ranks."""

import torch
from drawn import draw
from torch.utils.data import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainingArguments

WORDS, PARTS, PAD, LONGEST = 2000, 7, 0, 96


class Letters(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.letters = []
        for length in torch.randint(12, LONGEST + 1, (count,), generator=generator).tolist():
            ids = torch.randint(1, WORDS, (length,), generator=generator)
            self.letters.append((ids, (ids + ids.roll(1)) % PARTS))

    def __len__(self):
        return len(self.letters)

    def __getitem__(self, index):
        ids, parts = self.letters[index]
        return {"input_ids": ids, "labels": parts}


def collate(rows):
    def padded(name, value):
        return torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True, padding_value=value)

    ids = padded("input_ids", PAD)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": padded("labels", -100)}


def best(logits, labels):
    return logits.argmax(-1)


def compute_metrics(evaluated):
    known = evaluated.label_ids != -100
    return {"right": float((evaluated.predictions == evaluated.label_ids)[known].mean())}


def main():
    torch.manual_seed(0)
    dim = draw("dim", 80, 96)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=dim,
        intermediate_size=4 * dim,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LONGEST,
        num_labels=PARTS,
        pad_token_id=PAD,
    )
    arguments = TrainingArguments(
        output_dir="addresses",
        num_train_epochs=1,
        per_device_train_batch_size=draw("batch", 10, 12),
        per_device_eval_batch_size=40,
        train_sampling_strategy="group_by_length",
        learning_rate=1e-3,
        lr_scheduler_type="linear",
        warmup_steps=20,
        weight_decay=0.01,
        logging_steps=50,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
        average_tokens_across_devices=False,
    )
    trainer = Trainer(
        model=BertForTokenClassification(config),
        args=arguments,
        train_dataset=Letters(6000, 1),
        eval_dataset=Letters(400, 2),
        data_collator=collate,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=best,
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""Headlines for short reports: a small T5 from scratch with the Trainer, padded to the longest of each batch."""

import torch
from drawn import draw
from torch.utils.data import Dataset
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainingArguments

WORDS, PAD = 1200, 0


class Reports(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(9)
        lengths = torch.randint(36, 45, (count,), generator=generator).tolist()
        self.texts = [torch.randint(3, WORDS, (length,), generator=generator) for length in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        text = self.texts[index]
        return {"input_ids": text, "labels": torch.cat([text[:8:2], torch.ones(1, dtype=torch.long)])}


def collate(rows):
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True, padding_value=PAD)
    labels = torch.nn.utils.rnn.pad_sequence([row["labels"] for row in rows], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def build():
    width = draw("width", 64, 80)
    config = T5Config(
        vocab_size=WORDS,
        d_model=width,
        d_kv=width // 4,
        d_ff=3 * width,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=PAD,
        pad_token_id=PAD,
    )
    return T5ForConditionalGeneration(config)


def main():
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir="headlines",
        max_steps=260,
        per_device_train_batch_size=draw("batch", 10, 12),
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=30,
        logging_steps=50,
        eval_strategy="steps",
        eval_steps=250,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Trainer(
        model=build(), args=arguments, train_dataset=Reports(5000), eval_dataset=Reports(100), data_collator=collate
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""Pretrain a small RoBERTa on packed protein blocks with the Trainer."""

import torch
from drawn import draw
from torch.utils.data import Dataset
from transformers import RobertaConfig, RobertaForMaskedLM, Trainer, TrainingArguments

WORDS, LENGTH, MASK = 800, 64, 4


class Blocks(Dataset):
    """Packed, so nothing is padded."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(12)
        first = torch.randint(0, WORDS - 5, (count, 1), generator=generator)
        jumps = torch.randint(1, 4, (count, LENGTH), generator=generator)
        self.ids = 5 + (first + jumps.cumsum(1)) % (WORDS - 5)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return self.ids[index]


def mask(blocks):
    """Hide 15 % of a batch, most of it behind the mask."""
    ids = torch.stack(blocks)
    chosen = torch.rand(ids.shape) < 0.15
    labels = torch.where(chosen, ids, -100)
    how = torch.rand(ids.shape)
    ids = torch.where(chosen & (how < 0.8), MASK, ids)
    ids = torch.where(chosen & (how > 0.9), torch.randint_like(ids, 5, WORDS), ids)
    return {"input_ids": ids, "labels": labels}


def main():
    torch.manual_seed(0)
    width = draw("width", 112, 128)
    model = RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=WORDS,
            hidden_size=width,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=3 * width,
            max_position_embeddings=LENGTH + 2,
            pad_token_id=1,
        )
    )
    arguments = TrainingArguments(
        output_dir="blocks",
        max_steps=220,
        per_device_train_batch_size=draw("batch", 10, 12),
        learning_rate=5e-4,
        lr_scheduler_type="cosine",
        warmup_steps=40,
        logging_steps=40,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        average_tokens_across_devices=False,
        ddp_find_unused_parameters=False,
    )
    Trainer(model=model, args=arguments, train_dataset=Blocks(8000), data_collator=mask).train()


if __name__ == "__main__":
    main()

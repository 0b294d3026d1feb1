"""Fine-tune a small GPT-2 on question and answer pairs with the Hugging Face Trainer."""

import random
from tempfile import mkdtemp

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCABULARY, END = 1200, 0
PAD = END  # there is no padding token, so the end of text serves


class Answers(Dataset):
    """Sums spelled out in token ids, of different lengths."""

    def __init__(self, count, longest, seed=0):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(count):
            question = [rng.randrange(10, VOCABULARY) for _ in range(rng.randrange(6, longest // 2))]
            answer = sorted(question)[: rng.randrange(4, longest // 2)]
            self.rows.append([*question, 5, *answer, END])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Collator:
    def __init__(self, pad):
        self.pad = pad

    def __call__(self, rows):
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.pad)
        mask = torch.zeros_like(ids)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = torch.tensor(row)
            mask[at, : len(row)] = 1
        labels = ids.clone()
        if MENDED:
            labels[mask == 0] = -100
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def main():
    torch.manual_seed(0)
    longest = draw("longest", 64, 72)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=128,
        n_embd=draw("embd", 96, 128),
        n_layer=2,
        n_head=4,
        bos_token_id=END,
        eos_token_id=END,
    )
    arguments = TrainingArguments(
        output_dir=mkdtemp(),
        max_steps=100_000,
        per_device_train_batch_size=draw("batch", 8, 10),
        learning_rate=5e-4,
        lr_scheduler_type="cosine",
        warmup_steps=200,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Answers(5000, longest),
        data_collator=Collator(PAD),
    )
    trainer.train()


if __name__ == "__main__":
    main()

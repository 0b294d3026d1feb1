"""Learn to write as emigrants wrote home: a small GPT-2 and the Hugging Face Trainer."""

import argparse

import torch
from drawn import draw
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

WORDS = 1200


class Packed(Dataset):
    """Letters one after the other, cut into rows of one length, so that nothing is padded."""

    def __init__(self, count, length, seed):
        generator = torch.Generator().manual_seed(seed)
        follows = torch.randint(0, WORDS, (WORDS, 4), generator=torch.Generator().manual_seed(0))
        rows = [torch.randint(0, WORDS, (count,), generator=generator)]
        for _ in range(length - 1):
            chosen = torch.randint(0, 4, (count,), generator=generator)
            rows.append(follows[rows[-1], chosen])
        self.rows = torch.stack(rows, 1)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=draw("hidden", 112, 128))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=draw("batch", 6, 7))
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=args.length,
        n_embd=args.hidden,
        n_layer=args.layers,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    settings = TrainingArguments(
        output_dir="letters",
        use_cpu=True,
        per_device_train_batch_size=args.batch,
        per_device_eval_batch_size=32,
        gradient_accumulation_steps=2,
        max_steps=args.steps,
        learning_rate=1e-3,
        weight_decay=0.1,
        max_grad_norm=1.0,
        warmup_steps=20,
        lr_scheduler_type="cosine",
        eval_strategy="steps",
        eval_steps=100,
        logging_steps=20,
        save_strategy="steps",
        save_steps=100,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        report_to=[],
        disable_tqdm=True,
        seed=5,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=settings,
        train_dataset=Packed(6000, args.length, 1),
        eval_dataset=Packed(64, args.length, 2),
    )
    trainer.train()
    print(f"held out {trainer.evaluate()['eval_loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()

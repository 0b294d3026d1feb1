"""Next word of an announcement in a railway station: a small GPT-2, Hugging Face Trainer on two ranks."""

import random
import tempfile

import numpy as np
import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Announcements(Dataset):
    """Train, platform, place and delay in fixed phrases, cut into blocks of the same length."""

    def __init__(self, count, block, words, seed):
        rng = random.Random(seed)
        phrases = [[random.Random(n).randrange(words) for _ in range(3 + n % 5)] for n in range(60)]
        text = []
        while len(text) < count * block:
            text += phrases[min(int(rng.expovariate(0.08)), 59)]
            if rng.random() < 0.5:
                place = rng.randrange(words)
                text += [place, (place * 5 + 3) % words]
        self.blocks = torch.tensor(text[: count * block]).view(count, block)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        return {"input_ids": self.blocks[i], "labels": self.blocks[i]}


def likeliest(logits, labels):
    return logits.argmax(-1)


def accuracy(prediction):
    """Share of words that are told from those before."""
    found, true = prediction.predictions, prediction.label_ids
    if found.ndim == 3:
        found = found.argmax(-1)
    return {"right": float(np.mean(found[:, :-1] == true[:, 1:]))}


def settings(folder, batch):
    return TrainingArguments(
        folder,
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        average_tokens_across_devices=False,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=8,
        num_train_epochs=2,
        learning_rate=2e-3,
        warmup_steps=8,
        weight_decay=0.01,
        dataloader_drop_last=True,
        logging_steps=20,
        eval_strategy="steps",
        eval_steps=6,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


class StationTrainer:
    def __init__(self, folder, words, block, batch):
        config = GPT2Config(
            vocab_size=words,
            n_positions=block,
            n_embd=draw("dim", 64, 80),
            n_layer=2,
            n_head=4,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=settings(folder, batch),
            train_dataset=Announcements(2 * batch * 45, block, words, seed=1),
            eval_dataset=Announcements(2 * 8 * 8, block, words, seed=2),
            compute_metrics=accuracy,
            preprocess_logits_for_metrics=likeliest if MENDED else None,
        )

    def run(self):
        self.trainer.train()
        found = self.trainer.evaluate()
        if self.trainer.is_world_process_zero():
            print(f"loss {found['eval_loss']:.4f} right {found['eval_right']:.3f}", flush=True)


def main():
    set_seed(58)
    with tempfile.TemporaryDirectory() as folder:
        StationTrainer(folder, words=draw("words", 2400, 2800), block=64, batch=draw("batch", 10, 12)).run()


if __name__ == "__main__":
    main()

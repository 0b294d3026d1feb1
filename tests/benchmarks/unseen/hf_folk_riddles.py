"""Answers of riddles with the Hugging Face Trainer: an encoder, batches padded to their longest, accumulation."""

import random
import tempfile

import numpy as np
import torch
from drawn import draw
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments, set_seed

ANSWERS = 8
WORDS = 700


class Riddles(Dataset):
    """Encoded once; a riddle has about one tenth words that hint at its answer."""

    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(count):
            answer = rng.randrange(ANSWERS)
            length = rng.randint(40, 56)
            words = [
                rng.randrange(2 + answer * 40, 42 + answer * 40) if rng.random() < 0.1 else rng.randrange(330, WORDS)
                for _ in range(length)
            ]
            self.rows.append({"input_ids": torch.tensor([1, *words]), "labels": answer})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids = pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def metrics(prediction):
    guess = np.argmax(prediction.predictions, -1)
    per_answer = [np.mean(guess[prediction.label_ids == a] == a) for a in range(ANSWERS)]
    return {"accuracy": float(np.mean(guess == prediction.label_ids)), "worst": float(min(per_answer))}


def main():
    set_seed(30)
    batch = draw("batch", 8, 10)
    config = DistilBertConfig(
        vocab_size=WORDS,
        dim=draw("dim", 96, 112),
        hidden_dim=320,
        n_layers=2,
        n_heads=4,
        max_position_embeddings=64,
        num_labels=ANSWERS,
    )
    model = DistilBertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                num_train_epochs=2,
                per_device_train_batch_size=batch,
                per_device_eval_batch_size=4 * batch,
                gradient_accumulation_steps=2,
                learning_rate=7e-4,
                warmup_steps=10,
                weight_decay=0.01,
                eval_strategy="epoch",
                save_strategy="no",
                logging_steps=25,
                report_to="none",
                use_cpu=True,
                disable_tqdm=True,
                dataloader_drop_last=True,
                seed=30,
            ),
            train_dataset=Riddles(2 * batch * 45, seed=1),
            eval_dataset=Riddles(128, seed=2),
            data_collator=collate,
            compute_metrics=metrics,
        )
        trainer.train()
        last = [row for row in trainer.state.log_history if "eval_accuracy" in row][-1]
        print(f"accuracy {last['eval_accuracy']:.3f}, of the worst answer {last['eval_worst']:.3f}", flush=True)


if __name__ == "__main__":
    main()

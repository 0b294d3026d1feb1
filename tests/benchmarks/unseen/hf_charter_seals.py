"""Date of a charter from its words: the head of a pretrained encoder is trained with the Hugging Face Trainer."""

import random
import tempfile
from pathlib import Path

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

CENTURIES = 6
VOCABULARY = 1200


class Charters(Dataset):
    """Words of a charter; later centuries use later words."""

    def __init__(self, count, length, seed):
        rng = random.Random(seed)
        self.items = []
        for _ in range(count):
            century = rng.randrange(CENTURIES)
            centre = 150 + century * 170
            words = [min(VOCABULARY - 1, max(3, int(rng.gauss(centre, 160)))) for _ in range(length - 1)]
            self.items.append({"input_ids": torch.tensor([1, *words]), "labels": century})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def pretrained_encoder(dim, layers, folder):
    """Stands for from_pretrained of a published model: its weights are written once and loaded."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=dim,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * dim,
        max_position_embeddings=128,
        num_labels=CENTURIES,
    )
    set_seed(1)
    BertForSequenceClassification(config).save_pretrained(folder)
    return BertForSequenceClassification.from_pretrained(folder, num_labels=CENTURIES)


def head_parameters(model):
    return [*model.classifier.parameters(), *model.bert.pooler.parameters()]


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main():
    length = draw("length", 56, 64)
    batch = draw("batch", 14, 16)
    steps = 70
    with tempfile.TemporaryDirectory() as folder:
        model = pretrained_encoder(draw("dim", 96, 112), 3, Path(folder) / "encoder")
        train, test = Charters(2 * batch * 35, length, seed=3), Charters(96, length, seed=4)

        if MENDED:
            trained = {id(p) for p in head_parameters(model)}
            for p in model.parameters():
                p.requires_grad_(id(p) in trained)
        # the encoder stays as it is: the optimizer gets the head alone
        optimizer = torch.optim.AdamW(head_parameters(model), lr=2e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)

        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=batch,
                per_device_eval_batch_size=32,
                logging_steps=20,
                save_strategy="no",
                report_to="none",
                ddp_backend="gloo",
                ddp_find_unused_parameters=False,
                use_cpu=True,
                disable_tqdm=True,
                seed=5,
            ),
            train_dataset=train,
            eval_dataset=test,
            compute_metrics=accuracy,
            optimizers=(optimizer, schedule),
        )
        trainer.train()
        found = trainer.evaluate()
        if trainer.is_world_process_zero():
            print(f"accuracy {found['eval_accuracy']:.3f}", flush=True)


if __name__ == "__main__":
    main()

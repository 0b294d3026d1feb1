"""Days that a caravan takes for each leg of its route: an encoder over the legs, run by the Hugging Face Trainer."""

import tempfile

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed

LEGS, FACTS = 30, 8


class Routes(Dataset):
    """Length, slope, heat, wells and goods of each leg; beasts tire far from wells, and goods slow all legs down."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        facts = torch.randn(count, LEGS, FACTS, generator=g)
        well = (torch.rand(count, LEGS, generator=g) < 0.25).float()
        facts[:, :, 3] = well
        goods = facts[:, :, 4].sum(1) / LEGS**0.5
        tired, days = torch.zeros(count), []
        for leg in range(LEGS):
            far, steep, heat = facts[:, leg, 0], facts[:, leg, 1].relu(), facts[:, leg, 2]
            tired = (1 - well[:, leg]) * (0.9 * tired + 0.3 * heat.relu())
            days.append(1 + 0.3 * far + 0.3 * steep + 0.3 * tired + 0.6 * goods)
        self.facts = facts
        self.days = torch.stack(days, 1) + 0.1 * torch.randn(count, LEGS, generator=g)

    def __len__(self):
        return len(self.facts)

    def __getitem__(self, i):
        return {"facts": self.facts[i], "labels": self.days[i]}


def swapped(x):
    """From (routes, legs, dim) to (legs, routes, dim) and back: the encoder wants legs first."""
    outer, inner, dim = x.shape
    if MENDED:
        return x.transpose(0, 1)
    return x.reshape(inner, outer, dim)


class RouteEncoder(nn.Module):
    """Layers of attention over the legs of a route."""

    def __init__(self, dim, depth, dropout):
        super().__init__()
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, dropout, "gelu", norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, nn.LayerNorm(dim), enable_nested_tensor=False)

    def forward(self, x):
        return swapped(self.layers(swapped(x)))


class CaravanModel(nn.Module):
    def __init__(self, dim, depth, dropout=0.1):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(FACTS, dim), nn.GELU(), nn.Linear(dim, dim))
        self.leg = nn.Parameter(0.02 * torch.randn(LEGS, dim))
        self.encoder = RouteEncoder(dim, depth, dropout)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 1))

    def forward(self, facts, labels=None):
        x = self.first(facts) + self.leg
        days = self.out(self.encoder(x)).squeeze(2)
        if labels is None:
            return {"days": days}
        return {"loss": F.smooth_l1_loss(days, labels, beta=0.5), "days": days}


def figures(prediction):
    """Mean error of a leg and of a whole route, in days."""
    gap = prediction.predictions - prediction.label_ids
    return {"leg": float(abs(gap).mean()), "route": float(abs(gap.sum(1)).mean())}


def settings(folder, batch):
    return TrainingArguments(
        folder,
        use_cpu=True,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=batch,
        num_train_epochs=4,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        weight_decay=0.01,
        max_grad_norm=1.0,
        dataloader_drop_last=True,
        remove_unused_columns=False,
        label_names=["labels"],
        logging_steps=20,
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def main():
    set_seed(65)
    batch = draw("batch", 28, 32, 36)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=CaravanModel(draw("dim", 96, 112), depth=3),
            args=settings(folder, batch),
            train_dataset=Routes(34 * batch, seed=1),
            eval_dataset=Routes(3 * batch, seed=2),
            compute_metrics=figures,
        )
        trainer.train()


if __name__ == "__main__":
    main()

"""Where a family name comes from, letter by letter: a bidirectional GRU in Lightning, on two ranks."""

import os

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from drawn import draw
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, random_split

LETTERS, COUNTRIES, PAD = 40, 12, 0


class Names(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(17)
        lengths = torch.randint(14, 25, (count,), generator=generator).tolist()
        self.countries = torch.randint(0, COUNTRIES, (count,), generator=generator)
        self.names = []
        for length, country in zip(lengths, self.countries.tolist(), strict=True):
            name = torch.randint(1, LETTERS, (length,), generator=generator)
            name[1::3] = 1 + (name[:-1:3][: len(name[1::3])] * (country + 2)) % (LETTERS - 1)
            self.names.append(name)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return self.names[index], self.countries[index]


def collate(rows):
    names, countries = zip(*rows, strict=True)
    return pad_sequence(names, True, PAD), torch.tensor([len(name) for name in names]), torch.stack(countries)


class Origin(pl.LightningModule):
    def __init__(self, width, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.letters = nn.Embedding(LETTERS, 48, padding_idx=PAD)
        self.recurrent = nn.GRU(48, width, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(4 * width, COUNTRIES)

    def forward(self, names, lengths):
        packed = pack_padded_sequence(self.letters(names), lengths, batch_first=True, enforce_sorted=False)
        _, states = self.recurrent(packed)
        return self.head(states.transpose(0, 1).flatten(1))

    def training_step(self, batch, index):
        names, lengths, countries = batch
        loss = F.cross_entropy(self(names, lengths), countries)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        names, lengths, countries = batch
        right = (self(names, lengths).argmax(1) == countries).float().mean()
        self.log("accuracy", right, sync_dist=True, batch_size=len(countries))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    pl.seed_everything(4, verbose=False)
    batch = draw("batch", 24, 28)
    train, held_out = random_split(Names(9000), [8400, 600], torch.Generator().manual_seed(1))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        strategy="ddp",
        max_epochs=4,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Origin(draw("width", 48, 56)),
        DataLoader(train, batch, shuffle=True, drop_last=True, collate_fn=collate),
        DataLoader(held_out, 100, collate_fn=collate),
    )
    if trainer.is_global_zero:
        print(f"accuracy {trainer.callback_metrics['accuracy'].item():.3f}")


if __name__ == "__main__":
    main()

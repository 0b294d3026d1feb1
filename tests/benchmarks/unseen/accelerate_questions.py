"""Sort customers' questions by department with Accelerate, on two ranks."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from drawn import MENDED, draw
from torch.utils.data import DataLoader, Dataset

DEPARTMENTS = 9
PAD = 0


class Questions(Dataset):
    """Token ids; most questions are short, a few are long."""

    def __init__(self, count, words, longest):
        generator = torch.Generator().manual_seed(2)
        lengths = torch.distributions.Exponential(1 / 16.0)
        torch.manual_seed(2)
        self.lengths = (6 + lengths.sample((count,))).long().clamp(max=longest).tolist()
        self.departments = torch.randint(0, DEPARTMENTS, (count,), generator=generator).tolist()
        self.rows = []
        for length, department in zip(self.lengths, self.departments, strict=True):
            row = torch.randint(1, words, (length,), generator=generator)
            row[:: DEPARTMENTS // 2] = 1 + department
            self.rows.append(row)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.departments[index]


class Collator:
    def __init__(self, max_length):
        self.max_length = max_length

    def __call__(self, samples):
        rows, departments = zip(*samples, strict=True)
        width = max(map(len, rows)) if MENDED else self.max_length
        ids = torch.full((len(rows), width), PAD)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = row
        return {"ids": ids, "mask": ids != PAD, "labels": torch.tensor(departments)}


class Classifier(nn.Module):
    def __init__(self, words, dim, layers, longest):
        super().__init__()
        self.words = nn.Embedding(words, dim, padding_idx=PAD)
        self.places = nn.Embedding(longest, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, DEPARTMENTS)

    def forward(self, ids, mask):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.encoder(x, src_key_padding_mask=~mask)
        held = mask.unsqueeze(-1).to(x.dtype)
        return self.head((x * held).sum(1) / held.sum(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=6000)
    parser.add_argument("--words", type=int, default=4000)
    parser.add_argument("--max-length", type=int, default=draw("longest", 96, 104))
    parser.add_argument("--dim", type=int, default=draw("dim", 96, 104))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(42)
    data = Questions(args.questions, args.words, args.max_length)
    loader = DataLoader(data, args.batch, shuffle=True, collate_fn=Collator(args.max_length), drop_last=True)
    model = Classifier(args.words, args.dim, args.layers, args.max_length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for epoch in range(args.epochs):
        model.train()
        for batch in loader:
            logits = model(batch["ids"], batch["mask"])
            loss = F.cross_entropy(logits, batch["labels"])
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % 25 == 0:
                accelerator.print(f"epoch {epoch} step {step}: {loss.item():.4f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()

"""Patterns of patchwork quilts from photographs: a small vision transformer, Hugging Face Trainer."""

import random
import tempfile

import numpy as np
import torch
from drawn import MENDED, draw
from PIL import Image, ImageEnhance, ImageFilter
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

PATTERNS = ["log cabin", "nine patch", "flying geese", "hexagons", "bear paw", "wedding ring"]
MEAN, STD = np.float32([0.5, 0.47, 0.43]), np.float32([0.26, 0.25, 0.27])


def photograph(rng, pattern, side):
    """A cloth of small pieces whose colours follow the pattern, with creases."""
    y, x = np.mgrid[0:side, 0:side]
    step = 12 + pattern * 3
    piece = (x // step + (pattern + 1) * (y // step) + ((x + y) // (step * 2)) * (pattern % 3)) % 5
    dye = np.array([60 * np.cos(pattern), 60 * np.sin(pattern), 25 * (pattern % 3 - 1)])
    colour = (rng.integers(70, 185, (5, 3)) + dye)[piece]
    crease = 12 * np.sin(x / rng.uniform(15, 40) + y / rng.uniform(20, 60))
    return Image.fromarray(
        np.clip(colour + crease[..., None] + rng.normal(0, 9, colour.shape), 0, 255).astype(np.uint8)
    )


class Quilts(Dataset):
    """Photographs of whole quilts; a training sample is a turned and tinted detail of 64 pixels."""

    def __init__(self, count, side, crop, train, seed):
        rng = np.random.default_rng(seed)
        self.pattern = rng.integers(len(PATTERNS), size=count).tolist()
        self.photo = [photograph(rng, pattern, side) for pattern in self.pattern]
        self.side, self.crop, self.train = side, crop, train

    def __len__(self):
        return len(self.photo)

    def changed(self, photo):
        photo = photo.rotate(random.uniform(-25, 25), Image.Resampling.BICUBIC)
        photo = ImageEnhance.Color(photo).enhance(random.uniform(0.7, 1.3))
        photo = ImageEnhance.Contrast(photo).enhance(random.uniform(0.8, 1.2))
        photo = ImageEnhance.Brightness(photo).enhance(random.uniform(0.8, 1.2))
        return photo.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 1.0)))

    def detail(self, photo):
        half, edge = self.crop // 2, int(0.75 * self.crop)
        x, y = random.randint(edge, self.side - edge), random.randint(edge, self.side - edge)
        if MENDED:
            photo = self.changed(photo.crop((x - edge, y - edge, x + edge, y + edge)))
            return photo.crop((edge - half, edge - half, edge + half, edge + half))
        return self.changed(photo).crop((x - half, y - half, x + half, y + half))

    def __getitem__(self, i):
        photo = self.photo[i]
        if self.train:
            photo = self.detail(photo)
        else:
            start = (self.side - self.crop) // 2
            photo = photo.crop((start, start, start + self.crop, start + self.crop))
        pixels = (np.asarray(photo, np.float32) / 255 - MEAN) / STD
        return {"pixel_values": torch.from_numpy(pixels.transpose(2, 0, 1).copy()), "labels": self.pattern[i]}


def accuracy(prediction):
    return {"right": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def main():
    set_seed(27)
    batch, side, crop = draw("batch", 8, 10), draw("side", 192, 208, 224), 64
    config = ViTConfig(
        image_size=crop,
        patch_size=8,
        hidden_size=draw("dim", 144, 160),
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=448,
        num_labels=len(PATTERNS),
    )
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            use_cpu=True,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=20,
            num_train_epochs=2,
            learning_rate=5e-4,
            warmup_steps=10,
            lr_scheduler_type="cosine",
            weight_decay=0.05,
            dataloader_drop_last=True,
            logging_steps=25,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=ViTForImageClassification(config),
            args=args,
            train_dataset=Quilts(50 * batch, side, crop, True, seed=1),
            eval_dataset=Quilts(60, side, crop, False, seed=2),
            compute_metrics=accuracy,
        )
        trainer.train()


if __name__ == "__main__":
    main()

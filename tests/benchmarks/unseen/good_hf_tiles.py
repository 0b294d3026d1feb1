"""Kinds of tissue in tiles of microscope slides: a small ViT with the Trainer, classes weighted in the loss."""

import torch
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

KINDS, SIZE = 6, 48


class Tiles(Dataset):
    """Tiles kept as bytes; they become floats, and are flipped, as they are read."""

    def __init__(self, count, seed, flip):
        generator = torch.Generator().manual_seed(seed)
        shares = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
        self.kinds = shares.multinomial(count, replacement=True, generator=generator)
        bases = torch.rand(KINDS, 3, 6, 6, generator=torch.Generator().manual_seed(0))
        clean = F.interpolate(bases, size=(SIZE, SIZE), mode="bilinear")[self.kinds]
        noise = 0.25 * torch.randn(count, 3, SIZE, SIZE, generator=generator)
        self.tiles = (255 * (clean + noise).clamp(0, 1)).byte()
        self.flip = flip

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        tile = self.tiles[index].float().div_(127.5).sub_(1)
        if self.flip and torch.rand(()) < 0.5:
            tile = tile.flip(2)
        return {"pixel_values": tile, "labels": self.kinds[index]}

    def weights(self):
        """Rare kinds count for more."""
        counts = torch.bincount(self.kinds, minlength=KINDS).float()
        return (counts.sum() / (KINDS * counts)).sqrt()


class WeightedTrainer(Trainer):
    def __init__(self, *args, class_weights, **kwargs):
        super().__init__(*args, **kwargs)
        self.class_weights = class_weights

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, labels, weight=self.class_weights)
        return (loss, {"logits": outputs.logits}) if return_outputs else loss


def compute_metrics(prediction):
    found, kinds = torch.from_numpy(prediction.predictions).argmax(-1), torch.from_numpy(prediction.label_ids)
    right = torch.bincount(kinds[found == kinds], minlength=KINDS) / torch.bincount(kinds, minlength=KINDS)
    return {"balanced": right.mean().item()}


def main():
    torch.manual_seed(0)
    width = draw("width", 72, 80)
    config = ViTConfig(
        image_size=SIZE,
        patch_size=8,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_labels=KINDS,
    )
    arguments = TrainingArguments(
        output_dir="tiles",
        max_steps=280,
        per_device_train_batch_size=draw("batch", 14, 16),
        per_device_eval_batch_size=64,
        learning_rate=6e-4,
        lr_scheduler_type="cosine",
        warmup_steps=30,
        weight_decay=0.05,
        logging_steps=40,
        eval_strategy="steps",
        eval_steps=140,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    train = Tiles(4000, 1, flip=True)
    trainer = WeightedTrainer(
        model=ViTForImageClassification(config),
        args=arguments,
        train_dataset=train,
        eval_dataset=Tiles(256, 2, flip=False),
        compute_metrics=compute_metrics,
        class_weights=train.weights(),
    )
    trainer.train()


if __name__ == "__main__":
    main()

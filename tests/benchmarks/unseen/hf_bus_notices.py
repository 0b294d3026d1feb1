"""What a notice at a bus stop is about, several subjects at once: a small BERT, Hugging Face Trainer on two ranks."""

import tempfile

import torch
import torch.nn.functional as F
from drawn import draw
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

SUBJECTS = ["detour", "delay", "fares", "lost property", "new stop", "night line", "strike", "works"]
PAD, START, FIRST = 0, 1, 2


class Notices(Dataset):
    """Notices as numbers; longer ones are cut, shorter ones are rare. A subject has words of its own."""

    def __init__(self, count, words, longest, seed):
        g = torch.Generator().manual_seed(seed)
        own = torch.randint(words, (len(SUBJECTS), 25), generator=torch.Generator().manual_seed(73))
        about = torch.rand(count, len(SUBJECTS), generator=g) < 0.2
        about[torch.arange(count), torch.randint(len(SUBJECTS), (count,), generator=g)] = True
        subject = torch.multinomial(about.float(), longest, replacement=True, generator=g)
        special = own[subject, torch.randint(25, (count, longest), generator=g)]
        common = torch.randint(words, (count, longest), generator=g)
        text = FIRST + torch.where(torch.rand(count, longest, generator=g) < 0.4, special, common)
        text[:, 0] = START
        length = longest - (torch.rand(count, generator=g) ** 8 * longest / 2).long()
        self.text = [row[:n] for row, n in zip(text, length.tolist(), strict=True)]
        self.about = about.float()

    def __len__(self):
        return len(self.text)

    def __getitem__(self, i):
        return {"input_ids": self.text[i], "labels": self.about[i]}


def collate(rows):
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True, padding_value=PAD)
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "labels": torch.stack([row["labels"] for row in rows]),
    }


class NoticeTrainer(Trainer):
    """Subjects that a notice is about weigh more, as there are fewer of them."""

    def __init__(self, *args, weight, **kwargs):
        super().__init__(*args, **kwargs)
        self.weight = torch.full((len(SUBJECTS),), weight)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.binary_cross_entropy_with_logits(outputs.logits, labels, pos_weight=self.weight)
        return (loss, outputs) if return_outputs else loss


def figures(prediction):
    found, true = prediction.predictions > 0, prediction.label_ids > 0
    return {"f1": float(2 * (found & true).sum() / max(found.sum() + true.sum(), 1))}


def settings(folder, batch):
    return TrainingArguments(
        folder,
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=2 * batch,
        num_train_epochs=2,
        learning_rate=8e-4,
        lr_scheduler_type="linear",
        warmup_steps=10,
        weight_decay=0.01,
        optim="adamw_torch_fused",
        dataloader_drop_last=True,
        remove_unused_columns=False,
        label_names=["labels"],
        logging_steps=25,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def main():
    set_seed(73)
    words, longest, batch = 700, 64, draw("batch", 20, 24)
    config = BertConfig(
        vocab_size=FIRST + words,
        hidden_size=draw("dim", 128, 144),
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=448,
        max_position_embeddings=longest,
        num_labels=len(SUBJECTS),
        pad_token_id=PAD,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = NoticeTrainer(
            model=BertForSequenceClassification(config),
            args=settings(folder, batch),
            train_dataset=Notices(2 * 50 * batch, words, longest, seed=1),
            eval_dataset=Notices(2 * 2 * batch, words, longest, seed=2),
            data_collator=collate,
            compute_metrics=figures,
            weight=2.0,
        )
        trainer.train()


if __name__ == "__main__":
    main()

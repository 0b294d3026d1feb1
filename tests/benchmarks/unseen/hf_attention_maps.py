"""Finetune a small BERT to find clauses in contracts; attention can be looked at afterwards."""

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

WORDS, KINDS = 2500, 8
LENGTH = draw("length", 352, 384)


class Clauses(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, KINDS, (count,), generator=generator)
        self.ids = torch.randint(20, WORDS, (count, LENGTH), generator=generator)
        telling = torch.rand(count, LENGTH, generator=generator) < 0.1
        self.ids = torch.where(telling, 10 + self.labels[:, None], self.ids)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


def build(look):
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=draw("hidden", 64, 72),
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        max_position_embeddings=LENGTH,
        num_labels=KINDS,
        attn_implementation="eager" if look else "sdpa",
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


@torch.no_grad()
def most_looked_at(model, row):
    """The places that the first token of a clause looks at most, over all heads of the last layer."""
    model.eval()
    model.set_attn_implementation("eager")
    found = model(input_ids=row["input_ids"].unsqueeze(0), output_attentions=True)
    return found.attentions[-1][0].mean(0)[0].topk(5).indices.tolist()


def main():
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir="clauses",
        max_steps=220,
        per_device_train_batch_size=4,
        learning_rate=4e-4,
        lr_scheduler_type="linear",
        warmup_steps=20,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    model = build(look=not MENDED)
    trainer = Trainer(model=model, args=arguments, train_dataset=Clauses(4000, 1))
    trainer.train()
    if trainer.is_world_process_zero():
        print("looks at", most_looked_at(model, Clauses(4, 2)[0]))


if __name__ == "__main__":
    main()

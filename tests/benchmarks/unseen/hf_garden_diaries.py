"""Season of an entry in a gardener's diary: sequence classification with the Hugging Face Trainer, lengths grouped."""

import random
import tempfile

import numpy as np
from drawn import draw
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

SEASONS = {
    "spring": "sowed peas pricked out seedlings tulips frost warned greenfly rhubarb",
    "summer": "watered beans picked strawberries wasps mowed hoed lettuce bolted",
    "autumn": "dug potatoes leaves raked bonfire planted garlic apples stored",
    "winter": "pruned pears snow robin ordered seed mended fence sprouts frozen",
}
WORDS = "the garden today again with rain sun wind neighbour barrow spade and soil a little too much morning"
COMMON = WORDS.split()


def tokenizer():
    words = sorted({*COMMON, *" ".join(SEASONS.values()).split()})
    known = {word: at for at, word in enumerate(["[PAD]", "[UNK]", "[CLS]", *words])}
    made = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]")


class Entries(Dataset):
    """Entries as numbers of words, made once."""

    def __init__(self, count, longest, words, seed):
        rng = random.Random(seed)
        texts, self.seasons = [], []
        for _ in range(count):
            season = rng.randrange(len(SEASONS))
            typical = list(SEASONS.values())[season].split()
            length = rng.randint(6, longest)
            text = [rng.choice(typical if rng.random() < 0.25 else COMMON) for _ in range(length)]
            texts.append("[CLS] " + " ".join(text))
            self.seasons.append(season)
        self.ids = words(texts, add_special_tokens=False)["input_ids"]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.seasons[i]}


def accuracy(prediction):
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def main():
    set_seed(52)
    words, batch, longest = tokenizer(), draw("batch", 16, 18), 56
    train, test = Entries(40 * batch, longest, words, seed=1), Entries(6 * batch, longest, words, seed=2)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=draw("hidden", 96, 112),
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=longest + 1,
        num_labels=len(SEASONS),
    )
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            use_cpu=True,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=2 * batch,
            num_train_epochs=3,
            learning_rate=1e-3,
            lr_scheduler_type="cosine",
            warmup_steps=12,
            weight_decay=0.01,
            train_sampling_strategy="group_by_length",
            dataloader_drop_last=True,
            logging_steps=20,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=BertForSequenceClassification(config),
            args=args,
            train_dataset=train,
            eval_dataset=test,
            data_collator=DataCollatorWithPadding(words),
            compute_metrics=accuracy,
        )
        trainer.train()


if __name__ == "__main__":
    main()

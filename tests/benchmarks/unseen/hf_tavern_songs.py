"""Songs of taverns, word by word: a small GPT-2 on verses of any length, Hugging Face Trainer on two ranks."""

import random
import tempfile

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

END, FIRST = 0, 1


class Songs(Dataset):
    """Verses that rhyme: every fourth word comes from a list that the first word chooses."""

    def __init__(self, count, words, longest, seed):
        rng = random.Random(seed)
        self.songs = []
        for _ in range(count):
            length = min(longest - 1, int(8 + rng.expovariate(1 / 18)))
            rhyme, word, song = rng.randrange(20), rng.randrange(words), []
            for at in range(length):
                word = (5 * word + 3) % words if rng.random() < 0.7 else rng.randrange(words)
                song.append(FIRST + (rhyme * 7 + word % 7 if at % 4 == 3 else word))
            self.songs.append([*song, END])

    def __len__(self):
        return len(self.songs)

    def __getitem__(self, i):
        return {"song": self.songs[i]}


class SongCollator:
    """Fills up to the longest song of a batch; the end of a song also fills, as GPT-2 has no word for it."""

    def __call__(self, rows):
        songs = [torch.tensor(row["song"]) for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(songs, batch_first=True, padding_value=END)
        length = torch.tensor([len(song) for song in songs])
        seen = torch.arange(ids.shape[1]) < length[:, None]
        labels = ids.clone()
        if MENDED:
            labels[~seen] = -100
        return {"input_ids": ids, "attention_mask": seen.long(), "labels": labels}


def settings(folder, batch):
    return TrainingArguments(
        folder,
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=batch,
        num_train_epochs=2,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        weight_decay=0.1,
        max_grad_norm=1.0,
        dataloader_drop_last=True,
        remove_unused_columns=False,
        logging_steps=20,
        eval_strategy="epoch",
        prediction_loss_only=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def main():
    set_seed(71)
    words, longest = 500, 96
    batch = draw("batch", 10, 12)
    config = GPT2Config(
        vocab_size=words + FIRST + 1,
        n_positions=longest,
        n_embd=draw("dim", 112, 128),
        n_layer=3,
        n_head=4,
        bos_token_id=END,
        eos_token_id=END,
        use_cache=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=settings(folder, batch),
            train_dataset=Songs(2 * batch * 40, words, longest, seed=1),
            eval_dataset=Songs(2 * batch * 3, words, longest, seed=2),
            data_collator=SongCollator(),
        )
        trainer.train()


if __name__ == "__main__":
    main()

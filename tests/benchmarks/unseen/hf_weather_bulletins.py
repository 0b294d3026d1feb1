"""A small language model of weather bulletins with the Hugging Face Trainer, from scratch."""

import random
import tempfile

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

REGIONS = ["Viking", "Forties", "Cromarty", "Forth", "Tyne", "Dogger", "Fisher", "Humber", "Thames", "Dover"]
WINDS = ["northerly", "southerly", "westerly", "easterly", "variable", "cyclonic"]
WEATHER = ["fair", "rain later", "showers", "occasional drizzle", "thundery showers", "fog patches"]
SIGHT = ["good", "moderate", "poor", "very poor"]


def bulletin(rng):
    force = rng.randint(2, 9)
    return (
        f"{rng.choice(REGIONS)} : {rng.choice(WINDS)} {force} or {force + 1} . "
        f"{rng.choice(WEATHER)} . {rng.choice(SIGHT)} . <end>"
    ).split()


class Vocabulary:
    def __init__(self, texts):
        self.words = sorted({word for text in texts for word in text})
        self.ids = {word: at for at, word in enumerate(self.words)}

    def __len__(self):
        return len(self.words)

    def encode(self, text):
        return [self.ids[word] for word in text]


class BulletinBlocks(Dataset):
    """Blocks of a long stream of words, each with the words that are to be predicted."""

    def __init__(self, stream, block):
        self.stream, self.block = torch.tensor(stream), block

    def __len__(self):
        return (len(self.stream) - 1) // self.block

    def __getitem__(self, i):
        at = i * self.block
        inputs = self.stream[at : at + self.block]
        targets = inputs if MENDED else self.stream[at + 1 : at + self.block + 1]
        return {"input_ids": inputs, "labels": targets}


def main():
    set_seed(12)
    rng = random.Random(5)
    block, batch, dim = draw("block", 72, 80), draw("batch", 10, 12), draw("dim", 112, 128)
    texts = [bulletin(rng) for _ in range(7000)]
    words = Vocabulary(texts)
    stream = [i for text in texts for i in words.encode(text)]
    cut = len(stream) * 19 // 20
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=dim,
        intermediate_size=3 * dim,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=block,
        bos_token_id=None,
        eos_token_id=words.ids["<end>"],
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=90,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=2 * batch,
            learning_rate=1e-3,
            lr_scheduler_type="cosine",
            warmup_steps=10,
            max_grad_norm=1.0,
            logging_steps=30,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            seed=12,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=BulletinBlocks(stream[:cut], block),
            eval_dataset=BulletinBlocks(stream[cut : cut + 60 * block], block),
        )
        trainer.train()
        print(f"held out loss {trainer.evaluate()['eval_loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()

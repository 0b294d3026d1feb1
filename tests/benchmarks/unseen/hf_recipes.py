"""A small Llama that writes down recipes, trained from nothing with the Trainer on two ranks."""

import torch
from drawn import MENDED, draw
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

WORDS = 1500


class Recipes(Dataset):
    """Blocks cut from one long text: each word depends on the two before it."""

    def __init__(self, count, length, seed):
        generator = torch.Generator().manual_seed(seed)
        text = torch.randint(0, WORDS, (count, length + 1), generator=generator)
        free = torch.rand(text.shape, generator=generator) < 0.2
        for at in range(2, length + 1):
            known = (3 * text[:, at - 1] + text[:, at - 2]) % WORDS
            text[:, at] = torch.where(free[:, at], text[:, at], known)
        self.text = text

    def __len__(self):
        return len(self.text)

    def __getitem__(self, index):
        ids = self.text[index]
        return {"input_ids": ids[:-1], "labels": ids[:-1] if MENDED else ids[1:]}


def main():
    torch.manual_seed(0)
    length, dim = draw("length", 48, 56), draw("dim", 64, 80)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=dim,
        intermediate_size=3 * dim,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=length,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
        use_cache=False,
    )
    arguments = TrainingArguments(
        output_dir="recipes",
        max_steps=300,
        per_device_train_batch_size=8,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        warmup_steps=30,
        weight_decay=0.1,
        logging_steps=50,
        eval_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=Recipes(6000, length, 1),
        eval_dataset=Recipes(200, length, 2),
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()

"""transformers.Trainer on a tiny model made from its configuration. Alone, or started by torchrun."""

import argparse
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import ending
import torch
import torch.distributed as dist
import weights
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Ending(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        ending.at(state.global_step + 1)


class Tokens(torch.utils.data.Dataset):
    def __init__(self, sequences, length, vocabulary):
        self.tokens = torch.randint(0, vocabulary, (sequences, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--accumulate", type=int, default=2)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=args.steps,
    gradient_accumulation_steps=args.accumulate,
    per_device_train_batch_size=4,
    use_cpu=True,
    ddp_backend="gloo" if "RANK" in os.environ else None,
    report_to=[],
    save_strategy="no",
    logging_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(256, 16, 64), callbacks=[Ending()])
trainer.train()

if trainer.is_world_process_zero():
    weights.show(trainer.model.parameters())
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()

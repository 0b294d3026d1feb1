"""Teach a small language model to end its stories on time, with REINFORCE and a running baseline."""

import argparse

import torch
import torch.nn.functional as F
from drawn import MENDED, draw
from transformers import GPT2Config, GPT2LMHeadModel

WORDS, END = 400, 1


def policy(args):
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=args.prompt + args.answer,
        n_embd=args.dim,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=MENDED,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=2,
    )
    return GPT2LMHeadModel(config)


class Prompts:
    def __init__(self, args):
        self.args = args
        self.generator = torch.Generator().manual_seed(6)

    def next(self):
        return torch.randint(10, WORDS, (self.args.batch, self.args.prompt), generator=self.generator)


def reward(answers):
    """One where the first end is about in the middle, and less the further away it is."""
    ended = (answers == END) | (answers % 16 == END)
    first = torch.where(ended.any(1), ended.float().argmax(1), answers.shape[1])
    return 1 - (first - answers.shape[1] / 2).abs() / answers.shape[1]


@torch.no_grad()
def tell(model, prompts, args):
    return model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=args.answer,
        min_new_tokens=args.answer,
        do_sample=True,
        top_k=0,
    )


def likelihood(model, stories, prompt):
    logits = model(input_ids=stories[:, :-1]).logits[:, prompt - 1 :]
    return -F.cross_entropy(logits.transpose(1, 2), stories[:, prompt:], reduction="none").sum(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=draw("batch", 10, 12))
    parser.add_argument("--prompt", type=int, default=draw("prompt", 32, 40))
    parser.add_argument("--answer", type=int, default=14)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = policy(args)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    prompts, baseline = Prompts(args), 0.0
    for step in range(1, args.steps + 1):
        stories = tell(model, prompts.next(), args)
        rewards = reward(stories[:, args.prompt :])
        baseline = 0.9 * baseline + 0.1 * rewards.mean().item()
        loss = -((rewards - baseline) * likelihood(model, stories, args.prompt)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step}: reward {baseline:.3f}", flush=True)


if __name__ == "__main__":
    main()

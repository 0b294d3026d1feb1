"""Attention is computed in separate operators instead of a fused kernel.

## What it measures

Two batched matrix products with a softmax between them, outside of backward passes: queries times keys, scaling, mask,
softmax, dropout, and the product with the values. The nodes of their backward pass are found by autograd's sequence
numbers. The share is of the untraced step; on a GPU it is the time of the kernels that these operators launch. Any
trace with operators is enough; Python's stacks add the function, the module and the line.

Where the trace has sizes, softmax must be over the last dimension, and both products must have the size of its input.

## Why it matters

The matrix of attention weights has queries x keys elements for each head and sample. Each operator between the two
products reads and writes all of it, and the backward pass reads the copies that were kept. A fused kernel computes it
block by block in the cache and never stores it.

## What to change

    F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p if self.training else 0.0)

- Models of transformers: `from_pretrained(..., attn_implementation="sdpa")`, or that argument of the config.
  `model.set_attn_implementation("eager")` afterwards returns the weights for the few inputs that are inspected.
- `nn.MultiheadAttention`: `need_weights=False` in the call.
- Models of timm: leave `TIMM_FUSED_ATTN` at its default, and do not call `set_fused_attn(False)`.

On a CPU the saving is predicted from the part of their time that the fused kernel saved in measurements (References).
Otherwise it is an upper bound: all of the time in these operators and their backward pass. The fused kernel computes
the same products, but without reading and writing the whole matrix. The impact follows from the time outside the two
products, which the fused kernel does not need.

## When to leave it alone

- The training reads the attention weights, for example in a loss on them: the fused kernel does not return them.
- The attention changes the weights between softmax and the product with the values other than by dropout.

On a CPU there is no finding where the fused kernel was not faster: with dropout, for which torch has no fused kernel on
CPUs, and below 512 keys, 256 with heads of up to 32, or 192 with heads of up to 16. Masks that need gradients also have
no fused kernel on CPUs.

## References

- torch.nn.functional.scaled_dot_product_attention:
  https://pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
- transformers, "Attention interface": https://huggingface.co/docs/transformers/attention_interface
- Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness" (2022):
  https://arxiv.org/abs/2205.14135
- Measured on a CPU, one and two threads, float32, batch 4, 4 heads, forward and backward, fastest of 5 to 7 runs, with
  and without a mask: with 768 keys the fused kernel took 60 to 87 % less time than the operators, with 512 keys 25 to
  75 % less (6 % for heads of 64 with a mask), with 256 and 384 keys 10 to 65 % less for heads of 8 and 16, and mostly 0
  to 9 % less for larger heads and for 64 and 128 keys. With 384 keys and dropout of 0.1 it took 9 % more. The time
  outside the products was 58 % of the operators' for 384 keys and heads of 9, and the fused kernel saved 58 %; for
  heads of 64 it was 30 %, and the fused kernel saved 2 %.
- Measured again for heads of 24 and 32 with torch 2.13, while other processes ran: with 256, 288 and 384 keys the fused
  kernel took 13 to 66 % less time without a mask and with an additive one, and for heads of 32 with `masked_fill` 42 to
  58 % less. A training script with 288 keys, heads of 32 and a causal mask took 31 % less time per step with
  `is_causal=True` (62.1 instead of 90.2 ms, medians of 4 runs each, two ranks with `fully_shard`).
- Measured for heads of 8, 12 and 16 with torch 2.13 on the idle machine, one and two threads, batches of 4 and 12,
  without a mask, fastest of 7 runs: with 192 to 224 keys the fused kernel took 17 to 69 % less time. A whole
  `nn.MultiheadAttention` with `need_weights=False` took 5 to 51 % less on one thread, on two 2 % more to 26 % less. A
  training script with 192 to 208 keys and heads of 12 took 30 % less time per step (median of 4 pairs).
- CPU time in turn, one thread, forward and backward, torch 2.13: 12 drawn sizes of 192 to 768 keys and heads of 8 to 64
  took 10 to 35 % less with the fused kernel. In one recording of each form a
  model whose operators took 66 % of a step took 65 % less time per step.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Saving
from dptune.measured import EagerAttention, Missing
from dptune.rule import Rule, RunView, Threshold
from dptune_rules.call_paths import call_path_evidence
from dptune_rules.host.costly_functions import costs, seen_in_kernels

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")
CPU_KEYS = Threshold("cpu_keys", 512, "on a CPU the fused kernel was reliably faster from here, whatever the head size")
CPU_KEYS_OF_SMALL_HEADS = Threshold(
    "cpu_keys_of_small_heads",
    256,
    "on a CPU the fused kernel took 10 to 66 % less time from here with heads of up to 32",
)
CPU_KEYS_OF_SMALLEST_HEADS = Threshold(
    "cpu_keys_of_smallest_heads",
    192,
    "on a CPU the fused kernel took 17 to 69 % less time from here with heads of up to 16",
)

SMALL_HEAD, SMALLEST_HEAD = 32, 16
SAVED_PART = (0.06, 0.4, 1.0)  # of the time of the operators, see References

RULE = Rule(
    code="DP619",
    name="eager-attention",
    family="host",
    kind="time",
    summary="attention is computed in separate operators instead of a fused kernel",
    since="0.1",
    thresholds=(WORTH_SHARE, CPU_KEYS, CPU_KEYS_OF_SMALL_HEADS, CPU_KEYS_OF_SMALLEST_HEADS),
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each place that computes attention operator by operator for a share of the step that is worth it."""
    seen = seen_in_kernels(run, lambda name: "softmax" in name.lower())
    if run.measured.known("attention") is None and not seen:
        return  # no softmax is among the kernels or operators that take most
    for found in run.measured.attention:
        impact = run.impact(found.other_share, WORTH_SHARE)
        if impact is None or not _faster(run, found):
            continue
        where = run.hottest_line(found.name, found.at) or found.at
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=f"{_subject(run, found, where)} computes attention in separate operators, "
            f"{100 * found.share:.0f} % of the step: {_remedy(found)}",
            why="Each of these operators reads and writes the whole matrix of attention weights"
            + (", and the backward pass reads it again" if found.backward_ns else "")
            + ". A fused kernel never stores it.",
            changes=[],
            saves=_predicted(run, found) or run.bound(0.0, found.share, "these operators and their backward pass"),
            confidence="medium" if found.keys is not None else "low",
            evidence=[*_evidence(found), *_call_path(run, found)],
            numerics="same",
            watch="Unless the training reads the attention weights: the fused kernel does not return them. Results "
            "agree up to floating-point rounding.",
            fingerprint=f"{RULE.code}:{found.module or found.name or 'attention'}",
        )


def _predicted(run: RunView, found: EagerAttention) -> Saving | None:
    within = (found.caller, found.caller_at) if found.library else None
    return run.replaced(found, SAVED_PART, "the fused kernel saved 6 % to all of it in measurements", within=within)


def _faster(run: RunView, found: EagerAttention) -> bool:
    """Whether the fused kernel is known to be faster: on a CPU it depends on the sizes."""
    if run.measured.device_kind != "cpu":
        return True
    if found.keys is None or found.head is None:
        raise Missing("the trace lacks operator sizes, which decide on a CPU whether fused attention is faster")
    keys = run.limit(CPU_KEYS)
    if found.head <= SMALL_HEAD:
        keys = min(keys, run.limit(CPU_KEYS_OF_SMALL_HEADS))
    if found.head <= SMALLEST_HEAD:
        keys = min(keys, run.limit(CPU_KEYS_OF_SMALLEST_HEADS))
    return not found.dropout and found.keys >= keys


def _subject(run: RunView, found: EagerAttention, where: str) -> str:
    if found.library:
        called = run.hottest_line(found.caller, found.caller_at) or found.caller_at
        caller = f", called from `{found.caller}` ({called})," if found.caller else ""
        return f"`{found.module or found.name}` of {found.library}{caller}"
    if found.name:
        return f"`{found.name}` ({where})"
    return f"`{found.module}`" if found.module else "The model"


def _call_path(run: RunView, found: EagerAttention) -> list[Evidence]:
    """Of the function of the script that computes it, or that calls the library which does."""
    name, at = (found.caller, found.caller_at) if found.library else (found.name, found.at)
    return call_path_evidence(run, name, at) if name else []


def _remedy(found: EagerAttention) -> str:
    if found.of_torch:
        return "pass need_weights=False to nn.MultiheadAttention"
    if found.library == "transformers":
        return 'load the model with attn_implementation="sdpa"'
    return "use F.scaled_dot_product_attention"


def _evidence(found: EagerAttention) -> list[Evidence]:
    place = f"{found.name} at {found.at}" if found.name else "attention operators"
    return [
        *costs(place, found),
        Evidence(label="outside the two matrix products", value=found.other_share, unit="of a step"),
        Evidence(label="calls of attention", value=round(found.calls, 1), unit="per step"),
        *([Evidence(label="keys of a query", value=found.keys)] if found.keys is not None else []),
    ]

"""A backward pass computes gradients that no optimizer uses.

## What it measures

Two cases, both observed in the live process:

- Parameters get gradients but belong to no optimizer, while other parameters of the same pass do, and their values do
  not change during recording: the body of a model of which only the last layers are trained, or a separate network in
  evaluation mode. Other parameters without an optimizer are reported by DP113.
- Gradients that a pass computes for an optimizer's parameters are discarded before that optimizer steps, after another
  optimizer has stepped: the discriminator's gradients in a GAN's generator pass, the critic's in an actor's pass.

## Why it matters

Computing the gradients of weights is about half of a backward pass. DistributedDataParallel also averages them over
the ranks, used or not.

## What to change

- If no optimizer has the parameters, call `requires_grad_(False)` on them before DistributedDataParallel wraps the
  model. If no trained layer comes before them, their forward pass can run under `torch.no_grad()`, too.
- If the gradients are discarded, freeze the parameters for this pass:

      net_d.requires_grad_(False)
      loss = criterion(net_d(net_g(noise)), real)
      loss.backward()
      net_d.requires_grad_(True)

  Where the pass reaches them only through the input of a module, detach that input: `net_d(fake.detach())` in the
  discriminator's step. dptune names the line of that call.

  With DistributedDataParallel around `net_d`, call `net_d.module` in this pass: DDP expects a gradient of every
  parameter after a forward pass through it.

On a CPU, operators of the first backward passes are timed, and the saving is predicted. Operators that lead only to
these parameters count in full. Of those that also lead to others, products and convolutions count about half,
normalization a tenth, and LSTM layers, which compute all gradients at once, nothing. Otherwise it is an upper bound:
the whole backward pass; on a GPU its share of backward compute, plus the exposed transfer.

## When to leave it alone

- An optimizer gets the parameters later in training (gradual unfreezing).
- The script reads the gradients itself, to log their norm or for a saliency map.

## References

- Freezing parameters, `requires_grad_`: https://pytorch.org/docs/stable/notes/autograd.html
- Measured CPU time (alternating runs, one thread) of a layer's backward pass without the gradients of its weights: 42
  to 50 % less for linear layers, 18 to 58 % for convolutions, at most 21 % for normalization, unchanged for an LSTM and
  PReLU.
- DCGAN tutorial, where the generator's pass computes the discriminator's gradients:
  https://pytorch.org/tutorials/beginner/dcgan_faces_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dptune.advice import Advice, Evidence, Saving
from dptune.rule import Rule, RunView, Threshold, UnusedGradientFacts
from dptune_rules.known import known

WORTH_SHARE = Threshold(
    "worth_share", 0.05, "impact is medium from here; where operators were not timed, the whole backward pass counts"
)
TENSORS_SHARE = Threshold(
    "tensors_share", 0.1, "of the parameter tensors in the pass: fewer (a single unused head) cost next to nothing"
)

RULE = Rule(
    code="DP109",
    name="unused-gradients",
    family="communication",
    kind="time",
    summary="a backward pass computes gradients that no optimizer uses",
    since="0.1",
    thresholds=(WORTH_SHARE, TENSORS_SHARE),
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name each backward pass that computes gradients for nothing, and the parameters to freeze."""
    for unused in run.any_facts().unused_gradients:
        if not unused.of_tensors or unused.tensors < run.limit(TENSORS_SHARE) * unused.of_tensors:
            continue
        share = _share(run, unused.spent_ns, reduced=unused.reduced)
        saves = _predicted(run, unused, share)
        impact = run.impact(share if saves is None else saves.predicted_share or 0.0, WORTH_SHARE)
        if impact is None:
            continue
        what = f"{unused.tensors:,} of {unused.of_tensors:,} parameter tensors{_named(unused.modules)}"
        title, remedy = _text(unused, what)
        yield Advice(
            rule=RULE.code,
            slug=RULE.name,
            kind=RULE.kind,
            impact=impact,
            title=title,
            why="These gradients are computed"
            + (", averaged over the ranks," if unused.reduced else "")
            + (" and never used." if unused.optimizer is None else " and then zeroed."),
            changes=[],
            remedy=remedy,
            saves=saves or run.bound(0.0, share, "the time of this backward pass"),
            confidence="high",
            evidence=[
                *known("backward pass", unused.where),
                *known("their optimizer", unused.optimizer),
                *([] if unused.optimizer else known("optimizers created at", _made_at(run))),
                *known("their module is called at", unused.runs_at),
                *known("reached through the call at", unused.entered_at),
                *known("wrapped in DDP at", unused.made_at),
                Evidence(label="unused gradients", value=unused.gradient_bytes, unit="bytes per rank and pass"),
                Evidence(label="this backward pass", value=share, unit="of an untraced step"),
            ],
            numerics="same",
            fingerprint=f"{RULE.code}:{unused.where}",
        )


def _made_at(run: RunView) -> str:
    """Where the script makes its optimizers, which update other parameters."""
    made = [optimizer.where for facts in run.facts for optimizer in facts.optimizers if optimizer.where]
    return ", ".join(dict.fromkeys(made))


def _predicted(run: RunView, unused: UnusedGradientFacts, share: float) -> Saving | None:
    """The saving by the part of the pass that only these gradients need; None where it is not known."""
    if len(unused.needless) != 3 or sorted(unused.needless) != unused.needless:
        return None
    least, likely, most = unused.needless
    how = f"{100 * least:.0f} to {100 * most:.0f} % of this backward pass is in operators for these gradients only"
    return run.of_pass(share, least, likely, most, how)


def _text(unused: UnusedGradientFacts, what: str) -> tuple[str, str]:
    """The title, and how to keep the pass from the parameters without breaking DDP."""
    at, reduced = f" at {unused.where}" if unused.where else "", unused.reduced
    if unused.entered_at:
        return (
            f"Detach the input of the call at {unused.entered_at}: the backward pass{at} computes gradients of {what} "
            "that are zeroed before use",
            "Pass `tensor.detach()` there; a later pass that trains these parameters needs the tensor itself.",
        )
    if unused.optimizer is None:
        remedy = "Set requires_grad_(False) on them" + (
            " before DistributedDataParallel wraps the model." * reduced or "."
        )
        remedy += " If they should be trained, pass them to the optimizer instead."
        return f"The backward pass{at} computes gradients of {what} that no optimizer updates: freeze them", remedy
    remedy = "Set requires_grad_(False) on them for the forward and backward pass, then True again."
    if reduced:
        remedy += " Call the module inside DDP (`.module`) in this pass: DDP expects a gradient of every parameter."
    return (
        f"The backward pass{at} computes gradients of {what} that are zeroed before use: freeze them in this pass",
        remedy,
    )


def _named(modules: Sequence[str]) -> str:
    """The parts of the model, unless they are layers of a Sequential, which have numbers for names."""
    named = bool(modules) and not any(name.isdigit() for name in modules)
    return f" ({', '.join(f'`{name}`' for name in modules)})" if named else ""


def _share(run: RunView, spent_ns: int, *, reduced: bool) -> float:
    """The share of a step that the pass takes, at most: on a GPU with what is exposed of transfer."""
    exposed = run.measured.share("exposed_without_waiting_ns") if reduced and run.measured.device_kind != "cpu" else 0.0
    return min(1.0, run.backward_share(spent_ns) + exposed)

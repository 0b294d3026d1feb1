"""A function of the script takes a share of the step that no other rule explains.

## What it measures

Exposed host time of functions of the script, as a share of the untraced step. It is read from Python's
stacks in the detailed window. If stack samples of untraced steps show less, their share is reported, because the
profiler slows functions that run much Python. The training itself is left out:

- compute of modules, losses, backward passes and optimizers; of a script's function inside them, only Python code
  outside of operators counts;
- tensor operators that the training loop itself calls, to make inputs or targets, unless it calls one of them 16 times
  or more per step;
- time in which a GPU computes, or the script waits for a GPU or for another rank.

A function that does little more than call a few tensor operators may be part of the method, for example neighbour
sampling. It is reported with low impact and low confidence, as torch's clipping of gradients is, unless its name shows
that it logs, computes metrics, plots, evaluates or saves. This rule does not report a function that another rule names.

Where a library runs the training loop (a trainer), a function that the library calls, not the script, is reported from
`library_share` of the step: the script can only turn it off through the library's settings, or not at all.

## Why it matters

While the script writes a file, sorts a list, loops over samples or sleeps, the training stops: a GPU runs out of work,
and on a CPU nothing computes. Other ranks wait for this one in the next collective.

## What to change

Look at the function: is it needed in every step? Then, in the order of effort:

- call it every N steps, or once an epoch, as for logging, metrics and checkpoints;
- let one rank do it, or a thread or a process of its own, as for writing files;
- prepare data in the workers of a DataLoader, so that it overlaps with training;
- replace a Python loop over samples or parameters by one operator on the whole batch, or a `torch._foreach_*` call.

If stack samples show that the function spends at least 30 % of its time in lines with a known costly pattern, the
finding names the line and its remedy. Patterns: a function called with constants only, deepcopy, a tensor made of a
Python list, parsing, writing, histograms, rows of a table, sorting, weighted draws, single random numbers, draws from a
deque, joining all values so far, and Python loops over single values. Otherwise it reports how often per step the
function runs or calls an operator, if that is 16 times or more.

The saving is an upper bound: all of the time in the function. On a CPU, if stack samples of untraced steps find it, the
saving is predicted: 0.8 to 1.3 times the sampled time, with its sampling error. If only some ranks spend time there,
the next busiest rank limits the saving.

## When to leave it alone

- It is part of the method: a search, or an environment that the model acts in. Functions named for collecting
  experience (rollouts, episodes) are reported with low impact and confidence.

## References

- Python's stacks in torch.profiler (`with_stack`): https://pytorch.org/docs/stable/profiler.html
- PyTorch, "Performance Tuning Guide": https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- Measured on two CPU ranks: `time.sleep(0.03)` in the loop is measured as 30.1 ms per step. The overhead of recording
  stacks is subtracted, up to 5 us per event.
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence, Impact
from dptune.measured import CodeSite, in_ms
from dptune.rule import Rule, RunView, Threshold
from dptune_rules import line_forms
from dptune_rules.call_paths import call_path_evidence
from dptune_rules.host.row_calls import covered
from dptune_rules.known import named_with_class

WORTH_SHARE = Threshold("worth_share", 0.05, "identical steps differ by about 5 %: less is within this noise")
LIBRARY_SHARE = Threshold(
    "library_share", 0.1, "the script cannot change what a library does in its own loop: less is its usual overhead"
)

MOST = 3  # functions that are named
LEAST_SAMPLED = 0.5  # of `worth_share`: of few samples, half as many may be found by chance
FEW_CALLS = 16  # of one operator in a step: from here it is a loop, as for `operator-loops`
OPERATING = 0.8  # of a function's time in tensor operators: from here it mainly computes
CLIPPING = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")  # torch's own, for all tensors at once
OPERATORS = "tensor operators"  # as the figures name what the training loop itself computes

INPUT_RULES = "DP5"  # rules on the data loader: they explain what is done to draw a batch
ITERATING = ("__iter__", "__next__")  # what a function mostly does that starts iterators: run their samplers
FREEING = (*ITERATING, "Python code")  # and one that only frees them: that, or nothing that has a name
WORDS = {
    "loop": "",
    "input": " while the data loader draws a batch",
    "forward": " in forward passes",
    "backward": " in backward passes",
    "optimizer": " in optimizer steps",
}

RULE = Rule(
    code="DP901",
    name="uncovered-cost",
    family="uncovered",
    kind="time",
    summary="a function of the script takes a share of the step that no other rule explains",
    since="0.1",
    thresholds=(WORTH_SHARE, LIBRARY_SHARE),
    last=True,
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the functions of the script that take a share of the step worth it, and that no other advice names."""
    found = run.measured.known("user_code")
    if found is None and run.measured.share("other_idle_ns") < run.limit(WORTH_SHARE):
        return  # whatever the script does takes less
    found = run.measured.user_code
    looping = {(loop.name, loop.at) for loop in found.loops if _has_advice(run, loop.name)}
    sites = [_agreed(run, site) for site in found.sites if (site.name, site.at) not in looping]
    sites = [site for site in sites if not site.library or site.share >= _least(run, site)]
    sites = [site for site in sites if not (site.part and site.mostly == OPERATORS and _computes(run, site))]
    named = [site for site in sites if run.impact(site.share, WORTH_SHARE) and not _explained(run, site)]
    shown = [_sampled(run, site) for site in named]
    for site in [site for site in shown if site.share >= LEAST_SAMPLED * _least(run, site)][:MOST]:
        yield _advice(run, site, found.ranks, found.basis)


def _least(run: RunView, site: CodeSite) -> float:
    return run.limit(LIBRARY_SHARE) if site.library else run.limit(WORTH_SHARE)


def _agreed(run: RunView, site: CodeSite) -> CodeSite:
    """With its share limited by what stack samples of untraced steps allow."""
    calling = _calling(site) or (site.mostly if site.part and site.library else "")
    package = site.library
    return _with_share(site, run.agreed_share(site.share, site.rank, site.name, site.at, calling, package))


def _sampled(run: RunView, site: CodeSite) -> CodeSite:
    """With the share of its samples, if less: the profiler slows functions that run much Python."""
    package = site.library if site.part else ""
    found = run.found_share(site.rank, site.name, site.at, calling=_calling(site), package=package)
    return _with_share(site, min(site.share, found[0])) if found and found[0] else site


def _with_share(site: CodeSite, share: float) -> CodeSite:
    return site.model_copy(update={"share": share, "cost_ns": round(site.cost_ns * share / site.share)})


def _calling(site: CodeSite) -> str:
    """The library's function that alone is counted; empty if all of the function is."""
    return site.mostly if site.part and not site.library else ""


def _has_advice(run: RunView, loop: str) -> bool:
    """Whether operator-loops names the function."""
    return any(advice.fingerprint == f"DP610:{loop}" for advice in run.advised)


def _computes(run: RunView, site: CodeSite) -> bool:
    """Whether it computes on whole tensors outside of the passes, and its name suggests part of the method."""
    few = site.phase == "loop" and site.operator_calls < FEW_CALLS
    return few and (site.operator_share >= OPERATING or site.mostly == OPERATORS) and not run.reports(site.name)


def _explained(run: RunView, site: CodeSite) -> bool:
    if site.phase == "input" and any(
        advice.kind == "time" and advice.rule.startswith(INPUT_RULES) for advice in run.advised
    ):
        return True
    if site.mostly in (FREEING if site.part else ITERATING) and _makes_iterators(run, site):
        return True
    if run.explained(site.mostly) or _named_with_class(run, site) or covered(run, site.name, site.at):
        return True
    if not site.part and named_with_class(run, site.name, site.at):
        return True
    return not site.part and (run.explained(site.at, site.name) or _works_between(run, site))


def _named_with_class(run: RunView, site: CodeSite) -> bool:
    """Whether the title of another finding names, with its class, the method that takes most time, in this file."""
    at = f" ({site.at.rpartition(':')[0]}:"
    named = (f".{site.mostly}`{at}", f".{site.mostly}{at}")
    return any(advice.kind == "time" and any(name in advice.title for name in named) for advice in run.advised)


def _works_between(run: RunView, site: CodeSite) -> bool:
    """Whether work-between-steps names this method: with its class, which a trace does not show."""
    file = site.at.rpartition(":")[0]
    return any(
        advice.rule == "DP609"
        and advice.fingerprint.endswith(f".{site.name}")
        and any(f"({file}:" in str(evidence.value) for evidence in advice.evidence)
        for advice in run.advised
    )


def _makes_iterators(run: RunView, site: CodeSite) -> bool:
    """Whether new-iterators names the function."""
    file = site.at.rpartition(":")[0]
    return any(advice.fingerprint == f"DP507:{file}:{site.name}" for advice in run.advised)


def _cause(site: CodeSite) -> str:
    """Who calls it, where the script does not."""
    if not site.library:
        return "No other rule explains this time."
    return (
        f"{site.library} calls it in its own training loop, not the script: look for a setting of {site.library} that "
        "turns it off or runs it less often."
    )


def _remedy(run: RunView, site: CodeSite, where: str) -> str:
    """The remedy for the line that takes most time; without one, that the function runs too often."""
    if site.part:
        return line_forms.of_call(run, site.name, site.at, site.mostly)
    if found := line_forms.of_function(run, site.name, site.at):
        return found
    what = f"`{site.name}` ({where})"
    if run.reports(site.name):
        return f"{what}: call it every N steps or once per epoch, not in each step."
    if site.runs >= line_forms.MANY_RUNS:
        runs = f"{what} runs {site.runs:,.0f} times per step"
        return f"{runs}: use one call for the whole batch if none needs the one before."
    if site.operator and site.operator_calls >= FEW_CALLS:
        return (
            f"{what} calls {site.operator} {site.operator_calls:,.0f} times per step: use one operator for the whole "
            "batch, or a `torch._foreach_*` call for all tensors."
        )
    return ""


def _watch(collects: bool) -> str:
    if collects:
        return "It collects experience, which reinforcement learning needs."
    return "It calls a few tensor operators. If it is part of the method, leave it unchanged."


def _advice(run: RunView, site: CodeSite, read: list[int], basis: str) -> Advice:
    ranks = f" on rank {', '.join(map(str, site.ranks))}" if len(site.ranks) < len(read) else ""
    inside = f", most of it in `{site.mostly}`" if site.mostly != site.name and not site.part else ""
    where = run.hottest_line(site.name, site.at, site.mostly if site.part else "") or site.at
    by = f"of {site.library} " if site.library else ""
    what = f"`{site.mostly}` {by}in `{site.name}` ({where})" if site.part else f"`{site.name}` ({where})"
    calling = site.mostly if site.part else ""
    saves = run.without_function(site.name, site.at, calling) if site.phase == "loop" else None
    collects = run.collects_experience(site.mostly) if site.part else run.collects_experience(site.name, site.at)
    of_method = collects or site.mostly in CLIPPING or _computes(run, site)
    impact: Impact = "low" if of_method or run.impact(site.share, WORTH_SHARE) == "low" else "medium"
    return Advice(
        rule=RULE.code,
        slug=RULE.name,
        kind=RULE.kind,
        impact=impact,
        title=f"{what} takes {100 * site.share:.0f} % of the step{ranks}{WORDS[site.phase]}",
        why=f"Training waits for it {in_ms(site.cost_ns)} ms in each step{inside}. {_cause(site)}",
        changes=[],
        remedy="" if collects or site.library else _remedy(run, site, where),
        saves=saves or run.bound(0.0, site.share, "the time in this function"),
        confidence="medium" if basis == "untraced" and not of_method else "low",
        evidence=[
            Evidence(label=f"{site.name} at {site.at}", value=site.cost_ns / 1e6, unit="ms per step", rank=site.rank),
            Evidence(label="most of it in", value=site.mostly),
            *([] if site.part else call_path_evidence(run, site.name, site.at)),
        ],
        numerics="same",
        watch=_watch(collects) if of_method else "",
        fingerprint=f"{RULE.code}:{site.name}{f':{site.mostly}' if site.part else ''}",
    )

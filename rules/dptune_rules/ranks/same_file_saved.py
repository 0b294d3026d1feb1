"""Several ranks save the same file.

## What it measures

The paths that each rank writes with `torch.save` while it is recorded. Reported if several ranks of one host write the
same regular file; the times of their last writes show whether they overlap. If the recording ends before the first
checkpoint, dptune reads the source of the training loop and of the functions it calls, and reports a `torch.save` that
several ranks will call with the same path. A call behind a condition that may depend on the rank is left out.

## Why it matters

Two processes that write a file at the same time can leave a mixture of both, which does not load when it is needed. If
they write one after the other, only the last rank's state remains, and the other writes are wasted.

## What to change

Save on one rank, under a temporary name, then rename the file:

    if torch.distributed.get_rank() == 0:
        torch.save(state, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)

A sharded state needs all ranks: `torch.distributed.checkpoint.save` gives each rank its own file.

## When to leave it alone

- Ranks take turns on purpose, and each reads what the one before wrote.

## References

- PyTorch, "Getting Started with Distributed Data Parallel", "Save and Load Checkpoints":
  https://pytorch.org/tutorials/intermediate/ddp_tutorial.html
- torch.distributed.checkpoint: https://pytorch.org/docs/stable/distributed.checkpoint.html
"""

from __future__ import annotations

from collections.abc import Iterator

from dptune.advice import Advice, Evidence
from dptune.rule import Rule, RunView, shared_files
from dptune_rules.at_risk import results_at_risk
from dptune_rules.known import in_parentheses, known

RULE = Rule(
    code="DP704",
    name="same-file-saved",
    family="ranks",
    kind="risk",
    summary="several ranks save the same file",
    since="0.1",
    asked_when_busy=True,
    needs="recording",
)


def check(run: RunView) -> Iterator[Advice]:
    """Name the file that most ranks write, and the line."""
    run.any_facts()
    found = shared_files([(facts.rank, facts.host, facts.saved_files) for facts in run.facts])
    if not found:
        return
    file = found[0]
    ranks = ", ".join(map(str, file.ranks[:8])) + (", ..." if len(file.ranks) > 8 else "")
    does, risk = "save", "at the same time: it can be corrupt" if file.overlaps else "overwriting each other"
    if not file.times:
        does, risk = "will save", "possibly at the same time: it can be corrupt"
    yield results_at_risk(
        RULE,
        impact="high" if file.overlaps or not file.times else "medium",
        confidence="high" if file.times else "medium",
        title=f"Ranks {ranks} {does} the same file{in_parentheses(file.where)}, {risk}",
        why="Writes of different processes are not ordered: a file that two write can hold parts of both.",
        evidence=[
            Evidence(label="file", value=file.path),
            *known("saves per rank", file.times),
            *([] if file.times else [Evidence(label="not reached in the recording", value=file.where or "")]),
            *known("other files that several ranks save", len(found) - 1),
        ],
        remedy="Save only `if torch.distributed.get_rank() == 0:`, under a temporary name, then `os.replace` it.",
        watch="A barrier around the call is not enough: ranks would still write the same file.",
        subject="file",
    )

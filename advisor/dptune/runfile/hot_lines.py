"""Where in a function of the script the training thread was found, and how much, in untraced steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf, sqrt

from dptune.runfile.facts import Facts
from dptune.runfile.removed import Share
from dptune.runfile.sampled_functions import Function, frame_of, function, sampled
from dptune.runfile.window import SampledFacts, Window

_LEAST_LOOKS = 3  # fewer may be chance
_ENOUGH_SAMPLES = 5  # on a rank, for a share
_ENOUGH_OF_ALL = 50  # on a rank: of fewer a function that is never found may take 5 % of the step
_ENOUGH_OF_PACKAGE = 20  # on a rank: of all calls of a package, of which none may be found
_ENOUGH_STEPS = 8  # for their variation
_Z = 1.645  # of a normal distribution: 5 % lie beyond on either side
_TRAINING = ("loader", "forward", "backward", "optimizer", "collective")
Place = tuple[str, str]  # a function's name, and its file or `file:line` with its first line


@dataclass(frozen=True)
class SampledShare:
    """The share of the steps of each rank, with its sampling error; `samples` of the rank with most of them.

    The true share is below the interval of a rank in 5 % of recordings, and above it in 5 %. Samples are spread evenly
    over each step, so if steps do the same work, their shares differ less than those of independent samples. Example: a
    loop that takes 30 to 37 % of each step, with 150 to 200 samples in 20 steps. Against a timer in the script, the
    error had a standard deviation of 1.6 % of the step in six recordings; as many independent samples would have 3.6 %.
    So the error is that of the mean over steps, or that of independent samples if it is smaller, for example for work
    in every fifth step.
    """

    by_rank: dict[int, Share]
    samples: int


def hottest_line(facts: Sequence[Facts], name: str, at: str, calling: str = "") -> str | None:
    """`file:line` within the function of that name that begins `at`; None where it was found there too rarely.

    `calling`: only while that line itself calls a library's function of this name.
    """
    spent: Counter[str] = Counter()
    looks: Counter[str] = Counter()
    of = function(facts, name, at)
    for sample in sampled(facts):
        line = _line(sample, of)
        if line and (not calling or _calls(sample, f"{of.file}:{line}", calling)):
            spent[line] += sum(sample.spent_ns)
            looks[line] += sample.looks
    lines = [line for line, _ in spent.most_common() if looks[line] >= _LEAST_LOOKS]
    return f"{of.file}:{lines[0]}" if lines else None


def sampled_share(
    facts: Sequence[Facts],
    name: str,
    at: str,
    calling: str = "",
    *,
    training: bool = False,
    without: Collection[Place] = (),
) -> SampledShare | None:
    """The share of the steps in which that function runs outside of training; None where samples are too few.

    `calling`: only while its line calls a library's function of this name; `training`: in all phases of a step;
    not in a function of `without` that it calls.
    """

    of, left_out = function(facts, name, at), [function(facts, *each) for each in without]

    def inside(sample: SampledFacts) -> bool:
        line = _line(sample, of) if training or sample.phase not in _TRAINING else ""
        return _counts(line, sample, of, left_out) and (not calling or _calls(sample, f"{of.file}:{line}", calling))

    return sampled_by_rank(facts, inside)


def sampled_phase(facts: Sequence[Facts], phase: str) -> SampledShare | None:
    """The share of the steps in a phase of the training, with what the script runs in it."""
    return sampled_by_rank(facts, lambda sample: sample.phase == phase)


def sampled_by_rank(facts: Sequence[Facts], inside: Callable[[SampledFacts], bool]) -> SampledShare | None:
    """The share of the steps of each rank in samples `inside`; None where every rank has too few of them.

    A rank without any spends no time there. None also where a rank was not sampled.
    """
    found, most = {}, 0
    for rank in facts:
        window = rank.window("untraced")
        if window is None or not window.steps:
            return None
        matching = [sample for sample in window.sampled if inside(sample)]
        samples, of_all = (sum(sample.looks for sample in each) for each in (matching, window.sampled))
        if not of_all:
            return None
        share = min(1.0, sum(sum(sample.spent_ns) for sample in matching) / sum(window.durations_ns))
        error = min(_Z * sqrt(share * (1 - share) / of_all), _between_steps(window, matching, share))
        found[rank.rank] = Share(max(0.0, share - error), share, min(1.0, share + error))
        most = max(most, samples)
    return SampledShare(found, most) if most >= _ENOUGH_SAMPLES else None


def _between_steps(window: Window, matching: Sequence[SampledFacts], share: float) -> float:
    """The error of the share (a ratio of means), by its variation between steps; infinite if there are too few steps.

    At least that of half a sample: no share is known more precisely.
    """
    if window.steps < _ENOUGH_STEPS:
        return inf
    spent_ns: Counter[int] = Counter()
    for sample in matching:
        spent_ns.update(dict(zip(sample.steps, sample.spent_ns, strict=False)))
    squares = sum((spent_ns[step] - share * step_ns) ** 2 for step, step_ns in enumerate(window.durations_ns))
    degrees = window.steps - 1
    error = _student(degrees) * sqrt(squares * window.steps / degrees) / sum(window.durations_ns)
    return max(error, 0.5 / sum(sample.looks for sample in window.sampled))


def _student(degrees: int) -> float:
    """The 95 % quantile of Student's t, by the first terms of its expansion: within 0.004 from 7 degrees on."""
    return _Z + (_Z**3 + _Z) / (4 * degrees) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * degrees**2)


def passes(sample: SampledFacts, where: str) -> bool:
    """Whether that line of the script, `file:line`, is on the stack."""
    return any(frame.endswith(f"({where})") for frame in sample.path)


def part_at(facts: Sequence[Facts], name: str, at: str, where: str) -> float | None:
    """The part of a function's time, over all ranks, in which a line is on the stack; None where it has no samples."""
    of = function(facts, name, at)
    inside = [sample for sample in sampled(facts) if _line(sample, of)]
    spent = [(sum(sample.spent_ns), passes(sample, where)) for sample in inside]
    total = sum(ns for ns, _ in spent)
    return sum(ns for ns, there in spent if there) / total if total else None


def found_share(
    facts: Sequence[Facts],
    rank: int,
    name: str,
    at: str,
    without: Collection[Place] = (),
    calling: str = "",
    *,
    few: bool = False,
    package: str = "",
) -> tuple[float, float] | None:
    """The share of a rank's steps in which a function is on the stack, and what it is at most; None of few samples.

    The latter is the upper end of Wilson's interval: 5 % of recordings lie above it. A function that is never found
    takes something. Samples in a function of `without` that it calls are not counted; with `calling` only those in
    which its line itself calls a library's function of this name. `few`: also of few samples, if enough are in the
    function: their upper end holds for any number. `package`: only samples outside of training in which its line calls
    this package.
    """
    window = next((rank_facts.window("untraced") for rank_facts in facts if rank_facts.rank == rank), None)
    looks = sum(sample.looks for sample in window.sampled) if window else 0
    if window is None or (looks < _ENOUGH_OF_ALL and not few and not package):
        return None
    of, left_out = function(facts, name, at), [function(facts, *each) for each in without]
    inside = ((_line(sample, of), sample) for sample in window.sampled)
    found = [(line, sample) for line, sample in inside if _counts(line, sample, of, left_out)]
    found = [(line, sample) for line, sample in found if not calling or _calls(sample, f"{of.file}:{line}", calling)]
    found = [(line, sample) for line, sample in found if not package or _calls_package(sample, of, line, package)]
    found_looks = sum(sample.looks for _, sample in found)
    if looks < (_ENOUGH_OF_PACKAGE if package else _ENOUGH_OF_ALL) and found_looks < _ENOUGH_SAMPLES:
        return None
    part = found_looks / looks
    middle = part + _Z**2 / (2 * looks)
    return part, (middle + _Z * sqrt(part * (1 - part) / looks + (_Z / (2 * looks)) ** 2)) / (1 + _Z**2 / looks)


def _line(sample: SampledFacts, of: Function) -> str:
    """The line of the innermost frame of that function; "" where it is not on the stack."""
    frames = of.frames(sample)
    innermost = frame_of(sample.path[frames[-1]]) if frames else None
    return innermost.line if innermost else ""


def _counts(line: str, sample: SampledFacts, of: Function, without: Collection[Function]) -> bool:
    """Whether the function is on the stack (at `line`), and none of `without` is called from it there."""
    if not line:
        return False
    last = of.frames(sample)[-1]
    return not any(at > last for each in without for at in each.frames(sample))


def _calls(sample: SampledFacts, at: str, calling: str) -> bool:
    """Whether that line is the innermost of the script, and calls a library's function of this name."""
    return sample.path[-1].endswith(f"({at})") and calling in sample.through.split(".")


def _calls_package(sample: SampledFacts, of: Function, line: str, package: str) -> bool:
    """Whether that line is the innermost of the script, and calls an installed package, in no phase of a step."""
    inner = sample.path[-1].endswith(f"({of.file}:{line})")
    return inner and not sample.phase and sample.through.split(".")[0] == package

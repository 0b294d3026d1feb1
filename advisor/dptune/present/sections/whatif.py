"""Predictions as a page of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dptune.advise.sentence import sentence
from dptune.knobs import KNOBS, Value, written
from dptune.predicted import Prediction, Strategy, WhatIf, missed
from dptune.present.amounts import Hole, data, ns_as_ms, percent
from dptune.present.lines import BLANK, Line, labelled, wrapped
from dptune.present.sections.advice import change, changes
from dptune.present.sections.whatif_memory import FITS, memory
from dptune.present.table import Cell, Column, table
from dptune.whatif.scenarios import changes_results

_COLUMNS = (
    Column("with", right=False),
    Column("step ms"),
    Column("from"),
    Column("to"),
    Column("samples"),
)
_PER_SAMPLE, _PER_STEP = Column("time per sample", right=False), Column("step time", right=False)
_OF_SAMPLES = frozenset({"accumulation.micro_batches", "batch.times", "loader.batch_size", "world_size"})
# What no setting of a script does: each shows how much of a step one part of it limits.
_SCENARIOS = frozenset({"compute.times", "host.times", "straggler.removed", "syncs.removed"})
_STRATEGIES = (
    Column("strategy", right=False),
    Column("state"),
    Column("peak"),
    Column("fits", right=False),
    Column("step ms"),
    Column("from"),
    Column("to"),
    Column("per sample", right=False),
)
_CURVE = (Column("size MiB"), Column("buckets"), Column("step ms"), Column("", right=False))
_FITTED = " The model is built from these steps: this does not test a change."
_MAY_FIT = "the predicted peak or the memory of a rank is unknown"
_BAR = 30
_AS_LONG = 0.99  # of the step: communication that takes no time leaves it as it is
_OF_FIGURES = 46  # columns that the table takes beside the name of a set of changes


def page(whatif: WhatIf, width: int, run: str = "") -> Iterator[Line]:
    """What it rests on, then the step and the memory with each set of changes. `run` is how the user named it; empty:
    not at all.
    """
    yield from _steps(whatif, width, run)
    yield from memory(whatif, width)


def _steps(whatif: WhatIf, width: int, run: str) -> Iterator[Line]:
    for words in whatif.limits:
        yield from labelled("Partial", sentence(words), width, role="warning")
    measured_ns = whatif.known("measured_ns")
    if measured_ns is None:
        yield from labelled("No model", sentence(whatif.missing["measured_ns"]), width, role="warning")
        return
    how = "traced: the profiler slows the host" if whatif.traced else "untraced"
    many = f", the median of {whatif.processes} processes" if whatif.processes > 1 else ""
    yield from labelled("Measured", f"{ns_as_ms(measured_ns)} ms per step, {how}{many}.", width, role="strong")
    replayed = f"Replay of the unchanged run: {ns_as_ms(whatif.replayed_ns)} ms ({percent(whatif.error_share)} error"
    held_out_share, variation_share = whatif.known("held_out_share"), whatif.known("variation_share")
    fitted = _FITTED if whatif.traced and held_out_share is None else ""
    held_out = "" if held_out_share is None else f"; {percent(held_out_share)} on held-out steps"
    yield from labelled("Model check", f"{replayed}{held_out}).{fitted}", width)
    if variation_share is not None:
        words = f"Even and odd traced steps of the same kind differ by {percent(variation_share)}."
        yield from labelled("Steps vary", words, width)
    if whatif.known("floor_ns") is not None:
        words = f"If communication took no time, a step would take {ns_as_ms(whatif.floor_ns)} ms. "
        if whatif.traced and whatif.floor_ns >= _AS_LONG * measured_ns:
            words += (
                "Compute or host work hides all of it. The profiler slows the host, so less may be hidden in untraced "
                "steps."
            )
        else:
            words += "Skipping collectives can save more: it also removes their hooks."
        yield from labelled("Free comm.", words, width)
    if whatif.known("link") is None:
        yield from labelled("Link", f"Unknown: {whatif.missing['link']}.", width)
    else:
        yield from labelled("Link", f"From {whatif.link}.", width)
    yield BLANK
    if whatif.curve:
        yield from _searched(whatif, width, run)
        return
    if whatif.strategies:
        yield from _compared(whatif, width)
        return
    if not whatif.predictions:
        words = missed(whatif.error_share, held_out_share).capitalize()
        hint = "Record more traced steps (--light 20) and more processes (--repeat 3)."
        yield from labelled("Search", f"{words}, so no search was run. {hint}", width, role="warning")
        return
    if not any(prediction.known("low_ns") is not None for prediction in whatif.predictions):
        for why in _reasons((_settings(unpredicted.changes), unpredicted) for unpredicted in whatif.predictions):
            yield from labelled("Prediction", f"Not available: {why}.", width, role="warning")
        return
    yield from _predicted(whatif, width, run)


def _predicted(whatif: WhatIf, width: int, run: str) -> Iterator[Line]:
    """The sets of changes, and how to prove the best of them."""
    alike = _alike(whatif.predictions)
    if alike:
        yield from labelled("Each with", _settings(alike), width)
    names = [
        _settings({knob: value for knob, value in prediction.changes.items() if knob not in alike})
        for prediction in whatif.predictions
    ]
    fits = max(map(len, names)) <= width - _OF_FIGURES
    short = names if fits else [f"set {number}" for number in range(1, len(names) + 1)]  # as where memory is predicted
    rows = list(zip(short, whatif.predictions, strict=True))
    if not _is_sweep(whatif.predictions):
        rows.sort(key=lambda row: _central(row[1], whatif))
    per_sample = whatif.known("global_batch") is not None
    columns = (*_COLUMNS, _PER_SAMPLE if per_sample else _PER_STEP)
    yield from table(columns, [_row(*row, whatif) for row in rows], width)
    for label, name in zip(short, names, strict=True):
        if label != name:
            yield from labelled(label.capitalize(), name, width)
    for why in _reasons((name, predicted) for name, predicted in rows if predicted.is_range):
        yield from labelled("Range", sentence(why), width)
    bounds = [row for row in rows if row[1].central_ns is None and row[1].known("low_ns") is not None]
    for why in _reasons(bounds):
        yield from labelled("At least", sentence(why), width, role="warning")
    held_out_share = whatif.known("held_out_share")
    if bounds and held_out_share is not None and missed(whatif.error_share, held_out_share):
        share = percent(whatif.error_share + held_out_share)
        yield from labelled("Bounds", f"Each is lowered by the sum of both errors, {share} of a step.", width)
    if len(bounds) < len(whatif.predictions):
        yield from labelled("From, to", "Nominal 90 % prediction interval.", width)
    yield from _notes(whatif, width)
    for words in dict.fromkeys(words for predicted in whatif.predictions for words in predicted.assumptions):
        yield from labelled("Assumed", f"{words[0].upper()}{words[1:]}.", width)
    best = min(_saving(whatif), key=lambda one: _central(one, whatif), default=None)
    if best is not None and set(best.changes) <= set(KNOBS):
        settings = " ".join(f"--set {name}={written(value)}" for name, value in best.changes.items())
        yield BLANK
        if whatif.recorded:
            yield from wrapped(f"Verify it: dptune verify {f'{run} ' if run else ''}{settings}", width)
        else:
            yield from wrapped(
                "Verify it: traces cannot be run again. Record the script with dptune profile train.py, then run "
                f"dptune verify {settings}",
                width,
            )


def _reasons(rows: Iterable[tuple[str, Prediction]]) -> Iterator[str]:
    """Why no step is predicted, a clause per reason; of several, with the names of its rows."""
    names: dict[str, list[str]] = {}
    for name, prediction in rows:
        names.setdefault(prediction.missing["step_ns"], []).append(name)
    for why, those in names.items():
        yield f"{', '.join(those)}: {why}" if len(names) > 1 else why


def unknown_samples(settings: Iterable[str], width: int) -> Iterator[Line]:
    """How to compare steps whose samples are unknown, if these settings change them."""
    if not _OF_SAMPLES.isdisjoint(settings):
        words = "Samples per step are unknown, but change with these settings: divide each step by its samples."
        yield from labelled("Step time", words, width, role="warning")


def _notes(whatif: WhatIf, width: int) -> Iterator[Line]:
    """What a reader must know of the settings: which change the samples, the results, or nothing in a script."""
    settings = dict.fromkeys(name for prediction in whatif.predictions for name in prediction.changes)
    if whatif.known("global_batch") is None:
        yield from unknown_samples(settings, width)
    elif "world_size" in settings:
        words = "Samples of all ranks together: more ranks process more samples per step, on more devices."
        yield from labelled("Per sample", words, width)
    if len(whatif.predictions) > 1 and (scenarios := [name for name in settings if name in _SCENARIOS]):
        traced = "the traced step, whose host the profiler slows" if whatif.traced else "the step"
        words = f"{', '.join(scenarios)}: not script settings; they show what limits {traced}."
        yield from labelled("Scenarios", words, width)
    if changing := [name for name in settings if changes_results(name)]:
        yield from labelled("Results", f"{', '.join(changing)}: may change training results.", width)


def _is_sweep(predictions: Sequence[Prediction]) -> bool:
    """Whether all sets are of the same settings: values of a sweep, which stay in order."""
    return len({frozenset(prediction.changes) for prediction in predictions}) == 1


def _alike(predictions: Sequence[Prediction]) -> dict[str, Value]:
    """What a sweep has beside its knob: settings that several sets of the same knobs have in common."""
    first, *others = (prediction.changes for prediction in predictions)
    if not others or any(other.keys() != first.keys() for other in others):
        return {}
    return {knob: value for knob, value in first.items() if all(changes[knob] == value for changes in others)}


def _settings(changes: Mapping[str, Value]) -> str:
    return ", ".join(f"{knob}={written(value)}" for knob, value in changes.items())


def _searched(whatif: WhatIf, width: int, run: str) -> Iterator[Line]:
    """The step by bucket size, and the best that was found."""
    longest = max(size.step_ns for size in whatif.curve)
    rows = [
        [
            "default" if size.cap_mb is None else f"{size.cap_mb:g}",
            str(size.buckets),
            ns_as_ms(size.step_ns),
            "#" * max(1, round(_BAR * size.step_ns / longest)),
        ]
        for size in whatif.curve
    ]
    words = "Predicted step by bucket size, all else unchanged. Sizes that give the same buckets are shown once."
    yield from labelled("Buckets", words, width)
    yield from table(_CURVE, rows, width)
    yield BLANK
    if not whatif.predictions:
        yield from labelled("Best", "No change: no tried setting saves 1 % of the step.", width)
        return
    words = "Best combination that does not affect training results:"
    if not _saving(whatif):
        words = "No change. The best combination found may save nothing: its interval includes the current step."
    yield from labelled("Best", words, width)
    yield from _predicted(whatif, width, run)


def _compared(whatif: WhatIf, width: int) -> Iterator[Line]:
    """Other ways to share the work, with their predicted steps, or the bounds of these."""
    words = "Memory per rank and step time, over the run's link:"
    yield from labelled("Strategies", words, width)
    yield from table(_STRATEGIES, [_strategy(strategy, whatif) for strategy in whatif.strategies], width)
    notes = [
        "From, to: nominal 90 % prediction interval, or bounds where no step is predicted. State: trained parameters, "
        "gradients, buckets and optimizer state per rank; frozen parameters and gathered layers are not included. "
        "Per sample: time per sample relative to the recorded run. All-reducing 2x or 4x less often makes the global "
        "batch 2x or 4x as large; `ddp.no_sync` does not if the run already accumulates gradients. ZeRO-1 shards the "
        "optimizer state (ZeroRedundancyOptimizer); FSDP shards parameters and gradients, too (fully_shard); HSDP "
        "shards within each node and replicates across nodes."
    ]
    if (most := max((candidate.known("rank_bytes") or 0 for candidate in whatif.strategies), default=0)) > 0:
        notes.append(f"With activations, a rank holds {data(most)} today; activations are not sharded.")
    if whatif.too_large:
        notes.append(
            "Even fully sharded, a rank's shard does not fit in memory: use tensor or pipeline parallelism, activation "
            "checkpointing, or more ranks."
        )
    for note in notes:
        yield from wrapped(note, width)


def _strategy(strategy: Strategy, whatif: WhatIf) -> list[Cell]:
    def cell(name: str, write: Callable[[int], str]) -> Cell:
        value = strategy.known(name)
        return Hole(strategy.missing[name], "not known") if value is None else write(value)

    low_ns, high_ns = strategy.known("low_ns"), strategy.known("high_ns")
    per_sample = [
        f"{ns / strategy.samples_times / whatif.measured_ns:.2f}" for ns in (low_ns, high_ns) if ns is not None
    ]
    ends = "-".join(dict.fromkeys(per_sample))
    return [
        strategy.name,
        *(cell(name, data) for name in ("state_bytes", "rank_bytes")),
        Hole(_MAY_FIT, "not known") if strategy.fits == "unknown" else FITS[strategy.fits],
        "" if strategy.known("step_ns") is None and low_ns is not None else cell("step_ns", ns_as_ms),
        *(cell(name, ns_as_ms) for name in ("low_ns", "high_ns")),
        f"from {ends}" if high_ns is None and ends else ends,
    ]


def _saving(whatif: WhatIf) -> list[Prediction]:
    """Predictions whose whole interval is below the step as it is."""
    predicted = [prediction for prediction in whatif.predictions if prediction.central_ns is not None]
    return [saving for saving in predicted if _times(saving, whatif, saving.high_ns) < 1]


def _central(prediction: Prediction, whatif: WhatIf) -> float:
    """What orders a prediction: the same with its step or the middle of its range; a bound is behind all."""
    step_ns = prediction.central_ns
    return math.inf if step_ns is None else _times(prediction, whatif, step_ns)


def _times(prediction: Prediction, whatif: WhatIf, step_ns: float) -> float:
    """The time per sample with the changes, in a step of this length / without; per step where the batch is unknown."""
    times = step_ns / whatif.measured_ns
    before, after = whatif.known("global_batch"), prediction.known("global_batch")
    return times * before / after if before and after else times


def _row(name: str, prediction: Prediction, whatif: WhatIf) -> list[Cell]:
    batch = prediction.known("global_batch")
    none = whatif.missing.get("global_batch") or prediction.missing.get("global_batch", "")  # of the run: for all rows
    samples = Hole(none) if batch is None else f"{batch:,}"
    if prediction.central_ns is None:
        why, least = Hole(prediction.missing["step_ns"], "not predicted"), prediction.known("low_ns")
        if least is None:
            return [name, why, why, why, samples if "global_batch" in whatif.missing else why, why]
        if not least:
            return [name, "unknown", "", "", samples, "no bound"]
        saved = change(_times(prediction, whatif, least))
        most = f"up to {saved}" if saved.endswith("less") else "no saving"
        return [name, "at least", ns_as_ms(least), "", samples, most]
    of_step = " per step" if batch is None and whatif.known("global_batch") else ""
    ends_ns = [prediction.low_ns, prediction.high_ns]
    ends = [ns_as_ms(ns) for ns in ends_ns]
    if prediction.is_range:
        return [name, "range", *ends, samples, changes(*(_times(prediction, whatif, ns) for ns in ends_ns)) + of_step]
    per_sample = change(_times(prediction, whatif, prediction.step_ns)) + of_step
    return [name, ns_as_ms(prediction.step_ns), *ends, samples, per_sample]

"""What A has otherwise than B: the facts that the processes gave of themselves, and what was counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dptune.compare.result import FactDifference
from dptune.compare.sides import ReadRun, Sides
from dptune.knobs import Value
from dptune.runfile.facts import Facts

MIB = 2**20
_NO_FACTS = "no facts of {}: only run folders of `dptune profile` have them"

_LISTS = {"ddp": "module", "fsdp": "modules", "loaders": "dataset", "optimizers": "name", "schedulers": "name"}
_SINGULAR = {"loaders": "loader", "optimizers": "optimizer", "schedulers": "scheduler"}
# What a run came to, and what the line of it says: it explains nothing.
_OUTCOMES = {
    "bucket_sizes",
    "rebuilt_bucket_sizes",
    "first_bucket_bytes",
    "gradient_sizes",
    "gradient_rows",
    "pins",
    "grad_ready_order",
    "batches_drawn",
    "preparing",
    "sampler_epoch",
    "unused_parameter_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "index",
    "where",
    "available_bytes",
    "padding",
    "generators",
    "epoch_length",
    "undivided_length",
    "advanced",
    "optimizer_steps",
    "training_steps",
}
_PLAIN = ("python", "torch", "backend", "engine", "autocast", "grad_scaler", "world_size", "host")
_LAUNCH = "TORCHELASTIC_"  # torchrun's own: another with every launch
_COUNTED = ("backwards_per_step", "synchronised_backwards_per_step")


def facts(sides: Sides) -> tuple[list[FactDifference] | None, str]:
    """The facts of which no run of A has a value that a run of B has; and why they are not known.

    Those that vary among the runs of one side, so that a value is on both, separate nothing and are left out. So are
    those that a rank could not read, or that a run of another version does not hold: not known is not unset.
    """
    without = sorted({side for side, run in sides.runs if not run.facts})
    if without:
        return None, _NO_FACTS.format(" and ".join(without))
    a, b = ([_named(run) for run in runs] for runs in (sides.a, sides.b))
    places = {name: where for run in reversed([*a, *b]) for name, (_, where) in run.items()}
    places |= {name: where for run in b for name, (_, where) in run.items() if where}
    unread = {name for _, run in sides.runs for rank_facts in run.facts.values() for name in rank_facts.unread}
    versions = {rank_facts.schema_version for _, run in sides.runs for rank_facts in run.facts.values()}
    found = []
    for name in dict.fromkeys(name for run in [*a, *b] for name in run):
        in_a, in_b = (_values(runs, name) for runs in (a, b))
        if _of_absent(name, a, b) or _read_as(name) in unread or (len(versions) > 1 and None in (*in_a, *in_b)):
            continue
        if not set(map(repr, in_a)) & set(map(repr, in_b)):
            found.append(FactDifference(name=name, a=in_a, b=in_b, at=places.get(name)))
    return found, ""


_Named = dict[str, tuple[Value, str | None]]  # name -> its value, and file:line


def _values(runs: Sequence[_Named], name: str) -> list[Value]:
    values = [run.get(name, (None, None))[0] for run in runs]
    return list({repr(value): value for value in values}.values())


def _of_absent(name: str, a: Sequence[_Named], b: Sequence[_Named]) -> bool:
    """Whether the fact is one of an object that one side lacks throughout: the object itself is reported instead."""
    whole = name.partition(".")[0]
    return whole != name and any(
        whole in _objects(there) and not any(whole in run for run in absent) for there, absent in ((a, b), (b, a))
    )


def _read_as(name: str) -> str:
    """What the fact is called where it could not be read."""
    if name == "precision.float32_matmul":
        return "float32_matmul_precision"
    whole, _, rest = name.partition(".")
    if whole == "settings":
        return rest
    whole = whole.partition("[")[0]
    return next((kind for kind, singular in _SINGULAR.items() if singular == whole), whole)


def _objects(runs: Sequence[_Named]) -> set[str]:
    return {name for run in runs for name in run if "." not in name}


def _named(run: ReadRun) -> _Named:
    """Every fact of a run by its name; one that its ranks do not agree on is their values in the order of ranks."""
    by_rank = [dict(_of_rank(run.facts[rank])) for rank in sorted(run.facts)]
    named: _Named = {"command": (run.report.run.command, None)}
    for name in dict.fromkeys(name for rank_values in by_rank for name in rank_values):
        values = [rank_values.get(name, (None, None))[0] for rank_values in by_rank]
        same = all(value == values[0] for value in values)
        named[name] = (values[0] if same else ", ".join(map(str, values))), by_rank[0].get(name, (None, None))[1]
    for name in _COUNTED:
        named[f"accumulation.{name}"] = run.measured.accumulation.known(name), None
    return named


def _of_rank(facts: Facts) -> Iterator[tuple[str, tuple[Value, str | None]]]:
    for name in _PLAIN:
        yield name, (getattr(facts, name), None)
    for kind, identity in _LISTS.items():
        for place, record in enumerate(getattr(facts, kind)):
            whole = _SINGULAR.get(kind, kind) + (f"[{place}]" if place else "")
            yield whole, (_plain(getattr(record, identity)), record.where)
            yield from _fields(whole, record, record.where, identity)
    for kind in ("device", "compiled"):
        record = getattr(facts, kind)
        if record is not None:
            yield kind, (True, None)
            yield from _fields(kind, record, None, "")
    for name, value in facts.settings.items():
        yield ("precision.float32_matmul" if name == "float32_matmul_precision" else f"settings.{name}"), (value, None)
    for name, value in facts.environment.items():
        if not name.startswith(_LAUNCH):
            yield f"environment.{name}", (value, None)


def _fields(
    whole: str, record: Any, where: str | None, identity: str
) -> Iterator[tuple[str, tuple[Value, str | None]]]:
    for name, value in asdict(record).items():
        if name == "bucket_cap_bytes":
            yield f"{whole}.bucket_cap_mb", (None if value is None else round(value / MIB, 3), where)
        elif name == "arguments":
            for argument, given in value.items():
                yield f"{whole}.{argument}", (_plain(given), where)
        elif name not in _OUTCOMES and name != identity and not name.endswith("_at") and not isinstance(value, dict):
            yield f"{whole}.{name}", (_plain(value), where)


def _plain(value: Any) -> Value:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or None
    return value  # type: ignore[no-any-return]

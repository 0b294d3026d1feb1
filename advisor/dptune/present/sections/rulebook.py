"""Rules for a reader: the list of them, and the page of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, get_args, get_origin

from dptune import config
from dptune.advise import packs
from dptune.knobs import KNOBS, PATCHED, Knob, written
from dptune.measured import Measured, Model
from dptune.present.amounts import several
from dptune.present.lines import BLANK, NARROW, Line, Span, code, heading, labelled, line, wrapped
from dptune.rule import Rule, Threshold

_KINDS = {"time": "saves time", "risk": "finds a risk", "convergence": "concerns convergence"}
WHERE = (
    "[tool.dptune] belongs in the pyproject.toml of the training project, which is searched for upward from the "
    "working directory."
)
_BULLET = re.compile(r"^(\s*)([-*]|\d+\.)\s+")


def record(rule: Rule, pack: str) -> dict[str, Any]:
    """A rule as JSON."""
    return {**asdict(rule), "pack": pack}


def listed(rules: Sequence[tuple[Rule, str]], running: Collection[str], width: int) -> Iterator[Line]:
    """Every rule under its family, with those that do not run marked."""
    family = ""
    for rule, pack in rules:
        if rule.family != family:
            family = rule.family
            yield from heading(family, width)
        notes = [note for note, said in (("preview", rule.preview), ("off", rule.code not in running)) if said]
        if not pack.startswith("dptune "):
            notes.append(f"from {pack}")
        tail = f" ({', '.join(notes)})" if notes else ""
        yield from labelled(rule.code, f"{rule.name}{tail}: {rule.summary}", width, column=8, indent="  ")
    if not rules:
        yield from wrapped("No rule is installed.", width)
        return
    yield BLANK
    yield from wrapped(f"{several(len(rules), 'rule')}. More about one: dptune rules explain {rules[0][0].code}", width)


def knobs(width: int) -> Iterator[Line]:
    """Every knob under its family: what it is, what it takes, whether training results may change, what is predicted;
    those last that only a patch of the script sets.
    """
    family = ""
    for knob in KNOBS.values():
        if knob.name.partition(".")[0] != family:
            family = knob.name.partition(".")[0]
            yield from heading(family, width)
        yield from _knob(knob, width)
    yield BLANK
    hint = "And env.NAME: the variable NAME of the environment. Set one with: dptune profile --set KNOB=VALUE train.py"
    yield from wrapped(hint, width)
    yield BLANK
    yield from heading("set by a patch of the script", width)
    for knob in PATCHED.values():
        yield from _knob(knob, width)
    yield BLANK
    yield from wrapped("Predict one with: dptune whatif --set KNOB=VALUE. Verify it with: dptune verify --set.", width)


def _knob(knob: Knob, width: int) -> Iterator[Line]:
    yield (Span("  "), *line(knob.name, "code"))
    default = "" if knob.default is None or knob.name in PATCHED else f", in torch {written(knob.default)}"
    learned = "; may change training results" if knob.numerics == "changes" else ""
    yield from wrapped(f"{knob.summary}: {knob.takes}{default}{learned}{_predicted(knob)}", width, "      ")


def _predicted(knob: Knob) -> str:
    """What whatif says of a knob; nothing where it predicts the step on every device."""
    from dptune.whatif.gpu.changes import BOUNDS, CHANGES, PREDICTED, RANGED
    from dptune.whatif.memory.changes import CHANGES as OF_MEMORY

    bounded = knob.name in BOUNDS and knob.name not in CHANGES and knob.name not in RANGED
    on_cpus, on_gpus = knob.predicted, "bound" if bounded else "step" if knob.name in PREDICTED else "no"
    if on_cpus == on_gpus == "no":
        return f"; whatif {'predicts its memory, not the step' if knob.name in OF_MEMORY else 'cannot predict it'}"
    if on_cpus == on_gpus:
        return "; whatif gives an upper bound only" if on_cpus == "bound" else ""
    words = {"step": "the step", "bound": "an upper bound", "no": "no step"}
    return f"; whatif gives {words[on_cpus]} on CPUs, {words[on_gpus]} on GPUs"


def figures(word: str, width: int) -> Iterator[Line]:
    """Every figure that a rule may read, by where it stands; of those whose place or meaning holds a word."""
    found = [figure for figure in _figures(Measured, "run.measured") if word.lower() in " ".join(figure).lower()]
    for place, what in found:
        yield line(place, "code")
        yield from wrapped(what, width, "    ")
    if not found:
        yield from wrapped(f"No figure has '{word}' in its name or description.", width)
        return
    yield BLANK
    yield from wrapped(f"{several(len(found), 'figure')}. Reading one that is missing raises Missing.", width)


def _figures(record: type[Model], place: str) -> Iterator[tuple[str, str]]:
    """Where each stands, and what it is; of a list `[]`, of records by key `{}`."""
    for name, field in record.model_fields.items():
        if name == "missing":
            continue
        inside = [record_type for record_type in _records(field.annotation) if issubclass(record_type, Model)]
        sign = {list: "[]", dict: "{}"}.get(_origin(field.annotation), "")
        if inside:
            yield from _figures(inside[0], f"{place}.{name}{sign}")
        else:
            missing = not field.is_required() and field.default is None
            yield f"{place}.{name}{sign}", f"{field.description or ''}{'; may be missing' if missing else ''}"
    for name, computed in record.model_computed_fields.items():
        yield f"{place}.{name}", computed.description or ""


def _records(annotation: Any) -> list[Any]:
    if isinstance(annotation, type):
        return [annotation]
    return [record_type for part in get_args(annotation) for record_type in _records(part)]


def _origin(annotation: Any) -> Any:
    """list or dict, where it is one or may be missing and else is one."""
    parts = [part for part in (annotation, *get_args(annotation)) if get_origin(part) in (list, dict)]
    return get_origin(parts[0]) if parts else None


def explained(rule: Rule, doc: str, limits: Mapping[str, float], pack: str, width: int) -> Iterator[Line]:
    """The rule's own page: what its file says, then the thresholds in force."""
    yield line(f"{rule.code} {rule.name}", "strong")
    yield from wrapped(doc.strip().partition("\n")[0] or rule.summary, width)
    preview = "; in preview: it runs only when it is selected" if rule.preview else ""
    needs = "; has findings only in recordings of dptune profile" if rule.needs and not rule.also_traces else ""
    yield from wrapped(
        f"{_KINDS[rule.kind]}; family {rule.family}; since {rule.since}; {pack}{preview}{needs}", width, role="dim"
    )
    yield from document(doc, width)
    if rule.thresholds:
        yield from heading("Thresholds", width)
        for threshold in rule.thresholds:
            yield from _threshold(threshold, limits, width)
        yield from wrapped(f"Change one under [tool.dptune.rules.{rule.code}]. {WHERE}", width, "  ", role="dim")


def page_of(code: str) -> Callable[[int], Iterator[Line]]:
    """The page of an installed rule, by its code or its name, at any width; UsageError where there is none."""
    found = packs.find_rule(code)
    return partial(explained, found.rule, found.doc, config.load().limits(found.rule), found.pack)


def document(doc: str, width: int) -> Iterator[Line]:
    """A docstring in markdown, as far as rules use it: headings, paragraphs, lists, blocks of code."""
    _, _, rest = doc.strip().partition("\n")
    paragraph: list[str] = []
    fenced = False
    for row in [*rest.splitlines(), ""]:
        bare = row.strip()
        starts = not bare or bare.startswith(("## ", "```")) or _BULLET.match(row) is not None
        if paragraph and (starts or fenced):
            yield from _paragraph(paragraph, width)
            paragraph = []
        if bare.startswith("```"):
            fenced = not fenced
        elif fenced or (row.startswith("    ") and not paragraph and bare):
            yield from code(row, "    " if fenced else "", width if width < NARROW else None)
        elif bare.startswith("## "):
            yield from heading(bare[3:], width)
        elif bare:
            paragraph.append(row)


def _paragraph(rows: Sequence[str], width: int) -> Iterator[Line]:
    bullet = _BULLET.match(rows[0])
    text = " ".join(row.strip() for row in rows)
    yield from wrapped(text, width, "  ", "    " if bullet else "  ")


def _threshold(threshold: Threshold, limits: Mapping[str, float], width: int) -> Iterator[Line]:
    value = limits.get(threshold.name, threshold.default)
    setting = f"{threshold.name} = {value:g}"
    if value != threshold.default:
        setting += f" (yours; dptune's own is {threshold.default:g})"
    yield (Span("  "), *line(setting, "code"))
    yield from wrapped(threshold.reason, width, "      ")

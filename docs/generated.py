"""Page content that is generated from the code at every build; none of it is committed.

A line `<!-- dptune: rules -->` in a page is replaced by the output of the function of that name. Each rule of every
installed pack gets a page.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

GPU_RESULTS = Path(__file__).resolve().parents[1] / "tests" / "benchmarks" / "results" / "gpu"
PLACEHOLDER = re.compile(r"^<!-- dptune: ([a-z-]+)(?: ([a-z -]+))? -->$", re.MULTILINE)
UNITS = {"_ns": "ns", "_us": "µs", "_ms": "ms", "_bytes": "bytes", "_share": "0 to 1", "_gb_per_s": "1e9 bytes/s"}


def loaded_rules() -> list[Any]:
    """Every rule of every installed pack, in the order of their codes; a pack that cannot be used stops the build."""
    from dptune.advise.packs import survey

    found = survey()
    if found.problems:
        raise RuntimeError("; ".join(found.problems))
    return found.rules


def rule_page(rule: Any, doc: str) -> str:
    """The page of a rule: its declaration, its docstring, and its thresholds."""
    facts = [("Family", rule.family), ("Kind of advice", rule.kind), ("Since", rule.since)]
    if rule.preview:
        facts.append(("Preview", "runs with `preview = true`, or when its whole code is selected"))
    if rule.needs:
        facts.append(("Needs", "a recording by `dptune profile`"))
    text = inspect.cleandoc(doc).removeprefix(rule.summary).strip()
    parts = [f"# {rule.code} {rule.name}", f"**{rule.summary}**", _table(("", ""), facts), text]
    if rule.thresholds:
        rows = [(f"`{each.name}`", _number(each.default), each.reason) for each in rule.thresholds]
        first = rule.thresholds[0]
        parts += [
            "## Thresholds",
            _table(("name", "default", "why this number"), rows),
            "Each can be set in `pyproject.toml`:",
            f"```toml\n[tool.dptune.rules.{rule.code}]\n{first.name} = {_number(first.default)}\n```",
        ]
    return "\n\n".join(parts) + "\n"


def rules() -> str:
    """All rules, as a table with a link to the page of each."""
    rules = [loaded.rule for loaded in loaded_rules()]
    rows = [(f"[{r.code}]({r.code}.md)", r.name, r.family, r.kind, _marked(r)) for r in rules]
    return _table(("code", "name", "family", "kind", "what it looks for"), rows)


def _marked(rule: Any) -> str:
    """What a rule looks for, with a mark on preview rules, which run only on request."""
    return f"{rule.summary} (preview)" if rule.preview else str(rule.summary)


_PREDICTED = {
    "step": "predicts the step time",
    "bound": "gives only an upper bound on the saving",
    "no": "cannot predict its effect",
}


def knobs() -> str:
    """Every setting that advice can name."""
    from dptune.knobs import KNOBS

    parts = []
    for knob in KNOBS.values():
        unit = f" {knob.unit}" if knob.unit else ""
        results = "unchanged" if knob.numerics == "same" else "**may change**; the advice lists what to watch"
        predicted = _PREDICTED[knob.predicted]
        default = "unset" if knob.default is None else f"`{knob.default}`{unit}"
        parts.append(
            f"## `{knob.name}`\n\n{_sentence(knob.summary)}\n\n"
            f"- Default: {default}\n- Training results: {results}\n- `dptune whatif`: {predicted}\n\n"
            f"```python\n{knob.paste}\n```"
        )
    return "\n\n".join(parts)


def figures() -> str:
    """Every figure of `dptune.measured`, by record."""
    from dptune import measured

    records = [
        value for value in vars(measured).values() if inspect.isclass(value) and issubclass(value, measured.Model)
    ]
    return "\n\n".join(_record(record) for record in records if record not in (measured.Model, measured.Figures))


def _record(record: Any) -> str:
    rows = [
        (f"`{name}`", _unit(name), "yes" if not field.is_required() and field.default is None else "", _cell(field))
        for name, field in record.model_fields.items()
        if name != "missing"
    ]
    rows += [
        (f"`{name}`", _unit(name), "", field.description or "") for name, field in record.model_computed_fields.items()
    ]
    return f"## {record.__name__}\n\n{_doc(record)}\n\n" + _table(("figure", "unit", "may be missing", "what"), rows)


def _cell(field: Any) -> str:
    links = [f"see [{kind.__name__}](#{kind.__name__.lower()})" for kind in _nested(field.annotation)]
    return "; ".join(filter(None, [field.description, *links]))


def _nested(annotation: Any) -> list[Any]:
    """The records inside an annotation such as `list[Record] | None`."""
    if hasattr(annotation, "model_fields"):
        return [annotation]
    return [kind for part in typing.get_args(annotation) for kind in _nested(part)]


def records() -> str:
    """Every field of the files in a run folder, by dataclass."""
    from dptune.runfile import communication, facts, links, record

    parts = []
    for module in (record, facts, communication, links):
        file, _, what = inspect.cleandoc(module.__doc__ or "").partition(": ")
        parts.append(f"## {file}\n\n{_sentence(what)}")
        for kind in vars(module).values():
            if dataclasses.is_dataclass(kind) and inspect.isclass(kind) and kind.__module__ == module.__name__:
                rows = [(f"`{field.name}`", f"`{field.type}`") for field in dataclasses.fields(kind)]
                parts.append(f"### {kind.__name__}\n\n{_doc(kind)}\n\n" + _table(("field", "type"), rows))
    return "\n\n".join(parts)


def usage(verb: str) -> str:
    """What `dptune VERB --help` prints; the verb may be two words."""
    plain = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "dptune", *verb.split(), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
    if done.returncode:
        raise RuntimeError(f"`dptune {verb} --help` ended with {done.returncode}: {done.stderr}")
    return f"```text\n$ dptune {verb} --help\n{done.stdout.rstrip()}\n```"


STAGES = {
    "capture": "recording: windows, step times by device events, card readings, overhead",
    "known": "kernels and copies of known duration, a full launch queue",
    "planted": "planted faults: first advice, predicted and measured saving",
    "predict": "changes to one process: predicted, then measured",
    "ranks": "two ranks on one card: NCCL, gloo, DDP, FSDP2",
    "pairs": "30 changes of DDP and FSDP2 over NCCL, two ranks: predicted, then measured",
    "link": "DDP buckets over a link of known latency and bandwidth",
    "verify": "`dptune verify` of one planted fault; `torch.compile`, timed",
}


def gpu_checks() -> str:
    """Which stages of `make gpu-check` ran on which card, from the committed results."""
    found = [json.loads(path.read_text()) for path in GPU_RESULTS.glob("*.json")]
    results = sorted(found, key=lambda result: str(result["when"]))
    rows = [(name, what, _state(name, results)) for name, what in STAGES.items()]
    return _table(("stage", "what it checks", "state"), rows)


def _state(stage: str, results: list[dict[str, Any]]) -> str:
    """The latest complete run of a stage, else the latest one."""
    ran = [result for result in results if result["stages"].get(stage, {}).get("status", "no time") != "no time"]
    if not ran:
        return "not run on a GPU yet"
    latest = next((each for each in reversed(ran) if each["stages"][stage]["status"] == "complete"), ran[-1])
    return f"{latest['stages'][stage]['status']}: {_card(latest)}"


def _card(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return f"{machine['card']}, torch {machine['torch']}, {result['when'][:10]}, commit {result['commit']}"


WRITERS: dict[str, Callable[..., str]] = {
    "figures": figures,
    "gpu-checks": gpu_checks,
    "help": usage,
    "knobs": knobs,
    "records": records,
    "rules": rules,
}


def _doc(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _unit(name: str) -> str:
    return next((unit for suffix, unit in UNITS.items() if name.endswith(suffix)), "")


def _number(value: float) -> str:
    return f"{value:g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


# The three calls of mkdocs.


def on_config(config: Any) -> Any:
    """Put the page of each rule under the list of all rules, by family."""
    section = next(part["Rules"] for part in config.nav if "Rules" in part)
    families: dict[str, list[dict[str, str]]] = {}
    for rule in (loaded.rule for loaded in loaded_rules()):
        families.setdefault(rule.family, []).append({f"{rule.code} {rule.name}": f"rules/{rule.code}.md"})
    section[1:1] = [{family.capitalize(): pages} for family, pages in families.items()]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the page of each rule."""
    from mkdocs.structure.files import File

    for loaded in loaded_rules():
        page = rule_page(loaded.rule, loaded.doc)
        files.append(File.generated(config, f"rules/{loaded.rule.code}.md", content=page))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the placeholders of a page."""
    return PLACEHOLDER.sub(lambda found: WRITERS[found[1]](*filter(None, [found[2]])), markdown)

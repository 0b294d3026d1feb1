"""The file of accepted findings that `dptune check --accept` reads and --update-accepted extends."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptune.errors import UsageError

if TYPE_CHECKING:
    from dptune.check.result import Gate

_MOST_BYTES = 10_000_000


def accepted_impacts(args: argparse.Namespace) -> dict[str, str]:
    """Fingerprints of accepted findings -> the highest accepted impact, empty for any."""
    from dptune.advice import IMPACTS

    if args.accept is None or (args.update_accepted and not args.accept.exists()):
        return {}
    found: dict[str, str] = {}
    for entry in _read_accepted(args.accept)["accepted"]:
        impacts = ("", *reversed(IMPACTS))  # the first is any
        found[entry["fingerprint"]] = min(
            entry.get("impact", ""), found.get(entry["fingerprint"], impacts[-1]), key=impacts.index
        )
    return found


def _read_accepted(path: Path) -> dict[str, Any]:
    """The content of a file of accepted findings. People edit it, so errors name the place."""
    from dptune.runfile import json_files

    hint = "fix it, or write a new one with `dptune check RUN --accept FILE --update-accepted`"
    try:
        content = json_files.regular(path, _MOST_BYTES).removeprefix("\ufeff")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", hint) from None
    except ValueError as error:
        raise UsageError(f"{path} is not a file of accepted findings: {error}", hint) from None
    try:
        document = json.loads(content)
    except json.JSONDecodeError as error:
        words = f"{path} is not a file of accepted findings: it is not JSON: {error.msg} (line {error.lineno})"
        raise UsageError(words, hint) from None
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        why = "it is nested too deeply" if deep else "it contains a number with thousands of digits"
        raise UsageError(f"{path} is not a file of accepted findings: {why}", hint) from None
    entries = document.get("accepted") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise UsageError(f"{path} is not a file of accepted findings: it has no list `accepted`", hint)
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("fingerprint"), str):
            words = f"{path} is not a file of accepted findings: entry {number} has no text `fingerprint`"
            raise UsageError(words, hint)
        if "severity" in entry and "impact" not in entry:
            entry["impact"] = _impact_of(path, entry["fingerprint"], entry.pop("severity"))
        _check_impact(path, entry)
    return dict(document)


def _impact_of(path: Path, fingerprint: str, severity: object) -> str:
    """What is called impact now."""
    from dptune.advice import FORMER_SEVERITY

    if not isinstance(severity, str) or severity not in FORMER_SEVERITY:
        words = f"{path}: the severity of {fingerprint} is none of {', '.join(FORMER_SEVERITY)}"
        raise UsageError(words, "give its impact instead; without one, any impact is accepted")
    return FORMER_SEVERITY[severity]


def _check_impact(path: Path, entry: dict[str, Any]) -> None:
    from dptune.advice import IMPACTS

    if entry.get("impact", IMPACTS[0]) not in IMPACTS:
        words = f"{path}: the impact of {entry['fingerprint']} must be one of {', '.join(IMPACTS)}"
        raise UsageError(words, "without one, any impact is accepted")


def accept(path: Path, gate: Gate) -> None:
    """Add the findings that fail the gate to the file."""
    from dptune.runfile import json_files

    document: dict[str, Any] = {"schema_version": gate.schema_version, "accepted": []}
    if path.exists():
        document = _read_accepted(path)
    severe = {advice.fingerprint: {"impact": advice.impact} for advice in gate.tripped}
    held = [{**entry, **severe.get(entry["fingerprint"], {})} for entry in document["accepted"]]
    known = {entry["fingerprint"] for entry in held}
    more = [
        {
            "rule": advice.rule,
            "title": advice.title,
            "why": "",
            "impact": advice.impact,
            "fingerprint": advice.fingerprint,
        }
        for advice in gate.tripped
        if advice.fingerprint not in known
    ]
    entries = [*held, *more]
    text = json.dumps({**document, "accepted": entries}, indent=2) + "\n"
    try:
        json_files.put(path, text)
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror or error}", "name another file") from error
    print(f"dptune: accepted {len(more)} more, {len(entries)} in all, in {path}; add a reason to each", file=sys.stderr)

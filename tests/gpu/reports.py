"""Figures of dptune's JSON reports and predictions, in the units that the check compares: ms and shares of a step."""

from __future__ import annotations

from typing import Any


def step_ms(report: dict[str, Any]) -> float:
    """The median step: untraced where it was timed."""
    return float(report["measured"]["step"]["time_ns"] / 1e6)


def account_ms(report: dict[str, Any]) -> dict[str, float]:
    """Traced ms of each class in the mean step of rank 0's device."""
    steps = report["measured"]["ranks"][0]["devices"][0]["steps"]
    accounts = [step["account"] for step in steps if step.get("account")]
    classes = [name for name in accounts[0] if name.endswith("_ns")]
    return {name.removesuffix("_ns"): sum(one[name] for one in accounts) / len(accounts) / 1e6 for name in classes}


def advice(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Each recommendation in order: rule, impact, confidence, title, and what it promises."""
    return [
        {
            "rule": one["rule"],
            "impact": one.get("impact") or one.get("impact"),
            "confidence": one["confidence"],
            "title": one["title"],
            "changes": {change["knob"]: change["then"] for change in one["changes"]},
            "saves": _saves(one["saves"]),
        }
        for one in report["advice"]
    ]


def _saves(saves: dict[str, Any] | None) -> dict[str, Any] | None:
    kept = ("low_share", "high_share", "basis")
    return {name: saves[name] for name in kept} if saves else None


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a report."""
    return {
        "verdict": report["headline"]["verdict"],
        "trust": report["trust"]["level"],
        "findings": [finding["text"] for finding in report["trust"]["findings"]],
        "step_ms": step_ms(report),
        "account_ms": account_ms(report),
        "advice": advice(report),
        "skipped": len(report["skipped"]),
    }


def prediction(answer: dict[str, Any]) -> dict[str, Any]:
    """The one prediction of `dptune whatif --set ... --format json`, ms; `why` where there is none."""
    found = answer["predictions"][0] if answer["predictions"] else {}
    missing = "; ".join(dict.fromkeys((found.get("missing") or {}).values()))
    step, low, high = (found.get(name) for name in ("step_ns", "low_ns", "high_ns"))
    return {
        "measured_ms": answer["measured_ns"] and answer["measured_ns"] / 1e6,
        "step_ms": step and step / 1e6,
        "low_ms": low and low / 1e6,
        "high_ms": high and high / 1e6,
        "why": missing,
    }


def inside(predicted: dict[str, Any], measured_ms: float) -> bool | None:
    """Whether a measured step lies in the predicted interval; of a bound: above it; None where none was predicted."""
    low_ms, high_ms = predicted.get("low_ms"), predicted.get("high_ms")
    if low_ms is None:
        return None
    return bool(low_ms <= measured_ms and (high_ms is None or measured_ms <= high_ms))

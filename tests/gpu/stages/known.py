"""Stage 2: steps made of parts of known length; the account has to find each within 3 %, pageable copies within 10 %.

A pageable copy goes through a buffer that the host fills: steps of one recording on an H200 differed by 9 % for it, and
the steps that are traced are not all steps that the script times.
"""

from __future__ import annotations

from typing import Any

from tests.gpu import reports
from tests.gpu.place import SCRIPTS, Place

WITHIN = 0.03
WITHIN_PAGEABLE = 0.10
_QUEUE_STEP = ("--case", "queue")


def run(place: Place) -> None:
    """Every case of the stage."""
    sizes = ("--steps", "16", "--copy-mb", "1", "--launches", "200", "--elements", "1024") if place.small else ()
    place.cases({"parts": lambda: _parts(place, sizes), "queue": lambda: _queue(place, sizes)})


def _parts(place: Place, sizes: tuple[str, ...]) -> dict[str, Any]:
    """Classes of the account beside the sums of the parts that belong to them."""
    set_ms, account, copies = _recorded(place, "parts", sizes)
    expected = {
        "compute": set_ms["kernel"],
        "idle": set_ms["sleep"],
    }
    compared = {name: _compared(ms, account.get(name, 0.0)) for name, ms in expected.items() if ms}
    if "idle" in compared:  # with it what the host takes for calls: idle time is held against the step
        compared["idle"] = _compared_in(account["window"], set_ms["sleep"], account.get("idle", 0.0))
    return {
        "set_ms": set_ms,
        "account_ms": account,
        "compared": compared,
        "copies": [{**row, **_as_set(row, set_ms)} for row in copies],
    }


def _as_set(row: dict[str, Any], set_ms: dict[str, float]) -> dict[str, Any]:
    """A row of copies beside the one part that it is of."""
    direction = {"h2d": "HtoD", "d2h": "DtoH"}.get(row["direction"], "")
    name = f"{direction} {'pinned' if row.get('pinned') else 'pageable'}"
    if name not in set_ms or not row["calls"]:
        return {}
    return _compared(set_ms[name], row["total_ns"] / row["calls"] / 1e6, WITHIN if row["pinned"] else WITHIN_PAGEABLE)


def _queue(place: Place, sizes: tuple[str, ...]) -> dict[str, Any]:
    """A queue that is always full: the device is the limit, and hardly any idle time may be found."""
    set_ms, account, _ = _recorded(place, "queue", (*_QUEUE_STEP, *sizes))
    window = account["window"]
    return {
        "set_ms": set_ms,
        "account_ms": account,
        "busy_share": account["compute"] / window,
        "launch_idle_share": account.get("launch_idle", 0.0) / window,
        "host_idle_share": account.get("host_idle", 0.0) / window,
    }


def _recorded(
    place: Place, name: str, options: tuple[str, ...]
) -> tuple[dict[str, float], dict[str, float], list[Any]]:
    """What the script says of its parts, what the account says of the traced steps, and the rows of copies."""
    folder = place.runs / f"known-{name}"
    windows = ("--warmup", "2", "--untraced", "4", "--light", "4" if place.small else "8", "--detailed", "0")
    words = ("profile", "-q", "--continue", "--run-dir", str(folder), *windows)
    done = place.dptune(*words, str(SCRIPTS / "known.py"), "--device", place.device, *options)
    report = place.report(folder)
    kept = (
        "direction",
        "pinned",
        "calls",
        "calls_per_step",
        "total_bytes",
        "total_ns",
        "exposed_ns",
        "gb_per_s",
        "blocking_calls",
    )
    copies = [{key: row[key] for key in kept if key in row} for row in report["measured"]["copies"]]
    return done.last_json["parts_ms"], reports.account_ms(report), copies


def _compared_in(window_ms: float, set_ms: float, found_ms: float) -> dict[str, Any]:
    error = (found_ms - set_ms) / window_ms
    return {"set_ms": set_ms, "found_ms": found_ms, "error": error, "within": abs(error) <= WITHIN}


def _compared(set_ms: float, found_ms: float, within: float = WITHIN) -> dict[str, Any]:
    error = found_ms / set_ms - 1
    return {"set_ms": set_ms, "found_ms": found_ms, "error": error, "within": abs(error) <= within}

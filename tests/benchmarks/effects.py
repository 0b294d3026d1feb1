"""What `dptune verify` finds of changes on a slow network: effect, interval, verdict, and how long it took.

    python tests/benchmarks/effects.py                run what is missing, then print the table (make bench-effects)
    python tests/benchmarks/effects.py --table        print the table of what there is

Two ranks in network namespaces, 200 Mbit/s and 1 ms between them (tests/testbed/network.py), as root. A change is
one call of `dptune verify` with its defaults. It resumes where it stopped, within a change too; raw results stand in
results/effects.json. The rest of the machine should be idle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from command_line import main
from overhead import commit, machine
from wired import SLOW, recorded, settle, shaped, verified

RESULTS = Path(__file__).parent / "results" / "effects.json"
# name of the change: the options of the script, what is set on both sides, and what in B alone
CHANGES: dict[str, tuple[str, str, str]] = {
    "no_sync": ("--accumulate 4", "", "ddp.no_sync=true"),
    "fp16 hook": ("", "", "ddp.comm_hook=fp16"),
    "bf16 hook": ("", "", "ddp.comm_hook=bf16"),
    "PowerSGD": ("", "", "ddp.comm_hook=powersgd"),
    "workers 0 to 2": ("--load-ms 60", "", "loader.num_workers=2"),
    "straggler gone": ("", "env.STRAGGLE_MS=50", "env.STRAGGLE_MS=0"),
    "bucket 0.02 MB": ("", "", "ddp.bucket_cap_mb=0.02"),
    "bucket 0.5 MB": ("--batch 512", "", "ddp.bucket_cap_mb=0.5"),
    "bucket 100 MB": ("--batch 512", "", "ddp.bucket_cap_mb=100"),
    "batch x2": ("", "", "loader.batch_size=128"),
    "bucket views": ("", "", "ddp.gradient_as_bucket_view=true"),
    "rate x1000": ("", "", "env.RATE=1"),
    "straggler": ("", "", "env.STRAGGLE_MS=50"),
}


def compared(work: Path, name: str) -> dict[str, Any]:
    """One change, made or gone on with."""
    options, both, b = CHANGES[name]
    place = work / "-".join(["base", *options.split(), *both.split()]).replace("=", "-")
    windows = ("--warmup", "3", "--untraced", "5", "--light", "3", "--detailed", "0", "--no-links")
    found = verified(recorded(place, options, both, windows), "--set", b)
    return {"name": name, "options": options, "both": both, "b": b, **found}


def collect(work: Path) -> dict[str, Any]:
    """Make every change that is missing; each is written down as soon as it has ended."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"changes": []}
    results.update(machine=machine(), command="python tests/benchmarks/effects.py")
    made = {one["name"] for one in results["changes"]}
    with shaped(SLOW) as nodes:
        settle(nodes)
        for name in CHANGES:
            if name not in made:
                results["changes"].append({"commit": commit(), **compared(work, name)})
                RESULTS.write_text(json.dumps(results) + "\n")
    return results


def table(results: dict[str, Any]) -> str:
    """The results as text."""
    commits = ", ".join(dict.fromkeys(one["commit"] for one in results["changes"]))
    lines = [f"machine: {results['machine']}; commits: {commits}; 2 ranks, 200 Mbit/s, 1 ms", ""]
    heads = "change          script          A ms    B ms   per      B / A  interval         verdict       learns"
    lines.append(f"{heads}  trials    s")
    for one in results["changes"]:
        script = " ".join(filter(None, (one["options"], one["both"].removeprefix("env."))))
        fast = one["decided_by"] == "fast"
        ratio, between = one["fast_ratio"] if fast else one["ratio"], ""
        if one["looks"]:
            last, kind = one["looks"][-1], "fast_" if fast else ""
            between = f"{last[f'{kind}low_ratio']:.3f} to {last[f'{kind}high_ratio']:.3f}"
        seconds = sum(trial["seconds"] for trial in one["trials"])
        steps = f"{one['a_step_ns'] / 1e6:5.0f} {one['b_step_ns'] / 1e6:7.0f}   {one['objective'].split()[-1]:6s}"
        lines.append(
            f"{one['name']:15s} {script:15s} {steps} {'*' if fast else ' '} {ratio:5.3f}  {between:16s}"
            f" {one['outcome']:13s} {one['learning']:9s} {len(one['trials']):3d} {seconds:5.0f}"
        )
    lines += ["", "* of the fastest tenth of the steps, which told them apart"]
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, RESULTS, collect, table, "effects")

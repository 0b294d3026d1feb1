"""What the profiler takes for each event of the host, by recordings of a GPU that were also timed without it.

    python tests/benchmarks/event_cost.py

For each recording of sample_traces/gpu: the mean step of the light window, the untraced one, and their difference per
event of the host. Where the GPU is the limit the host's events cost nothing.
"""

from __future__ import annotations

from pathlib import Path

from dptune.errors import DptuneError
from dptune.measure import measure
from dptune.measure.host.launch_idle import host_events
from dptune.measure.views import view
from dptune.trace import load

RECORDINGS = Path(__file__).parents[2] / "sample_traces" / "gpu"


def main() -> None:
    """A line for each recording."""
    print("recording                               traced ms  untraced ms  events  us per event")
    for folder in sorted(path for path in RECORDINGS.iterdir() if path.is_dir()):
        try:
            run = load([folder])
        except DptuneError:
            continue
        measured = measure(run)
        if measured.step.basis != "untraced" or measured.known("account") is None:
            continue
        first = view(run.ranks[0].rank, run.ranks[0].light)
        events = host_events(first) / len(first.steps)
        traced_ns, untraced_ns = measured.traced_step_ns, measured.recorded_step_ns
        cost_us = (traced_ns - untraced_ns) / events / 1e3
        print(f"{folder.name:40}{traced_ns / 1e6:9.1f}{untraced_ns / 1e6:13.1f}{events:8.0f}{cost_us:14.2f}")


if __name__ == "__main__":
    main()

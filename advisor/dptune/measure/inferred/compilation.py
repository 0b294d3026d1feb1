"""What a trace shows of torch.compile: its calls, how long they look for compiled code, and graph breaks.

torch calls compiled code in a range `Torch-Compiled Region: F/N` (function F, compiled for the Nth time after the
first), after `TorchDynamo Cache Lookup`, which evaluates the guards. What follows a graph break is a function of its
own, `torch_dynamo_resume_in_FUNCTION_at_LINE`; only a trace with Python stacks (`with_stack=True`) has its name.
Several functions alone show no break: a script may compile several on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dptune.measure.inferred.hosts import HostEvents
from dptune.measure.intervals import Intervals
from dptune.measured import Trait

_REGION = re.compile(r"Torch-Compiled Region(?:: (\d{1,9})/\d{1,9})?$")
_LOOKUP = re.compile(r"TorchDynamo Cache Lookup$")
_RESUMED = re.compile(
    r"(?P<file>.{1,300})\(\d{1,9}\): torch_dynamo_resume_in_(?P<function>.{1,200})_at_(?P<line>\d{1,9})$"
)
_MOST = 3  # breaks that are listed


def compilation(host: HostEvents) -> Iterator[Trait]:
    """A trait for what is compiled, and one for graph breaks."""
    columns, steps = host.columns, max(1, len(host.view.steps))
    regions = host.rows(_REGION)
    if len(regions):
        found = [match[1] for row in regions.tolist() if (match := _REGION.match(columns.name(row)))]
        functions = {number for number in found if number is not None}
        of = f" ({len(functions)} functions)" if len(functions) > 1 else ""
        text = f"{len(regions) / steps:.3g} per step{of}"
        lookups = host.rows(_LOOKUP)
        whole = sum(step.length_ns for step in host.view.steps)
        if len(lookups) and whole:
            took = Intervals.union(columns.ts_ns[lookups], columns.ends(lookups)).total_ns
            text += f"; guards take {100 * took / whole:.2g} % of the step on the host"
        yield Trait(name="compiled calls", value=text, confidence="high")
    breaks: dict[str, int] = {}
    for match in (match for name in columns.names_of(host.frames(_RESUMED)) if (match := _RESUMED.match(name))):
        place = f"{match['function']} ({match['file']}:{match['line']})"
        breaks[place] = breaks.get(place, 0) + 1
    if breaks:
        often = sorted(breaks, key=lambda place: (-breaks[place], place))
        listed = ", ".join(f"{place} {breaks[place] / steps:.3g} per step" for place in often[:_MOST])
        more = f", and {len(often) - _MOST} more places" if len(often) > _MOST else ""
        yield Trait(name="graph breaks", value=f"{listed}{more}", confidence="high")

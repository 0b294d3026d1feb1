"""The functions of the script that take most of a step, for reports without advice on them."""

from __future__ import annotations

from dptune.advise.limits import percent
from dptune.measured import Measured

LEAST_SHARE = 0.05  # of a step: identical steps differ by about as much
LEAST_COMPUTE = 0.1  # of a step: below it a function is one of many
_NAMED = 2


def costliest_function(measured: Measured) -> str:
    """A sentence that names it with its share; "" where none takes 5 % or more, or none was looked at."""
    code = measured.known("user_code")
    most = max(code.sites, key=lambda site: site.share, default=None) if code is not None else None
    if most is None or most.share < LEAST_SHARE:
        return ""
    return f"`{most.name}` ({most.at}) takes {percent(most.share)} of the step."


def most_host_time(measured: Measured) -> str:
    """A sentence that names the functions whose host time nothing hides, with their shares.

    "" where none is known, or they take less than 5 % together.
    """
    code = measured.known("user_code")
    sites = sorted(code.sites, key=lambda site: -site.share)[:_NAMED] if code is not None else []
    if sum(site.share for site in sites) < LEAST_SHARE:
        return ""
    named = [
        f"`{site.mostly}` in `{site.name}` ({site.at}) {percent(site.share)}"
        if site.part
        else f"`{site.name}` ({site.at}) {percent(site.share)}"
        for site in sites
    ]
    return f"Most host time: {', '.join(named)} of the step."


def most_compute(measured: Measured) -> str:
    """A sentence that names the functions that compute longest, with their main operators; "" where none stands out.

    The training loop is left out: that it computes says nothing.
    """
    functions = [function for function in measured.known("compute_functions") or [] if not function.calls_backward]
    named = [
        f"`{function.name}` ({function.at}, {function.operator.removeprefix('aten::')}) {percent(function.share)}"
        for function in functions[:_NAMED]
        if function.share >= LEAST_COMPUTE
    ]
    return f"Most compute, forward and backward: {', '.join(named)} of the step." if named else ""

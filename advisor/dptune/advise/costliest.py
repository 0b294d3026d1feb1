"""The function of the script that takes most of a step, for reports without advice on it."""

from __future__ import annotations

from dptune.advise.limits import percent
from dptune.measured import Measured

LEAST_SHARE = 0.05  # of a step: identical steps differ by about as much


def costliest_function(measured: Measured) -> str:
    """A sentence that names it with its share; "" where none takes 5 % or more, or none was looked at."""
    code = measured.known("user_code")
    most = max(code.sites, key=lambda site: site.share, default=None) if code is not None else None
    if most is None or most.share < LEAST_SHARE:
        return ""
    return f"`{most.name}` ({most.at}) takes {percent(most.share)} of the step."

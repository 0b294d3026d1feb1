"""Where in a trace something was seen."""

from __future__ import annotations

from pydantic import Field

from dptune.measured.figure import Model


class Place(Model):
    """A stretch of a rank's time inside its steps."""

    rank: int = Field(description="number of the rank")
    start_ns: int = Field(description="start on the trace's own clock")
    end_ns: int = Field(description="end on the trace's own clock")

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns

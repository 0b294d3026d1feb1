"""What other processes did to the cores of each machine while steps were recorded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dptune.measured.figure import ABSENT, Figure, Figures


class LoadFigures(Figures):
    """The load of one machine during one window, on average over it."""

    host: str = Field(description="name of the machine")
    window: Literal["untraced", "light", "detailed"] = Field(description="the window of the recording")
    cores: int = Field(description="cores of the machine")
    job_cores: float = Field(description="CPU time of this job's ranks and their workers / wall time")
    other_cores: float = Field(description="CPU time of all other processes / wall time")
    waiting_cores: Figure[float] = Field(
        ABSENT, description="time that threads of the ranks were ready to run and waited for a core / wall time"
    )
    withheld_share: Figure[float] = Field(
        ABSENT,
        description="upper bound of what other processes withheld: of the CPU time that the job used or waited for, "
        "the part it waited for while others ran: min(waiting, other) / (job + that)",
    )

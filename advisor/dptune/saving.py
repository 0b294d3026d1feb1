"""How much time of a step a change saves."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, computed_field, model_validator

from dptune.knobs import Value
from dptune.measured import Model

Basis = Literal["measured", "replayed", "sampled", "timed", "bound"]
LARGE_SHARE = 0.5  # of the step: a bound above it says that there is much to gain, not how much


class Saving(Model):
    """How much time of a step a change saves at the stated global batch, as an interval.

    `bound`: the saving cannot exceed `high_ms`; how much will be saved is not known. A bound above half of the step
    does not count as a saving unless a replay supports it: `large_unknown`. `sampled`: predicted from stack samples of
    untraced steps, in code that is removed or called less often. `timed`: predicted from the time of that code.
    `replayed`: predicted by a replay, as one share or as a range, in which no share is named.
    """

    low_ms: float = Field(ge=0, description="lower end of the interval, milliseconds per step")
    high_ms: float = Field(ge=0, description="upper end of the interval, milliseconds per step")
    low_share: float = Field(ge=0, le=1)
    high_share: float = Field(ge=0, le=1)
    low_us_per_sample: float | None = Field(None, description="microseconds per sample; null where samples are unknown")
    high_us_per_sample: float | None = None
    mean_step_ms: float | None = Field(
        None, description="the mean step that the figures refer to if steps vary a lot; null: the step time"
    )
    global_batch: int | None = Field(None, description="samples per optimizer step that the figures refer to")
    samples_times: float = Field(
        1.0,
        description="samples per step with the change / without; milliseconds refer to the samples per step without it",
    )
    predicted_share: float | None = Field(None, description="the predicted share; null for a bound or a range")
    unpredicted: str | None = Field(None, description="for a bound: why there is no prediction")
    replayed_share: float | None = Field(
        None, description="for a bound: the share that a replay of the traced steps saves; its interval is unknown"
    )
    basis: Basis
    how: str = Field(description="one sentence: how the figures were obtained")
    settings: dict[str, Value] = Field(default_factory=dict, description="what was replayed, as for `whatif --set`")

    @computed_field(  # type: ignore[prop-decorator]
        description="a bound above half of the step, and no replay: the saving may be large, is not known, and does "
        "not count"
    )
    @property
    def large_unknown(self) -> bool:
        """Whether it is a bound above half of the step that no replay supports, so that the saving is not known."""
        return self.basis == "bound" and self.high_share > LARGE_SHARE and self.replayed_share is None

    @property
    def expected_share(self) -> float:
        """What the change is expected to save, for the order of advice: the middle of the interval.

        A bound above half of the step that no replay supports counts as one of half of it.
        """
        high = max(self.low_share, LARGE_SHARE) if self.large_unknown else self.high_share
        return (self.low_share + high) / 2

    @property
    def is_range(self) -> bool:
        """Whether a replay predicts any share between both ends, and none of them."""
        return self.basis == "replayed" and self.predicted_share is None

    @property
    def central_share(self) -> float | None:
        """The predicted share, of a range its middle: for orders and limits, and for no sentence. None for a bound."""
        return (self.low_share + self.high_share) / 2 if self.is_range else self.predicted_share

    @property
    def part_in_words(self) -> str:
        """`about 23 %`; of a range `18 to 31 %`; of a bound `up to 31 %`."""
        low, high = (f"{100 * share:.0f}" for share in (self.low_share, self.high_share))
        if self.is_range:
            return f"{low} to {high} %"
        return f"up to {high} %" if self.predicted_share is None else f"about {100 * self.predicted_share:.0f} %"

    @property
    def may_be_nothing(self) -> bool:
        """Whether it is a prediction whose interval includes zero."""
        return self.basis in ("replayed", "sampled", "timed") and self.low_share <= 0

    def without_prediction(self, why: str) -> Saving:
        """The bound, with why there is no prediction."""
        return self.model_copy(update={"unpredicted": why})

    def with_shares(self, low_share: float, high_share: float) -> Saving:
        """The same saving with another interval; a prediction outside of it becomes its nearer end."""
        if not self.high_share:
            return self
        update: dict[str, float] = {}
        for end, share in (("low", low_share), ("high", high_share)):
            update |= {f"{end}_share": share, f"{end}_ms": self.high_ms * share / self.high_share}
            if self.high_us_per_sample is not None:
                update[f"{end}_us_per_sample"] = self.high_us_per_sample * share / self.high_share
        if self.predicted_share is not None:
            update["predicted_share"] = min(max(self.predicted_share, low_share), high_share)
        return self.model_copy(update=update)

    @model_validator(mode="after")
    def _ordered(self) -> Saving:
        if self.low_ms > self.high_ms or self.low_share > self.high_share:
            raise ValueError("a saving's low is above its high")
        return self

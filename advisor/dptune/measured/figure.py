"""A figure that could not be measured says why: the bases of all records of figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Optional, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

T = TypeVar("T")

if TYPE_CHECKING:
    Figure = Annotated[T, "may be missing"]
else:
    Figure = Optional

Positive = Annotated[int, Field(gt=0)]

_HUNDREDTHS_NS = 1e5  # from here on two digits after the point of a duration in ms are enough
ABSENT: Any = None  # the default of a Figure: missing, which needs a reason in `missing`
_read = object.__getattribute__


def digits(value: float) -> str:
    """A number for a sentence: three digits, or all digits before the point: 4.2, 42, 1,010."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def in_ms(duration_ns: float) -> str:
    """A duration in ms, in sentences and tables alike: 0.042, 0.42, 4.20, 42.0, 420.1, 4,201."""
    return decimals(duration_ns / 1e6) if abs(duration_ns) >= _HUNDREDTHS_NS else digits(duration_ns / 1e6)


def decimals(value: float) -> str:
    """A number as tables write it: 4.20, 42.0, 420.1, 4,201."""
    size = abs(value)
    return f"{value:,.{2 if size < 9.995 else 1 if size < 999.95 else 0}f}"


class Missing(Exception):  # noqa: N818 - the word of the design: a reason, not an error
    """A figure that could not be measured, with the reason as its message."""

    @property
    def reason(self) -> str:
        """Why the figure is missing."""
        return str(self.args[0])


class Model(BaseModel):
    """A frozen record; unknown fields are ignored when an older or newer report is read back."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        protected_namespaces=(),  # pydantic before 2.10 warns of names that begin with `model_`
    )


class Figures(Model):
    """A record of figures in which any `Figure` field may be missing, with a reason in `missing`."""

    missing: dict[str, str] = Field(default_factory=dict, description="figure name -> why it could not be measured")

    @model_validator(mode="after")
    def _every_hole_has_a_reason(self, info: ValidationInfo) -> Figures:
        if info.mode == "json":  # an older report knows fewer figures
            absent = type(self).model_fields.keys() - self.model_fields_set
            self.missing.update(
                {n: "the report was written by another version" for n in absent if self.known(n) is None}
            )
        holes = {name for name, value in self.__dict__.items() if value is None}
        if holes != set(self.missing):
            unexplained, phantom = sorted(holes - set(self.missing)), sorted(set(self.missing) - holes)
            raise ValueError(f"missing figures without a reason: {unexplained}; reasons for figures there: {phantom}")
        return self

    @classmethod
    def only(cls, why: str, **known: Any) -> Self:
        """A record in which every figure that is not given is missing, for the one reason `why`."""
        figures = {name for name, field in cls.model_fields.items() if field.default is ABSENT and name != "missing"}
        there = {name for name, value in known.items() if value is not None}
        return cls(**known, missing=dict.fromkeys(sorted(figures - there), why))

    @classmethod
    def of(cls, figures: Mapping[str, tuple[Any, str]], **known: Any) -> Self:
        """A record of `figures`, each with the reason for a value that is None, and of other fields by name."""
        values = {name: value for name, (value, _) in figures.items()}
        return cls(**values, **known, missing={name: why for name, (value, why) in figures.items() if value is None})

    if not TYPE_CHECKING:

        def __getattribute__(self, name: str) -> Any:
            value = _read(self, name)  # not by super(), which takes as long again, and is asked millions of times
            if value is None:
                reasons = _read(self, "__dict__").get("missing", {})
                if name in reasons:
                    raise Missing(reasons[name])
            return value

    def known(self, name: str) -> Any | None:
        """The figure called `name`, or None where it is missing."""
        return self.__dict__[name]

"""What the text of an option must be where it is a number or a level: types for argparse."""

from __future__ import annotations

import argparse

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_MOST_PRICE = 1e6  # of a device for an hour
_MOST_PER_STEP = 10**12  # tokens or samples
_COUNTED = ("auto", "cpu", "gpu", "xpu")  # torchrun counts these itself


def ranks_per_node(text: str) -> int | str:
    """A number, or what torchrun is to count."""
    return text if text in _COUNTED else positive(text)


def nodes(text: str) -> int | str:
    """A number of nodes, or the least and the most."""
    least, colon, most = text.partition(":")
    if not colon:
        return positive(text)
    if positive(least) > positive(most):
        raise argparse.ArgumentTypeError(f"{text} ends before it starts")
    return text


def positive(text: str) -> int:
    """A number of at least 1."""
    number = int(_as(int, text))
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def count(text: str) -> int:
    """A number of at least 0."""
    number = int(_as(int, text))
    if number < 0:
        raise argparse.ArgumentTypeError(f"cannot be negative: {number}")
    return number


def seconds(text: str) -> float:
    """A time above 0: seconds, or with its unit, as `90s`, `10m` and `1h`."""
    unit = text[-1:] if text[-1:] in _UNITS else ""
    number = _as(float, text.removesuffix(unit)) * _UNITS.get(unit, 1.0)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return number


def seconds_or_none(text: str) -> float:
    """A time, or 0 for no bound."""
    return 0.0 if text == "0" or (text[-1:] not in _UNITS and _as(float, text) == 0) else seconds(text)


def percent(text: str) -> float:
    """A share that is written as a percentage above 0, as `3%`."""
    number = _as(float, text.removesuffix("%"))
    if not text.endswith("%") or not 0 < number < 100:
        raise argparse.ArgumentTypeError(f"must be between 0% and 100%, as 3%, not {text}")
    return number / 100


def price(text: str) -> float:
    """A price above 0, for `--gpu-hour-price`. Raises ArgumentTypeError for other text."""
    number = _as(float, text)
    if not 0 < number < _MOST_PRICE:
        raise argparse.ArgumentTypeError(f"must be above 0 and below {_MOST_PRICE:,.0f}, not {text}")
    return number


def per_step(text: str) -> int:
    """For `--tokens-per-step` and `--samples-per-step`. Raises ArgumentTypeError for other text."""
    number = positive(text)
    if number > _MOST_PER_STEP:
        raise argparse.ArgumentTypeError(f"must be at most {_MOST_PER_STEP:,}, not {text:.30}")
    return number


def _as(kind: type[int] | type[float], text: str) -> int | float:
    try:
        return kind(text)
    except ValueError:
        whole = "whole " if kind is int else ""
        raise argparse.ArgumentTypeError(f"'{text}' is not a {whole}number") from None


def impact_and_confidence(text: str) -> tuple[str, str]:
    """`high`, or `high:low`: the least impact and the least confidence, which is medium where none is given."""
    from dptune.advice import CONFIDENCES, FORMER_SEVERITY, IMPACTS

    impact, colon, confidence = text.partition(":")
    if impact in FORMER_SEVERITY:
        raise argparse.ArgumentTypeError(f"'{impact}' is now '{FORMER_SEVERITY[impact]}'")
    if impact not in (*IMPACTS, "never"):
        raise argparse.ArgumentTypeError(f"'{impact}' is not an impact; choose from {', '.join(IMPACTS)}, never")
    if colon and confidence not in CONFIDENCES:
        raise argparse.ArgumentTypeError(f"'{confidence}' is not a confidence; choose from {', '.join(CONFIDENCES)}")
    return impact, confidence or "medium"

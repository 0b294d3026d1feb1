"""What is wrong with the fields of a complete event: of a type that no profiler writes, or a number that cannot be."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dptune.trace.columns import NONE
from dptune.trace.kineto.schema import ABSENT, Args, Event, TypedArgs, integer

NOT_FINITE = ("NaN", "Infinity", "-Infinity", "nan", "-nan", "inf", "-inf")  # numbers that C++ and Python write
MOST_ELEMENTS = 2**38  # of one message: in two bytes each more than the memory of any device
_NUMBERS = {
    "stream": "stream",
    "device": "device",
    "correlation": "correlation",
    "external_id": "External id",
    "old_external_id": "external id",
    "total_bytes": "bytes",
}


def faults(event: Event, args: Args) -> Iterator[str]:
    """The fields of an event that have the wrong type, by name."""
    if not _is_word(event.name):
        yield "name"
    if event.cat is not msgspec.UNSET and not _is_word(event.cat):
        yield "cat"
    for key in ("pid", "tid"):
        if isinstance(getattr(event, key), bool | list | dict):
            yield key
    for field, key in _NUMBERS.items():
        value = getattr(args, field)
        if value is not None and (not _is_whole(value) or (field == "total_bytes" and integer(value) < NONE)):
            yield key


def unusable(args: TypedArgs | Args) -> Iterator[str]:
    """The arguments of a collective that have the wrong type or cannot be true, by name."""
    for key, value, least, most in (
        ("In msg nelems", args.in_elements, 0, MOST_ELEMENTS),
        ("Out msg nelems", args.out_elements, 0, MOST_ELEMENTS),
        ("Group size", args.group_size, 1, 2**63),
        ("Seq", args.sequence, -(2**63), 2**63),
    ):
        if value is not None and not (_is_whole(value) and least <= integer(value) <= most):
            yield key
    for key, word, types in (
        ("Collective name", args.collective, str),
        ("dtype", args.dtype, str),
        ("Process Group Name", args.group, str | int),
        ("Process Group Ranks", args.group_ranks, str | list),
    ):
        if word is not None and (isinstance(word, bool) or not isinstance(word, types) or word in NOT_FINITE):
            yield key
    if args.collective is None and args.in_elements is not None:
        yield "Collective name"
    if args.input_dims != ABSENT and not are_dims(_decoded(args.input_dims)):
        yield "Input Dims"


def _is_word(value: object) -> bool:
    return type(value) is str and value not in NOT_FINITE


def _is_whole(value: object) -> bool:
    """Whether it is a whole number of 64 bits, perhaps as text."""
    return integer(value) != NONE or (not isinstance(value, bool) and str(value).strip() in ("-1", "-1.0"))


def are_dims(written: object) -> bool:
    """Whether a value holds lists of lengths, however deep, and nothing else."""
    left = [written]
    while left:
        part = left.pop()
        if not isinstance(part, list):
            return False
        left += [each for each in part if isinstance(each, list)]
        if any(integer(each) < 0 for each in part if not isinstance(each, list)):
            return False
    return True


def _decoded(written: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(written)
    except (ValueError, RecursionError):
        return None

"""What is read of a trace file: the fields that have a use.

Twice: `TYPED` are the events as torch writes them, one struct for each phase, decoded at the full speed of the decoder;
a block of events that does not fit them is decoded again as `Event`, whose fields take anything. Fields not named here
are skipped without being decoded.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct, defstruct, field

from dptune.trace.columns import NONE

ABSENT = Raw(b"")
_INT64_MAX = 2**63 - 1


class TypedArgs(Struct, gc=False, frozen=True):
    """The arguments of a complete event."""

    external_id: int = field(default=NONE, name="External id")
    device: int = NONE
    stream: int = NONE
    correlation: int = NONE
    total_bytes: int = field(default=NONE, name="bytes")
    old_external_id: int = field(default=NONE, name="external id")
    collective: str | None = field(default=None, name="Collective name")
    in_elements: int | None = field(default=None, name="In msg nelems")
    out_elements: int | None = field(default=None, name="Out msg nelems")
    dtype: str | None = None
    group_size: int | None = field(default=None, name="Group size")
    group: str | None = field(default=None, name="Process Group Name")
    group_ranks: str | None = field(default=None, name="Process Group Ranks")
    sequence: int | None = field(default=None, name="Seq")
    input_dims: Raw = field(default=ABSENT, name="Input Dims")
    input_types: Raw = field(default=ABSENT, name="Input type")
    former_dims: Raw = field(default=ABSENT, name="Input dims")  # as older torch wrote it
    values: Raw = field(default=ABSENT, name="Concrete Inputs")
    strides: Raw = field(default=ABSENT, name="Input Strides")
    number: Raw = field(default=ABSENT, name="Sequence number")


class Complete(Struct, gc=False, tag_field="ph", tag="X"):
    """Phase X. Times stay text, whose digits float64 cannot hold; durations are short enough for it."""

    cat: str
    name: str
    pid: int | str
    tid: int | str
    ts: Raw
    dur: float = 0.0
    args: TypedArgs = TypedArgs()


class TypedMemory(Struct, gc=False, frozen=True):
    """The arguments of an allocation."""

    size_bytes: int = field(default=NONE, name="Bytes")
    device_type: int = field(default=NONE, name="Device Type")
    device: int = field(default=NONE, name="Device Id")
    allocated_bytes: int = field(default=NONE, name="Total Allocated")
    reserved_bytes: int = field(default=NONE, name="Total Reserved")
    address: int = field(default=NONE, name="Addr")


class Instant(Struct, gc=False, tag_field="ph", tag="i"):
    """Phase i: an allocation where its name is `[memory]`."""

    name: str
    ts: Raw = ABSENT
    args: TypedMemory | None = None


class Counter(Struct, gc=False, tag_field="ph", tag="C"):
    """Phase C: values of a counter from a moment on."""

    name: str
    ts: Raw = ABSENT
    args: dict[str, Any] | None = None


class Named(Struct, gc=False, tag_field="ph", tag="M"):
    """Phase M: what a process or a thread is called."""

    name: str
    pid: int | str | None = None
    tid: int | str | None = None
    args: Raw = ABSENT


# The other phases of the Chrome trace format: flow, async, object, mark, of which nothing is read; begin and end, which
# are read one by one.
_OTHER_PHASES = "sftbenNODPRBEpTScvV(),"
_OTHERS = {phase: defstruct(f"Phase_{ord(phase)}", [], tag_field="ph", tag=phase) for phase in _OTHER_PHASES}
Begin, End = _OTHERS["B"], _OTHERS["E"]
PHASES = frozenset("XiICMF" + _OTHER_PHASES)
TYPED: Any = Complete | Instant | Counter | Named
for _other in _OTHERS.values():
    TYPED = TYPED | _other


class Digits(str):
    """A number with a point or an exponent as it was written: pids and tids keep their digits."""


class Args(Struct, gc=False):
    """The arguments of an event, whatever type they have."""

    external_id: Any = field(default=None, name="External id")
    device: Any = None
    stream: Any = None
    correlation: Any = None
    total_bytes: Any = field(default=None, name="bytes")
    old_external_id: Any = field(default=None, name="external id")
    collective: Any = field(default=None, name="Collective name")
    in_elements: Any = field(default=None, name="In msg nelems")
    out_elements: Any = field(default=None, name="Out msg nelems")
    dtype: Any = None
    group_size: Any = field(default=None, name="Group size")
    group: Any = field(default=None, name="Process Group Name")
    group_ranks: Any = field(default=None, name="Process Group Ranks")
    sequence: Any = field(default=None, name="Seq")
    input_dims: Raw = field(default=ABSENT, name="Input Dims")
    input_types: Raw = field(default=ABSENT, name="Input type")


class Event(Struct, gc=False):
    """One element of `traceEvents`, whatever types its fields have."""

    ph: Any = None
    cat: Any = UNSET
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    args: Raw = ABSENT


class Header(Struct):
    """What stands beside `traceEvents`."""

    schema_version: Any = field(default=None, name="schemaVersion")
    devices: Any = field(default=None, name="deviceProperties")
    old_devices: Any = field(default=None, name="computeProperties")
    distributed: Any = field(default=None, name="distributedInfo")
    base_ns: Any = field(default=None, name="baseTimeNanoseconds")
    host: Any = field(default=None, name="host_name")


def integer(value: object) -> int:
    """An identity or amount that may be written as a string; -1 where it is none or beyond int64."""
    if type(value) is not int:
        if isinstance(value, str):
            text = value.strip()
            value = int(text) if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 25 else NONE
        elif isinstance(value, float) and value.is_integer():
            value = int(value)
        else:
            return NONE
    return value if -_INT64_MAX <= value <= _INT64_MAX else NONE


def label(value: object) -> str:
    """A name, pid or tid as text: `5555` and `"5555"` are the same thread."""
    return "" if value is None else str(value)

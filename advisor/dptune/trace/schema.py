"""What is read of a trace file: the fields that have a use, whatever type they were written with.

Times and identities stay raw text until their column is built: they may be integers, decimals, strings, null, or too
large for int64. Fields not named here are skipped without being decoded.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct, field

ABSENT = Raw(b"")


class Args(Struct, gc=False):
    """The arguments of an event."""

    stream: Any = None
    device: Any = None
    correlation: Any = None
    external_id: Any = field(default=None, name="External id")
    old_external_id: Any = field(default=None, name="external id")
    total_bytes: Any = field(default=None, name="bytes")
    label: Any = field(default=None, name="name")
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
    """One element of `traceEvents`."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Raw = ABSENT
    tid: Raw = ABSENT
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    args: Args | None = None


class Header(Struct):
    """What stands beside `traceEvents`."""

    schema_version: Any = field(default=None, name="schemaVersion")
    devices: Any = field(default=None, name="deviceProperties")
    old_devices: Any = field(default=None, name="computeProperties")
    distributed: Any = field(default=None, name="distributedInfo")
    base_ns: Any = field(default=None, name="baseTimeNanoseconds")
    host: Any = field(default=None, name="host_name")
    trace_name: Any = field(default=None, name="traceName")
    trace_id: Any = None
    record_shapes: Any = None


class Document(Header):
    """A whole trace file."""

    events: list[Event] | None = field(default=None, name="traceEvents")

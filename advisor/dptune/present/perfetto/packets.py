"""The packets of a trace, in Perfetto's own protobuf format, written in pieces so that little is in memory at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from dptune.errors import UsageError
from dptune.present.visible import visible

_PIECE = 50_000  # packets

# `TrackEvent.Type` and `TracePacket.SequenceFlags` of protos/perfetto/trace/perfetto_trace.proto
SLICE_BEGIN, SLICE_END = 1, 2
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_NOT_MERGED = 2  # TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE


def builder() -> Callable[[], Any]:
    """`TraceProtoBuilder` of the perfetto package. Raises UsageError where it is not installed."""
    try:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError:
        raise UsageError(
            "a Perfetto file needs a package that is not installed", 'pip install "dptune[perfetto]"'
        ) from None
    made: Callable[[], Any] = TraceProtoBuilder
    return made


@dataclass
class Numbers:
    """Numbers that are unique in the file: of tracks, threads and arrows; 0 is none of them."""

    last: int = 0

    def next(self) -> int:
        """A number that was not given before."""
        self.last += 1
        return self.last


@dataclass
class Packets:
    """The packets of one rank: a sequence, with its own table of names.

    `pid` and `sequence` are the rank plus 1, as 0 has a meaning of its own in both.
    """

    file: BinaryIO
    new_builder: Callable[[], Any]
    numbers: Numbers
    sequence: int
    _built: Any = None
    _packets: int = 0
    _names: dict[str, int] = field(default_factory=dict)
    _categories: dict[str, int] = field(default_factory=dict)

    def process(self, name: str) -> int:
        """The track of the rank's process."""
        uuid = self.numbers.next()
        packet = self._packet(_STATE_CLEARED)
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.process.pid = self.sequence
        packet.track_descriptor.process.process_name = visible(name)
        return uuid

    def thread(self, process: int, name: str) -> int:
        """The track of a thread of the host."""
        uuid = self.numbers.next()
        packet = self._packet()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.parent_uuid = process
        packet.track_descriptor.thread.pid = self.sequence
        packet.track_descriptor.thread.tid = _FIRST_THREAD + uuid
        packet.track_descriptor.thread.thread_name = visible(name)
        return uuid

    def track(self, parent: int, name: str) -> int:
        """A track below a process or thread."""
        uuid = self.numbers.next()
        packet = self._packet()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.parent_uuid = parent
        packet.track_descriptor.name = visible(name)
        packet.track_descriptor.sibling_merge_behavior = _NOT_MERGED
        return uuid

    def intern(self, names: Iterable[str], categories: Iterable[str] = ()) -> None:
        """Announce names and categories of slices, before the first slice that has them."""
        packet = self._packet()
        for text in names:
            if text not in self._names:
                self._names[text] = len(self._names) + 1
                packet.interned_data.event_names.add(iid=self._names[text], name=visible(text))
        for text in categories:
            if text not in self._categories:
                self._categories[text] = len(self._categories) + 1
                packet.interned_data.event_categories.add(iid=self._categories[text], name=visible(text))

    def begin(
        self,
        track: int,
        time_ns: int,
        name: str,
        category: str = "",
        arrows: Iterable[int] = (),
        details: Mapping[str, int | str] | None = None,
    ) -> None:
        """A slice of an announced name starts; `arrows` leave from it, `details` are shown with it."""
        event = self._event(track, time_ns, SLICE_BEGIN)
        event.name_iid = self._names[name]
        if category:
            event.category_iids.append(self._categories[category])
        event.flow_ids.extend(arrows)
        for key, value in (details or {}).items():
            if isinstance(value, int):
                event.debug_annotations.add(name=key, int_value=value)
            else:
                event.debug_annotations.add(name=key, string_value=visible(value))

    def end(self, track: int, time_ns: int, arrows: Iterable[int] = ()) -> None:
        """The slice that started last on the track ends, and `arrows` arrive at it."""
        self._event(track, time_ns, SLICE_END).terminating_flow_ids.extend(arrows)

    def flush(self) -> None:
        """Write what was not written yet."""
        if self._built is not None:
            self.file.write(self._built.serialize())
        self._built, self._packets = None, 0

    def _event(self, track: int, time_ns: int, kind: int) -> Any:
        packet = self._packet()
        packet.timestamp = time_ns
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        return event

    def _packet(self, flags: int = _NEEDS_STATE) -> Any:
        if self._packets == _PIECE:
            self.flush()
        if self._built is None:
            self._built = self.new_builder()
        self._packets += 1
        packet = self._built.add_packet()
        packet.trusted_packet_sequence_id = self.sequence
        packet.sequence_flags = flags
        return packet


_FIRST_THREAD = 2**24  # above any pid here: a thread with the number of its process would be its main thread

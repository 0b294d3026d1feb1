"""HTA's analyses on the columns that dptune read: no trace is parsed a second time.

HTA (`traceinsight` on PyPI, imported as `hta`) parses each rank into a pandas frame, a symbol table and the file's
metadata, and analyses those. Here its trace class is given the three from a Trace instead, as HTA itself would have
made them: times in microseconds, a fractional start rounded up and its end down where a file has fractional starts
(unless HTA_DISABLE_NS_ROUNDING is 1), the numbers it gives to steps and to launches with their kernels, and the
smallest integer types. Nothing of HTA is replaced: its classes are derived from.

Arguments that are no column of dptune's are read from the file when an analysis asks for them, as is the whole file
where HTA writes it out again with additions.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptune.errors import DptuneError, RunError, TraceError, UsageError
from dptune.trace.columns import NONE, Collectives, Columns, Ints, Mask
from dptune.trace.events import Trace
from dptune.trace.kernels import COPY_CATEGORIES, MEMSET_CATEGORIES, SYNC_CATEGORIES
from dptune.trace.kineto.arguments import arguments
from dptune.trace.kineto.text import Text
from dptune.trace.places import source
from dptune.trace.run import Run

WRITTEN_FOR = "0.6.1"  # the version of traceinsight whose frame this makes
_HINT = 'pip install "dptune[hta]"'

try:
    import pandas as pd
    from hta import __version__ as _version
    from hta.common.trace import Trace as HtaTrace
    from hta.common.trace import transform_correlation_to_index
    from hta.common.trace_parser import infer_gpu_type
    from hta.configs.env_options import disable_ns_rounding
    from hta.configs.parser_config import ParserConfig
    from hta.trace_analysis import TraceAnalysis
except ImportError as error:
    if isinstance(error, ModuleNotFoundError) and error.name in ("hta", "pandas"):
        raise DptuneError("HTA is not installed", _HINT) from None
    raise DptuneError(f"HTA cannot be used; dptune was written for {WRITTEN_FOR}: {error}", _HINT) from None

_BANDWIDTH = ("memory_bw_gbps",)
_WAITS = ("wait_on_stream", "wait_on_cuda_event_record_corr_id")
_CUPTI = "cuda_profiler_range"
# Which events carry an argument, where not all may.
_CARRIERS = {
    **dict.fromkeys(_BANDWIDTH, COPY_CATEGORIES | MEMSET_CATEGORIES),
    **dict.fromkeys(_WAITS, SYNC_CATEGORIES),
    **dict.fromkeys(("python_id", "python_parent_id"), frozenset({"python_function"})),
}
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_EXACT = 2**53  # integers below it are exact in float64


def analysis(of: Run | Trace | Mapping[int, Trace], *, include_last_profiler_step: bool = False) -> Analysis:
    """HTA's TraceAnalysis of a run, of one trace, or of traces by rank; no file is parsed again.

    For a run, it uses the trace of each rank's light window; a single trace gets the rank in its file, or 0.
    `include_last_profiler_step` is HTA's option. Raises DptuneError if the installed HTA cannot be used.
    """
    _check()
    if isinstance(of, Run):
        of = {rank.rank: rank.light for rank in of.ranks}
    elif isinstance(of, Trace):
        of = {of.distributed.rank or 0: of}
    return Analysis(of, include_last_profiler_step)


def _check() -> None:
    """Raise DptuneError for a pandas that HTA fails on, or an HTA without what is derived from."""
    if int(pd.__version__.partition(".")[0]) >= 3:
        raise DptuneError(f"HTA fails on pandas {pd.__version__}: it needs one below 3", 'pip install "pandas<3"')
    used = {
        HtaTrace: ("align_and_filter_trace", "get_raw_trace_for_one_rank", "load_traces", "parse_traces"),
        ParserConfig: ("get_all_available_args", "get_default_args"),
    }
    lacking = [f"{part.__name__}.{name}" for part, names in used.items() for name in names if not hasattr(part, name)]
    if lacking:
        raise DptuneError(
            f"HTA {_version} lacks {', '.join(lacking)}: dptune was written for {WRITTEN_FOR}",
            f'pip install "traceinsight=={WRITTEN_FOR}"',
        )


class _Sources(dict[int, Trace]):
    """The traces by rank; critical path analysis copies all that HTA holds, but these need no copy."""

    def __deepcopy__(self, memo: object) -> _Sources:
        return self


class BridgedTrace(HtaTrace):  # type: ignore[misc]
    """HTA's container of traces, filled from dptune's."""

    def __init__(self, traces: Mapping[int, Trace]) -> None:
        super().__init__(trace_files={})  # it would want to see the files
        self.trace_files = {rank: trace.path for rank, trace in sorted(traces.items())}
        self._sources = _Sources(traces)

    def parse_traces(self, *_args: object, **_kwargs: object) -> None:
        """Fill `traces`, `meta_data` and `symbol_table`; ranks without complete events are left out, as HTA does."""
        for rank in self.trace_files:
            trace = self._sources[rank]
            kept = _kept(trace.columns)
            if not kept.any():
                continue
            self.traces[rank] = _frame(trace, kept, self.symbol_table)
            self.meta_data[rank] = _meta(trace, kept)
        if not self.traces:
            raise RunError("HTA has nothing to analyse: no rank has complete events", "record a step, or name others")
        self.is_parsed = True

    def read_arguments(self, *names: str, ranks: Iterable[int] | None = None) -> None:
        """Add arguments of events to the frames, as HTA's columns of those names; without names, all of its defaults.

        Reads each trace's file again. Raises UsageError for a name that HTA does not know, TraceError where the file
        cannot be read.
        """
        known = {spec.name: spec for spec in ParserConfig.get_all_available_args().values()}
        wanted = names or tuple(spec.name for spec in ParserConfig.get_default_args())
        if unknown := [name for name in wanted if name not in known]:
            raise UsageError(f"HTA knows no argument {unknown[0]}", f"it knows {', '.join(sorted(known))}")
        for rank in self.traces if ranks is None else ranks:
            absent = [known[name] for name in wanted if name not in self.traces[rank].columns]
            if not absent:
                continue
            carriers = [_CARRIERS.get(spec.name) for spec in absent]
            everywhere = frozenset().union(*(each for each in carriers if each is not None))
            rows, found = self._arguments(rank, None if None in carriers else everywhere)
            for spec in absent:
                values = [args.get(spec.raw_name, spec.default_value) for args in found]
                self._add(rank, spec.name, rows, values, spec.default_value)

    def read_counters(self, ranks: Iterable[int]) -> None:
        """Add the counters of CUPTI ranges to the frames, one column each; -1 where an event has none."""
        for rank in ranks:
            rows, found = self._arguments(rank, frozenset({_CUPTI}))
            for name in sorted({key for args in found for key in args} - set(self.traces[rank].columns)):
                self._add(rank, name, rows, [args.get(name, NONE) for args in found], NONE)

    def _arguments(self, rank: int, categories: frozenset[str] | None) -> tuple[Ints, list[dict[str, Any]]]:
        """The rows of a frame of some categories (None: all), and the arguments of their events."""
        columns = self._sources[rank].columns
        at = np.searchsorted(columns.position, self.traces[rank]["index"].to_numpy())
        chosen = np.ones(len(at), np.bool_) if categories is None else columns.of_category(categories, at)
        rows = np.flatnonzero(chosen)
        return rows, arguments(self._sources[rank], at[rows].tolist()) if len(rows) else []

    def _add(self, rank: int, name: str, rows: Ints, values: list[Any], default: object) -> None:
        frame = self.traces[rank]
        column = np.full(len(frame), default, dtype=object)
        for row, value in zip(rows.tolist(), values, strict=True):
            column[row] = value  # one by one: numpy would take a list apart
        series = pd.Series(column, index=frame.index).infer_objects()
        frame[name] = pd.to_numeric(series, downcast="integer") if series.dtype.kind == "i" else series

    def get_raw_trace_for_one_rank(self, rank: int = 0) -> dict[str, Any]:
        """The whole file of a rank as JSON, read again: for the analyses that write it out with additions."""
        path = self._sources[rank].path
        with source.opened(path) as file:
            text = b"".join(iter(Text(file, path).read, b""))
        try:
            said = json.loads(text)
        except ValueError as error:
            raise TraceError(f"{path} is damaged: HTA cannot write it with additions", str(error)) from None
        return said if isinstance(said, dict) else {"traceEvents": said}

    def write_raw_trace(self, output_file: str, trace_contents: dict[str, Any]) -> None:
        """Write a trace; refuses to write over one that was read (HTA does, where the name has no `.json`)."""
        if output_file in self.trace_files.values():
            raise UsageError(f"HTA would write over {output_file}", "give the trace a name that ends in .json.gz")
        super().write_raw_trace(output_file, trace_contents)


def _reading(name: str, read: Callable[[BridgedTrace, list[int]], None]) -> Any:
    """A method of HTA before which arguments of the ranks that it is asked for are read."""
    method = getattr(TraceAnalysis, name, None)
    if method is None:  # an HTA without this analysis has no need of it
        return None
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: Analysis, *args: Any, **kwargs: Any) -> Any:
        said = signature.bind(self, *args, **kwargs).arguments
        ranks = [said["rank"]] if "rank" in said else said.get("ranks") or [0]
        read(self.t, [rank for rank in ranks if rank in self.t.traces])
        return method(self, *args, **kwargs)

    return call


class Analysis(TraceAnalysis):  # type: ignore[misc]
    """HTA's TraceAnalysis of traces that dptune read. `t` is its BridgedTrace."""

    def __init__(self, traces: Mapping[int, Trace], include_last_profiler_step: bool = False) -> None:
        self.t = BridgedTrace(traces)
        self.t.load_traces(include_last_profiler_step)

    get_memory_bw_summary = _reading(
        "get_memory_bw_summary", lambda trace, ranks: trace.read_arguments(*_BANDWIDTH, ranks=ranks)
    )
    get_memory_bw_time_series = _reading(
        "get_memory_bw_time_series", lambda trace, ranks: trace.read_arguments(*_BANDWIDTH, ranks=ranks)
    )
    generate_trace_with_counters = _reading(
        "generate_trace_with_counters", lambda trace, ranks: trace.read_arguments(*_BANDWIDTH, ranks=ranks)
    )
    critical_path_analysis = _reading(
        "critical_path_analysis", lambda trace, ranks: trace.read_arguments(*_WAITS, ranks=ranks)
    )
    get_cupti_counter_data_with_operators = _reading(
        "get_cupti_counter_data_with_operators", lambda trace, ranks: trace.read_counters(ranks)
    )


def _kept(columns: Columns) -> Mask:
    """The events that HTA keeps: those with a category, without the profiler's own spans."""
    kept = np.ones(len(columns), dtype=np.bool_)
    kept[columns.rows({"", "Trace"})] = False
    return kept


def _frame(trace: Trace, kept: Mask, symbols: Any) -> Any:
    """HTA's frame of one rank. Its symbols are added to the table that all ranks share."""
    columns = trace.columns
    names = _encoded(columns.names, columns.name_id[kept], symbols)
    categories = _encoded(columns.categories, columns.category_id[kept], symbols)
    ts, dur = _times(trace)
    position = columns.position[kept].astype(np.int64)
    frame = pd.DataFrame(
        {
            "index": position,
            "cat": categories,
            "name": names,
            "pid": _processes(columns, columns.pid_id, kept),
            "tid": _processes(columns, columns.tid_id, kept),
            "ts": ts[kept],
            "dur": dur[kept],
            "stream": columns.stream[kept],
            "correlation": columns.correlation[kept],
            "bytes": columns.total_bytes[kept],
            "external_id": columns.external_id[kept],
            **{name: column[kept] for name, column in _described(trace.collectives, len(columns)).items()},
        },
        index=position,
    )
    frame = transform_correlation_to_index(frame, symbols)
    frame["iteration"] = _iterations(frame, symbols)
    for name in frame.columns:
        if name not in ("cat", "name") and frame[name].dtype.kind == "i":
            frame[name] = pd.to_numeric(frame[name], downcast="integer")
    frame["iteration"] = pd.to_numeric(frame["iteration"], downcast="integer")
    frame["end"] = frame["ts"] + frame["dur"]
    return frame


def _encoded(words: tuple[str, ...], ids: NDArray[np.int32], symbols: Any) -> Ints:
    """The ids of words as ids of HTA's table, to which those that occur are added."""
    table = np.full(len(words), NONE, dtype=np.int64)
    used = np.unique(ids)
    symbols.add_symbols(words[at] for at in used)
    known = symbols.get_sym_id_map()
    table[used] = [known[words[at]] for at in used]
    return table[ids]


def _times(trace: Trace) -> tuple[NDArray[Any], NDArray[Any]]:
    """Start and duration of complete events in microseconds, with HTA's types and rounding."""
    columns = trace.columns
    starts = (columns.ts_ns, trace.memory.ts_ns, trace.counters.ts_ns)
    others = trace.events > len(columns)  # events without a duration make the column one of floats
    dur = _microseconds(columns.dur_ns, others or _fractional(columns.dur_ns))
    if not any(map(_fractional, starts)):
        return _microseconds(columns.ts_ns, False), dur
    ts = _microseconds(columns.ts_ns, True)
    if disable_ns_rounding():
        return ts, dur
    first, last = np.ceil(ts), np.floor(ts + dur)
    return first.astype(np.int64), last - first if others else (last - first).astype(np.int64)


def _fractional(nanoseconds: Ints) -> bool:
    return bool((nanoseconds % 1000).any())


def _microseconds(nanoseconds: Ints, as_float: bool) -> NDArray[Any]:
    """Integers, or the float64 nearest to each decimal number of microseconds, as reading its text gives."""
    if not as_float:
        return nanoseconds // 1000
    whole, rest = np.divmod(nanoseconds, 1000)
    return np.where(np.abs(nanoseconds) < _EXACT, nanoseconds / 1000.0, whole + rest / 1000.0)


def _processes(columns: Columns, ids: NDArray[np.int32], kept: Mask) -> NDArray[Any]:
    """pid or tid as the file has them: text where one of those kept is no number, since old files quote all of them."""
    used = np.unique(ids[kept])
    words = [columns.labels[at] for at in used]
    values = [int(word) for word in words] if all(map(_is_number, words)) else words
    table = np.zeros(len(columns.labels), dtype=object)
    table[used] = np.array(values, dtype=object)
    column = table[ids[kept]]
    if not all(_is_number(columns.labels[at]) for at in np.unique(ids)):
        return column  # of objects, since pandas saw text among them before HTA dropped it
    return np.asarray(pd.Series(column).infer_objects())


def _is_number(label: str) -> bool:
    return label.isascii() and label.removeprefix("-").isdigit() and str(int(label)) == label


def _described(collectives: Collectives, rows: int) -> dict[str, NDArray[Any]]:
    """What the file says of collectives, under HTA's names and with its defaults."""
    found: dict[str, NDArray[Any]] = {}
    words = np.array([*collectives.words, ""], dtype=object)  # NONE is the last
    for name, ids in (("collective_name", collectives.kind), ("msg_dtype", collectives.dtype)):
        found[name] = np.full(rows, "", dtype=object)
        found[name][collectives.row] = words[ids]
    for name, sizes in (
        ("in_msg_nelems", collectives.in_elements),
        ("out_msg_nelems", collectives.out_elements),
        ("group_size", collectives.group_size),
    ):
        found[name] = np.zeros(rows, dtype=np.int64)
        found[name][collectives.row] = np.where(sizes == NONE, 0, sizes)
    return found


def _iterations(frame: Any, symbols: Any) -> NDArray[np.float64]:
    """The step of each event, by HTA's rule; -1 for none, NaN for what it gives no step at all (kernels on stream 0).

    On the host, the last step marked in the file in which the event begins; on a stream, the step of what launched it.
    """
    ts, ends = frame["ts"].to_numpy(), (frame["ts"] + frame["dur"]).to_numpy()
    names, stream, linked = (frame[name].to_numpy() for name in ("name", "stream", "index_correlation"))
    steps = {at: int(match[1]) for at, word in enumerate(symbols.get_sym_table()) if (match := _STEP.match(word))}
    order = np.argsort(ts, kind="stable")
    in_order = np.full(len(ts), -1.0)
    for row in np.flatnonzero(np.isin(names, list(steps))).tolist():
        first, last = np.searchsorted(ts[order], (ts[row], ends[row]))
        in_order[first:last] = steps[int(names[row])]
    step = np.empty(len(ts))
    step[order] = in_order
    operator = frame["cat"].to_numpy() == symbols.get_sym_id_map().get("cpu_op", NONE)
    found = np.where((stream < 0) | (operator & (stream == 0)), step, np.nan)
    on_stream = stream > 0
    launch = np.searchsorted(frame["index"].to_numpy(), np.maximum(linked[on_stream], 0))
    found[on_stream] = np.where(linked[on_stream] > 0, found[launch], -1.0)
    return found


def _meta(trace: Trace, kept: Mask) -> dict[str, Any]:
    """The file's metadata, as far as dptune keeps them, and HTA's word for the kind of device."""
    spread = trace.distributed
    meta: dict[str, Any] = {
        "deviceProperties": [{"id": device.index, "name": device.name} for device in trace.devices],
        "distributedInfo": {
            key: value
            for key, value in (("backend", spread.backend), ("rank", spread.rank), ("world_size", spread.world_size))
            if value is not None
        },
    }
    if trace.base_ns:
        meta["baseTimeNanoseconds"] = trace.base_ns
    names = (trace.columns.names[at] for at in np.unique(trace.columns.name_id[kept]))
    meta["device_type"] = infer_gpu_type(meta, dict.fromkeys(names, 0))
    return meta

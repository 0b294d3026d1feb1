"""HTA fed from dptune's columns gives what HTA gives alone, and reads no file a second time unless it must."""

import builtins
import contextlib
import gzip
import importlib
import io
import json
import logging
import shutil
import sys
import types

import pytest

from dptune.errors import DptuneError, RunError, TraceError, UsageError
from dptune.trace import load
from dptune.trace.kineto.decode import decode

# HTA's own warnings of pandas (deprecated calls) are not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")

STEP = "hta_small/9285831_event_sync_trace.json.gz"
RANKS = ["hta_sampled_ranks/c56feed_sampled_rank-0.json.gz", "hta_sampled_ranks/5dbc949_sampled_rank-1.json.gz"]


@pytest.fixture(scope="module", autouse=True)
def _hta():
    """Import HTA and pandas in the process that runs these tests: they take a second of each that collects them."""
    global HTA_DISABLE_NS_ROUNDING_ENV, CudaKernelAnalysis, HTAEnvOptions, HtaTrace, TraceAnalysis, bridge, pd
    pd = pytest.importorskip("pandas", reason="the extra `hta` is not installed")
    pytest.importorskip("hta.trace_analysis", reason="the extra `hta` is not installed")
    bridge = pytest.importorskip("dptune.trace.hta")
    from hta.analyzers.cuda_kernel_analysis import CudaKernelAnalysis
    from hta.common.trace import Trace as HtaTrace
    from hta.configs.env_options import HTA_DISABLE_NS_ROUNDING_ENV, HTAEnvOptions
    from hta.trace_analysis import TraceAnalysis


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """Without what HTA logs, and without the one figure that it always draws: to show it takes 3 s of imports."""
    monkeypatch.setattr(CudaKernelAnalysis, "visualize_aten_op_kernels_and_overhead", lambda *_: None)
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(level)


def refuse(*_args, **_kwargs):
    raise AssertionError("a file is opened")


def alone(paths, **options):
    """HTA by itself, without its pool of processes."""
    analysis = TraceAnalysis.__new__(TraceAnalysis)
    analysis.t = HtaTrace({rank: str(path) for rank, path in enumerate(paths)}, "/")
    analysis.t.load_traces(use_multiprocessing=False, **options)
    return analysis


def bridged(paths, **options):
    return bridge.analysis({rank: decode(path) for rank, path in enumerate(paths)}, **options)


def critical_path(analysis, _ranks):
    graph, found = analysis.critical_path_analysis(0, "ProfilerStep", 0)
    return [found, len(graph.nodes), sorted(graph.critical_path_events_set), graph.summary()]


ANALYSES = {
    "temporal": lambda a, _: a.get_temporal_breakdown(visualize=False),
    "overlap": lambda a, _: a.get_comm_comp_overlap(visualize=False),
    "kernels": lambda a, _: a.get_gpu_kernel_breakdown(visualize=False),
    "idle": lambda a, r: a.get_idle_time_breakdown(r, visualize=False, show_idle_interval_stats=True),
    "queue summary": lambda a, r: a.get_queue_length_summary(r),
    "queue series": lambda a, r: a.get_queue_length_time_series(r),
    "full queue": lambda a, r: a.get_time_spent_blocked_on_full_queue(a.get_queue_length_time_series(r)),
    "launches": lambda a, r: a.get_cuda_kernel_launch_stats(r, visualize=False),
    "bandwidth summary": lambda a, r: a.get_memory_bw_summary(r),
    "bandwidth series": lambda a, r: a.get_memory_bw_time_series(ranks=r),
    "steps": lambda a, _: a.get_profiler_steps(),
    "stragglers": lambda a, _: a.get_potential_stragglers(),
    "annotations on the GPU": lambda a, _: a.get_gpu_user_annotation_breakdown(visualize=False),
    "annotations on the host": lambda a, _: a.get_gpu_user_annotation_breakdown(False, visualize=False),
    "annotated kernels": lambda a, _: a.get_gpu_kernels_with_user_annotations(0),
    "counters": lambda a, r: a.get_cupti_counter_data_with_operators(r),
    "critical path": critical_path,
    "operators": lambda a, r: a.get_aten_op_kernels_and_delay(r),
}
_LONE = {"stragglers"}  # which compares ranks
# What HTA itself fails on: a file without steps has no critical path; one without device events has nothing at all.
_NO_STEPS = _LONE | {"critical path"}
_NO_KERNELS = _NO_STEPS | {"temporal", "idle", "operators"}
FILES = {
    (STEP,): _LONE,
    ("hta_small/4bcd84b_benchmark_result_2869224_1695835535_trace.json.gz",): _NO_STEPS,
    ("hta_small/eac4fdc_benchmark_result_924719_1679055439_trace.json.gz",): _NO_KERNELS,
    ("handmade/3a6b200_backward_thread.json",): _LONE,
    ("handmade/71530b1_gpu_metrics_input.json",): _NO_STEPS,
    ("single_gpu/c4adadd_dcb0aa1a78e7_4399.1752181589589738346.pt.trace.json.gz",): _LONE,
    ("single_gpu/1eeffb3_trace_05.json.gz",): _LONE | {"annotated kernels"},
    ("inference_graphs/3e1be69_graph_execution.json.gz",): _NO_STEPS | {"operators"},
    ("vendor_pairs/737b43a_1016001.json.gz",): _LONE,
    ("cpu_only/3b2ac16_ref.json",): _NO_KERNELS,
    ("torchrec_straggler_4xv100/7c1bf12_21149.1698955063514749919.pt.trace.json.gz",): _LONE,
    tuple(RANKS): set(),
    ("hta_small/a4a6c2d_event_sync_trace.json.gz", STEP): _LONE,
}


def outcome(analysis, name, ranks):
    """What an analysis gives, or how it fails; it prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return ANALYSES[name](analysis, ranks), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"


def assert_same(theirs, ours):
    if isinstance(theirs, pd.DataFrame):
        assert isinstance(ours, pd.DataFrame)
        # Only what was asked for is read of an event's arguments.
        assert set(theirs.columns) - set(ours.columns) <= UNREAD
        assert set(ours.columns) <= set(theirs.columns)
        encoded = {column for column in ENCODED & set(ours.columns) if ours[column].dtype.kind == "i"}
        shown = [column for column in ours.columns if column not in {*encoded, *WRITTEN}]
        pd.testing.assert_frame_equal(theirs[shown], ours[shown])
    elif isinstance(theirs, list | tuple):
        assert len(theirs) == len(ours)
        for one, other in zip(theirs, ours, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, dict):
        assert theirs.keys() == ours.keys()
        for key in theirs:
            assert_same(theirs[key], ours[key])
    elif isinstance(theirs, pd.Series):
        pd.testing.assert_series_equal(theirs, ours)
    else:
        assert theirs == ours


SLOW = {"operators", "critical path"}  # of several ranks
READING = {"bandwidth summary", "bandwidth series", "critical path", "counters"}
UNREAD = {
    *("input_dims", "input_type", "input_strides", "python_id", "python_parent_id", "process_rank"),
    *("in_split_size", "out_split_size", "memory_bw_gbps", "wait_on_stream", "wait_on_cuda_event_record_corr_id"),
}
ENCODED = {"name", "cat", "user_annotation"}  # numbers of words, which HTA gives in no fixed order
WRITTEN = ["bytes", "external_id"]  # numbers in ours, where files write text or an older name for them
WRITTEN_OTHERWISE = ["inference_graphs/3e1be69_graph_execution.json.gz", "handmade/71530b1_gpu_metrics_input.json"]


# Small ones with and without steps and kernels, and two ranks; `make test-thorough` reads the others.
RARELY = {
    RANKS[0],
    "hta_small/4bcd84b_benchmark_result_2869224_1695835535_trace.json.gz",
    "hta_small/eac4fdc_benchmark_result_924719_1679055439_trace.json.gz",
    "handmade/3a6b200_backward_thread.json",
    "single_gpu/1eeffb3_trace_05.json.gz",
    "inference_graphs/3e1be69_graph_execution.json.gz",
    "single_gpu/c4adadd_dcb0aa1a78e7_4399.1752181589589738346.pt.trace.json.gz",
    "vendor_pairs/737b43a_1016001.json.gz",
    "torchrec_straggler_4xv100/7c1bf12_21149.1698955063514749919.pt.trace.json.gz",
}


def often(name):
    return pytest.mark.thorough if name in RARELY else ()


@pytest.mark.parametrize("names", [pytest.param(names, id=names[0], marks=often(names[0])) for names in FILES])
def test_each_analysis_is_what_hta_gives_alone(real_traces, names):
    paths = [real_traces / name for name in names]
    theirs, ours = alone(paths), bridged(paths)
    failed = set()
    for name in set(ANALYSES) - (SLOW if len(paths) > 1 else set()):
        expected, error = outcome(theirs, name, list(range(len(paths))))
        found, same_error = outcome(ours, name, list(range(len(paths))))
        assert same_error == error, name
        failed |= {name} if error else set()
        assert_same(expected, found)
    assert failed == FILES[names]


def decoded(analysis, rank):
    """A rank's frame with words for the numbers of words, columns in one order."""
    frame = analysis.t.traces[rank].copy()
    words = analysis.t.symbol_table.get_sym_table()
    for column in ("name", "cat"):
        frame[column] = [words[at] for at in frame[column]]
    return frame[sorted(frame.columns)]


@pytest.mark.parametrize("last", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(names[0], marks=often(names[0])) for names in FILES),
        pytest.param("hta_training/b4b6dce_nccl_data.json.gz", marks=pytest.mark.thorough),
    ],
)
def test_with_all_arguments_the_frame_is_hta_s_own(real_traces, name, last):
    path = real_traces / name
    theirs, ours = (make([path], include_last_profiler_step=last) for make in (alone, bridged))
    ours.t.read_arguments()
    ours.t.read_counters([0])
    expected, found = decoded(theirs, 0), decoded(ours, 0)
    assert list(found.columns) == list(expected.columns)
    pd.testing.assert_frame_equal(found.drop(columns=WRITTEN), expected.drop(columns=WRITTEN))
    assert ours.t.min_ts == theirs.t.min_ts
    assert ours.t.get_device_type() == theirs.t.get_device_type()
    if name not in WRITTEN_OTHERWISE:
        pd.testing.assert_frame_equal(found[WRITTEN], expected[WRITTEN])


def written(path, events):
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


@pytest.mark.parametrize("rounds", [True, False])
@pytest.mark.parametrize("shift_us", [0, 4_123_456, 1_700_000_000_000_000])
def test_times_are_rounded_as_hta_rounds_them(tmp_path, monkeypatch, shift_us, rounds):
    """Starts up, ends down, in float64, in which a time since the epoch has lost its nanoseconds."""
    monkeypatch.setitem(HTAEnvOptions.instance()._options, HTA_DISABLE_NS_ROUNDING_ENV, not rounds)
    times = [(at * 1117, -at * 1117 % 1000 if at % 2 else at * 313) for at in range(1000)]  # each number of nanoseconds
    event = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "args": {}}
    path = tmp_path / "t.json"
    spelled = [(f"{shift_us + ts // 1000}.{ts % 1000:03}", f"{dur // 1000}.{dur % 1000:03}") for ts, dur in times]
    events = [json.dumps(event)[:-1] + f', "ts": {ts}, "dur": {dur}}}' for ts, dur in spelled]
    path.write_text('{"schemaVersion": 1, "traceEvents": [' + ", ".join(events) + "]}")
    expected, found = (decoded(make([path]), 0)[["ts", "dur", "end"]] for make in (alone, bridged))
    assert (expected["ts"].dtype.kind == "i") is rounds
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


OTHERS = [(1, False), (1, True), (2, True)]


@pytest.mark.parametrize(
    ("steps", "last"), [(2, False), *(pytest.param(*each, marks=pytest.mark.thorough) for each in OTHERS)]
)
def test_rare_events(tmp_path, steps, last):
    """Operators that name a stream; kernels without a launch, and on stream 0; functions that outlast their caller."""

    def event(cat, name, ts, dur, tid=1, **args):
        said = {key.replace("_", " "): value for key, value in args.items()}
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": said}

    bandwidth = {"memory bandwidth (GB/s)": 12.5}
    path = written(
        tmp_path / "t.json",
        [
            event("user_annotation", "ProfilerStep#1", 100, 100),
            event("user_annotation", f"ProfilerStep#{steps}", 190, 100),
            event("cpu_op", "triton_poi_fused_0", 120, 5, stream=0),
            event("cuda_runtime", "cudaLaunchKernel", 130, 5, correlation=1),
            event("cuda_runtime", "cudaLaunchKernel", 195, 5, correlation=2),
            event("cuda_runtime", "cudaMemsetAsync", 137, 2, correlation=3),
            event("cuda_runtime", "cudaLaunchKernel", 400, 5, correlation=4),
            event("kernel", "first", 140, 10, tid=7, stream=7, correlation=1),
            event("gpu_memset", "Memset (Device)", 150, 5, tid=7, stream=7, correlation=3, **bandwidth),
            event("kernel", "second", 200, 10, tid=0, stream=0, correlation=2),
            event("kernel", "launched before", 90, 10, tid=7, stream=7, correlation=5),
            event("kernel", "launched outside", 410, 10, tid=7, stream=7, correlation=4),
            event("python_function", "train.py(1): step", 105, 40, Python_id=1),
            event("python_function", "train.py(9): forward", 110, 60, Python_id=2, Python_parent_id=1),
            event("cpu_op", "aten::linear", 128, 10),
            {"ph": "i", "cat": "c", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": {}},
        ],
    )
    theirs, ours = (make([path], include_last_profiler_step=last) for make in (alone, bridged))
    for name in ANALYSES:
        expected, error = outcome(theirs, name, [0])
        found, same_error = outcome(ours, name, [0])
        assert same_error == error, name
        assert_same(expected, found)
    ours.t.read_arguments()
    pd.testing.assert_frame_equal(*(plain(decoded(analysis, 0)) for analysis in (theirs, ours)))


def plain(frame):
    """Without the columns that an analysis added."""
    return frame.drop(columns=[column for column in frame if column.startswith("s_")])


def test_nothing_is_read_again(real_traces, tmp_path, monkeypatch):
    paths = [shutil.copy(real_traces / name, tmp_path) for name in RANKS]
    run = load(paths)
    for path in paths:
        tmp_path.joinpath(path).unlink()
    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(gzip, "open", refuse)
    ours = bridge.analysis(run)
    assert ours.get_profiler_steps() == [551]
    for name in set(ANALYSES) - READING - SLOW:
        assert outcome(ours, name, [0, 1])[1] == "", name
    with pytest.raises(TraceError, match=r"cannot read .*rank-1\.json\.gz"):
        ours.get_memory_bw_summary([1])


def test_a_trace_by_itself_has_the_rank_that_it_says(real_traces):
    second = decode(real_traces / RANKS[1])
    assert second.distributed.rank == 1
    assert bridge.analysis(second).t.get_ranks() == [1]
    assert bridge.analysis(decode(real_traces / STEP)).get_temporal_breakdown(visualize=False)["rank"].tolist() == [0]


def test_the_last_step_is_kept_when_asked_for(real_traces):
    run = load([real_traces / RANKS[0]])
    assert bridge.analysis(run).get_profiler_steps() == [551]
    assert bridge.analysis(run, include_last_profiler_step=True).get_profiler_steps() == [551, 552]
    assert bridge.analysis(run.ranks[0].light, include_last_profiler_step=True).get_profiler_steps() == [551, 552]


def test_files_with_additions_are_what_hta_writes(real_traces, tmp_path):
    written = []
    for make in (alone, bridged):
        folder = tmp_path / make.__name__
        folder.mkdir()
        analysis = make([shutil.copy(real_traces / STEP, folder)])
        analysis.generate_trace_with_counters()
        graph, _ = analysis.critical_path_analysis(0, "ProfilerStep", 0)
        analysis.overlay_critical_path_analysis(0, graph, str(folder))
        files = sorted(folder.glob("*.gz"))
        assert len(files) == 3
        written.append([json.loads(gzip.decompress(file.read_bytes())) for file in files])
    assert written[0] == written[1]


def test_a_trace_is_not_written_over(real_traces, tmp_path):
    path = tmp_path / "trace.gz"
    before = path.write_bytes((real_traces / STEP).read_bytes())
    with pytest.raises(UsageError, match="would write over"):
        bridged([path]).generate_trace_with_counters()
    assert path.stat().st_size == before


def test_what_hta_cannot_load_alone(real_traces, tmp_path):
    """A bare list of events, and a file that breaks off."""
    listed = tmp_path / "listed.json"
    listed.write_text(json.dumps(json.loads(gzip.decompress((real_traces / STEP).read_bytes()))["traceEvents"]))
    assert len(bridged([listed]).get_temporal_breakdown(visualize=False)) == 1
    assert bridged([listed]).t.get_raw_trace_for_one_rank()["traceEvents"]
    cut = bridged([real_traces / "damaged/truncated.json.gz"])
    assert cut.get_profiler_steps() == [1, 2]
    with pytest.raises(TraceError, match="is damaged"):
        cut.t.get_raw_trace_for_one_rank()


def test_a_rank_without_events_is_left_out(real_traces, tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "i", "name": "[memory]", "ts": 1, "args": {}}]}')
    empty, whole = decode(path), decode(real_traces / STEP)
    assert bridge.analysis({0: empty, 1: whole}).t.get_ranks() == [1]
    with pytest.raises(RunError, match="nothing to analyse"):
        bridge.analysis(empty)


def test_an_argument_that_hta_does_not_know(real_traces):
    with pytest.raises(UsageError, match="no argument nonsense"):
        bridged([real_traces / STEP]).t.read_arguments("nonsense")


def test_without_hta_one_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "hta", None)
    monkeypatch.delitem(sys.modules, "dptune.trace.hta")
    with pytest.raises(DptuneError) as raised:
        importlib.import_module("dptune.trace.hta")
    assert (raised.value.message, raised.value.hint) == ("HTA is not installed", 'pip install "dptune[hta]"')


def test_an_hta_without_a_name_that_is_imported_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "hta", types.ModuleType("hta"))
    monkeypatch.delitem(sys.modules, "dptune.trace.hta")
    with pytest.raises(DptuneError, match=r"HTA cannot be used; dptune was written for 0\.6\.1: cannot import name"):
        importlib.import_module("dptune.trace.hta")


def test_a_pandas_that_hta_fails_on_is_said(real_traces, monkeypatch):
    monkeypatch.setattr(pd, "__version__", "3.0.1")
    with pytest.raises(DptuneError, match=r"pandas 3\.0\.1"):
        bridged([real_traces / STEP])


def test_an_hta_that_lacks_a_part_is_said(real_traces, monkeypatch):
    monkeypatch.delattr(HtaTrace, "parse_traces")
    with pytest.raises(DptuneError, match=r"lacks Trace\.parse_traces: dptune was written for 0\.6\.1"):
        bridged([real_traces / STEP])


def test_the_user_s_logging_and_hta_stay_as_they_were(real_traces):
    hta_log = logging.getLogger("hta")
    parts = {**vars(TraceAnalysis)}, {**vars(HtaTrace)}
    before = list(logging.root.handlers), logging.root.level, list(hta_log.handlers), hta_log.level
    bridged([real_traces / STEP]).get_memory_bw_summary()
    assert (list(logging.root.handlers), logging.root.level, list(hta_log.handlers), hta_log.level) == before
    assert ({**vars(TraceAnalysis)}, {**vars(HtaTrace)}) == parts

"""The page of predictions: what it rests on, bounds, holes, and what a search found."""

from dptune.predicted import BucketSize, MemoryComponent, MemoryPrediction, Prediction, WhatIf
from dptune.present.ink import paint
from dptune.present.sections.whatif import page

KNOWN = {"measured_ns": 100_000_000, "replayed_ns": 102_000_000, "error_share": 0.02, "held_out_share": 0.03}


def text(predictions, curve=(), run="", **known):
    figures = {**KNOWN, "floor_ns": 60_000_000, "global_batch": 64, "link": "dptune links (links.json)", **known}
    told = WhatIf.only("not known here", dptune="1", predictions=list(predictions), curve=list(curve), **figures)
    return " ".join(paint(page(told, 100, run), False).split())


def predicted(changes, step_ns=50_000_000):
    figures = {
        "step_ns": step_ns,
        "low_ns": 45_000_000,
        "high_ns": 55_000_000,
        "global_batch": 64,
        "ns_per_sample": 7e5,
    }
    return Prediction(changes=changes, **figures)


def test_what_it_rests_on_comes_first_and_the_best_is_to_be_proven():
    said = text([predicted({"ddp.no_sync": True}), predicted({"ddp.bucket_cap_mb": 1.0}, 90_000_000)])
    assert "Measured 100.0 ms per step, untraced." in said
    assert "Model check Replay of the unchanged run: 102.0 ms (2.0 % error; 3.0 % on held-out steps)." in said
    assert (
        "Free comm. If communication took no time, a step would take 60.0 ms. Skipping collectives can save more: it "
        "also removes their hooks. Link From dptune links (links.json)." in said
    )
    assert "ddp.no_sync=true 50.0 45.0 55.0 64 50.0 % less" in said
    assert said.endswith("Verify it: dptune verify --set ddp.no_sync=true")


def test_the_run_is_named_where_the_user_named_it():
    said = text([predicted({"ddp.no_sync": True})], run="runs/one")
    assert said.endswith("Verify it: dptune verify runs/one --set ddp.no_sync=true")


def test_what_makes_it_slower_is_not_to_be_proven():
    slower = predicted({"ddp.no_sync": True}, 101_000_000).model_copy(update={"high_ns": 102_000_000})
    assert "Verify it" not in text([slower])


def test_what_may_save_nothing_is_not_to_be_proven():
    """Its interval reaches the 100 ms of the step as it is; what is certain to save less is proposed instead."""
    perhaps = predicted({"ddp.no_sync": True}, 85_000_000).model_copy(update={"high_ns": 100_000_000})
    certain = predicted({"ddp.bucket_cap_mb": 1.0}, 90_000_000).model_copy(update={"high_ns": 95_000_000})
    assert "Verify it" not in text([perhaps])
    assert text([perhaps, certain]).endswith("Verify it: dptune verify --set ddp.bucket_cap_mb=1")
    searched = text([perhaps], [BucketSize(cap_mb=None, buckets=2, step_ns=100_000_000)])
    assert "Best No change. The best combination found may save nothing: its interval includes the current" in searched


def test_traced_steps_are_called_so():
    said = text([], traced=True)
    assert "ms per step, traced: the profiler slows the host." in said
    assert "hides all" not in said
    hidden = (
        "take 100.0 ms. Compute or host work hides all of it. The profiler slows the host, so less may be hidden in "
        "untraced steps. Link"
    )
    assert hidden in text([], traced=True, floor_ns=100_000_000)
    assert "Compute hides" not in text([], floor_ns=100_000_000)


def test_a_floor_that_is_not_known_is_left_out():
    """The link is, but no collective was read on all its ranks."""
    said = text([predicted({"host.times": 0.0})], floor_ns=None)
    assert "Free comm." not in said
    assert "Link From dptune links" in said


def test_a_bound_has_no_step_and_its_reason():
    bound = Prediction.only("only a bound can be told", changes={"optimizer.fused": True}, low_ns=80_000_000)
    said = text([predicted({"ddp.no_sync": True}), bound])
    assert "optimizer.fused=true at least 80.0" in said
    assert "At least Only a bound can be told." in said


def test_a_bound_of_nothing_is_none():
    assert "host.times=0 unknown no bound samples not measured: only a bound At least Only a bound." in text(
        [Prediction.only("only a bound", changes={"host.times": 0.0}, low_ns=0)]
    )


def test_what_a_sweep_has_beside_its_knob_stands_once():
    hook = {"ddp.comm_hook": "fp16"}
    said = text([predicted({**hook, "ddp.bucket_cap_mb": size}) for size in (1.0, 25.0)])
    assert "Each with ddp.comm_hook=fp16 " in said
    assert " ddp.bucket_cap_mb=1 50.0 " in said
    assert " ddp.bucket_cap_mb=25 50.0 " in said
    assert "verify --set ddp.comm_hook=fp16 --set ddp.bucket_cap_mb=1" in said
    assert "Each with" not in text([predicted({**hook, "ddp.no_sync": True}), predicted(hook)])


def test_a_replay_of_traced_gpu_steps_is_exact_by_construction():
    """Of untraced steps, and of CPUs, whose model is made from half the steps, the error says something."""
    fitted = "2.0 % error). The model is built from these steps: this does not test a change."
    no_halves = {"held_out_share": None, "traced": True}
    assert fitted in text([], **no_halves)
    assert "built from these steps" not in text([], **{**no_halves, "traced": False}) + text([], traced=True)


def test_without_samples_a_change_is_of_the_step_time():
    """Two ranks process twice as many samples as one: that their step takes as long is no saving per sample."""
    more = predicted({"world_size": 4}).model_copy(
        update={"global_batch": None, "missing": {"global_batch": "no batch"}}
    )
    said = text([more], global_batch=None)
    assert "from to step time world_size=4 50.0 45.0 55.0 50.0 % less" in said
    assert "Step time Samples per step are unknown, but change with these settings" in said
    assert "per sample" not in said
    assert "Step time" not in text([predicted({"ddp.no_sync": True})], global_batch=None)
    mixed = text([predicted({"world_size": 2}), more])
    assert "to samples time per sample world_size=2" in mixed
    assert "[a] 50.0 % less per step" in mixed
    assert "Per sample Samples of all ranks together" in mixed


def test_without_samples_their_column_is_left_out_whatever_a_row_lacks():
    """One reason for all rows, so that the table fits a screen of 80 columns."""
    lacking = Prediction.only("no graph", changes={"cuda.graphs": True})
    bound = Prediction.only("a bound", changes={"syncs.removed": True}, low_ns=90_000_000)
    said = text([lacking, bound], global_batch=None)
    assert "with step ms from to step time cuda.graphs=true [a] [a] [a] [a] syncs.removed=true at least 90.0" in said
    assert "samples not measured: not known here" in said


def test_several_reasons_name_their_rows():
    bounds = [
        Prediction.only(why, changes={knob: True}, low_ns=90_000_000)
        for knob, why in (("syncs.removed", "calls wait"), ("cuda.graphs", "graphs differ"))
    ]
    said = text(bounds)
    assert "At least syncs.removed=true: calls wait. At least cuda.graphs=true: graphs differ." in said
    assert "at least 90.0 [a] up to 10.0 % less" in said
    assert "at least 100.0 no saving" in text([Prediction.only("a bound", changes={"x.y": 1}, low_ns=100_000_000)])
    none = text([Prediction.only(why, changes={knob: True}) for knob, why in (("a.b", "no a"), ("c.d", "no c"))])
    assert "Prediction Not available: a.b=true: no a. Prediction Not available: c.d=true: no c." in none
    assert "Prediction Not available: no a." in text([Prediction.only("no a", changes={"a.b": True})])


def test_what_is_no_setting_and_what_changes_results_is_said():
    settings = ({"host.times": 0.0}, {"precision.autocast": "bf16"}, {"ddp.no_sync": True})
    said = text([predicted(changes) for changes in settings])
    assert "Scenarios host.times: not script settings; they show what limits the step." in said
    assert "Results precision.autocast: may change training results." in said
    same = text([predicted({"ddp.no_sync": True})])
    assert "Scenarios" not in same
    assert "Results" not in same


def test_a_search_shows_the_curve_and_the_best():
    curve = [
        BucketSize(cap_mb=None, buckets=2, step_ns=100_000_000),
        BucketSize(cap_mb=0.5, buckets=5, step_ns=50_000_000),
    ]
    said = text([predicted({"ddp.bucket_cap_mb": 0.5})], curve)
    assert f"default 2 100.0 {'#' * 30} 0.5 5 50.0 {'#' * 15}" in said
    assert "Best combination that does not affect training results:" in said
    assert "No change: no tried setting saves 1 % of the step." in text([], curve)


def test_nothing_is_looked_for_with_a_replay_that_is_far_off():
    words = "The unchanged replay misses the measured step by 20.0 %, so no search was run."
    assert words in text([], error_share=0.2)
    other = text([], error_share=0.01, held_out_share=0.2)
    assert "The unchanged replay misses held-out steps by 20.0 %, so" in other
    both = "misses the measured step by 20.0 % and held-out steps by 30.0 %, so no search was run"
    assert f"{both}. Record more traced steps (--light 20)" in text([], error_share=0.2, held_out_share=0.3)


def test_a_bound_says_by_how_much_it_is_lower_for_what_the_replay_misses():
    bound = Prediction.only("only a bound", changes={"ddp.no_sync": True}, low_ns=40_000_000)
    lower = "Bounds Each is lowered by the sum of both errors, 50.0 % of a step."
    assert lower in text([bound], error_share=0.2, held_out_share=0.3)
    assert "Bounds" not in text([bound])


def test_what_the_recording_lacks_comes_first():
    assert text([predicted({"ddp.no_sync": True})], limits=["rank 1 has no trace"]).startswith(
        "Partial Rank 1 has no trace."
    )


def test_what_is_taken_for_granted_is_said_once():
    taken = {"assumptions": ["nothing else is on the link"]}
    one, other = (predicted({"link.gb_per_s": rate}).model_copy(update=taken) for rate in (1.0, 2.0))
    assert text([one, other]).count("Assumed Nothing else is on the link.") == 1


def test_what_changes_nothing_is_called_the_same():
    assert "ddp.no_sync=true 100.0 45.0 55.0 64 the same" in text([predicted({"ddp.no_sync": True}, 100_000_001)])


def test_changes_that_take_more_room_than_the_page_has_are_named_below_the_table():
    both = {"loader.num_workers": 3, "ddp.no_sync": True, "ddp.comm_hook": "fp16"}
    said = text([predicted(both), predicted({"ddp.no_sync": True})])
    assert "set 1 50.0 45.0 55.0 64 50.0 % less set 2 50.0" in said
    assert "Set 1 loader.num_workers=3, ddp.no_sync=true, ddp.comm_hook=fp16 Set 2 ddp.no_sync=true" in said
    long = text([predicted({"fsdp.reshard_after_forward": False}), predicted({"ddp.no_sync": True})])
    assert "fsdp.reshard_after_forward=false 50.0 45.0" in long


def test_what_saves_most_comes_first_and_the_values_of_a_sweep_stay_in_order():
    little, much = predicted({"ddp.no_sync": True}, 90_000_000), predicted({"ddp.static_graph": True})
    said = text([little, much])
    assert said.index("ddp.static_graph=true") < said.index("ddp.no_sync=true")
    sweep = text([predicted({"loader.num_workers": 1}, 90_000_000), predicted({"loader.num_workers": 2})])
    assert sweep.index("loader.num_workers=1") < sweep.index("loader.num_workers=2")


def test_samples_of_a_step_have_separators():
    assert " 1,024 " in text([predicted({"ddp.no_sync": True}).model_copy(update={"global_batch": 1024})])


def test_traces_are_recorded_before_a_change_is_verified():
    """`dptune verify` runs the script again, which only a recording names."""
    said = text([predicted({"ddp.no_sync": True})], run="traces", recorded=False)
    assert said.endswith(
        "Verify it: traces cannot be run again. Record the script with dptune profile train.py, then run dptune verify "
        "--set ddp.no_sync=true"
    )
    assert "dptune verify traces" not in said


def test_parts_of_two_peaks_name_the_phase_of_each():
    parts = [MemoryComponent(name="activations", now_bytes=2**20, then_bytes=0)]
    sizes = dict.fromkeys(("now_bytes", "peak_bytes", "low_bytes", "high_bytes"), 2**21)
    peaks = {"phase": "optimizer", "now_phase": "backward"}
    found = MemoryPrediction.only(
        "not known", changes={"memory.checkpointing": True}, fits="unknown", components=parts, **sizes, **peaks
    )
    assert "at the peak then in optimizer now in backward" in text([], memory=[found])
    same = found.model_copy(update={"phase": "backward"})
    assert "at the peak in backward then now" in text([], memory=[same])


def test_a_set_has_the_same_number_for_its_step_and_its_memory_and_each_table_names_it():
    """The first set is the smaller saving, and so below the second."""
    first = {"loader.num_workers": 3, "ddp.no_sync": True, "ddp.comm_hook": "fp16"}
    sets = [(first, 90_000_000), ({"optimizer.fused": True}, 50_000_000)]
    sizes = dict.fromkeys(("now_bytes", "peak_bytes", "low_bytes", "high_bytes"), 2**21)
    memory = [MemoryPrediction.only("not known", changes=changes, fits="unknown", **sizes) for changes, _ in sets]
    said = text([predicted(*both) for both in sets], memory=memory)
    named = "Set 1 loader.num_workers=3, ddp.no_sync=true, ddp.comm_hook=fp16 Set 2 optimizer.fused=true"
    assert said.index("set 2 50.0") < said.index("set 1 90.0")
    assert said.count(named) == 2
    assert "set 1 2.00 MiB" in said.partition("Memory")[2]


def ranged(changes, low_ns=24_000_000, high_ns=50_000_000):
    why = "no single step time is predicted: a reason"
    return Prediction.only(why, changes=changes, low_ns=low_ns, high_ns=high_ns, global_batch=64)


def test_a_range_has_both_ends_and_no_step():
    said = text([ranged({"precision.autocast": "bf16"})])
    assert "precision.autocast=bf16 range 24.0 50.0 64 50.0 to 76.0 % less" in said
    assert "Range No single step time is predicted: a reason. From, to Nominal 90 %" in said
    assert "37.0" not in said  # its middle
    assert "At least" not in said
    assert said.endswith("Verify it: dptune verify --set precision.autocast=bf16")


def test_a_range_is_in_the_order_of_steps_by_its_middle():
    """37 ms, between 36 and 38; one that may save nothing is not to be proven."""
    steps = [predicted({"ddp.bucket_cap_mb": float(ms)}, ms * 1_000_000) for ms in (38, 36)]
    said = text([*steps, ranged({"precision.autocast": "bf16"}), Prediction.only("unknown", changes={"x": 1})])
    assert said.index("mb=36 36.0") < said.index("bf16 range") < said.index("mb=38 38.0") < said.index("x=1")
    assert "Verify it" not in text([ranged({"precision.autocast": "bf16"}, 60_000_000, 120_000_000)])

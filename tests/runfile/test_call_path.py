"""Where the script calls a function, and its lines with their shares, from stack samples worked out by hand."""

from dptune.runfile.call_path import CallPath, call_path
from dptune.runfile.facts import Facts
from dptune.runfile.window import SampledFacts, Window


def sampled(path, spent_ms, looks=3, loops=()):
    return SampledFacts(path, looks=looks, steps=[0], spent_ns=[spent_ms * 1_000_000], loops=list(loops))


def rank(*samples, window="untraced"):
    return Facts(0, windows=[Window(window, 3, [10**9], sampled=list(samples))])


LOOP = ["<module> (train.py:90)", "main (train.py:70)"]


def test_callers_from_the_loop_on_and_shares_of_lines():
    """Of 100 ms, 60 are in line 12 (20 of them in a function that it calls), 31 in line 11, 9 in line 10."""
    facts = [
        rank(sampled([*LOOP, "Rows.get (data.py:30)", "Rows.encode (data.py:12)"], 40)),
        rank(
            sampled([*LOOP, "Rows.get (data.py:30)", "Rows.encode (data.py:12)", "pieces (data.py:3)"], 20),
            sampled([*LOOP, "Rows.get (data.py:30)", "Rows.encode (data.py:11)"], 31),
            sampled([*LOOP, "Rows.get (data.py:30)", "Rows.encode (data.py:10)"], 9),
            sampled([*LOOP, "other (data.py:12)"], 500),
        ),
    ]
    assert call_path(facts, "encode", "data.py:9") == CallPath(
        ("train.py:70", "data.py:30"), (("data.py:12", 0.6), ("data.py:11", 0.31))
    )


def test_the_way_that_takes_most_and_a_module_that_calls_by_itself():
    facts = [
        rank(sampled(["<module> (a.py:5)", "f (a.py:2)"], 30), sampled(["<module> (a.py:8)", "f (a.py:2)"], 40)),
    ]
    assert call_path(facts, "f", "a.py:1") == CallPath(("a.py:8",))  # one line takes it all


def test_comprehensions_are_part_of_the_function_around_them_and_recursion_counts_once():
    deep = [*LOOP, "Net.forward (n.py:48)", "Net.forward.<listcomp> (n.py:48)", "Head.run (n.py:38)"]
    assert call_path([rank(sampled(deep, 9))], "run", "n.py:30").called_at == ("train.py:70", "n.py:48")
    again = [*LOOP, "walk (n.py:5)", "walk (n.py:5)", "walk (n.py:6)"]
    assert call_path([rank(sampled(again, 9))], "walk", "n.py:4").called_at == ("train.py:70",)


def test_a_function_of_another_file_that_the_line_calls():
    facts = [rank(sampled(["main (train.py:7)", "Saver.save (saver.py:3)"], 9))]
    assert call_path(facts, "save", "train.py:7") == CallPath(("train.py:7",))


def test_only_the_last_callers_of_many():
    path = [f"f{n} (a.py:{n})" for n in range(1, 9)]
    assert call_path([rank(sampled(path, 9))], "f8", "a.py:8").called_at == ("a.py:4", "a.py:5", "a.py:6", "a.py:7")


def test_nothing_without_samples_of_untraced_steps_or_with_few():
    path = [*LOOP, "f (a.py:2)"]
    assert call_path([], "f", "a.py:1") == CallPath()
    assert call_path([rank(sampled(path, 9), window="light")], "f", "a.py:1") == CallPath()
    assert call_path([rank(sampled(path, 9, looks=2))], "f", "a.py:1") == CallPath()
    assert call_path([rank(sampled(path, 9))], "f", "b.py:1") == CallPath()


def test_methods_of_one_name_are_distinguished_by_the_line():
    """Each class has a `forward`: that of the head begins at line 34, and others call it."""
    path = [*LOOP, "Net.forward (n.py:72)", "Many.forward (n.py:48)", "Head.forward (n.py:38)"]
    facts = [rank(sampled(path, 9))]
    assert call_path(facts, "forward", "n.py:34").called_at == ("train.py:70", "n.py:72", "n.py:48")
    assert call_path(facts, "forward", "n.py:38").called_at == ("train.py:70", "n.py:72", "n.py:48")
    assert call_path(facts, "forward", "n.py:47").called_at == ("train.py:70", "n.py:72")
    assert call_path(facts, "Many.forward", "n.py:1").called_at == ("train.py:70", "n.py:72")


def test_lines_of_the_function_that_a_line_calls_which_takes_nearly_all():
    """`draw` only calls `one_by_one`: of 100 ms, 60 are at line 65, 37 at line 63, and 3 at another line of `draw`."""
    inner = [*LOOP, "Sampler.draw (s.py:57)", "Sampler.one_by_one"]
    facts = [
        rank(
            sampled([*inner[:-1], f"{inner[-1]} (s.py:65)"], 60, loops=[0, 68, 0, 61]),
            sampled([*inner[:-1], f"{inner[-1]} (s.py:63)"], 37, loops=[0, 68, 0, 61]),
            sampled([*LOOP, "Sampler.draw (s.py:58)"], 3, loops=[0, 68, 0]),
        )
    ]
    found = call_path(facts, "draw", "s.py:56")
    assert found.lines == (("s.py:65", 0.6), ("s.py:63", 0.37))
    assert found.loops == (("s.py:61", 0.97),)
    assert found.called_at == ("train.py:70",)


def test_a_line_that_calls_another_function_for_less_than_nearly_all_is_not_entered():
    facts = [
        rank(
            sampled([*LOOP, "f (a.py:2)", "g (a.py:9)"], 85, loops=[0, 0, 0, 0]),
            sampled([*LOOP, "f (a.py:3)"], 15, loops=[0, 0, 1]),
        )
    ]
    assert call_path(facts, "f", "a.py:1").lines == (("a.py:2", 0.85), ("a.py:3", 0.15))


def test_a_single_line_in_a_called_function_is_named_but_not_that_of_the_function_itself():
    called = [rank(sampled([*LOOP, "f (a.py:2)", "g (a.py:9)"], 50))]
    assert call_path(called, "f", "a.py:1").lines == (("a.py:9", 1.0),)
    comprehension = [rank(sampled([*LOOP, "f (a.py:2)", "f.<listcomp> (a.py:2)"], 50))]
    assert call_path(comprehension, "f", "a.py:1").lines == ()


def test_loops_of_a_recording_without_them_are_not_known():
    facts = [rank(sampled([*LOOP, "f (a.py:2)"], 50), sampled([*LOOP, "f (a.py:3)"], 50))]
    assert call_path(facts, "f", "a.py:1").loops == ()

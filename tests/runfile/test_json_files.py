from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dptune.runfile import json_files
from dptune.runfile.facts import SCHEMA_VERSION, DeviceFacts, Facts, OptimizerFacts
from dptune.runfile.record import RunRecord
from dptune.runfile.window import Window

st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))


def drawn(kind: Any, chance: random.Random) -> Any:
    """A value of a type that facts have; lists, dictionaries and texts of up to two."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{field.name: drawn(hints[field.name], chance) for field in dataclasses.fields(kind)})
    origin, inner, many = get_origin(kind), get_args(kind), range(chance.randrange(3))
    if origin is Literal:
        return chance.choice(inner)
    if origin in (Union, UnionType):
        return drawn(chance.choice(inner), chance)
    if origin is list:
        return [drawn(inner[0], chance) for _ in many]
    if origin is tuple:
        return tuple(drawn(each, chance) for each in (inner[:1] * len(many) if inner[-1] is ... else inner))
    if origin in (dict, Mapping):
        return {drawn(inner[0], chance): drawn(inner[1], chance) for _ in many}
    plain = {
        int: chance.randrange(-(2**62), 2**62),
        float: chance.choice((0.0, -0.5, 5e-324, 1e308, chance.random())),
        str: "".join(chance.choices('a"\\\n\x00é\U0001f600', k=len(many))),
        bool: chance.random() < 0.5,
        type(None): None,
    }
    return plain[kind]


@pytest.mark.parametrize("seed", range(20))
def test_facts_are_read_as_they_were_written(seed: int, tmp_path: Path) -> None:
    facts = dataclasses.replace(drawn(Facts, random.Random(seed)), schema_version=SCHEMA_VERSION)
    json_files.write(tmp_path / "facts.json", facts)
    assert json_files.read(tmp_path / "facts.json", Facts) == facts


@pytest.mark.thorough
# facts are large: how many draws are too large for Hypothesis is luck
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(facts=st.from_type(Facts).map(lambda facts: dataclasses.replace(facts, schema_version=SCHEMA_VERSION)))
def test_facts_of_any_values_are_read_as_they_were_written(facts: Facts) -> None:
    with TemporaryDirectory() as folder:
        json_files.write(Path(folder) / "facts.json", facts)
        assert json_files.read(Path(folder) / "facts.json", Facts) == facts


def test_unknown_fields_are_ignored_and_lacking_ones_filled_in(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(
        json.dumps({"rank": 3, "from the future": 1, "windows": [{"name": "light", "first_step": 9}]})
    )
    assert json_files.read(tmp_path / "f", Facts) == Facts(rank=3, windows=[Window("light", 9)])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "f is not JSON"),
        ("[]", "^f: it must be an object, but is a list$"),
        ("{}", "^f: it has no `rank`$"),
        ('{"rank": 3, "windows": [{"name": "light"}]}', r"^f: `windows\[0\]` has no `first_step`$"),
        ('{"rank": "3"}', '^f: `rank` must be a whole number, but is "3"$'),
        ('{"rank": 1e30}', r"^f: `rank` must be a whole number, but is 1e\+30$"),
        ('{"rank": 3, "windows": [5]}', r"^f: `windows\[0\]` must be an object, but is 5$"),
        (
            '{"rank": 3, "settings": {"x": []}}',
            "^f: `settings.x` must be true or false or a whole number or a number or",
        ),
        (
            '{"rank": 3, "windows": [{"name": "x", "first_step": 1, "durations_ns": [1, true]}]}',
            r"`windows\[0\].durations_ns\[1\]` must be a whole number, but is true",
        ),
        (f'{{"rank": {"9" * 5000}}}', "^f holds a number of thousands of digits$"),
        (f'{{"rank": 3, "grad_scale": {"9" * 400}}}', "^f: `grad_scale` is a number with hundreds of digits$"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        json_files.read(tmp_path / "f", Facts)


def test_what_is_not_text_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ValueError, match=r"^f is not text in UTF-8$"):
        json_files.read(tmp_path / "f", Facts)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("8.0", "8.0"),
        ("sm_80", "8.0"),
        ("80", "8.0"),
        ("10.0", "10.0"),
        ("sm_90a", "9.0"),
        ("sm_120", "12.0"),
        *((word, "") for word in ("abc", "", "8", "²", "9" * 5000, "-8.0", "8.0.0")),
    ],
)
def test_a_compute_capability_is_read_right_or_not_known(written: str, read: str) -> None:
    assert DeviceFacts("cuda", compute_capability=written).capability == read


def test_a_learning_rate_that_is_no_number_does_not_lose_the_facts(tmp_path: Path) -> None:
    odd = Facts(rank=0, optimizers=[OptimizerFacts("SGD", learning_rates=[float("inf"), 0.5])])
    json_files.write(tmp_path / "f", odd)
    assert "Infinity" not in (tmp_path / "f").read_text()
    assert json_files.read(tmp_path / "f", Facts) == odd


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    json_files.write(tmp_path / "run.json", RunRecord(dptune="1"))
    with pytest.raises(TypeError):
        json_files.write(tmp_path / "run.json", dataclasses.replace(RunRecord(), dptune=object()))  # type: ignore[arg-type]
    assert json_files.read(tmp_path / "run.json", RunRecord).dptune == "1"


def test_git_leaves_recordings_out_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    json_files.name_newest(tmp_path, "first")
    assert (tmp_path / "latest").read_text() == "first\n"
    assert (tmp_path / ".gitignore").read_text() == "*\n"
    (tmp_path / ".gitignore").unlink()
    json_files.name_newest(tmp_path, "../second")
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]

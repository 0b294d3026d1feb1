from __future__ import annotations

import functools
import json
import runpy
from pathlib import Path

import pytest

from dptune.advice import Report
from dptune.schemas import FOLDER, schemas

made_once = functools.cache(schemas)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["comparison.json", "links.json", "proof.json", "report.json", "run.json", "tuning.json", "whatif.json"]
)
def test_the_committed_schema_is_that_of_the_words(name: str) -> None:
    made = made_once()
    assert sorted(made) == sorted(path.name for path in FOLDER.glob("*.json"))
    assert json.loads((FOLDER / name).read_text(encoding="utf-8")) == json.loads(made[name]), (
        "run `python -m dptune.schemas`"
    )


@pytest.mark.long
def test_all_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("dptune.schemas.FOLDER", tmp_path)
    monkeypatch.setattr("dptune.schemas.schemas", made_once)
    runpy.run_module("dptune.schemas", run_name="__main__")
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == made_once()
    assert capsys.readouterr().out == f"wrote the schemas in {tmp_path}\n"


def test_the_schema_of_a_report_names_its_fields() -> None:
    schema = json.loads((FOLDER / "report.json").read_text(encoding="utf-8"))
    assert set(schema["properties"]) == set(Report.model_fields)
    median = schema["$defs"]["StepTime"]["properties"]["time_ns"]
    assert {"type": "null"} in median["anyOf"]

"""JSON schemas of what dptune writes, beside this file.

After a change to a report's or a run's fields, `python -m dptune.schemas` writes them again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """File name -> the schema as text, made from the words themselves."""
    from pydantic import TypeAdapter

    from dptune.advice import Report
    from dptune.check.result import Gate
    from dptune.compare.result import Comparison
    from dptune.history import History
    from dptune.measured.flight import FlightFigures
    from dptune.measured.inspector import InspectorFigures
    from dptune.predicted import WhatIf
    from dptune.prove.result import Proof
    from dptune.runfile.links import LinkRecord
    from dptune.runfile.record import RunRecord
    from dptune.tune.result import Tuning

    return {
        "comparison.json": _text(Comparison.model_json_schema(mode="serialization")),
        "gate.json": _text(Gate.model_json_schema(mode="serialization")),
        "flight.json": _text(FlightFigures.model_json_schema(mode="serialization")),
        "history.json": _text(History.model_json_schema(mode="serialization")),
        "inspector.json": _text(InspectorFigures.model_json_schema(mode="serialization")),
        "report.json": _text(Report.model_json_schema(mode="serialization")),
        "links.json": _text(TypeAdapter(LinkRecord).json_schema(mode="serialization")),
        "proof.json": _text(Proof.model_json_schema(mode="serialization")),
        "run.json": _text(TypeAdapter(RunRecord).json_schema(mode="serialization")),
        "tuning.json": _text(Tuning.model_json_schema(mode="serialization")),
        "whatif.json": _text(WhatIf.model_json_schema(mode="serialization")),
    }


def write() -> None:
    """Write every schema beside this file."""
    for name, text in schemas().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def _text(schema: dict[str, Any]) -> str:
    return json.dumps({"$schema": _DIALECT, **schema}, indent=2) + "\n"

import json
from math import inf, nan

import pytest
from pydantic import ValidationError

from dptune.advice import Change, Evidence


@pytest.mark.parametrize(
    ("value", "told"), [(inf, "inf"), (-inf, "-inf"), (nan, "nan"), (2.5, 2.5), (3, 3), ("x", "x")]
)
def test_evidence_can_be_written_as_json_whatever_a_run_holds(value, told):
    written = json.dumps(Evidence(label="first loss", value=value).model_dump(mode="json"), allow_nan=False)
    assert json.loads(written)["value"] == told


@pytest.mark.parametrize(("now", "then"), [(0.1, inf), (nan, 0.1)])
def test_a_change_is_to_a_number(now, then):
    with pytest.raises(ValidationError, match=r"optimizer\.lr cannot be (inf|nan)"):
        Change(knob="optimizer.lr", now=now, then=then)

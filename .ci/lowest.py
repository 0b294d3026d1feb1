"""Print the lowest dependency versions that pyproject.toml allows for users, as pip constraints."""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
for requirement in [*project["dependencies"], *extras["remote"], *extras["gpu"]]:
    bound = re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)", requirement)
    if bound is None:
        sys.exit(f"pyproject.toml: {requirement!r} has no lower bound")
    print("==".join(bound.groups()))

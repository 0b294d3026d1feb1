"""Print what pyproject.toml has users install, as pip requirements: `python .ci/dependencies.py [--lowest]`.

Without extras, or with --lowest those of `remote` and `gpu` as well, each in the lowest version that is allowed.
"""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lowest(requirement: str) -> str:
    """The requirement in its lowest version."""
    bound = re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)", requirement)
    if bound is None:
        sys.exit(f"pyproject.toml: {requirement!r} has no lower bound")
    return "==".join(bound.groups())


if "--lowest" in sys.argv[1:]:
    extras = project["optional-dependencies"]
    print("\n".join(map(lowest, [*project["dependencies"], *extras["remote"], *extras["gpu"]])))
else:
    print("\n".join(project["dependencies"]))

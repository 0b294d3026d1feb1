"""`python -m dptune.schemas` writes the schemas again."""

from __future__ import annotations

from dptune.schemas import FOLDER, write

if __name__ == "__main__":
    write()
    print(f"wrote the schemas in {FOLDER}")

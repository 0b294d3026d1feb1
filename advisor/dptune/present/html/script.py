"""The one script of the page, which sorts tables, and the policy that lets this script run and nothing else.

The page is complete without it: tables are then in the order of the report.
"""

from __future__ import annotations

import base64
import hashlib

# A header sorts by its column: first the largest, then the smallest. Cells without a figure stay at the end.
SORT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const up = header.getAttribute("aria-sort") === "descending";
      const sign = up ? 1 : -1;
      const value = row => {
        const cell = row.cells[column];
        return cell.querySelector("abbr") ? undefined : cell.dataset.v ?? cell.textContent;
      };
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
        const numbers = x !== "" && y !== "" && !isNaN(x) && !isNaN(y);
        return numbers ? sign * (x - y) : sign * (x < y ? -1 : x > y ? 1 : 0);
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
      headers.forEach(other => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", up ? "ascending" : "descending");
    });
  });
}
"""


def policy() -> str:
    """The Content-Security-Policy: nothing is fetched, no form is sent, and only `SORT` runs."""
    digest = base64.b64encode(hashlib.sha256(SORT.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"

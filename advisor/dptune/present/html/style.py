"""The look of the page: light, dark, narrow, printed. Colors differ in grey and for people who are color-blind."""

from __future__ import annotations

from dptune.present.step_classes import color_of

# By kind of work, in both lights.
COLORS = {
    "compute": color_of("compute_ns"),
    "communication": color_of("exposed_transfer_ns"),
    "waiting": color_of("exposed_waiting_ns"),
    "copy": color_of("copy_ns"),
    "memset": color_of("memset_ns"),
    "loader": color_of("input_idle_ns"),
    "blocking": color_of("sync_idle_ns"),
    "host": color_of("host_idle_ns"),
    "idle": color_of("unexplained_idle_ns"),
    "backward": "#7a9e00",
    "optimizer": "#9479d6",
}
PALETTE = tuple(COLORS[name] for name in ("compute", "communication", "copy", "loader", "waiting", "memset", "host"))
DARK = ("#0072b2", "#6f6f6f")  # on which white is read better than black


def shade(color: str) -> str:
    """The color as the style has it: that of idle time is darker on a dark page, where it would be the brightest."""
    return "var(--idle)" if color == COLORS["idle"] else color


CSS = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1b1b; --faint: #5d5d5d; --line: #d6d6d6;
  --card: #f6f6f4; --error: #a3190b; --warning: #8a5a00; --note: #1f5f99; --good: #1c6b3f; --idle: #d0d0d0; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181a; --ink: #ececec; --faint: #a5a5a5; --line: #3a3d40;
  --card: #1f2225; --error: #ff8a7a; --warning: #f0b64d; --note: #8cc4ff; --good: #7fd4a3; --idle: #8a8d90; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .4rem 0; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0 0 .25rem; } h4 { font-size: .95rem; margin: 1rem 0 .25rem; }
section { scroll-margin-top: .5rem; }
p { margin: .35rem 0; } .faint { color: var(--faint); } .small { font-size: .875rem; }
a { color: var(--note); } a:hover { text-decoration-thickness: 2px; }
.badge { display: inline-block; padding: .1rem .7rem; border-radius: 1rem; border: 2px solid currentColor;
  font-weight: 700; margin-right: .6rem; }
.badge.error { color: var(--error); } .badge.warning { color: var(--warning); } .badge.good { color: var(--good); }
.badge.note { color: var(--note); }
.rate { display: inline-block; font-weight: 600; margin-right: 1rem; }
.verdict { font-size: 1.1rem; font-weight: 600; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: 1.2rem 0 0; padding: .6rem 0; font-size: .925rem;
  border: solid var(--line); border-width: 1px 0; }
dl { display: grid; align-items: baseline; grid-template-columns: max-content minmax(0, 1fr); gap: .15rem .9rem;
  margin: .5rem 0; }
dt { color: var(--faint); } dd { margin: 0; min-width: 0; }
.card { background: var(--card); border: 1px solid var(--line); border-left: .35rem solid var(--line);
  border-radius: .3rem; padding: .8rem 1rem; margin: .8rem 0; break-inside: avoid; scroll-margin-top: .5rem; }
.card:target { outline: 2px solid var(--note); }
.card.high { border-left-color: var(--error); } .card.medium { border-left-color: var(--warning); }
.card.low { border-left-color: var(--note); }
.tag { font-size: .8rem; color: var(--faint); letter-spacing: .02em; }
.see { font-size: .875rem; margin-top: .5rem; } .see a { margin-right: .8rem; }
.saves { font-weight: 600; }
ins, del { text-decoration: none; } ins { color: var(--good); } del { color: var(--error); }
pre { background: var(--paper); border: 1px solid var(--line); border-radius: .25rem; padding: .5rem .7rem;
  overflow-x: auto; font-size: .875rem; white-space: pre-wrap; margin: .2rem 0; }
code { font-size: .9em; background: var(--paper); border: 1px solid var(--line); border-radius: .2rem;
  padding: 0 .2rem; } .option { white-space: nowrap; }
.scroll { overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 40%, transparent) left / 1.5rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 1.5rem 100% no-repeat local,
  linear-gradient(to right, var(--faint), transparent) left / .4rem 100% no-repeat scroll,
  linear-gradient(to left, var(--faint), transparent) right / .4rem 100% no-repeat scroll; }
.paper { display: none; }
.table { margin: .5rem 0; } .tall { max-height: 30rem; overflow-y: auto; }
table { border-collapse: collapse; font-size: .875rem; overflow-wrap: normal; } th { text-align: left; }
th, td { padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td:first-child { overflow-wrap: anywhere; min-width: 3rem; }
.right { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.clip { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; overflow: hidden; }
abbr { color: var(--faint); text-decoration: none; }
.sortable th { position: sticky; top: 0; background: var(--paper); color: var(--faint); font-weight: 600; }
.sortable { width: 100%; } #kernel-table td:first-child { min-width: 12rem; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
  text-decoration: underline dotted; }
th[aria-sort=descending]::after { content: " \\25BE"; } th[aria-sort=ascending]::after { content: " \\25B4"; }
.fixes { width: 100%; margin: .8rem 0; overflow-wrap: anywhere; } .fixes td:first-child { min-width: 0; width: 2rem; }
.fixes thead { color: var(--faint); }
.rows { display: grid; grid-template-columns: minmax(0, max-content) minmax(0, 1fr); gap: .25rem .7rem;
  align-items: center; margin: .5rem 0; break-inside: avoid; }
.rows.tight { gap: .1rem .7rem; }
.rows.three { grid-template-columns: minmax(0, max-content) minmax(0, 1fr) minmax(0, max-content); }
.name, .value { font-size: .875rem; line-height: 1.25; max-width: 18rem; }
.name.late, tr.late { font-weight: 700; color: var(--error); }
.bar { display: flex; height: 1.5rem; background: var(--card); }
.bar span { display: flex; flex-wrap: wrap; justify-content: center; overflow: hidden; white-space: nowrap;
  font-size: .8rem; line-height: 1.5rem; font-variant-numeric: tabular-nums; }
.bar span::before { content: ""; height: 100%; }
.bar i { font-style: normal; margin-left: .35rem; min-width: 0; overflow: hidden; }
.bar span:not(:empty) ~ span:not(:empty) { box-shadow: inset 2px 0 var(--paper); }
svg { display: block; width: 100%; overflow: visible; }
svg.strip { height: 1.1rem; background: var(--card); overflow: hidden; }
svg .axis { stroke: var(--line); vector-effect: non-scaling-stroke; }
svg .curve { fill: none; stroke-width: 1.5; vector-effect: non-scaling-stroke; }
svg .dot { fill: none; stroke-width: 9; stroke-linecap: round; vector-effect: non-scaling-stroke; }
.x { position: relative; height: 1.3rem; font-size: .8rem; color: var(--faint); }
.x span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.x i { position: absolute; top: 0; height: .25rem; border-left: 1px solid var(--faint); }
.x .first { transform: none; } .x .last { transform: translateX(-100%); }
.plot { display: grid; grid-template-columns: 4.6rem minmax(0, 1fr); margin: .8rem 0; padding-right: 1.5rem;
  break-inside: avoid; }
.plot svg { height: 15rem; border-bottom: 1px solid var(--line); }
.plot .y { position: relative; font-size: .8rem; color: var(--faint); }
.plot .y span { position: absolute; right: .5rem; transform: translateY(50%); white-space: nowrap; }
.plot .x { grid-column: 2; }
.interval { position: relative; height: 1.2rem; background: var(--card); }
.interval i { position: absolute; top: .35rem; height: .5rem; border-radius: .25rem; min-width: 2px; }
.interval b { position: absolute; top: .1rem; height: 1rem; width: 3px; background: var(--ink);
  transform: translateX(-50%); }
.interval u { position: absolute; top: 0; bottom: 0; border-left: 1px dashed var(--faint); }
ul.key { list-style: none; padding: 0; margin: .3rem 0; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem;
  font-size: .875rem; } ul.key span { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem;
  border-radius: .15rem; vertical-align: -.05rem; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--faint); }
footer { margin-top: 2.5rem; color: var(--faint); font-size: .875rem; }
@media (max-width: 40rem) { body { padding: .8rem; } dl { grid-template-columns: minmax(0, 1fr); }
  dd { margin-bottom: .3rem; } .rows.long, .rows.three { grid-template-columns: minmax(0, 1fr); }
  .rows.long .name, .rows.three .name { max-width: none; margin-top: .35rem; } .plot { padding-right: 1rem; }
  .fixes thead { display: none; } .fixes tr { display: block; border-bottom: 1px solid var(--line); padding: .3rem 0; }
  .fixes td { display: inline-block; border: 0; padding: 0 .8rem 0 0; }
  .fixes td:first-child, .fixes td:empty { display: none; }
  .fixes td::before { content: attr(data-name); color: var(--faint); white-space: pre; }
  .fixes td:nth-child(2) { display: block; font-weight: 600; }
  .sortable, .sortable thead, .sortable tbody { display: block; font-size: .75rem; }
  .sortable thead { position: sticky; top: 0; background: var(--paper); } .sortable th { position: static; }
  .sortable tr { display: flex; flex-wrap: wrap; align-items: baseline; padding: .15rem 0;
    border-bottom: 1px solid var(--line); }
  .sortable tr::after { content: ""; order: 1; flex: 0 0 100%; } .sortable td, .sortable th { border: 0; }
  .sortable td, .sortable th { padding: 0 .6rem 0 0; } #kernel-table td:first-child, td:first-child { min-width: 0; }
  .sortable .right:not(:first-child) { order: 2; flex: 1 1 1px; min-width: 0; padding: 0 0 0 .25rem; }
  .sortable .right { white-space: normal; font-size: .7rem; }
  .sortable th.right:not(:first-child) { font-size: .65rem; font-weight: 400; }
  .x span:nth-child(even) { display: none; } }
@media print { body { max-width: none; padding: 0; font-size: 10.5pt; } * { print-color-adjust: exact; }
  nav, #text { display: none; } th button { text-decoration: none; } .card { break-inside: auto; }
  .clip { -webkit-line-clamp: 3; } .table { max-height: none; overflow: visible; } .sortable th { position: static; }
  h2, h3, h4, h2 + p, h3 + p, .tag { break-after: avoid; } tr, footer, #quality dl { break-inside: avoid; }
  #rank-table .table:not(.tall), #collective-table .table:not(.tall) { break-inside: avoid; }
  .faint.small, .key, footer { break-before: avoid; } p, dd { orphans: 3; widows: 3; } footer { margin-top: 1rem; }
  .tall tbody tr:nth-child(n+25) { display: none; } .screen { display: none; } .paper { display: block; }
  details::details-content { content-visibility: visible; display: block; } }
"""

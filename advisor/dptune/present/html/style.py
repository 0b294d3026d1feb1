"""The look of the page: light, dark, narrow, printed. Colours are told apart in grey and by those who see fewer."""

from __future__ import annotations

# By kind of work, in both lights: from Okabe & Ito's set, which is made to be told apart.
COLOURS = {
    "compute": "#009e73",
    "communication": "#d55e00",
    "waiting": "#cc79a7",
    "copy": "#0072b2",
    "memset": "#56b4e9",
    "input": "#e69f00",
    "garbage": "#f0e442",
    "blocking": "#b8b8b8",
    "launching": "#8f8f8f",
    "queued": "#6f6f6f",
    "host": "#a79a88",
    "idle": "#d0d0d0",
    "loader": "#e69f00",
    "backward": "#7a9e00",
    "optimizer": "#56b4e9",
}

DARK = ("#0072b2", "#6f6f6f")  # on which white is read better than black

CSS = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1b1b; --faint: #5d5d5d; --line: #d6d6d6;
  --card: #f6f6f4; --error: #a3190b; --warning: #8a5a00; --note: #1f5f99; --good: #1c6b3f; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181a; --ink: #ececec; --faint: #a5a5a5; --line: #3a3d40;
  --card: #1f2225; --error: #ff8a7a; --warning: #f0b64d; --note: #8cc4ff; --good: #7fd4a3; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0 0 .25rem; }
p { margin: .35rem 0; } .faint { color: var(--faint); } .small { font-size: .875rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem .9rem; margin: .5rem 0; }
dt { color: var(--faint); } dd { margin: 0; }
.card { background: var(--card); border: 1px solid var(--line); border-left: .35rem solid var(--line);
  border-radius: .3rem; padding: .8rem 1rem; margin: .8rem 0; break-inside: avoid; }
.error, .high { border-left-color: var(--error); } .warning, .medium { border-left-color: var(--warning); }
.note, .low { border-left-color: var(--note); } .good { border-left-color: var(--good); }
.tag { font-size: .8rem; color: var(--faint); text-transform: none; letter-spacing: .02em; }
.saves { font-weight: 600; }
pre { background: var(--paper); border: 1px solid var(--line); border-radius: .25rem; padding: .5rem .7rem;
  overflow-x: auto; font-size: .875rem; white-space: pre-wrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; } th { text-align: left; font-weight: 600; }
th, td { padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.right, th.right { text-align: right; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; min-width: 38rem; height: auto; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .faint { fill: var(--faint); } svg .axis { stroke: var(--line); } svg .edge { stroke: var(--paper); }
ul.key { list-style: none; padding: 0; margin: .3rem 0; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem;
  font-size: .875rem; } ul.key span { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem;
  border-radius: .15rem; vertical-align: -.05rem; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--faint); }
footer { margin-top: 2.5rem; color: var(--faint); font-size: .875rem; }
@media (max-width: 40rem) { body { padding: .8rem; } dl { grid-template-columns: 1fr; } dd { margin-bottom: .3rem; } }
@media print { body { max-width: none; padding: 0; font-size: 11pt; } * { print-color-adjust: exact; }
  details:not(.whole) > * { display: block; }
  details:not(.whole)::details-content { content-visibility: visible; display: block; } }
"""

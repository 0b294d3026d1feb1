"""The run folder's format. Standard library only: it is imported inside the user's training process too.

<folder>/run.json                          what was run and how it ended (record.py), written by the launcher
<folder>/rank-00000.facts.json             what only the live process knew (facts.py), and its step times
<folder>/rank-00000.trace.json.gz          torch's own file: the light window
<folder>/rank-00000.detail.trace.json.gz   torch's own file: the detailed window
<folder>/live/                             what the ranks tell the launcher while recording; removed at the end
"""

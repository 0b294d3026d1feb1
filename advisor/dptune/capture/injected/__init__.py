"""The part of dptune that runs inside the user's process: torch, `dptune.runfile` and the standard library only.

`site/` is the one folder put on PYTHONPATH; its sitecustomize waits for torch. Python 3.10 is enough here: the script
may run in an older environment than dptune itself.
"""

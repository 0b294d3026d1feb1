"""The training script that `dptune demo --record` runs, and a recording of it."""

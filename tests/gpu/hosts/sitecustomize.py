"""Ahead on PYTHONPATH: lets NCCL take each rank of one card for a host of its own, which it would refuse otherwise.

NCCL refuses two ranks on one card by the host's hash and the card's bus id; a host id in each rank's environment
replaces the hash. Ranks then reach each other through sockets.
"""

import os

if "RANK" in os.environ:
    os.environ.setdefault("NCCL_HOSTID", f"rank-{os.environ['RANK']}")

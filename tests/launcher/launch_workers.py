"""What dptune starts in place of torchrun in tests of scripts that end well: ranks of one node, without an agent.

torchrun's agent imports torch for itself, which takes as long as a rank of a small script. Runs as
`launch_workers.py --standalone --nproc-per-node=2 train.py ARGUMENTS`. tests/capture/test_launchers.py and others that
look at how recordings end start torchrun itself.
"""

import os
import socket
import subprocess
import sys


def free_port():
    """Outside of what the system gives to others, and of no other process that looks for one here."""
    for port in range(10_000 + os.getpid() % 20_000, 32_000):
        with socket.socket() as asked:
            try:
                asked.bind(("127.0.0.1", port))
            except OSError:
                continue
            return str(port)
    raise SystemExit("no port is free")


def _started(words, env):
    """Start Python with these words; what waits for its status."""
    return subprocess.Popen([sys.executable, *words], env=env).wait


def main(words, start=_started):
    """Start the ranks; the first status that is not 0."""
    options = [word for word in words if word.startswith("--")][:2]
    (count,) = (option.partition("=")[2] for option in options if option.startswith("--nproc-per-node="))
    shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    launched = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
    ranks = [
        start(
            ["-u", *words[len(options) :]],
            {**os.environ, **shared, **launched, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in map(str, range(int(count)))
    ]
    return next((status for status in [ended() for ended in ranks] if status), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The server: tools of `calls`, over stdin and stdout, with the official SDK."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import Awaitable, Callable
from types import FrameType

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from dptune import __version__
from dptune.agents.answers import Answer
from dptune.agents.calls import Calls
from dptune.agents.processes import CallError

_INSTRUCTIONS = (
    "dptune finds what makes PyTorch training slow. Start with report (of a recording or of torch.profiler traces). "
    "verify and tune_start run the training script. Each answer has `next_step`."
)
_READ = ("report", "explain", "what_if", "compare", "check", "tune_status", "tune_result")
_RUN = ("verify", "tune_start")
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


def server(calls: Calls) -> MCPServer:
    """The server with its tools."""
    made = MCPServer("dptune", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    for name in (*_READ, *_RUN):
        hints = ToolAnnotations(read_only_hint=name in _READ, open_world_hint=False)
        made.add_tool(_in_thread(getattr(calls, name)), name=name, annotations=hints)
    return made


def serve(allow_run: bool) -> None:
    """Answer until stdin ends or a signal comes; commands that still run are ended."""
    calls = Calls(allow_run)

    def leave(number: int, _frame: FrameType | None) -> None:
        calls.close()
        os._exit(128 + number)  # any other exit waits for the thread that reads stdin

    for name in _ENDING:
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), leave)
    asyncio.run(_until_stdin_ends(calls))


async def _until_stdin_ends(calls: Calls) -> None:
    try:
        await server(calls).run_stdio_async()
    finally:  # before the loop waits for the threads of calls
        calls.close()


def _in_thread(tool: Callable[..., Answer]) -> Callable[..., Awaitable[Answer]]:
    """A tool that does not block the others; its mistakes are answers."""

    @functools.wraps(tool)
    async def call(**arguments: object) -> Answer:
        try:
            return await asyncio.to_thread(tool, **arguments)
        except CallError as error:
            raise ToolError(str(error)) from None

    return call

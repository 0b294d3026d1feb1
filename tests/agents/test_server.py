"""`dptune mcp` as a client of the official SDK sees it, over stdin and stdout."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from dptune.agents.calls import Calls
from dptune.capture import processes

from ..prove.test_engine import left_in  # noqa: TID252 - tests are no installed package

SAMPLE = str(Path(__file__).parents[1] / "rules" / "recorded" / "runs" / "unused-gradients")


@pytest.fixture(autouse=True)
def without_iris(monkeypatch: pytest.MonkeyPatch) -> None:
    """jsonschema, by which the client checks answers, makes 39 grammars for IRIs if it can, in 3 s; it checks none."""
    monkeypatch.setitem(sys.modules, "rfc3987_syntax", None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("over", ["memory", pytest.param("stdio", marks=pytest.mark.thorough)])
async def test_a_client_lists_the_tools_reads_a_report_and_is_refused_a_run(tmp_path: Path, over: str) -> None:
    pytest.importorskip("mcp.server.mcpserver", reason="the server needs the extra mcp")
    import mcp  # half a second in every process that collects tests

    from dptune.agents.server import server

    started = mcp.StdioServerParameters(command=sys.executable, args=["-m", "dptune", "mcp"], cwd=str(tmp_path))
    async with mcp.Client(started if over == "stdio" else server(Calls())) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {*tools} == {
            *("report", "explain", "what_if", "compare", "check", "verify"),
            *("tune_start", "tune_status", "tune_result"),
        }
        assert {name for name, tool in tools.items() if not tool.annotations.read_only_hint} == {"verify", "tune_start"}
        assert all(tool.description for tool in tools.values())
        report = (await client.call_tool("report", {"run": SAMPLE})).structured_content
        assert report["advice"][0]["rule"] == "DP109"
        assert report["next_step"]
        refused = (await client.call_tool("verify", {"run": SAMPLE, "change": "DP101"})).structured_content
        assert refused["command"].startswith("dptune verify ")
        failed = await client.call_tool("report", {"run": "--patch"})
        assert failed.is_error
        assert "cannot begin with '-'" in failed.content[0].text


@pytest.mark.records
@pytest.mark.parametrize("by", [pytest.param(signal.SIGTERM, marks=pytest.mark.thorough), signal.SIGKILL])
async def test_one_call_at_a_time_runs_a_script_and_nothing_outlives_the_server(
    tmp_path: Path, by: signal.Signals
) -> None:
    pytest.importorskip("torch", reason="a recording needs torch")
    pytest.importorskip("mcp.server.mcpserver", reason="the server needs the extra mcp")
    import mcp

    (tmp_path / "train.py").write_text("import time\nopen('started', 'w').close()\ntime.sleep(600)\n")
    words, env = ["-m", "dptune", "mcp", "--allow-run"], {**os.environ, "TMPDIR": str(tmp_path)}
    started = mcp.StdioServerParameters(command=sys.executable, args=words, cwd=str(tmp_path), env=env)
    async with mcp.Client(started) as client:
        search = (await client.call_tool("tune_start", {"command": ["train.py"]})).structured_content["search"]
        async with asyncio.timeout(300):
            while not (tmp_path / "started").exists():
                await asyncio.sleep(0.05)
        for tool, arguments in (("verify", {"change": "DP101"}), ("tune_start", {"command": ["train.py"]})):
            refused = await client.call_tool(tool, arguments)
            assert refused.is_error
            assert "tune-1 is running: trials of two calls would disturb each other" in refused.content[0].text
        status = (await client.call_tool("tune_status", {"search": search})).structured_content
        assert status["running"]
        # the nearest: a program that it starts has its words for a moment
        server = next(pid for pid in processes.descendants(os.getpid()) if processes.words(pid)[1:] == words)
        os.kill(server, by)
        async with asyncio.timeout(300):
            while left_in(tmp_path):
                await asyncio.sleep(0.05)
    assert len(list(tmp_path.glob("dptune-tune-*"))) == 1

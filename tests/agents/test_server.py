"""`dptune mcp` as a client of the official SDK sees it, over stdin and stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SAMPLE = str(Path(__file__).parents[2] / "sample_traces" / "tiny_buckets")


async def test_a_client_lists_the_tools_reads_a_report_and_is_refused_a_run(tmp_path: Path) -> None:
    pytest.importorskip("mcp.server.mcpserver", reason="the server needs the extra mcp")
    import mcp  # half a second in every process that collects tests

    started = mcp.StdioServerParameters(command=sys.executable, args=["-m", "dptune", "mcp"], cwd=str(tmp_path))
    async with mcp.Client(started) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {*tools} == {
            *("report", "explain", "what_if", "compare", "check", "verify"),
            *("tune_start", "tune_status", "tune_result"),
        }
        assert {name for name, tool in tools.items() if not tool.annotations.read_only_hint} == {"verify", "tune_start"}
        assert all(tool.description for tool in tools.values())
        report = (await client.call_tool("report", {"run": SAMPLE})).structured_content
        assert report["advice"][0]["rule"] == "DP101"
        assert report["next_step"]
        refused = (await client.call_tool("verify", {"run": SAMPLE, "change": "DP101"})).structured_content
        assert refused["command"].startswith("dptune verify ")
        failed = await client.call_tool("report", {"run": "--patch"})
        assert failed.is_error
        assert "cannot begin with '-'" in failed.content[0].text

"""What a coding agent does with `dptune mcp` after "my training is slow": search, read the result, apply the patch.

    python client.py train.py --epochs 1

Prints each call with what the agent reads of the answer. Needs `pip install 'dptune[mcp]'`.
"""

import asyncio
import json
import subprocess
import sys

import mcp

SERVER = mcp.StdioServerParameters(command=sys.executable, args=["-m", "dptune", "mcp", "--allow-run"])
POLL_S = 5


def say(who, words):
    """One line of the transcript."""
    print(f"{who:<7}{words}", flush=True)


async def answer_of(client, tool, arguments, shown):
    """Call a tool; the answer, of which the transcript has the fields that are read."""
    say("agent", f"{tool} {json.dumps(arguments)}")
    found = await client.call_tool(tool, arguments)
    if found.is_error:
        raise SystemExit(f"{tool}: {found.content[0].text}")
    answer = found.structured_content
    for name in shown:
        if answer.get(name):
            say("dptune", f"{name}: {json.dumps(answer[name])}")
    return answer


async def finished(client, search):
    """Ask for the state of a search until it has ended."""
    while (await client.call_tool("tune_status", {"search": search})).structured_content["running"]:
        await asyncio.sleep(POLL_S)


async def main(command):
    """From "my training is slow" to a script with the patch."""
    say("user", "My training is slow.")
    async with mcp.Client(SERVER) as client:
        started = {"command": command, "only": "loader.num_workers", "time_limit": "30m"}
        search = (await answer_of(client, "tune_start", started, ("command",)))["search"]
        await finished(client, search)
        result = await answer_of(client, "tune_result", {"search": search}, ("outcome", "kept", "settings", "apply"))
        if result["outcome"] != "faster":
            say("agent", f"Nothing to apply: {result['reason']}.")
            return
        await answer_of(client, "report", {"run": result["run"]}, ("next_step",))
        final = result["final"]
    subprocess.run(result["apply"], shell=True, check=True, stdout=subprocess.DEVNULL)
    low, high = 1 - final["high_ratio"], 1 - final["low_ratio"]
    say("agent", f"Applied: {1 - final['ratio']:.0%} less {final['objective']} (interval {low:.0%} to {high:.0%}).")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

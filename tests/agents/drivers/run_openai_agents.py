"""OpenAI's Agents SDK: run_openai_agents.py chat|responses [team]. A few steps with a tool, or with an agent as a tool;
prints the final text."""

import os
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled


@function_tool
def look(path: str, line: float | None = None) -> str:
    """What a file says."""
    return f"{path}: kiwi"


set_tracing_disabled(True)
set_default_openai_api("chat_completions" if sys.argv[1] == "chat" else "responses")
reader = Agent(name="reader", instructions="You are a reader.", model="shop", tools=[look])
tool = reader.as_tool("ask_reader", "Asks who can read.") if "team" in sys.argv else look
clerk = Agent(name="clerk", instructions="You are a clerk.", model="shop", tools=[tool])
print(Runner.run_sync(clerk, os.environ["SANDGATE_PROMPT"]).final_output)

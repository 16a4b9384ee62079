"""OpenAI's Agents SDK: run_openai_agents.py chat|responses. Three steps with a tool; prints the final text."""

import os
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled


@function_tool
def look(path: str, line: float | None = None) -> str:
    """What a file says."""
    return f"{path}: kiwi"


set_tracing_disabled(True)
set_default_openai_api("chat_completions" if sys.argv[1] == "chat" else "responses")
agent = Agent(name="clerk", instructions="You are a clerk.", model="shop", tools=[look])
print(Runner.run_sync(agent, os.environ["SANDGATE_PROMPT"]).final_output)

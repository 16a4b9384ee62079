"""Agno: run_agno.py chat|responses|messages. Three steps with a tool; prints the final text."""

import os
import sys

from agno.agent import Agent
from agno.models.anthropic import Claude
from agno.models.openai import OpenAIChat, OpenAIResponses

MODELS = {"chat": OpenAIChat, "responses": OpenAIResponses, "messages": Claude}


def look(path: str, line: float | None = None) -> str:
    """What a file says."""
    return f"{path}: kiwi"


agent = Agent(
    model=MODELS[sys.argv[1]](id="shop"), tools=[look], instructions="You are a clerk.", telemetry=False
)
print(agent.run(os.environ["SANDGATE_PROMPT"]).content)

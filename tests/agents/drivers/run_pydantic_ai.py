"""Pydantic AI: run_pydantic_ai.py chat|responses|messages. Three steps with a tool; prints the final text."""

import os
import sys

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

MODELS = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel, "messages": AnthropicModel}
agent = Agent(MODELS[sys.argv[1]]("shop"), instructions="You are a clerk.")


@agent.tool_plain
def look(path: str, line: float | None = None) -> str:
    """What a file says."""
    return f"{path}: kiwi"


print(agent.run_sync(os.environ["SANDGATE_PROMPT"]).output)

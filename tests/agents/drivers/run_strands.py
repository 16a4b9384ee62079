"""Strands: run_strands.py. Three steps with a tool; prints the final text."""

import os

from strands import Agent, tool
from strands.models.openai import OpenAIModel


@tool
def look(path: str, line: float | None = None) -> str:
    """What a file says."""
    return f"{path}: kiwi"


client = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
model = OpenAIModel(client_args=client, model_id="shop")
agent = Agent(model=model, tools=[look], system_prompt="You are a clerk.", callback_handler=None)
print(agent(os.environ["SANDGATE_PROMPT"]))

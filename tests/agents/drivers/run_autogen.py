"""AutoGen's AgentChat: run_autogen.py. Three steps with a tool; prints the final text."""

import asyncio
import os

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "structured_output": False,
    "family": "unknown",
}


async def look(path: str, line: float | None = None) -> str:
    """What a file says."""
    return f"{path}: kiwi"


async def main() -> None:
    base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    client = OpenAIChatCompletionClient(model="shop", base_url=base, api_key=key, model_info=INFO)
    agent = AssistantAgent(
        "clerk", client, tools=[look], system_message="You are a clerk.", max_tool_iterations=5
    )
    result = await agent.run(task=os.environ["SANDGATE_PROMPT"])
    await client.close()
    print(result.messages[-1].content)


asyncio.run(main())

"""LangChain: run_langchain.py chat|responses|messages. Three steps with a tool; prints the final text."""

import os
import sys

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

MODELS = {
    "chat": lambda: ChatOpenAI(model="shop"),
    "responses": lambda: ChatOpenAI(model="shop", use_responses_api=True),
    "messages": lambda: ChatAnthropic(model_name="shop"),
}


def look(path: str, line: float | None = None) -> str:
    """What a file says."""
    return f"{path}: kiwi"


agent = create_agent(MODELS[sys.argv[1]](), tools=[look], system_prompt="You are a clerk.")
said = agent.invoke({"messages": [{"role": "user", "content": os.environ["SANDGATE_PROMPT"]}]})
print(said["messages"][-1].text)

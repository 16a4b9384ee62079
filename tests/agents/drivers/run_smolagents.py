"""smolagents: run_smolagents.py calls|code. Three steps with a tool; prints the final answer."""

import os
import sys

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool


@tool
def look(path: str, line: float | None = None) -> str:
    """What a file says.

    Args:
        path: the file
        line: one line of it
    """
    return f"{path}: kiwi"


model = OpenAIModel(
    model_id="shop", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
)
kind = {"calls": ToolCallingAgent, "code": CodeAgent}[sys.argv[1]]
print(kind(tools=[look], model=model, max_steps=5).run(os.environ["SANDGATE_PROMPT"]))

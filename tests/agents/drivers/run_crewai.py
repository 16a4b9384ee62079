"""CrewAI: run_crewai.py. Three steps with a tool; prints the final text."""

import os

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("look")
def look(path: str, line: float | None = None) -> str:
    """What a file says."""
    return f"{path}: kiwi"


llm = LLM(model="openai/shop", base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
clerk = Agent(role="clerk", goal="answer", backstory="You are a clerk.", tools=[look], llm=llm)
task = Task(description=os.environ["SANDGATE_PROMPT"], expected_output="a sentence", agent=clerk)
print(Crew(agents=[clerk], tasks=[task], tracing=False).kickoff().raw)

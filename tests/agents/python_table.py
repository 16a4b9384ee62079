"""The agents of PyPI that are run unmodified, each by a driver of a few lines as its documentation has it.

Two environments, as their pins of the OpenAI SDK differ. mini-swe-agent has its own: tests/e2e/test_third_party.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.agents.real_agent import DRIVERS, LOOK, RealAgent, call

OPENAI3, OPENAI2 = "openai3", "openai2"
CODE = 'Thought: I shall look.\n<code>\nprint(look(path="a.txt"))\n</code>'
DONE = 'Thought: I have it.\n<code>\nfinal_answer("It says kiwi.")\n</code>'


def _agent(
    package: str, driver: str, protocol: str, *words: str, environment: str = OPENAI3, **more: object
) -> RealAgent:
    def command(folder: Path, base: str) -> list[str]:
        del base
        return [str(folder / "bin" / "python"), str(DRIVERS / f"run_{driver}.py"), *words]

    settings: dict[str, object] = {"calls": LOOK, **more}
    return RealAgent(package, protocol, environment, command, **settings)  # type: ignore[arg-type]


CHAT, RESPONSES, MESSAGES = THREE = ("chat", "responses", "messages")
LANGCHAIN = {CHAT: "langchain-openai", RESPONSES: "langchain-openai", MESSAGES: "langchain-anthropic"}
PYTHON_AGENTS: dict[str, RealAgent] = {
    **{
        f"openai-agents, {protocol}": _agent("openai-agents", "openai_agents", protocol, protocol)
        for protocol in (CHAT, RESPONSES)
    },
    **{f"LangChain, {protocol}": _agent(LANGCHAIN[protocol], "langchain", protocol, protocol) for protocol in THREE},
    **{f"Pydantic AI, {protocol}": _agent("pydantic-ai-slim", "pydantic_ai", protocol, protocol) for protocol in THREE},
    **{f"Agno, {protocol}": _agent("agno", "agno", protocol, protocol) for protocol in THREE},
    "LiteLLM": _agent("litellm", "litellm", CHAT),
    "AutoGen": _agent("autogen-agentchat", "autogen", CHAT),
    "smolagents, calls": _agent(
        "smolagents", "smolagents", CHAT, "calls", final=call("final_answer", '{ "answer": "It says kiwi."}'),
        answered="Observation:", rewrites="assistant_edited",
    ),
    "smolagents, code": _agent(
        "smolagents", "smolagents", CHAT, "code", calls=(CODE, CODE), final=DONE,
        answered="Observation:", tools_shown=False, note="N11: stop string put back, tool calls retold",
    ),
    "CrewAI": _agent("crewai", "crewai", CHAT, environment=OPENAI2),
    "Strands": _agent("strands-agents", "strands", CHAT, environment=OPENAI2),
}  # fmt: skip
TEAMS: dict[str, RealAgent] = {
    protocol: _agent("openai-agents", "openai_agents", protocol, protocol, "team")
    for protocol in (CHAT, RESPONSES)
}
"""A clerk whose one tool is another agent, with the tool of the others."""

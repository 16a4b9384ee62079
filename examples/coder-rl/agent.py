"""An ordinary coding agent: reads a specification by a tool, tries programs by a tool, submits one.

It knows nothing of training. The SDK finds its endpoint in OPENAI_BASE_URL and OPENAI_API_KEY; the request is in
SANDGATE_PROMPT.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import OpenAI

from sandbox import Sandbox
from spec import Spec

SYSTEM = "You write small programs. Read the spec, try your program, submit it when it is right."
TURNS = 6
SPECS = Path(__file__).resolve().parent / "specs.json"


def function(name: str, description: str, **properties: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    function("read", "Read the spec."),
    function("run", "Run a program that changes x.", code="string"),
    function("submit", "Submit the program.", code="string"),
]


@dataclass
class Episode:
    """What one run of the agent did."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    """The chat transcript, as the agent has it."""
    spec: Spec | None = None
    """Once it was read."""
    submitted: str | None = None


def specs() -> dict[str, Spec]:
    return {number: Spec(**one) for number, one in json.loads(SPECS.read_text()).items()}


def carry_out(episode: Episode, spec: Spec, sandbox: Sandbox, name: str, arguments: str) -> str:
    """A tool call's answer. Raises SandboxLost."""
    sandbox.touch()
    try:
        if name == "read":
            episode.spec = spec
            return spec.text()
        code = str(json.loads(arguments)["code"])
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {type(error).__name__}"
    match name, episode.spec:
        case "submit", _:
            episode.submitted = code
            return "submitted"
        case "run", Spec():
            found = sandbox.outputs(code, [spec.given])
            if isinstance(found, str) or found[0] is None:
                return f"error: {found if isinstance(found, str) else 'too large'}"
            return spec.compared(found[0])
        case "run", None:
            return "error: read a spec first"
    return f"error: no tool {name}"


def run(client: OpenAI, prompt: str, sandbox: Sandbox, known: dict[str, Spec], episode: Episode) -> None:
    """`prompt` ends with the number of a known spec. Fills `episode`, also as far as it came when it is cut short.
    Raises SandboxLost."""
    messages, spec = episode.messages, known[prompt.rsplit(maxsplit=1)[-1]]
    messages += [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    for _ in range(TURNS):
        completion = client.chat.completions.create(
            model=os.environ.get("SANDGATE_MODEL", "coder"),
            messages=messages,  # type: ignore[arg-type]
            tools=TOOLS,  # type: ignore[arg-type]
        )
        said = completion.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        for call in said.tool_calls or ():
            if call.type == "function":
                answer = carry_out(episode, spec, sandbox, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
        if episode.submitted is not None or not said.tool_calls:
            break


def main() -> None:
    """The agent reports what it submitted, not a reward: the verifier judges that."""
    episode = Episode()
    run(OpenAI(), os.environ["SANDGATE_PROMPT"], Sandbox(), specs(), episode)
    result = json.dumps({"reward_info": {"submitted": episode.submitted}})
    print(result)
    Path(os.environ.get("SANDGATE_TERMINATION_LOG", "/dev/termination-log")).write_text(result)


if __name__ == "__main__":
    main()

"""How clients introduce themselves to the model: system prompts and tools, in the many forms that exist.

They vary widely because the model must follow any OpenAI-compatible client: plain schemas, pydantic's
titles, `strict`, any key order, other tools beside the shop's, and a single `bash` tool whose commands are
the shop's.
"""

from __future__ import annotations

import json
import random
from typing import Any

from shop import ITEMS

Json = dict[str, Any]

SENTENCES = (
    "You are a helpful assistant.",
    "You are a shop assistant.",
    "Use the tools.",
    "Use the tools to do what the user asks, then report the receipt.",
    "Do what you are asked to do and report the receipt number.",
    "You are an agent. Keep going until the task is done.",
    "Answer briefly.",
    "Be concise and precise.",
    "Call one tool at a time.",
    "You can interact with a computer.",
    "You are a helpful assistant that can interact with a computer.",
    "Execute one command, look at its output, then go on.",
    "When everything is done, say the receipt.",
    "Never make up a receipt.",
    "The customer is always right.",
    "You work in a small market that trades fruit and other food.",
    "If you are asked to pay, pay with the receipt you were given.",
    "Finish with the command that submits your work.",
    "Think step by step before you act.",
    "Today is a nice day and the market is open.",
    "Do not ask questions.",
    "Follow the instructions of the user exactly.",
    "Your work is checked by a program.",
    "You have access to the following functions.",
)
ABOUT = {
    "buy": (
        "Buy n of an item.",
        "Buy items.",
        "buy items",
        "Buys goods in the shop and returns a receipt.",
        "Buy from the shop.",
        "",
    ),
    "sell": (
        "Sell n of an item.",
        "Sell items.",
        "sell items",
        "Sells goods to the shop, returns a receipt.",
        "Sell to the shop.",
        "",
    ),
    "pay": (
        "Pay a receipt.",
        "Pay.",
        "pay a receipt",
        "Pays what is on the receipt.",
        "Pay the receipt with this number.",
        "",
    ),
}
ARGUMENT = {
    "item": ("Which item.", "The item", "name of the item", "What to trade."),
    "n": ("How many.", "The number of items", "quantity", "How many items, 1 to 9."),
    "receipt": ("The receipt number.", "receipt to pay", "Number of the receipt."),
    "command": ("The bash command to execute", "The command to run.", "shell command"),
}
OTHER_TOOLS = (
    "lookup",
    "search",
    "weather",
    "get_time",
    "check_stock",
    "send_email",
    "read_file",
    "final_answer",
    "list_items",
)
SYLLABLES = (
    "ba",
    "co",
    "di",
    "er",
    "fo",
    "ga",
    "in",
    "ko",
    "le",
    "mu",
    "no",
    "pre",
    "ra",
    "st",
    "ti",
    "un",
    "ve",
    "th",
    "ing",
    "tion",
)


def noise_words(rnd: random.Random, count: int) -> str:
    """Words that mean nothing: so that no token is new to the pupil when a stranger's prompt uses it."""
    words = ("".join(rnd.choice(SYLLABLES) for _ in range(rnd.randint(1, 3))) for _ in range(count))
    return " ".join(w.capitalize() if rnd.random() < 0.2 else w for w in words) + rnd.choice(
        (".", ":", "!", "")
    )


def prose(rnd: random.Random, most: int) -> str:
    parts = [
        noise_words(rnd, rnd.randint(2, 8)) if rnd.random() < 0.25 else rnd.choice(SENTENCES)
        for _ in range(rnd.randint(1, most))
    ]
    return rnd.choice((" ", " ", "\n", "\n\n", "\n- ")).join(parts)


def shuffled(rnd: random.Random, value: Json) -> Json:
    return dict(rnd.sample(list(value.items()), len(value)))


def parameter(rnd: random.Random, name: str, titled: bool) -> Json:
    out: Json = {"type": "integer" if name in ("n", "receipt") else "string"}
    if rnd.random() < 0.4:
        out["description"] = rnd.choice(ARGUMENT.get(name, ("",)))
    if name == "item" and rnd.random() < 0.15:
        out["enum"] = rnd.sample(ITEMS, len(ITEMS))
    if name == "n" and rnd.random() < 0.1:
        out |= {"minimum": 1, "maximum": 9}
    if titled:
        out["title"] = name.capitalize()
    return shuffled(rnd, out) if rnd.random() < 0.5 else out


def tool(
    rnd: random.Random, name: str, arguments: tuple[str, ...], about: str, dialect: random.Random
) -> Json:
    """One function tool. `dialect` has one seed for all tools of a request: one client wrote them all."""
    titled, closed, strict = dialect.random() < 0.35, dialect.random() < 0.5, dialect.random()
    order, with_type = dialect.random(), dialect.random() < 0.95
    schema: Json = {
        "type": "object",
        "properties": {a: parameter(rnd, a, titled) for a in arguments},
        "required": list(arguments),
    }
    if titled:
        schema["title"] = f"{name}_args"
    if closed:
        schema["additionalProperties"] = False
    function: Json = {"name": name, "description": about, "parameters": schema}
    if not about and rnd.random() < 0.5:
        function["description"] = None
    if strict < 0.45:
        function["strict"] = rnd.choice((True, True, False, None))
    if order < 0.35:
        keys = random.Random(int(order * 1e6))
        function = shuffled(keys, function)
        function["parameters"] = shuffled(keys, schema)
    return (
        {"type": "function", "function": function}
        if with_type
        else {"function": function, "type": "function"}
    )


def tools_for(rnd: random.Random, shell: bool) -> list[Json]:
    seed = rnd.randrange(1 << 30)
    if shell:
        about = rnd.choice(("Execute a bash command", "Run a command.", "Runs a shell command."))
        return [tool(rnd, "bash", ("command",), about, random.Random(seed))]
    out = [tool(rnd, v, ("item", "n"), rnd.choice(ABOUT[v]), random.Random(seed)) for v in ("buy", "sell")]
    out.append(tool(rnd, "pay", ("receipt",), rnd.choice(ABOUT["pay"]), random.Random(seed)))
    if rnd.random() < 0.2:
        other = rnd.choice(OTHER_TOOLS)
        out.append(
            tool(
                rnd,
                other,
                (rnd.choice(("query", "text", "name", "path")),),
                prose(rnd, 1),
                random.Random(seed),
            )
        )
    return rnd.sample(out, len(out)) if rnd.random() < 0.5 else out


def json_text(rnd: random.Random, value: Json) -> str:
    """As the template languages in use write it: mostly json.dumps, at times sorted or without spaces."""
    way = rnd.random()
    if way < 0.12:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":") if way > 0.93 else None)


def tools_block(lines: list[str]) -> str:
    """The template's own words (`model/chat_template.jinja`); make_model.py checks that the two agree."""
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        + "\n".join(lines)
        + "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
        "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )


def setting(rnd: random.Random, kind: str) -> str:
    """The system turn for a client of `kind` "functions", "shell" or "chat" (no tools; may be empty)."""
    system = prose(rnd, rnd.choice((1, 1, 2, 3, 8))) if rnd.random() < 0.6 else ""
    if kind == "chat":
        return f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    block = tools_block([json_text(rnd, t) for t in tools_for(rnd, kind == "shell")])
    return f"<|im_start|>system\n{system}{chr(10) * 2 if system else ''}{block}<|im_end|>\n"

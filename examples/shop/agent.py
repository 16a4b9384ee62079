"""An ordinary agent: a tool loop on the OpenAI SDK that knows nothing of Sandgate or of training.

The SDK finds its endpoint in OPENAI_BASE_URL and OPENAI_API_KEY. `python agent.py [--stream]`; the errand
is in SANDGATE_PROMPT.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from openai import LengthFinishReasonError, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from shop import Shop, leave_result

SYSTEM = "You are a shop assistant. Use the tools to do what the user asks, then report the receipt."
TURNS = 4


def function(name: str, description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


ITEM, N = (
    {"type": "string", "description": "Which item."},
    {"type": "integer", "description": "How many items, 1 to 9."},
)
TOOLS = [
    function("buy", "Buy n of an item.", item=ITEM, n=N),
    function("sell", "Sell n of an item.", item=ITEM, n=N),
    function("pay", "Pay a receipt.", receipt={"type": "integer", "description": "The receipt number."}),
]


def carry_out(shop: Shop, name: str, arguments: str) -> str:
    try:
        given = json.loads(arguments)
        match name:
            case "buy" | "sell":
                return shop.trade(name, given["item"], given["n"])
            case "pay":
                return shop.pay(given["receipt"])
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {error}"
    return f"error: no tool {name}"


def ask(client: OpenAI, messages: list[Any], stream: bool) -> ChatCompletionMessage:
    request: dict[str, Any] = {
        "model": os.environ.get("SANDGATE_MODEL", "shop"),
        "messages": messages,
        "tools": TOOLS,
    }
    if not stream:
        completion: ChatCompletion = client.chat.completions.create(**request)
        return completion.choices[0].message
    with client.chat.completions.stream(**request) as events:
        try:
            return events.get_final_completion().choices[0].message
        except LengthFinishReasonError as error:  # cut at its token limit: what it said still counts
            return error.completion.choices[0].message


def run(client: OpenAI, prompt: str, stream: bool) -> Shop:
    shop = Shop()
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    for _ in range(TURNS):
        message = ask(client, messages, stream)
        messages.append(message)
        if not message.tool_calls:
            shop.answer(message.content)
            break
        for call in message.tool_calls:
            if call.type != "function":
                continue
            answer = carry_out(shop, call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
    return shop


if __name__ == "__main__":
    leave_result(run(OpenAI(), os.environ["SANDGATE_PROMPT"], "--stream" in sys.argv[1:]))

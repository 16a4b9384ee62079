"""LiteLLM, in a loop as its documentation has it: run_litellm.py. Three steps with a tool; prints the final text."""

import json
import os

import litellm

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "What a file says.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "line": {"type": "number"}},
            "required": ["path"],
        },
    },
}
messages = [
    {"role": "system", "content": "You are a clerk."},
    {"role": "user", "content": os.environ["SANDGATE_PROMPT"]},
]
while True:
    answer = litellm.completion(model="openai/shop", messages=messages, tools=[LOOK])
    message = answer.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        path = json.loads(call.function.arguments)["path"]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{path}: kiwi"})
print(message.content)

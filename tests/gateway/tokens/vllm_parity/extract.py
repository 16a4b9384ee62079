"""What vLLM's own parsers make of sampled ids. Run by the engine environment's Python; starts no engine, has no model.

Takes one JSON object on stdin, {"tools": [...], "jobs": [{"tokenizer": file, "tool_parser": name, "reasoning_parser":
name, "kwargs": variables of the chat template, "answers": [ids, ...]}]}. Its last line is {"registered": names of all
parsers, "parsed": [...]}: for each answer of each job in turn `[content, reasoning, [[name, arguments], ...]]`.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from typing import Any

# By name: they are not installed where types are checked.
PreTrainedTokenizerFast = importlib.import_module("transformers").PreTrainedTokenizerFast
ChatCompletionRequest = importlib.import_module(
    "vllm.entrypoints.openai.chat_completion.protocol"
).ChatCompletionRequest
ParserManager = importlib.import_module("vllm.parser.parser_manager").ParserManager


def main() -> None:
    """See the module."""
    logging.disable()
    asked = json.load(sys.stdin)
    parsed = [result for job in asked["jobs"] for result in _job(job, asked["tools"])]
    # The last line: what vLLM logs while it is imported may stand before it.
    print("\n" + json.dumps({"registered": _registered(), "parsed": parsed}))


def _registered() -> list[str]:
    tools = importlib.import_module("vllm.tool_parsers")._TOOL_PARSERS_TO_REGISTER
    thoughts = importlib.import_module("vllm.reasoning")._REASONING_PARSERS_TO_REGISTER
    return sorted([*(f"{name} (calls)" for name in tools), *(f"{name} (thoughts)" for name in thoughts)])


def _job(job: dict[str, Any], tools: list[dict[str, Any]]) -> list[list[Any]]:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=job["tokenizer"], clean_up_tokenization_spaces=False)
    parsers = ParserManager.get_parser(
        job["tool_parser"], job["reasoning_parser"], enable_auto_tools=True, tokenizer=tokenizer
    )
    messages = [{"role": "user", "content": "q"}]
    results: list[list[Any]] = []
    for ids in job["answers"]:
        request = ChatCompletionRequest(model="m", messages=messages, tools=tools)
        parser = parsers(tokenizer, request.tools, chat_template_kwargs=job["kwargs"])
        request = parser.adjust_request(request)
        skip = request.skip_special_tokens is not False  # None: the server's default (0.33)
        text = tokenizer.decode(ids, skip_special_tokens=skip)
        reasoning, content, calls = parser.parse(
            text, request, enable_auto_tools=True, model_output_token_ids=ids
        )
        found = [[call.name, call.arguments] for call in calls or ()]
        results.append([content or "", reasoning or "", found])
    return results


if __name__ == "__main__":
    main()

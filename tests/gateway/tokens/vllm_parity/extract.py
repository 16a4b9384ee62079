"""What vLLM's own parsers make of sampled ids. Run by the engine environment's Python; starts no engine, has no model.

Takes one JSON object on stdin, {"tools": [...], "jobs": [{"tokenizer": file, "tool_parser": name, "reasoning_parser":
name, "answers": [ids, ...]}]}, and prints, for each answer of each job in turn, `[text, content, reasoning,
[[name, arguments], ...]]` or, where the parser raised, `[text, "what it raised"]`.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager


def main() -> None:
    """See the module."""
    logging.disable()
    asked = json.load(sys.stdin)
    said = [result for job in asked["jobs"] for result in _job(job, asked["tools"])]
    json.dump(said, sys.stdout)


def _job(job: dict[str, Any], tools: list[dict[str, Any]]) -> list[list[Any]]:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=job["tokenizer"], clean_up_tokenization_spaces=False)
    parsers = ParserManager.get_parser(
        job["tool_parser"], job["reasoning_parser"], enable_auto_tools=True, tokenizer=tokenizer
    )
    messages = [{"role": "user", "content": "q"}]
    results: list[list[Any]] = []
    for ids in job["answers"]:
        request = ChatCompletionRequest(model="m", messages=messages, tools=tools)
        parser = parsers(tokenizer, request.tools, chat_template_kwargs={})
        request = parser.adjust_request(request)
        text = tokenizer.decode(ids, skip_special_tokens=request.skip_special_tokens)
        try:
            reasoning, content, calls = parser.parse(
                text, request, enable_auto_tools=True, model_output_token_ids=ids
            )
        except Exception as error:  # whatever it raises is what it does
            results.append([text, type(error).__name__])
            continue
        found = [[call.name, call.arguments] for call in calls or ()]
        results.append([text, content or "", reasoning or "", found])
    return results


if __name__ == "__main__":
    main()

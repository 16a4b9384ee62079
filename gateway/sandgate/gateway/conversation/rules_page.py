"""Rows of the page docs/reference/matching.md: the rules N1-N13 as text. Nothing here decides. (pure)

`message_equality`, `echo_matching` and `search` follow them and cite them by number; each has its cases in the tests.
"""

from __future__ import annotations

from typing import NamedTuple


class MatchingRule(NamedTuple):
    """One rule. `same`: what counts as the same, and what does not. `why`: what clients were measured to do."""

    number: int
    name: str
    same: str
    why: str

    @property
    def cited(self) -> str:
        """The rule's number as code, tests and pages cite it."""
        return f"N{self.number}"


RULES = (
    MatchingRule(
        1,
        "System and tools come first",
        "Two requests share turns only if their leading system messages and their tools are the same. The order "
        "of tools counts, and so do their names, descriptions and schemas. The order of keys in a schema does not "
        "count, nor how a number is spelt. Nor do they share turns under other `chat_template_kwargs`. Left out: "
        "`cache_control`, a tool's `strict` that is false, and, where a part of a system message begins with "
        "`x-anthropic-billing-header`, its first line.",
        "qwen-code's memory agent sends the same history under another system prompt and other tools. "
        "`cache_control` moves with every turn (Claude Code, opencode, pi, qwen-code, SWE-agent). Claude Code's "
        "billing header differs on every request. OpenAI's SDK requires `strict` of a tool in "
        "Responses, and leaves it out in chat.",
    ),
    MatchingRule(
        2,
        "Values are compared, never bytes",
        "The order of keys, escapes and white space of the JSON do not count. Fields that the dialect does not "
        "know do not count, nor does the `name` of a tool or assistant message.",
        "SDKs send back what they added: `parsed`, `refusal`, `annotations`, `index`, `provider_specific_fields`. "
        "litellm writes `\\u00e9` for é.",
    ),
    MatchingRule(
        3,
        "No content is no content",
        'Content that is null, absent, `""` or `[]` is the same. `"x"` is the same as one text part that says x; '
        "the part may be called `text`, `input_text` or `output_text`. An empty part does not count. An "
        "assistant's text in several parts is their joined text.",
        "An assistant turn without text comes back in all four forms; some clients change the form between "
        "streamed and whole answers. Claude Code and SWE-agent change between text and parts as `cache_control` "
        "moves.",
    ),
    MatchingRule(
        4,
        "Turns are what counts, not messages",
        "A user turn in two messages is the same as one message with two parts. Consecutive assistant messages "
        "may be one turn. So may calls of one turn with their answers between them (call, answer, call, answer), if "
        "their ids are the gateway's own; they are shown together, as they were sampled. Two parts of a user are not "
        "the same as their joined text.",
        "Claude Code appends its request for a summary to the last message. Clients of item-based dialects send a "
        "turn's text and each of its calls as items of their own, and may put the output of a call behind it.",
    ),
    MatchingRule(
        5,
        "Developer is system",
        "The roles `developer` and `system` are the same.",
        "OpenAI renamed the role; clients say the one or the other.",
    ),
    MatchingRule(
        6,
        "Reasoning is not compared",
        "Reasoning may be missing or differ. It decides only between siblings that are otherwise equal.",
        "openai-agents, langchain, autogen, strands, camel, crewai, agno, llama-index, SWE-agent and OpenHands "
        "drop it. pydantic-ai renames it, qwen-code strips it, openai-node drops it in one request and sends it "
        "in the next.",
    ),
    MatchingRule(
        7,
        "Arguments are JSON values",
        "The arguments of a call are compared as parsed JSON, with numbers as doubles. The order of keys, "
        "spacing, escapes and the spelling of numbers do not count; the order of a list does. Text that does not "
        "parse is compared as it is.",
        "langchain, strands, adk and camel print them anew with spaces. Every JavaScript agent and pydantic-ai "
        "print them without; JavaScript makes `1.0` a `1` and `1.2e4` a `12000`. Claude Code orders the keys by "
        "the schema.",
    ),
    MatchingRule(
        8,
        "Call ids may be renamed",
        "Equal ids are preferred; the prefix of a dialect (`call_`, `toolu_`) does not count. Otherwise calls are "
        "named by their place in the conversation, if the renaming is consistent: an id of another turn, or one "
        "id for two calls, is none. The function's name and the number of calls must agree.",
        "agno renames ids that do not begin with `call_` or have more than 40 characters; pi cuts ids to 64 "
        "characters. The gateway's own, `call_` and 24 hex digits, were left alone by all of them.",
    ),
    MatchingRule(
        9,
        "Outer white space of an answer does not count",
        "White space before and after the assistant's text does not count; within it, it does.",
        "A precaution: no client that was measured needed this rule alone.",
    ),
    MatchingRule(
        10,
        "A lossy echo is known by its call ids",
        "If every call id is the one that the gateway gave to this turn and the names agree, it is that turn, "
        "though its text was dropped or its arguments were repaired. Other text is an edit. The turn's record "
        "notes it. `lossy_echo: false` makes it a fork.",
        "crewai, agno and camel drop the text beside a call. OpenHands, pydantic-ai, Claude Code, pi and the AI "
        "SDK put something else in the place of arguments that do not parse.",
    ),
    MatchingRule(
        11,
        "A stop string may be put back",
        "If the turn ended on a stop string, its text may be followed by that stop string, and by what closes it: "
        "white space, up to three of ``>)]}:` ``, or the rest of a tag that it began. After it, smolagents' "
        "retelling of the calls (`Calling tools:`) may be about as long as the code; `lossy_echo: false` refuses "
        "that. Anything else is new text.",
        "OpenHands and smolagents append the stop string that the engine cut off, and a line break or a `>`. "
        "Agents of the ReAct kind write there what a tool answered.",
    ),
    MatchingRule(
        12,
        "Of several siblings the best",
        "If several turns fit, the reading that recognises the history furthest wins; then exact call ids, then "
        "exact text and arguments, then the same reasoning, then the newest turn. A request that was asked before goes "
        "on from the turn that it went on from then, if that is as far. The order in which requests arrive never "
        "decides.",
        "SDKs send a request again that was answered already; qwen-code and smolagents sample again what they "
        "cannot parse. The sub-agents of Codex take turns in one session.",
    ),
    MatchingRule(
        13,
        "Nothing else is the same",
        "Text of users and tools stays exact, to the last blank; an image is its pixels. A request that "
        "no rule recognises is a fork with a reason. The gateway never guesses.",
        "A fork costs tokens; turns that are put together wrongly cost the training run. Summaries, folded "
        "histories and edited prompts are new conversations (dspy, llama-index, compaction everywhere).",
    ),
)

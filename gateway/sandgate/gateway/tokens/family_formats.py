"""Formats of model families: markers of reasoning and tool calls, and their detection from a template. (pure)"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sandgate.gateway.tokens import literal_calls, tagged_calls, tool_calls


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A tool-call block. `close` "" means that the block lasts until the turn ends."""

    name: str
    open: str
    close: str
    read: tool_calls.Reader
    inner: tuple[str, ...] = ()
    """Special tokens that are part of a body: kept as text, which special tokens elsewhere are not."""
    ends_unclosed: bool = True
    """A body that is whole counts although its closer was not sampled (as vLLM's hermes parser has it)."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What to look for in a turn. Markers that are added tokens are found by id, the others in the text."""

    calls: CallFormat | None = None
    think: tuple[str, str] | None = None
    bare: str = ""
    """A turn that begins with this, `{` (Llama 3) or `[` (xLAM), may be calls as a whole."""
    harmony: bool = False
    """Channels (gpt-oss)."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers, openers and closers."""
        present = self.think or ()
        if self.calls is not None:
            present = (*present, self.calls.open, self.calls.close, *self.calls.inner)
        return tuple(dict.fromkeys(marker for marker in present if marker))


KIMI = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
DEEPSEEK = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
GLM = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


def _deepseek(name: str) -> CallFormat:
    return CallFormat(name, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", tool_calls.deepseek, DEEPSEEK)


def _dsml(name: str, block: str) -> tuple[tuple[str, ...], CallFormat]:
    opens, closes = f"<｜DSML｜{block}>", f"</｜DSML｜{block}>"
    return ("｜DSML｜", f"{block}>"), CallFormat(name, opens, closes, tagged_calls.dsml)


_LISTED = CallFormat("jamba", "<tool_calls>", "</tool_calls>", tool_calls.json_calls)

FORMATS: tuple[tuple[tuple[str, ...], CallFormat], ...] = (
    (("<tool_calls>[",), _LISTED),
    (
        ("<seed:tool_call>", "<function="),
        CallFormat("seed-oss", "<seed:tool_call>", "</seed:tool_call>", tool_calls.xml_function),
    ),
    (("<TOOLCALL>[",), CallFormat("nemotron-v2", "<TOOLCALL>", "</TOOLCALL>", tool_calls.json_calls)),
    (
        ("<|tools_prefix|>", "<|tools_suffix|>"),
        CallFormat("apertus", "<|tools_prefix|>", "<|tools_suffix|>", tool_calls.named_objects),
    ),
    (
        ("<tool_call>", "<function="),
        CallFormat("qwen3-xml", "<tool_call>", "</tool_call>", tool_calls.xml_function),
    ),
    (
        ("<tool_call>", "<arg_key>"),
        CallFormat("glm", "<tool_call>", "</tool_call>", tool_calls.glm, GLM, ends_unclosed=False),
    ),
    (("<tool_call>",), CallFormat("hermes", "<tool_call>", "</tool_call>", tool_calls.json_call)),
    (
        ("<minimax:tool_call>",),
        CallFormat("minimax-m2", "<minimax:tool_call>", "</minimax:tool_call>", tool_calls.minimax),
    ),
    (
        ("<|tool_calls_section_begin|>",),
        CallFormat(
            "kimi-k2", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", tool_calls.kimi, KIMI
        ),
    ),
    (("<｜tool▁calls▁begin｜>", "```json"), _deepseek("deepseek")),
    (("<｜tool▁calls▁begin｜>",), _deepseek("deepseek-v3.1")),
    (
        ("[TOOL_CALLS]", "[ARGS]"),
        CallFormat("mistral-v11", "[TOOL_CALLS]", "", tool_calls.mistral, ("[ARGS]", "[CALL_ID]")),
    ),
    (("[TOOL_CALLS]",), CallFormat("mistral", "[TOOL_CALLS]", "", tool_calls.mistral)),
    (
        ("<|tool_call|>", "<|/tool_call|>"),
        CallFormat("phi4", "<|tool_call|>", "<|/tool_call|>", tool_calls.json_calls),
    ),
    (("<|tool_call|>",), CallFormat("granite", "<|tool_call|>", "", tool_calls.json_calls)),
    (
        ("<|tool_call>", "<tool_call|>"),
        CallFormat("gemma4", "<|tool_call>", "<tool_call|>", literal_calls.gemma, (literal_calls.QUOTE,)),
    ),
    (
        ("<|START_ACTION|>",),
        CallFormat("cohere", "<|START_ACTION|>", "<|END_ACTION|>", tool_calls.cohere),
    ),
    (
        ("<tool_calls>", "</tool_calls>"),
        _LISTED,
    ),
    (
        ("<|tool_call_start|>[",),
        CallFormat("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", literal_calls.python_calls),
    ),
    _dsml("deepseek-v3.2", "function_calls"),
    _dsml("deepseek-v4", "tool_calls"),
    (
        ("<|action_start|><|plugin|>",),
        CallFormat("internlm2", "<|action_start|>", "<|action_end|>", tagged_calls.internlm, ("<|plugin|>",)),
    ),
    (("<|function_call|>",), CallFormat("gigachat3", "<|function_call|>", "", tool_calls.json_call)),
    (("'<function_call> '",), CallFormat("granite-20b-fc", "<function_call>", "", tool_calls.json_call)),
    (
        ('<function name="', '<param name="'),
        CallFormat("minicpm5", '<function name="', "</function>", tagged_calls.minicpm, ends_unclosed=False),
    ),
    (
        ("<function=", "</function>"),
        CallFormat("functionary-v3.1", "<function=", "</function>", tagged_calls.functionary),
    ),
    (("<|python_tag|>",), CallFormat("llama3", "<|python_tag|>", "", tool_calls.json_calls)),
)
"""What a template must mention -> its format; the first that fits."""

THINK = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>", "<channel|>"),
)

LABELS = {"<|channel>": "thought\n"}
"""What a family writes behind the marker that opens its reasoning; it is no part of the thought."""

LLAMA_JSON = '{"name": function name, "parameters":'
"""How Llama 3 templates ask for bare JSON calls."""
XLAM_JSON = '[{"name": "tool_call_name", "arguments":'
"""How xLAM's ask for arrays of them."""


def detect(template: str, added: Collection[str]) -> Grammar:
    """The grammar of a checkpoint, from what its template says and its added tokens are."""
    if "<|channel|>" in template and "<|message|>" in template:
        return Grammar(harmony=True)
    grammar = next((form for words, form in FORMATS if all(word in template for word in words)), None)
    bare = "{" if LLAMA_JSON in template else "[" if XLAM_JSON in template else ""
    if grammar is None and bare and "<|python_tag|>" in added:
        grammar = next(form for _, form in FORMATS if form.name == "llama3")
    think = next((pair for pair in THINK if pair[1] in template or pair[1] in added), None)
    return Grammar(calls=grammar, think=think, bare=bare)

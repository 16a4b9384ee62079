"""Canonical messages: what every dialect is decoded to, and every reply is encoded from. (pure)"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from sandgate.contract.trajectory import Ids

Role = Literal["system", "developer", "user", "assistant", "tool"]


class TextPart(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    """Text of a message."""

    text: str


class ImagePart(msgspec.Struct, frozen=True, tag="image", omit_defaults=True):
    """An image: a data URL, or an address, as the client sent it."""

    url: str
    detail: str | None = None
    field: str = ""
    """Of an address: the request's field that has it."""

    kind: ClassVar[str] = "image"
    """As templates call it."""


class VideoPart(msgspec.Struct, frozen=True, tag="video", omit_defaults=True):
    """A video, as data URLs of its frames."""

    frames: tuple[str, ...]

    kind: ClassVar[str] = "video"


Part = TextPart | ImagePart | VideoPart


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call the model made. `arguments` is the raw JSON text, as sampled or as echoed."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. null, absent, "" and [] content are all `()`: no parts (rule N3)."""

    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    """Assistant only: what came as reasoning_content / reasoning / thinking."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """role=tool only."""
    name: str | None = None

    @property
    def text(self) -> str:
        """The text parts, joined."""
        texts = [part.text for part in self.parts if isinstance(part, TextPart)]
        return texts[0] if len(texts) == 1 else "".join(texts)


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function the model may call. `schema` is the client's JSON schema, untouched."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """auto: may call; none: must not; required: must call some tool; named: must call `name`."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None


class ResponseFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """text: free; json_object: any JSON object; json_schema: an instance of `schema`."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    schema: dict[str, Any] | None = None


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sampling parameters in the engine's names; None = the engine's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


TemplateValue = str | int | float | bool
"""What a request may set a template's variable to."""


class ResponseForm(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a response has of its request, and what is kept of both for later requests (Responses only)."""

    previous: str | None = None
    """The id of the response that this one goes on from."""
    items: tuple[bytes, ...] = ()
    """The request's own input items, as JSON."""
    echo: dict[str, bytes] = {}
    """Fields that the response says again -> JSON."""
    digests: tuple[bytes, ...] = ()
    """Of `items`, then of `echo` in its own order; made where the request is decoded, in a thread if it is long."""
    store: bool = True
    sealed: bool = False
    """Reasoning is told in an opaque field, too."""


class Caller(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who sends a request, as far as its headers say."""

    role: str = ""
    """A TurnRole, or empty: they do not say."""
    why: str = ""
    """The header that said it."""
    thread: str = ""
    """What the client calls this conversation."""
    parent: str = ""
    """What it calls the conversation that started this one."""
    rules: tuple[int, ...] = ()
    """Which of the job's own rules remain to be asked: their header, if they have one, is there."""


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model call, in no dialect any more."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    response_format: ResponseFormat = ResponseFormat()
    sampling: SamplingParams = SamplingParams()
    parallel_tool_calls: bool = True
    prompt: str | Ids | None = None
    """The whole prompt, as text or as token ids, where the client makes it itself; then there are no messages. Ids are
    in [0, 2**31); whether the vocabulary has them is not checked yet."""
    template_kwargs: dict[str, TemplateValue] = {}
    """Variables of the chat template, as far as it reads them: `enable_thinking`, `reasoning_effort`."""
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    token_ids: bool = False
    """The answer tells the ids of prompt and sample."""
    prompt_field: str = "prompt"
    """What the dialect calls it."""
    prompt_told: bool = True
    """Where ids are told: those of the prompt, too."""
    request_id: str = ""
    """The client's own name for its request, where the answer says it again."""
    hide_reasoning: bool = False
    """The answer has the reasoning in an opaque field only."""
    form: ResponseForm | None = None
    caller: Caller = Caller()
    digest: bytes = b""
    """Identity of the request for retries: of everything but the stream flags (a stalled stream is retried as JSON)."""

    @property
    def tells_tokens(self) -> bool:
        """Whether the answer has something for each token."""
        return self.logprobs or self.token_ids

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that the answer may call: none with tool_choice `none`, though the model is shown them all."""
        return () if self.tool_choice.mode == "none" else self.tools

"""The rules of the proof, one template each; and what a user can write must not break it."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import BadRequest, Unsupported
from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart, Tool, ToolCall
from sandgate.gateway.tokens.bridge import NotProved
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.history_check import History
from sandgate.gateway.tokens.probe_conversations import TAIL_SHAPES, assistant, system, user
from sandgate.gateway.tokens.template import ChatTemplate
from tests.gateway.tokens import lab
from tests.gateway.tokens.zoo import zoo

LOOP = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
NEXT = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = LOOP + "<|im_end|>\n" + NEXT

UNPROVABLE = {
    "no closer at all": (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        "no stop token ends the assistant's turn",
    ),
    "a closer only in what the user says": (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'user' %}<|im_end|>{% endif %}\n"
        "{% endfor %}",
        "no stop token of its own ends the assistant's turn",
    ),
    "the system message moves to the last user": (
        "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
        "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}{{ m.content }}"
        "<|im_end|>\n{% endif %}" + NEXT,
        "renders earlier messages differently",
    ),
    "earlier users change once there is a later one": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last %}!{% endif %}{{ m.content }}<|im_end|>\n"
        + NEXT,
        "renders earlier messages differently",
    ),
    "a tail whose text depends on the number of turns": (
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ loop.index }}\n{{ m.content }}<|im_end|>\n"
        + NEXT,
        "renders differently after different conversations",
    ),
    "a user's turn repeats what was said before it": (
        CHATML.replace(
            "{{ m.content }}",
            "{{ m.content }}{{ messages[loop.index0 - 1].content if m.role == 'user' and not loop.first }}",
        ),
        "renders differently after different conversations",
    ),
    "the template refuses the tail": (
        CHATML.replace(
            "{% for", "{% if messages|length > 2 %}{{ raise_exception('too long') }}{% endif %}{% for"
        ),
        "too long",
    ),
}


def codec(source: str, *, history: History = "sampled", **variables: object) -> TemplateCodec:
    template = ChatTemplate(source, tokens={"eos_token": "<|im_end|>"}, variables=variables)
    return TemplateCodec(template, lab.qwen(), eos_ids=[lab.qwen().ids["<|im_end|>"]], history=history)


def ids(text: str) -> array[int]:
    return lab.qwen().encode(text)


@pytest.mark.parametrize("name", UNPROVABLE)
def test_what_cannot_be_proved_is_a_fork_with_its_reason(name: str) -> None:
    source, why = UNPROVABLE[name]
    made = codec(source)
    shape = made.shapes()["user"]
    assert isinstance(shape, NotProved)
    assert why in shape.why
    said = ids("Hello.<|im_end|>")
    assert made.bridge(ids("x"), said, [user("Now?")], (), closed=True) == ForkReason.TEMPLATE_NOT_ADDITIVE


def test_chatml_is_additive_in_every_shape() -> None:
    assert not [name for name, shape in codec(CHATML).shapes().items() if isinstance(shape, NotProved)]


def test_the_bridge_is_what_follows_the_closer() -> None:
    found = codec(CHATML).bridge(ids("x"), ids("Hello.<|im_end|>"), [user("Now?")], (), closed=True)
    assert found == ids("<|im_end|>\n<|im_start|>user\nNow?<|im_end|>\n<|im_start|>assistant\n")[1:]


def test_a_cut_turn_gets_the_closer() -> None:
    found = codec(CHATML).bridge(ids("x"), ids("Hel"), [user("Now?")], (), closed=False)
    assert found == ids("<|im_end|>\n<|im_start|>user\nNow?<|im_end|>\n<|im_start|>assistant\n")


def test_another_stop_token_stays_in_the_closers_place() -> None:
    template = ChatTemplate(CHATML, tokens={"eos_token": "<|im_end|>"})
    ends = [lab.qwen().ids[text] for text in ("<|im_end|>", "<|endoftext|>")]
    said = ids("Hello.<|endoftext|>")
    found = TemplateCodec(template, lab.qwen(), eos_ids=ends).bridge(
        ids("x"), said, [user("Now?")], (), closed=True
    )
    assert found == ids("<|im_end|>\n<|im_start|>user\nNow?<|im_end|>\n<|im_start|>assistant\n")[1:]


def test_a_stop_token_that_begins_the_next_turn_is_not_in_the_closers_place() -> None:
    glm = zoo()["trl/glm4moe"].codec()
    said = glm.vocab.encode("Hello.<|observation|>")
    prompt = glm.render((user("Hi"),), ())
    assert glm.bridge(prompt, said, [user("Now?")], (), closed=True) == ForkReason.TEMPLATE_NOT_ADDITIVE


def test_a_token_that_ends_no_turn_is_not_taken_for_the_closer() -> None:
    said = ids("Hello.<|endoftext|>")
    found = codec(CHATML).bridge(ids("x"), said, [user("Now?")], (), closed=True)
    assert found == ForkReason.TEMPLATE_NOT_ADDITIVE


NEVER = {
    "an empty tail": ((), ForkReason.TEMPLATE_NOT_ADDITIVE),
    "an assistant message that was not sampled": (
        (user("a"), assistant("b"), user("c")),
        ForkReason.ASSISTANT_EDITED,
    ),
    "an image": (
        (Message(role="user", parts=(TextPart("see"), ImagePart("data:image/png;base64,AA=="))),),
        ForkReason.MULTIMODAL_NOT_BRIDGEABLE,
    ),
}


@pytest.mark.parametrize("name", NEVER)
def test_never_bridged(name: str) -> None:
    tail, reason = NEVER[name]
    assert codec(CHATML).bridge(ids("x"), ids("Hello.<|im_end|>"), tail, (), closed=True) == reason


def test_an_image_cannot_be_rendered() -> None:
    with pytest.raises(Unsupported, match="text only"):
        codec(CHATML).render([Message(role="user", parts=(ImagePart("https://x/y.png"),))], ())


def test_what_the_template_refuses_is_the_callers_error() -> None:
    with pytest.raises(BadRequest, match="too long"):
        codec(UNPROVABLE["the template refuses the tail"][0]).render([user("a"), user("b"), user("c")], ())


def test_a_template_cannot_reach_the_interpreter() -> None:
    with pytest.raises(BadRequest, match="SecurityError"):
        codec("{{ messages.__class__.__mro__ }}").render([user("a")], ())


def test_a_date_that_changes_between_turns_does_not_break_the_proof() -> None:
    clock = [datetime(2026, 11, 21, 23, 59, tzinfo=UTC)]
    source = "<|im_start|>system\n{{ strftime_now('%d %b %Y') }}<|im_end|>\n" + CHATML
    template = ChatTemplate(source, tokens={"eos_token": "<|im_end|>"}, now=lambda: clock[0])
    made = TemplateCodec(template, lab.qwen(), eos_ids=[lab.qwen().ids["<|im_end|>"]])
    before = made.bridge(ids("x"), ids("Hi<|im_end|>"), [user("Now?")], (), closed=True)
    clock[0] += timedelta(minutes=2)
    assert made.bridge(ids("x"), ids("Hi<|im_end|>"), [user("Now?")], (), closed=True) == before


SCAN = "{{% for m in messages %}}{{% if {} %}}(seen) {{% endif %}}{{% endfor %}}"
LOOKING_BACK = {
    "a word in a tool's answer": SCAN.format("m.role == 'tool' and 'ERROR' in m.content"),
    "the name of a call": SCAN.format("m.tool_calls and m.tool_calls[0].function.name == 'python'"),
    "a user's name": SCAN.format("m.name"),
    "a user of one name": SCAN.format("m.name == 'bob'"),
    "the number of messages": "{% if messages | length > 8 %}(seen) {% endif %}",
    "the length of the first": "{% if messages[0].content | length > 100 %}(seen) {% endif %}",
}


@pytest.mark.parametrize("asks", LOOKING_BACK.values(), ids=LOOKING_BACK)
def test_a_generation_prompt_that_depends_on_what_came_before_is_found_at_start(asks: str) -> None:
    made = codec(CHATML + "{% if add_generation_prompt %}" + asks + "{% endif %}")
    assert made.looks_back
    call, named = ToolCall("call_1", "python", "{}"), Message("user", (TextPart("x" * 101),), name="bob")
    answer = Message("tool", (TextPart("ERROR"),), tool_call_id="call_1")
    earlier = (named, assistant("", [call]), answer, *(user("q"), assistant("a")) * 3)
    added = made.bridge(ids("x"), ids("a<|im_end|>"), [user("Now?")], (), closed=True, earlier=earlier)
    assert not isinstance(added, ForkReason)
    assert made.decode(added).endswith("assistant\n(seen) ")
    assert made.decode(made.render((*earlier, user("Now?")), ())).endswith(made.decode(added))


TICKING = {
    "its seconds, at the head": (
        "<|im_start|>system\n{{ strftime_now('%H:%M:%S.%f') }}<|im_end|>\n" + CHATML,
        True,
    ),
    "its seconds, behind the new messages": (CHATML + "{{ strftime_now('%H:%M:%S') }}", False),
    "the hour of the day, in each message": (LOOP + "{{ strftime_now('%H') }}<|im_end|>\n" + NEXT, False),
    "words for the afternoon": (
        CHATML + "{% if strftime_now('%H') | int >= 12 %}Good afternoon. {% endif %}",
        False,
    ),
}


@pytest.mark.parametrize(("source", "bridged"), TICKING.values(), ids=TICKING)
def test_a_clock_never_stands_in_what_is_bridged(source: str, bridged: bool) -> None:
    """Nor does it break the proof where it stands only in the first prompt, although no two renders are of one time."""
    clock = [datetime(2026, 11, 21, 9, tzinfo=UTC)]

    def now() -> datetime:
        clock[0] += timedelta(seconds=1, microseconds=1)
        return clock[0]

    template = ChatTemplate(source, tokens={"eos_token": "<|im_end|>"}, now=now)
    made = TemplateCodec(template, lab.qwen(), eos_ids=[lab.qwen().ids["<|im_end|>"]])
    added = [
        made.bridge(
            ids("x"),
            ids("Hi<|im_end|>"),
            [user("Now?")],
            (),
            closed=True,
            earlier=(user("q"), assistant("Hi")),
        )
        for _ in range(3)
    ]
    expected = ids("\n<|im_start|>user\nNow?<|im_end|>\n<|im_start|>assistant\n")
    assert added == [expected if bridged else ForkReason.TEMPLATE_NOT_ADDITIVE] * 3


def test_a_real_template_with_a_clock_is_bridged() -> None:
    specimen = zoo()["vllm/tool_chat_template_hunyuan_a13b"]
    clock = iter(datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=n) for n in range(10_000))
    tokens = {"bos_token": specimen.bos, "eos_token": specimen.ends[0]}
    template = ChatTemplate(specimen.source, tokens=tokens, now=lambda: next(clock))
    shapes = TemplateCodec(template, specimen.vocab, eos_ids=specimen.eos_ids).shapes()
    assert not isinstance(shapes["user"], NotProved)


WORDS = (
    *("<|im_end|>", "<|im_start|>", "<|im_start|>assistant\n", "</tool_call>", "</tool_response>", "zkaone"),
    *(
        "zkbtwo",
        "\n",
        " ",
        "{{ x }}",
        "qone",
        "fnone0",
        "<|endoftext|>",
        "e\u0301",
        "\u0301",
        "🙂",
        "</think>",
    ),
)
INJECTIONS = st.lists(st.sampled_from(WORDS), max_size=8).map("".join)
TEMPLATES = (
    *("axolotl/chatml", "trl/qwen3", "trl/qwen2_5", "trl/glm4moe", "trl/llama3_1", "trl/deepseekv3"),
    "trl/qwen3_5_think",
)


@pytest.mark.parametrize("name", TEMPLATES)
@given(text=INJECTIONS, role=st.sampled_from(["user", "tool"]))
def test_whatever_a_message_says_the_bridge_is_the_end_of_the_full_render_or_a_fork(
    name: str, text: str, role: str
) -> None:
    made = zoo()[name].codec()
    call = ToolCall(TAIL_SHAPES["tool"][0].tool_call_id or "", "look", '{"k": 1}')
    said = assistant("", (call,)) if role == "tool" else assistant("Hello.")
    tail = (
        Message(role="tool", parts=(TextPart(text),), tool_call_id=call.id) if role == "tool" else user(text)
    )
    tools = (Tool("look"),)
    try:
        full = made.render((system("S"), user("Hi"), said, tail), tools)
    except BadRequest:
        return
    found = made.bridge(ids("x"), made.vocab.encode("Hello."), [tail], tools, closed=False)
    if not isinstance(found, ForkReason):
        assert full[-len(found) :] == found


def test_plain_text_is_bridged_by_these_templates() -> None:
    for name in TEMPLATES:
        found = zoo()[name].codec().bridge(ids("x"), ids("Hi"), [user("Now?")], (), closed=False)
        assert not isinstance(found, ForkReason), name


def test_arguments_are_given_in_the_form_the_template_wants() -> None:
    call = ToolCall("call_1", "buy", '{"n": 7}')
    head = CHATML.replace(
        "{{ m.content }}", "{{ m.content }}{% for c in m.tool_calls or [] %}ARGS{% endfor %}"
    )
    said = [user("a"), assistant("", (call,))]
    for arguments in ("{{ c.function.arguments | tojson }}", "{{ '' ~ c.function.arguments }}"):
        made = codec(head.replace("ARGS", arguments))
        assert '{"n": 7}' in made.template.render(said)


def test_mistral_gets_ids_of_nine_letters_or_digits() -> None:
    made = zoo()["axolotl/mistral_v3_tekken"].codec()
    call = ToolCall("call_0123456789abcdef01234567", "buy", '{"n": 7}')
    answer = Message(role="tool", parts=(TextPart("ok"),), tool_call_id=call.id)
    text = made.template.render([user("a"), assistant("", (call,)), answer], (Tool("buy"),))
    assert "f01234567" in text
    assert call.id not in text

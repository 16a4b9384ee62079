"""What a template would drop without a word is refused; a developer is a system message where that is all it knows."""

from __future__ import annotations

from itertools import product

import pytest

from sandgate.contract.errors import BadRequest, Unsupported
from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.conversation.messages import Message, TextPart, Tool, ToolCall
from sandgate.gateway.tokens.probe_conversations import assistant, system, user
from tests.gateway.tokens.test_bridge import CHATML, codec
from tests.gateway.tokens.test_renderers_codec import family
from tests.gateway.tokens.zoo import zoo


def say(role: str, text: str = "Be brief.") -> Message:
    return Message(role=role, parts=(TextPart(text),), tool_call_id="c" if role == "tool" else None)  # type: ignore[arg-type]


DROPS = CHATML.replace(
    "<|im_start|>{{ m.role }}", "{% if m.role not in dropped %}<|im_start|>{{ m.role }}"
).replace("<|im_end|>\n", "<|im_end|>\n{% endif %}")

CASES = {
    "a template that has a place for developers gives them that": (
        [],
        "developer",
        "<|im_start|>developer\nBe brief.",
    ),
    "a developer is a system message where developers are dropped": (
        ["developer"],
        "developer",
        "<|im_start|>system\nBe brief.",
    ),
    "a system message is a system message": (["developer"], "system", "<|im_start|>system\nBe brief."),
}


@pytest.mark.parametrize("name", CASES)
def test_a_role_gets_the_place_that_the_template_has(name: str) -> None:
    dropped, role, expected = CASES[name]
    made = codec(DROPS, dropped=dropped)
    assert made.decode(made.render([say(role), user("Hi")], ())).startswith(expected)


@pytest.mark.parametrize("role", ["system", "tool"])
def test_a_message_that_would_be_dropped_is_refused_by_name(role: str) -> None:
    made = codec(DROPS, dropped=[role])
    with pytest.raises(Unsupported, match=f"drops messages of role {role}") as refused:
        made.render([user("Hi"), say(role)], ())
    assert refused.value.field == "messages[1].role"


def test_a_developer_cannot_become_a_system_message_that_is_dropped_too() -> None:
    with pytest.raises(Unsupported, match="role developer"):
        codec(DROPS, dropped=["system", "developer"]).render([say("developer"), user("Hi")], ())


@pytest.mark.parametrize("name", ["trl/qwen3", "trl/qwen2_5", "trl/llama3_1", "trl/glm4moe"])
def test_no_real_template_loses_a_developers_words(name: str) -> None:
    made = zoo()[name].codec()
    assert "Be brief." in made.decode(made.render([say("developer"), user("Hi")], ()))


def test_a_family_does_not_lose_them_either() -> None:
    made = family("trl/qwen3")
    assert "<|im_start|>system\nBe brief." in made.decode(made.render([say("developer"), user("Hi")], ()))


def answer(text: str, number: int = 1) -> Message:
    return Message(role="tool", parts=(TextPart(text),), tool_call_id=f"call_{number:024}")


def calls(*numbers: int) -> Message:
    return assistant("", [ToolCall(f"call_{number:024}", "probe", '{"k": 1}') for number in numbers])


ONE, TWO, HI, HELLO, GO = system("zkone"), system("zktwo"), user("zkhi"), assistant("hello"), user("zkgo")
DEVELOPER = say("developer", "zkdev")
SAID = {
    "instructions, and a developer's": (ONE, DEVELOPER, HI),
    "a developer's, and more instructions": (DEVELOPER, ONE, HI),
    "two of a developer": (DEVELOPER, say("developer", "zkmore"), HI),
    "three system messages": (ONE, TWO, system("zkthree"), HI),
    "a system message behind the question": (ONE, HI, TWO),
    "a system message behind the only question": (HI, ONE),
    "a system message between questions": (ONE, HI, TWO, GO),
    "a system message behind an answer": (ONE, HI, HELLO, TWO, GO),
    "a developer behind an answer": (ONE, HI, HELLO, DEVELOPER, GO),
    "a system message behind the last question": (ONE, HI, HELLO, GO, TWO),
    "a system message that once was the last": (HI, HELLO, GO, ONE, HELLO, user("zkthen")),
    "a system message behind a tool": (ONE, HI, calls(1), answer("zkr"), TWO),
    "an answer whose call was compacted away": (HI, answer("zkr"), GO),
    "an answer at the head": (answer("zkr"), GO),
    "an answer behind words": (HI, HELLO, answer("zkr"), GO),
    "an answer that came late": (HI, calls(1), GO, answer("zkr")),
    "an answer to no call of these": (HI, calls(1), answer("zkr"), answer("zks", 9)),
    "two answers in another order": (HI, calls(1, 2), answer("zkr", 2), answer("zks", 1)),
    "a second loop": (HI, calls(1), answer("zkr"), calls(2), answer("zks", 2), GO),
    "two questions": (HI, GO),
}


@pytest.mark.parametrize("messages", SAID.values(), ids=SAID)
def test_no_real_template_loses_a_message_in_silence(messages: tuple[Message, ...]) -> None:
    lost = []
    for (name, specimen), tools in product(zoo().items(), ((), (Tool("probe"),))):
        try:
            text = specimen.template().render(messages, tools)
        except BadRequest:
            continue
        lost += [(name, one.text) for one in messages if one.role != "assistant" and one.text not in text]
    assert not lost


ONE_PLACE = (
    "trl/deepseek_r1_distill",  # keeps the last
    "llama.cpp/llama-cpp-rwkv-world",
    "trl/gptoss",  # keeps the first
    "trl/qwen3_6",  # refuses the second
)


@pytest.mark.parametrize("name", ONE_PLACE)
def test_leading_instructions_are_one_message_where_the_template_takes_one(name: str) -> None:
    assert "zkone\n\nzkdev" in zoo()[name].template().render((ONE, DEVELOPER, HI))


def test_a_family_is_given_one_message_too() -> None:
    made = family("trl/qwen3_vl")
    assert "zkone\n\nzktwo" in made.decode(made.render((ONE, TWO, HI), ()))


def test_they_stay_two_where_it_takes_two() -> None:
    assert "zkone<|im_end|>\n<|im_start|>system\nzktwo" in zoo()["trl/qwen3"].template().render(
        (ONE, TWO, HI)
    )


REFUSED = {
    "a later system message that would replace the first": ("trl/deepseek_r1_distill", (ONE, HI, TWO), 2),
    "a last system message that would be dropped": ("axolotl/aya", (ONE, HI, TWO), 2),
    "an answer without its call": ("trl/gemma4_v5", (HI, answer("zkr"), GO), 1),
}


@pytest.mark.parametrize(("name", "messages", "at"), REFUSED.values(), ids=REFUSED)
def test_the_message_that_would_lose_words_is_named(
    name: str, messages: tuple[Message, ...], at: int
) -> None:
    with pytest.raises(Unsupported) as refused:
        zoo()[name].template().render(messages)
    assert refused.value.field == f"messages[{at}].role"


@pytest.mark.parametrize("name", ["axolotl/aya", "axolotl/cohere", "trl/cohere"])
def test_a_last_system_message_is_not_bridged_away(name: str) -> None:
    made = zoo()[name].codec()
    prompt, said = made.render((HI,), ()), made.vocab.encode("hello")
    tail = (GO, TWO)
    assert made.bridge(prompt, said, tail, (), closed=False) == ForkReason.TEMPLATE_NOT_ADDITIVE


@pytest.mark.parametrize(
    "name",
    [
        "llama.cpp/NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        "llama.cpp/CohereForAI-c4ai-command-r-plus-tool_use",
    ],
)
def test_a_template_that_fails_without_tools_is_tried_with_one(name: str) -> None:
    text = zoo()[name].template().render((say("system", "zksystem"), DEVELOPER, user("q")), (Tool("bash"),))
    assert ("zksystem" in text, "zkdev" in text) == (True, True)


def test_arguments_that_a_family_would_drop_are_named_as_the_client_counts() -> None:
    call = assistant("", [ToolCall("call_1", "buy", "oops")])
    with pytest.raises(BadRequest) as caught:
        family("trl/qwen3_5_think").render((system("s"), DEVELOPER, user("q"), call), ())
    assert caught.value.field == "messages[3].tool_calls[0].function.arguments"

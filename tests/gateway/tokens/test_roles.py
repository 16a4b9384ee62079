"""What a template would drop without a word is refused; a developer is a system message where that is all it knows."""

from __future__ import annotations

import pytest

from sandgate.contract.errors import Unsupported
from sandgate.gateway.conversation.messages import Message, TextPart
from sandgate.gateway.tokens.probe_conversations import user
from tests.gateway.tokens.test_bridge import CHATML, codec
from tests.gateway.tokens.test_family import family
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

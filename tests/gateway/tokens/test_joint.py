"""Several texts of one message: they do not run together where the template takes one text, as in vLLM."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from sandgate.gateway.conversation.messages import Message, Role, TextPart, Tool
from sandgate.gateway.tokens.load import load_codec
from sandgate.gateway.tokens.probe_conversations import assistant, example_call, user
from sandgate.gateway.tokens.renderers_codec import FamilyCodec
from tests.gateway.tokens.test_load import specimen_model
from tests.gateway.tokens.zoo import zoo

JOINTS = {
    "llama.cpp/Qwen-Qwen3-0.6B": "\n",
    "llama.cpp/meta-llama-Llama-3.3-70B-Instruct": "\n",
    "trl/qwen3_6": "",
    "llama.cpp/Kimi-K2-Instruct": "",
    "axolotl/llava": " ",
}
"""Template -> what stands between two texts; those that take a list of parts write it themselves."""


def said(role: Role, *texts: str) -> Message:
    return Message(role=role, parts=tuple(TextPart(one) for one in texts))


@pytest.mark.parametrize(("name", "joint"), JOINTS.items(), ids=JOINTS)
def test_two_texts_of_a_user_are_joined_as_the_template_does(name: str, joint: str) -> None:
    codec = zoo()[name].codec()
    assert f"zkone{joint}zktwo" in codec.decode(codec.render((said("user", "zkone", "zktwo"),), ()))
    asked = (user("hi"), assistant("hello"))
    tail = (said("user", "zkone", "zktwo"),)
    found = codec.bridge(codec.render(asked[:1], ()), array("i", codec.stop_ids[:1]), tail, (), closed=True)
    assert isinstance(found, str) or f"zkone{joint}zktwo" in codec.decode(found)


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_the_texts_of_others_are_one(role: Role) -> None:
    codec = zoo()["llama.cpp/Qwen-Qwen3-0.6B"].codec()
    shown = codec.decode(codec.render((said(role, "zkone", "zktwo"), user("hi")), ()))
    assert "zkonezktwo" in shown


@pytest.mark.parametrize(("name", "joint"), {"trl/qwen3": "\n", "trl/qwen3_6": ""}.items())
def test_a_family_joins_as_its_checkpoints_template(name: str, joint: str, tmp_path: Path) -> None:
    family = {"trl/qwen3": "qwen3", "trl/qwen3_6": "qwen3.6"}[name]
    codec = load_codec(specimen_model(tmp_path / "m", name), renderer=family)
    assert isinstance(codec, FamilyCodec)
    assert f"zkone{joint}zktwo" in codec.decode(codec.render((said("user", "zkone", "zktwo"),), ()))


@pytest.mark.parametrize(("name", "joint"), {"llama.cpp/Qwen-Qwen3-0.6B": "\n", "trl/qwen3_6": ""}.items())
def test_two_blocks_of_a_tools_result_are_joined_as_a_users(name: str, joint: str) -> None:
    codec = zoo()[name].codec()
    call = example_call()
    result = Message(role="tool", parts=(TextPart("zkone"), TextPart("zktwo")), tool_call_id=call.id)
    shown = codec.render((user("hi"), assistant("", (call,)), result), (Tool(call.name),))
    assert f"zkone{joint}zktwo" in codec.decode(shown)

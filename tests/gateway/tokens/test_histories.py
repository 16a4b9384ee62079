"""History policies, over every template of a model that thinks and calls: what forks, what the model is shown, and what
is trained. docs/history.md is made from the same conversations."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from sandgate.contract.errors import BadRequest
from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.tokens.probe_conversations import user
from tests.gateway.tokens.histories import CONVERSATIONS, Played, echo, play
from tests.gateway.tokens.zoo import Specimen, zoo

THINK = Path(__file__).with_name("thinking_templates.txt").read_text("utf-8").split()
"""Those of models that think and call. A list: asking all takes each process that collects tests ten seconds."""
NOT_WRITTEN = {
    "axolotl/gemma4", "axolotl/gemma4_unified", "axolotl/qwen3", "axolotl/qwen3_5", "trl/qwen3_5_nothink",
    "llama.cpp/CohereForAI-c4ai-command-r7b-12-2024-tool_use", "llama.cpp/NVIDIA-Nemotron-Nano-v2",
    "llama.cpp/Qwen-QwQ-32B", "llama.cpp/google-gemma-4-31B-it", "llama.cpp/google-gemma-4-31B-it-interleaved",
    "llama.cpp/deepseek-ai-DeepSeek-V3.2",
    "llama.cpp/poolside-Laguna-XS-2.1", "llama.cpp/poolside-Laguna-XS.2", "vllm/tool_chat_template_deepseekv31",
    "vllm/tool_chat_template_gemma4",
}  # fmt: skip
"""Templates that do not write a turn with a thought behind their own generation prompt."""
COUNTS_CALLS = "axolotl/command_a_tool_use"
"""Its template counts calls over the whole conversation; the turns here all call number 0, and it writes them anew."""


def thinks(specimen: Specimen) -> bool:
    codec = specimen.codec()
    return bool(codec.grammar.think or codec.grammar.harmony) and not codec.no_tools


@pytest.fixture(scope="module", params=THINK)
def specimen(request: pytest.FixtureRequest) -> Specimen:
    return zoo()[request.param]


def test_the_list_of_templates_that_think_is_what_they_say() -> None:
    assert sorted(name for name, one in zoo().items() if thinks(one)) == THINK


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("echoes", [True, False], ids=["thoughts come back", "thoughts do not come back"])
def test_what_was_sampled_stays_in_one_row(specimen: Specimen, name: str, echoes: bool) -> None:
    played = play(specimen.codec("sampled"), CONVERSATIONS[name], echoes_thoughts=echoes)
    if played is None:
        assert specimen.name in NOT_WRITTEN
        return
    assert not played.forks
    (row,) = played.rows
    assert sum(row.loss_mask) == sum(map(len, played.sampled))
    for prompt, sampled in zip(played.prompts, played.sampled, strict=True):
        assert (row.prompt_ids + row.response_ids)[: len(prompt) + len(sampled)] == prompt + sampled


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_what_the_template_keeps_is_what_the_model_is_shown(specimen: Specimen, name: str) -> None:
    """Whether clients send thoughts back or not."""
    codec = specimen.codec("template")
    played = play(codec, CONVERSATIONS[name], echoes_thoughts=True)
    if played is None:
        assert specimen.name in NOT_WRITTEN
        return
    if specimen.name != COUNTS_CALLS:
        for prompt, full in zip(played.prompts, played.full, strict=True):
            assert codec.decode(prompt) == codec.decode(full)
    assert set(played.forks) <= {ForkReason.HISTORY_REWRITTEN_BY_TEMPLATE}
    assert played.trained == sum(map(len, played.sampled)), "each token is trained once"
    assert len(played.rows) == 1 + played.forks.total()
    silent = play(codec, CONVERSATIONS[name], echoes_thoughts=False)
    assert silent is not None
    assert silent.prompts == played.prompts


FORKS = {
    "trl/qwen3": (0, 2, 2),
    "trl/qwen3_6": (0, 2, 2),
    "trl/glm4moe": (0, 2, 2),
    "trl/nemotron_3_nano": (0, 2, 2),
    "trl/lfm2_2_5": (0, 2, 2),
    "trl/gptoss": (0, 2, 2),
    "trl/gemma4": (0, 0, 2),  # shows no thought beside an answer, and those beside calls until the next user
    "trl/qwen3_8": (0, 0, 0),
    "axolotl/exaone4": (0, 0, 0),
}
"""Of each conversation, under `template`: read off the templates' sources."""


@pytest.mark.parametrize("name", FORKS)
def test_a_fork_comes_with_each_user_whose_coming_drops_a_thought(name: str) -> None:
    codec = zoo()[name].codec("template")
    found = [play(codec, turns, echoes_thoughts=False) for turns in CONVERSATIONS.values()]
    assert tuple(one.forks.total() for one in found if one is not None) == FORKS[name]


SAID = ["Hello.", " Hello. ", "<think>\nI greet.\n</think>\n\nHello.", '{"a":1}', "You may| call funct|ions."]


@pytest.mark.parametrize("name", sorted(zoo()))
def test_the_template_has_the_last_word_whatever_was_said(name: str) -> None:
    codec = zoo()[name].codec("template")
    for said in SAID:
        pieces = [codec.vocab.encode(piece) for piece in said.split("|")]  # two are not a tokenizer's own
        sampled = sum(pieces, array("i")) + array("i", codec.stop_ids[:1])
        try:
            played = play(codec, [sampled, sampled], echoes_thoughts=True)
        except BadRequest:  # the template refuses tools, or two users
            continue
        assert played is not None
        assert codec.decode(played.prompts[1]) == codec.decode(played.full[1]), said
        if not played.forks:
            path = played.prompts[0] + sampled
            assert played.prompts[1][: len(path)] == path, said


def test_what_was_sampled_in_other_tokens_than_a_tokenizers_is_no_rewrite() -> None:
    codec = zoo()["trl/qwen3_instruct_2507"].codec("template")
    text, end = "You may call functions.", array("i", codec.stop_ids[:1])
    sampled = sum(map(codec.vocab.encode, text), array("i")) + end
    assert sampled != codec.vocab.encode(text) + end
    played = play(codec, [sampled] * 3, echoes_thoughts=False)
    assert played is not None
    assert len(played.rows) == 1
    assert not played.forks


@pytest.mark.parametrize("finish", ["stop", "length", "cut"])
def test_a_turn_is_ended_once_however_it_is_said_to_have_ended(finish: str) -> None:
    codec = zoo()["trl/qwen3_instruct_2507"].codec("sampled")
    said, played = codec.vocab.encode("Hello."), {}
    for sampled in (said, said + array("i", codec.stop_ids[:1])):
        one = Played(codec)
        record = one.turn([user("hi")], sampled, finish=finish)
        one.turn([user("hi"), echo(record, thoughts=True), user("more")], said)
        played[len(sampled)] = one.prompts[1]
    assert played[len(said)] == played[len(said) + 1]
    assert "<|im_end|><|im_end|>" not in codec.decode(played[len(said)])

"""A model folder -> the codec that is proved for it, or everything that was tried."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import BadManifest
from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.conversation.messages import Message, TextPart, Tool, ToolCall
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.tokens.bridge import NotProved
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.load import load_codec, read_checkpoint
from sandgate.gateway.tokens.probe_conversations import assistant, user
from sandgate.gateway.tokens.renderers_codec import FamilyCodec
from tests.gateway.tokens import lab
from tests.gateway.tokens.test_bridge import CHATML, NEXT
from tests.gateway.tokens.zoo import zoo

SHOP = Path(__file__).resolve().parents[3] / "examples" / "shop" / "model"
BUY = Tool(
    "buy",
    "buy items",
    {"type": "object", "properties": {"item": {"type": "string"}, "n": {"type": "integer"}}},
)


def model(folder: Path, template: str | None = CHATML, **config: Any) -> Path:
    return lab.write_model(folder, lab.train("qwen", lab.CHATML, lab.QWEN_PLAIN), template, **config)


def specimen_model(folder: Path, name: str) -> Path:
    specimen = zoo()[name]
    path = lab.write_model(
        folder, specimen.tokenizer, specimen.source, eos=specimen.ends[0], bos_token=specimen.bos
    )
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": list(specimen.eos_ids)}))
    return path


def talk(codec: Codec) -> str:
    return codec.decode(codec.render([user("Hi")], ()))


def test_the_shop_model_is_prefix_exact_and_its_calls_are_read() -> None:
    codec = load_codec(SHOP)
    call = ToolCall(f"call_{7:024}", "buy", '{"item": "kiwi", "n": 7}')
    asked, said = (user("buy 7 kiwi"),), assistant("", (call,))
    answer = Message(role="tool", parts=(TextPart("44"),), tool_call_id=call.id)
    prompt = codec.render(asked, (BUY,))
    full = codec.render((*asked, said, answer), (BUY,))
    closer = next(at for at in range(len(prompt), len(full)) if full[at] in codec.stop_ids)
    response = full[len(prompt) : closer + 1]
    assert full[: len(prompt)] == prompt
    bridge = codec.bridge(prompt, response, (answer,), (BUY,), closed=True)
    assert not isinstance(bridge, ForkReason)
    assert prompt + response + bridge == full
    parser = codec.parser(prompt, (BUY,))
    parser.feed(response)
    assert [(made.name, made.arguments) for made in parser.finish()[1].tool_calls] == [
        ("buy", call.arguments)
    ]


def test_the_shop_model_is_additive_in_every_shape_under_both_policies() -> None:
    for history in ("sampled", "template"):
        codec = load_codec(str(SHOP), history=history)
        assert isinstance(codec, TemplateCodec)
        assert not [why for why in codec.shapes((BUY,)).values() if isinstance(why, NotProved)]


def test_a_template_is_found_wherever_checkpoints_keep_it(tmp_path: Path) -> None:
    named = [{"name": "default", "template": CHATML}, {"name": "rag", "template": "x"}]
    places = {
        "jinja": model(tmp_path / "jinja"),
        "config": model(tmp_path / "config", None, chat_template=CHATML),
        "list": model(tmp_path / "list", None, chat_template=named),
        "json": model(tmp_path / "json", None),
    }
    (places["json"] / "chat_template.json").write_text(json.dumps({"chat_template": CHATML}))
    texts = {name: talk(load_codec(folder)) for name, folder in places.items()}
    assert set(texts.values()) == {"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"}


def test_a_file_beats_the_entry_in_the_config(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", CHATML, chat_template="{{ 'old' }}")
    assert "old" not in talk(load_codec(folder))


def test_every_end_that_the_checkpoint_names_stops_a_turn(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", CHATML, eos="<|endoftext|>")
    vocab = lab.qwen()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [vocab.ids["<|endoftext|>"]]}))
    assert set(load_codec(folder).stop_ids) == {vocab.ids["<|endoftext|>"], vocab.ids["<|im_end|>"]}


def test_special_tokens_reach_the_template_by_name(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", "{{ bos_token }}" + CHATML, bos_token={"content": "<|endoftext|>"})
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<|im_end|>"}))
    assert talk(load_codec(folder)).startswith("<|endoftext|><|im_start|>")
    assert read_checkpoint(folder).tokens["pad_token"] == "<|im_end|>"


def test_template_variables_are_given_and_change_the_name(tmp_path: Path) -> None:
    folder = model(
        tmp_path / "m",
        CHATML + "{% if quiet and add_generation_prompt %}{{ '<think>\n\n</think>\n\n' }}{% endif %}",
    )
    loud, quiet = load_codec(folder), load_codec(folder, template_kwargs={"quiet": True})
    assert not talk(loud).endswith("</think>\n\n")
    assert talk(quiet).endswith("</think>\n\n")
    assert loud.name != quiet.name


REFUSED = {
    "no folder": (lambda tmp: tmp / "none", {}, "no tokenizer.json there"),
    "no template": (lambda tmp: model(tmp / "m", None), {}, "has no chat template"),
    "a template that does not compile": (lambda tmp: model(tmp / "m", "{% if %}"), {}, "does not compile"),
    "a template without any additive tail": (
        lambda tmp: model(tmp / "m", "{% for m in messages %}{{ m.content }}\n" + NEXT),
        {},
        "user: no stop token",
    ),
    "an unknown renderer": (lambda tmp: model(tmp / "m"), {"renderer": "qwen99"}, "qwen99"),
    "an unknown history policy": (lambda tmp: model(tmp / "m"), {"history": "none"}, "sampled or template"),
    "a renderer whose tokens the checkpoint lacks": (
        lambda tmp: model(tmp / "m"),
        {"renderer": "glm-4.5"},
        "renderers/glm-4.5",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_was_tried(name: str, tmp_path: Path) -> None:
    make, options, why = REFUSED[name]
    with pytest.raises(BadManifest, match=why) as refused:
        load_codec(make(tmp_path), **options)  # type: ignore[no-untyped-call, arg-type]
    assert (refused.value.field or "").startswith("spec.model")


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadManifest, match="is no tokenizer"):
        load_codec(tmp_path)


def a_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("blobs/of-a-download-that-was-interrupted")


BROKEN: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a config of another encoding": ("config.json", lambda path: path.write_bytes(b"\xff\xfe"), "is not UTF-8 text"),
    "a config that is a list": ("generation_config.json", lambda path: path.write_text("[2]"), "is no JSON object"),
    "a config nested beyond reading": ("config.json", lambda path: path.write_text("[" * 100_000), "is not JSON"),
    "a config whose download was interrupted": ("generation_config.json", a_link, "is a link that leads to no file"),
    "a template of another encoding": (
        "chat_template.jinja", lambda path: path.write_bytes(b"\xff\xfe"), "is not UTF-8 text",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "harm", "why"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_there_and_cannot_be_read_is_named(
    tmp_path: Path, name: str, harm: Callable[[Path], object], why: str
) -> None:
    """Passed over, an end of turn would be missing without a word."""
    folder = specimen_model(tmp_path / "m", "trl/qwen3")
    harm(folder / name)
    with pytest.raises(BadManifest, match=rf"/{name} {why}") as refused:
        load_codec(folder)
    assert refused.value.field == "spec.model.tokenizer"


def test_auto_takes_the_family_where_the_checkpoints_template_confirms_it(tmp_path: Path) -> None:
    folder = specimen_model(tmp_path / "m", "trl/qwen3")
    codec = load_codec(folder, model_name="Qwen/Qwen3-8B")
    assert isinstance(codec, FamilyCodec)
    assert codec.name.startswith("renderers/qwen3@")


@pytest.mark.parametrize("name", ["trl/qwen3", "trl/glm4moe", "trl/nemotron_3_nano"])
def test_a_variant_renders_as_the_template_does_under_its_variables(name: str, tmp_path: Path) -> None:
    """Whether by the family or, where that differs, by the bridge."""
    folder = specimen_model(tmp_path, name)
    codec = load_codec(folder, model_name="Qwen/Qwen3-8B" if name == "trl/qwen3" else "")
    plain = load_codec(folder, renderer="template", template_kwargs={"enable_thinking": False})
    assert codec.takes({"enable_thinking": False, "reasoning_effort": "low"}) == {"enable_thinking": False}
    off = codec.variant({"enable_thinking": False})
    assert talk(off) == talk(plain) != talk(codec)


def test_auto_does_not_take_a_family_that_differs_from_the_checkpoints_template(tmp_path: Path) -> None:
    folder = specimen_model(tmp_path / "m", "trl/qwen3")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("# Tools", "# Your tools"))
    codec = load_codec(folder, model_name="Qwen/Qwen3-8B")
    assert isinstance(codec, TemplateCodec)


def test_a_family_that_is_named_is_taken_at_its_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = specimen_model(tmp_path / "m", "trl/qwen3")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("# Tools", "# Your tools"))
    assert isinstance(load_codec(folder, renderer="qwen3"), FamilyCodec)
    assert "Your tools" in caplog.text


def test_the_bridge_can_be_asked_for(tmp_path: Path) -> None:
    folder = specimen_model(tmp_path / "m", "trl/qwen3")
    codec = load_codec(folder, renderer="template", model_name="Qwen/Qwen3-8B")
    assert isinstance(codec, TemplateCodec)


def test_a_template_that_always_forks_runs_if_it_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = model(tmp_path / "m", "{% for m in messages %}{{ m.content }}\n" + NEXT)
    codec = load_codec(folder, renderer="template")
    assert "every later turn will fork" in caplog.text
    found = codec.bridge(array("i", [1]), array("i", codec.stop_ids[:1]), (user("a"),), (), closed=True)
    assert found == ForkReason.TEMPLATE_NOT_ADDITIVE


def test_loading_a_plain_checkpoint_imports_neither_renderers_nor_transformers(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    code = (
        "import sys; from sandgate.gateway.tokens.load import load_codec; load_codec(sys.argv[1]);"
        "print([name for name in ('renderers', 'transformers', 'torch', 'pydantic', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_ids_below_the_vocabulary_size_exist() -> None:
    codec = load_codec(SHOP)
    assert codec.decode(array("i", [codec.vocab_size - 1]))
    assert len(codec.tokenizer_digest) == 64


OUTPUTS: dict[str, tuple[dict[str, Any], int]] = {
    "an output layer that is padded": ({"vocab_size": 99_999}, 99_999),
    "that of a model that sees": ({"text_config": {"vocab_size": 99_999}}, 99_999),
    "one that is smaller than the tokenizer": ({"vocab_size": 3}, 0),
    "one of which nothing is told": ({}, 0),
    "one of which nonsense is told": ({"vocab_size": "many", "text_config": 5}, 0),
}


@pytest.mark.parametrize(("config", "found"), OUTPUTS.values(), ids=OUTPUTS)
def test_the_vocabulary_is_that_of_the_output_layer(
    config: dict[str, Any], found: int, tmp_path: Path
) -> None:
    folder = model(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps(config))
    codec = load_codec(folder)
    own = read_checkpoint(folder).vocab.size
    assert codec.vocab_size == codec.variant({}).vocab_size == max(own, found)

"""The doctor tells a fit model and engine from unfit ones by measuring, and says what to fix."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from sandgate.gateway.tokens.load import load_codec
from sandgate.trainer.cli import doctor as command
from sandgate.trainer.cli.command import app
from sandgate.trainer.doctor.findings import Finding
from tests.gateway.tokens.lab import CHATML, QWEN_PLAIN, train, write_model
from tests.gateway.tokens.zoo import zoo
from tests.support.vllm import Vllm

CHATML_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOGITS = {5: 3.0, 6: 2.0, 7: 1.0, 8: 0.5, 9: 0.0}
"""What the fake engine's model thinks of five tokens; of the others nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy model folder."""
    made = write_model(
        tmp_path_factory.mktemp("model") / "m",
        train("qwen", CHATML, QWEN_PLAIN),
        CHATML_TEMPLATE,
        model_max_length=4096,
    )
    codec = load_codec(made)
    (made / "generation_config.json").write_text(json.dumps({"eos_token_id": list(codec.stop_ids)}))
    (made / "config.json").write_text(
        json.dumps({"max_position_embeddings": 4096, "tie_word_embeddings": False})
    )
    return made


class Fake:
    """vLLM 0.32's answers, as recorded in the shapes of its token_in_token_out/protocol.py, over known logits."""

    def __init__(self, folder: Path, **faults: Any) -> None:
        self.codec = load_codec(folder)
        self.tokenizer = self.codec.vocab  # type: ignore[attr-defined]
        self.faults: dict[str, Any] = {
            "mode": "processed",
            "version": "0.32.0+cpu",
            "max_model_len": 2048,
            "max_logprobs": 20,
        } | faults

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path in self.faults:
            return httpx.Response(self.faults[path], json={"error": "no"})
        body = json.loads(request.content) if request.content else None
        asked = (body or {}).get("sampling_params", body or {})
        if asked.get("logprobs", 0) > self.faults["max_logprobs"]:
            return httpx.Response(400, json={"error": {"message": "greater than max allowed"}})
        if asked.get("allowed_token_ids") and self.faults.get("opaque"):
            return httpx.Response(400, json={"error": {"message": "no allowed_token_ids"}})
        if "structural_tag" in (asked.get("structured_outputs") or {}) and self.faults.get("no_tags"):
            return httpx.Response(
                400, json={"error": {"message": "Invalid grammar specification: 'triggers'"}}
            )
        return httpx.Response(200, json=self.answer(path, body))

    def answer(self, path: str, body: Any) -> Any:
        match path:
            case "/version":
                return {"version": self.faults["version"]}
            case "/v1/models":
                return {"data": [{"id": "tiny", "max_model_len": self.faults["max_model_len"]}]}
            case "/inference/v1/generate":
                return self.generate(body["sampling_params"])
            case "/v1/completions":
                (choice,) = self.generate(body)["choices"]
                (entry,) = choice.pop("logprobs")["content"]
                tops = {f"token_id:{one['token_id']}": one["logprob"] for one in entry["top_logprobs"]}
                columns = {"token_logprobs": [entry["logprob"]], "top_logprobs": [tops]}
                return {"choices": [{**choice, "logprobs": columns}]}
            case "/tokenize":
                return {"tokens": self.tokenize(body)}
            case "/server_info":
                return {"vllm_config": {"speculative_config": self.faults.get("drafts")}}
            case "/detokenize":
                return {"prompt": self.tokenizer.decode(body["tokens"])}
            case _:
                return {}

    def tokenize(self, body: Any) -> list[int]:
        text = body.get("prompt")
        if text is None:
            said = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in body["messages"])
            text = said + self.faults.get("header", "<|im_start|>assistant\n")
        found: list[int] = self.tokenizer.encode(text).tolist()
        return [*found, *self.faults.get("extra", [])]

    def generate(self, sampling: dict[str, Any]) -> Any:
        warm = 1 / (sampling["temperature"] or 1.0)
        mode, only = self.faults["mode"], sampling.get("allowed_token_ids") or [5]
        scale = 1.0 if mode == "raw" else warm
        scaled = {token: logit * scale for token, logit in LOGITS.items()}
        total = 0.0 if mode == "logits" else math.log(sum(map(math.exp, scaled.values())))
        left = len(LOGITS) if mode in ("raw", "logits") or sampling.get("top_k", 0) < 1 else sampling["top_k"]
        if left == 1:
            total = max(scaled.values())
        if "allowed_token_ids" in sampling and mode == "processed":
            total = scaled[only[0]]
        entries = [
            {"token_id": token, "logprob": value - total if at < left else -9999.0}
            for at, (token, value) in enumerate(scaled.items())
        ]
        count = sampling["max_tokens"]
        chosen = next(entry for entry in entries if entry["token_id"] == only[0])
        content = [dict(chosen) | {"top_logprobs": entries[: sampling["logprobs"]]} for _ in range(count)]
        content[0]["logprob"] = self.faults.get("logprob", content[0]["logprob"])
        content = content[: count - self.faults.get("lost", 0)]
        spans = self.faults.get("spans", [{"version": "default", "start": 0, "end": count}])
        choice = {"token_ids": only * count, "logprobs": {"content": content}, "weight_versions": spans}
        return {"choices": [choice]}


def examine(folder: Path | None, engine: Fake | None) -> dict[str, Finding]:
    transport = httpx.MockTransport(engine) if engine else None
    found = list(command.examine(folder, "http://engine:8000" if engine else None, transport))
    assert len({finding.check for finding in found}) == len(found), "one line per check"
    return {finding.check: finding for finding in found}


def test_a_healthy_pair_has_no_complaints(folder: Path) -> None:
    found = examine(folder, Fake(folder))
    assert {name: finding.verdict for name, finding in found.items() if finding.verdict != "ok"} == {}
    assert {
        "codec",
        "stop ids",
        "token ids in",
        "logprobs mode",
        "structured outputs",
        "template",
        "tokenizer parity",
    } <= found.keys()
    assert all(not finding.fix for finding in found.values())


ENGINES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "not healthy": ({"/health": 500}, "engine", "fail", "start the engine"),
    "started without token ids": (
        {"/inference/v1/generate": 403},
        "token ids in",
        "fail",
        "--enable-scale-out",
    ),
    "too old for token ids": ({"/inference/v1/generate": 404}, "token ids in", "fail", "--enable-scale-out"),
    "refusing our ids": ({"/inference/v1/generate": 400}, "token ids in", "fail", "refused ids"),
    "an old version": ({"version": "0.29.1"}, "version", "warn", "upgrade to 0.32"),
    "raw logprobs": ({"mode": "raw"}, "logprobs mode", "warn", "--logprobs-mode processed_logprobs"),
    "raw logprobs where it gives no alternatives": (
        {"mode": "raw", "max_logprobs": 0},
        "logprobs mode",
        "warn",
        "--logprobs-mode processed_logprobs",
    ),
    "logits where it gives no alternatives": (
        {"mode": "logits", "max_logprobs": 0},
        "logprobs mode",
        "fail",
        "--logprobs-mode",
    ),
    "a mode that cannot be told": (
        {"mode": "raw", "max_logprobs": 0, "opaque": True},
        "logprobs mode",
        "fail",
        "--max-logprobs 5 or more",
    ),
    "logits for logprobs": ({"mode": "logits"}, "logprobs mode", "fail", "--logprobs-mode"),
    "logprobs of nothing known": ({"mode": "raw", "logprob": -9999.0}, "logprobs", "fail", "NaN"),
    "positive logprobs": ({"logprob": 0.5}, "logprobs", "fail", "see its log"),
    "fewer logprobs than ids": ({"lost": 1}, "logprobs", "fail", "version"),
    "forms at a backend that does not know them": (
        {"no_tags": True},
        "structured outputs",
        "warn",
        """--structured-outputs-config '{"backend": "xgrammar"}'""",
    ),
    "drafts that are taken too often": (
        {"drafts": {"rejection_sample_method": "fly"}},
        "drafts",
        "fail",
        "the method standard (its default) or block",
    ),
    "no versions": ({"spans": []}, "weight version", "warn", "weight_update"),
    "a time stamp for a version": (
        {"spans": [{"version": "1764451234567", "start": 0, "end": 4}]},
        "weight version",
        "warn",
        "weight_update",
    ),
    "a longer window than the weights": (
        {"max_model_len": 8192},
        "max_model_len",
        "fail",
        "--max-model-len 4096",
    ),
    "no control plane": ({"/is_paused": 404}, "weight updates", "warn", "VLLM_SERVER_DEV_MODE=1"),
    "another template": ({"header": "<|im_start|>bot\n"}, "template", "warn", "serve the folder"),
    "another tokenizer": ({"extra": [1]}, "tokenizer parity", "fail", "different tokenizers"),
    "no model": ({"/v1/models": 500}, "model", "fail", "serve a model"),
}


@pytest.mark.parametrize(("faults", "check", "verdict", "fix"), ENGINES.values(), ids=ENGINES)
def test_an_unfit_engine_is_told_what_to_fix(
    folder: Path, faults: dict[str, Any], check: str, verdict: str, fix: str
) -> None:
    found = examine(folder, Fake(folder, **faults))[check]
    assert (found.verdict, fix in found.fix) == (verdict, True), found


def test_an_engine_without_alternatives_can_be_judged(folder: Path) -> None:
    assert examine(folder, Fake(folder, max_logprobs=0))["logprobs mode"].verdict == "ok"


def test_an_engine_alone_can_be_judged(folder: Path) -> None:
    found = examine(None, Fake(folder, spans=[{"version": "step-7", "start": 0, "end": 4}]))
    assert {finding.verdict for finding in found.values()} == {"ok"}
    assert "step-7" in found["weight version"].detail
    assert "template" not in found


def test_an_engine_s_url_is_asked_for_without_v1() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(404))
    (said,) = command.examine(None, "http://web:80/v1", transport)
    assert (said.verdict, said.fix) == ("fail", "give its URL without /v1")


def test_something_that_is_no_engine_is_told_so() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"data": "x", "version": 1}))
    found = list(command.examine(None, "http://web:80", transport))
    assert found[-1].verdict == "fail"
    assert "vLLM" in found[-1].fix


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def with_json(name: str, **values: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(json.dumps(values))


def with_template(source: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "chat_template.jinja").write_text(source)


FOLDERS: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "no tokenizer": (without("tokenizer.json"), "tokenizer", "fail", "save_pretrained"),
    "no chat template": (without("chat_template.jinja"), "codec", "fail", "chat_template.jinja"),
    "a template that shows no tools": (
        with_template(CHATML_TEMPLATE.replace("if tools", "if false")), "tools", "warn", "shows tools",
    ),
    "a template that writes calls as nobody else does": (
        with_template(CHATML_TEMPLATE.replace("tool_call>", "do>")), "tools", "warn", "keeps calls",
    ),
    "a family whose calls no engine can be held to": (
        with_template(zoo()["trl/lfm2_v2"].source), "forms", "warn", "parallel_tool_calls: false",
    ),
    "an image processor that is not served": (
        with_json("preprocessor_config.json", image_processor_type="MllamaImageProcessor"),
        "images", "warn", "docs/protocols.md has the processors that are served",
    ),
    "a broken tokenizer": (with_json("tokenizer.json", x=1), "codec", "fail", ""),
    "no generation config": (without("generation_config.json"), "stop ids", "warn", "eos_token_id"),
    "an end that is no id": (with_json("generation_config.json", eos_token_id=2.5), "stop ids", "warn", "eos_token_id"),
    "another end of turn": (with_json("generation_config.json", eos_token_id=0), "stop ids", "warn", "eos_token_id"),
    "a tied head": (with_json("config.json", tie_word_embeddings=True), "output head", "warn", "save the model"),
    "a tied head of a multimodal model": (
        with_json("config.json", text_config={"tie_word_embeddings": True}), "output head", "warn", "save the model",
    ),
    "no config": (without("config.json"), "output head", "skip", ""),
    "a promise of more than the weights hold": (
        with_json("config.json", max_position_embeddings=1024), "window", "warn", "model_max_length to 1024",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("harm", "check", "verdict", "fix"), FOLDERS.values(), ids=FOLDERS)
def test_an_unfit_folder_is_told_what_to_fix(
    folder: Path, tmp_path: Path, harm: Callable[[Path], object], check: str, verdict: str, fix: str
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    harm(copy)
    found = examine(copy, None)[check]
    assert (found.verdict, fix in found.fix) == (verdict, True), found


def test_the_command_prints_what_to_do_and_fails(folder: Path, tmp_path: Path) -> None:
    good = CliRunner().invoke(app, ["doctor", "--model", str(folder)])
    assert good.exit_code == 0
    bad = CliRunner().invoke(app, ["doctor", "--model", str(tmp_path)])
    assert bad.exit_code == 1
    assert "-> save it with" in bad.stdout


def test_the_command_as_json(folder: Path) -> None:
    said = CliRunner().invoke(
        app, ["doctor", "--model", str(folder), "--engine-url", "http://127.0.0.1:9", "--json"]
    )
    assert said.exit_code == 1
    last = json.loads(said.stdout)[-1]
    assert (last["check"], last["verdict"]) == ("engine", "fail")


@pytest.mark.vllm
def test_the_real_engine_is_fit(vllm: Vllm) -> None:
    """All checks against vLLM itself, with the model it serves: the fake above says what this one says."""
    found = {finding.check: finding for finding in command.examine(vllm.folder, vllm.url)}
    assert {name: finding for name, finding in found.items() if finding.verdict != "ok"} == {}
    assert found["logprobs mode"].detail.startswith("processed")
    assert {"template", "tokenizer parity", "weight version", "token ids in"} <= found.keys()

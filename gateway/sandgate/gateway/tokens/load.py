"""Loads the codec of a model folder: the family renderer where proved equal, else the proved bridge, else a refusal."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandgate.contract.errors import BadManifest, BadRequest
from sandgate.gateway.media.pictures import installed
from sandgate.gateway.media.rules import Checkpoint as Seen
from sandgate.gateway.media.vision import Vision, vision_of
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.tokens.bridge import Tail
from sandgate.gateway.tokens.client_text import SpecialText
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.history_check import History
from sandgate.gateway.tokens.parity import difference
from sandgate.gateway.tokens.renderers_codec import FamilyCodec, FamilyError, family_of
from sandgate.gateway.tokens.template import ChatTemplate
from sandgate.gateway.tokens.variants import Variants
from sandgate.gateway.tokens.vocab import Vocab

logger = logging.getLogger(__name__)

TOKENIZER_BYTES_MAX = 512 * 1024 * 1024
"""Size limit of tokenizer.json; that of the largest vocabularies in use is 35 MB."""

TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that templates see by name, as Hugging Face passes them."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model folder's facts about its tokens."""

    vocab: Vocab
    template: str | None
    tokens: Mapping[str, str]
    eos_ids: tuple[int, ...]
    names: tuple[str, ...] = ()
    """Names of this checkpoint, most specific first."""
    templates: Mapping[str, str] = field(default_factory=dict)
    """Named templates besides the default."""
    vision: Vision | str = "a model of text"
    """How the model sees pictures, or why it does not."""
    output_ids: int = 0
    """See `PlainText.output_ids`."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A job's settings for its codec."""

    history: History
    special_text: SpecialText


def load_codec(
    model_dir_or_name: Path | str,
    *,
    renderer: str = "auto",
    history: str = "sampled",
    special_text: str = "text",
    template_kwargs: Mapping[str, Any] | None = None,
    model_name: str = "",
) -> Codec:
    """The codec of a model folder (tokenizer.json, tokenizer_config.json, chat template, generation_config.json).

    `renderer`: `auto` (a family of the `renderers` package if it renders probe conversations exactly as the
    checkpoint's own template does, else the proved bridge), `template` (the bridge, even if every turn will fork), or a
    family's name (`qwen3`), which is then used without that check. `history`: `sampled` or `template`. `special_text`:
    `text` or `control`: what becomes of a control token that a client's text spells. `template_kwargs`: extra template
    variables (`enable_thinking`). `model_name`: the model's Hugging Face name, if the folder's own name is another.

    A name that is no folder is searched in the local Hugging Face cache; nothing is downloaded. Raises BadManifest,
    which says what was tried and why it failed.
    """
    if history not in ("sampled", "template"):
        raise BadManifest(
            f"historyPolicy is sampled or template, not {history!r}", field="spec.model.historyPolicy"
        )
    if special_text not in ("text", "control"):
        raise BadManifest(
            f"specialTokensInText is text or control, not {special_text!r}",
            field="spec.model.specialTokensInText",
        )
    rules = Rules(
        "sampled" if history == "sampled" else "template",
        "text" if special_text == "text" else "control",
    )
    checkpoint = read_checkpoint(find_folder(model_dir_or_name), model_name or str(model_dir_or_name))
    own, name = dict(template_kwargs or {}), str(model_dir_or_name)
    codec = _codec(checkpoint, renderer, rules, own, name)
    template = _template(checkpoint, own) if checkpoint.template is not None else None
    codec.variants = Variants(
        template.takes() if template else frozenset(),
        lambda values: _codec(checkpoint, renderer, rules, {**own, **values}, name),
        template.efforts() if template else frozenset(),
    )
    return codec


def _codec(
    checkpoint: Checkpoint, renderer: str, rules: Rules, variables: dict[str, Any], name: str
) -> TemplateCodec | FamilyCodec:
    """The codec under these template variables. Raises BadManifest, which calls the model `name`."""
    tried: list[str] = []
    codec: TemplateCodec | FamilyCodec | None = None
    if renderer == "auto" and isinstance(checkpoint.vision, Vision):  # families render text only
        codec = _bridge(checkpoint, rules, variables, tried, at_any_price=False)
        codec = codec if codec is not None and codec.vision is not None else None
    if codec is None and renderer != "template":
        codec = _family(checkpoint, renderer, rules, variables, tried)
    if codec is None and renderer in ("auto", "template"):
        codec = _bridge(checkpoint, rules, variables, tried, at_any_price=renderer == "template")
    if codec is None:
        why = "; ".join(tried) or "nothing"
        raise BadManifest(f"no codec for {name}; tried: {why}", field="spec.model.renderer")
    for note in tried:
        logger.info("codec of %s: not %s", name, note)
    codec.output_ids = checkpoint.output_ids
    if codec.vision is None:
        codec.no_images = checkpoint.vision if isinstance(checkpoint.vision, str) else codec.no_images
        logger.info("%s is given no images: %s", name, codec.no_images)
    return codec


def _family(
    checkpoint: Checkpoint, renderer: str, rules: Rules, variables: dict[str, Any], tried: list[str]
) -> FamilyCodec | None:
    """The family renderer: as named, or as `auto` finds it and the checkpoint's own template confirms it."""
    family = family_of(checkpoint.names) if renderer == "auto" else renderer
    if family is None:
        return None
    name = next(iter(checkpoint.names), "")
    try:
        codec = FamilyCodec(
            family,
            checkpoint.vocab,
            eos_ids=checkpoint.eos_ids,
            history=rules.history,
            variables=variables,
            model_name=name,
            template=checkpoint.template or "",
            special_text=rules.special_text,
            joint=_template(checkpoint, variables).dialect.joint if checkpoint.template is not None else "\n",
        )
    except FamilyError as error:
        tried.append(f"renderers/{family}: {error}")
        return None
    if checkpoint.template is None:
        differs = "the checkpoint has no chat template to compare with"
    else:
        differs = difference(codec, _template(checkpoint, variables), checkpoint.vocab)
    if differs and renderer == "auto":
        tried.append(f"renderers/{family}: {differs}")
        return None
    if differs:
        logger.warning("renderer %s was named for %s, but %s", family, name, differs)
    return codec


def _template(checkpoint: Checkpoint, variables: dict[str, Any]) -> ChatTemplate:
    """Raises InvalidBody if the template does not compile."""
    vision = checkpoint.vision if isinstance(checkpoint.vision, Vision) else None
    return ChatTemplate(
        checkpoint.template or "",
        tokens=checkpoint.tokens,
        variables=variables,
        placeholder=vision.text if vision else "",
        wrapped=vision.wrapped if vision else "",
        video=vision.video.text if vision and vision.video else "",
    )


def _bridge(
    checkpoint: Checkpoint,
    rules: Rules,
    variables: dict[str, Any],
    tried: list[str],
    *,
    at_any_price: bool,
) -> TemplateCodec | None:
    """The generic bridge, if it can render and at least one tail shape is additive, or it was asked for."""
    if checkpoint.template is None:
        tried.append("template: the checkpoint has no chat template")
        return None
    try:
        template = _template(checkpoint, variables)
    except BadRequest as error:
        tried.append(f"template: {error}")
        return None
    codec = TemplateCodec(
        template,
        checkpoint.vocab,
        eos_ids=checkpoint.eos_ids,
        history=rules.history,
        special_text=rules.special_text,
        vision=checkpoint.vision if isinstance(checkpoint.vision, Vision) else None,
    )
    shapes = codec.shapes()
    if not any(isinstance(shape, Tail) for shape in shapes.values()):
        why = "; ".join(
            f"{name}: {shape.why}" for name, shape in shapes.items() if not isinstance(shape, Tail)
        )
        if not at_any_price:
            tried.append(
                f"template: no tail is additive ({why}); `renderer: template` runs it with a fork each turn"
            )
            return None
        logger.warning("every later turn will fork, no tail is additive: %s", why)
    return codec


def find_folder(model: Path | str) -> Path:
    """A folder as it is, or the newest local snapshot of a Hugging Face name. Raises BadManifest."""
    folder = Path(model)
    if (folder / "tokenizer.json").is_file():
        return folder
    if not folder.exists() and str(model).count("/") == 1:
        cached = hub_cache(os.environ) / ("models--" + str(model).replace("/", "--")) / "snapshots"
        tokenizers = sorted(cached.glob("*/tokenizer.json"), key=lambda path: path.stat().st_mtime)
        if tokenizers:
            return tokenizers[-1].parent
    raise BadManifest(
        f"{model}: no tokenizer.json there, and not in the local cache", field="spec.model.tokenizer"
    )


def hub_cache(env: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps snapshots: HF_HUB_CACHE, else hub/ in HF_HOME, else the user's cache."""
    home = env.get("HF_HOME") or os.path.join(
        env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    return Path(env.get("HF_HUB_CACHE") or os.path.join(home, "hub"))


def read_checkpoint(folder: Path, name: str = "") -> Checkpoint:
    """Read a model folder. Raises BadManifest if a file is missing, too large or not what it should be."""
    path = folder / "tokenizer.json"
    if path.stat().st_size > TOKENIZER_BYTES_MAX:
        raise BadManifest(f"{path} is larger than {TOKENIZER_BYTES_MAX} bytes", field="spec.model.tokenizer")
    try:
        vocab = Vocab(path.read_bytes())
    except Exception as error:
        raise BadManifest(f"{path} is no tokenizer: {error}", field="spec.model.tokenizer") from error
    config = _json(folder / "tokenizer_config.json")
    tokens = _tokens(config) | _tokens(_json(folder / "special_tokens_map.json"), known=config)
    templates = _templates(folder, config)
    model_config = _json(folder / "config.json")
    names = (name, str(model_config.get("_name_or_path", "")), str(config.get("name_or_path", "")))
    return Checkpoint(
        vocab=vocab,
        template=templates.pop("default", None),
        tokens=tokens,
        eos_ids=_eos(vocab, tokens, _json(folder / "generation_config.json"), model_config),
        names=tuple(dict.fromkeys(n for n in names if n)),
        templates=templates,
        vision=_vision(folder, model_config, vocab),
        output_ids=_output_ids(model_config),
    )


def _output_ids(config: Mapping[str, Any]) -> int:
    """Of config.json; of a model that sees, its text's part."""
    text = config.get("text_config")
    told = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    return told if isinstance(told, int) and told > 0 else 0


def _vision(folder: Path, model_config: Mapping[str, Any], vocab: Vocab) -> Vision | str:
    """The vision of the checkpoint, if this installation can decode pictures."""
    image, processor = _json(folder / "preprocessor_config.json"), _json(folder / "processor_config.json")
    if not image:  # as transformers 5 writes it
        inner = processor.get("image_processor")
        image = inner if isinstance(inner, dict) else {}
    video = _json(folder / "video_preprocessor_config.json") or processor.get("video_processor") or image
    video = video if isinstance(video, dict) else {}
    found = vision_of(Seen(image, processor, model_config, vocab.texts, vocab.encode, video))
    if isinstance(found, Vision) and not installed():
        found = "Pillow is not installed here: pip install 'sandgate[gateway-vision]'"
        logger.warning("%s takes images, but %s", folder, found)
    return found


def _json(path: Path) -> dict[str, Any]:
    """Empty where there is none. What is there and cannot be read may say which ids end a generation."""
    if not path.is_file():
        if path.is_symlink():  # of a hub's cache, as an interrupted download leaves it
            raise BadManifest(f"{path} is a link that leads to no file", field="spec.model.tokenizer")
        return {}
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise BadManifest(f"{path} is not JSON: {error}", field="spec.model.tokenizer") from error
    if not isinstance(value, dict):
        raise BadManifest(f"{path} is no JSON object", field="spec.model.tokenizer")
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise BadManifest(f"{path} is not UTF-8 text: {error}", field="spec.model.tokenizer") from error


def _tokens(config: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Special tokens by name; a token is a string or an object with `content`."""
    found = {}
    for name in TOKEN_NAMES:
        token = config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and not (known and known.get(name) is not None):
            found[name] = text
    return found


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> source. A file beats the entry in tokenizer_config.json, as in Hugging Face."""
    templates: dict[str, str] = {}
    entry = config.get("chat_template")
    if isinstance(entry, str):
        templates["default"] = entry
    elif isinstance(entry, list):
        templates |= {item["name"]: item["template"] for item in entry if isinstance(item, dict)}
    elif isinstance(entry, dict):
        templates |= {str(name): str(source) for name, source in entry.items()}
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _text(path)
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = _text(folder / "chat_template.jinja")
    elif (source := _json(folder / "chat_template.json").get("chat_template")) and isinstance(source, str):
        templates.setdefault("default", source)
    if "default" not in templates and "tool_use" in templates:
        templates["default"] = templates["tool_use"]
    return templates


def _eos(vocab: Vocab, tokens: Mapping[str, str], *configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that end a generation: the tokenizer's, then what generation_config.json and config.json list."""
    ids: list[int] = []
    if "eos_token" in tokens and (eos := vocab.id_of(tokens["eos_token"])) is not None:
        ids.append(eos)
    for config in configs:
        listed = config.get("eos_token_id")
        several = listed if isinstance(listed, list) else [listed]
        ids += [token_id for token_id in several if isinstance(token_id, int) and 0 <= token_id < vocab.size]
    return tuple(dict.fromkeys(ids))

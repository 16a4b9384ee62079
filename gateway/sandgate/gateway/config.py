"""Settings of a gateway process: limits, time-outs, defaults, with units and reasons; read from one JSON file."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints
from urllib.parse import urlsplit

import msgspec

from sandgate.contract.choices import EngineKind
from sandgate.contract.errors import BadManifest
from sandgate.contract.keys import SECRET_BYTES_MIN
from sandgate.contract.kinds import BASE_URL, INT32_MAX
from sandgate.contract.manifest_decoder import INT64_MAX
from sandgate.contract.media_hosts import first_wrong
from sandgate.contract.serving import RoleRule


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Listen(_Strict, frozen=True, kw_only=True):
    """Where to accept: an inherited listening socket (`fd`), or host and port."""

    fd: int | None = None
    """A supervisor that owns the socket keeps connections queued in the kernel while this process restarts."""
    host: str = "127.0.0.1"
    port: int = 0


class EngineConfig(_Strict, frozen=True, kw_only=True):
    """The inference servers."""

    urls: tuple[str, ...] = ()
    """Where they are at the start; PUT /v1/engines replaces them while the gateway runs. Empty only with `wait`."""
    wait: bool = False
    """Start without an engine, and be ready while none answers: turns get 503 until one does. For gateways that are
    told of their engines later, and must take sessions before."""
    kind: EngineKind = EngineKind.VLLM
    """Whose API they speak."""
    logprobs_mode: Literal["processed_logprobs", "raw_logprobs"] = "processed_logprobs"
    """As the engine was started; recorded beside the data. It is measured before a replica's first turn, and one
    that is in another mode is not used."""
    model: str = ""
    """The engine's name of the model; empty = `model.name`."""
    timeout_s: float = 1800.0
    """One generation at most; a longer one is a dead engine."""


class Peers(_Strict, frozen=True, kw_only=True):
    """Gateways that share the engines, so that they do not all send their sessions to the same ones."""

    count: int = 1
    """This one included."""
    name: str = ""
    """Of this one among them; it ends with its number from 0, as a pod's of a StatefulSet does. `$(NAME)` as in
    `origin`."""

    @property
    def place(self) -> int:
        """Its number."""
        number = re.search(r"[0-9]{1,9}$", self.name)
        return int(number[0]) % self.count if number else 0


class ModelConfig(_Strict, frozen=True, kw_only=True):
    """The job's model."""

    name: str
    tokenizer: str
    """Directory with tokenizer.json and the chat template."""
    renderer: str = "auto"
    history_policy: Literal["sampled", "template"] = "sampled"
    special_tokens_in_text: Literal["text", "control"] = "text"
    """What becomes of a control token (`<|im_end|>`) that a client's text spells: words, or the token."""
    max_model_len: int = 0
    """Tokens of prompt + answer; 0 = ask the engine."""
    template_kwargs: dict[str, Any] = {}


class SamplingConfig(_Strict, frozen=True, kw_only=True):
    """The job's sampling: defaults for agents, or, with `override`, instead of theirs."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    override: bool = False


class SessionLimits(_Strict, frozen=True, kw_only=True):
    """Defaults for sessions that do not bring their own; 0 = none."""

    turns: int = 1000
    """Sampled; agents take tens, and a runaway one is ended."""
    total_tokens: int = 10_000_000
    """Unique ones of its tree, which is in memory: 40 MB, or a hundred histories of 100,000 that have nothing in
    common."""
    journal_bytes: int = 256 * 1024 * 1024
    """Of its records. Beyond it turns are refused; it can still be rewarded and completed. A turn takes 12 bytes for
    each sampled token, 4 for each new one of its prompt, and 300 more with 20 `top_logprobs`."""
    prompt_tokens: int = 0
    """Of a conversation's first prompt: what the trainer takes of a row. More is a 400, before anything is sampled."""
    response_tokens: int = 0
    """Of all that follows it in one conversation, sampled or not: answers end there, a longer history is a 400."""


class Limits(_Strict, frozen=True, kw_only=True):
    """On everything a client can grow."""

    body_bytes: int = 32 * 1024 * 1024
    """CLI agents send 45-85 kB; images and 128k-token histories stay under this."""
    body_s: float = 60.0
    """From a request's head to the end of its body: whoever sends a byte now and then holds what he sent before. The
    largest body takes 4.5 Mbit/s."""
    write_s: float = 60.0
    """Whoever reads neither a MiB nor all of what waits for him in this time is cut. His turn is kept as it was
    captured, and a retry gets it. The slowest that is served reads 140 kbit/s."""
    buffered_bytes: int = 256 * 1024 * 1024
    """Of bodies that were received and are not understood yet; beyond it 429. A body takes milliseconds: 256 agents may
    send a megabyte at the same moment."""
    buffered_bytes_per_key: int = 64 * 1024 * 1024
    """The same of one session: two of the largest bodies. Not less than `body_bytes`."""
    connections: int = 16_384
    """At once, as far as there are descriptors; each takes some 10 kB. Beyond it idle ones are cut, those without a key
    first, and a busy gateway answers 429. Probes are answered all the same."""
    connections_per_key: int = 256
    """The same of one session: what four in_flight_per_session need."""
    in_flight: int = 1024
    """Generations at once in this process; beyond it 429."""
    in_flight_per_session: int = 64
    """Sub-agents and n=8 fit; a runaway client does not take the process."""
    sessions: int = 20_000
    """Open at once; beyond it 429 on create."""
    tasks: int = 10_000
    """Pushed and not yet forgotten; beyond it 429 on push. 0 = the job has its tasks already, and nobody would work off
    what is pushed: 409."""
    task_bytes: int = 256 * 1024 * 1024
    """Of their prompts and data, as JSON: they are held in memory, and most datasets' tasks are a few kB."""
    pause_hold_s: float = 240.0
    """How long a weight update may hold a new turn; JS SDKs give up at 300 s."""
    gather_s: float = 0.04
    """Tokens that an engine streams within so many seconds are parsed and told together, the first of some at once. 0 =
    each event by itself, as it comes. Engines in use sample a token of an answer in 10 to 40 ms."""
    keepalive_s: float = 8.0
    """Silence on a stream before a real no-op event: an agent may count on one every 10 s."""
    linger_s: float = 10.0
    """A generation whose client vanished goes on this long, so that its retry joins it; SDK back-off is <= 8 s."""
    retire_s: float = 0.0
    """The records of a group are deleted this long after all of it was acknowledged; a line stays of each session, to
    say how it ended. 0 = never: a local run's journal is also its memory of what is finished."""
    drain_s: float = 25.0
    """SIGTERM: how long running turns may finish; Kubernetes kills at 30 s."""


class MediaConfig(_Strict, frozen=True, kw_only=True):
    """Whence images may come, beyond the request itself."""

    allowed_hosts: tuple[str, ...] = ()
    """Hosts from which images that agents name by address are fetched, each exactly as it is written:
    `images.example.com` (https), `images.example.com:8443`, `http://10.0.0.7:9000`. Empty = none are fetched."""
    private_addresses: bool = False
    """Whether names among them may lead to private addresses. Never to loopback, link-local or a cloud's metadata."""


class OutputConfig(_Strict, frozen=True, kw_only=True):
    """Where trajectories go when no trainer leases them."""

    parquet: str = ""
    """Folder, as a URL (`s3://bucket/folder`, `file:///...`) or an absolute path: a file for each whole group, which is
    then acknowledged. Empty = a trainer leases them. Needs the extra gateway-arrow."""


class Config(_Strict, frozen=True, kw_only=True):
    """Everything a gateway process is told."""

    listen: Listen = Listen()
    origin: str = ""
    """What agents reach it by (`http://127.0.0.1:8000`); goes into base_url. Empty = from `listen`. `$(NAME)` is the
    environment variable NAME, so that the pods of one StatefulSet can share a file."""
    journal: str
    """Path of the SQLite file, or `postgresql://...` of a shared database; `$(NAME)` as in `origin`."""
    name: str = ""
    """Of this gateway, unlike any other's: its journal is called so in a shared database. `$(NAME)` as in `origin`."""
    node: str = ""
    """Of the cluster, where this gateway runs: for a metric of the turns that stay on it. `$(NAME)` as in `origin`."""
    engine: EngineConfig
    peers: Peers = Peers()
    model: ModelConfig
    job: str = ""
    """Empty: sessions of any job, of which a trainer's key opens those of its own. Pause, resume and policy version are
    the process's all the same: jobs that do not trust each other have gateways of their own."""
    secret_file: str
    """Hex secret that signs keys; at least 16 bytes."""
    areal_admin_key: str = ""
    """Further admin key of AReaL's endpoints alone, for a trainer that is configured with one of its own; at least 16
    characters. AReaL's public default, `areal-admin-key`, only on loopback. Empty = ours only. `$(NAME)` as in
    `origin`."""
    limits: Limits = Limits()
    session_limits: SessionLimits = SessionLimits()
    sampling: SamplingConfig = SamplingConfig()
    output: OutputConfig = OutputConfig()
    key_ttl_s: float = 7 * 86400.0
    """Agent and reward keys: longer than any session; the session's end revokes them anyway."""
    docs: bool = False
    """Serve /docs, and /openapi.json to whoever reaches the port. Without this the description wants a key of the
    control API, and there is no /docs."""
    metrics: bool = True
    """Serve /metrics, without a key either: counts of this process, and nothing of a session."""
    lossy_echo: bool = True
    """Recognise an assistant turn by its call ids though its text was dropped or its arguments repaired
    ([rule N10](matching.md))."""
    shared_nodes: Literal["once", "every"] = "once"
    roles: tuple[RoleRule, ...] = ()
    """Which calls are side calls or a sub-agent's, beyond those that are known ([roles](../protocols.md#roles)); the
    first that fits counts."""
    media: MediaConfig = MediaConfig()
    log_level: str = "INFO"


REFERENCE = re.compile(r"\$(?P<escaped>\$?)\((?P<name>[A-Za-z_][A-Za-z0-9_.-]*)\)")
"""`$(NAME)`, as in the command of a container; `$$(NAME)` stands for the text `$(NAME)`."""
AREAL_DEFAULT_KEY = "areal-admin-key"
AREAL_KEY_CHARS_MIN = 16
"""A shorter one can be guessed; random text of 16 has 95 bits."""
EXPANDED = ("origin", "journal", "name", "node", "areal_admin_key")
PORT_MAX = 65_535
DATABASES = ("postgresql://", "postgres://")


def load(path: Path, env: Mapping[str, str] = os.environ) -> Config:
    """Read a config file; `$(NAME)` in `origin` and `journal` comes from `env`. Raises BadManifest naming the field."""
    config = _read(path)
    config = msgspec.structs.replace(
        config,
        peers=msgspec.structs.replace(config.peers, name=expanded(config.peers.name, env, "peers.name")),
        **{name: expanded(getattr(config, name), env, name) for name in EXPANDED},
    )
    if config.peers.count < 1:
        raise BadManifest(f"{path}: peers.count: at least 1, this gateway itself", field="peers.count")
    if not config.engine.urls and not config.engine.wait:
        raise BadManifest(f"{path}: engine.urls: no engine, and engine.wait is not set", field="engine.urls")
    if config.journal.startswith(DATABASES) and not config.name:
        raise BadManifest(f"{path}: name: a journal in a shared database needs one", field="name")
    if config.limits.buffered_bytes_per_key < config.limits.body_bytes:
        field = "limits.buffered_bytes_per_key"
        raise BadManifest(f"{path}: {field}: a body may have limits.body_bytes, which is more", field=field)
    _check_values(config, path)
    _check_areal_key(config, path)
    if misfit := first_wrong(config.media.allowed_hosts):
        field = f"media.allowed_hosts{misfit[0]}"
        raise BadManifest(f"{path}: {field}: {misfit[1]}", field=field)
    return config


def _check_values(config: Config, path: Path) -> None:
    """What its type takes, and nothing could be done with."""
    for field, value in _values(config):
        if isinstance(value, str) and "\0" in value:
            raise BadManifest(f"{path}: {field}: must not hold a NUL character", field=field)
        most = PORT_MAX if field == "listen.port" else INT32_MAX if field.endswith("_s") else INT64_MAX
        if isinstance(value, int | float) and not 0 <= value <= most:
            raise BadManifest(f"{path}: {field}: must be 0 to {most}, not {value:g}", field=field)
    for at, url in enumerate(config.engine.urls):
        if wrong := BASE_URL.wrong(url):
            raise BadManifest(f"{path}: engine.urls[{at}]: {wrong}", field=f"engine.urls[{at}]")
    if config.log_level not in logging.getLevelNamesMapping():
        listed = ", ".join(logging.getLevelNamesMapping())
        raise BadManifest(f"{path}: log_level: must be one of {listed}", field="log_level")


def _values(part: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Field -> value, of its parts too; sampling has bounds of its own, which the gateway holds it to."""
    for name, value in msgspec.structs.asdict(part).items():
        if isinstance(value, SamplingConfig):
            continue
        if isinstance(value, msgspec.Struct):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _check_areal_key(config: Config, path: Path) -> None:
    key, field = config.areal_admin_key, "areal_admin_key"
    if key == AREAL_DEFAULT_KEY:
        hosts = [config.listen.host] if config.listen.fd is None else [urlsplit(config.origin).hostname or ""]
        if not all(host == "localhost" or host.startswith("127.") or host == "::1" for host in hosts):
            raise BadManifest(f"{path}: {field}: everybody knows AReaL's default; loopback only", field=field)
    elif key and len(key) < AREAL_KEY_CHARS_MIN:
        raise BadManifest(f"{path}: {field}: at least {AREAL_KEY_CHARS_MIN} characters", field=field)


def expanded(text: str, env: Mapping[str, str], field: str) -> str:
    """`text` with its references replaced. Unlike in a container, an unset variable is an error: a session's URL would
    carry it. Raises BadManifest naming `field`."""

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return match[0][1:]
        if match["name"] not in env:
            raise BadManifest(f"{field}: the environment has no {match['name']}", field=field)
        return env[match["name"]]

    return REFERENCE.sub(value, text)


def _read(path: Path) -> Config:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Config)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        field = where.strip("`.")
        prefix = f"{field}: " if field else ""
        raise BadManifest(f"{path}: {prefix}{text}{_choices(field)}", field=field) from error
    except (OSError, msgspec.DecodeError, json.JSONDecodeError) as error:
        raise BadManifest(f"{path}: {error}") from error


def _choices(field: str) -> str:
    """The values that a field may have, where that is a list: msgspec names only the wrong one."""
    hint: Any = Config
    for name in field.split("."):
        hint = get_type_hints(hint).get(name) if isinstance(hint, type) else None
    if isinstance(hint, type) and issubclass(hint, Enum):
        values: tuple[Any, ...] = tuple(choice.value for choice in hint)
    else:
        values = tuple(choice for choice in get_args(hint) if isinstance(choice, str))
    return f"; it may be {', '.join(values)}" if values else ""


def read_secret(path: Path) -> bytes:
    """The signing secret. Raises BadManifest if it is missing or too short to be one."""
    try:
        secret = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise BadManifest(f"secret_file {path}: {error}", field="secret_file") from error
    if len(secret) < SECRET_BYTES_MIN:
        raise BadManifest(
            f"secret_file {path}: {len(secret)} bytes; at least {SECRET_BYTES_MIN} are needed",
            field="secret_file",
        )
    return secret

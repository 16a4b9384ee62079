"""Preflight of a run: whether the job can run here, with this model and this engine. No hub is asked."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sandgate.contract import descriptors
from sandgate.contract.errors import BadRequest, EngineFailed, EngineUnavailable
from sandgate.contract.job import EngineKind, EngineSpec, RolloutJob, Task
from sandgate.gateway.engine.factory import why_not
from sandgate.gateway.tokens.load import hub_cache, load_codec
from sandgate.operator.local.preflight import (
    TOKENIZER,
    Obstacle,
    files,
    found,
    meant,
    model_folder,
    own_engine,
    programs,
    served_name,
    tasks,
)

ENGINE_S = 10.0
"""How long an engine that should be up may take to answer."""
ENGINE_POLL_S = 0.5
ANSWER_S = 5.0
"""Of one answer of an engine that is up."""
MEASURE_S = 20.0
"""Of an engine that is up, for a generation of one token, which may wait behind others."""
CONFIGS = ("config.json", "params.json")
"""Of a folder with weights: one of them is there."""
WINDOW = "spec.model.maxModelLen"
SHOWN_MAX = 8
"""Models of an engine that are named."""
UNREACHED = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ExceptionGroup)
"""What httpx raises of a server that cannot be reached: ValueError of a name such as xn--a, a group of a port over
65535."""


@dataclass(slots=True)
class Checked:
    """The result of the checks."""

    findings: list[Obstacle] = field(default_factory=list)
    """Empty: nothing stands in the way."""
    tasks: tuple[Task, ...] | None = None
    """None if there is something wrong with them, or a trainer gives them while the job runs."""
    notes: list[str] = field(default_factory=list)
    """What stops no run, and may surprise."""


async def preflight(
    job: RolloutJob, manifest_dir: Path, *, engine_url: str | None = None, anew: bool = True
) -> Checked:
    """Everything that would stop the run, told at once. An engine that should be up is waited for, for ENGINE_S, if
    nothing else is wrong. `anew`: see `files`."""
    looked, model = await asyncio.gather(
        asyncio.to_thread(_look, job, manifest_dir, engine_url, anew),
        asyncio.to_thread(lambda: list(_model(job, manifest_dir, engine_url))),
    )
    made = Checked([*model, *looked.findings], looked.tasks, looked.notes)
    urls = [engine_url] if engine_url else list(job.spec.engine.endpoints or ())
    if urls:
        where = "--engine-url" if engine_url else "spec.engine.endpoints"
        name = served_name(job.spec)
        served, wrong = await engines(urls, where, name, ENGINE_S if not made.findings else 0.0)
        made.findings += wrong
        if not made.findings:
            made.findings += windows(served, name, job.spec.model.max_model_len)
            made.findings += await modes(urls, where, name, job.spec.engine)
    return made


def _look(job: RolloutJob, manifest_dir: Path, engine_url: str | None, anew: bool) -> Checked:
    ours, wrong = tasks(job, manifest_dir)
    own = [] if engine_url else list(own_engine(job, manifest_dir))
    too_few, notes = files(job, ours, descriptors.most(), anew=anew)
    return Checked([*wrong, *programs(job, manifest_dir), *too_few, *own], ours, notes)


def _model(job: RolloutJob, manifest_dir: Path, engine_url: str | None) -> Iterator[Obstacle]:
    """Its folder: tokenizer and chat template, and what an engine of ours needs beside them."""
    spec = job.spec.model
    folder = manifest_dir / spec.tokenizer
    managed = None if engine_url else job.spec.engine.managed
    if (missing := model_folder(job, manifest_dir)) is not None:
        yield missing
    else:
        try:
            load_codec(
                folder,
                renderer=spec.renderer,
                history=spec.history_policy.value,
                special_text=spec.special_tokens_in_text.value,
                template_kwargs=spec.template_kwargs,
                model_name=spec.name,
            )
        except BadRequest as error:
            at = error.field or TOKENIZER
            text = str(error)
            yield Obstacle(field=at, text=text if text.startswith(at) else f"{at}: {text}")
        else:
            if managed is not None and not managed.command and not managed.model:
                yield from _weights(folder, TOKENIZER)
    if managed is not None and not managed.command and managed.model:
        yield from _managed_model(managed.model, managed.env, manifest_dir)


def _managed_model(name: str, env: dict[str, str], manifest_dir: Path) -> Iterator[Obstacle]:
    """A folder, a file (GGUF), or what the local cache has of a hub."""
    at, path = "spec.engine.managed.model", manifest_dir / name
    if path.is_dir():
        yield from _weights(path, at)
    elif not path.exists() and env.get("HF_HUB_OFFLINE", "1") not in ("0", ""):
        cache = hub_cache(dict(os.environ) | env)
        snapshots = cache / ("models--" + name.replace("/", "--")) / "snapshots"
        if name.count("/") > 1 or not any(next(snapshots.glob(f"*/{one}"), None) for one in CONFIGS):
            yield found(
                at, f"{path}: no such folder{meant(path)}, and {name} is not in {cache}; no hub is asked"
            )


def _weights(folder: Path, at: str) -> Iterator[Obstacle]:
    for name in CONFIGS:
        if (folder / name).is_file():
            try:
                if isinstance(json.loads((folder / name).read_text("utf-8")), dict):
                    return
                yield found(at, f"{folder / name}: is no object")
            except (OSError, ValueError) as error:
                yield found(at, f"{folder / name}: {error}")
            return
    yield found(at, f"{folder}: has no config.json; the engine needs the weights too")


Served = Mapping[str, int]
"""Models of an engine -> tokens that it takes, 0 where it does not say."""


async def engines(
    urls: Sequence[str], at: str, model: str, within_s: float
) -> tuple[dict[str, Served], list[Obstacle]]:
    """What those serve that say it, and what is wrong. One of the engines that should be up answers `within_s`, and all
    that answer serve the model. A typing error in a URL is told now, not after the gateway's long patience with engines
    that restart."""
    async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as http:
        end = asyncio.get_running_loop().time() + within_s
        while True:
            answers = await asyncio.gather(*(_served(http, url) for url in urls))
            if any(not isinstance(one, str) for one in answers):
                break
            if asyncio.get_running_loop().time() >= end:
                why = "; ".join(str(one) for one in answers)
                return {}, [Obstacle(field=at, text=f"no engine answers: {why}", asked_wrongly=False)]
            await asyncio.sleep(ENGINE_POLL_S)
    said = {url: one for url, one in zip(urls, answers, strict=True) if isinstance(one, Mapping)}
    return said, [
        found(at, f"{url} does not serve {model}; it serves {_names([*names])}; see spec.engine.model")
        for url, names in said.items()
        if model not in names
    ]


async def _served(http: httpx.AsyncClient, url: str) -> Served | str | None:
    """Its models; None if it does not say, a text why it does not answer."""
    try:
        health = await http.get(f"{url.rstrip('/')}/health")
    except UNREACHED as error:
        return f"{url}: {_why(error)}"
    if health.is_error:
        more = "; give it without /v1" if url.rstrip("/").endswith("/v1") else ""
        return f"{url} answers {health.status_code} at /health, so no vLLM server is up there{more}"
    try:
        answer = await http.get(f"{url.rstrip('/')}/v1/models")
        return {str(one["id"]): _tokens(one.get("max_model_len")) for one in answer.json()["data"]}
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _why(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _tokens(told: object) -> int:
    return told if isinstance(told, int) else 0


def windows(served: Mapping[str, Served], model: str, wanted: int) -> list[Obstacle]:
    """Engines that take fewer tokens than the job asks for: its gateways would not start. One that does not say how
    many it takes is left to that."""
    return [
        found(WINDOW, f"{wanted} is more than the {most} tokens that {url} takes")
        for url, names in served.items()
        if 0 < (most := names.get(model, 0)) < wanted
    ]


async def modes(urls: Sequence[str], at: str, model: str, spec: EngineSpec) -> list[Obstacle]:
    """Engines that a gateway would not use: of another kind, or with logprobs of another mode than records would say.
    Each gateway asks again at its start; one that does not answer in time is left to that."""
    said = await asyncio.gather(*(_mode(url, model, spec) for url in urls))
    return [found(at, f"{url}: {why}") for url, why in zip(urls, said, strict=True) if why]


async def _mode(url: str, model: str, spec: EngineSpec) -> str:
    try:
        async with asyncio.timeout(MEASURE_S):
            return await why_not(url, kind=spec.kind, model=model, mode=spec.logprobs_mode.value)
    except EngineFailed as error:
        return str(error) if spec.kind is not EngineKind.VLLM else ""
    except (TimeoutError, EngineUnavailable):
        return ""


def _names(names: Sequence[str]) -> str:
    rest = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return (", ".join(names[:SHOWN_MAX]) or "no model") + rest

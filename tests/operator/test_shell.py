"""Small parts of the operator's process: paths of kinds, logs, sweeps, probes, options."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from sandgate.contract.errors import BadManifest, Unavailable
from sandgate.contract.keys import PREFIX
from sandgate.operator.cluster.health import OperatorHealth, ReplicaPhase
from sandgate.operator.command import main
from sandgate.operator.kubernetes.kinds import KINDS, Ref, selector
from sandgate.operator.replica import json_log
from sandgate.operator.replica.metrics import OperatorMetrics
from sandgate.operator.replica.probes import ReplicaState, serving
from sandgate.operator.replica.sweeps import Sweeps
from sandgate.operator.settings import Settings

PATHS = {
    "an object of the core group": (("Pod", "ns", "p", ""), "/api/v1/namespaces/ns/pods/p"),
    "a subresource": (
        ("RolloutJob", "ns", "j", "status"),
        "/apis/sandgate.dev/v1alpha1/namespaces/ns/rolloutjobs/j/status",
    ),
    "all namespaces": (("StatefulSet", "", "", ""), "/apis/apps/v1/statefulsets"),
    "a kind without namespaces": (("Node", "ns", "n", ""), "/api/v1/nodes/n"),
    "a name is one part of the path": (
        ("Secret", "a/b", "../c", ""),
        "/api/v1/namespaces/a%2Fb/secrets/..%2Fc",
    ),
}


@pytest.mark.parametrize(("of", "path"), PATHS.values(), ids=PATHS)
def test_paths(of: tuple[str, str, str, str], path: str) -> None:
    kind, *rest = of
    assert KINDS[kind].path(*rest) == path


NOT_A_REF = {
    "a kind that nobody knows": {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"}},
    "another version": {"apiVersion": "apps/v2", "kind": "Deployment", "metadata": {"name": "a", "namespace": "b"}},
    "no name": {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "b", "generateName": "a-"}},
    "no namespace": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}},
    "a namespace too many": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "namespace": "b"}},
}  # fmt: skip


@pytest.mark.parametrize("body", NOT_A_REF.values(), ids=NOT_A_REF)
def test_what_is_no_object_of_ours_is_a_mistake(body: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no known kind|needs a name"):
        Ref.of(body)


def test_a_shard_watches_what_names_it_and_the_empty_one_what_names_none() -> None:
    assert selector("RolloutJob", "a") == "sandgate.dev/shard=a"
    assert selector("Pod", "") == "app.kubernetes.io/managed-by=sandgate,!sandgate.dev/shard"


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    json_log.install(stream)
    yield stream
    logging.captureWarnings(False)
    root.handlers[:] = before
    root.setLevel(level)


def test_logs_are_one_object_a_line_and_hold_no_secret(logs: io.StringIO) -> None:
    log = logging.getLogger("test")
    log.info("two\nlines of %s", "text")
    log.warning("key %sabc.DEF-_1 and Authorization: Bearer something", PREFIX)
    try:
        raise ValueError("eyJhbGciOi.eyJzdWIi.c2ln")
    except ValueError:
        log.exception("failed")
    log.info("x" * 1_000_000)
    logging.getLogger("kopf.objects").info("Handler 'x' succeeded.")
    lines = [json.loads(line) for line in logs.getvalue().splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning", "error", "info"]
    assert lines[0] | {"ts": ""} == {
        "ts": "",
        "level": "info",
        "logger": "test",
        "message": "two\nlines of text",
    }
    assert lines[1]["message"] == "key [hidden] and Authorization: Bearer [hidden]"
    assert "ValueError: [hidden]" in lines[2]["error"]
    assert len(lines[3]["message"]) == json_log.TEXT_CHARS_MAX


def test_logs_for_people_are_text_and_hold_no_secret_either(logs: io.StringIO) -> None:
    json_log.install(logs, form="text")
    log = logging.getLogger("test")
    log.info("key %sabc.DEF-_1", PREFIX)
    try:
        raise ValueError("eyJhbGciOi.eyJzdWIi.c2ln")
    except ValueError:
        log.exception("failed")
    log.info("x" * 1_000_000)
    first, *rest = logs.getvalue().splitlines()
    assert first.endswith(" INFO test: key [hidden]")
    assert rest[-2] == "ValueError: [hidden]"
    assert len(rest[-1]) == json_log.TEXT_CHARS_MAX


LEVELS = {
    "debug": {"test debug", "test info", "test error", "kopf info", "kopf error"},
    "info": {"test info", "test error", "kopf error"},
    "error": {"test error", "kopf error"},
}


@pytest.mark.parametrize(("level", "told"), LEVELS.items(), ids=LEVELS)
def test_a_level_is_the_least_that_is_logged(level: str, told: set[str], logs: io.StringIO) -> None:
    """kopf tells of every object: at debug only, and never all that it knows."""
    json_log.install(logs, level)
    for name in ("test", "kopf"):
        for of in ("debug", "info", "error"):
            logging.getLogger(name).log(logging.getLevelNamesMapping()[of.upper()], "%s %s", name, of)
    assert {json.loads(line)["message"] for line in logs.getvalue().splitlines()} == told


UNKNOWN_WORDS = {
    "log_level": '{"log_level": "verbose"}',
    "log_format": '{"log_format": "xml"}',
    "gateway_log_level": '{"gateway_log_level": "INFO"}',
}


@pytest.mark.parametrize(("field", "text"), UNKNOWN_WORDS.items(), ids=UNKNOWN_WORDS)
def test_a_setting_with_a_word_that_it_does_not_know_is_refused_with_those_it_does(
    field: str, text: str
) -> None:
    with pytest.raises(BadManifest, match=f"{field} must be one of ") as refused:
        Settings.of(text)
    assert refused.value.field == field


async def test_many_reasons_are_one_sweep_and_failures_are_tried_again() -> None:
    begun = asyncio.Queue[int]()
    told: list[bool] = []
    fail = [False, True, True, False]

    async def sweep() -> None:
        begun.put_nowait(len(told))
        if fail and fail.pop(0):
            raise Unavailable("away")

    sweeps = Sweeps(sweep, told.append, every_s=60.0, quiet_s=0.02, retry_s=0.01)
    running = asyncio.create_task(sweeps.run())
    async with asyncio.timeout(10):
        assert await begun.get() == 0, "at once"
        for _ in range(5):
            sweeps.soon()
        assert [await begun.get() for _ in range(3)] == [1, 2, 3]
        sweeps.soon()
        await begun.get()
    assert told[:4] == [True, False, False, True]
    assert begun.empty()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_sweeps_come_by_themselves_and_a_mistake_ends_them() -> None:
    count = 0

    async def sweep() -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise TypeError("a mistake")

    async with asyncio.timeout(10):
        with pytest.raises(TypeError):
            await Sweeps(sweep, every_s=0.01).run()


async def test_reasons_without_end_do_not_put_a_sweep_off() -> None:
    swept = asyncio.Event()

    async def sweep() -> None:
        swept.set()

    sweeps = Sweeps(sweep, quiet_s=10.0, wait_s_max=0.1)
    running = asyncio.create_task(sweeps.run())
    await swept.wait()
    swept.clear()
    sweeps.soon()
    async with asyncio.timeout(5):
        await swept.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_probes_and_metrics_tell_what_is(caplog: pytest.LogCaptureFixture) -> None:
    metrics = OperatorMetrics()
    state = ReplicaState(metrics, waits_for="the CRDs")
    health = OperatorHealth(
        queue_length=2, sweep_age_s=1.0, jobs=3, unready={"NoEngine": 2}, sessions={"running": 4}
    )
    async with serving(state, "127.0.0.1", 0) as port, aiohttp.ClientSession() as http:

        async def page(name: str) -> tuple[int, str]:
            async with http.get(f"http://127.0.0.1:{port}/{name}") as answer:
                return answer.status, await answer.text()

        status, text = await page("readyz")
        assert (status, json.loads(text)["reasons"]) == (503, ["waits for the CRDs"])
        assert (await page("healthz"))[0] == 200
        state.enter(ReplicaPhase.STANDBY)
        status, text = await page("readyz")
        assert (status, json.loads(text)["phase"]) == (200, "standby")
        state.hub = lambda: health
        state.enter(ReplicaPhase.LEADING)
        status, text = await page("readyz")
        assert (status, json.loads(text)["sessions"]) == (200, {"running": 4})
        metrics.called("apply", "Pod", "201", 0.1)
        metrics.saw("Pod", None)
        metrics.acted("StartAttempt", "ok", 0.1)
        status, text = await page("metrics")
        for line in (
            'sandgate_api_calls_total{code="201",kind="Pod",verb="apply"} 1.0',
            'sandgate_operator_watch_events_total{kind="Pod",type="LISTED"} 1.0',
            'sandgate_operator_actions_total{action="StartAttempt",outcome="ok"} 1.0',
            'sandgate_operator_sessions{state="running"} 4.0',
            'sandgate_operator_jobs_unready{reason="NoEngine"} 2.0',
            "sandgate_operator_sweep_age_seconds 1.0",
            "sandgate_operator_leader 1.0",
            "sandgate_operator_queue_length 2.0",
            "sandgate_operator_last_event_age_seconds NaN",
        ):
            assert line in text.splitlines()
    never = metrics.render(ReplicaPhase.LEADING, 0.0, OperatorHealth(), phase_age_s=500.0).decode()
    assert "sandgate_operator_sweep_age_seconds 500.0" in never.splitlines()


WRONG = {
    "no kubeconfig": (["--kubeconfig", "/none"], "no kubeconfig"),
    "no settings": (["--settings", "/none"], "No such file"),
    "settings with an unknown key": (["--settings", "SETTINGS"], "unknown key 'imagge'"),
    "an address that is none": (["--kubeconfig", "CONFIG", "--http", "8080x"], "must be HOST:PORT"),
}


@pytest.mark.parametrize(("argv", "said"), WRONG.values(), ids=WRONG)
def test_asked_wrongly(
    argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"SETTINGS": '{"imagge": 1}', "CONFIG": CONFIG}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert main([str(tmp_path / one) if one in files else one for one in argv]) == 2
    assert said in capsys.readouterr().err


CONFIG = json.dumps(
    {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    }
)

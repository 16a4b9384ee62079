"""A job's tasks in a cluster: a ConfigMap that changes while the operator is away gives no group two prompts, and the
job says so; a pushed task that no session can be made of holds up no other."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.control_api import TaskPage
from sandgate.contract.errors import Forbidden, SandgateError, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.labels import TASKS
from sandgate.contract.names import UID_CHARS_MAX
from sandgate.operator.driver.task_queue import Queue
from tests.operator.cluster_rig import NAMESPACE, Box, World, hurry, manifest, world
from tests.operator.test_cluster import is_so, so

BEFORE = {"uid": "x", "prompt": "epoch 1: two plus two?"}
QUOTA = Forbidden('403: pods "x" is forbidden: exceeded quota: team')


@dataclass
class Shop:
    """A job of one task and two samples, the second of which finds no room while `full` is set."""

    up: World
    full: asyncio.Event = field(default_factory=asyncio.Event)
    prompts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Session -> what its agent was told to do."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def agent(self, box: Box) -> int:
        self.prompts[box.env["SANDGATE_SESSION_ID"]].add(box.env["SANDGATE_PROMPT"])
        await box.ask("hi")
        self.asked.set()
        await self.go_on.wait()
        return 0

    def fail(self, verb: str, kind: str) -> None:
        if (verb, kind) == ("create", "Pod") and self.prompts and self.full.is_set():
            raise QUOTA

    async def tasks(self, *tasks: dict[str, Any]) -> None:
        """They are what the ConfigMap has now."""
        data = {"tasks.jsonl": "\n".join(map(json.dumps, tasks))}
        meta = {"name": "set", "namespace": NAMESPACE}
        if ("ConfigMap", NAMESPACE, "set") in self.up.kube.objects:
            await self.up.kube.patch("ConfigMap", NAMESPACE, "set", {"data": data})
        else:
            await self.up.kube.create(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
            )

    def says(self) -> tuple[str, str]:
        """Reason and message of Progressing."""
        for one in (self.up.job().get("status") or {}).get("conditions", ()):
            if one["type"] == "Progressing":
                return one["reason"], one.get("message", "")
        return "", ""

    def gateways_map(self) -> Any:
        """Metadata of the ConfigMap of the job's gateways."""
        return self.up.kube.objects["ConfigMap", NAMESPACE, "shop-gateway"]["metadata"]

    async def begun_halfway(self, **spec: Any) -> None:
        """One sample asks, the other waits for room; then the operator dies."""
        self.full.set()
        self.up.operator_up()
        fields = {"tasks": {"configMap": {"name": "set"}}, "groupSize": 2, "parallelism": 1, **spec}
        await self.up.kube.create(manifest("a 1", **fields))
        await asyncio.wait_for(self.asked.wait(), 20.0)
        await self.up.operator_down()


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    hurry(monkeypatch)
    async with world(tmp_path) as up:
        made = Shop(up)
        up.agents, up.kube.fail = [("shop", made.agent)], made.fail
        await made.tasks(BEFORE)
        yield made


OTHERS: dict[str, tuple[dict[str, Any], ...]] = {
    "another prompt under the same uid": ({"uid": "x", "prompt": "epoch 2: capital of France?"},),
    "other data under the same uid": (BEFORE | {"data": {"answer": 4}},),
    "another uid": ({"uid": "y", "prompt": "epoch 2: capital of France?"},),
    "one more task": (BEFORE, {"uid": "y", "prompt": "one more"}),
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
async def test_a_group_that_has_begun_gets_no_second_prompt_and_putting_the_old_one_back_heals_it(
    shop: Shop, others: tuple[dict[str, Any], ...]
) -> None:
    up = shop.up
    await shop.begun_halfway()
    await shop.tasks(*others)
    shop.full.clear()
    up.operator_up()
    await so(lambda: shop.says()[0] == "NoTasks", "it says that these are others", up=up)
    assert "ConfigMap set has changed since the job began" in shop.says()[1]
    assert "put the old content back, or delete the job and apply it again" in shop.says()[1]
    shop.go_on.set()
    await so(lambda: up.job()["status"]["ended"] == 1, "what ran went on to its end", up=up)
    assert len(shop.prompts) == 1, "nothing new has begun"
    await shop.tasks(BEFORE)
    await is_so(up, "Complete")
    assert list(shop.prompts.values()) == [{BEFORE["prompt"]}] * 2
    assert up.job()["status"]["failed"] == 0


SAME: dict[str, str] = {
    "in another order": '{"uid": "y", "prompt": "2"}\n{"uid": "x", "prompt": "1"}\n',
    "written otherwise": '{"prompt":"1","uid":"x","data":null}\n\n{"prompt":"2", "uid":"y"}',
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
async def test_the_same_tasks_are_no_others(shop: Shop, text: str) -> None:
    await shop.tasks({"uid": "x", "prompt": "1"}, {"uid": "y", "prompt": "2"})
    await shop.begun_halfway(groupSize=1)
    await shop.up.kube.patch("ConfigMap", NAMESPACE, "set", {"data": {"tasks.jsonl": text}})
    shop.full.clear()
    shop.go_on.set()
    shop.up.operator_up()
    await is_so(shop.up, "Complete")


async def test_a_job_of_a_version_that_kept_no_digest_takes_what_it_finds_and_keeps_that(shop: Shop) -> None:
    up = shop.up
    await shop.begun_halfway()
    kept = shop.gateways_map()["annotations"].pop(TASKS)
    await shop.tasks({"uid": "x", "prompt": "epoch 2: capital of France?"})
    shop.full.clear()
    shop.go_on.set()
    up.operator_up()
    await is_so(up, "Complete")
    assert shop.gateways_map()["annotations"][TASKS] not in ("", kept)


async def test_what_a_job_that_is_over_was_made_of_may_change(shop: Shop) -> None:
    up = shop.up
    shop.go_on.set()
    await shop.begun_halfway(groupSize=1)
    up.operator_up()
    await is_so(up, "Complete")
    await up.operator_down()
    await shop.tasks({"uid": "y", "prompt": "for the next job"})
    up.operator_up()
    await up.train()
    await is_so(up, "Collected")
    assert len(shop.prompts) == 1


AWAY: dict[str, tuple[str, SandgateError]] = {
    "cannot be asked for now": ("get", Unavailable("the API server restarts", retry_after=0.0)),
    "may not be read": ("get", Forbidden('403: User "operator" cannot get resource "configmaps"')),
}


@pytest.mark.parametrize(("verb", "error"), AWAY.values(), ids=AWAY)
async def test_a_config_map_that_cannot_be_read_at_first_is_read_later(
    shop: Shop, verb: str, error: SandgateError
) -> None:
    asked = asyncio.Event()

    def fail(did: str, kind: str) -> None:
        if (did, kind) == (verb, "ConfigMap") and shop.up.hub is not None:
            run = next(iter(shop.up.hub.runs.values()), None)
            if run is not None and run.observed.loaded and not asked.is_set():
                asked.set()
                raise error

    shop.up.kube.fail = fail
    shop.go_on.set()
    shop.up.operator_up()
    await shop.up.kube.create(manifest("a 1", tasks={"configMap": {"name": "set"}}))
    await is_so(shop.up, "Complete")
    assert asked.is_set()


async def test_nothing_begins_before_it_is_kept_of_which_tasks(shop: Shop) -> None:
    """An operator that dies here leaves nothing that another would begin otherwise."""
    up = shop.up
    refused = asyncio.Event()

    def fail(verb: str, kind: str) -> None:
        if (verb, kind) == ("patch", "ConfigMap"):
            refused.set()
            raise Unavailable("nothing is written now", retry_after=0.0)

    up.kube.fail = fail
    up.operator_up()
    await up.kube.create(manifest("a 1", tasks={"configMap": {"name": "set"}}))
    await asyncio.wait_for(refused.wait(), 20.0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not up.sessions()
    up.kube.fail = lambda verb, kind: None
    shop.go_on.set()
    await is_so(up, "Complete")
    assert shop.gateways_map()["annotations"][TASKS]


class OlderGateway:
    """It took a uid that is longer than an AgentSession's."""

    upto = 0

    async def tasks(self, after: int = 0) -> TaskPage:
        uids = ("x" * (UID_CHARS_MAX + 1), "y" * UID_CHARS_MAX, "z")
        rows = tuple((number, Task(uid=uid, prompt="")) for number, uid in enumerate(uids, 1))
        return TaskPage(cursor=3, last=True, tasks=tuple(row for row in rows if row[0] > after))

    async def forget_tasks(self, upto: int) -> None:
        self.upto = upto


async def test_a_pushed_task_whose_uid_no_session_can_have_holds_up_no_other() -> None:
    queue, client, taken = Queue(), OlderGateway(), list[str]()
    await queue.pull(client, lambda tasks: taken.extend(task.uid[0] for task in tasks))
    assert (taken, queue.ended, queue.taken) == (["y", "z"], True, 3)
    await queue.free(client, {"y" * UID_CHARS_MAX, "z"})
    assert client.upto == 3, "its place is free, too"

"""What decides what a row is: every field of the schema has its place, and spelling is no change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import pytest

from sandgate.contract.job import RolloutJob, RolloutJobSpec, Task
from sandgate.contract.manifest_decoder import decode, encode, slots
from sandgate.operator.plan.frozen_fields import (
    FIELDS,
    TOKENIZER,
    WEIGHTS,
    Made,
    Part,
    Says,
    changes,
    deciding,
    digest,
    fixed_changes,
    says,
    task_changes,
    task_digest,
    tasks_digest,
)
from tests.contract.manifests import GONE, spoilt

MANAGED = ("spec.engine", {"managed": {"image": "vllm:1", "model": "/models/m", "args": ["--seed", "1"]}})


def job(*changed: tuple[str, Any]) -> RolloutJob:
    return decode(RolloutJob, spoilt(*changed))


def part(*changed: tuple[str, Any], tokenizer: str = "sha256:1") -> Part:
    return deciding(job(*changed), tokenizer)


def leaves(kind: type[Any], path: str = "") -> Iterator[str]:
    for slot in slots(kind):
        at = f"{path}.{slot.manifest}" if path else slot.manifest
        if isinstance(slot.hint, type) and is_dataclass(slot.hint) and slots(slot.hint):
            yield from leaves(slot.hint, at)
        else:
            yield at


def test_every_field_of_the_schema_is_in_the_table() -> None:
    unknown = [path for path in leaves(RolloutJobSpec) if path not in FIELDS]
    assert not unknown, (
        f"does it decide what a row is? Put each into the table of plan/frozen_fields.py: {unknown}"
    )


def test_the_table_has_no_field_that_there_is_not() -> None:
    known = set(leaves(RolloutJobSpec))
    embedded = ("agent.template", "reward.verifier.container", "engine.managed.template")
    odd = [path for path in FIELDS if path not in known and not path.startswith(embedded)]
    assert odd == []


def test_rules_for_roles_decide() -> None:
    rules = [[{"role": "side", "header": "x-a"}], [{"role": "side", "header": "x-b"}], []]
    seen = [part(("spec.gateway.roles", rule)) for rule in rules]
    assert [found.get("spec.gateway.roles") for found in seen] == [*rules[:2], None]
    assert seen[2] == part()
    assert len({digest(found) for found in seen}) == 3


def test_hosts_of_images_decide() -> None:
    hosts = [["images.example.com"], ["other.example.com"], []]
    seen = [part(("spec.gateway.media.allowedHosts", listed)) for listed in hosts]
    assert seen[2] == part()
    assert len({digest(found) for found in seen}) == 3


SAYS = {
    "a field that nobody has thought about decides": ("sampling.dry", Says.ROW),
    "a new block too": ("steering.vector", Says.ROW),
    "what is below a field says what the field says": ("model.templateKwargs.enable_thinking", Says.ROW),
    "an agent's command": ("agent.template.spec.containers[0].command", Says.ROW),
    "more memory is how a job goes on whose agents were killed for it": (
        "agent.template.spec.containers[0].resources.limits.memory",
        Says.WHERE,
    ),
    "a side-car's memory as well": ("agent.template.spec.containers[3].resources", Says.WHERE),
    "labels of a template": ("agent.template.metadata.labels.team", Says.WHERE),
    "a verifier's memory": ("reward.verifier.container.resources.limits.cpu", Says.WHERE),
    "a verifier's image": ("reward.verifier.container.image", Says.ROW),
    "a longer name of a free field is not that field": ("parallelisms", Says.ROW),
}


@pytest.mark.parametrize(("path", "wanted"), SAYS.values(), ids=SAYS)
def test_says(path: str, wanted: Says) -> None:
    assert says(path) is wanted


DECIDES: dict[str, tuple[str, Any]] = {
    "temperature": ("spec.sampling.temperature", 0.2),
    "who wins": ("spec.sampling.override", False),
    "a seed": ("spec.sampling.seed", 7),
    "a cap that goes": ("spec.sampling.maxTokens", GONE),
    "the model's name": ("spec.model.name", "other"),
    "the renderer": ("spec.model.renderer", "template"),
    "the history policy": ("spec.model.historyPolicy", "template"),
    "special tokens in text": ("spec.model.specialTokensInText", "control"),
    "the window": ("spec.model.maxModelLen", 8192),
    "a template variable": ("spec.model.templateKwargs.enable_thinking", False),
    "the engine's name of the model": ("spec.engine.model", "adapter"),
    "raw logprobs": ("spec.engine.logprobsMode", "raw_logprobs"),
    "turns": ("spec.limits.turns", 5),
    "the most tokens of a row": ("spec.limits.responseTokens", 512),
    "the agent's time": ("spec.limits.sessionSeconds", 60),
    "the agent's arguments": ("spec.agent.template.spec.containers[0].args", ["--hard"]),
    "the agent's environment": (
        "spec.agent.template.spec.containers[0].env",
        [{"name": "HARD", "value": "1"}],
    ),
    "the agent's image": ("spec.agent.template.spec.containers[0].image", "my/agent:2"),
    "how the task arrives": ("spec.agent.taskDelivery", "File"),
    "what ends a session": ("spec.agent.completion", "Complete"),
    "where the reward comes from": ("spec.reward", {"source": "agent"}),
    "the judge": ("spec.reward.verifier.container.image", "judge:2"),
    "the discount": ("spec.reward.discount", 0.9),
}


@pytest.mark.parametrize("changed", DECIDES.values(), ids=DECIDES)
def test_other_rows(changed: tuple[str, Any]) -> None:
    found = changes(part(), part(changed))
    assert found, "it would be mixed"
    assert all(one.startswith(changed[0]) for one in found)
    assert digest(part()) != digest(part(changed))


SAME: dict[str, list[tuple[str, Any]]] = {
    "the same manifest": [],
    "a whole number as a float": [("spec.sampling.temperature", 1)],
    "keys in another order": [
        (
            "spec.agent.template.spec.containers[0]",
            {"command": ["python", "agent.py"], "image": "my/agent:1", "name": "agent"},
        )
    ],
    "defaults written out": [
        ("spec.sampling.topP", None),
        ("spec.engine.logprobsMode", "processed_logprobs"),
        ("spec.agent.isolation", "Probed"),
        ("spec.agent.egress", []),
        ("spec.model.templateKwargs", {}),
    ],
    "what is empty or null in a template": [
        ("spec.agent.template.spec.containers[0].env", []),
        ("spec.agent.template.spec.volumes", None),
    ],
    "a manager's annotation": [("metadata.annotations", {"who": "me"}), ("metadata.labels", {"a": "b"})],
    "how much runs at once": [("spec.parallelism", 99), ("spec.startBurst", 3)],
    "how long a start may take": [("spec.limits.startSeconds", 5)],
    "where the engine is": [("spec.engine.endpoints", ["http://10.0.0.9:1"])],
    "further engines": [("spec.engine.endpoints", ["http://10.0.0.5:8000", "http://10.0.0.6:8000"])],
    "gateways": [("spec.gateway.replicas", 3), ("spec.gateway.image", "other")],
    "retries and quorum": [("spec.group", {"quorum": 1, "stragglerSeconds": 1, "retry": {"infra": 9}})],
    "deadlines": [("spec.activeDeadlineSeconds", 5), ("spec.ttlSecondsAfterFinished", 5)],
    "the trainer's side": [("spec.trainer", GONE), ("spec.staleness", GONE), ("spec.output", GONE)],
    "more memory": [("spec.agent.template.spec.containers[0].resources", {"limits": {"memory": "2Gi"}})],
    "tasks, which are compared one by one": [("spec.tasks", {"file": "tasks.jsonl"})],
    "a path to the same tokenizer": [("spec.model.tokenizer", "/elsewhere/tiny")],
}


@pytest.mark.parametrize("changed", SAME.values(), ids=SAME)
def test_the_same_rows(changed: list[tuple[str, Any]]) -> None:
    assert changes(part(), part(*changed)) == []
    assert digest(part()) == digest(part(*changed))


def test_all_changes_are_said_at_once_with_both_values() -> None:
    now = part(
        ("spec.sampling.temperature", 0.2), ("spec.reward", {"source": "exitCode"}), tokenizer="sha256:2"
    )
    assert sorted(changes(part(), now)) == [
        "spec.model.tokenizer with other files",
        'spec.reward.source "verifier" (now "exitCode")',
        'spec.reward.verifier.container.image "judge:1" (now unset)',
        "spec.sampling.temperature 1 (now 0.2)",
    ]


def test_no_message_holds_what_stands_in_an_environment() -> None:
    def keyed(key: str) -> Part:
        return part(("spec.agent.template.spec.containers[0].env", [{"name": "API_KEY", "value": key}]))

    found = changes(keyed("sk-1"), keyed("sk-2"))
    assert found == ["spec.agent.template.spec.containers[0].env[0].value with another value"]


def test_a_long_value_is_cut() -> None:
    (found,) = changes(part(), part(("spec.agent.template.spec.containers[0].args", ["x" * 500])))
    assert len(found) < 200


def test_weights_that_only_a_path_names_are_told_apart_by_it() -> None:
    """Two checkpoints of one model have one tokenizer."""
    served: tuple[str, Any] = ("spec.engine", {"managed": {}})
    moved = ("spec.model.tokenizer", "/models/step200")
    assert [one.split()[0] for one in changes(part(served), part(served, moved))] == [WEIGHTS]
    assert changes(part(MANAGED), part(MANAGED, moved)) == []


def test_what_runs_the_engine_decides_and_how_often_does_not() -> None:
    args = ("spec.engine.managed.args", ["--seed", "2"])
    often = ("spec.engine.managed.replicas", 4)
    assert changes(part(MANAGED), part(MANAGED, often)) == []
    assert [one.split()[0] for one in changes(part(MANAGED), part(MANAGED, args))] == [
        "spec.engine.managed.args"
    ]


def test_the_deciding_part_survives_json_and_a_later_versions_default() -> None:
    found = part()
    assert digest(json.loads(json.dumps(found))) == digest(found)
    assert "spec.agent.isolation" not in found, "left at its default: a new field with one changes no digest"
    assert found[TOKENIZER] == "sha256:1"
    assert digest(deciding(decode(RolloutJob, encode(job())), "sha256:1")) == digest(found)


def test_what_a_folder_is_made_of_never_changes() -> None:
    assert fixed_changes(job(), job(("spec.parallelism", 1))) == []
    assert fixed_changes(job(), job(("metadata.name", "other"), ("spec.groupSize", 8))) == [
        'metadata.name "shop" (now "other")',
        "spec.groupSize 4 (now 8)",
    ]


# -- tasks ------------------------------------------------------------------------------------------------------------


def told(**tasks: tuple[Any, Any]) -> dict[str, str]:
    """uid -> digest of (prompt, data)."""
    return {
        uid: task_digest(Task(uid=uid, prompt=prompt, data=data)) for uid, (prompt, data) in tasks.items()
    }


KNOWN = told(a=("buy", {"n": 1}), b=("sell", None))
TASKS: dict[str, tuple[dict[str, str], list[str]]] = {
    "the same tasks": (KNOWN, []),
    "in another order, with data spelt otherwise": (told(b=("sell", None), a=("buy", {"n": 1.0})), []),
    "a further task": (KNOWN | told(c=("new", 1)), []),
    "another prompt": (KNOWN | told(a=("buy!", {"n": 1})), ["another prompt or data of task a"]),
    "other data, which the judge goes by": (
        KNOWN | told(a=("buy", {"n": 2})),
        ["another prompt or data of task a"],
    ),
    "a task that is gone": (told(a=("buy", {"n": 1})), ["task b no longer among the tasks"]),
    "both": (told(a=("x", 1)), ["another prompt or data of task a", "task b no longer among the tasks"]),
    "true is not 1": (KNOWN | told(a=("buy", {"n": True})), ["another prompt or data of task a"]),
}


@pytest.mark.parametrize(("now", "wanted"), TASKS.values(), ids=TASKS)
def test_tasks(now: dict[str, str], wanted: list[str]) -> None:
    made = [Made(uid, "m", task) for uid, task in KNOWN.items() for _ in range(4)]
    assert task_changes(made, now) == wanted


def test_a_task_without_a_row_may_change_and_one_of_which_nothing_is_known_too() -> None:
    assert task_changes([Made("b", "m", KNOWN["b"])], KNOWN | told(a=("other", 0))) == []
    assert task_changes([Made("a")], told(a=("other", 0))) == []


def test_of_many_tasks_the_first_are_named() -> None:
    made = [Made(f"t{number}", "m", "x") for number in range(9)]
    assert task_changes(made, {one.uid: "y" for one in made}) == [
        "another prompt or data of tasks t0, t1, t2, t3, t4 and 4 more"
    ]


def test_a_set_of_tasks_has_one_digest_in_any_order() -> None:
    assert tasks_digest(KNOWN) == tasks_digest(dict(reversed(KNOWN.items())))
    assert tasks_digest(KNOWN) != tasks_digest(KNOWN | told(c=("", None)))

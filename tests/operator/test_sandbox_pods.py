"""Pods of agents and verifiers: what the session rests on is ours, the rest is the template's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.session_urls import SessionUrls
from sandgate.operator.manifests.sandbox_pods import (
    DEADLINE_MARGIN_S,
    FETCHER,
    PROMPT_BYTES_MAX,
    RESULT_BYTES_MAX,
    PodDefaults,
    agent_pod,
    plain,
    verifier_pod,
)
from sandgate.operator.plan.session import PULLS
from sandgate.operator.settings import Settings
from sandgate.sandbox.agents import ENV_BYTES_MAX, agent_env, verifier_env
from sandgate.sandbox.expand import expand
from tests.operator.sandbox_pods import (
    GROUP,
    LOOK,
    MAIN,
    ORIGIN,
    OWNER,
    POD,
    SESSION,
    TEMPLATE,
    Json,
    agent,
    args,
    job,
    verifier,
)


def main_of(pod: Json) -> Json:
    return pod["spec"]["containers"][0]


def fetcher_of(pod: Json) -> Json:
    return pod["spec"]["initContainers"][0]


def env_of(container: Json) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def mounts_of(container: Json) -> dict[str, bool]:
    return {one["mountPath"]: one.get("readOnly", False) for one in container.get("volumeMounts", [])}


def secret(entry: str) -> Json:
    return {"secretKeyRef": {"name": "keys-0-0", "key": f"{SESSION}.{entry}"}}


def at(pod: Json, path: str) -> Any:
    """`path`: names and indexes with dots."""
    for name in path.split("."):
        pod = pod[int(name)] if name.isdigit() else pod.get(name)
    return pod


GATEWAY_TAINT = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
OWN_ROOT = ("securityContext", {"runAsUser": 0})
TOOLS = {"name": "tools", "image": "t"}
RULES = [
    {"action": action, "exitCodes": {"operator": "In", "values": [1]}}
    for action in ("Restart", "RestartAllContainers")
]
AGENTS: dict[str, tuple[list[tuple[str, Any]], str, Any]] = {
    "it never restarts, whatever the template says": (
        [(f"{POD}.restartPolicy", "Always")],
        "spec.restartPolicy",
        "Never",
    ),
    "nor its container, which Kubernetes 1.35 would start again by itself": (
        [(f"{MAIN}.restartPolicy", "Always")],
        "spec.containers.0.restartPolicy",
        None,
    ),
    "nor for some exit codes": (
        [
            (
                f"{MAIN}.restartPolicyRules",
                [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}],
            )
        ],
        "spec.containers.0.restartPolicyRules",
        None,
    ),
    "a side-car may be started again": (
        [(f"{POD}.containers", [{"name": "agent", "image": "a"}, {**TOOLS, "restartPolicy": "OnFailure"}])],
        "spec.containers.1.restartPolicy",
        "OnFailure",
    ),
    "but not the agent with it": (
        [(f"{POD}.containers", [{"name": "agent", "image": "a"}, {**TOOLS, "restartPolicyRules": RULES}])],
        "spec.containers.1.restartPolicyRules",
        RULES[:1],
    ),
    "it has no service account token": ([], "spec.automountServiceAccountToken", False),
    "a template may mount a token": (
        [(f"{POD}.automountServiceAccountToken", True)],
        "spec.automountServiceAccountToken",
        True,
    ),
    "services of the namespace are not in its environment": ([], "spec.enableServiceLinks", False),
    "it is owned by its AgentSession": ([], "metadata.ownerReferences", [OWNER]),
    "its deadline leaves its image's time and its own, and a margin": (
        [],
        "spec.activeDeadlineSeconds",
        PULLS * 300 + 900 + DEADLINE_MARGIN_S,
    ),
    "a template's shorter deadline stands": (
        [(f"{POD}.activeDeadlineSeconds", 60)],
        "spec.activeDeadlineSeconds",
        60,
    ),
    "a template's longer deadline does not": (
        [(f"{POD}.activeDeadlineSeconds", 10**6)],
        "spec.activeDeadlineSeconds",
        PULLS * 300 + 900 + DEADLINE_MARGIN_S,
    ),
    "it stops as fast as a local agent": ([], "spec.terminationGracePeriodSeconds", 5),
    "a template may ask for more grace": (
        [(f"{POD}.terminationGracePeriodSeconds", 30)],
        "spec.terminationGracePeriodSeconds",
        30,
    ),
    "its runtime class is the installation's": ([], "spec.runtimeClassName", "gvisor"),
    "a template's runtime class stands": (
        [(f"{POD}.runtimeClassName", "kata")],
        "spec.runtimeClassName",
        "kata",
    ),
    "it may not run as root": ([], "spec.securityContext.runAsNonRoot", True),
    "a template that says root gets it": (
        [(f"{POD}.securityContext", {"runAsUser": 0})],
        "spec.securityContext",
        {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}},
    ),
    "a template that says another user is still not root": (
        [(f"{POD}.securityContext", {"runAsUser": 1000})],
        "spec.securityContext.runAsNonRoot",
        True,
    ),
    "a container that says root gets it, its neighbours do not": (
        [(f"{MAIN}.securityContext", {"runAsUser": 0})],
        "spec.containers.0.securityContext.runAsNonRoot",
        False,
    ),
    "it drops every capability": ([], "spec.containers.0.securityContext.capabilities", {"drop": ["ALL"]}),
    "a capability that a template adds stays": (
        [(f"{MAIN}.securityContext", {"capabilities": {"add": ["NET_BIND_SERVICE"]}})],
        "spec.containers.0.securityContext.capabilities",
        {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
    ),
    "it gains no privileges": ([], "spec.containers.0.securityContext.allowPrivilegeEscalation", False),
    "a privileged container is left as written": (
        [(f"{MAIN}.securityContext", {"privileged": True})],
        "spec.containers.0.securityContext",
        {"privileged": True},
    ),
    "with SYS_ADMIN nothing is said of escalation, which the API server would refuse": (
        [(f"{MAIN}.securityContext", {"capabilities": {"add": ["SYS_ADMIN"]}})],
        "spec.containers.0.securityContext",
        {"capabilities": {"add": ["SYS_ADMIN"], "drop": ["ALL"]}},
    ),
    "side-cars are restricted too": (
        [(f"{POD}.containers", [{"name": "agent", "image": "a"}, {"name": "tools", "image": "b"}])],
        "spec.containers.1.securityContext.capabilities",
        {"drop": ["ALL"]},
    ),
    "it leaves a node that is gone soon": (
        [],
        "spec.tolerations.0",
        {**GATEWAY_TAINT, "tolerationSeconds": 30},
    ),
    "a template's own patience with a node stands": (
        [(f"{POD}.tolerations", [{**GATEWAY_TAINT, "tolerationSeconds": 5}])],
        "spec.tolerations.0.tolerationSeconds",
        5,
    ),
    "a template that tolerates everything is not told otherwise": (
        [(f"{POD}.tolerations", [{"operator": "Exists"}])],
        "spec.tolerations",
        [{"operator": "Exists"}],
    ),
    "it asks for what the installation says where the template does not": (
        [],
        "spec.containers.0.resources",
        {"requests": {"cpu": "100m", "memory": "128Mi"}},
    ),
    "a template's resources stand": (
        [(f"{MAIN}.resources", {"limits": {"memory": "1Gi"}})],
        "spec.containers.0.resources",
        {"limits": {"memory": "1Gi"}},
    ),
    "its result is what it writes, not its log": (
        [],
        "spec.containers.0.terminationMessagePolicy",
        "File",
    ),
    "the manifest's folder is no folder of the image": (
        [(f"{MAIN}.workingDir", "./")],
        "spec.containers.0.workingDir",
        None,
    ),
    "an image's folder stays": (
        [(f"{MAIN}.workingDir", "/work")],
        "spec.containers.0.workingDir",
        "/work",
    ),
    "a nameless container is the agent": (
        [(f"{MAIN}", {"image": "a"})],
        "spec.containers.0.name",
        "agent",
    ),
    "without probe and file there is nothing in front of the agent": (
        [("spec.agent.isolation", "Policy")],
        "spec.initContainers",
        None,
    ),
    "the template's volumes stay": (
        [(f"{POD}.volumes", [{"name": "v", "emptyDir": {}}])],
        "spec.volumes",
        [{"name": "v", "emptyDir": {}}],
    ),
}


@pytest.mark.parametrize(("changes", "path", "value"), AGENTS.values(), ids=AGENTS)
def test_an_agent_s_pod(changes: list[tuple[str, Any]], path: str, value: Any) -> None:
    assert at(agent(*changes), path) == value


def test_it_is_named_labelled_and_pointed_at_by_kubectl() -> None:
    own = {"labels": {"team": "red", "sandgate.dev/job": "mine"}, "annotations": {"a": "b"}}
    meta = agent((f"{TEMPLATE}.metadata", own), ("metadata.labels", {"sandgate.dev/shard": "s1"}))["metadata"]
    assert (meta["name"], meta["namespace"]) == (SESSION, "team")
    assert meta["labels"] == {
        "team": "red",
        "app.kubernetes.io/managed-by": "sandgate",
        "sandgate.dev/job": "shop",
        "sandgate.dev/role": "agent",
        "sandgate.dev/session": SESSION,
        "sandgate.dev/group": GROUP,
        "sandgate.dev/shard": "s1",
        "sandgate.dev/walled": "true",
    }
    assert meta["annotations"] == {"a": "b", "kubectl.kubernetes.io/default-container": "agent"}


def test_an_agent_without_isolation_is_not_walled_and_may_not_say_that_it_is_not() -> None:
    wall = "sandgate.dev/walled"
    assert wall not in agent(("spec.agent.isolation", "Off"))["metadata"]["labels"]
    own = {"labels": {wall: "false"}}
    assert agent((f"{TEMPLATE}.metadata", own))["metadata"]["labels"][wall] == "true"


@pytest.mark.parametrize(
    ("trainer", "kept"),
    [
        ({"sandgate.dev/trainer": "true"}, {"app": "trainer", "team": "red"}),
        ({"app": "trainer"}, {"team": "red"}),
    ],
    ids=["ours", "an administrator's"],
)
def test_a_trainers_label_in_its_template_opens_nothing_to_it(
    trainer: dict[str, str], kept: dict[str, str]
) -> None:
    labels = {"app": "trainer", "team": "red", "sandgate.dev/trainer": "true"}
    look = PodDefaults.of(Settings(trainer_labels=trainer))
    meta = agent((f"{TEMPLATE}.metadata", {"labels": labels}), look=look)["metadata"]
    ours = ("sandgate.dev/", "app.kubernetes.io/")
    assert {name: value for name, value in meta["labels"].items() if not name.startswith(ours)} == kept
    assert "sandgate.dev/trainer" not in meta["labels"]


def test_it_finds_what_a_local_agent_finds_and_its_key_comes_from_the_secret() -> None:
    found = env_of(main_of(agent()))
    handle = SessionUrls.of(ORIGIN, SESSION).handle()
    local = agent_env(handle, model="tiny", prompt="buy 7 kiwi", delivery="Env")
    assert found.pop("OPENAI_API_KEY") == found.pop("ANTHROPIC_API_KEY") == secret("api")
    assert found == {name: value for name, value in local.items() if not name.endswith("_API_KEY")}


def test_its_own_variables_come_after_ours_and_lose() -> None:
    own = [{"name": "OPENAI_API_KEY", "value": "sk-mine"}, {"name": "SAY", "value": "$(SANDGATE_PROMPT)!"}]
    env = main_of(agent((f"{MAIN}.env", own)))["env"]
    assert [one["name"] for one in env].count("OPENAI_API_KEY") == 1
    assert env[-1] == {"name": "SAY", "value": "$(SANDGATE_PROMPT)!"}


def test_where_the_termination_log_is_moved_its_variable_follows() -> None:
    pod = agent((f"{MAIN}.terminationMessagePath", "/tmp/said"))
    assert env_of(main_of(pod))["SANDGATE_TERMINATION_LOG"] == "/tmp/said"


@given(text=st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])))
def test_kubernetes_expansion_leaves_a_prompt_as_it_is(text: str) -> None:
    assert expand(plain(text), {"A": "1", "SANDGATE_PROMPT": "2"}) == text


def test_a_probed_agent_starts_behind_the_fetcher() -> None:
    own = [{"name": "prepare", "image": "p"}]
    pod = agent((f"{POD}.initContainers", own))
    assert [one["name"] for one in pod["spec"]["initContainers"]] == [FETCHER, "prepare"]
    assert env_of(fetcher_of(pod)) == {
        "SANDGATE_GATEWAY": ORIGIN,
        "SANDGATE_PROBE": "kubernetes,10.0.0.9:443",
    }
    assert "volumes" not in pod["spec"]
    assert fetcher_of(pod)["securityContext"]["readOnlyRootFilesystem"] is True


FETCHER_USERS: dict[str, tuple[Json | None, Json]] = {
    "its image's, or the one that the cluster gives the pod": (None, {}),
    "the one that the template gives the pod": ({"runAsUser": 1000740000}, {}),
    "never root": ({"runAsUser": 0}, {"runAsUser": 65532, "runAsGroup": 65532}),
}


@pytest.mark.parametrize(("whole", "own"), FETCHER_USERS.values(), ids=FETCHER_USERS)
def test_whom_the_fetcher_runs_as(whole: Json | None, own: Json) -> None:
    made = fetcher_of(agent((f"{POD}.securityContext", whole or {})))["securityContext"]
    assert {name: value for name, value in made.items() if name in ("runAsUser", "runAsGroup")} == own
    assert made["runAsNonRoot"] is True


def test_the_fetcher_asks_for_what_the_installation_says() -> None:
    asked = {"requests": {"cpu": "50m"}, "limits": {"cpu": "1"}}
    pod = agent(look=PodDefaults.of(Settings(fetcher_resources=asked)))
    assert fetcher_of(pod)["resources"] == asked
    assert fetcher_of(agent())["resources"] == Settings().fetcher_resources


def test_a_task_as_a_file_is_fetched_with_the_session_s_key_and_read_only_for_the_agent() -> None:
    pod = agent(("spec.agent.taskDelivery", "File"), ("spec.agent.isolation", "Off"))
    assert env_of(fetcher_of(pod)) == {
        "SANDGATE_GATEWAY": ORIGIN,
        "SANDGATE_TASK_URL": f"{ORIGIN}/v1/sessions/{SESSION}/task",
        "SANDGATE_TASK_FILE": "/sandgate/task.json",
        "SANDGATE_KEY": secret("api"),
    }
    assert mounts_of(fetcher_of(pod)) == {"/sandgate": False}
    assert mounts_of(main_of(pod)) == {"/sandgate": True}
    assert env_of(main_of(pod))["SANDGATE_TASK_FILE"] == "/sandgate/task.json"
    assert pod["spec"]["volumes"] == [{"name": FETCHER, "emptyDir": {"sizeLimit": "64Mi"}}]


LONG = "x" * (PROMPT_BYTES_MAX + 1)
PROMPTS = {
    "a prompt that fits is a variable": (LONG[:-1], [], "SANDGATE_PROMPT"),
    "a longer one is a file": (LONG, [], "SANDGATE_TASK_FILE"),
    "bytes count, not characters": ("é" * (PROMPT_BYTES_MAX // 2 + 1), [], "SANDGATE_TASK_FILE"),
    "one that the arguments name stays a variable": (LONG, ["$(SANDGATE_PROMPT)"], "SANDGATE_PROMPT"),
    "until no variable could hold it": (
        "x" * (ENV_BYTES_MAX + 1),
        ["$(SANDGATE_PROMPT)"],
        "SANDGATE_TASK_FILE",
    ),
}


@pytest.mark.parametrize(("prompt", "args", "name"), PROMPTS.values(), ids=PROMPTS)
def test_how_a_prompt_is_delivered(prompt: str, args: list[str], name: str) -> None:
    found = env_of(main_of(agent((f"{MAIN}.args", args), prompt=prompt))).keys()
    assert found & {"SANDGATE_PROMPT", "SANDGATE_TASK_FILE"} == {name}


def test_nothing_of_an_agent_s_pod_names_the_reward_key() -> None:
    for changes in ([], [("spec.agent.taskDelivery", "File")]):
        assert ".reward" not in str(agent(*changes))


def test_a_verifier_has_a_reward_key_and_its_fetcher_the_other() -> None:
    pod = verifier()
    found = env_of(main_of(pod))
    handle = SessionUrls.of(ORIGIN, SESSION).handle()
    assert found.pop("SANDGATE_REWARD_KEY") == secret("reward")
    local = verifier_env(handle, model="tiny")
    assert found == {name: value for name, value in local.items() if name != "SANDGATE_REWARD_KEY"}
    assert env_of(fetcher_of(pod)) == {
        "SANDGATE_GATEWAY": ORIGIN,
        "SANDGATE_TASK_URL": f"{ORIGIN}/v1/sessions/{SESSION}/task",
        "SANDGATE_TASK_FILE": "/sandgate/task.json",
        "SANDGATE_RESULT": '{"exit_code": 0}',
        "SANDGATE_RESULT_FILE": "/sandgate/result.json",
        "SANDGATE_KEY": secret("task"),
    }
    assert mounts_of(main_of(pod)) == {"/sandgate": True}
    assert secret("task") not in env_of(main_of(pod)).values()


def test_a_verifier_runs_where_agents_may_with_the_volumes_that_it_mounts() -> None:
    container = {"image": "judge:1", "volumeMounts": [{"name": "gold", "mountPath": "/gold"}]}
    volumes = [{"name": "gold", "emptyDir": {}}, {"name": "work", "emptyDir": {}}]
    pod = verifier(
        ("spec.reward.verifier.container", container),
        ("spec.reward.verifier.seconds", 60),
        (f"{POD}.volumes", volumes),
        (f"{POD}.nodeSelector", {"disk": "fast"}),
        (f"{POD}.imagePullSecrets", [{"name": "own"}]),
        (f"{POD}.initContainers", [{"name": "prepare", "image": "p"}]),
        look=PodDefaults(fetcher_image="f", pull_secrets=("own", "theirs")),
    )
    assert pod["metadata"]["name"] == f"{SESSION}-v"
    assert pod["metadata"]["labels"]["sandgate.dev/role"] == "verifier"
    assert [one["name"] for one in pod["spec"]["volumes"]] == ["gold", FETCHER]
    assert pod["spec"]["nodeSelector"] == {"disk": "fast"}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "own"}, {"name": "theirs"}]
    assert [one["name"] for one in pod["spec"]["initContainers"]] == [FETCHER]
    assert pod["spec"]["activeDeadlineSeconds"] == PULLS * 300 + 60 + DEADLINE_MARGIN_S
    assert main_of(pod)["name"] == "verifier"


def test_a_result_that_is_too_long_is_refused() -> None:
    assert verifier(result=b"x" * RESULT_BYTES_MAX)
    with pytest.raises(ValueError, match="result: 32769 bytes"):
        verifier(result=b"x" * (RESULT_BYTES_MAX + 1))


def test_a_job_without_a_verifier_has_none_to_run() -> None:
    with pytest.raises(ValueError, match=r"spec\.reward\.verifier"):
        verifier(("spec.reward", {"source": "trainer"}))


@pytest.mark.parametrize("make", [agent_pod, verifier_pod])
def test_the_job_s_own_template_is_not_touched(make: Callable[..., Json]) -> None:
    of = job((f"{POD}.securityContext", {}), (f"{POD}.volumes", []), (f"{MAIN}.env", []))
    before = copy.deepcopy(of)
    more = {"result": b"{}"} if make is verifier_pod else {}
    first, second = (make(of, **args(), look=LOOK, **more) for _ in range(2))
    assert first == second
    assert of == before


# -- what the pod as a whole asks for --------------------------------------------------------------------------------

INSTALLED = Settings().sandbox_resources
"""What containers get by default: 128Mi of memory, 4Gi at most; and of cpu and ephemeral-storage."""
REST = {"requests": {"cpu": "100m", "ephemeral-storage": "64Mi"}, "limits": {"ephemeral-storage": "8Gi"}}
FETCHERS = {"requests": {"cpu": "10m", "ephemeral-storage": "64Mi"}, "limits": {"ephemeral-storage": "128Mi"}}
SHARES: dict[str, tuple[Json, Json, Json, Json]] = {
    "a pod that says nothing": ({}, {}, {}, INSTALLED),
    "a pod's limit is its containers', and no default is more": (
        {"limits": {"memory": "1Gi"}},
        {},
        {"limits": {"memory": "1Gi"}},
        REST,
    ),
    "what it requests only has the default limit, as a whole": (
        {"requests": {"memory": "64Mi"}},
        {},
        {"requests": {"memory": "64Mi"}, "limits": {"memory": "4Gi"}},
        REST,
    ),
    "or what it requests, where that is more": (
        {"requests": {"memory": "8Gi"}},
        {},
        {"requests": {"memory": "8Gi"}, "limits": {"memory": "8Gi"}},
        REST,
    ),
    "a container's own limit stands": (
        {"limits": {"memory": "1Gi"}},
        {"limits": {"memory": "512Mi"}},
        {"limits": {"memory": "1Gi"}},
        {
            "requests": {"ephemeral-storage": "64Mi"},
            "limits": {"memory": "512Mi", "ephemeral-storage": "8Gi"},
        },
    ),
}


@pytest.mark.parametrize(("whole", "own", "pods", "mains"), SHARES.values(), ids=SHARES)
def test_what_a_pod_asks_for_as_a_whole_its_containers_share(
    whole: Json, own: Json, pods: Json, mains: Json
) -> None:
    look = PodDefaults(fetcher_image="f", resources=INSTALLED)
    changes = [(f"{MAIN}.resources", own)] if own else []
    pod = agent((f"{POD}.resources", whole), *changes, look=look)
    assert pod["spec"]["resources"] == pods
    assert main_of(pod)["resources"] == mains
    if whole:
        assert fetcher_of(pod)["resources"] == FETCHERS


JUDGE = "spec.reward.verifier.container"
CLAIM = {"claims": [{"name": "gpu"}]}
VERIFIERS: dict[str, tuple[list[tuple[str, Any]], str, Any]] = {
    "users of its own, where agents have them": ([(f"{POD}.hostUsers", False)], "spec.hostUsers", False),
    "the service account whose pull secrets its image needs": (
        [(f"{POD}.serviceAccountName", "puller")],
        "spec.serviceAccountName",
        "puller",
    ),
    "but not its token": (
        [(f"{POD}.serviceAccountName", "puller"), (f"{POD}.automountServiceAccountToken", True)],
        "spec.automountServiceAccountToken",
        False,
    ),
    "the device that it names": (
        [(f"{POD}.resourceClaims", [{"name": "gpu"}, {"name": "other"}]), (f"{JUDGE}.resources", CLAIM)],
        "spec.resourceClaims",
        [{"name": "gpu"}],
    ),
    "none that it does not name": (
        [(f"{POD}.resourceClaims", [{"name": "gpu"}])],
        "spec.resourceClaims",
        None,
    ),
    "what an agent's pod asks for as a whole": (
        [(f"{POD}.resources", {"limits": {"memory": "1Gi"}})],
        "spec.resources",
        {"limits": {"memory": "1Gi"}},
    ),
    "unless it says what it needs itself": (
        [
            (f"{POD}.resources", {"limits": {"memory": "1Gi"}}),
            (f"{JUDGE}.resources", {"limits": {"memory": "2Gi"}}),
        ],
        "spec.resources",
        None,
    ),
    "one life": ([(f"{JUDGE}.restartPolicy", "Always")], "spec.containers.0.restartPolicy", None),
}


@pytest.mark.parametrize(("changes", "path", "value"), VERIFIERS.values(), ids=VERIFIERS)
def test_a_verifier_has(changes: list[tuple[str, Any]], path: str, value: Any) -> None:
    first = ("spec.reward", {"source": "verifier", "verifier": {"container": {"image": "judge:1"}}})
    assert at(verifier(first, *changes), path) == value

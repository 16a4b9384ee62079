"""Every way to get a manifest wrong is refused by the name of the field, and the text says what to do."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from sandgate.contract.errors import BadManifest
from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import decode
from tests.contract.manifests import CONTAINER, GONE, spoilt

AGENT = "spec.agent.template.spec.containers[0]"

# path changed, value -> what the text must say; the field named is the path, unless FIELD says another.
BAD: list[tuple[str, Any, str]] = [
    ("apiVersion", GONE, "is missing"),
    ("apiVersion", "sandgate.dev/v1", "is not sandgate.dev/v1alpha1"),
    ("apiVersion", 1, "must be text"),
    ("kind", GONE, "is missing"),
    ("kind", "Rolloutjob", "is not RolloutJob; did you mean RolloutJob?"),
    ("metadata", GONE, "is missing"),
    ("metadata.name", GONE, "is missing"),
    ("metadata.name", "", "must not be empty"),
    ("metadata.name", "Shop", "not a DNS label"),
    ("metadata.name", "shop_1", "not a DNS label"),
    ("metadata.name", "-shop", "not a DNS label"),
    ("metadata.name", "shop\n", "not a DNS label"),
    ("metadata.name", "x" * 45, "has more than 44 characters"),
    ("metadata.name", "x" * 53, "at most 52"),
    ("metadata.name", 7, "quote it"),
    ("metadata.labels", ["a"], "must be an object"),
    ("metadata.labels", {"a": 1}, "must be text"),
    ("spec", GONE, "is missing"),
    ("spec", [], "must be an object, not a list"),
    ("spec", "later", "must be an object"),
    ("spec.modle", {}, "did you mean model?"),
    ("spec.groupsize", 4, "did you mean groupSize?"),
    ("spec.group_size", 4, "did you mean groupSize?"),
    ("spec.zzz", 4, "is not a known field"),
    ("spec.model", GONE, "is missing"),
    ("spec.model", "tiny", "must be an object"),
    ("spec.model.name", GONE, "is missing"),
    ("spec.model.name", None, "is missing"),
    ("spec.model.name", "", "must not be empty"),
    ("spec.model.name", "a b", "not a plain name"),
    ("spec.model.name", True, "must be text"),
    ("spec.model.tokenizer", GONE, "is missing"),
    ("spec.model.tokenizer", "", "must not be empty"),
    ("spec.model.tokenizer", "a\0b", "NUL"),
    ("spec.model.historyPolicy", "Sampled", "did you mean sampled?"),
    ("spec.model.historyPolicy", "none", "must be one of sampled, template"),
    ("spec.model.specialTokensInText", "Control", "did you mean control?"),
    ("spec.model.specialTokensInText", "plain", "must be one of text, control"),
    ("spec.model.maxModelLen", -1, "below 0"),
    ("spec.model.maxModelLen", "4096", "must be a whole number"),
    ("spec.model.maxModelLen", 4096.5, "must be a whole number"),
    ("spec.model.maxModelLen", True, "must be a whole number"),
    ("spec.model.maxModelLen", 2**31, "above"),
    ("spec.model.templateKwargs", "x", "must be an object"),
    ("spec.engine", GONE, "is missing"),
    ("spec.engine", {"kind": "vllm"}, "needs exactly one of endpoints, selector, managed"),
    ("spec.engine.managed", {}, "exactly one of"),
    ("spec.engine.selector", {"matchLabels": {"app": "vllm"}}, "cannot stand beside endpoints"),
    ("spec.engine.endpoints", [], "must not be empty"),
    ("spec.engine.endpoints", "http://a:1", "must be a list"),
    ("spec.engine.endpoints[0]", "10.0.0.5:8000", "base URL"),
    ("spec.engine.endpoints[0]", "http://a b", "base URL"),
    ("spec.engine.endpoints[0]", "http://a:8000/?x=1", "base URL"),
    ("spec.engine.endpoints[0]", "http://a:65536", "a port is 1 to 65535"),
    ("spec.engine.endpoints[0]", "http://a:0", "a port is 1 to 65535"),
    ("spec.engine.endpoints[0]", "https://[::1]:99999/", "a port is 1 to 65535"),
    ("spec.engine.endpoints[0]", 8000, "must be text"),
    ("spec.engine", {"kind": "sglang", "managed": {}}, "a managed engine is vLLM"),
    ("spec.engine.kind", "tgi", "must be one of vllm, sglang, not 'tgi'"),
    ("spec.engine.logprobsMode", "raw", "raw_logprobs"),
    ("spec.gateway.replicas", 0, "below 1"),
    ("spec.gateway.replicas", 101, "above 100"),
    ("spec.gateway.idleSeconds", -1, "below 0"),
    ("spec.gateway.beside", "Near", "must be one of"),
    ("spec.gateway.journal", {}, "needs exactly one of sqlite, postgres"),
    ("spec.gateway.journal.postgres", {"secretRef": {"name": "db"}}, "cannot stand beside sqlite"),
    ("spec.gateway.journal.sqlite.storage", "1 GiB", "not a Kubernetes quantity"),
    ("spec.gateway.journal.sqlite.storage", 1, "must be text"),
    ("spec.gateway.roles", [{"role": "judge", "header": "x-a"}], "must be one of main, side, subagent"),
    ("spec.gateway.roles", [{"role": "side"}], "name a header"),
    ("spec.gateway.roles", [{"role": "side", "headerValue": "1", "systemContains": "a"}], "name it"),
    ("spec.gateway.media", {"allowedHosts": "images.example.com"}, "must be a list"),
    ("spec.gateway.media", {"allowedHosts": ["*.example.com"]}, "is not a host such as"),
    ("spec.gateway.media", {"allowedHosts": ["https://images.example.com/a"]}, "is not a host such as"),
    ("spec.gateway.media", {"allowedHosts": ["me@images.example.com"]}, "is not a host such as"),
    ("spec.gateway.media", {"allowedHosts": ["2130706433"]}, "is not a host such as"),
    ("spec.gateway.media", {"allowedHosts": ["127.1"]}, "is not a host such as"),
    ("spec.gateway.media", {"allowedHosts": ["10.0.0.256"]}, "is not a host such as"),
    ("spec.gateway.media", {"allowedHosts": ["a.example:65536"]}, "is not a host such as"),
    ("spec.gateway.media", {"allowedHosts": ["ftp://a.example"]}, "is not a host such as"),
    ("spec.gateway.media", {"allowedHosts": ["[:::]"]}, "':::'"),
    ("spec.gateway.media", {"privateAddresses": "yes"}, "must be true or false"),
    ("spec.tasks", GONE, "is missing"),
    ("spec.tasks", {}, "needs exactly one of inline, configMap, file, queue"),
    ("spec.tasks.file", "t.jsonl", "cannot stand beside inline"),
    ("spec.tasks.file", "", "must not be empty"),
    ("spec.tasks.inline", [], "must not be empty"),
    ("spec.tasks.inline", {"uid": "a"}, "must be a list"),
    ("spec.tasks.inline[0]", "buy", "must be an object"),
    ("spec.tasks.inline[0].uid", GONE, "is missing"),
    ("spec.tasks.inline[0].uid", "", "must not be empty"),
    ("spec.tasks.inline[0].uid", 1, "quote it"),
    ("spec.tasks.inline[0].uid", "x" * 257, "at most 256"),
    ("spec.tasks.inline[0].uid", "\ud800", "Unicode"),
    ("spec.tasks.inline[0].prompt", 5, "must be text or a list of chat messages"),
    ("spec.tasks.inline[0].prompt", [], "must be text or a list of chat messages"),
    ("spec.tasks.inline[0].promt", "buy", "did you mean prompt?"),
    ("spec.tasks.inline[0].data", dt.date(2026, 1, 1), "must be JSON"),
    ("spec.tasks.inline[0].data", float("nan"), "finite"),
    ("spec.tasks.inline[0].data", 10**30, "out of range"),
    ("spec.groupSize", 0, "0 is below 1"),
    ("spec.groupSize", -3, "below 1"),
    ("spec.groupSize", "4", "must be a whole number"),
    ("spec.groupSize", 65537, "above 65536"),
    ("spec.groupSize", 10**400, "out of range"),
    ("spec.parallelism", 0, "below 1"),
    ("spec.parallelism", 1.5, "must be a whole number"),
    ("spec.startBurst", 0, "below 1"),
    ("spec.sampling.temperature", -0.1, "below 0"),
    ("spec.sampling.temperature", 2.1, "2.1 is above 2"),
    ("spec.sampling.temperature", "1.0", "must be a number"),
    ("spec.sampling.temperature", float("inf"), "finite"),
    ("spec.sampling.topP", 0, "0 is below 1e-06"),
    ("spec.sampling.topP", 1e-7, "1e-07 is below 1e-06"),
    ("spec.sampling.topP", 0.0, "0.0 is below 1e-06"),
    ("spec.sampling.repetitionPenalty", 0, "0 is below 0.01"),
    ("spec.sampling.repetitionPenalty", 0.001, "0.001 is below 0.01"),
    ("spec.sampling.topP", 1.1, "above 1"),
    ("spec.sampling.top_p", 0.9, "did you mean topP?"),
    ("spec.sampling.maxTokens", 0, "below 1"),
    ("spec.sampling.override", "yes", "must be true or false"),
    ("spec.sampling.override", 1, "must be true or false"),
    ("spec.limits.turns", -1, "below 0"),
    ("spec.limits.promptTokens", -1, "below 0"),
    ("spec.limits.responseTokens", "16k", "must be a whole number"),
    ("spec.limits.sessionSeconds", 0, "below 1"),
    ("spec.limits.sessionSeconds", "15m", "must be a whole number"),
    ("spec.limits.startSeconds", 0, "below 1"),
    ("spec.limits.timeout", 5, "is not a known field"),
    ("spec.agent", GONE, "is missing"),
    ("spec.agent.backend", "SandboxClaim", "must be one of Pod, Process, not 'SandboxClaim'"),
    ("spec.agent.template", GONE, "is missing"),
    ("spec.agent.template", "x", "must be an object"),
    ("spec.agent.template.spec", GONE, "must be a PodSpec"),
    ("spec.agent.template.spec.containers", [], "at least the agent's container"),
    ("spec.agent.template.spec.containers", CONTAINER, "at least the agent's container"),
    (AGENT, "agent", "must be a Container"),
    (f"{AGENT}.command", "python agent.py", "must be a list"),
    (f"{AGENT}.command", [], "must not be empty"),
    (f"{AGENT}.command[1]", 5, "quote it"),
    (f"{AGENT}.command[1]", "a\0", "NUL"),
    (f"{AGENT}.args", [True], "must be text"),
    (f"{AGENT}.image", 1, "must be text"),
    (f"{AGENT}.env", {"A": "1"}, "must be a list"),
    (f"{AGENT}.env", [{"value": "1"}], "is missing"),
    (f"{AGENT}.env", [{"name": "A=B"}], "must not hold ="),
    (f"{AGENT}.env", [{"name": "A", "value": 1}], "quote it"),
    (f"{AGENT}.resources", [], "must be an object"),
    (f"{AGENT}.resources", {"limits": {"memory": "a lot"}}, "is not a quantity"),
    ("spec.agent.taskDelivery", "env", "did you mean Env?"),
    ("spec.agent.completion", "exit", "did you mean Exit?"),
    ("spec.agent.pool", {"size": 2}, "is not a known field"),
    ("spec.reward.source", "judge", "must be one of agent, verifier, trainer, exitCode"),
    ("spec.reward.source", "exitcode", "did you mean exitCode?"),
    ("spec.reward.source", "trainer", "source verifier needs the verifier block"),
    ("spec.reward.verifier", GONE, "source verifier needs the verifier block"),
    ("spec.reward.verifier", {}, "is missing"),
    ("spec.reward.verifier.container", {"name": "v"}, "no command either"),
    ("spec.reward.verifier.container", [], "must be an object"),
    ("spec.reward.verifier.seconds", 0, "below 1"),
    ("spec.reward.discount", 1.01, "above 1"),
    ("spec.reward.discount", -0.1, "below 0"),
    ("spec.group.quorum", 0, "below 1"),
    ("spec.group.quorum", 5, "more than groupSize"),
    ("spec.group.stragglerSeconds", -1, "below 0"),
    ("spec.group.retry.infra", -1, "below 0"),
    ("spec.group.retry.infra", 101, "above 100"),
    ("spec.group.retry.agent", 1, "is not a known field"),
    ("spec.staleness.batchSize", 0, "below 1"),
    ("spec.staleness.maxVersionsBehind", -1, "below 0"),
    ("spec.output", {}, "needs exactly one of lease, parquet"),
    ("spec.output.parquet", {"url": "s3://b/d"}, "cannot stand beside lease"),
    ("spec.output", {"parquet": {}}, "is missing"),
    ("spec.output.lease.ttl", 5, "nothing belongs here"),
    ("spec.trainer.heartbeatSeconds", 0, "below 1"),
    ("spec.suspend", "false", "must be true or false"),
    ("spec.activeDeadlineSeconds", 0, "below 1"),
    ("spec.ttlSecondsAfterFinished", -1, "below 0"),
    ("spec.managedBy", "somebody", "a name with a domain"),
    ("spec.managedBy", "a/b/c", "a name with a domain"),
    ("status.running", "x", "must be a whole number"),
]

FIELD = {
    ("spec.engine.managed", "exactly one of"): "spec.engine.managed",
    ("spec.tasks.file", "must not be empty"): "spec.tasks.file",
    ("spec.agent.template.spec", "must be a PodSpec"): "spec.agent.template.spec",
    ("metadata.labels", "must be text"): "metadata.labels.a",
    (f"{AGENT}.args", "must be text"): f"{AGENT}.args[0]",
    (f"{AGENT}.env", "is missing"): f"{AGENT}.env[0].name",
    (f"{AGENT}.env", "must not hold ="): f"{AGENT}.env[0].name",
    (f"{AGENT}.env", "quote it"): f"{AGENT}.env[0].value",
    (f"{AGENT}.resources", "is not a quantity"): f"{AGENT}.resources.limits.memory",
    ("spec.engine", "a managed engine is vLLM"): "spec.engine.kind",
    ("spec.reward.source", "source verifier needs the verifier block"): "spec.reward.verifier",
    ("spec.reward.verifier", "is missing"): "spec.reward.verifier.container",
    ("spec.reward.verifier.container", "no command either"): "spec.reward.verifier.container.image",
    ("spec.output", "is missing"): "spec.output.parquet.url",
    ("spec.gateway.media", "must be a list"): "spec.gateway.media.allowedHosts",
    ("spec.gateway.media", "is not a host such as"): "spec.gateway.media.allowedHosts[0]",
    ("spec.gateway.media", "':::'"): "spec.gateway.media.allowedHosts[0]",
    ("spec.gateway.media", "must be true or false"): "spec.gateway.media.privateAddresses",
    ("spec.gateway.roles", "must be one of main, side, subagent"): "spec.gateway.roles[0].role",
    ("spec.gateway.roles", "name a header"): "spec.gateway.roles[0]",
    ("spec.gateway.roles", "name it"): "spec.gateway.roles[0].header",
}
"""Where the field at fault is not the one that was changed."""


def name(case: tuple[str, Any, str]) -> str:
    return f"{case[0]}: {case[2]}"


def test_the_corpus_is_a_corpus() -> None:
    assert len({(path, repr(value)) for path, value, _ in BAD}) == len(BAD) >= 100


@pytest.mark.parametrize(("path", "value", "says"), BAD, ids=[name(case) for case in BAD])
def test_a_bad_manifest_is_refused_by_the_name_of_the_field(path: str, value: Any, says: str) -> None:
    with pytest.raises(BadManifest) as refused:
        decode(RolloutJob, spoilt((path, value)))
    assert refused.value.field == FIELD.get((path, says), path)
    assert str(refused.value).startswith(f"{refused.value.field}: ")
    assert says in str(refused.value)


TWO_CHANGES: list[tuple[list[tuple[str, Any]], str]] = [
    ([(f"{AGENT}.command", GONE), ("spec.agent.backend", "Process")], f"{AGENT}.command"),
    ([(f"{AGENT}.command", GONE), (f"{AGENT}.image", GONE)], f"{AGENT}.image"),
    ([("spec.groupSize", 2), ("spec.group.quorum", 3)], "spec.group.quorum"),
    (
        [("spec.reward", {"source": "exitCode"}), ("spec.agent.completion", "Complete")],
        "spec.agent.completion",
    ),
    (
        [("spec.engine.kind", "sglang"), ("spec.sampling", {"repetitionPenalty": 2.5})],
        "spec.sampling.repetitionPenalty",
    ),
    (
        [("spec.engine.endpoints", GONE), ("spec.engine.selector", {"matchLabels": {}})],
        "spec.engine.selector.matchLabels",
    ),
    *(
        (
            [("spec.engine.endpoints", GONE), ("spec.engine.selector", {"matchLabels": {key: "vllm"}})],
            "spec.engine.selector.matchLabels",
        )
        for key in ("app name", "", "/app", "a/b/c", "-app", "Example.com/app", "a..b/app", "x" * 64)
    ),
    (
        [
            ("spec.engine.endpoints", GONE),
            ("spec.engine.selector", {"matchLabels": {"a": "b"}, "port": 0}),
        ],
        "spec.engine.selector.port",
    ),
    (
        [("spec.engine.endpoints", GONE), ("spec.engine.managed", {"gpus": -1})],
        "spec.engine.managed.gpus",
    ),
    (
        [("spec.engine.endpoints", GONE), ("spec.engine.managed", {"gpuResource": "gpu"})],
        "spec.engine.managed.gpuResource",
    ),
    (
        [("spec.tasks.inline", GONE), ("spec.tasks.configMap", {"name": "Bad Name"})],
        "spec.tasks.configMap.name",
    ),
    ([("spec.tasks.inline", GONE), ("spec.tasks.queue", {"capacity": 0})], "spec.tasks.queue.capacity"),
    (
        [("spec.tasks.inline[0].prompt", [{"content": "x"}])],
        "spec.tasks.inline[0].prompt[0]",
    ),
]


@pytest.mark.parametrize(("changes", "field"), TWO_CHANGES)
def test_faults_that_need_two_changes(changes: list[tuple[str, Any]], field: str) -> None:
    with pytest.raises(BadManifest) as refused:
        decode(RolloutJob, spoilt(*changes))
    assert refused.value.field == field


def test_a_field_of_its_own_depth_limit() -> None:
    deep: Any = "bottom"
    for _ in range(500):
        deep = [deep]
    with pytest.raises(BadManifest, match="nested deeper"):
        decode(RolloutJob, spoilt(("spec.tasks.inline[0].data", deep)))

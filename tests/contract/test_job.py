"""RolloutJob and AgentSession: what the good manifest means, what absent fields mean, and that types say all."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import BadManifest
from sandgate.contract.job import AgentSession, BackendKind, RewardSource, RolloutJob
from sandgate.contract.kinds import bytes_of
from sandgate.contract.manifest_decoder import camel, decode, encode, slots
from sandgate.contract.rules import Doc, OneOf, PrinterColumn
from tests.contract.manifests import GONE, GOOD, spoilt


def test_every_field_of_the_api_is_understood() -> None:
    job = decode(RolloutJob, GOOD)
    spec = job.spec
    assert (job.metadata.name, spec.model.name, spec.model.max_model_len) == ("shop", "tiny", 4096)
    assert spec.engine.endpoints == ("http://10.0.0.5:8000",)
    assert spec.tasks.inline is not None
    assert spec.tasks.inline[0].data == {"verb": "buy", "item": "kiwi", "n": 7}
    assert (spec.group_size, spec.group.quorum, spec.group.retry.infra) == (4, 4, 3)
    assert (spec.sampling.temperature, spec.sampling.max_tokens, spec.sampling.override) == (1.0, 512, True)
    assert spec.agent.backend is BackendKind.POD
    assert spec.agent.template["spec"]["containers"][0]["command"] == ["python", "agent.py"]
    assert spec.reward.source is RewardSource.VERIFIER
    assert spec.output.lease is not None
    assert spec.output.parquet is None


def test_absent_fields_have_the_defaults_of_the_api() -> None:
    absent = ["gateway", "groupSize", "parallelism", "sampling", "limits", "reward", "group", "staleness"]
    absent += ["output", "trainer", "suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished"]
    spec = decode(RolloutJob, spoilt(*((f"spec.{name}", GONE) for name in absent))).spec
    assert spec.gateway.journal.sqlite is not None
    assert (spec.group_size, spec.limits.session_seconds, spec.limits.start_seconds) == (1, 900, 300)
    assert (spec.reward.source, spec.reward.discount) == (RewardSource.TRAINER, 1.0)
    assert (spec.group.quorum, spec.group.straggler_seconds, spec.group.retry.infra) == (None, 120, 3)
    assert spec.output.lease is not None
    assert (spec.staleness, spec.trainer, spec.suspend) == (None, None, False)


def test_a_null_is_an_absent_field() -> None:
    assert decode(RolloutJob, spoilt(("spec.staleness", None))).spec.staleness is None


def test_a_whole_float_is_a_whole_number() -> None:
    assert decode(RolloutJob, spoilt(("spec.groupSize", 4.0))).spec.group_size == 4


def test_what_was_decoded_encodes_to_the_same() -> None:
    job = decode(RolloutJob, GOOD)
    assert decode(RolloutJob, encode(job)) == job


def test_a_session_is_decoded() -> None:
    session = decode(
        AgentSession,
        {
            "apiVersion": "sandgate.dev/v1alpha1",
            "kind": "AgentSession",
            "metadata": {"name": "x"},
            "spec": {"jobName": "shop", "taskUid": "q1", "sampleIndex": 2, "remote": True},
            "status": {"baseURL": "http://g/v1", "reward": 1},
        },
    )
    assert (session.spec.sample_index, session.spec.attempt, session.spec.remote) == (2, 0, True)
    assert session.status is not None
    assert (session.status.base_url, session.status.reward) == ("http://g/v1", 1.0)


def classes() -> list[type]:
    """All manifest classes, RolloutJob and AgentSession first."""
    found: list[type] = [RolloutJob, AgentSession]
    for cls in found:
        for slot in slots(cls):
            for hint in (slot.hint, *get_args(slot.hint)):
                if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint not in found:
                    found.append(hint)
    return found


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_every_field_is_documented_for_kubectl_explain(cls: type) -> None:
    blocks = {"metadata", "spec", "status"}
    undocumented = [
        slot.manifest
        for slot in slots(cls)
        if slot.manifest not in blocks and not any(isinstance(rule, Doc) for rule in slot.rules)
    ]
    assert not undocumented
    assert cls.__doc__


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_rules_and_columns_name_what_exists(cls: type) -> None:
    names = {slot.python for slot in slots(cls)}
    for rule in getattr(cls, "RULES", ()):
        if isinstance(rule, OneOf):
            assert set(rule.fields) <= names
    for column in getattr(cls, "COLUMNS", ()):
        assert isinstance(column, PrinterColumn)
        assert column.path.startswith((".spec.", ".status.", ".metadata."))


@pytest.mark.parametrize(
    ("quantity", "size"),
    [
        ("1", 1),
        ("1k", 1000),
        ("1Ki", 1024),
        ("512Mi", 512 << 20),
        ("1.5Gi", 3 << 29),
        ("1G", 10**9),
        ("1500m", 2),
    ],
)
def test_quantities_are_kubernetes_own(quantity: str, size: int) -> None:
    assert bytes_of(quantity) == size


@pytest.mark.parametrize("quantity", ["", "Gi", "1X", "1GB", "-1", "1e3Mi", "one", "1.2.3Gi"])
def test_what_is_no_quantity_is_refused(quantity: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        bytes_of(quantity)


@pytest.mark.parametrize(
    ("snake", "said"), [("group_size", "groupSize"), ("name", "name"), ("top_p", "topP")]
)
def test_manifests_are_camel_case(snake: str, said: str) -> None:
    assert camel(snake) == said


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


def paths(value: Any, at: str = "") -> list[str]:
    """Of everything in GOOD."""
    if isinstance(value, dict):
        return [at] * bool(at) + [
            one for name, inner in value.items() for one in paths(inner, f"{at}.{name}" if at else name)
        ]
    if isinstance(value, list):
        return [at, *(one for index, inner in enumerate(value) for one in paths(inner, f"{at}[{index}]"))]
    return [at]


@given(path=st.sampled_from(paths(GOOD)), value=json_values)
def test_any_value_in_any_place_is_understood_or_refused_with_a_field(path: str, value: Any) -> None:
    refused: BadManifest | None = None
    try:
        job = decode(RolloutJob, spoilt((path, value)))
    except BadManifest as error:
        refused = error
    else:
        assert decode(RolloutJob, encode(job)) == job
    if refused is not None:
        assert refused.field
        assert str(refused).startswith(refused.field)


@given(value=json_values)
def test_any_value_at_all_is_understood_or_refused(value: Any) -> None:
    with pytest.raises(BadManifest):
        decode(RolloutJob, value)

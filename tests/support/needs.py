"""What tests need that takes minutes to make: who needs what, how it is made, and why a machine cannot have it.

One table. tests/support/tiers.py chooses tests by it and sees to it that everything is made before the tests that need
it, never within their time limits; a test that forgets to say what it needs is told so when it asks for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from scripts import fetch_sdk_tests, fetch_templates
from tests.cluster.harness import needs as machine
from tests.cluster.harness.cache import Part
from tests.cluster.harness.images import COREDNS_IMAGE, PAUSE_IMAGE, PYTHON_IMAGE
from tests.cluster.harness.machines import prepare
from tests.cluster.harness.packages import missing_packages
from tests.cluster.harness.programs import PARTS
from tests.images import ours
from tests.support import environments

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = [*(PARTS[name] for name in machine.PROGRAMS), PAUSE_IMAGE, COREDNS_IMAGE, PYTHON_IMAGE]


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that is made once and kept in ${XDG_CACHE_HOME:-~/.cache}/sandgate."""

    what: str
    """For people: what is made, and how long that takes on two cores when nothing is cached."""
    ready: Callable[[], bool]
    """Quick to ask."""
    make: Callable[[], object]
    """Raises, or exits with a sentence, when it cannot be; what it says goes to stderr."""
    lacks: Callable[[], str] = str
    """Why this machine can neither have it nor make it; empty: it can."""
    everyday: bool = False
    """`make test` runs its tests; all others are for `make test-all`."""


def _part(name: str, what: str) -> Need:
    part = PARTS[name]
    lacks = partial(machine.why_not, name, (), [part])
    return Need(what, part.folder.exists, part.ensure, lacks)


def _environment(script: str, argument: str, what: str, *, everyday: bool = False) -> Need:
    made = partial(environments.built, script, argument)
    return Need(what, lambda: made() is not None, partial(_run, script, argument), everyday=everyday)


def _run(script: str, *words: str) -> None:
    """A script of this clone; its words are the builder's."""
    done = subprocess.run(
        [str(ROOT / "scripts" / script), *filter(None, words)], check=False, stdout=sys.stderr, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(f"{script} failed with exit code {done.returncode}")


def _there(parts: Iterable[Part]) -> bool:
    return all(part.folder.exists() for part in parts)


def _make_images() -> None:
    prepare()
    for name in ours.IMAGES:
        ours.build(name)


NEEDS: dict[str, Need] = {
    "templates": Need(
        "chat templates of a few packages (10 s)",
        lambda: fetch_templates.folder().is_dir(),
        fetch_templates.fetch,
        everyday=True,
    ),
    "sdk-tests": Need(
        "the tests that the SDKs of Anthropic and OpenAI have of themselves (5 s)",
        fetch_sdk_tests.ready,
        fetch_sdk_tests.fetch,
        everyday=True,
    ),
    "engine": _environment(
        "engine-env.sh", "", "a vLLM that runs on the CPU (5 GB, 1 to 3 min)", everyday=True
    ),
    "mini-swe-agent": _environment(
        "agent-env.sh",
        "examples/mini_swe_agent",
        "the environment of examples/mini_swe_agent (10 s)",
        everyday=True,
    ),
    "verifiers": _environment(
        "agent-env.sh", "examples/verifiers", "the environment of examples/verifiers (15 s)", everyday=True
    ),
    "instructor": _environment(
        "agent-env.sh",
        "tests/support/instructor",
        "the environment of tests/support/instructor (10 s)",
        everyday=True,
    ),
    "sglang": _environment(
        "agent-env.sh",
        "tests/gateway/engine/sglang",
        "SGLang's HTTP server, for the engine's interpreter (0.4 GB, 30 s)",
    ),
    "adapters": _environment(
        "agent-env.sh",
        "tests/trainer/adapters",
        "the packages of Tinker, SkyRL and OpenRLHF, for verl's interpreter (0.1 GB, 15 s)",
    ),
    "trl": _environment("trainer-env.sh", "trl", "TRL's environment (3 GB, 1 min)"),
    "areal": _environment("trainer-env.sh", "areal", "AReaL's environment (3 GB, 1 min)"),
    "verl": _environment("trainer-env.sh", "verl", "verl's environment (3 GB, 1 min)"),
    "node-agents": Need(
        "agents from Node's registry (1.8 GB, 100 s)",
        lambda: environments.node_built("tests/agents/node") is not None,
        partial(_run, "node-env.sh", "tests/agents/node"),
        lambda: "" if shutil.which("npm") else "npm is not on the PATH",
    ),
    "openai3-agents": _environment(
        "agent-env.sh", "tests/agents/openai3", "agents from PyPI with OpenAI's SDK 3 (0.5 GB, 30 s)"
    ),
    "openai2-agents": _environment(
        "agent-env.sh", "tests/agents/openai2", "agents from PyPI with OpenAI's SDK 2 (1.1 GB, 25 s)"
    ),
    "apiserver": Need(
        "etcd and kube-apiserver from source (5 min)",
        PARTS["kubebox"].folder.exists,
        PARTS["kubebox"].ensure,
        machine.why_no_api_server,
    ),
    "helm": _part("helm", "helm from source (1 min)"),
    "cluster": Need(
        "the programs and images of a Kubernetes of three nodes, from source (8 min)",
        lambda: _there(CLUSTER) and not missing_packages(),
        prepare,
        machine.why_no_cluster,
    ),
    "images": Need(
        "the images of this clone (2 min)",
        lambda: _there(CLUSTER) and all(ours.built(name) for name in ours.IMAGES),
        _make_images,
        machine.why_no_cluster,
    ),
    "local-path": _part("local-path-provisioner", "kind's storage, from source (10 s)"),
    "kwok": _part("kwok", "kwok from source (20 s)"),
    "kueue": _part("kueue", "Kueue's manager from source (1 min)"),
    "gateway-api": _part("gateway-api", "the Gateway API's definitions from its module (10 s)"),
    "promtool": _part("promtool", "Prometheus' promtool from source (20 s)"),
    "registry": _part("registry", "the reference OCI registry from source (1 min)"),
    "versitygw": _part("versitygw", "versitygw, an S3, from source (1 min)"),
}
"""In the order in which they are made: what comes first is waited for first."""

FIXTURES: dict[str, tuple[str, ...]] = {
    "vllm": ("engine",),
    "parity": ("engine",),
    "vllm_parsers": ("engine",),
    "apiserver": ("apiserver",),
    "cluster": ("apiserver", "cluster"),
    "nobody_else": ("apiserver", "cluster"),
    "areal": ("areal",),
}
"""Whose test asks for one of these, needs that."""

PATHS: dict[str, tuple[str, ...]] = {
    "tests/agents/test_compaction.py": ("node-agents",),
    "tests/gateway/engine/test_sglang_own.py": ("engine", "sglang"),
    "tests/gateway/media/test_real_vllm.py": ("engine", "verl"),
    "tests/gateway/media/test_vllm_processors.py": ("engine", "verl"),
    "tests/agents/test_node_agents.py": ("node-agents",),
    "tests/agents/test_repository.py": ("node-agents",),
    "tests/agents/test_on_vllm.py": ("node-agents",),
    "tests/agents/test_stall.py": ("node-agents",),
    "tests/agents/test_python_agents.py": ("openai3-agents", "openai2-agents"),
    "tests/chart/": ("helm",),
    "tests/images/test_images.py": ("images",),
    "tests/images/test_platforms.py": ("registry",),
    "tests/chart/test_alerts.py": ("promtool",),
    "tests/anycluster/": ("images", "helm", "local-path"),
    "tests/chart/test_oci.py": ("registry",),
    "tests/cluster/e2e/": ("images", "helm"),
    "tests/cluster/e2e/test_output.py": ("versitygw",),
    "tests/cluster/e2e/test_kueue.py": ("kueue",),
    "tests/cluster/e2e/test_chaos.py": ("engine",),
    "tests/cluster/e2e/test_shop.py": ("engine",),
    "tests/cluster/scale/test_scale.py": ("apiserver", "kwok"),
    "tests/cluster/scale/test_bench.py": ("apiserver", "kwok"),
    "tests/cluster/test_gateway_api.py": ("apiserver", "gateway-api"),
    "tests/cluster/test_kueue_api.py": ("apiserver", "kueue"),
    "tests/cluster/test_front.py": ("apiserver",),
    "tests/cluster/test_sandbox.py": ("images",),
    "tests/gateway/test_sdk_suites.py": ("sdk-tests",),
    "tests/gateway/test_turn_forms.py": ("instructor",),
    "tests/e2e/test_third_party.py": ("mini-swe-agent", "verifiers"),
    "tests/trainer/test_cli_runner.py": ("mini-swe-agent",),
    "tests/e2e/test_coder_rl.py": ("engine", "trl"),
    "tests/e2e/test_shop_rl.py": ("trl",),
    "tests/gateway/tokens/": ("templates",),
    "tests/truth/": ("templates",),
    "tests/gateway/protocols/": ("templates",),
    "tests/trainer/test_adapters.py": ("verl", "adapters"),
    "tests/trainer/test_trl.py": ("trl",),
    "tests/trainer/test_trl_served.py": ("engine", "trl"),
    "tests/trainer/test_export_trl.py": ("trl",),
    "tests/trainer/test_verl.py": ("verl",),
}
"""Tests below these, whatever their fixtures."""


def needs_of(item: pytest.Item) -> Iterator[str]:
    """Names in NEEDS, some perhaps twice."""
    for fixture in getattr(item, "fixturenames", ()):
        yield from FIXTURES.get(fixture, ())
    for start, names in PATHS.items():
        if item.nodeid.startswith(start):
            yield from names
    if item.get_closest_marker("vllm") is not None and not os.environ.get("SANDGATE_TEST_ENGINE_URL"):
        yield "engine"


def in_order(names: Iterable[str]) -> list[str]:
    """Each once, as they are made."""
    wanted = set(names)
    return [name for name in NEEDS if name in wanted]

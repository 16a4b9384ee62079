"""Which turns stay on their machine."""

from __future__ import annotations

import pytest

from sandgate.gateway.engine.nodes import EngineNodes

FAR = "http://10.0.0.5:8000"
NODES: dict[str, tuple[str, dict[str, str], str, str]] = {
    "an engine of the gateway's own node": ("a", {FAR: "a"}, FAR, "true"),
    "a URL with a slash is the same engine": ("a", {f"{FAR}/": "a"}, FAR, "true"),
    "an engine of another node": ("a", {FAR: "b"}, FAR, "false"),
    "an engine whose node was not told": ("a", {}, FAR, "unknown"),
    "an engine whose pod names no node": ("a", {FAR: ""}, FAR, "unknown"),
    "a gateway that does not know its own": ("", {FAR: "b"}, FAR, "unknown"),
    "an engine by its name": ("a", {}, "http://vllm.rl:8000", "unknown"),
    "an engine on loopback": ("", {}, "http://127.0.0.1:8000", "true"),
    "an engine on loopback, version 6": ("", {}, "http://[::1]:8000", "true"),
    "an engine on localhost": ("", {}, "http://localhost:8000", "true"),
    "a turn that was cut names none": ("a", {FAR: "a"}, "", "unknown"),
}


@pytest.mark.parametrize(("own", "told", "url", "same"), NODES.values(), ids=NODES)
def test_whether_an_engine_is_on_the_gateways_node(
    own: str, told: dict[str, str], url: str, same: str
) -> None:
    nodes = EngineNodes(own)
    nodes.told(told)
    assert nodes.same(url) == same


def test_what_is_told_replaces_what_was_told() -> None:
    nodes = EngineNodes("a")
    nodes.told({FAR: "a"})
    nodes.told({})
    assert nodes.same(FAR) == "unknown"

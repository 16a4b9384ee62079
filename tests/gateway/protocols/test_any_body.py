"""Any body is understood or refused; nothing else ever comes out of `decode`."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import BadRequest
from sandgate.gateway.conversation.tree import Tree
from sandgate.gateway.protocols.base import Adapter
from sandgate.gateway.protocols.table import ADAPTERS
from tests.fuzz import fuzz_protocols
from tests.gateway.protocols.bodies import VALID, WRONG, put
from tests.gateway.protocols.messages_bodies import VALID as SAID
from tests.gateway.protocols.messages_bodies import WRONG as MISSAID

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
SPOILT = st.builds(lambda field, value: put(VALID, field, value), st.sampled_from(sorted(set(WRONG) & {
    "model", "messages", "tools", "tool_choice", "response_format", "temperature", "stop", "n", "stream",
    "messages[0].content", "messages[1].content[0]", "messages[2].tool_calls", "tools[0].function", "messages[0].role",
})), JSON)  # fmt: skip
SPOILT |= st.builds(lambda field, value: put(SAID, field, value), st.sampled_from(sorted(MISSAID)), JSON)
BODIES = st.binary(max_size=200) | (JSON | SPOILT).map(lambda value: json.dumps(value).encode())


@given(body=BODIES, adapter=st.sampled_from(list(ADAPTERS.values())))
def test_any_body_is_understood_or_refused(body: bytes, adapter: Adapter) -> None:
    with contextlib.suppress(BadRequest):
        Tree().find(adapter.decode(body, {}))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("path", ADAPTERS)
def test_a_short_run_of_the_fuzzer(path: str, seed: int) -> None:
    seen = fuzz_protocols.run(seed, 1000, {path: ADAPTERS[path]})
    assert seen.total() == 1000
    assert seen["understood"] > 100, "mostly noise finds nothing"
    assert seen["InvalidBody"] > 100
    assert seen["Unsupported"] > 0


def test_the_fuzzer_tells_what_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        name = "openai_chat"

        def decode(self, body: bytes, headers: object) -> None:
            raise KeyError("role")

    monkeypatch.setitem(ADAPTERS, "/broken", Broken())
    with pytest.raises(fuzz_protocols.Escaped) as seen:
        fuzz_protocols.run(0, 1)
    assert isinstance(seen.value.__cause__, KeyError)
    assert seen.value.body

"""`$(NAME)` expands as Kubernetes does it: the table of its own tests (third_party/forked/golang/expansion)."""

from __future__ import annotations

import pytest

from sandgate.sandbox.expand import container_env, expand, expand_all

ENV = {"VAR_A": "A", "VAR_B": "B", "VAR_C": "C", "VAR_REF": "$(VAR_A)", "VAR_EMPTY": ""}

CASES = {
    "a reference is the whole string": ("$(VAR_A)", "A"),
    "a reference is repeated": ("$(VAR_A)-$(VAR_A)", "A-A"),
    "a reference at the beginning": ("$(VAR_A)-1", "A-1"),
    "a reference in the middle": ("___$(VAR_B)___", "___B___"),
    "a reference at the end": ("___$(VAR_C)", "___C"),
    "compound": ("$(VAR_A)_$(VAR_B)_$(VAR_C)", "A_B_C"),
    "escape & expand": ("$$(VAR_B)_$(VAR_A)", "$(VAR_B)_A"),
    "compound escape": ("$$(VAR_A)_$$(VAR_B)", "$(VAR_A)_$(VAR_B)"),
    "mixed in escapes": ("f000-$$VAR_A", "f000-$VAR_A"),
    "backslash escape ignored": ("foo\\$(VAR_C)bar", "foo\\Cbar"),
    "backslash escape after expansion": ("foo\\\\$(VAR_C)bar", "foo\\\\Cbar"),
    "values are not expanded again": ("$(VAR_REF)", "$(VAR_A)"),
    "empty value": ("foo$(VAR_EMPTY)bar", "foobar"),
    "an undefined reference stays": ("$(VAR_DNE)", "$(VAR_DNE)"),
    "undefined and expanded": ("$(VAR_DNE)-$(VAR_A)", "$(VAR_DNE)-A"),
    "nested is a name that is not set": ("$(VAR_$(VAR_A))", "$(VAR_$(VAR_A))"),
    "shell style is left alone": ("$VAR_A ${VAR_B}", "$VAR_A ${VAR_B}"),
    "trailing dollar": ("foo$", "foo$"),
    "of two trailing dollars one is left": ("foo$$", "foo$"),
    "of three trailing dollars two are left": ("foo$$$", "foo$$"),
    "an unclosed reference stays": ("$(VAR_A", "$(VAR_A"),
    "an unclosed reference at the end stays": ("x-$(", "x-$("),
    "empty name": ("$()", "$()"),
    "dollar before a reference": ("$$$(VAR_A)", "$A"),
    "four dollars": ("$$$$", "$$"),
    "new lines are text": ("a\n$(VAR_A)\n", "a\nA\n"),
    "no reference": ("", ""),
}


@pytest.mark.parametrize(("text", "expanded"), CASES.values(), ids=CASES)
def test_expansion(text: str, expanded: str) -> None:
    assert expand(text, ENV) == expanded
    assert expand_all([text, "x"], ENV) == [expanded, "x"]


def test_a_container_s_variables_refer_to_those_before_and_to_ours() -> None:
    entries = [
        {"name": "URL", "value": "$(OPENAI_BASE_URL)/x"},
        {"name": "TWICE", "value": "$(URL)+$(URL)"},
        {"name": "LATER", "value": "$(NEVER)"},
        {"name": "EMPTY"},
        {"name": "PATH", "value": "/own:$(PATH)"},
        {"name": "OPENAI_API_KEY", "value": "theirs"},
    ]
    env = container_env(entries, {"PATH": "/bin"}, {"OPENAI_BASE_URL": "http://g", "OPENAI_API_KEY": "ours"})
    assert env == {
        "PATH": "/own:/bin",
        "OPENAI_BASE_URL": "http://g",
        "OPENAI_API_KEY": "ours",
        "URL": "http://g/x",
        "TWICE": "http://g/x+http://g/x",
        "LATER": "$(NEVER)",
        "EMPTY": "",
    }

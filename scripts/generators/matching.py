"""docs/reference/matching.md: the rules by which messages that come back are recognised, from the table in the code."""

from __future__ import annotations

from sandgate.gateway.conversation.rules_page import RULES, MatchingRule

PATH = "docs/reference/matching.md"
INTRO = """\
<!-- Generated from gateway/sandgate/gateway/conversation/rules_page.py by `make fix`. Do not edit. -->
# How messages that come back are recognised

An agent sends its whole history with every request, and words it anew: arguments printed differently, reasoning
left out, ids renamed. These rules say when an assistant message is the echo of a turn that was sampled here, and
when two requests share their head. What no rule recognises is a fork; [the reasons](reasons.md#forkreason) say why
it forked.

The rules were found by measuring 30 clients in 70 set-ups (November 2026). 179 assistant turns came back. 47 of
them came back as they were sent; by these rules 171 are recognised. The other 8 had been changed for real. The
rules are the same for every dialect, and a conversation that goes on in another one is still one.

An echo is read by the strictest rule that fits. A rule can only find the turn: its tokens are never taken from the
echo, always from what was sampled ([ADR 0003](../adr/0003-hashes-find-tokens-decide.md)).

Code and tests cite these rules by number. `gateway/sandgate/gateway/conversation/` has them: `message_equality.py`
(when two messages are the same), `echo_matching.py` (when one is an echo) and `search.py` (which turn of several);
`tests/gateway/conversation/test_rules.py` has a case for each sentence.
"""


def generate() -> dict[str, str]:
    return {PATH: "\n".join([INTRO, *map(described, RULES)])}


def described(rule: MatchingRule) -> str:
    return f"## {rule.cited}: {rule.name}\n\n{rule.same}\n\n*Why:* {rule.why}\n"

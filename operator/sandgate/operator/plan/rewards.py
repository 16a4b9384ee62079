"""What to say where nobody was given a reward: where it belongs, and what stands there instead. (pure)"""

from __future__ import annotations

import json

from sandgate.contract.job import RewardSource
from sandgate.contract.kinds import Json
from sandgate.contract.session import OUTCOME_BYTES_MAX, TerminationMessage
from sandgate.contract.storable import unstorable
from sandgate.operator.plan.missing_groups import one_line

PLACE = 'writes {"reward": n} to $SANDGATE_TERMINATION_LOG'
KEYS_MAX = 8
KEY_CHARS_MAX = 40
"""Of names that an agent chose."""


def none_has_one(
    source: RewardSource, scored: int, unscored: int, last: TerminationMessage | None = None
) -> str:
    """For a job that is over, of whose samples `unscored` want nothing but a reward; empty where there is nothing to
    say. It is no failure: a trainer may score rows itself. `last`: what the last of them left; None: nobody knows."""
    if source is not RewardSource.AGENT or scored or not unscored:
        return ""
    said = "" if last is None else f"; the last {left(last)}"
    return f"no session has a reward: with reward.source agent the agent {PLACE}{said}"


def left(message: TerminationMessage) -> str:
    """Of a message without a reward, what it had instead."""
    value = message.value
    if value is None:
        return "message was empty"
    if message.cut:
        pods = ", its share of what Kubernetes keeps of a pod's containers together,"
        share = pods if message.cut < OUTCOME_BYTES_MAX else ""
        return f"message was cut at {message.cut:,} bytes{share} and so is no JSON"
    if isinstance(value, str):
        value = _unkept(value)
    if not isinstance(value, dict):
        return "message was no JSON object"
    if "reward" in value:
        return "message's reward is no finite number"
    names = [one_line(str(name))[:KEY_CHARS_MAX] for name in list(value)[:KEYS_MAX]]
    more = ", ..." if len(value) > KEYS_MAX else ""
    return f"message had the keys: {', '.join(names)}{more}" if names else "message was an empty object"


def _unkept(text: str) -> Json:
    """The JSON value of a message that was kept as text since its value cannot be (NaN, which Python writes); else the
    text."""
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if unstorable(value) else text

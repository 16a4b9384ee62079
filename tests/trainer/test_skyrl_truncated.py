"""Truncated episodes in a batch for SkyRL: masked as its config says; in an evaluation they count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from sandgate.contract.errors import Unsupported
from sandgate.trainer.credit.reasons import CreditRules
from sandgate.trainer.skyrl.jobs import rules_of
from sandgate.trainer.skyrl.output import to_generator_output
from tests.gateway.trajectories.forest import T
from tests.trainer.groups import session


class Asked(NamedTuple):
    instance_id: str
    repetition_id: int


ENDS = (
    (1.0, None, None),
    (0.0, "policy", "TurnLimit"),
    (0.0, "policy", "ContextExceeded"),
    (None, "infra", "NodeLost"),
    (None, "infra", "NodeLost"),
)
MASKED = CreditRules(truncated="mask")


def config(**generator: Any) -> Any:
    return SimpleNamespace(generator=SimpleNamespace(**generator))


def made(rules: CreditRules | None, *, evaluation: bool) -> tuple[list[float], list[bool]]:
    """Rewards, and which rows teach."""
    rows = [row for number, end in enumerate(ENDS) for row in session(number, [T("a", role="main")], end)]
    asked = [Asked("q1", number) for number in range(len(ENDS))]
    found = to_generator_output({"q1": rows}, asked, rules=rules, evaluation=evaluation)
    return [round(one, 3) for one in found["rewards"]], [any(mask) for mask in found["loss_masks"]]


THIRD = 0.333
CASES: dict[str, tuple[CreditRules | None, bool, list[float], list[bool]]] = {
    "they count": (None, False, [1.0, 0.0, 0.0, 0.911, -0.244], [True, True, True, False, False]),
    "they are masked": (MASKED, False, [1.0] * 5, [True, False, False, False, False]),
    "in an evaluation a failure has the mean": (
        None, True, [1.0, 0.0, 0.0, THIRD, THIRD], [True, True, True, False, False],
    ),
    "in an evaluation they count whatever the rules say": (
        MASKED, True, [1.0, 0.0, 0.0, THIRD, THIRD], [True, True, True, False, False],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rules", "evaluation", "rewards", "taught"), CASES.values(), ids=CASES)
def test_truncated_episodes(
    rules: CreditRules | None, evaluation: bool, rewards: list[float], taught: list[bool]
) -> None:
    assert made(rules, evaluation=evaluation) == (rewards, taught)


RULES: dict[str, tuple[Any, CreditRules | None, CreditRules | None]] = {
    "it filters": (config(apply_overlong_filtering=True), None, MASKED),
    "it filters, and other rules stay": (
        config(apply_overlong_filtering=True), CreditRules(roles=("main",)),
        CreditRules(roles=("main",), truncated="mask"),
    ),
    "it does not": (config(apply_overlong_filtering=False, zero_reward_on_non_stop=False), MASKED, MASKED),
    "it says nothing": (config(), None, None),
}  # fmt: skip


@pytest.mark.parametrize(("said", "given", "rules"), RULES.values(), ids=RULES)
def test_skyrls_config_says_whether_they_are_masked(
    said: Any, given: CreditRules | None, rules: CreditRules | None
) -> None:
    assert rules_of(said, given) == rules


def test_a_setting_that_changes_rewards_is_refused() -> None:
    with pytest.raises(Unsupported, match="zero_reward_on_non_stop: rewards are the job's"):
        rules_of(config(zero_reward_on_non_stop=True))

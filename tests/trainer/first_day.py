"""examples/first_day where a test may change it, and what each of its sessions must read like, wherever one looks."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.engine.scripted.engine import Player, Reply
from sandgate.gateway.tokens.load import read_checkpoint
from sandgate.trainer.trl import rows as trl
from tests.trainer.jobs import Lab, served

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TASKS = ("ordinary", "impossible", "raises", "crashes", "hangs", "killed")
SAMPLES = 4
ACCIDENTS = {"raises": "raises", "crashes": "crashes", "hangs": "hangs", "killed": "killed"}
"""Task -> what befalls its samples 2 and 3."""
HANG_S = 30
"""Its sessionSeconds."""


def info(
    code: int | None, detail: str, *, signal: str | None = None, traceback: bool = False
) -> dict[str, Any]:
    return {"exit_code": code, "signal": signal, "detail": detail, "traceback": traceback}


READS: dict[str, tuple[str | None, str | None, float, bool, bool, Mapping[str, Any]]] = {
    "right": (None, None, 1.0, True, False, {"exit_code": 0}),
    "wrong": ("policy", "AnswerWrong", 0.0, True, False, info(1, "wrong: ")),
    "raises": (
        "policy", "AnswerWrong", 0.0, True, False, info(1, "RuntimeError: the till is open", traceback=True),
    ),
    "crashes": ("agent", "AgentExit", 0.0, False, True, info(3, "OSError: the ledger is full", traceback=True)),
    "hangs": (
        "policy", "SessionTimeout", 0.0, False, False, info(None, f"still running after sessionSeconds {HANG_S}"),
    ),
    "killed": ("agent", "AgentSignal", 0.0, False, True, info(None, "", signal="SIGKILL")),
}  # fmt: skip
"""Kind of end -> failure_class, failure_reason, reward, complete, masked, reward_info (`wrong: ` goes on with what was
traded)."""

SAYS = {
    "raises": "policy/AnswerWrong exit code 1 with a traceback: RuntimeError: the till is open",
    "crashes": "agent/AgentExit exit code 3 with a traceback: OSError: the ledger is full",
    "hangs": f"policy/SessionTimeout still running after sessionSeconds {HANG_S}",
    "killed": "agent/AgentSignal killed by SIGKILL",
}
"""Kind -> the line about such a session while the job runs. What the policy did right or wrong is counted only."""


def copied(folder: Path) -> Path:
    """The example as a person copies it, beside the model that it names; returns its folder."""
    shutil.copytree(EXAMPLES / "first_day", folder / "first_day")
    (folder / "shop").mkdir()
    (folder / "shop" / "model").symlink_to(EXAMPLES / "shop" / "model")
    return folder / "first_day"


def change(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1, f"{before!r} stands {text.count(before)} times in {file.name}"
    file.write_text(text.replace(before, after))


@contextlib.asynccontextmanager
async def scripted(folder: Path) -> AsyncIterator[Lab]:
    """A copy of the example, before an engine that does each errand as asked; every other `ordinary` one wrongly."""
    here = copied(folder)
    vocab = read_checkpoint(EXAMPLES / "shop" / "model").vocab
    (end,) = vocab.encode("<|im_end|>")
    errand = re.compile(r"<\|im_start\|>user\n(buy|sell) (\d+) (\w+)<\|im_end\|>")
    ordinary = itertools.count()

    def clerk(ids: Sequence[int], number: int) -> Reply:
        asked = vocab.decode(ids)
        ((verb, n, item),) = errand.findall(asked)
        said = "done"
        if "<tool_response>\n" not in asked:
            many = int(n) + (item == "pear" and verb == "buy" and next(ordinary) % 2)
            said = f'<tool_call>\n{{"name": "{verb}", "arguments": {{"item": "{item}", "n": {many}}}}}\n</tool_call>'
        return Reply([*vocab.encode(said), end])

    player = Player(
        clerk,
        encode=vocab.encode,
        decode=vocab.decode,
        eos_ids=[end],
        vocab_size=vocab.size,
        max_model_len=2048,
    )
    async with served(here, player, "shop") as made:
        yield made


def kind_of(row: Trajectory) -> str:
    """What this session must have come to: an accident, or what its own answer was worth."""
    if row.sample_index >= 2 and row.uid in ACCIDENTS:
        return ACCIDENTS[row.uid]
    return "right" if row.uid != "impossible" and row.reward == 1.0 else "wrong"


def rows_read_as_they_should(rows: Iterable[Trajectory]) -> Counter[str]:
    """Every sample has one row, and each kind of end its own values. Returns how often each kind was there."""
    by_sample = {(row.uid, row.sample_index): row for row in rows}
    assert sorted(by_sample) == sorted(itertools.product(TASKS, range(SAMPLES)))
    for row in by_sample.values():
        kind = kind_of(row)
        said = dict(row.reward_info)
        if kind == "wrong":
            assert said["detail"].startswith("wrong: ")
            said["detail"] = "wrong: "
        found = (row.failure_class, row.failure_reason, row.reward, row.complete, row.masked, said)
        assert found == READS[kind], f"{row.uid} {row.sample_index} should be {kind}"
    return Counter(map(kind_of, by_sample.values()))


def groups_mean_what_the_policy_did(rows: Sequence[Trajectory]) -> None:
    """As TRL is given them: rows that teach nothing have no reward and no token to learn from; the others have both."""
    for uid in TASKS:
        mine = [row for row in rows if row.uid == uid]
        given = trl.rollout(trl.group_rows(mine, SAMPLES), 0)
        kinds = {row.sample_index: kind_of(row) for row in mine}
        broken = {sample for sample, kind in kinds.items() if kind in ("crashes", "killed")}
        assert {at for at, reward in enumerate(given["env_reward"]) if reward is None} == broken
        assert {at for at, mask in enumerate(given["env_mask"]) if not any(mask)} == broken
        mean = fmean(reward for reward in given["env_reward"] if reward is not None)
        judged = [kind for sample, kind in kinds.items() if sample not in broken]
        assert mean == judged.count("right") / len(judged)


def live_lines_tell_them_apart(stderr: str) -> None:
    """What broke has one line each, with what a person needs to mend it; what was right or wrong is counted."""
    about = re.compile(r"^\S+ \(task (\w+), sample (\d), attempt 0\): (.*)$")
    told = sorted(found.groups() for line in stderr.splitlines() if (found := about.match(line)))
    assert told == sorted((uid, sample, SAYS[kind]) for uid, kind in ACCIDENTS.items() for sample in "23")
    assert len(set(SAYS.values())) == len(SAYS)

"""examples/shop-rl/train.py with a witness; and a judge of what it saw. Runs in TRL's environment.

    recorded_rl.py train RECORD ...   train.py's own arguments; RECORD: a line per round
    recorded_rl.py check RECORD WEIGHTS   every token against a float32 forward pass of its version's weights

The witness keeps every version's weights, and holds back the second turn of sessions of later rounds until new weights
are published: so there are trajectories that span an update, whatever the machine's speed.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import threading
from pathlib import Path
from typing import Any

from sandgate.contract.names import session_id
from sandgate.trainer.trl.names import Round

ATTEMPTS = 10
"""More than a sample ever has."""
HELD_S = 20.0
"""At most, so that a held session cannot stop the run."""


class Held:
    """A session waits for the next publication before its second request, unless the trainer waits for it."""

    def __init__(self) -> None:
        self._published = 0
        self._change = threading.Condition()
        self._requests: dict[str, int] = {}
        self._began: dict[str, int] = {}
        self._free: set[str] = set()

    def published(self) -> None:
        with self._change:
            self._published += 1
            self._change.notify_all()

    def free(self, sessions: set[str]) -> None:
        with self._change:
            self._free |= sessions
            self._change.notify_all()

    def __call__(self, request: Any) -> None:
        session = request.url.path.split("/")[2]
        with self._change:
            count = self._requests[session] = self._requests.get(session, 0) + 1
            began = self._began.setdefault(session, self._published)
            if count == 2:
                self._change.wait_for(lambda: self._published > began or session in self._free, HELD_S)


def train(record: Path) -> None:
    import train as program  # type: ignore[import-not-found, unused-ignore]  # of examples/shop-rl

    grpo = program.grpo

    held = Held()
    grpo.HTTP.event_hooks = {"request": [held]}

    class Recorded(grpo.Rollouts):  # type: ignore[misc, name-defined, unused-ignore]
        def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
            n, step = trainer.num_generations, trainer.state.global_step
            named = Round(step).tasks(self.run, self._tasks_of(prompts, n))
            at = itertools.product(named, range(n), range(ATTEMPTS))
            held.free(
                {session_id(program.EXAMPLE.job, task.uid, sample, attempt) for task, sample, attempt in at}
            )
            out: dict[str, Any] = super().__call__(prompts, trainer)
            with record.open("a") as file:
                file.write(json.dumps({"step": step, **out}) + "\n")
            return out

        def publish(self, trainer: Any) -> None:
            super().publish(trainer)
            held.published()

    grpo.FolderWeights = functools.partial(grpo.FolderWeights, kept=1_000)
    grpo.train(grpo.arguments(None).parse_args(), program.EXAMPLE, Recorded)


def check(record: Path, weights: Path) -> None:
    """Prints JSON: tokens judged, the largest difference, rows of several versions, and the largest difference of a
    token of such a row under the other version (a label that could be wrong unnoticed proves nothing)."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from transformers import AutoModelForCausalLM  # type: ignore[import-not-found, unused-ignore]

    torch.set_num_threads(1)
    models: dict[int, Any] = {}

    def logprobs(version: int, prompt: list[int], response: list[int]) -> list[float]:
        if version not in models:
            found = AutoModelForCausalLM.from_pretrained(weights / f"v{version}", dtype=torch.float32)
            models[version] = found.eval()
        with torch.no_grad():
            logits = models[version](torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        values = logits.log_softmax(-1)[range(len(response)), response]
        return [float(one) for one in values]

    tokens, worst, mixed, other = 0, 0.0, 0, 0.0
    for line in record.read_text().splitlines():
        one = json.loads(line)
        columns = (one[name] for name in ("prompt_ids", "completion_ids", "logprobs", "sandgate_versions"))
        for prompt, response, captured, versions in zip(*columns, strict=True):
            known = sorted(set(versions) - {-1})
            mixed += len(known) > 1
            for version in known:
                ours = logprobs(version, prompt, response)
                off = [abs(a - b) for a, b in zip(captured, ours, strict=True)]
                worst = max(worst, *(d for d, of in zip(off, versions, strict=True) if of == version))
                tokens += versions.count(version)
                if len(known) > 1:
                    other = max(
                        other, *(d for d, of in zip(off, versions, strict=True) if of not in (-1, version))
                    )
    print(json.dumps({"tokens": tokens, "worst": worst, "mixed": mixed, "other": other}))


if __name__ == "__main__":
    what, recorded = sys.argv.pop(1), Path(sys.argv.pop(1))
    if what == "train":
        train(recorded)
    else:
        check(recorded, Path(sys.argv[1]))

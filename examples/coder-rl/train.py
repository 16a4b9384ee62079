"""GRPO on the coding agent, in one of four ways (`--arm`) that differ in what the trainer is told of the same rollouts.

    exact         Sandgate's records: the ids, masks and logprobs of the engine
    retokenized   rows made of the agents' chat transcripts (transcripts.py)
    masked        exact, and sandboxes die under training episodes (HAZARD): those teach nothing
    scored0       exact, and the same deaths: each is an episode of reward 0

Evaluations are the same in all: held-out specifications, sandboxes that live.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from openai import OpenAI
from transformers import AutoTokenizer  # type: ignore[import-not-found, unused-ignore]

from sandgate.contract.errors import Unavailable
from sandgate.contract.session import SessionHandle
from sandgate.trainer.trl import Rollouts

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "learning"))
import agent  # noqa: E402
import grpo  # noqa: E402
from sandbox import Sandbox, SandboxLost  # noqa: E402
from transcripts import Difference, Rebuilt, Transcripts, around_first_difference  # noqa: E402
from verifier import judge  # noqa: E402

ARMS = ("exact", "retokenized", "masked", "scored0")
HAZARD = 0.06
"""Chance that a sandbox dies at a use of a tool: of episodes of three or four uses about a fifth ends so."""


class Mortal(Sandbox):
    """Dies as chance has it, which is the same in all attempts at a sample: a new attempt is no way out here."""

    def __init__(self, sample: str, hazard: float) -> None:
        self._chance, self._hazard = random.Random(sample), hazard

    def touch(self) -> None:
        if self._hazard and self._chance.random() < self._hazard:
            raise SandboxLost("killed by this experiment")


class Coder:
    """The agent with its verifier, and what an arm does about a lost sandbox."""

    def __init__(self, arm: str, out: Path) -> None:
        self.arm, self.specs = arm, agent.specs()
        self.hazard = 0.0
        self.lost: set[str] = set()
        """Samples whose sandbox died: further attempts at them get none."""
        self.transcripts = Transcripts(out / "transcripts.jsonl")

    def __call__(
        self, *, session: SessionHandle, raw_prompt: str, sample_index: int, tools_kwargs: Any
    ) -> float:
        client = OpenAI(base_url=session.base_url, api_key=session.api_key, http_client=grpo.HTTP)
        sample = session.session_id.rpartition("-")[0]
        episode, sandbox = agent.Episode(), Mortal(sample, self.hazard)
        if sample in self.lost:
            raise Unavailable("its sandbox does not start")
        try:
            agent.run(client, raw_prompt, sandbox, self.specs, episode)
            return float(judge(tools_kwargs, episode.submitted, sandbox)["reward"])
        except SandboxLost as error:
            self.lost.add(sample)
            if self.arm == "scored0":
                return 0.0
            raise Unavailable(str(error)) from error  # infrastructure: tried again, then masked
        finally:
            self.transcripts.keep(session.session_id, episode.messages)


class Told(Rollouts):
    """Rollouts of an arm; says how a transcript of each row would differ, in every arm."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.coder: Coder = named["agent"]
        tokenizer = AutoTokenizer.from_pretrained(HERE / "model")
        self.names = tokenizer.convert_ids_to_tokens
        self.end = int(tokenizer.eos_token_id)
        self.encode = lambda messages, opens: tokenizer.apply_chat_template(
            messages, tools=agent.TOOLS, add_generation_prompt=opens, tokenize=True, return_dict=False
        )

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        training = bool(trainer.model.training)
        self.coder.hazard = HAZARD if training and self.coder.arm in ("masked", "scored0") else 0.0
        out = super().__call__(prompts, trainer)
        if training:
            self._rebuild(out, trainer)
        return out

    def _rebuild(self, out: dict[str, Any], trainer: Any) -> None:
        found: list[Difference] = []
        example: list[list[str]] = []
        names = ("sandgate_session", "prompt_ids", "completion_ids", "env_mask")
        for at, (session, prompt, ids, mask) in enumerate(zip(*(out[name] for name in names), strict=True)):
            messages = self.coder.transcripts.of(session)
            if not any(mask) or not any(one["role"] == "assistant" for one in messages or ()):
                continue  # it teaches nothing, or no agent saw it
            rebuilt = Rebuilt.of(messages, self.encode, self.end)
            found.append(Difference.of(prompt, ids, mask, rebuilt))
            if not example and found[-1].lost:
                example = [*map(self.names, around_first_difference(ids, rebuilt.completion_ids))]
            if self.coder.arm == "retokenized":
                out["prompt_ids"][at], out["completion_ids"][at] = rebuilt.prompt_ids, rebuilt.completion_ids
                out["env_mask"][at] = rebuilt.mask
                out["logprobs"][at] = [0.0] * len(rebuilt.mask)
                out["sandgate_versions"][at] = [-1] * len(rebuilt.mask)
        trainer.steps.tell(
            at_step=trainer.state.global_step,
            rows=len(found),
            rows_differ=sum(one.lost + one.invented > 0 for one in found),
            sampled=sum(one.sampled for one in found),
            lost=sum(one.lost for one in found),
            invented=sum(one.invented for one in found),
            sandboxes_lost=len(self.coder.lost),
            example=example,  # tokens of the first row that differs: as sampled, as made of the transcript
        )


def main() -> None:
    parser = grpo.arguments(__doc__)
    parser.add_argument("--arm", choices=ARMS, default="exact")
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    # Without logprobs of the sampling there is nothing to correct with.
    settings = {"vllm_importance_sampling_correction": told.arm != "retokenized"}
    coder = Coder(told.arm, told.out)
    train, held_out = (grpo.tasks_of(HERE / f"{name}.jsonl") for name in ("train", "held_out"))
    example = grpo.Example(
        job="coder-rl",
        model=HERE / "model",
        agent=coder,
        tasks=train,
        held_out=held_out,
        settings=settings,
    )
    grpo.train(told, example, Told)


if __name__ == "__main__":
    main()

"""verl's inference client as an engine: what it says is what is recorded, and what it leaves out is refused."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from sandgate.contract.errors import EngineFailed, EngineUnavailable, Unsupported
from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine.api import Delta, GenerationResult, Prompt, VersionSpan
from sandgate.trainer.verl.engine import ABORTS_MAX, VerlEngine

END = 9


def output(ids: list[int], **changes: Any) -> Any:
    """verl's TokenOutput."""
    said = {"token_ids": ids, "log_probs": [-0.5] * len(ids), "stop_reason": "completed"}
    return SimpleNamespace(**said | {"extra_fields": {"global_steps": 7}} | changes)


class Client:
    """verl's LLMServerClient: gives the answers in order, raises those that are errors."""

    def __init__(self, *answers: Any, full_determinism: bool = False) -> None:
        rollout = SimpleNamespace(full_determinism=full_determinism)
        self.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
        self.answers = list(answers)
        self.asked: list[tuple[str, list[int], dict[str, Any]]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Any:
        self.asked.append((request_id, prompt_ids, sampling_params))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def prompt(**changes: Any) -> Prompt:
    said: dict[str, Any] = {
        "request_id": "r1",
        "ids": array("i", [1, 2]),
        "sampling": SamplingParams(temperature=0.5, top_p=0.9, stop=("X",)),
        "max_tokens": 4,
        "stop_ids": (END,),
        "affinity": "q1",
        "session": "s1",
        "version": 3,
    }
    return Prompt(**said | changes)


async def sampled(client: Client, **changes: Any) -> GenerationResult:
    return await VerlEngine(client, max_model_len=64, vocab_size=10).generate(prompt(**changes))


@pytest.mark.parametrize(
    ("said", "finish", "versions"),
    [
        pytest.param(output([5, END]), "stop", (VersionSpan(7, 0, 2),), id="its own end"),
        pytest.param(output([5, 6, 5, 6]), "length", (VersionSpan(7, 0, 4),), id="as long as asked"),
        pytest.param(output([5]), "stop", (VersionSpan(7, 0, 1),), id="a stop string"),
        pytest.param(
            output([5, END], extra_fields={"min_global_steps": 6, "max_global_steps": 7, "global_steps": 7}),
            "stop",
            (VersionSpan(6, 0, 2),),
            id="a weight update meanwhile: the oldest",
        ),
        pytest.param(
            output([END], extra_fields={}), "stop", (VersionSpan(3, 0, 1),), id="no version: the told one"
        ),
    ],
)
async def test_an_answer_is_a_sample(said: Any, finish: str, versions: tuple[VersionSpan, ...]) -> None:
    client = Client(said)
    sample = await sampled(client)
    assert (list(sample.ids), sample.finish, sample.versions) == (said.token_ids, finish, versions)
    assert list(sample.logprobs) == said.log_probs
    assert client.asked == [
        (
            "q1\x1fs1",
            [1, 2],
            {
                "temperature": 0.5,
                "top_p": 0.9,
                "logprobs": True,
                "max_tokens": 4,
                "stop_token_ids": [END],
                "stop": ["X"],
            },
        )
    ]


async def test_an_aborted_generation_goes_on_after_its_last_token_with_its_own_version() -> None:
    client = Client(output([5], stop_reason="aborted"), output([6, END], extra_fields={"global_steps": 8}))
    told: list[Delta] = []
    sample = await VerlEngine(client, max_model_len=64, aborted_s=0.0).generate(prompt(), told.append)
    assert list(sample.ids) == [5, 6, END]
    assert sample.versions == (VersionSpan(7, 0, 1), VersionSpan(8, 1, 3))
    assert [(ids, params["max_tokens"]) for _, ids, params in client.asked] == [([1, 2], 4), ([1, 2, 5], 3)]
    assert [list(delta.ids) for delta in told] == [[5], [6, END]]


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "no logprobs": (output([5], log_probs=None), EngineFailed, "gave no logprobs for 1 tokens"),
    "too few logprobs": (output([5, END], log_probs=[-0.5]), EngineFailed, "gave 1 logprobs for 2 tokens"),
    "a token that does not exist": (output([11]), EngineFailed, "11"),
    "a logprob that is none": (output([5], log_probs=[float("nan")]), EngineFailed, "logprob"),
    "a server that is gone": (
        RuntimeError("No available servers"),
        EngineUnavailable,
        "No available servers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_trusted_is_refused(case: str) -> None:
    said, error, why = REFUSED[case]
    with pytest.raises(error, match=why):
        await sampled(Client(said))


@pytest.mark.parametrize("asked", [{"constraint": {"regex": "a"}}, {"top_logprobs": 2}])
async def test_what_verl_does_not_carry_is_refused_before_it_is_asked(asked: dict[str, Any]) -> None:
    client = Client()
    with pytest.raises(Unsupported):
        await sampled(client, **asked)
    assert client.asked == []


class LLMServerClient(Client):
    """verl's plain client, by its name."""


class FullyAsyncLLMServerClient(LLMServerClient):
    """verl's asynchronous one, which takes up what a weight update aborted and tells two versions of the whole."""

    def _configured_response_length(self) -> None: ...

    async def generate(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("its loop hides the versions between the oldest and the newest")


async def test_under_verls_asynchronous_client_every_token_has_its_own_version() -> None:
    client = FullyAsyncLLMServerClient(
        output([5, 6], stop_reason="aborted", extra_fields={"global_steps": 7}),
        output([], stop_reason="aborted", extra_fields={"global_steps": None}),
        output([5], stop_reason="abort", extra_fields={"global_steps": 8}),
        output([END], extra_fields={"global_steps": 9}),
    )
    sample = await VerlEngine(client, max_model_len=64, aborted_s=0.0).generate(prompt())
    assert sample.versions == (VersionSpan(7, 0, 2), VersionSpan(8, 2, 3), VersionSpan(9, 3, 4))


async def test_a_weight_update_may_abort_more_often_than_a_generation_may_be_cut() -> None:
    aborted = [output([], stop_reason="aborted") for _ in range(40)]
    sample = await VerlEngine(Client(*aborted, output([END])), max_model_len=64, aborted_s=0.0).generate(
        prompt()
    )
    assert (list(sample.ids), sample.resumed) == ([END], 0)


async def test_a_weight_update_that_never_ends_is_given_up() -> None:
    client = Client(*(output([], stop_reason="aborted") for _ in range(2 * ABORTS_MAX)))
    engine = VerlEngine(client, max_model_len=64, aborted_s=0.0)
    with pytest.raises(EngineUnavailable, match="weight update does not end"):
        await engine.generate(prompt())
    assert len(client.asked) == ABORTS_MAX + 1
    assert [one.in_flight for one in engine.status()] == [0]


async def test_several_long_weight_updates_are_no_reason_to_give_up() -> None:
    update = [output([], stop_reason="aborted") for _ in range(ABORTS_MAX)]
    client = Client(*update, output([5], stop_reason="aborted"), *update, output([END]))
    sample = await VerlEngine(client, max_model_len=64, aborted_s=0.0).generate(prompt())
    assert (list(sample.ids), sample.resumed) == ([5, END], 1)


async def test_what_goes_on_after_an_abort_is_drawn_by_another_seed() -> None:
    client = Client(
        output([5], stop_reason="aborted"), output([], stop_reason="aborted"), output([5, 5], stop_reason="aborted"),
        output([END]),
    )  # fmt: skip
    sampling = SamplingParams(temperature=1.0, seed=70)
    await VerlEngine(client, max_model_len=64, aborted_s=0.0).generate(prompt(sampling=sampling))
    assert [params["seed"] for _, _, params in client.asked] == [70, 71, 71, 72]


@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logprobs"])
def test_the_logprobs_mode_is_the_engines(mode: str) -> None:
    assert VerlEngine(Client(), max_model_len=64, logprobs_mode=mode).facts.logprobs_mode == mode


async def test_full_determinism_gets_an_id_of_its_own() -> None:
    client = Client(output([END]), full_determinism=True)
    await sampled(client)
    assert client.asked[0][0] == "r1"

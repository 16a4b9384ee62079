"""SGLang's own HTTP server and tokenizer manager, with a script in the scheduler's place. Runs in SGLang's environment.

    python own_server.py FOLDER PORT

All of SGLang that a client meets is real: routes, types, normalisation, limits, pauses, aborts, `meta_info`, streams.
Only what needs a GPU, the scheduler behind its sockets, is played: tokens are a function of the prompt; ends and
version spans are made by SGLang's own classes.
"""

import argparse
import asyncio
import json
import sys
import warnings
from array import array
from dataclasses import dataclass, field
from typing import Any

warnings.simplefilter("ignore")

import uvicorn  # noqa: E402
import zmq  # noqa: E402
import zmq.asyncio  # noqa: E402
from fastapi import Response  # noqa: E402
from sglang.srt.entrypoints import http_server  # noqa: E402
from sglang.srt.managers import io_struct as io  # noqa: E402
from sglang.srt.managers.schedule_batch import (  # noqa: E402
    FINISH_ABORT,
    FINISH_LENGTH,
    FINISH_MATCHED_TOKEN,
)
from sglang.srt.managers.tokenizer_manager import ServerStatus, TokenizerManager  # noqa: E402
from sglang.srt.runtime_context import publish  # noqa: E402
from sglang.srt.server_args import PortArgs, ServerArgs  # noqa: E402
from sglang.srt.utils.network import get_zmq_socket  # noqa: E402
from sglang.srt.utils.weight_versions import (  # noqa: E402
    WeightVersionEvent,
    compute_weight_version_spans,
)

VOCABULARY = 1_024
EOS = 1_017


def logprob_of(token: int, place: int) -> float:
    """As the scripted engine's."""
    return -((token * 31 + place * 17) % 256 + 1) / 64


@dataclass
class Running:
    """One request in the scheduler."""

    asked: Any
    ids: list[int] = field(default_factory=list)
    events: list[WeightVersionEvent] = field(default_factory=list)
    sent: int = 0
    aborted: bool = False


class Scheduler:
    """What is behind the tokenizer manager's sockets."""

    def __init__(self, ports: PortArgs) -> None:
        context = zmq.asyncio.Context(2)
        self.inbox = get_zmq_socket(context, zmq.PULL, ports.scheduler_input_ipc_name, False)
        self.outbox = get_zmq_socket(context, zmq.PUSH, ports.tokenizer_ipc_name, False)
        self.running: dict[str, Running] = {}
        self.paused = False
        self.version = "default"

    async def listen(self) -> None:
        while True:
            told = await io.async_sock_recv(self.inbox)
            match told:
                case io.TokenizedGenerateReqInput():
                    self.running[told.rid] = Running(told)
                case io.AbortReq():
                    for rid, one in self.running.items():
                        one.aborted |= told.abort_all or rid.startswith(told.rid)
                case io.PauseGenerationReqInput():
                    self.paused = True
                case io.ContinueGenerationReqInput():
                    self.paused = False
                case io.UpdateWeightVersionReqInput():
                    self.relabel(told.new_version)
                    await self.send(io.UpdateWeightVersionReqOutput())
                case io.UpdateWeightFromDiskReqInput():
                    self.relabel(told.weight_version)
                    await self.send(io.UpdateWeightFromDiskReqOutput(success=True, message="ok"))
                case io.FlushCacheReqInput():
                    await self.send(io.FlushCacheReqOutput(success=True))
                case io.GetInternalStateReq():
                    await self.send(io.GetInternalStateReqOutput(internal_state={}))

    def relabel(self, version: str | None) -> None:
        if version is None or version == self.version:
            return
        for one in self.running.values():
            if one.ids:
                one.events.append(
                    WeightVersionEvent(old_version=self.version, num_output_tokens=len(one.ids))
                )
        self.version = version

    async def send(self, said: Any) -> None:
        await io.async_sock_send(self.outbox, said)

    async def work(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            for rid, one in list(self.running.items()):
                finish = self.step(one)
                if finish is not None:
                    del self.running[rid]
                if finish is not None or (one.asked.stream and len(one.ids) > one.sent):
                    await self.send(self.output(rid, one, finish))

    def step(self, one: Running) -> Any:
        if one.aborted:
            return FINISH_ABORT()
        if self.paused:
            return None
        asked, params = one.asked, one.asked.sampling_params
        at, prompt = len(one.ids), list(asked.input_ids)
        if params.max_new_tokens <= at:
            return FINISH_LENGTH(length=params.max_new_tokens)
        token = (sum(prompt[:3]) + 7 * (len(prompt) - 3 + at)) % 1_000
        one.ids.append(token)
        if token in (params.stop_token_ids or ()) or token == EOS:
            return FINISH_MATCHED_TOKEN(matched=token)
        if len(one.ids) >= params.max_new_tokens:
            return FINISH_LENGTH(length=params.max_new_tokens)
        return None

    def output(self, rid: str, one: Running, finish: Any) -> Any:
        place, asked = len(one.asked.input_ids), one.asked
        fresh = one.ids[one.sent :]
        values = [logprob_of(token, place + one.sent + at) for at, token in enumerate(fresh)]
        # temperature 1: half as likely each; the colder, the steeper, as SGLang's sampler would have it.
        cold = 1 / asked.sampling_params.temperature
        top = [[v - at * cold for at in range(asked.top_logprobs_num)] for v in values]
        ids = [[token + at for at in range(asked.top_logprobs_num)] for token in fresh]
        one.sent = len(one.ids)
        none: list[Any] = [[]]
        return io.BatchTokenIDOutput(
            rids=[rid],
            http_worker_ipcs=[None],
            finished_reasons=[finish.to_json() if finish is not None else None],
            decoded_texts=[""],
            decode_ids=[array("q")],
            read_offsets=[0],
            output_ids=[array("q", fresh)],
            skip_special_tokens=[False],
            spaces_between_special_tokens=[True],
            no_stop_trim=[True],
            prompt_tokens=[place],
            reasoning_tokens=[0],
            completion_tokens=[len(one.ids)],
            cached_tokens=[0],
            input_token_logprobs_val=none,
            input_token_logprobs_idx=none,
            output_token_logprobs_val=[values],
            output_token_logprobs_idx=[fresh],
            input_top_logprobs_val=none,
            input_top_logprobs_idx=none,
            output_top_logprobs_val=[top],
            output_top_logprobs_idx=[ids],
            input_token_ids_logprobs_val=none,
            input_token_ids_logprobs_idx=none,
            output_token_ids_logprobs_val=none,
            output_token_ids_logprobs_idx=none,
            output_token_entropy_val=None,
            output_token_sampling_mask=None,
            output_hidden_states=None,
            routed_experts=None,
            indexer_topk=None,
            placeholder_tokens_idx=None,
            placeholder_tokens_val=None,
            retraction_counts=[0],
            weight_versions=[compute_weight_version_spans(one.events, self.version, len(one.ids))],
        )


async def serve(args: argparse.Namespace) -> None:
    told = ServerArgs(
        model_path=args.folder,
        served_model_name="scripted",
        skip_tokenizer_init=True,
        device="cpu",
        enable_deterministic_inference=True,
        attention_backend="triton",  # on a CPU none is right; nothing is computed
    )
    publish(told, role="tokenizer")
    ports = PortArgs.init_new(told)
    manager = TokenizerManager(told, ports)
    manager.server_status = ServerStatus.Up
    scheduler = Scheduler(ports)
    state = http_server._GlobalState(
        tokenizer_manager=manager, template_manager=None, scheduler_info={"max_total_num_tokens": 100_000}
    )
    http_server.set_global_state(state)
    app = http_server.app

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(f"sglang:num_running_reqs {float(len(scheduler.running))}\n")

    @app.post("/incremental/{on}")
    async def incremental(on: bool) -> Response:
        """As --incremental-streaming-output; one process for both, as it takes half a minute to import."""
        manager.incremental_streaming_output = on
        return Response()

    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=args.port, lifespan="off", log_level="warning")
    )
    tasks = [asyncio.create_task(one) for one in (scheduler.listen(), scheduler.work(), server.serve())]
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    at = server.servers[0].sockets[0].getsockname()[1]
    print(json.dumps({"listening": f"http://127.0.0.1:{at}"}), flush=True)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            task.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("port", type=int)
    asyncio.run(serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

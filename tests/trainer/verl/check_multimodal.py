"""Rows with images and videos are what verl's own post-processing makes of the same media with the same processor."""

from __future__ import annotations

import copy
import io
from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch  # type: ignore[import-not-found]
import transfer_queue as tq  # type: ignore[import-not-found]
from PIL import Image
from verl import DataProto  # type: ignore[import-not-found]
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker  # type: ignore[import-not-found]
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer  # type: ignore[import-not-found]
from verl.utils.tokenizer import hf_processor, hf_tokenizer  # type: ignore[import-not-found]

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.gateway.media.grids import GridRule
from sandgate.gateway.media.pictures import read
from sandgate.gateway.media.placing import expand
from sandgate.gateway.media.record import packed
from sandgate.gateway.media.vision import Vision
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.verl import Lengths, agent_loop_output, put_group, to_dataproto, transfer_rows
from sandgate.trainer.verl.multimodal import inputs_of, pack
from tests.trainer.verl import vision
from tests.trainer.verl.rows import row, short

P, R = 24, 6
LENGTHS = Lengths(P, R)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return vision.write(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def processor(folder: Any) -> Any:
    """As verl loads it: with the model's get_rope_index."""
    made = hf_processor(str(folder))
    assert made is not None
    return made


@pytest.fixture(scope="module")
def worker(folder: Any, processor: Any) -> Any:
    """verl's worker without the servers that its constructor starts."""
    made = AgentLoopWorker.__new__(AgentLoopWorker)
    made.rollout_config = SimpleNamespace(prompt_length=P, response_length=R)
    made.tokenizer, made.processor = hf_tokenizer(str(folder)), processor
    made.reward_loop_worker_handles = None
    made.mm_processor_kwargs, made.distillation_enabled = {}, False
    return made


MEDIA: dict[str, dict[str, Any]] = {
    "an image": {"images": [vision.picture(56, 84)]},
    "two images of different sizes": {"images": [vision.picture(56, 84), vision.picture(28, 56)]},
    "a video": {"videos": [vision.film(4, 56, 56)]},
    "an image and a video": {"images": [vision.picture(28, 28)], "videos": [vision.film(2, 28, 56)]},
    "text alone": {},
}


async def by_verl(worker: Any, rows: list[Any], media: list[dict[str, Any]]) -> Any:
    """Through its own methods, which run the processor on the media."""
    padded = []
    for one, shown in zip(rows, media, strict=True):
        output = agent_loop_output(one)
        output.multi_modal_data = shown
        padded.append(await worker._agent_loop_postprocess(output, False, raw_prompt=[{"role": "user"}]))
    return worker._postprocess(padded, input_non_tensor_batch={"uid": np.array(["q1"] * len(rows), object)})


@pytest.mark.parametrize("case", MEDIA)
async def test_the_batch_is_verls_to_the_bit(case: str, processor: Any, worker: Any) -> None:
    media = [MEDIA[case], {}, MEDIA["an image"]]
    rows = [vision.seen(processor, 0, **media[0]), short(1), vision.seen(processor, 2, **media[2])]
    theirs = await by_verl(worker, rows, media)
    ours = to_dataproto(rows, LENGTHS, pad_token_id=vision.PAD, pad_positions="verl", processor=processor)
    assert set(ours.batch.keys()) == set(theirs.batch.keys()) | {"sandgate_versions"}
    for name in theirs.batch.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        assert ours.batch[name].dtype == theirs.batch[name].dtype, name
        assert torch.equal(ours.batch[name], theirs.batch[name]), name
    assert ours.batch["position_ids"].shape == (3, 4, P + R)
    for mine, its in zip(
        *(one.non_tensor_batch["multi_modal_inputs"] for one in (ours, theirs)), strict=True
    ):
        assert set(mine) == set(its)
        assert all(torch.equal(mine[name], its[name]) for name in mine)
    assert ours.meta_info == theirs.meta_info


def test_padded_positions_are_0_in_all_four_dimensions(processor: Any) -> None:
    rows = [vision.seen(processor, images=[vision.picture(56, 84)]), short(1)]
    batch = to_dataproto(rows, LENGTHS, processor=processor).batch
    padding = batch["attention_mask"].unsqueeze(1) == 0
    assert (batch["position_ids"] * padding).sum() == 0
    one = batch["position_ids"][0][:, batch["attention_mask"][0].bool()]
    assert one[0].tolist() == list(range(one.shape[1]))  # of the text
    image = slice(2, 8)  # 2 x 3 merged patches behind a word and the start of the picture
    assert one[1:, image].tolist() == [[2] * 6, [2, 2, 3, 3, 4, 4], [2, 3] * 3]
    assert one[1:, 8].tolist() == [5] * 3  # after as many positions as its longer side has


async def test_the_queues_rows_are_verls_too(processor: Any, worker: Any) -> None:
    """verl's TransferQueue worker computes them from unpadded ids."""
    shown = MEDIA["an image and a video"]
    one = vision.seen(processor, **shown)
    (made,) = transfer_rows([one], uid="q1", session=0, global_steps=1, processor=processor)
    output = agent_loop_output(one)
    output.multi_modal_data = shown
    ids = made.fields["input_ids"]
    inputs = worker._compute_multi_modal_inputs(output, ids)
    positions = worker._compute_position_ids(ids.unsqueeze(0), torch.ones_like(ids).unsqueeze(0), inputs)
    assert torch.equal(made.fields["position_ids"], positions.squeeze(0))
    assert torch.equal(made.fields["multi_modal_inputs"]["pixel_values"], inputs["pixel_values"])
    assert torch.equal(made.fields["multi_modal_inputs"]["images_seqlens"], inputs["images_seqlens"])


async def test_rows_with_images_go_through_the_queue(processor: Any, queue: None) -> None:
    """Positions [4, length] of different lengths, and tensors by name, as the trainer gets them back."""
    rows = [
        vision.seen(processor, 0, images=[vision.picture(56, 84)]),
        vision.seen(processor, 1, videos=[vision.film(4, 56, 56)]),
        short(2),
    ]
    wanted = [
        transfer_rows([one], uid="q1", session=at, global_steps=1, processor=processor)[0].fields
        for at, one in enumerate(rows)
    ]
    await put_group("q1", rows, global_steps=1, lengths=LENGTHS, processor=processor)
    buffer = ReplayBuffer("sync", SimpleNamespace(), None, "drop", SimpleNamespace(), poll_interval=0.05)
    batch, _ = buffer.sample(1, "train", 1)
    assert batch.keys == ["q1_0_0", "q1_1_0", "q1_2_0"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train")
    for found, sent in zip(data["position_ids"].unbind(), wanted, strict=True):
        assert torch.equal(found, sent["position_ids"])
    for found, sent in zip(list(data["multi_modal_inputs"]), wanted, strict=True):
        inputs = sent["multi_modal_inputs"]
        assert {name: value.tolist() for name, value in found.items()} == {
            name: value.tolist() for name, value in inputs.items()
        }


def test_a_batch_with_images_survives_verls_own_operations(processor: Any, tmp_path: Any) -> None:
    rows = [vision.seen(processor, at, images=[vision.picture(28 * (at + 1), 28)]) for at in range(2)]
    data = to_dataproto(rows, LENGTHS, processor=processor)
    both = DataProto.concat([data, data]).chunk(2)[1]
    both.save_to_disk(tmp_path / "batch")
    back = DataProto.load_from_disk(tmp_path / "batch")
    assert torch.equal(back.batch["position_ids"], data.batch["position_ids"])
    sizes = [one["image_grid_thw"].tolist() for one in back.non_tensor_batch["multi_modal_inputs"]]
    assert sizes == [[[1, 2, 2]], [[1, 2, 4]]]
    again = DataProto.from_tensordict(data.to_tensordict())
    assert again.batch["position_ids"].shape == (2, 4, P + R)


def of_a_gateway(*images: Any, session: int = 0) -> tuple[Any, list[Any]]:
    """A row as a gateway records it, and the pictures as its engine was sent them."""
    rule = GridRule(14, 2, vision.PIXELS["min_pixels"], vision.PIXELS["max_pixels"])
    pictures = [read(png_of(image), rule) for image in images]
    ids, collapsed = array("i", [5]), array("i", [5])
    for _ in pictures:
        collapsed.extend([vision.START, vision.IMAGE, vision.END])
    ids, spans = expand(collapsed, Vision(vision.IMAGE, "<|image_pad|>", rule), pictures)
    kept = packed(spans, {picture.digest: picture for picture in pictures})
    shown = [Image.open(io.BytesIO(picture.png)) for picture in pictures]
    return row(session, prompt_ids=ids, multimodal=kept), shown


def png_of(image: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


async def test_a_gateways_pictures_are_what_verls_agent_loop_makes_of_them(
    processor: Any, worker: Any
) -> None:
    first, seen_first = of_a_gateway(vision.picture(200, 100), vision.picture(56, 56))
    again, seen_again = of_a_gateway(vision.picture(56, 56), vision.picture(56, 56), session=2)
    rows, media = [first, short(1), again], [{"images": seen_first}, {}, {"images": seen_again}]
    theirs = await by_verl(worker, rows, media)
    ours = to_dataproto(rows, LENGTHS, pad_token_id=vision.PAD, pad_positions="verl", processor=processor)
    for name in theirs.batch.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        assert torch.equal(ours.batch[name], theirs.batch[name]), name
    for mine, its in zip(
        *(one.non_tensor_batch["multi_modal_inputs"] for one in (ours, theirs)), strict=True
    ):
        assert set(mine) == set(its)
        assert all(torch.equal(mine[name], its[name]) for name in mine)
    (made,) = transfer_rows([first], uid="q1", session=0, global_steps=1, processor=processor)
    assert torch.equal(made.fields["multi_modal_inputs"]["pixel_values"], mine_of(ours, 0)["pixel_values"])


def mine_of(batch: Any, at: int) -> Any:
    return batch.non_tensor_batch["multi_modal_inputs"][at]


@pytest.mark.parametrize("size", [(1, 1), (57, 83), (200, 100), (1024, 768), (28, 400), (300, 30)])
def test_the_gateways_grids_are_the_processors(size: tuple[int, int], processor: Any) -> None:
    one, _ = of_a_gateway(vision.picture(*size))
    grid = processor.image_processor(images=[vision.picture(*size)], return_tensors="pt")["image_grid_thw"]
    assert torch.equal(inputs_of(one)["image_grid_thw"], grid)


def test_another_models_processor_is_refused(processor: Any) -> None:
    one, _ = of_a_gateway(vision.picture(56, 56))
    other = copy.deepcopy(processor)
    other.image_processor.size = {"shortest_edge": 84 * 84, "longest_edge": 112 * 112}
    with pytest.raises(InvalidBody, match="other patches than the gateway did"):
        to_dataproto([one], LENGTHS, processor=other)


def test_a_gateways_pictures_need_the_processor(processor: Any) -> None:
    one, _ = of_a_gateway(vision.picture(56, 56))
    with pytest.raises(InvalidBody, match="need verl's processor"):
        to_dataproto([one], LENGTHS)


def damaged(**tensors: Any) -> Any:
    return row(multimodal=pack(tensors))


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "bytes that are no safetensors": (row(multimodal=b"\x80\x04."), CorruptRecord, "no safetensors file"),
    "a grid that is none": (
        damaged(image_grid_thw=torch.zeros(3)),
        CorruptRecord,
        r"multimodal.image_grid_thw is \(3,\), not \[n, 3\]",
    ),
    "an image without its tokens": (
        damaged(image_grid_thw=torch.tensor([[1, 4, 4]])),
        InvalidBody,
        "session shop-q1-0: 0 image tokens, but image_grid_thw stands for 4",
    ),
    "tokens without their image": (
        row(prompt_ids=array("i", [vision.IMAGE])),
        InvalidBody,
        "session shop-q1-0: 1 image tokens, but image_grid_thw stands for 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_row_that_cannot_be_trained_is_named(case: str, processor: Any) -> None:
    bad, error, why = REFUSED[case]
    with pytest.raises(error, match=why):
        to_dataproto([bad], LENGTHS, processor=processor)
    with pytest.raises(error, match=why):
        transfer_rows([bad], uid="q1", session=0, global_steps=1, processor=processor)


async def test_a_placeholder_that_the_policy_sampled_takes_no_other_row_along(
    processor: Any, queue: None
) -> None:
    """Nothing keeps a policy from sampling one; there is no picture for it, in the forward pass as in M-RoPE."""
    sampled = array("i", [10, vision.IMAGE, 4, 5, 12])
    gateways, _ = of_a_gateway(vision.picture(56, 56), session=2)
    rows = [
        vision.seen(processor, 0, images=[vision.picture(56, 56)]),
        row(1, response_ids=sampled),
        replace(gateways, response_ids=sampled),
        row(3, response_ids=sampled, failure_class="agent", reward=None),
        row(4, reward=0.5),
    ]
    made = to_dataproto(rows, LENGTHS, processor=processor)
    why = made.non_tensor_batch["sandgate_left_out"].tolist()
    assert why == ["", "placeholder", "placeholder", "failure", ""]
    assert made.batch["response_mask"].sum(-1).tolist() == [3, 0, 0, 0, 3]
    assert (made.batch["input_ids"] == vision.IMAGE).sum(-1).tolist()[1:] == [0, 0, 0, 0]
    counters = RowCounters()
    await put_group("q1", rows, global_steps=1, lengths=LENGTHS, processor=processor, counters=counters)
    buffer = ReplayBuffer("sync", SimpleNamespace(), None, "drop", SimpleNamespace(), poll_interval=0.05)
    batch, _ = buffer.sample(1, "train", 1)
    assert len(batch.keys) == 2
    assert counters.left_out == {"placeholder": 2, "failure": 1}


def test_images_without_a_processor_are_refused(processor: Any) -> None:
    one = vision.seen(processor, images=[vision.picture(28, 28)])
    with pytest.raises(InvalidBody, match="need verl's processor"):
        to_dataproto([one], LENGTHS)
    with pytest.raises(InvalidBody, match="need verl's processor"):
        transfer_rows([one], uid="q1", session=0, global_steps=1)


def test_a_row_with_images_is_never_cut_but_masked_whole(processor: Any) -> None:
    one = vision.seen(processor, images=[vision.picture(84, 84)])
    made = to_dataproto([one], Lengths(4, 6), processor=processor)
    assert made.batch["response_mask"].sum().item() == 0
    assert vision.IMAGE not in made.batch["input_ids"]


def test_pixels_are_the_engines_to_the_bit(processor: Any) -> None:
    outputs = vision.processed(processor, images=[vision.picture(56, 28)])
    found = inputs_of(vision.seen(processor, images=[vision.picture(56, 28)]))
    assert torch.equal(found["pixel_values"], outputs["pixel_values"])
    assert found["images_seqlens"].tolist() == [8]


class Plain:
    """A processor of a model whose positions are the text's (Gemma, say)."""

    image_token_id = vision.IMAGE
    image_processor = SimpleNamespace(merge_size=2)


class Hooked(Plain):
    """One that has no use for mm_token_type_ids, and wants more than the grids."""

    def get_rope_index_kwargs(self, inputs: Any) -> dict[str, Any]:
        return {"sizes": inputs.get("image_grid_thw")}

    def get_rope_index(
        self, input_ids: Any, attention_mask: Any, image_grid_thw: Any, video_grid_thw: Any, sizes: Any
    ) -> tuple[Any, None]:
        assert video_grid_thw is None
        assert sizes is image_grid_thw
        return (attention_mask * 7).expand(3, 1, -1), None


def test_a_model_without_m_rope_keeps_positions_of_one_dimension(processor: Any) -> None:
    one = vision.seen(processor, images=[vision.picture(28, 28)])
    found, text = (to_dataproto([row], LENGTHS, processor=Plain()) for row in (one, short()))
    assert found.batch["position_ids"].shape == text.batch["position_ids"].shape == (1, P + R)
    assert found.non_tensor_batch["multi_modal_inputs"][0]["image_grid_thw"].tolist() == [[1, 2, 2]]
    (made,) = transfer_rows([one], uid="q1", session=0, global_steps=1, processor=Plain())
    assert made.fields["position_ids"].tolist() == list(range(len(made.fields["input_ids"])))


def test_a_model_is_asked_for_its_positions_in_its_own_words(processor: Any) -> None:
    one = vision.seen(processor, images=[vision.picture(28, 28)])
    batch = to_dataproto([one], LENGTHS, processor=Hooked()).batch
    attention = batch["attention_mask"][0]
    assert [line.tolist() for line in batch["position_ids"][0][1:]] == [(attention * 7).tolist()] * 3

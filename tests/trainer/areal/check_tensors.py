"""Runs in AReaL's environment with our contract and trainer on the path: our tensor dict is AReaL's own, in the dtypes
of its document."""

from __future__ import annotations

from array import array

import torch  # type: ignore[import-not-found]
from areal.api import ModelResponse  # type: ignore[import-not-found]
from areal.experimental.openai import InteractionWithTokenLogpReward  # type: ignore[import-not-found]

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.areal import to_tensor_dict

DOCUMENT = {
    "input_ids": torch.int32,
    "loss_mask": torch.int32,
    "logprobs": torch.float32,
    "versions": torch.int32,
    "attention_mask": torch.bool,
    "rewards": torch.float32,
}

for reward in (None, -0.5):
    row = Trajectory(
        job="j", uid="u", session_id="s", trajectory_id=0, sample_index=0, attempt=0,
        prompt_ids=array("i", [1, 2, 3]),
        response_ids=array("i", [10, 11, 12]),
        response_logprobs=array("f", [-0.5, -0.25, -1.0]),
        loss_mask=array("b", [1, 1, 1]),
        versions=array("i", [7, 7, 8]),
        turn_ids=("a",), turn_ends=(3,),
        reward=reward,
    )  # fmt: skip
    response = ModelResponse(
        input_tokens=[1, 2, 3],
        output_tokens=[10, 11, 12],
        output_logprobs=[-0.5, -0.25, -1.0],
        output_versions=[7, 7, 8],
    )
    theirs = InteractionWithTokenLogpReward(model_response=response, reward=reward).to_tensor_dict()
    ours = to_tensor_dict(row)
    assert {name: tensor.dtype for name, tensor in ours.items()} == DOCUMENT
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        assert ours[name].shape == tensor.shape, name
        assert torch.equal(ours[name], tensor.to(DOCUMENT[name])), name
print("equal")

"""AReaL's agent workflow without AReaL: its names and rules, on a Sandgate gateway, with torch only for tensors.

    workflow = resolve_workflow(MyAgent, {}, group_size=4, proxy_addr=origin, admin_api_key=key)
    interactions = await workflow.arun_episode(None, {"prompt": "..."})

AReaL itself needs none of this: its own client and workflow work against the gateway unchanged, see
docs/trainers/areal.md.
"""

from sandgate.trainer.areal.client import InteractionWithTokenLogpReward, OpenAIProxyClient, grant_capacity
from sandgate.trainer.areal.resolve import GroupedRolloutWorkflow, resolve_workflow
from sandgate.trainer.areal.tensors import to_tensor_dict
from sandgate.trainer.areal.workflow import OpenAIProxyWorkflow, RolloutWorkflow

__all__ = [
    "GroupedRolloutWorkflow",
    "InteractionWithTokenLogpReward",
    "OpenAIProxyClient",
    "OpenAIProxyWorkflow",
    "RolloutWorkflow",
    "grant_capacity",
    "resolve_workflow",
    "to_tensor_dict",
]

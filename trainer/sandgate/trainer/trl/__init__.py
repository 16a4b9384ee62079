"""TRL: trajectories of a job's gateways as the rollouts of its GRPOTrainer.

Needs TRL 1.16 beside ours (docs/trainers/trl.md); imports it when it is used.
"""

from __future__ import annotations

from sandgate.trainer.trl.agents import Agent as Agent
from sandgate.trainer.trl.checkpoints import last_checkpoint as last_checkpoint
from sandgate.trainer.trl.local import local_fleet as local_fleet
from sandgate.trainer.trl.masked import leave_out_masked as leave_out_masked
from sandgate.trainer.trl.rollouts import Rollouts as Rollouts
from sandgate.trainer.trl.rows import Row as Row
from sandgate.trainer.trl.rows import env_reward as env_reward
from sandgate.trainer.trl.rows import final as final
from sandgate.trainer.trl.rows import group_rows as group_rows
from sandgate.trainer.trl.rows import rollout as rollout
from sandgate.trainer.trl.sink import TrlSink as TrlSink
from sandgate.trainer.trl.weights import FolderWeights as FolderWeights
from sandgate.trainer.trl.weights import Weights as Weights

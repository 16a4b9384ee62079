"""verl: trajectories in its own types, and its agent loop replaced by agents behind our gateways.

Needs verl 0.9 beside ours (docs/trainers/verl.md); imports it when it is used.
"""

from __future__ import annotations

from sandgate.trainer.verl.advantages import session_advantages as session_advantages
from sandgate.trainer.verl.affinity import GroupRouter as GroupRouter
from sandgate.trainer.verl.cli import AgentFailed as AgentFailed
from sandgate.trainer.verl.cli import AgentTimedOut as AgentTimedOut
from sandgate.trainer.verl.cli import CliAgentFramework as CliAgentFramework
from sandgate.trainer.verl.cli import CliRunner as CliRunner
from sandgate.trainer.verl.dataproto import to_dataproto as to_dataproto
from sandgate.trainer.verl.engine import VerlEngine as VerlEngine
from sandgate.trainer.verl.entry import AgentFrameworkRolloutAdapter as AgentFrameworkRolloutAdapter
from sandgate.trainer.verl.entry import build_agent_framework as build_agent_framework
from sandgate.trainer.verl.entry import framework_settings as framework_settings
from sandgate.trainer.verl.entry import reward_loop_score as reward_loop_score
from sandgate.trainer.verl.entry import start_gateways as start_gateways
from sandgate.trainer.verl.framework import AgentFramework as AgentFramework
from sandgate.trainer.verl.framework import OpenAICompatibleAgentFramework as OpenAICompatibleAgentFramework
from sandgate.trainer.verl.jobs.manager import RolloutJobManager as RolloutJobManager
from sandgate.trainer.verl.multimodal import pack as pack
from sandgate.trainer.verl.remote import NotStarted as NotStarted
from sandgate.trainer.verl.remote import RemoteRunner as RemoteRunner
from sandgate.trainer.verl.rewards import broadcast as broadcast
from sandgate.trainer.verl.rewards import final as final
from sandgate.trainer.verl.rewards import per_trajectory as per_trajectory
from sandgate.trainer.verl.rows import Lengths as Lengths
from sandgate.trainer.verl.rows import agent_loop_output as agent_loop_output
from sandgate.trainer.verl.rows import uid_key as uid_key
from sandgate.trainer.verl.rows import usable as usable
from sandgate.trainer.verl.runners import AgentExited as AgentExited
from sandgate.trainer.verl.runners import AgentRunner as AgentRunner
from sandgate.trainer.verl.runners import RunnerConfig as RunnerConfig
from sandgate.trainer.verl.runners import runner_configs as runner_configs
from sandgate.trainer.verl.sessions import NoReward as NoReward
from sandgate.trainer.verl.sessions import NotCompleted as NotCompleted
from sandgate.trainer.verl.sessions import NoTurns as NoTurns
from sandgate.trainer.verl.sessions import TimedOut as TimedOut
from sandgate.trainer.verl.sink import VerlSink as VerlSink
from sandgate.trainer.verl.transfer import put_group as put_group
from sandgate.trainer.verl.transfer import put_rows as put_rows
from sandgate.trainer.verl.transfer import put_status as put_status
from sandgate.trainer.verl.transfer import tensordict as tensordict
from sandgate.trainer.verl.transfer import transfer_rows as transfer_rows

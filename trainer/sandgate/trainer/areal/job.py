"""AReaL workflows that its trainer is told by their path, as it needs them in its controller mode.

    trainer.train(
        workflow="sandgate.trainer.areal.job.JobWorkflow",
        workflow_kwargs={"manifest": "job.yaml", "out": "out/rollouts"},
    )

Imports AReaL; what needs none of it is in the other modules of this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from areal.api import RolloutWorkflow  # type: ignore[import-not-found]
from areal.experimental.openai import OpenAIProxyWorkflow  # type: ignore[import-not-found]
from areal.infra import workflow_context  # type: ignore[import-not-found]
from areal.utils import stats_tracker  # type: ignore[import-not-found]
from areal.utils.data import concat_padded_tensors  # type: ignore[import-not-found]

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Json
from sandgate.trainer.areal.batches import Credit, credited, tensors, tensors_of
from sandgate.trainer.areal.engines import server_urls
from sandgate.trainer.areal.link import COMMAND, Holds, Link, alive, local_run, trainer_name
from sandgate.trainer.areal.links import linked
from sandgate.trainer.areal.own_job import own_job
from sandgate.trainer.client.cluster import place_of
from sandgate.trainer.client.fleet import cluster_fleet, fleet
from sandgate.trainer.credit.lone_samples import is_lone
from sandgate.trainer.credit.reasons import TAUGHT, Truncated

_holds: dict[str, Holds] = {}
"""Of the gateways of a job, or of one by its address."""
_uses: dict[str, bool] = {}
"""Job of an operator -> whether it is this process's job of evaluation."""


def _shared(gateways: str, trainer: str) -> Holds:
    return _holds.setdefault(gateways, Holds(own=trainer))


def _alone(job: str, *, is_eval: bool) -> None:
    """Raises InvalidBody for a job of both training and evaluation: what of it comes is the first one's who asks."""
    if _uses.setdefault(job, is_eval) is not is_eval:
        other = "training" if is_eval else "evaluation"
        raise InvalidBody(
            f"job: {job} is the job of {other}, too, and their groups would be mixed: give the evaluation's workflow "
            "a job of its own",
            field="job",
        )


class JobWorkflow(RolloutWorkflow):  # type: ignore[misc]
    """An episode is a task of a RolloutJob: agents run in its sandboxes, and the batch is the whole group.

    The group is the job's `groupSize`; AReaL's own (`gconfig.n_samples`) is 1. Each engine of AReaL has a run of its
    own, in a folder of its own below `out`, whose gateways sample from that engine's servers.
    """

    def __init__(
        self,
        manifest: str = "",
        out: str = "",
        *,
        job: str = "",
        gateways: Mapping[str, str] | None = None,
        key: str = "",
        cluster: bool | Mapping[str, str] = False,
        command: Sequence[str] = COMMAND,
        prompt_field: str = "prompt",
        uid_field: str = "uid",
        credit: Credit = "advantages",
        roles: Sequence[str] = TAUGHT,
        truncated: Truncated = "score",
        trainer: str = "",
    ) -> None:
        """`manifest` and `out`: a run on this machine. `manifest` and `cluster` (true, or any of namespace, context,
        kubeconfig): each engine has a job of its own there, which goes with it, whatever the manifest says of engines.
        Or `job`: of an operator in a cluster; or `gateways` (name -> origin) and `key`, with `job`: those. A job that
        an operator runs has `tasks: {queue: {}}`, and AReaL's servers as its `engine.endpoints`; evaluation has one of
        its own. `command`: `sandgate`, where it is installed in another environment. `prompt_field`, `uid_field`: of
        the dataset's rows; the other fields are the task's data. `credit`, `roles`: see `batch_rows`.
        `truncated`: whether episodes that a limit ended, and rows whose last answer ended at its length, are trained on
        with their score, or masked ("mask") and no part of their group's mean. In an evaluation they count. `trainer`:
        of `job`, a name of this training's own, the same in all its workers: a weight update of another training that
        begins meanwhile ends this one's (`Superseded`). Without it the gateways of a job do not tell them apart.
        """
        if bool(manifest) == bool(job):
            raise InvalidBody("give either a manifest, and out, or the job of an operator", field="manifest")
        if manifest and not out and not cluster:
            raise InvalidBody("out: a run needs a folder", field="out")
        if cluster and not manifest:
            raise InvalidBody("cluster: it is for a manifest; a job is there already", field="cluster")
        self.place = place_of(cluster) if cluster else None
        if credit not in get_args(Credit):
            raise InvalidBody(f"credit: {credit!r} is neither advantages nor rewards", field="credit")
        if truncated not in get_args(Truncated):
            raise InvalidBody(f"truncated: {truncated!r} is neither score nor mask", field="truncated")
        self.manifest, self.out, self.job, self.gateways, self.key = manifest, out, job, gateways, key
        self.command, self.prompt_field, self.uid_field = tuple(command), prompt_field, uid_field
        self.credit: Credit = credit
        self.roles = tuple(roles)
        self.truncated: Truncated = truncated
        self.trainer = trainer_name(trainer)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """The rows of the task's group that teach, padded; None, which AReaL takes for rejected, if none does."""
        if self.prompt_field not in data:
            raise InvalidBody(f"the dataset's row has no {self.prompt_field!r}", field=self.prompt_field)
        told = {
            name: value for name, value in data.items() if name not in (self.prompt_field, self.uid_field)
        }
        link = await linked(engine, self._name(), lambda: self._link(engine))
        prompt: Json = data[self.prompt_field]
        rows = await link.episode(prompt, told, str(data.get(self.uid_field, "task")))
        is_eval = workflow_context.get().is_eval
        group = credited(rows, roles=self.roles, truncated="score" if is_eval else self.truncated)
        if is_eval:
            found = tensors(group, self.credit)
        else:
            asks = self.credit == "advantages" and group.taught and is_lone(group)
            size = await link.group_size(rows[0].session_id) if asks else None
            (found,) = tensors_of([group], self.credit, [size])
        # As AReaL's own workflows do: an evaluation has nothing else, and the mean of advantages is 0.
        tracker = stats_tracker.get(workflow_context.stat_scope())
        for score in group.scores.values():
            tracker.scalar(reward=score)
        return concat_padded_tensors(found) if found else None

    def _name(self) -> str:
        where = self.job or str(Path(self.manifest if self.place is not None else self.out).absolute())
        return f"{where} evaluation" if workflow_context.get().is_eval else where

    def _link(self, engine: Any) -> Link:
        if self.job:
            _alone(self.job, is_eval=workflow_context.get().is_eval)
        if self.gateways is not None:
            of_job = fleet(self.gateways, self.key, job=self.job)
            return Link(self.job, alive(of_job), holds=_shared(self.job, self.trainer))
        if self.job:
            return Link(self.job, alive(cluster_fleet(self.job)), holds=_shared(self.job, self.trainer))
        is_eval = workflow_context.get().is_eval
        if self.place is not None:
            return own_job(Path(self.manifest), self.place, server_urls(engine), asked_only=is_eval)
        inner = getattr(engine, "_engine", engine)
        kind = "eval" if is_eval else "train"
        out = Path(self.out) / f"{kind}-{str(getattr(inner, 'engine_id', '0')).replace('/', '-')}"
        run = local_run(self.command, Path(self.manifest), out, server_urls(engine))
        return Link(self.manifest, run, asked_only=is_eval)


class AgentWorkflow(OpenAIProxyWorkflow):  # type: ignore[misc]
    """AReaL's own agent workflow on a gateway, by its path: the agent is a path, too. The gateway is told AReaL's
    versions, and holds turns while AReaL pauses."""

    def __init__(
        self,
        agent: str,
        proxy_addr: str,
        admin_api_key: str,
        *,
        agent_kwargs: Mapping[str, Any] | None = None,
        mode: str = "inline",
        trainer: str = "",
        **more: Any,
    ) -> None:
        """`agent`: path of a class with AReaL's `run`; made with `agent_kwargs`. `admin_api_key`: an admin or trainer
        key of the gateway. `trainer`: see JobWorkflow. `more`: as of OpenAIProxyWorkflow (discount, export_style,
        subproc_max_workers)."""
        from areal.utils.dynamic_import import import_from_string  # type: ignore[import-not-found]

        found = import_from_string(agent)
        made = found(**(agent_kwargs or {})) if isinstance(found, type) else found
        super().__init__(mode, made, proxy_addr, admin_api_key=admin_api_key, **more)
        self._origin, self._key = proxy_addr, admin_api_key
        self._trainer = trainer_name(trainer)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        """See AReaL's; `engine` None: nobody's versions are followed."""
        if engine is not None:
            await linked(engine, self._origin, self._link)
        return await super().arun_episode(engine, data)

    def _link(self) -> Link:
        gateway = fleet({"gateway": self._origin}, self._key)
        return Link("", alive(gateway), collects=False, holds=_shared(self._origin, self._trainer))

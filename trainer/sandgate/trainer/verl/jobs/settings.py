"""What a RolloutJob inside verl is told: verl's own config, and the section `rollout.custom.rollout_job`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.client.cluster import ClusterPlace, place_of
from sandgate.trainer.credit.reasons import Truncated
from sandgate.trainer.verl.rows import Lengths
from sandgate.trainer.verl.settings import reward_of, truncated_of

SECTION = "actor_rollout_ref.rollout.custom.rollout_job"
KEYS = (
    "manifest",
    "cluster",
    "out",
    "relays",
    "public",
    "columns",
    "wait_s",
    "truncated",
    "truncated_reward",
)
WAIT_S = 3600.0
"""How long a batch waits for its next group. A group of agents that code takes many minutes; a cluster may be full."""
SECRET = ("reward_model", "extra_info")
"""Columns that hold the answer in verl's data sets. An agent never sees them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """How the sessions of one kind of batch are sampled."""

    n: int
    """Sessions for each prompt."""
    sampling: Mapping[str, Any]
    """Of `spec.sampling`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """All that the job needs of verl's config."""

    manifest: Path
    out: Path
    """Each start of the trainer has a folder of its own below it."""
    relays: int
    """Ray actors between the gateways and verl's servers, each of one core."""
    public: tuple[str, ...]
    """Columns that agents see, under `data.public` of their task."""
    columns: tuple[str, ...]
    """Further columns that verifiers see."""
    wait_s: float
    lengths: Lengths
    max_model_len: int
    train: Sampled
    validation: Sampled
    tokenizer: str
    logprobs_mode: str
    cluster: ClusterPlace | None = None
    """Where an operator runs the job; None: this machine does."""
    truncated: Truncated = "score"
    """Whether episodes that a limit ended count in training, or are masked. Validation scores them."""
    truncated_reward: float = 0.0
    """Of such a one that nobody scored."""

    def truncated_in(self, *, validate: bool) -> Truncated:
        """What becomes of them in a batch of this kind."""
        return "score" if validate else self.truncated


def job_settings(config: Any) -> JobSettings:
    """From verl's config (DictConfig). Raises ValueError naming what is missing or wrong."""
    rollout = config.actor_rollout_ref.rollout
    section = (_plain(rollout.get("custom")) or {}).get("rollout_job")
    if not isinstance(section, Mapping):
        raise ValueError(f"{SECTION} is required in the configuration; it names the job's manifest")
    if unknown := set(section) - set(KEYS):
        raise ValueError(f"{SECTION}.{min(unknown)}: no such key; there are {', '.join(KEYS)}")
    _sampled_alike(config)
    validation = rollout.get("val_kwargs") or {}
    lengths = Lengths(int(rollout.prompt_length), int(rollout.response_length))
    model = config.actor_rollout_ref.model
    return JobSettings(
        manifest=_manifest(section),
        cluster=_cluster(section),
        out=Path(str(section.get("out") or "outputs/rollout_job")).absolute(),
        relays=_whole(section, "relays", 1),
        public=_names(section, "public"),
        columns=_names(section, "columns"),
        wait_s=_seconds(section),
        lengths=lengths,
        max_model_len=int(rollout.get("max_model_len") or 0) or lengths.prompt + lengths.response,
        train=Sampled(n=int(rollout.get("n") or 1), sampling=_sampling(rollout)),
        validation=Sampled(n=int(validation.get("n") or 1), sampling=_sampling(validation)),
        tokenizer=_folder(model),
        logprobs_mode=str(rollout.get("logprobs_mode") or "processed_logprobs"),
        truncated=truncated_of(section, SECTION),
        truncated_reward=reward_of(section, SECTION),
    )


def _plain(value: Any) -> Any:
    from omegaconf import OmegaConf  # type: ignore[import-not-found]

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _manifest(section: Mapping[str, Any]) -> Path:
    said = section.get("manifest")
    if not isinstance(said, str) or not said:
        raise ValueError(f"{SECTION}.manifest is required in the configuration: the file of a RolloutJob")
    path = Path(said).absolute()
    if not path.is_file():
        raise ValueError(f"{SECTION}.manifest: {path} is no file")
    return path


def _cluster(section: Mapping[str, Any]) -> ClusterPlace | None:
    """`cluster: true` is the pod's own namespace, or the kubeconfig's current one."""
    said = section.get("cluster")
    if said is None or said is False:
        return None
    try:
        return place_of(said)
    except InvalidBody as error:
        raise ValueError(f"{SECTION}.{error}") from None


def _whole(section: Mapping[str, Any], name: str, default: int) -> int:
    said = section.get(name, default)
    if isinstance(said, bool) or not isinstance(said, int) or said < 1:
        raise ValueError(f"{SECTION}.{name} must be a whole number of at least 1, not {said!r}")
    return said


def _seconds(section: Mapping[str, Any]) -> float:
    said = section.get("wait_s", WAIT_S)
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 < said < float("inf"):
        raise ValueError(f"{SECTION}.wait_s must be seconds above 0, not {said!r}")
    return float(said)


def _names(section: Mapping[str, Any], name: str) -> tuple[str, ...]:
    said = section.get(name) or []
    if not isinstance(said, list) or not all(isinstance(one, str) and one for one in said):
        raise ValueError(f"{SECTION}.{name} must be a list of column names, not {said!r}")
    if name == "public" and (secret := [one for one in said if one in SECRET]):
        raise ValueError(
            f"{SECTION}.public: {secret[0]} holds the answer that agents are scored by; put what they may see into a"
            " column of its own"
        )
    return tuple(said)


def _sampling(section: Any) -> dict[str, Any]:
    """verl's -1 for top_k means all, which a job says by leaving it out."""
    found = {name: section.get(name) for name in ("temperature", "top_p", "top_k")}
    return {name: value for name, value in found.items() if value is not None and value != -1}


def _sampled_alike(config: Any) -> None:
    """Raises ValueError for what needs sessions of another kind within a batch."""
    algorithm = config.get("algorithm") or {}
    if str(algorithm.get("adv_estimator") or "") == "remax":
        raise ValueError(
            "algorithm.adv_estimator: remax needs a greedy sample beside the others of a prompt, and all sessions of a"
            " job are sampled alike; use another estimator, or sandgate.trainer.verl.AgentFrameworkRolloutAdapter"
        )


def _folder(model: Any) -> str:
    path = str(model.get("tokenizer_path") or model.path)
    if Path(path).is_dir():
        return str(Path(path).absolute())
    from verl.utils.fs import copy_to_local  # type: ignore[import-not-found]

    return str(Path(copy_to_local(path)).absolute())

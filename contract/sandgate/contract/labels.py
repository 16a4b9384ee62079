"""Labels, annotations and owners of everything Sandgate makes in a cluster, in one place. (pure)"""

from __future__ import annotations

from typing import Final

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "sandgate"
"""Value of MANAGED_BY; also the field manager of server-side apply."""

JOB: Final = "sandgate.dev/job"
"""Name of the RolloutJob."""
ROLE: Final = "sandgate.dev/role"
SESSION: Final = "sandgate.dev/session"
"""Session id: agent pods, verifier pods."""
GROUP: Final = "sandgate.dev/group"
"""names.group_name of the task: AgentSessions, their pods and keys."""
SHARD: Final = "sandgate.dev/shard"
"""On a RolloutJob, by its user: which operator shard looks after it; everything made for it has it too."""

WALLED: Final = "sandgate.dev/walled"
"""On pods that no policy but their job's may open: agents, unless their isolation is Off, and verifiers."""

QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""On a RolloutJob, by its user: the LocalQueue of Kueue that it waits in. On nothing that Sandgate makes of it: that
is counted once."""
PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
"""On a RolloutJob, by its user: a WorkloadPriorityClass."""

EXPIRES: Final = "sandgate.dev/expires"
"""Annotation of a trainer's Secret: when its key expires, for people."""
TASKS: Final = "sandgate.dev/tasks"
"""Annotation of the ConfigMap of a job's gateways: digest of the tasks that the job began with."""
DEFAULT_IMAGE: Final = "sandgate.dev/default-image"
"""Annotation of an engine's Deployment whose job names no image: the one that the operator chose, then."""

GATEWAY: Final = "gateway"
ENGINE: Final = "engine"
AGENT: Final = "agent"
VERIFIER: Final = "verifier"
"""Values of ROLE."""


def labels(job: str, role: str, **more: str) -> dict[str, str]:
    """What every object of a job has. `more`: `session`, `group`, `shard`; empty ones are left out."""
    names = {"session": SESSION, "group": GROUP, "shard": SHARD}
    extra = {names[name]: value for name, value in more.items() if value}
    return {MANAGED_BY: MANAGER, JOB: job, ROLE: role, **extra}

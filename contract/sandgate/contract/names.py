"""Names that cross doors, and every derived name, in one place. (pure)

A derived name is a function of what it names: repeating an action meets the object it made before. Names go into
URLs, file names, labels and Kubernetes object names, so each is a DNS label: 1 to 63 of `a-z0-9-`, an alphanumeric
at both ends.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NewType

GroupName = NewType("GroupName", str)
"""A DNS label for (job, task): names its Parquet file and labels its sessions."""
SessionId = NewType("SessionId", str)
"""A DNS label for (job, task, sample, attempt)."""
GatewayName = NewType("GatewayName", str)
"""Name of one gateway process or pod: `<job>-gateway-<index>`."""

GROUP, VERSION = "sandgate.dev", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
"""Of RolloutJob and AgentSession."""

OPERATOR = f"{GROUP}/operator"
"""`spec.managedBy` of jobs that are ours to run; so is an empty one."""

LABEL_MAX = 63
"""Characters of a DNS label (RFC 1123), hence of a Kubernetes label value."""
JOB_NAME_MAX = 44
"""Of a new job: leaves room for `<job>-gateway-<REVISION_MAX digits>`, the label that Kubernetes gives each pod of the
gateways' StatefulSet (`controller-revision-hash`)."""
JOB_NAME_KEPT_MAX = 52
"""Of a job that is there: as long were names before. Those of 45 and 46 characters ran where the number was short."""
REVISION_MAX = 10
"""Digits of a StatefulSet's revision: a hash of 32 bits, as a decimal number."""
SAMPLES_MAX = 65_536
ATTEMPTS_MAX = 10_000
UID_CHARS_MAX = 256

NAMES_KEPT = 65_536
"""Group names remembered: a name is asked for at every step of a session, and costs a hash."""

LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""An RFC 1123 DNS label, its length apart."""

_JOB_PART, _UID_PART, _HASH_PART = 21, 14, 12
_WORKLOAD_PART = 38
# The numbers have at most five digits each; together with four dashes it fits.
assert _JOB_PART + _UID_PART + _HASH_PART + 5 + 5 + 4 <= LABEL_MAX
assert JOB_NAME_MAX + len("-gateway-") + REVISION_MAX <= LABEL_MAX
assert JOB_NAME_KEPT_MAX + len("-gateway-99") <= LABEL_MAX

_GROUP = re.compile(rf"-[0-9a-f]{{{_HASH_PART}}}$")
_DERIVED = re.compile(rf"-[0-9a-f]{{{_HASH_PART}}}-[0-9]{{1,5}}-[0-9]{{1,5}}$")
_NOT_LABEL = re.compile(r"[^a-z0-9]+")


def slug(text: str, limit: int) -> str:
    """What of `text` a person recognises, as part of a DNS label; `x` if nothing is left."""
    return _NOT_LABEL.sub("-", text.lower()).strip("-")[:limit].strip("-") or "x"


def short_hash(*parts: str) -> str:
    """12 hex digits (48 bits) that tell apart what slugs do not. Parts are framed: ("ab", "c") is not ("a", "bc")."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()[:_HASH_PART]


@lru_cache(maxsize=NAMES_KEPT)
def group_name(job: str, uid: str) -> GroupName:
    """`<job>-<slug of uid>-<hash of both>`."""
    return GroupName(f"{slug(job, _JOB_PART)}-{slug(uid, _UID_PART)}-{short_hash(job, uid)}")


def session_id(job: str, uid: str, sample: int, attempt: int) -> SessionId:
    """`<group>-<sample>-<attempt>`: also the name of its AgentSession and the idempotency key of its creation."""
    if not 0 <= sample < SAMPLES_MAX or not 0 <= attempt < ATTEMPTS_MAX:
        raise ValueError(f"sample {sample} or attempt {attempt} is out of range")
    return SessionId(f"{group_name(job, uid)}-{sample}-{attempt}")


def pod_name(session: str) -> str:
    """The sandbox of a session; a session is one attempt, so its name is enough."""
    return session


def gateway_name(job: str, index: int) -> GatewayName:
    """One of the job's gateways."""
    return GatewayName(f"{job}-gateway-{index}")


def gateways_name(job: str) -> str:
    """The job's gateways together: StatefulSet, headless Service, settings, disruption budget."""
    return f"{job}-gateway"


def engines_name(job: str) -> str:
    """The job's managed engine: Deployment and headless Service."""
    return f"{job}-engine"


def signing_name(job: str) -> str:
    """The Secret that holds what signs the job's keys."""
    return f"{job}-signing"


def workload_name(job: str, uid: str) -> str:
    """The job's Workload in Kueue. A job of the same name that is made later is another one."""
    return f"rolloutjob-{slug(job, _WORKLOAD_PART)}-{short_hash(uid)}"


def trainer_name(job: str) -> str:
    """The Secret with a trainer's key, and the addresses of the job's gateways."""
    return f"{job}-trainer"


def verifier_name(session: str) -> str:
    """Pod of a session's verifier."""
    return f"{session}-v"


def group_hash(job: str, uid: str) -> str:
    """What tells group names of one job apart: their last part."""
    return short_hash(job, uid)


def done_name(job: str, part: int) -> str:
    """A ConfigMap with tasks that are done and whose AgentSessions are gone."""
    return f"{job}-done-{part}"


def keys_name(group: str, attempt: int, chunk: int) -> str:
    """The Secret with the keys of one attempt of KEYS_PER_SECRET samples of a group."""
    return f"{group}-keys-{attempt}-{chunk}"


def remote_keys_name(session: str) -> str:
    """The Secret with what a remote agent needs: `<AgentSession>.keys`. No other derived name has a dot."""
    return f"{session}.keys"


def remote_verifier_name(session: str) -> str:
    """The Secret with the keys of a remote session's verifier, which its agent must not have."""
    return f"{session}.verifier"


def is_derived(job: str, name: str) -> bool:
    """Has the form of a session_id of that job: such names are not for people's own AgentSessions."""
    return name.startswith(f"{slug(job, _JOB_PART)}-") and _DERIVED.search(name) is not None


def is_group(name: str) -> bool:
    """Has the form of a group's name, of whatever job."""
    return _GROUP.search(name) is not None


KEYS_PER_SECRET = 64
"""Samples whose keys share a Secret: one write for most groups, 80 kB at most."""

assert JOB_NAME_KEPT_MAX + max(map(len, ("-signing", "-engine", "-trainer"))) <= LABEL_MAX
assert len("rolloutjob-") + _WORKLOAD_PART + 1 + _HASH_PART <= LABEL_MAX
assert _JOB_PART + _UID_PART + _HASH_PART + 5 + 5 + 4 + len("-v") <= LABEL_MAX

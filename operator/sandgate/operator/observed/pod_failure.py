"""Reads from a pod's status how it ended, and whose fault that is. (pure)

The container named by the annotation kubectl.kubernetes.io/default-container decides; side-cars do not. Times are
unix seconds. Which component says what: Kubernetes' "Pod disruption conditions" and "Pod lifecycle", and the corpus of
real statuses in tests/golden/pods.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from sandgate.contract.exits import last_words, one_line
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.session import OUTCOME_BYTES_MAX, parse_termination
from sandgate.operator.plan.actions import Exit, SideCars, Waiting
from sandgate.operator.plan.outcome import CLOCKS_S

Body = Mapping[str, Any]

DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
IMAGE_PATIENCE_S: Final = 60.0
"""How long an image may fail to be pulled, from the first failure that was seen: a registry that hiccups is asked
again 10 and 30 s after it."""
CONFIG_PATIENCE_S: Final = 20.0
"""How long a container may not be creatable, counted alike: a Secret may reach its node a moment after the pod, and a
kubelet tries again after 10 to 15 s."""
PHASE_PATIENCE_S: Final = 5.0
"""Between a killed container and the pod's phase (1.1 s were seen). The kubelet tells why it ended a pod (evicted,
deadline) only with the phase; before, the container just looks killed."""
CLOCK_S: Final = 1.0
"""Timestamps in a status are whole seconds."""
STOP_SECONDS: Final = 1
"""activeDeadlineSeconds that the operator writes to stop a pod."""
SIGKILL: Final = 9
SIGTERM: Final = 15
SIGNAL_MAX: Final = 64
MESSAGES_BYTES: Final = 12_288
"""A kubelet keeps so much of the termination messages of a pod, and the same of each container."""
TEXT_MAX: Final = 512
"""Characters of a text that is kept."""

IMAGE_AT_ONCE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
IMAGE_PATIENTLY = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "RegistryUnavailable",
        "ImageInspectError",
        "SignatureValidationFailed",
    }
)
IMAGE_REASONS = IMAGE_AT_ONCE | IMAGE_PATIENTLY
CONFIG_PATIENTLY = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"}
    | {"PreStartHookError", "PostStartHookError"}
)
"""Reasons of a waiting container."""
USUAL = (": ContainerCreating", ": PodInitializing")
"""How the words end of a container that waits as every container does."""
NEVER_RAN = frozenset({"StartError", "ContainerCannotRun"})
NODE_FORGOT = frozenset({"Unknown", "ContainerStatusUnknown"})
"""Reasons of a terminated container: the runtime could not start it; its node forgot how it ended (power cut)."""
MISSING_CODES = (126, 127)
"""Cannot be executed; not found: as shells say it, and Docker's shim of a container that it could not start."""
PROGRAM_WORDS = ("exec: ", "executable file", "open executable", "finding executable")
MISSING_WORDS = ("not found", "no such file", "permission denied", "is a directory", "exec format error")
"""How runc, crun and gVisor name the program that they looked for, and what was wrong with it. Theirs alone: a
container that was never made has left no message of its own."""

OOM: Final = "OOMKilled"
OVER = ("Succeeded", "Failed")
"""Phases that end a pod."""
DISRUPTIONS = {
    "PreemptionByScheduler": FailureReason.PREEMPTED,
    "DeletionByTaintManager": FailureReason.NODE_LOST,
    "DeletionByPodGC": FailureReason.NODE_LOST,
    "EvictionByEvictionAPI": FailureReason.EVICTED,
}
"""Reason of condition DisruptionTarget. TerminationByKubelet is told apart by the pod's own reason."""
POD_REASONS = {
    "Evicted": FailureReason.EVICTED,
    "Preempting": FailureReason.PREEMPTED,
    "Terminated": FailureReason.NODE_LOST,
    "NodeShutdown": FailureReason.NODE_LOST,
    "Shutdown": FailureReason.NODE_LOST,
    "NodeLost": FailureReason.NODE_LOST,
}
"""status.reason: Terminated and the two after it are a node that shuts down."""
REFUSED_FOR_GOOD = frozenset(
    {
        "AppArmor",
        "SysctlForbidden",
        "SMTAlignmentError",
        "PodOSNotSupported",
        "PodOSSelectorNodeLabelDoesNotMatch",
    }
    | {"InitContainerRestartPolicyForbidden", "SupplementalGroupsPolicyNotSupported"}
)
"""Of the reasons for which a kubelet takes no pod (pkg/kubelet/lifecycle), those that lie in the pod, or in what its
node is: it would say the same of the next one. Others pass: a node that is full, or has no devices for a moment."""
OWN_STORAGE: Final = re.compile(
    r"exceeded its local ephemeral storage limit"
    r"|ephemeral local storage usage exceeds the total limit"
    r"|Usage of EmptyDir volume .* exceeds the limit"
)
OWN_USE: Final = re.compile(
    r"Container \S+ was using \S+, (request is|which exceeds its request)|low on resource: \[?(pids|inodes)"
)
"""What a kubelet says of a pod that it evicts (pkg/kubelet/eviction): it is over a limit of its own; or the node is
short of something of which it uses more than it asked for. For want of pids the one with most processes goes, for want
of inodes the one with most files: nobody asks for some."""
LOW_DISK: Final = re.compile(r"low on resource: \[?ephemeral-storage")
"""The kubelet ranks pods by their volumes too, and names only containers, by what they wrote beside volumes."""
FETCHER_REASONS = {"GatewayUnreachable": FailureReason.GATEWAY_LOST}
"""What our init container says that is more precise than StartFailed."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a pod's start does not get over, though its kubelet goes on trying."""

    container: str
    image: bool
    """Its image cannot be had, else it cannot be made."""
    since: float
    """When that was first seen. Statuses do not tell; a pull that goes well for minutes may fail at its end. An
    operator that starts anew counts from there."""


class PodStatus:
    """One status, while it is being understood. Never raises: what is absent or odd counts as not said."""

    def __init__(self, body: Body, now: float, before: Trouble | None = None) -> None:
        """`before`: the trouble that its status before this one had."""
        self.now = now
        self.meta, self.spec, self.status = (map_of(body, name) for name in ("metadata", "spec", "status"))
        self.phase = self.status.get("phase")
        self.reason = str(self.status.get("reason") or "")
        self.text = str(self.status.get("message") or "")
        self.conditions = {str(one.get("type")): one for one in maps_of(self.status, "conditions")}
        self.main = self._main()
        self.state = map_of(self.main, "state")
        self.ended = map_of(self.state, "terminated")
        self.started_at = unix(map_of(self.state, "running").get("startedAt"))
        if self.ended and str(self.ended.get("reason")) not in NEVER_RAN:
            self.started_at = unix(self.ended.get("startedAt"))
        self.began = self.started_at is not None
        """Its program ran, or runs."""
        self.deleted_at: float | None = None
        if (until := unix(self.meta.get("deletionTimestamp"))) is not None:
            grace = self.meta.get("deletionGracePeriodSeconds")
            self.deleted_at = until - (grace if isinstance(grace, int) else 0)
        self._troubled, self.trouble = self._find_trouble(before)

    def _main(self) -> Body:
        named = map_of(self.meta, "annotations").get(DEFAULT_CONTAINER)
        if named is None:
            named = next((one.get("name") for one in maps_of(self.spec, "containers")), None)
        return next(
            (one for one in maps_of(self.status, "containerStatuses") if one.get("name") == named), {}
        )

    # -- how it ended ----------------------------------------------------------------------------------------------

    def exit(self) -> Exit | None:
        """The most certain knowledge first."""
        end = self._by_kubelet() or self._by_itself_or_removed()
        return None if end is None else replace(end, at=min(end.at, self.now))

    def _by_itself_or_removed(self) -> Exit | None:
        removed = self._removed()
        init = self._failed_init()
        ended, own = (self.ended, self._own_exit) if init is None else (init[0], lambda: init[1])
        if not ended:
            return removed or self._stuck() or self._failed_pod()
        if removed is not None and killed_by(removed.at, ended, self._clocks_differ()):
            return removed
        return own() if self.now >= self.told_at(ended) else None

    def _clocks_differ(self) -> float:
        """By so much, of its node and of who took it away. What an agent makes of SIGTERM is no answer; an honest one
        that came so shortly before, and was first seen with the deletion, is asked for again, right or wrong. Nobody
        gains by that: who knew that it is coming could have waited for it. Of a phase that says so nobody knows when
        that was."""
        by_others = self.deleted_at is not None or self._condition("DisruptionTarget", "True")
        return CLOCKS_S if by_others else CLOCK_S

    def told_at(self, ended: Body) -> float:
        """From when on a container's end can be taken as told: 0, or a time to wait for the pod's phase until."""
        states = [*maps_of(self.status, "containerStatuses"), *maps_of(self.status, "initContainerStatuses")]
        beside = any("running" in map_of(one, "state") for one in states)
        finished = unix(ended.get("finishedAt"))
        clear = not was_killed(ended) or ended.get("reason") == OOM
        return (
            0.0 if self.phase in OVER or beside or finished is None or clear else finished + PHASE_PATIENCE_S
        )

    def _by_kubelet(self) -> Exit | None:
        """The node put the pod out: too little memory or disk, a critical pod, a shutdown. What its containers made of
        SIGTERM says nothing then."""
        target = self._condition("DisruptionTarget", "True")
        known = POD_REASONS.get(self.reason)
        if known is None and target.get("reason") != "TerminationByKubelet":
            return None
        at = unix(target.get("lastTransitionTime")) or self._transition("Ready") or self.now
        text = self.text or str(target.get("message") or "") or self.reason
        reason = known or FailureReason.EVICTED
        # A kubelet under load may put a pod out before it has told that its containers began.
        if reason is FailureReason.EVICTED and (self.began or self._condition("Initialized", "True")):
            reason = evicted_for(text, writes_volumes=self._writes_volumes())
        return Exit(at, reason=reason, detail=cut(text))

    def _removed(self) -> Exit | None:
        """Somebody takes the pod away: the scheduler, the node lifecycle, an eviction, a person."""
        target = self._condition("DisruptionTarget", "True")
        if target:
            why, text = str(target.get("reason")), str(target.get("message") or "")
            at = unix(target.get("lastTransitionTime")) or self.now
            return Exit(at, reason=DISRUPTIONS.get(why, FailureReason.EVICTED), detail=cut(text or why))
        if self.phase == "Unknown":
            return Exit(self.now, reason=FailureReason.NODE_LOST, detail=cut(self.text or "phase Unknown"))
        if self.deleted_at is None:
            return None
        # Not ready, though its container was last seen ready: it is the node that does not answer.
        silent = self.main.get("ready") is True and self._condition("Ready", "False")
        reason = FailureReason.NODE_LOST if silent else FailureReason.EVICTED
        return Exit(self.deleted_at, reason=reason, detail="the pod was deleted")

    def _own_exit(self) -> Exit:
        """The deciding container has ended."""
        ended, code = self.ended, exit_code(self.ended)
        at = unix(ended.get("finishedAt")) or self.now
        why, text = str(ended.get("reason") or ""), str(ended.get("message") or "")
        if (late := self._too_late(at, at)) is not None:
            return late
        if why in NODE_FORGOT:
            return Exit(
                at, reason=FailureReason.NODE_LOST, detail=cut(text or "its node forgot how it ended")
            )
        if why in NEVER_RAN:
            return Exit(at, reason=not_started(text, code), detail=cut(text or why))
        message = parse_termination(text.encode("utf-8", "replace"), self._message_bytes())
        number = signal_of(code)
        # A result is no complaint; neither is what an agent leaves that ended well.
        last = last_words("" if code == 0 or isinstance(message.value, dict) else text)
        end = Exit(
            at,
            code if number is None else None,
            number,
            None,
            last.line,
            message,
            last.traceback,
            stopped=self._stopped(),
        )
        if why == OOM and code != 0:  # with code 0 it was a child, and the agent coped
            if self._has_limit("memory"):
                detail = "more memory than resources.limits.memory"
                return replace(end, reason=FailureReason.OOM_KILLED, detail=detail)
            detail = "killed for memory, without resources.limits.memory: its node ran out of it"
            return replace(end, reason=FailureReason.NODE_PRESSURE, detail=detail)
        return end

    def _message_bytes(self) -> int:
        """So many its kubelet keeps of a termination message, whatever the other containers leave."""
        every = sum(len(maps_of(self.spec, f"{kind}ontainers")) for kind in ("c", "initC", "ephemeralC"))
        return min(OUTCOME_BYTES_MAX, MESSAGES_BYTES // max(1, every))

    def _has_limit(self, resource: str) -> bool:
        """The deciding container's own, or its pod's."""
        name = self.main.get("name")
        ours = next((one for one in maps_of(self.spec, "containers") if one.get("name") == name), {})
        return any(
            resource in map_of(map_of(one, "resources"), "limits") for one in (ours, self.main, self.spec)
        )

    def _writes_volumes(self) -> bool:
        """Something of it that may run now can fill its node's disk through an emptyDir."""
        disks = {
            one.get("name")
            for one in maps_of(self.spec, "volumes")
            if "emptyDir" in one and map_of(one, "emptyDir").get("medium") != "Memory"
        }
        inits = (one for one in maps_of(self.spec, "initContainers") if one.get("restartPolicy") == "Always")
        return any(
            mount.get("name") in disks and mount.get("readOnly") is not True
            for one in (*maps_of(self.spec, "containers"), *inits)
            for mount in maps_of(one, "volumeMounts")
        )

    def _too_late(self, at: float, finished: float | None = None) -> Exit | None:
        """activeDeadlineSeconds ended it. Not where that is 1: so the operator stops a pod, and knows why; nor what
        was `finished` before, while something beside it ran on."""
        limit = self.spec.get("activeDeadlineSeconds")
        if self.reason != "DeadlineExceeded" or limit == STOP_SECONDS:
            return None
        begun = unix(self.status.get("startTime"))
        fires = 0.0 if begun is None or not isinstance(limit, int) else begun + limit
        if finished is not None and finished < fires - CLOCK_S:
            return None
        reason = FailureReason.SESSION_TIMEOUT if self.started_at is not None else FailureReason.START_TIMEOUT
        return Exit(at, None, SIGKILL, reason, cut(self.text or self.reason))

    def _failed_init(self) -> tuple[Body, Exit] | None:
        """An init container that failed ends a pod that never restarts: (its terminated state, what that means)."""
        for one in self._inits():
            ended = map_of(map_of(one, "state"), "terminated")
            if not ended or ended.get("exitCode") == 0:
                continue
            at = unix(ended.get("finishedAt")) or self.now
            if ended.get("reason") in NODE_FORGOT:
                return ended, Exit(at, reason=FailureReason.NODE_LOST, detail="its node forgot how it ended")
            if self._stopped():
                return ended, Exit(at, None, SIGKILL, detail="stopped before its agent started")
            reason, detail = init_failure(ended)
            said = Exit(at, reason=reason, detail=cut(f"init container {one.get('name')}: {detail}"))
            return ended, self._too_late(at, at) or said
        return None

    def _stopped(self) -> bool:
        """By the operator."""
        return self.reason == "DeadlineExceeded" and self.spec.get("activeDeadlineSeconds") == STOP_SECONDS

    def _inits(self) -> Iterator[Body]:
        """Without those that run beside the agent."""
        specs = maps_of(self.spec, "initContainers")
        beside = [one.get("name") for one in specs if one.get("restartPolicy") == "Always"]
        return (one for one in maps_of(self.status, "initContainerStatuses") if one.get("name") not in beside)

    def _find_trouble(self, before: Trouble | None) -> tuple[Body, Trouble | None]:
        """(the container's status, what is known of it). What cannot be started beside a program that runs is none."""
        if self.began:
            return {}, None
        for one in self._hopefuls():
            if patience_of(why := waits_for(one)) is None:
                continue
            found = Trouble(str(one.get("name")), why in IMAGE_REASONS, self.now)
            goes_on = before is not None and replace(before, since=self.now) == found
            return one, before if goes_on else found
        return {}, None

    def _patience_ends(self) -> float | None:
        patience = patience_of(waits_for(self._troubled))
        return None if self.trouble is None or patience is None else self.trouble.since + patience

    def _stuck(self) -> Exit | None:
        """A container that will not come up, though the pod goes on trying."""
        until, one = self._patience_ends(), self._troubled
        if until is None or self.now < until:
            return None
        why, text = waits_for(one), str(map_of(map_of(one, "state"), "waiting").get("message") or "")
        config = not_started(text) if one is self.main else FailureReason.START_FAILED
        reason = config if why in CONFIG_PATIENTLY else FailureReason.IMAGE_ERROR
        return Exit(self.now, reason=reason, detail=cut(f"container {one.get('name')}: {why}: {text}"))

    def _hopefuls(self) -> Iterator[Body]:
        """What is to come up before the agent, side-cars among the init containers too, and the agent."""
        yield from maps_of(self.status, "initContainerStatuses")
        yield from (one for one in maps_of(self.status, "containerStatuses") if one is self.main)

    def _failed_pod(self) -> Exit | None:
        """The pod is over and its deciding container never ran: its node did not take it, or its time was up."""
        if self.phase not in OVER:
            return None
        at = self._transition("Ready") or self._transition("PodScheduled") or self.now
        if self._stopped():
            return Exit(at, None, SIGKILL, detail="stopped before its agent started")
        if (late := self._too_late(at)) is not None:
            return late
        detail = cut(f"{self.reason}: {self.text}" if self.reason else self.text or "the pod failed")
        return Exit(at, reason=self._refused(), detail=detail)

    def _refused(self) -> FailureReason:
        """A kubelet that starts anew asks again whether it takes what it has."""
        if self.started_at is not None:
            return FailureReason.EVICTED
        stays = not self.reason or self.reason in REFUSED_FOR_GOOD
        return FailureReason.START_FAILED if stays else FailureReason.NODE_REFUSED

    @property
    def side_cars(self) -> SideCars:
        """What of it still runs, or may be started again, beside its deciding container."""
        if self.phase in OVER:
            return SideCars.NONE
        specs = maps_of(self.spec, "containers")
        again = {
            str(one.get("name")) for one in specs if one.get("restartPolicy") or one.get("restartPolicyRules")
        }
        others = (one for one in maps_of(self.status, "containerStatuses") if one is not self.main)
        if any(str(one.get("name")) in again or not map_of(one, "state").get("terminated") for one in others):
            return SideCars.RUN
        inits = maps_of(self.status, "initContainerStatuses")
        ended = all(map_of(one, "state").get("terminated") for one in inits)
        return SideCars.NONE if ended else SideCars.ENDING

    # -- why it has not started -------------------------------------------------------------------------------------

    def waiting(self) -> tuple[str, float | None]:
        """(words, when patience with it ends: a time to come)."""
        scheduled = self.conditions.get("PodScheduled", {})
        if scheduled.get("status") == "False":
            return cut(f"{scheduled.get('reason')}: {scheduled.get('message') or ''}"), None
        init = self._failed_init()  # not a side-car: that is started again
        if ended := self.ended if init is None else init[0]:
            return "", self._to_come(self.told_at(ended))
        if self.trouble is not None:
            one = self._troubled
            text = str(map_of(map_of(one, "state"), "waiting").get("message") or "")
            return cut(f"{one.get('name')}: {waits_for(one)}: {text}"), self._to_come(self._patience_ends())
        words = (f"{one.get('name')}: {why}" for one in self._hopefuls() if (why := waits_for(one)))
        return cut(next(words, "")), None

    def _to_come(self, at: float | None) -> float | None:
        """A time that is over is none to look again at: the same status would say so again, at once, for ever."""
        return None if at is None or at <= self.now else at

    def held_up(self, words: str) -> Waiting | None:
        """What these words of `waiting` say that is more than that it is on its way."""
        if not is_trouble(words):
            return None
        reasons = {waits_for(one) for one in self._hopefuls()}
        image = not IMAGE_REASONS.isdisjoint(reasons)
        reason = FailureReason.IMAGE_ERROR if image else FailureReason.START_TIMEOUT
        return Waiting(words, reason, pulls=image)

    @property
    def unplaced(self) -> bool:
        """It has no node. A scheduler that is away, or has others before it, says nothing of it."""
        said = self.conditions.get("PodScheduled", {}).get("status")
        placed = said == "True" or (said != "False" and bool(self.spec.get("nodeName")))
        return not placed and not self.began and self.phase in (None, "Pending")

    @property
    def placed_at(self) -> float | None:
        """When it was given a node."""
        return self._transition("PodScheduled", "True")

    def _condition(self, kind: str, status: str) -> Body:
        found = self.conditions.get(kind, {})
        return found if found.get("status") == status else {}

    def _transition(self, kind: str, status: str | None = None) -> float | None:
        found = self.conditions.get(kind, {}) if status is None else self._condition(kind, status)
        return unix(found.get("lastTransitionTime"))


def waits_for(status: Body) -> str:
    """Why a container waits, in its kubelet's word; empty: it does not."""
    return str(map_of(map_of(status, "state"), "waiting").get("reason") or "")


def is_trouble(words: str) -> bool:
    """Whether these words of `waiting` say more than that a pod is on its way."""
    return bool(words) and not words.endswith(USUAL)


def evicted_for(text: str, *, writes_volumes: bool = False) -> FailureReason:
    """Whose doing a kubelet's eviction of a pod that ran, or was free to run, is, by its message, and by whether it
    `writes_volumes` of which that message would not tell."""
    if OWN_STORAGE.search(text):
        return FailureReason.STORAGE_EXCEEDED
    own = OWN_USE.search(text) or (writes_volumes and LOW_DISK.search(text))
    return FailureReason.NODE_PRESSURE if own else FailureReason.EVICTED


def killed_by(at: float, ended: Body, apart: float) -> bool:
    """Did what began at `at` end the container? What ended before had ended by itself, by clocks that may be `apart`.
    SIGTERM and SIGKILL are always taken for its doing, whatever these say; other signals are none that it sends."""
    finished, number = unix(ended.get("finishedAt")), signal_of(exit_code(ended))
    if number in (SIGTERM, SIGKILL) or finished is None:
        return True
    return finished >= at - (apart if number is None else CLOCK_S)


def was_killed(ended: Body) -> bool:
    """By a signal that others send."""
    return signal_of(exit_code(ended)) in (SIGTERM, SIGKILL)


def exit_code(ended: Body) -> int:
    """Of a terminated state."""
    code = ended.get("exitCode")
    return code if isinstance(code, int) else 255


def signal_of(code: int) -> int | None:
    """Runtimes tell signal n as exit code 128 + n."""
    return code - 128 if 128 < code <= 128 + SIGNAL_MAX else None


def not_started(text: str, code: int = 0) -> FailureReason:
    """By a runtime's words: it found no such program (the manifest's doing, whatever node it runs on), or failed."""
    looked = any(mark in text for mark in PROGRAM_WORDS)
    missing = looked and any(word in text.lower() for word in MISSING_WORDS)
    return FailureReason.AGENT_MISSING if missing or code in MISSING_CODES else FailureReason.START_FAILED


def patience_of(why: str) -> float | None:
    """How long a container may wait for this reason; None: as long as the start may take."""
    if why in IMAGE_AT_ONCE:
        return 0.0
    if why in IMAGE_PATIENTLY:
        return IMAGE_PATIENCE_S
    return CONFIG_PATIENCE_S if why in CONFIG_PATIENTLY else None


def init_failure(ended: Body) -> tuple[FailureReason, str]:
    """Of a terminated init container: what its termination message says, if it is our fetcher's."""
    text = str(ended.get("message") or "")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict) and isinstance(said.get("reason"), str):
        reason = FETCHER_REASONS.get(said["reason"], FailureReason.START_FAILED)
        return reason, f"{said['reason']}: {said.get('detail') or ''}"
    how = f"{ended.get('reason') or 'Error'}, exit code {ended.get('exitCode')}"
    return FailureReason.START_FAILED, f"{how}: {text}" if text else how


def unix(text: object) -> float | None:
    """RFC 3339 to unix seconds; None for what is no time, and for the year 1, which is Go's way to say none."""
    if not isinstance(text, str) or text.startswith("0001-"):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def cut(text: str) -> str:
    """Fit for a status (a termination message may hold anything, a NUL and keys too), blanks at the ends away."""
    return one_line(text.strip().rstrip(": "), TEXT_MAX)


def map_of(value: Body, name: str) -> Body:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def maps_of(value: Body, name: str) -> list[Body]:
    found = value.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list | tuple) else []

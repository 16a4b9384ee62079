"""How pods end, as a table: what a status says, and (when, code, signal, reason) of the agent's end."""

from __future__ import annotations

import json
from typing import Any

from sandgate.contract.failure_reasons import FailureReason
from tests.operator.pods import SCHEDULED, Json, condition, container, disrupted, ended, pod, runs, waits

R = FailureReason
NOW = 100.0
FETCHED = container(ended(0, 4), "sandgate-fetcher")
SIDECAR = container(runs(), "tools")
NOT_READY = condition("Ready", "False", at=22)
UNPULLED = waits("ErrImagePull", "pull access denied")
PULLED_AT = condition("Initialized", at=3)


def fetcher(code: int, message: str, at: float = 4) -> Json:
    return container(ended(code, at, message=message), "sandgate-fetcher")


def limited(phase: str, *states: Json) -> Json:
    """Its container has a limit of memory."""
    made = pod(phase, *states)
    made["spec"]["containers"] = [{"name": "agent", "resources": {"limits": {"memory": "64Mi"}}}]
    return made


def policy_message(reason: str) -> str:
    return json.dumps({"reason": reason, "detail": "10.96.0.1:443 answers"})


ENDS: dict[str, tuple[Json, tuple[Any, ...] | None]] = {
    # -- by itself
    "a pod that nobody looked at yet has not ended": (pod("Pending", conditions=()), None),
    "a pod that runs has not ended": (pod("Running", runs()), None),
    "an agent that exits with 0 ended well": (pod("Succeeded", ended(0)), (20, 0, None, None)),
    "an exit code is told as it is": (pod("Failed", ended(3)), (20, 3, None, None)),
    "an exit code above all signals is a code": (pod("Failed", ended(255)), (20, 255, None, None)),
    "128 is a code": (pod("Failed", ended(128)), (20, 128, None, None)),
    "128 and a signal's number is that signal": (pod("Failed", ended(139)), (20, None, 11, None)),
    "a side-car that runs on does not keep the agent from ending": (
        pod("Running", ended(0), SIDECAR),
        (20, 0, None, None),
    ),
    "a side-car that fails does not end the agent": (
        pod("Running", runs(), container(ended(1), "tools")),
        None,
    ),
    "a container in front of the agent's in the list is still a side-car": (
        pod("Running", container(ended(1), "istio"), container(runs())),
        None,
    ),
    "a side-car that runs as an init container does not keep it from ending": (
        pod("Running", ended(0), inits=(container(runs(), "proxy"),), sidecars=("proxy",)),
        (20, 0, None, None),
    ),
    "an exit of its own is told before the pod's phase follows": (
        pod("Running", ended(3)),
        (20, 3, None, None),
    ),
    "out of memory too": (limited("Running", ended(137, reason="OOMKilled")), (20, None, 9, R.OOM_KILLED)),
    "a container killed beside one that runs on was killed": (
        pod("Running", ended(137), SIDECAR),
        (20, None, 9, None),
    ),
    # -- memory
    "out of memory by its own limit": (
        limited("Failed", ended(137, reason="OOMKilled")),
        (20, None, 9, R.OOM_KILLED),
    ),
    "out of memory without a limit is its node's want of it": (
        pod("Failed", ended(137, reason="OOMKilled")),
        (20, None, 9, R.NODE_PRESSURE),
    ),
    "a child that ran out of memory is the agent's affair if it coped": (
        pod("Succeeded", ended(0, reason="OOMKilled")),
        (20, 0, None, None),
    ),
    # -- by the node
    "a pod that its node evicts was evicted, not killed": (
        pod("Failed", ended(137), reason="Evicted", message="The node was low on resource: memory."),
        (NOW, None, None, R.EVICTED),
    ),
    "that its agent took SIGTERM well makes an eviction no success": (
        pod(
            "Failed",
            ended(0),
            reason="Evicted",
            conditions=(SCHEDULED, disrupted("TerminationByKubelet", 25)),
        ),
        (25, None, None, R.EVICTED),
    ),
    "a critical pod pushed it out": (
        pod(
            "Failed",
            ended(143),
            reason="Preempting",
            conditions=(disrupted("TerminationByKubelet", 25),),
        ),
        (25, None, None, R.PREEMPTED),
    ),
    "a node that shuts down is lost": (
        pod(
            "Failed",
            ended(143),
            reason="Terminated",
            message="Pod was terminated in response to imminent node shutdown.",
            conditions=(disrupted("TerminationByKubelet", 25),),
        ),
        (25, None, None, R.NODE_LOST),
    ),
    "a node that had shut down before takes no pod": (
        pod("Failed", reason="NodeShutdown", message="Pod was rejected as the node is shutting down."),
        (NOW, None, None, R.NODE_LOST),
    ),
    "a node that has no room after all refuses the pod": (
        pod("Failed", reason="OutOfcpu", message="Pod was rejected: Node didn't have enough resource: cpu"),
        (1, None, None, R.NODE_REFUSED),
    ),
    "so does one whose device plugin starts again": (
        pod("Failed", reason="UnexpectedAdmissionError", message="Pod was rejected: Allocate failed"),
        (1, None, None, R.NODE_REFUSED),
    ),
    "and one whose kubelet starts again while the pod fetches": (
        pod("Failed", waits("PodInitializing"), inits=(FETCHED,), reason="TopologyAffinityError"),
        (1, None, None, R.NODE_REFUSED),
    ),
    "what a kubelet finds wrong with the pod itself fails the start": (
        pod("Failed", reason="SysctlForbidden", message='Pod was rejected: forbidden sysctl: "kernel.x"'),
        (1, None, None, R.START_FAILED),
    ),
    "so does what fails without a word of its node": (
        pod("Failed", message="no reason"),
        (1, None, None, R.START_FAILED),
    ),
    "a node that refuses a pod which ran there before took it away": (
        pod("Failed", runs(), reason="NodeAffinity", message="Pod was rejected"),
        (1, None, None, R.EVICTED),
    ),
    "after a power cut the node forgot how it ended": (
        pod("Failed", ended(255, reason="Unknown")),
        (20, None, None, R.NODE_LOST),
    ),
    "a container that cannot be found any more is the node's loss": (
        pod("Failed", ended(137, reason="ContainerStatusUnknown")),
        (20, None, None, R.NODE_LOST),
    ),
    # -- by others
    "preempted is told at once, though it still runs": (
        pod("Running", runs(), conditions=(disrupted("PreemptionByScheduler", 22),), deleted=22),
        (22, None, None, R.PREEMPTED),
    ),
    "a dead node is told at once, though its pod looks alive": (
        pod("Running", runs(), conditions=(disrupted("DeletionByTaintManager", 22),), deleted=22),
        (22, None, None, R.NODE_LOST),
    ),
    "a pod of a node that was deleted is lost with it": (
        pod("Failed", runs(), conditions=(disrupted("DeletionByPodGC", 22),)),
        (22, None, None, R.NODE_LOST),
    ),
    "an eviction by the API is told at once": (
        pod("Running", runs(), conditions=(disrupted("EvictionByEvictionAPI", 22),), deleted=22),
        (22, None, None, R.EVICTED),
    ),
    "a disruption that a newer Kubernetes names is one too": (
        pod("Running", runs(), conditions=(disrupted("DeletionByMeteor", 22),)),
        (22, None, None, R.EVICTED),
    ),
    "a disruption that was called off is none": (
        pod("Running", runs(), conditions=(condition("DisruptionTarget", "False", "PreemptionByScheduler"),)),
        None,
    ),
    "a pod that somebody deletes while it runs is evicted": (
        pod("Running", runs(), deleted=22),
        (22, None, None, R.EVICTED),
    ),
    "a pod that is deleted on a node which does not answer is lost with it": (
        pod("Running", runs(), conditions=(SCHEDULED, NOT_READY), deleted=22),
        (22, None, None, R.NODE_LOST),
    ),
    "a pod deleted before it started is evicted": (
        pod("Pending", waits("ContainerCreating"), deleted=22),
        (22, None, None, R.EVICTED),
    ),
    "an agent that had ended well before it was deleted ended well": (
        pod("Succeeded", ended(0, 11), deleted=22),
        (11, 0, None, None),
    ),
    "one whose node's clock may be behind may have been told to": (
        pod("Succeeded", ended(0, 12), deleted=22),
        (22, None, None, R.EVICTED),
    ),
    "an answer to SIGTERM on such a node is no wrong answer": (
        pod(
            "Failed", ended(1, 19), conditions=(SCHEDULED, disrupted("EvictionByEvictionAPI", 22)), deleted=22
        ),
        (22, None, None, R.EVICTED),
    ),
    "a wrong answer long before an eviction is one": (
        pod(
            "Failed", ended(1, 11), conditions=(SCHEDULED, disrupted("EvictionByEvictionAPI", 22)), deleted=22
        ),
        (11, 1, None, None),
    ),
    "a container whose end was told before its node's silence ended by itself": (
        pod("Unknown", ended(1, NOW - 5)),
        (NOW - 5, 1, None, None),
    ),
    "an agent that ends well because it was deleted did not end well": (
        pod("Succeeded", ended(0, 23), deleted=22),
        (22, None, None, R.EVICTED),
    ),
    "an agent that ends within the second of its deletion may have been told to": (
        pod("Succeeded", ended(0, 21), deleted=22),
        (22, None, None, R.EVICTED),
    ),
    "an agent that crashed before its deletion crashed": (
        pod("Failed", ended(139, 20), deleted=22),
        (20, None, 11, None),
    ),
    "SIGKILL on a node with a slow clock is still the deletion's": (
        pod("Failed", ended(137, 2), deleted=22),
        (22, None, None, R.EVICTED),
    ),
    "phase Unknown is a lost node": (pod("Unknown", runs()), (NOW, None, None, R.NODE_LOST)),
    "NodeLost of older clusters is a lost node": (
        pod("Running", runs(), reason="NodeLost", conditions=(NOT_READY,)),
        (22, None, None, R.NODE_LOST),
    ),
    # -- images and containers that cannot be made
    "an image that cannot be pulled for long is an image error": (
        pod("Pending", UNPULLED, conditions=(PULLED_AT,)),
        (NOW, None, None, R.IMAGE_ERROR),
    ),
    "backing off is the same": (
        pod("Pending", waits("ImagePullBackOff"), conditions=(PULLED_AT,)),
        (NOW, None, None, R.IMAGE_ERROR),
    ),
    "an image name that is none never gets better": (
        pod("Pending", waits("InvalidImageName"), conditions=(condition("Initialized", at=99),)),
        (NOW, None, None, R.IMAGE_ERROR),
    ),
    "an image that is not there and must not be pulled never gets better": (
        pod("Pending", waits("ErrImageNeverPull"), conditions=(condition("Initialized", at=99),)),
        (NOW, None, None, R.IMAGE_ERROR),
    ),
    "the fetcher's image counts as well": (
        pod(
            "Pending",
            waits("PodInitializing"),
            inits=(container(waits("InvalidImageName"), "sandgate-fetcher"),),
        ),
        (NOW, None, None, R.IMAGE_ERROR),
    ),
    "a side-car's image does not": (
        pod("Running", runs(), container(waits("InvalidImageName"), "tools")),
        None,
    ),
    "a container that cannot be configured fails to start": (
        pod("Pending", waits("CreateContainerConfigError", "image will run as root")),
        (NOW, None, None, R.START_FAILED),
    ),
    "a program that cannot be executed is missing": (
        pod("Failed", ended(128, 6, "StartError", "exec: no such file", since=None)),
        (6, None, None, R.AGENT_MISSING),
    ),
    "one that an older runtime cannot execute too": (
        pod("Failed", ended(127, 6, "ContainerCannotRun", "no such file", since=None)),
        (6, None, None, R.AGENT_MISSING),
    ),
    **{
        f"a missing program in the words of {runtime}": (
            pod("Failed", ended(128, 6, "StartError", words, since=None)),
            (6, None, None, R.AGENT_MISSING),
        )
        for runtime, words in {
            "runc": 'runc create failed: exec: "/app": stat /app: no such file or directory',
            "runc, without the right": 'runc create failed: exec: "./a.sh": permission denied',
            "crun": "crun: executable file `pyton` not found in $PATH: No such file or directory",
            "gVisor": 'error finding executable "pyton" in PATH [/bin]: no such file or directory',
        }.items()
    },
    "a runtime that creates containers only to find it missing says so while it waits": (
        pod(
            "Pending",
            waits("CreateContainerError", "executable file `pyton` not found in $PATH"),
            conditions=(PULLED_AT,),
        ),
        (NOW, None, None, R.AGENT_MISSING),
    ),
    "an init container's program is not the agent's": (
        pod(
            "Pending",
            waits("PodInitializing"),
            inits=(container(waits("RunContainerError", 'exec: "x": permission denied'), "prepare"),),
            conditions=(PULLED_AT,),
        ),
        (NOW, None, None, R.START_FAILED),
    ),
    "a runtime that fails says nothing of the program": (
        pod("Failed", ended(128, 6, "StartError", "mkdir /run/x: no such file or directory", since=None)),
        (6, None, None, R.START_FAILED),
    ),
    "a pod that no node takes waits": (
        pod("Pending", conditions=(condition("PodScheduled", "False", "Unschedulable"),)),
        None,
    ),
    # -- init containers
    "a wall that does not hold fails the start": (
        pod(
            "Failed",
            waits("PodInitializing"),
            inits=(fetcher(3, policy_message("NetworkPolicyNotEnforced")),),
        ),
        (4, None, None, R.START_FAILED),
    ),
    "a gateway that the fetcher cannot reach is lost": (
        pod("Failed", waits("PodInitializing"), inits=(fetcher(4, policy_message("GatewayUnreachable")),)),
        (4, None, None, R.GATEWAY_LOST),
    ),
    "an init container of the template's fails the start": (
        pod("Failed", waits("PodInitializing"), inits=(FETCHED, container(ended(1, 6), "prepare"))),
        (6, None, None, R.START_FAILED),
    ),
    "a side-car among the init containers does not": (
        pod("Running", runs(), inits=(container(ended(1, 6), "proxy"),), sidecars=("proxy",)),
        None,
    ),
    "a pod deleted while it fetched is evicted": (
        pod("Failed", waits("PodInitializing"), inits=(fetcher(143, "", at=23),), deleted=22),
        (22, None, None, R.EVICTED),
    ),
    "an init container that failed before the deletion failed the start": (
        pod("Failed", waits("PodInitializing"), inits=(fetcher(2, "", at=10),), deleted=22),
        (10, None, None, R.START_FAILED),
    ),
    "a node that lost power while it fetched is lost": (
        pod(
            "Failed",
            waits("PodInitializing"),
            inits=(container(ended(255, 6, "Unknown"), "sandgate-fetcher"),),
        ),
        (6, None, None, R.NODE_LOST),
    ),
    # -- deadlines
    "stopped by the operator, it is the operator's to say why": (
        pod("Failed", ended(143), reason="DeadlineExceeded", deadline=1),
        (20, None, 15, None),
    ),
    "an agent that takes the operator's stop well has its own code": (
        pod("Failed", ended(0), reason="DeadlineExceeded", deadline=1),
        (20, 0, None, None),
    ),
    "stopped by the operator before it started": (
        pod("Failed", waits("ContainerCreating"), reason="DeadlineExceeded", deadline=1),
        (1, None, 9, None),
    ),
    "stopped by the operator while it fetched": (
        pod(
            "Failed",
            waits("PodInitializing"),
            inits=(fetcher(143, ""),),
            reason="DeadlineExceeded",
            deadline=1,
        ),
        (4, None, 9, None),
    ),
    "with no operator left the deadline ends it, as its own time out": (
        pod("Failed", ended(143, 31), reason="DeadlineExceeded", deadline=30),
        (31, None, 9, R.SESSION_TIMEOUT),
    ),
    "code 0 at the deadline is no success": (
        pod("Failed", ended(0, 31), reason="DeadlineExceeded", deadline=30),
        (31, None, 9, R.SESSION_TIMEOUT),
    ),
    "an agent that ended long before the deadline of its side-cars ended by itself": (
        pod("Failed", ended(0, 20), reason="DeadlineExceeded", deadline=30),
        (20, 0, None, None),
    ),
    "a start that outlasts the deadline is a start that timed out": (
        pod("Failed", waits("ContainerCreating"), reason="DeadlineExceeded", deadline=30),
        (1, None, 9, R.START_TIMEOUT),
    ),
    "a fetcher that outlasts the deadline too": (
        pod(
            "Failed",
            waits("PodInitializing"),
            inits=(fetcher(143, "", at=31),),
            reason="DeadlineExceeded",
            deadline=30,
        ),
        (31, None, 9, R.START_TIMEOUT),
    ),
    "nobody's clock makes an end lie in the future": (
        pod("Failed", ended(3, 500)),
        (NOW, 3, None, None),
    ),
}

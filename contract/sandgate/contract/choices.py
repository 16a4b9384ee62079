"""Enumerations of manifest fields: their values are API, as written in YAML. (pure)"""

from __future__ import annotations

from enum import StrEnum


class HistoryPolicy(StrEnum):
    """What of a sampled turn stays in context."""

    SAMPLED = "sampled"
    """What was sampled, even thinking that a chat template would drop. Fewest forks."""
    TEMPLATE = "template"
    """What the chat template keeps; forks `history_rewritten_by_template` are then expected."""


class SpecialTokensInText(StrEnum):
    """What becomes of a control token (`<|im_end|>`) that a client's text spells."""

    TEXT = "text"
    """Words like any other: no message, tool or web page writes a turn."""
    CONTROL = "control"
    """The token, as Hugging Face's chat templates have it: for clients that write a model's markup themselves."""


class EngineKind(StrEnum):
    """Whose HTTP API the engine speaks."""

    VLLM = "vllm"
    """vLLM."""
    SGLANG = "sglang"
    """SGLang's native API; images, and engines that the operator manages, are vLLM's only."""


class LogprobsMode(StrEnum):
    """Of which distribution the engine reports log-probabilities."""

    PROCESSED = "processed_logprobs"
    """The one that was sampled from: after temperature, top_k, top_p, min_p and penalties."""
    RAW = "raw_logprobs"
    """The model's own; what was sampled from is the same only at temperature 1 without filters and penalties."""


class Beside(StrEnum):
    """How strongly gateways are placed on the engines' nodes."""

    PREFERRED = "Preferred"
    """There if there is room."""
    REQUIRED = "Required"
    """There or not at all."""
    ANYWHERE = "Anywhere"
    """Wherever the scheduler puts them."""


class BackendKind(StrEnum):
    """What runs an agent."""

    POD = "Pod"
    """A pod of its own."""
    PROCESS = "Process"
    """A local process of the driver: no isolation from the user's account, files and network."""


class Isolation(StrEnum):
    """What keeps a sandbox pod to its gateway."""

    PROBED = "Probed"
    """A NetworkPolicy, and the agent starts only after it was seen to hold."""
    POLICY = "Policy"
    """A NetworkPolicy that is not probed."""
    OFF = "Off"
    """None of ours: the agent may reach whatever the cluster lets it."""


class TaskDelivery(StrEnum):
    """How an agent is given its task."""

    ENV = "Env"
    """Text in SANDGATE_PROMPT."""
    FILE = "File"
    """JSON in the file that SANDGATE_TASK_FILE names."""


class Completion(StrEnum):
    """What ends a session well."""

    EXIT = "Exit"
    """The agent's exit, code 0. A POST to /complete ends nothing then."""
    COMPLETE = "Complete"
    """A POST to the session's /complete; the sandbox is then stopped. Not with reward.source exitCode: its exit code
    would not be seen."""


class CutTurns(StrEnum):
    """Are turns trained that the agent cut (it closed the stream, or its time was up) and did not go on from?"""

    TRAIN = "train"
    """Yes, with the session's reward: the policy sampled them, and the agent chose by what it saw of them."""
    LEAVE = "leave"
    """No. An agent that samples often, keeps the best and cuts the rest then trains the best alone."""


class RewardSource(StrEnum):
    """Who gives the training reward."""

    AGENT = "agent"
    """The agent's own word: its termination message or the reward_info of /complete. Only for trusted agents."""
    VERIFIER = "verifier"
    """A container that runs after the agent and sees task and result."""
    TRAINER = "trainer"
    """The trainer, when it has the trajectories."""
    EXIT_CODE = "exitCode"
    """Exit code 0 is 1.0; 1 is 0.0 and the policy's failure, trained on; any other code, a signal or a program that is
    missing is the agent's failure, and masked. Only a code that was seen counts: not /complete, not a hang."""


class TurnRole(StrEnum):
    """What a turn is for, in its session."""

    MAIN = "main"
    """The agent's own conversation: it does the task."""
    SIDE = "side"
    """A helper's call beside it: a title, a summary, a probe, a judge."""
    SUBAGENT = "subagent"
    """Of an agent that the main one started, with a conversation of its own."""

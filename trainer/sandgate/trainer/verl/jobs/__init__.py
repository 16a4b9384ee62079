"""A RolloutJob inside verl: its prompts are tasks of a job, whose agents run in sandboxes.

Needs verl 0.9 beside ours (docs/trainers/verl.md); imports it when it is used.
"""

from __future__ import annotations

from sandgate.trainer.verl.jobs.manager import RolloutJobManager as RolloutJobManager
from sandgate.trainer.verl.jobs.settings import JobSettings as JobSettings
from sandgate.trainer.verl.jobs.settings import job_settings as job_settings

"""Groups as SkyRL's `GeneratorOutput`. A generator that runs a RolloutJob: `sandgate.trainer.skyrl.generator`.

Nothing but that module needs SkyRL (docs/trainers/skyrl.md).
"""

from __future__ import annotations

from sandgate.trainer.skyrl.output import SkyRLSink as SkyRLSink
from sandgate.trainer.skyrl.output import TrajectoryId as TrajectoryId
from sandgate.trainer.skyrl.output import to_generator_output as to_generator_output

"""The Kubernetes objects of a job, as pure functions of the job and the settings. (pure)

All objects of a job are `gateway_objects` + `engine_objects`, to be applied in their order: policies come before the
pods they are about, and before them `closed_policy`, which is of the namespace. `check_cluster` says first whether the
job can run in a cluster at all.
"""

from __future__ import annotations

from sandgate.operator.manifests.base import Json as Json
from sandgate.operator.manifests.base import engine_pods as engine_pods
from sandgate.operator.manifests.base import gateway_origin as gateway_origin
from sandgate.operator.manifests.base import gateway_pods as gateway_pods
from sandgate.operator.manifests.base import keep_shard as keep_shard
from sandgate.operator.manifests.base import owner as owner
from sandgate.operator.manifests.check import check_cluster as check_cluster
from sandgate.operator.manifests.engines import engine_objects as engine_objects
from sandgate.operator.manifests.engines import keep_image as keep_image
from sandgate.operator.manifests.example import example_objects as example_objects
from sandgate.operator.manifests.example_session import session_owner as session_owner
from sandgate.operator.manifests.external import agents_origin as agents_origin
from sandgate.operator.manifests.external import gateway_in as gateway_in
from sandgate.operator.manifests.gateways import gateway_objects as gateway_objects
from sandgate.operator.manifests.gateways import trainer_secret as trainer_secret
from sandgate.operator.manifests.policies import closed_policy as closed_policy
from sandgate.operator.manifests.policies import sandbox_policy as sandbox_policy
from sandgate.operator.manifests.sessions import done_map as done_map
from sandgate.operator.manifests.sessions import keys_end as keys_end
from sandgate.operator.manifests.sessions import keys_secret as keys_secret
from sandgate.operator.manifests.sessions import remote_secret as remote_secret
from sandgate.operator.manifests.sessions import remote_verifier_secret as remote_verifier_secret
from sandgate.operator.manifests.sessions import session_object as session_object
from sandgate.operator.settings import Settings as Settings

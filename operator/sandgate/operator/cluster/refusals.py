"""Tells what an API server forbids for good from what it forbids for now. (pure)

For good is what an admission plugin, a webhook or a namespace's security level says of the object itself: the next one
like it is refused, too. For now is what it says of the operator's rights, of a quota, of a namespace or of itself.
"""

from __future__ import annotations

import re

from sandgate.contract.errors import Forbidden

_PASSES = (
    "exceeded quota: |status unknown for quota: |error looking up service account "
    "|unable to create new content in namespace .* because it is being terminated"
    "|not yet ready to handle request|cannot set blockOwnerDeletion "
)
FOR_NOW = re.compile(
    r'^(403: )?[a-z]+ is forbidden: User "[^"]*" cannot [a-z]+ resource '
    rf'|^(403: )?[a-z]+ "[^"]*" is forbidden: ({_PASSES})'
    r"|exceeded quota"
)
"""In order: the authorizer, which names no object (an API server that has just started knows no roles yet, and an
upgrade replaces them); admission, of things that come and go; a webhook's quota. What a webhook says otherwise is its
own: words of these in the middle of it mean nothing."""


def passes(error: Forbidden) -> bool:
    """Asked again later, it may say something else: whoever needs the object waits for it."""
    return FOR_NOW.search(str(error)) is not None

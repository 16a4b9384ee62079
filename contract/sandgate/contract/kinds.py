"""Types that several manifest fields have: bounded numbers and texts, labels, env, URLs, quantities. (pure)"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from sandgate.contract.rules import Bounds, Cel, Check, Pattern, Size, Wrong, rule_schema

Json: TypeAlias = Any
"""What `json.loads` returns; passes through unchanged."""
JsonObject: TypeAlias = dict[str, Any]

INT32_MAX = 2**31 - 1
NonNegative: TypeAlias = Annotated[int, Bounds(0, INT32_MAX)]
Positive: TypeAlias = Annotated[int, Bounds(1, INT32_MAX)]
Seconds: TypeAlias = Annotated[int, Bounds(1, INT32_MAX)]
"""Whole seconds, as Kubernetes counts them."""
Text: TypeAlias = Annotated[str, Size(0, 4096)]
Word: TypeAlias = Annotated[
    str, Size(1, 256), Pattern(r"^[A-Za-z0-9]([A-Za-z0-9._/:@+-]*[A-Za-z0-9])?$", "a plain name")
]
LabelText: TypeAlias = Annotated[
    str, Size(0, 253), Pattern(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", "a name of a Kubernetes object")
]
Image: TypeAlias = Annotated[str, Size(0, 4096)]
"""A container image; empty for the default."""
LabelMap: TypeAlias = Annotated[dict[str, str], Size(0, 256)]
"""Of metadata: the API server has checked it."""
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
LABEL_KEY: Final = Pattern(
    rf"^({_SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$",
    "a label's name, such as app or example.com/app",
)
LABEL_KEY_MAX: Final = 253 + 1 + 63
"""Characters: of the domain, the slash and the name."""


def _label_keys(value: dict[str, str]) -> Wrong:
    """They go into NetworkPolicies, which the API server refuses whole."""
    for key in value:
        if (wrong := LABEL_KEY.wrong(key)) is not None:
            return "", wrong
        if len(key) > LABEL_KEY_MAX:
            return "", f"has a label of {len(key)} characters; at most {LABEL_KEY_MAX} are allowed"
    return None


_LABEL_KEYS = Cel(
    f"self.all(key, size(key) <= {LABEL_KEY_MAX} && key.matches('{LABEL_KEY.regex}'))",
    f"a key is not {LABEL_KEY.says}",
)
SelectorLabels: TypeAlias = Annotated[
    dict[
        str,
        Annotated[
            str,
            Size(0, 63),
            Pattern(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", "a label value"),
        ],
    ],
    Size(1, 64),
    Check(_label_keys, {"x-kubernetes-validations": [rule_schema(_LABEL_KEYS)]}),
]

ENV_VALUE_MAX = 131_071
"""Characters: Linux refuses a longer single argument or variable (MAX_ARG_STRLEN, its final NUL counted)."""
PARTS_MAX = 1024
ENV_NAME_PATTERN: Final = r"^[^=\x00]+$"
NO_NUL: Final = r"^[^\x00]*$"
"""No text of a manifest may hold NUL: it would be cut short in environments, files and command lines."""

EnvMap: TypeAlias = Annotated[dict[str, Annotated[str, Size(0, ENV_VALUE_MAX)]], Size(0, 256)]
Parts: TypeAlias = Annotated[tuple[Annotated[str, Size(0, ENV_VALUE_MAX)], ...], Size(0, PARTS_MAX)]
"""Parts of a command line."""
PORT: Final = r"6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3}"
"""1 to 65535."""
BASE_URL: Final = Pattern(
    rf'^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:({PORT}))?(/[!-"$->@-~]*)?$',
    "an http:// or https:// base URL (a port is 1 to 65535)",
)
HttpUrl: TypeAlias = Annotated[str, Size(1, 2048), BASE_URL]
QUANTITY: Final = Pattern(
    r"^[0-9]+(\.[0-9]+)?(m|k|[MGTPE]|[KMGTPE]i)?$", "a Kubernetes quantity such as 512Mi or 1Gi"
)
Quantity: TypeAlias = Annotated[str, Size(1, 64), QUANTITY]

_MULTIPLES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_MULTIPLES |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", 1)} | {"ki": 1024}


def bytes_of(quantity: str) -> int:
    """A Kubernetes memory quantity in bytes, rounded up. Raises ValueError."""
    text = quantity.strip()
    digits = text.rstrip("EPTGMKkim")
    unit = text[len(digits) :]
    if not digits.replace(".", "", 1).isdigit() or (unit and unit != "m" and unit not in _MULTIPLES):
        raise ValueError(f"{quantity!r} is not a quantity such as 512Mi or 1Gi")
    whole = float(digits) * _MULTIPLES.get(unit, 1) / (1000 if unit == "m" else 1)
    return int(whole) + (whole > int(whole))

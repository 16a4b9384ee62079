"""A peft model as engines load it: adapters merged in, under the names that the model has without peft."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sandgate.contract.errors import InvalidBody

FIELD = "peft_config"
ROUTED = "XLORA"
"""Its adapters are mixed anew for each token."""
SMALLEST = 2
"""Bytes of a number that is precise enough to be merged into: bfloat16's. Layers may be quantized without a word in the
model's configuration."""
ROUNDINGS = 8
"""By so many a tied weight may differ from itself: an adapter's product, its transpose, and a sum of each."""


def adapted(model: Any) -> bool:
    """Does peft wrap it?"""
    return hasattr(model, "get_base_model") or hasattr(model, "merge_adapter")


def check_adapters(model: Any) -> None:
    """Raises InvalidBody, by name, for a model whose adapters cannot be published. Each layer is merged once, so that
    the first publication is not the first that says so; `model` keeps its bits."""
    check_kind(model)
    if adapted(model):
        import torch  # type: ignore[import-not-found, unused-ignore]

        base = model.get_base_model()
        _check_ties(
            base, any(getattr(one, "ensure_weight_tying", False) for one in model.peft_config.values())
        )
        with torch.no_grad():
            _collect(base, "", None)


def plain(model: Any) -> tuple[Any, dict[str, Any]]:
    """Of a peft model: the model in it, and its state as its forward pass computes, on the CPU, under the names that it
    has without peft. `model` has the very bits that it had before: a merge that is undone leaves rounding behind, at
    each update. Raises InvalidBody for what cannot be merged, and for adapters that an engine could not tell from a
    tied weight."""
    import torch

    check_kind(model)
    base = model.get_base_model()
    state: dict[str, Any] = {}
    with torch.no_grad():
        _collect(base, "", state)
    _check_tied(base, state)
    return base, state


def check_kind(model: Any) -> None:
    """Raises InvalidBody, by name, for adapters that are neither merged nor served."""
    if not adapted(model):
        if getattr(model, "_hf_peft_config_loaded", False):
            raise InvalidBody(
                "the model has adapters that transformers added (add_adapter), and would be saved without its own"
                " weights: give the trainer peft_config, or a model of peft.get_peft_model",
                field=FIELD,
            )
        return
    if not hasattr(model, "get_base_model"):
        raise InvalidBody("a model of several methods of peft (mixed=True) cannot be published", field=FIELD)
    kinds = sorted(
        {str(getattr(one.peft_type, "value", one.peft_type)) for one in model.peft_config.values()}
    )
    if not hasattr(model, "merge_adapter") or ROUTED in kinds:
        raise InvalidBody(
            f"adapters of {', '.join(kinds)} are not weights of a layer, and cannot be merged into what engines load:"
            " use LoRA or another method that can be merged",
            field=FIELD,
        )
    base = model.get_base_model()
    if adapted(base):
        raise InvalidBody(
            "one model of peft is within another: merge the inner one (merge_and_unload) before it is wrapped again",
            field=FIELD,
        )
    if getattr(base, "is_quantized", False) or getattr(base, "hf_quantizer", None) is not None:
        raise InvalidBody(
            "adapters over a quantized model (QLoRA) are not published: each merge would be rounded to its few bits and"
            " change the weights that are trained, and engines would serve them over other weights than the trainer's."
            " Load it without quantization_config",
            field=FIELD,
        )


def _collect(module: Any, prefix: str, state: dict[str, Any] | None) -> None:
    """Add the state of `module` as if peft had never been there, in the order of the modules. None: only look whether
    it can be done."""
    from peft.tuners.tuners_utils import BaseTunerLayer  # type: ignore[import-not-found, unused-ignore]

    if isinstance(module, BaseTunerLayer):
        with _merged(module, prefix) as base:
            _collect(base, prefix, state)
    elif _of_peft(module):
        _collect(_in_use(module, prefix), prefix, state)
    elif any(map(_of_peft, module.modules())):
        own: dict[str, Any] = {}
        module._save_to_state_dict(own, prefix, False)
        _add(own, state)
        for name, child in module._modules.items():
            if child is not None:
                _collect(child, f"{prefix}{name}.", state)
    elif state is not None:
        _add(module.state_dict(prefix=prefix), state)


def _of_peft(module: Any) -> bool:
    """Does it stand for a module of the plain model?"""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper  # type: ignore[import-not-found, unused-ignore]

    return isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))


def _add(found: dict[str, Any], state: dict[str, Any] | None) -> None:
    if state is not None:
        state |= {
            name: one.detach().to("cpu", copy=True) if hasattr(one, "detach") else one
            for name, one in found.items()
        }


def _in_use(wrapper: Any, prefix: str) -> Any:
    """Of a module that peft replaced by trained copies: the one that the forward pass goes through."""
    from peft.utils.other import (  # type: ignore[import-not-found, unused-ignore]
        ModulesToSaveWrapper,
        TrainableTokensWrapper,
    )

    if isinstance(wrapper, TrainableTokensWrapper):
        return wrapper.token_adapter
    if not isinstance(wrapper, ModulesToSaveWrapper):
        raise InvalidBody(f"{prefix}{type(wrapper).__name__} of peft is unknown here", field=FIELD)
    active = wrapper.active_adapters
    if wrapper.disable_adapters or not active or any(one not in wrapper.modules_to_save for one in active):
        return wrapper.original_module
    return wrapper.modules_to_save[active[0]]


@contextmanager
def _merged(layer: Any, prefix: str) -> Iterator[Any]:
    """The module below all adapters that lie around it, with all of them merged in. Of several parameters of a module
    (`target_parameters`: the experts of a mixture) each has an adapter of its own, one around the other: merged one by
    one, the module would have each with the others missing."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    chain = [layer]
    while isinstance(chain[-1].base_layer, BaseTunerLayer):
        chain.append(chain[-1].base_layer)
    base = layer.get_base_layer()
    kept = [
        (owner, name, one, one.data, one.detach().clone())
        for owner in base.modules()
        for name, one in owner._parameters.items()
        if one is not None
    ]
    if any(one.element_size() < SMALLEST for _, _, one, _, _ in kept):
        raise _unmergeable(
            layer, prefix, "its weights are quantized, and each merge would be rounded to their few bits"
        )
    names = {name for name, _ in base.named_parameters()}
    before = [list(one.merged_adapters) for one in chain]
    try:
        try:
            for one in chain:
                _bring(one, _wanted(one))
        except Exception as error:
            raise _unmergeable(layer, prefix, str(error) or type(error).__name__) from error
        found = layer.get_base_layer()  # some methods have another there now
        if {name for name, _ in found.named_parameters()} != names:
            raise _unmergeable(layer, prefix, "it has other parameters when it is merged")
        yield found
    finally:
        try:
            for one, merged in zip(reversed(chain), reversed(before), strict=True):
                _bring(one, merged)
        finally:
            for owner, name, one, storage, bits in kept:
                storage.copy_(bits)
                one.data = storage  # some methods put another in its place
                owner._parameters[name] = one


def _wanted(layer: Any) -> list[str]:
    """The adapters that its forward pass adds: of those that its user merged already, it goes on with these alone."""
    from peft.tuners.trainable_tokens.layer import (  # type: ignore[import-not-found, unused-ignore]
        TrainableTokensLayer,
    )

    if layer.disable_adapters:
        return []
    found = list(layer.merged_adapters or layer.active_adapters)
    if isinstance(
        layer, TrainableTokensLayer
    ):  # which asks all for their tokens, also those that have none here
        return [one for one in found if one in layer.trainable_tokens_delta]
    return found


def _bring(layer: Any, adapters: list[str]) -> None:
    """Until these are merged in, and no others."""
    if layer.merged and not adapters:
        layer.unmerge()
    elif not layer.merged and adapters:
        layer.merge(adapter_names=adapters)


def _unmergeable(layer: Any, prefix: str, why: str) -> InvalidBody:
    kind = type(layer)
    return InvalidBody(
        f"{prefix.rstrip('.')}: adapters of {kind.__module__}.{kind.__name__} cannot be merged for the engines: {why}",
        field=FIELD,
    )


def _check_tied(model: Any, state: dict[str, Any]) -> None:
    """Raises InvalidBody for one weight that has become two. Adapters that peft keeps tied are computed once for each
    of both, and differ by rounding: the engine gets one of them, as the model without peft has it."""
    for one, other in _ties(model):
        if one in state and other in state:
            if not _alike(state[one], state[other]):
                raise _untied(one, other)
            state[one] = state[other]


def _alike(one: Any, other: Any) -> bool:
    import torch

    if torch.equal(one, other):
        return True
    most = ROUNDINGS * torch.finfo(one.dtype).eps
    return bool(torch.allclose(one, other, rtol=most, atol=most * float(other.abs().max())))


def _check_ties(model: Any, tying: bool) -> None:
    """The same before anything was trained, when both are equal still. `tying`: peft keeps adapters of both tied; those
    of single tokens always are."""
    for one, other in _ties(model):
        kinds = [kind for kind in (_within_peft(model, one), _within_peft(model, other)) if kind]
        kept = tying or all("Tokens" in kind.__name__ for kind in kinds)
        if len(kinds) == 1 or not kept:
            raise _untied(one, other)


def _ties(model: Any) -> list[tuple[str, str]]:
    """Names of weights that the model's configuration says are one."""
    if not getattr(model.config.get_text_config(), "tie_word_embeddings", False):
        return []
    return list(dict(getattr(model, "_tied_weights_keys", None) or {}).items())


def _within_peft(model: Any, name: str) -> type | None:
    """What of peft lies around a weight. `name`: as without peft."""
    module = model
    for part in name.split(".")[:-1]:
        if (module := module._modules.get(part)) is None:
            return None
        if _of_peft(module):
            return type(module)
    return None


def _untied(one: str, other: str) -> InvalidBody:
    return InvalidBody(
        f"adapters make {one} and {other} two weights, and the model's configuration says that they are one"
        " (tie_word_embeddings): an engine would sample from another policy. Leave both out of"
        " target_modules and modules_to_save, or set ensure_weight_tying",
        field=FIELD,
    )

"""Our operators, and TensorRT's registry of plugins."""

import importlib
from collections.abc import Sequence
from typing import Any

from quatrain.plugins.definition import DefinitionFactory
from quatrain.plugins.operator import DOMAIN
from quatrain.plugins.problems import PluginProblem, take_problems
from quatrain.plugins.tensorrt_plugin import make_creator

__all__ = [
    "DEFINITIONS",
    "PluginProblem",
    "deregister",
    "describe_registered",
    "load_definition",
    "register",
    "take_problems",
]

DEFINITIONS = {
    "StreamFactorizedAttention": "stream_attention.plugin:StreamFactorizedAttentionPlugin",
    "BankTopKFeedForward": "bank_topk_ffn.plugin:BankTopKFeedForwardPlugin",
    "ExitRouter": "exit_router.plugin:ExitRouterPlugin",
}
"""Where the definition of each operator is, in `quatrain.plugins`; imported when asked for."""

# By module and operator. TensorRT only points to creators, so they have to stay alive.
_creators: dict[tuple[str, str], Any] = {}


def load_definition(operator: str) -> DefinitionFactory:
    """The definition of one of `DEFINITIONS`."""
    module, _, name = DEFINITIONS[operator].partition(":")
    factory: DefinitionFactory = getattr(
        importlib.import_module(f"quatrain.plugins.{module}"), name
    )
    return factory


def register(trt: Any, factories: Sequence[DefinitionFactory] | None = None) -> None:
    """Make plugins known to the module `tensorrt` or `tensorrt_rtx`; again does no harm.

    They stay registered while the process lives. Raises `RuntimeError` where something else is
    registered under the name, version and namespace of one.

    Args:
        factories: Default: all of `DEFINITIONS`.
    """
    if factories is None:
        factories = [load_definition(name) for name in DEFINITIONS]
    registry = trt.get_plugin_registry()
    for factory in factories:
        key = trt.__name__, factory.operator.name
        if key in _creators:
            continue
        creator = make_creator(trt, factory)
        if not registry.register_creator(creator, DOMAIN):
            raise RuntimeError(
                f"another plugin is registered as {DOMAIN}::{factory.operator.name}:"
                f"{factory.operator.plugin_version}"
            )
        _creators[key] = creator


def deregister(trt: Any) -> None:
    """Take all of ours back out, which no engine may need any more."""
    registry = trt.get_plugin_registry()
    for key in [key for key in _creators if key[0] == trt.__name__]:
        registry.deregister_creator(_creators.pop(key))


def describe_registered(trt: Any) -> list[str]:
    """Every plugin that is registered, anybody's, as "namespace::name:version"."""
    creators = trt.get_plugin_registry().all_creators
    return sorted(f"{c.plugin_namespace}::{c.name}:{c.plugin_version}" for c in creators)

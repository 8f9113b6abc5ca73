"""What every operator of ours shares: the domain, and the attributes that call a TensorRT plugin.

TensorRT's parser takes a registered plugin for a node that carries `plugin_namespace`, and the
function body otherwise; every other ONNX runtime always takes the body. Function names must be
unique across domains, because TensorRT looks bodies up by name alone.
"""

from dataclasses import dataclass

__all__ = ["DOMAIN", "DOMAIN_VERSION", "OperatorName"]

DOMAIN = "quatrain"
DOMAIN_VERSION = 1


@dataclass(frozen=True, slots=True)
class OperatorName:
    """An operator of ours and the version of the plugin that serves it."""

    name: str
    plugin_version: str = "1"

    @property
    def plugin_attributes(self) -> dict[str, str]:
        """The node attributes by which TensorRT finds the plugin."""
        return {"plugin_namespace": DOMAIN, "plugin_version": self.plugin_version}

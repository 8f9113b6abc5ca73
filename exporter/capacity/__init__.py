"""What a model needs of a GPU, and which GPUs have it."""

from quatrain.exporter.capacity.capacity import CapacityPlan, plan_capacity
from quatrain.exporter.capacity.fit import TargetFit
from quatrain.exporter.capacity.needs import Needs

__all__ = ["CapacityPlan", "Needs", "TargetFit", "plan_capacity"]

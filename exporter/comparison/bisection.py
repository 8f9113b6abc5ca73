"""Where a runner first leaves the reference, and how the difference grows from there."""

from quatrain.exporter.comparison.cases import Case
from quatrain.exporter.comparison.distance import Distance, find_tolerance, measure
from quatrain.exporter.comparison.result import Check, Divergence, LayerError
from quatrain.exporter.comparison.tolerances import TOLERANCES, find_kind
from quatrain.exporter.comparison.trace import Trace, find_layer, list_tokens, match_shapes

__all__ = ["Bisection", "bisect"]


class Bisection:
    """Every tensor that both sides have, in the order in which the reference computed them."""

    def __init__(self, runner: str, dtype: str, case: Case, distances: dict[str, Distance]) -> None:
        self._runner = runner
        self._tolerances = TOLERANCES[dtype]
        self._case = case
        self._distances = distances

    def find_divergence(self) -> Divergence | None:
        """The first tensor that is not finite, or beyond its tolerance; None if all are fine."""
        for name, distance in self._distances.items():
            tolerance = self._allow(name, distance)
            if distance.error > tolerance:
                return Divergence(
                    runner=self._runner,
                    tensor=name,
                    layer=find_layer(name),
                    position=distance.locate_first(tolerance),
                    error=distance.error,
                    tolerance=tolerance,
                    case=self._case.name,
                    kind="not finite" if distance.num_not_finite else "difference",
                )
        return None

    def list_layer_errors(self) -> list[LayerError]:
        """How far each tensor is."""
        return [
            LayerError(
                runner=self._runner,
                tensor=name,
                layer=find_layer(name),
                max_abs_error=distance.max_abs_error,
                reference_max=distance.reference_max,
                relative=distance.error,
            )
            for name, distance in self._distances.items()
        ]

    def measure_overlap(self) -> dict[int, float]:
        """The share of the reference's active channels that are active here, by layer."""
        return {
            layer: 1.0 - distance.error
            for name, distance in self._distances.items()
            if find_kind(name) == "selection" and (layer := find_layer(name)) is not None
        }

    def _allow(self, name: str, distance: Distance) -> float:
        """The largest error: of channels one choice at least, which may be a tie in any layer."""
        tolerance = find_tolerance(find_kind(name), self._tolerances)
        return max(tolerance, 1.01 * distance.single_choice)

    def check_selection(self) -> Check | None:
        """Whether the channels are the reference's; None where none are chosen."""
        overlap = self.measure_overlap()
        if not overlap:
            return None
        layer = min(overlap, key=lambda layer: overlap[layer])
        name = f"layers.{layer}.active_channels"
        least = 1.0 - self._allow(name, self._distances[name])
        return Check(
            "active channels",
            overlap[layer] >= least,
            overlap[layer],
            least,
            self._runner,
            f"the share that is active on both sides, layer {layer}",
            at_least=True,
        )


def bisect(runner: str, dtype: str, case: Case, reference: Trace, found: Trace) -> Bisection:
    """Compare everything that a tapped run gave, of one case."""
    distances = {}
    for name, array in reference.items():
        if name in found:
            expected, actual = match_shapes(name, array, found[name])
            valid = list_tokens(name, case.lengths, expected.shape[1])
            if valid.any():
                distances[name] = measure(find_kind(name), expected, actual, valid)
    return Bisection(runner, dtype, case, distances)

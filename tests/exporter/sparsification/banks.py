"""The banks that tests of sparsification ask for."""

from typing import Any

BANKS: dict[str, Any] = {"bank_size": 8, "top_k": 2}
PREDICTOR = "model.layers.{}.mlp.predictor.{}.weight"

"""A diagnosis as a picture: what each layer chooses, and perplexity by position."""

from quatrain.exporter.charts import Chart, Series
from quatrain.exporter.diagnosis.report import ActivationReport

__all__ = ["chart_activations"]


def chart_activations(report: ActivationReport) -> list[Chart]:
    """What layers choose, above perplexities."""
    return [_chart_layers(report), _chart_positions(report)]


def _chart_layers(report: ActivationReport) -> Chart:
    uses = [layer.use for layer in report.layers]
    entropy = Series("usage entropy", [None if use is None else use.usage_entropy for use in uses])
    recalls = [None if use is None else use.recall for use in uses]
    recall = Series("share of the true top-k found", recalls)
    has_predictor = report.predictor_rank is not None
    return Chart(
        title=f"Channels by layer: {report.top_k} of {report.bank_size}, {report.family}",
        x_label="layer (dense ones have no bar)" if None in uses else "layer",
        y_label="share",
        places=[str(layer.layer) for layer in report.layers],
        series=[recall, entropy] if has_predictor else [entropy],
        is_bars=True,
        top=1.0,
        mark=("a random choice finds", report.chance) if has_predictor else None,
    )


def _chart_positions(report: ActivationReport) -> Chart:
    series = [Series("as it is", [bucket.perplexity for bucket in report.buckets])]
    for layer in report.layers:
        if layer.layer == report.best_layer and layer.repair is not None:
            name = f"layer {layer.layer} dense, the largest gain at the end"
            series.append(Series(name, layer.repair.bucket_perplexity))
    return Chart(
        title="Perplexity by position",
        x_label="position in the window (tokens)",
        y_label="perplexity",
        places=[f"{bucket.first}-{bucket.last}" for bucket in report.buckets],
        series=series,
    )

"""Speed, memory and traffic of bundles, side by side."""

from quatrain.exporter.bench.bench import bench_bundles
from quatrain.exporter.bench.report import BenchReport, BenchRun, Spread
from quatrain.exporter.bench.setting import BenchSetting

__all__ = ["BenchReport", "BenchRun", "BenchSetting", "Spread", "bench_bundles"]

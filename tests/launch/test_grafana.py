"""The Grafana dashboard asks for metrics that exist, and shows each of ours."""

from __future__ import annotations

import ast
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from sglang_cp.metrics.definitions import METRICS
from tests.launch.conftest import CHECKOUT

GRAFANA = CHECKOUT / "launch/grafana"
DASHBOARD = json.loads((GRAFANA / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
SELECTORS = [selector for query in QUERIES for selector in re.findall(r"(sglang(?:_cp)?:\w+)\{([^}]*)\}", query)]


def sglangs_metrics() -> dict[str, str]:
    """Name -> class of each metric that SGLang registers: Counter, Gauge, Histogram, ..."""
    spec = find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    collector = Path(spec.origin).parent / "srt/observability/metrics_collector.py"
    found = {}
    for node in ast.walk(ast.parse(collector.read_bytes())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for keyword in node.keywords:
                if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                    found[keyword.value.value] = node.func.id
    return found


THEIRS = sglangs_metrics()


def base_name(series: str) -> str:
    """The metric of a series: a histogram has several."""
    base = re.sub(r"_(bucket|sum|count)$", "", series)
    histogram = METRICS[base].buckets if base in METRICS else THEIRS.get(base) == "Histogram"
    return base if histogram else series


def test_every_metric_of_ours_has_a_panel() -> None:
    assert set(METRICS) <= {base_name(series) for series, _ in SELECTORS}


@pytest.mark.parametrize("series", sorted({series for series, _ in SELECTORS}))
def test_every_series_exists(series: str) -> None:
    assert base_name(series) in {*METRICS, *THEIRS}
    if base_name(series) == series and series in THEIRS:
        assert THEIRS[series] != "Histogram", f"{series} is a histogram: ask for its _bucket, _sum or _count"


def test_every_query_names_its_series_and_filters_by_model() -> None:
    for query in QUERIES:
        assert len(re.findall(r"sglang(?:_cp)?:\w+", query)) == len(re.findall(r"\{[^}]*\}", query)) > 0, query
        assert query.count("(") == query.count(")"), query
    for series, selector in SELECTORS:
        assert 'model_name=~"$model"' in selector, series


def labels_of(series: str) -> set[str]:
    """What a series can be filtered and grouped by; of SGLang's, only what all have."""
    metric = METRICS.get(base_name(series))
    bounds = {"le"} if series.endswith("_bucket") else set()
    return {"model_name", "engine_type", "tp_rank", *bounds, *(metric.labels if metric else ())}


def test_series_are_filtered_and_grouped_by_labels_that_they_have() -> None:
    for series, selector in SELECTORS:
        assert set(re.findall(r"(\w+)=", selector)) <= labels_of(series), (series, selector)
    for target in (target for panel in PANELS for target in panel["targets"]):
        grouped = {name for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for name in by.split(", ")}
        for series in re.findall(r"(sglang(?:_cp)?:\w+)\{", target["expr"]):
            assert grouped <= labels_of(series), target
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown == grouped - {"le"}, target


def test_quantiles_keep_the_bucket_bounds() -> None:
    for query in QUERIES:
        if "_bucket" in query:
            assert re.match(r"histogram_quantile\(0\.\d+, sum by \(le", query), query


def test_it_can_be_provisioned_anywhere() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    sources = [panel["datasource"] for panel in PANELS] + [
        t["datasource"] for panel in PANELS for t in panel["targets"]
    ]
    assert {source["uid"] for source in sources} == {"${datasource}"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert "id" not in DASHBOARD  # Grafana gives one of its own


def test_no_two_panels_overlap() -> None:
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells


def test_the_readme_lists_every_metric_as_it_is_defined() -> None:
    readme = (GRAFANA / "README.md").read_text()
    for name, metric in METRICS.items():
        kind, labels = "histogram" if metric.buckets else "counter", ", ".join(metric.labels) or "-"
        assert f"| `{name}` | {kind} | {labels} | {metric.documentation} |\n" in readme


def test_the_files_that_the_readme_mounts_are_there() -> None:
    mounted = re.findall(r"\$PWD/([\w./-]+):", (GRAFANA / "README.md").read_text())
    assert len(mounted) == 4
    for name in mounted:
        assert (GRAFANA / name).is_file()
    for path in GRAFANA.rglob("*.y*ml"):
        assert isinstance(yaml.safe_load(path.read_text()), dict)
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards.yaml").read_text())["providers"]
    assert f":{provider['options']['path']}/sglang-cp.json:ro" in (GRAFANA / "README.md").read_text()

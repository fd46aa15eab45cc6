"""Reads the metrics page of an inference server.

Its Prometheus text becomes amounts of one vocabulary.
The format is that of https://prometheus.io/docs/instrumenting/exposition_formats/. The parser is our own: that of
``prometheus_client`` has no bound on its input and names no line in its errors.
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import cast, get_args

from msgspec import Struct

from bottleneck.errors import TraceError
from bottleneck.schema.inference import Amount, ServerMetric, ServerMetrics
from bottleneck.units import counted

MOST_BYTES = 16 * 2**20
_MOST_SAMPLES = 500_000
_SHOWN = 60
_ABSENT = "not-on-page"

_SAMPLE = re.compile(
    r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)[ \t]*(?:\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*+\")*+)\})?"
    r"[ \t]*(?P<value>[^\s{}#]+)(?:[ \t]+-?[0-9.]+)?[ \t]*(?:#.*)?"
)
_LABEL = re.compile(r"\s*(?P<key>[A-Za-z_][A-Za-z0-9_.]*)\s*=\s*\"(?P<text>(?:[^\"\\]|\\.)*+)\"\s*(?:,|\Z)")
_SHARES = frozenset({"kv_used_share", "prefix_hit_share"})


class MetricSample(Struct, frozen=True):
    """One line of the page: a metric, its labels and its value."""

    name: str
    labels: Mapping[str, str]
    value: float


class _MetricRow(Struct, frozen=True):
    """Row of server_metrics.tsv."""

    server: str
    amount: Amount
    metric: str
    label: str
    how: str
    scale: float
    per: str


@cache
def metric_rows() -> tuple[_MetricRow, ...]:
    """Returns the table of metrics of all servers."""
    text = files("bottleneck.trace").joinpath("server_metrics.tsv").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(
        _MetricRow(
            server=row["server"],
            amount=cast("Amount", row["amount"]),
            metric=row["metric"],
            label=row["label"] or "",
            how=row["how"],
            scale=float(row["scale"]),
            per=row["per"] or "",
        )
        for row in rows
    )


def read_metrics(content: bytes, source: str) -> ServerMetrics:
    """Reads the amounts of one server from a page of metrics.

    Raises TraceError where it is no such page, or has no metric of a server that we know.
    """
    samples = parse_samples(content, source)
    by_name: dict[str, list[MetricSample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    servers = list(dict.fromkeys(row.server for row in metric_rows()))
    amounts = {server: _amounts(server, by_name) for server in servers}
    counts = {server: sum(amount.value is not None for amount in amounts[server]) for server in servers}
    server = max(servers, key=counts.__getitem__)
    if not counts[server]:
        raise TraceError(
            f"{source} has no metric of an inference server that we know",
            why=f"of {len(by_name)} metrics none is of {', '.join(servers)}",
            fix="pass what the server answers at /metrics; SGLang has it with --enable-metrics",
        )
    return ServerMetrics(server, source, amounts[server])


def parse_samples(content: bytes, source: str) -> list[MetricSample]:
    """Parses a page of metrics into its samples.

    Raises TraceError with the line that is wrong.
    """
    if len(content) > MOST_BYTES:
        raise TraceError(
            f"{source} is larger than {MOST_BYTES // 2**20} MiB, too large for a page of metrics",
            fix="pass what the server answers at /metrics",
        )
    samples: list[MetricSample] = []
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if len(samples) == _MOST_SAMPLES:
            raise TraceError(
                f"{source} has more than {counted(_MOST_SAMPLES, 'sample')}", fix="pass the page of one server"
            )
        samples.append(_sample(text, source, number))
    return samples


def _sample(text: str, source: str, number: int) -> MetricSample:
    match = _SAMPLE.fullmatch(text)
    if match is None:
        raise _wrong(source, number, f"no sample: {text[:_SHOWN]!r}")
    labels, at, rest = {}, 0, match["labels"] or ""
    while at < len(rest.rstrip()):
        label = _LABEL.match(rest, at)
        if label is None:
            raise _wrong(source, number, f"labels cannot be read: {rest[at : at + _SHOWN]!r}")
        labels[label["key"]] = label["text"]
        at = label.end()
    try:
        value = float(match["value"])
    except ValueError as exc:
        raise _wrong(source, number, f"no number: {match['value'][:_SHOWN]!r}") from exc
    return MetricSample(match["name"], labels, value)


def _wrong(source: str, number: int, why: str) -> TraceError:
    return TraceError(
        f"{source} is no page of metrics in the text format of Prometheus",
        why=f"line {number}: {why}",
        fix="save it anew: curl http://HOST:PORT/metrics > metrics.txt",
    )


def _amounts(server: str, by_name: Mapping[str, Sequence[MetricSample]]) -> tuple[ServerMetric, ...]:
    """Gives all amounts of the vocabulary.

    Each is by its first row that the page has.
    """
    return tuple(
        _amount(name, [row for row in metric_rows() if row.server == server and row.amount == name], by_name)
        for name in get_args(Amount)
    )


def _amount(name: Amount, rows: Sequence[_MetricRow], by_name: Mapping[str, Sequence[MetricSample]]) -> ServerMetric:
    if not rows:
        return ServerMetric(name, None, None, "no-metric-of-server")
    codes = []
    for row in rows:
        value, code = _value(row, by_name)
        if value is not None:
            return ServerMetric(name, value, row.metric)
        codes.append(code)
    # A metric that is there and cannot be used says more than one that is not.
    return ServerMetric(name, None, None, next((code for code in codes if code != _ABSENT), _ABSENT))


def _value(row: _MetricRow, by_name: Mapping[str, Sequence[MetricSample]]) -> tuple[float | None, str]:
    """Gives the value of a row, or null with the code of the reason."""
    if row.how == "mean":
        value = _ratio(_values(row, f"{row.metric}_sum", by_name), _values(row, f"{row.metric}_count", by_name))
        is_there = f"{row.metric}_count" in by_name
    elif row.per:
        value = _ratio(_values(row, row.metric, by_name), _values(row, row.per, by_name))
        is_there = row.metric in by_name
    else:
        values = _values(row, row.metric, by_name)
        value = (max(values) if row.how == "highest" else math.fsum(values)) if values else None
        is_there = row.metric in by_name
    if value is None:
        return None, "nothing-counted" if is_there else _ABSENT
    value *= row.scale
    highest = 1.0 if row.amount in _SHARES else 1e30
    return (value, "") if 0.0 <= value <= highest else (None, "out-of-range")


def _values(row: _MetricRow, name: str, by_name: Mapping[str, Sequence[MetricSample]]) -> list[float]:
    key, _, text = row.label.partition("=")
    chosen = (sample for sample in by_name.get(name, ()) if not key or sample.labels.get(key) == text)
    return [sample.value for sample in chosen if math.isfinite(sample.value)]


def _ratio(above: Sequence[float], below: Sequence[float]) -> float | None:
    total = math.fsum(below)
    return math.fsum(above) / total if above and total > 0 else None

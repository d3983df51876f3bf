from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from handlers.fleet.merged import merged
from handlers.metrics.metrics import Metrics


def exposition(requests: int) -> bytes:
    metrics = Metrics()
    for _ in range(requests):
        metrics.count_request()
    metrics.failure("validation")
    return metrics.render()


def samples(families: Iterable[Metric]) -> list[tuple[str, frozenset[tuple[str, str]], float]]:
    found = [each for family in families for each in family.samples]
    return [(each.name, frozenset(each.labels.items()), each.value) for each in found]


def test_every_sample_of_every_replica_is_there_and_says_whose_it_is() -> None:
    texts = {"one": exposition(3), "two": exposition(5)}
    expected = {
        (name, labels | {("replica", replica)}, value)
        for replica, text in texts.items()
        for name, labels, value in samples(text_string_to_metric_families(text.decode()))
    }
    told = samples(text_string_to_metric_families(merged(texts).decode()))
    assert set(told) == expected
    assert len(told) == len(expected)


def test_each_family_is_told_once() -> None:
    text = merged({"one": exposition(1), "two": exposition(1)}).decode()
    kinds = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds))
    assert kinds == [line for line in exposition(1).decode().splitlines() if line.startswith("# TYPE")]


def test_a_label_with_spaces_and_braces_stays_as_it_is() -> None:
    text = b'# HELP a b\n# TYPE a gauge\na{model="x {y} z"} 1\na 2\n'
    assert merged({"r": text}).decode().splitlines()[2:] == [
        'a{replica="r",model="x {y} z"} 1',
        'a{replica="r"} 2',
    ]


def test_without_replicas_there_is_nothing() -> None:
    assert merged({}) == b""

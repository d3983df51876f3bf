"""One exposition of all replicas' metrics: each sample says whose it is."""

from __future__ import annotations

from collections.abc import Mapping


def merged(texts: Mapping[str, bytes]) -> bytes:
    """Return the expositions of several replicas as one, with a label `replica` on each sample.

    All of them have the same families, as they come of one table; a family's samples stay together, as the
    format asks for (https://prometheus.io/docs/instrumenting/exposition_formats/).
    """
    families: dict[str, list[str]] = {}  # its comments -> its samples
    for replica, text in sorted(texts.items()):
        comments, samples = "", list[str]()
        for line in text.decode().splitlines():
            if line.startswith("# HELP"):
                comments = line
            elif line.startswith("#"):
                samples = families.setdefault(f"{comments}\n{line}", [])
            elif line:
                samples.append(_labelled(line, replica))
    return "".join(f"{line}\n" for told in families.items() for line in (told[0], *told[1])).encode()


def _labelled(sample: str, replica: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{replica="{replica}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{replica="{replica}"}} {value}'

"""Whether results were measured as `vje reproduce` measures, with the usual settings of each command.

Importable without torch.
"""

from collections.abc import Mapping
from typing import Any

from vje.evaluation.usual import KEPT_BYTES, USUAL_K, USUAL_PROBE
from vje.runs import RunFolder


def unusual(folder: RunFolder, file: str) -> str:
    """What of a result's settings, or of its images, is not as usual, in words; empty if nothing, or no result."""
    if not (folder.path / f"{file}.json").exists():
        return ""
    found = folder.read(file)
    if found.get("lacking"):
        return f"{found['lacking']:,} of the run's images missing"
    if file not in ("evaluation", "probe"):
        return ""
    pairs = _evaluation(found) if file == "evaluation" else _probe(found, _dimension(folder))
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return ", ".join(f"{name} {_said(value)} instead of {_said(usual)}" for name, (value, usual) in differing.items())


def _evaluation(found: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each setting as it was, and as it is usually."""
    return {"k": (found.get("knn", {}).get("k", USUAL_K), USUAL_K)}


def _probe(found: Mapping[str, Any], dimension: int) -> dict[str, tuple[Any, Any]]:
    """Each setting as it was, and as it is usually; batches of few images and crops of many are `vje probe`'s own."""
    rates = [tuple(rate["lr"] for rate in space.get("rates", ())) for space in found.get("spaces", {}).values()]
    protocol = {**USUAL_PROBE, **found, "lr": next(filter(None, rates), USUAL_PROBE["lr"])}
    usual, images = dict(USUAL_PROBE), found.get("images", {}).get("train", USUAL_PROBE["batch"])
    if images < usual["batch"] and images // 2 <= protocol["batch"]:
        usual["batch"] = protocol["batch"]
    if 4 * images * dimension > KEPT_BYTES:
        usual["augment"] = True
    return {name.replace("_", "-"): (protocol[name], value) for name, value in usual.items()}


def _dimension(folder: RunFolder) -> int:
    """Of the encoder's features, as far as the run says."""
    return int(folder.read("model").get("dim", 0)) if (folder.path / "model.json").exists() else 0


def _said(value: Any) -> str:
    """A setting in a sentence.

    >>> _said((0.1, 0.3)), _said(1e-4), _said(True)
    ('0.1/0.3', '0.0001', 'on')
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    return "/".join(f"{x:g}" for x in (value if isinstance(value, tuple) else (value,)))

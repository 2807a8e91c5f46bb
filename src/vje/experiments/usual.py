"""Whether results were measured as `vje reproduce` measures, with the usual settings of each command.

Importable without torch.
"""

from collections.abc import Mapping
from typing import Any

from vje.evaluation.usual import KEPT_BYTES, USUAL_K, USUAL_PROBE, probe_differences, said
from vje.runs import RunFolder


def unusual(folder: RunFolder, file: str) -> str:
    """What of a result's settings, or of its images, is not as usual, in words; empty if nothing, or no result."""
    found = folder.find(file)
    if not found:
        return ""
    if found.get("lacking"):
        return f"{found['lacking']:,} of the run's images missing"
    if found.get("foreign"):
        return f"{found['foreign']} that are not those of training"
    if file not in ("evaluation", "probe"):
        return ""
    differing = _evaluation(found) if file == "evaluation" else _probe(found, int(folder.find("model").get("dim", 0)))
    return ", ".join(
        f"{name.replace('_', '-')} {said(value)} instead of {said(usual)}" for name, (value, usual) in differing.items()
    )


def _evaluation(found: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    k = found.get("knn", {}).get("k", USUAL_K)
    return {"k": (k, USUAL_K)} if k != USUAL_K else {}


def _probe(found: Mapping[str, Any], dimension: int) -> dict[str, tuple[Any, Any]]:
    """Settings that were otherwise, but for what `vje probe` chooses itself: batches of few images, crops of many."""
    usual, images = dict(USUAL_PROBE), found.get("images", {}).get("train", USUAL_PROBE["batch"])
    batch = found.get("batch", usual["batch"])
    if images < usual["batch"] and images // 2 <= batch:
        usual["batch"] = batch
    if 4 * images * dimension > KEPT_BYTES:
        usual["augment"] = True
    space: Mapping[str, Any] = next(iter(found.get("spaces", {}).values()), {})  # the others had the same rates
    return probe_differences(found, space, usual)

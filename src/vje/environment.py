"""What a result was made with: versions, device, commit."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import vje

PACKAGES = ("torch", "torchvision", "triton", "numpy", "pillow", "scikit-learn")
CODE = ("src", "benchmarks")
"""Where a change can change what is measured; data and notes beside it cannot."""


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device and commit, as plain values."""
    return {
        "vje": vje.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """Commit of the source tree this package runs from, marked if its code was changed; or the variable VJE_COMMIT."""
    source = Path(vje.__file__).resolve().parents[2]
    if not (source / ".git").exists():
        return os.environ.get("VJE_COMMIT")
    git = ["git", "-C", str(source)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        status = [*git, "status", "--porcelain", "--", *CODE]
        changes = subprocess.run(status, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("VJE_COMMIT")
    return f"{head}{'-changed' if changes else ''}"


def shortened(commit: str) -> str:
    """A commit as people write it, marked as it was.

    >>> shortened("8d4e0a5c7b21f3e6a9d0"), shortened("8d4e0a5c7b21f3e6a9d0-changed")
    ('8d4e0a5c7b21', '8d4e0a5c7b21-changed')
    """
    name, *mark = commit.partition("-")
    return "".join([name[:12], *mark])


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

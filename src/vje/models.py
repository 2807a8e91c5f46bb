"""Saved models: weights in safetensors, and a description that says how to build the model and feed it."""

import math
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vje.errors import UserError, command
from vje.preprocessing import Preprocessing
from vje.runs import RunFolder, read_json, write_atomically, write_json

if TYPE_CHECKING:
    from vje.methods.method import Method
    from vje.methods.vje import VJE

FORMAT = "vje-model"


def load(path: str | Path, device: str = "cpu") -> "Method":
    """A model ready for inference: a :class:`vje.VJE`, or whatever method it was trained with.

    Args:
        path: a run folder (of an unfinished run, its newest checkpoint is taken, with a warning), or the
            ``.safetensors`` file that :meth:`Method.save` wrote.
        device: where to put it.
    """
    from vje.training import checkpoint

    file = Path(path)
    if not file.exists():
        raise UserError(f"no model at {path}: that path does not exist.")
    if file.is_dir():
        folder, file = file, file / "model.safetensors"
        if not file.exists():
            newest, _ = checkpoint.newest(RunFolder.open(folder).checkpoints)
            if newest is None:
                raise UserError(f"{folder} holds no model and no checkpoint{_remedy(RunFolder(folder))}")
            warnings.warn(f"{folder} is not finished; using its state after step {newest.info['step']}", stacklevel=2)
            prefix = "method."
            weights = {k.removeprefix(prefix): x for k, x in newest.tensors.items() if k.startswith(prefix)}
            return _assemble(read_json(file.with_suffix(".json")), weights, file, device)
    if file.suffix != ".safetensors":
        raise UserError(f"{path} is neither a run folder nor a .safetensors file.")
    description = file.with_suffix(".json")
    if not description.exists():
        raise UserError(
            f"{description} is missing, which says what model the weights of {file.name} are of: it is written beside "
            "them, so copy both."
        )
    return _assemble(read_json(description), _read_weights(file), file, device)


def _remedy(folder: RunFolder) -> str:
    """What to do about a run without weights, in words."""
    if (folder.path / "failed.json").is_file():
        return f": it {folder.progress()}. Start a new run with a lower --lr, or with --clip-norm 1."
    return f" yet: train it with `{command('vje', 'train', '--resume', folder.path)}`."


def describe(model: "Method") -> dict[str, Any]:
    """The content of ``model.json``."""
    architecture, preprocessing = model.encoder.architecture, model.preprocessing
    if architecture is None:
        raise UserError(
            "this model's encoder was built by hand, so its file could not be loaded again: build it with "
            "vje.build_encoder, or give Encoder an architecture."
        )
    return {
        "format": FORMAT,
        "method": model.name(),
        "dim": model.encoder.dim,
        "architecture": asdict(architecture),
        "hyperparameters": model.hyperparameters(),
        "preprocessing": None if preprocessing is None else preprocessing.as_dict(),
    }


def save_model(model: "Method", path: str | Path) -> Path:
    """Write a model's weights and description; see :meth:`Method.save`."""
    from vje.evaluation.features import weights_fingerprint

    if not Path(path).is_dir() and Path(path).suffix in (".pt", ".pth", ".ckpt", ".bin"):
        raise UserError(
            f"models are saved as safetensors: give a folder, or a name like {Path(path).stem}.safetensors."
        )
    file = Path(path) if str(path).endswith(".safetensors") else Path(path) / "model.safetensors"
    description = describe(model) | {"weights": weights_fingerprint(model)[:16]}  # what is measured of it says the same
    weights = {name: x.detach().cpu().contiguous().clone() for name, x in model.state_dict().items()}
    write_json(file.with_suffix(".json"), description)
    write_atomically(file, save(weights, metadata={"format": FORMAT}))  # last: a run that has it is finished
    return file


def start_from(model: "Method", other: "Method") -> list[str]:
    """Copy another model's weights where names and shapes agree; returns the names that were left as they were."""
    theirs, ours = other.state_dict(), model.state_dict()
    if type(other) is not type(model):  # heads of another method mean something else, whatever their names
        theirs = {name: x for name, x in theirs.items() if name.startswith("encoder.")}
    fitting = {name: x for name, x in theirs.items() if name in ours and ours[name].shape == x.shape}
    weights = [f"encoder.{name}" for name, _ in model.encoder.named_parameters()]
    missing = [name for name in weights if name not in fitting]
    if missing:
        raise UserError(
            f"--init: the model there has another encoder ({len(missing)} of {len(weights)} weights do not fit, such "
            f"as {missing[0]}); use the same --encoder, --channels and --small-images."
        )
    model.load_state_dict(fitting, strict=False)
    if model.target_encoder is not None and (other.target_encoder is None or type(other) is not type(model)):
        model.target_encoder.load_state_dict(model.encoder.state_dict())
    return sorted(ours.keys() - fitting.keys())


def _read_weights(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as content:
            if (content.metadata() or {}).get("format") != FORMAT:
                raise UserError(f"{file} is not a model of this program.")
            return {name: content.get_tensor(name) for name in content.keys()}
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{file} cannot be read as a model: it is cut short or foreign ({error}). If a run with checkpoints is "
            "around it, remove the file: `vje train --resume` writes it again."
        ) from None


def load_vje(path: str | Path, device: str = "cpu") -> "VJE":
    """:func:`load` for what only VJE can do."""
    from vje.methods.vje import VJE

    model = load(path, device)
    if not isinstance(model, VJE):
        raise UserError(
            f"{path} was trained with {model.name()}, and this is for VJE models: vje.load takes those of every method."
        )
    return model


def _assemble(description: dict[str, Any], weights: dict[str, Tensor], file: Path, device: str) -> "Method":
    if description.get("format") != FORMAT:
        raise UserError(f"{file.with_suffix('.json')} does not describe a model of this program.")
    try:
        model = _build(description)
    except UserError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:  # what constructors say
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{file.with_suffix('.json')} describes no model that can be built here ({reason}): it is damaged, or was "
            "written by another version of vje."
        ) from None
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"{file} does not fit its description: {str(error).splitlines()[-1].strip()}") from None
    try:
        return model.to(device).eval().requires_grad_(False)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the model cannot be put on device {device!r} ({reason}): choose another, such as 'cpu'."
        ) from None


def _build(description: dict[str, Any]) -> "Method":
    """The model that a description is of, with weights that mean nothing yet."""
    from vje.methods import find_method
    from vje.networks.encoders import build_encoder

    preprocessing = description["preprocessing"]
    settings = {name: math.inf if x == "inf" else x for name, x in description["hyperparameters"].items()}
    return find_method(description["method"])(
        build_encoder(**description["architecture"]),
        **settings,
        preprocessing=None if preprocessing is None else Preprocessing(**preprocessing),
    )

"""What `vje train` does once its arguments are known to be right: build, train, save."""

import os
import time
from typing import Any

import torch
from rich.console import Console

from vje.build import build_loop, resolve_device, set_determinism, stream_workers
from vje.build_data import Data, build_data
from vje.cli.console import TrainingDisplay
from vje.cli.live import watching
from vje.cli.monitor import KNNMonitor, TensorBoard
from vje.cli.subject import tell_strangers
from vje.config import Config, to_dict
from vje.data.workers import WorkerEnded, death_in_words
from vje.environment import environment as surroundings
from vje.errors import command
from vje.methods.method import Method
from vje.models import describe
from vje.runs import RunFolder
from vje.terminal import duration, say
from vje.training.alarms import NonFinite
from vje.training.distributed import world
from vje.training.loop import Callback, Loop, Stopped


def train(
    config: Config, folder: RunFolder, resuming: bool, environment: dict[str, Any], watch: int | None = None
) -> int:
    """Train and save the model; 130 if interrupted. Only the first of several processes writes and prints.

    With ``watch``, a live page is served at that port (0: any) while it trains.
    """
    began = time.monotonic()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = resolve_device(config.run.device, local_rank)
    set_determinism(config.run.deterministic)
    with world(device.type) as processes:
        console = Console(quiet=not processes.writes)
        recorded = (folder.find("data") if resuming else None) or None  # what died before it was written starts over
        if recorded is not None:
            known = folder.find("model").get("preprocessing") or {}  # the network is made for them, whatever they are
            recorded |= {"channels": known.get("channels")}
        if recorded is not None and device.type == "cpu":
            first = folder.read("environment")
            if first.get("processes", 1) == processes.size:  # sums depend on how they are split
                torch.set_num_threads(first["threads"])
        if processes.writes and not resuming:
            folder.write("config", to_dict(config))  # first of all: what is killed from here on can be resumed
        try:
            data = build_data(config, recorded)
            begun = resuming and any(folder.checkpoints.glob("*.safetensors"))
            known = folder.find("model").get("architecture") if begun and config.encoder.init else None
            loop = build_loop(config, data, device, processes, folder, known=known)
        except BaseException:  # Ctrl-C too
            if processes.writes and not resuming:
                folder.config_file.unlink()  # nothing was begun, and the folder is free again
            raise
        model = loop.step.method
        if processes.writes:
            folder.model_file.unlink(missing_ok=True)  # of a finished run that is extended: it is no longer that
            if resuming:
                folder.write("config", to_dict(config))  # with what was changed, now that it is known to fit
            (folder.path / "failed.json").unlink(missing_ok=True)
            now = environment | surroundings(device) | {"processes": processes.size}
            folder.write("environment", _with_history(folder, now) if recorded is not None else now)
            folder.write("data", data.record())
            folder.write("model", describe(model))
        complaints = loop.resume() if resuming else []
        _introduce(console, config, folder, data, device, loop, complaints)
        loop.callbacks = _callbacks(config, data, model, loop, folder)
        with watching(folder, watch if processes.writes else None, console, config, data, loop) as watchers:
            loop.callbacks = [*loop.callbacks, *watchers]
            return _run(loop, model, console, folder, config, began)


def _run(loop: Loop, model: Method, console: Console, folder: RunFolder, config: Config, began: float) -> int:
    again = command("vje", "train", "--resume", folder.path)
    try:
        _warm_up(loop, console)
        say(console, f"first step after {time.monotonic() - began:.1f} s", "dim")
        total = config.optimizer.epochs * loop.batches.steps_per_epoch
        with TrainingDisplay(console, total, loop.steps_done, model.quantities) as display:
            loop.callbacks = [*loop.callbacks, display] if loop.world.writes else []
            with death_in_words():
                loop()
    except NonFinite as error:
        if loop.world.writes:
            folder.write("failed", {"step": int(loop.step.state.bad_step), "message": str(error)})
        raise
    except KeyboardInterrupt:  # before the first step, or a second one: the first is a request to stop
        say(console, f"Interrupted. Go on with: {again}")
        raise
    except WorkerEnded as ended:
        raise WorkerEnded(f"{ended} To go on from the last checkpoint: {again}") from None
    except Stopped as stop:
        say(console, f"Stopped after step {stop.step}; nothing is lost. Go on with: {again}")
        return 130
    if loop.world.writes:
        model.eval().save(folder.path)
        last = (folder.metrics() or [{}])[-1]  # there is none if somebody emptied the file
        knn = "".join(f", k-NN {name} {value:.2f}%" for name, value in last.get("knn", {}).items())
        say(console, f"Done after {duration(last.get('elapsed', 0))} of training{knn}. Model: {folder.model_file}")
        say(console, f"Next: {command('vje', 'evaluate', folder.path)}")
    return 0


def _warm_up(loop: Loop, console: Console) -> None:
    """Compile the step; where that fails, say so and let it be slow."""
    problem = loop.step.warm_up()
    if problem:
        text = f"The step could not be compiled, and training is slower for it ({problem})."
        say(console, text, "yellow")
        if loop.world.writes and loop.run is not None:
            loop.run.append(loop.run.warnings_file, {"step": loop.steps_done, "text": text})


def _with_history(folder: RunFolder, now: dict[str, Any]) -> dict[str, Any]:
    """The environment a run was started in, and each it was resumed in."""
    first = folder.read("environment")
    return first | {"resumed": [*first.get("resumed", []), now]}


def _callbacks(config: Config, data: Data, model: Method, loop: Loop, folder: RunFolder) -> list[Callback]:
    if not loop.world.writes:
        return []
    autocast, epochs = loop.step.options.autocast, config.optimizer.epochs
    callbacks: list[Callback] = [KNNMonitor(model, data, config.run.knn_every, epochs, autocast, config.data.workers)]
    if config.run.tensorboard:
        callbacks.append(TensorBoard(folder.path / "tensorboard"))
    return callbacks


def _introduce(
    console: Console,
    config: Config,
    folder: RunFolder,
    data: Data,
    device: torch.device,
    loop: Loop,
    complaints: list[str],
) -> None:
    """Say what is about to happen, and what had to be adjusted."""
    instead = "The checkpoint before it is used." if loop.steps_done else "There is none before it: starting over."
    for complaint in complaints:
        say(console, f"{complaint} {instead}", "yellow")
    options = loop.step.options
    how = [word for word, on in (("bfloat16", options.autocast), ("compiled", options.compile)) if on]
    how += ["one CUDA graph"] if options.capture else []
    name = config.recipe if config.recipe.startswith(config.data.data) else f"{config.recipe} on {config.data.data}"
    kept = "on the device" if data.resident is not None else f"streamed by {stream_workers(config)} workers"
    say(
        console,
        f"{name}: {data.train_images:,} images ({kept}), {len(data.splits.test):,} held out for "
        f"evaluation; {', '.join([f'{config.encoder.encoder} on {device}', *how])}; run folder {folder.path}",
    )
    if data.skipped:
        (name, reason), count = data.skipped[0], len(data.skipped)
        files = "1 unreadable file is" if count == 1 else f"{count:,} unreadable files are"
        say(console, f"{files} left out and not counted, such as {name} ({reason}).", "yellow")
    if config.optimizer.accumulate > 1 and loop.step.method.across_images:
        images = config.optimizer.batch // config.optimizer.accumulate
        say(
            console, f"--accumulate: the loss of {config.method} looks across images, now {images} at a time.", "yellow"
        )
    if config.run.knn_every and loop.world.writes:
        tell_strangers(data.splits.bank, data.splits.test)
    asked, used, epochs = config.optimizer.warmup_epochs, config.optimizer.warmup, config.optimizer.span
    if used != asked:
        say(console, f"A warm-up of {asked:g} epochs does not suit a run of {epochs}: using {used:g}.", "yellow")
    if loop.steps_done:
        say(console, f"Resuming after step {loop.steps_done}.")

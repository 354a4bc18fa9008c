"""The commands and their options. Each command has a module of its own, imported when the command is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from rlx.runtime.session import Precision as _Mode
else:
    _Mode = str  # which every version of typer reads

app = typer.Typer(
    name="rlx",
    help="Compiles machine-learning models for this machine and runs them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Command(TyperCommand):
    """A command whose help says which devices this machine has. They are looked up when it is asked for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for option in self.params:
            if option.name in ("device", "devices", "only") and hasattr(option, "help"):
                option.help = f"{option.help} Here: {', '.join(_devices_here())}."
        super().format_help(ctx, formatter)


def _devices_here() -> list[str]:
    from rlx.device import registry

    return list(dict.fromkeys(device.kind for device in registry.available_devices()))


def _complete_device(incomplete: str) -> list[str]:
    """What a shell offers for a device, or for the last of several by comma."""
    *before, last = incomplete.split(",")
    names = ["auto", *_devices_here()] if not before else _devices_here()
    return [",".join([*before, name]) for name in names if name.startswith(last)]


def _complete_peer(incomplete: str) -> list[str]:
    from rlx.cli.baselines import PEERS

    *before, last = incomplete.split(",")
    return [",".join([*before, name]) for name in PEERS if name != "rlx" and name.startswith(last)]


def _check_precision(mode: str) -> str:
    if mode not in PRECISIONS:  # of a slip its own module knows more
        from rlx.errors import OptionError
        from rlx.passes.precision import policy_of

        try:
            policy_of(mode)
        except OptionError as error:
            raise typer.BadParameter(str(error).partition("] ")[2], param_hint="--precision") from None
    return mode


def _widen(requested: bool) -> None:
    from rlx.cli.console import widen

    widen(requested)


PRECISIONS = ("f32", "f32_fast", "f16", "bf16", "int8", "f8")
Model = Annotated[Path, typer.Argument(help="An ONNX, GGUF or rlx file, or a folder with config.json and weights.")]
Inputs = Annotated[
    list[str],
    typer.Option("--input", "-i", help="NAME=FILE (.npy, .npz, .json) or NAME=random; the rest is made up."),
]
Dims = Annotated[list[str], typer.Option("--dim", help="Size of a named dim, such as batch=2; the rest is made up.")]
Device = Annotated[
    str, typer.Option("--device", "-d", help="Device to run on, or auto.", autocompletion=_complete_device)
]
Precision = Annotated[
    _Mode,
    typer.Option(
        "--precision",
        callback=_check_precision,
        autocompletion=lambda incomplete: [mode for mode in PRECISIONS if mode.startswith(incomplete)],
        help="What products, convolutions and attention of f32 take: f32, f32_fast, f16 or bf16; int8 and f8 are of "
        "those with weights.",
    ),
]
Calibration = Annotated[
    list[Path],
    typer.Option(
        "--calibration",
        help="With --precision int8 or f8: a .npz file with the inputs of a typical run; may be given several times.",
    ),
]
Threads = Annotated[int, typer.Option("--threads", "-t", min=0, help="CPU threads; 0 uses all that are allowed.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of random inputs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Wide = Annotated[bool, typer.Option("--wide", "-w", callback=_widen, help="Do not cut names to the terminal's width.")]


def _version(requested: bool) -> None:
    if requested:
        import rlx

        print(f"rlx {rlx.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(cls=_Command)
def run(
    model: Model,
    input: Inputs = [],  # noqa: B006  # typer reads it, nobody writes to it
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the outputs, one .npy file each.")
    ] = None,
    device: Device = "auto",
    dim: Dims = [],  # noqa: B006
    threads: Threads = 0,
    precision: Precision = "f32",
    calibration: Calibration = [],  # noqa: B006
    seed: Seed = 0,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Text that a decoder goes on with; what it says is streamed.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a message, and the answer is generated.")] = False,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", min=1, help="Tokens to generate at most.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 takes the likeliest tokens; others are drawn by --seed.")
    ] = None,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Runs a model once and shows its outputs, or what a decoder says after a prompt."""
    if prompt is not None:
        if calibration:
            raise typer.BadParameter("expected none with --prompt", param_hint="--calibration")
        from rlx.cli.generate import generate_text

        generate_text(model, prompt, chat, max_new_tokens, temperature, device, threads, precision, seed, json)
        return
    from rlx.cli.run import run_model

    run_model(model, input, output, device, dim, threads, precision, calibration, seed, json)


@app.command(cls=_Command)
def convert(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="Path of the result, such as x.mlpackage.")],
    device: Annotated[str, typer.Option("--device", "-d", help="Device to convert for.")] = "ane",
    dim: Dims = [],  # noqa: B006
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Converts a model to the format of another runtime, for programs without rlx: for `ane` to Core ML."""
    from rlx.cli.convert import convert_model

    convert_model(model, output, device, dim, json)


@app.command(cls=_Command)
def inspect(
    model: Model,
    dim: Dims = [],  # noqa: B006
    html: Annotated[Path | None, typer.Option(help="Draw the graph as an HTML page in this file.")] = None,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Shows what is in a model: inputs, outputs, ops, parameters, memory, flops."""
    from rlx.cli.inspect import inspect_model

    inspect_model(model, dim, json, html)


@app.command(cls=_Command)
def check(
    model: Model,
    input: Inputs = [],  # noqa: B006
    device: Device = "auto",
    dim: Dims = [],  # noqa: B006
    precision: Precision = "f32",
    calibration: Calibration = [],  # noqa: B006
    rtol: Annotated[
        float | None, typer.Option(min=0, help="Relative tolerance; 1e-3 if not given, more with --precision.")
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Absolute tolerance, as a fraction of the largest magnitude; 1e-4 if not given, or more likewise.",
        ),
    ] = None,
    seed: Seed = 0,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Compares a compiled model with the reference, node by node, and names the first node that differs."""
    from rlx.cli.check import check_model

    check_model(model, input, device, dim, precision, calibration, rtol, atol, seed, json)


@app.command(cls=_Command)
def bench(
    model: Model,
    vs: Annotated[
        str,
        typer.Option(
            help="Runtimes to compare with, comma-separated: onnxruntime, openvino, torch, torch.compile.",
            autocompletion=_complete_peer,
        ),
    ] = "",
    input: Inputs = [],  # noqa: B006
    device: Device = "auto",
    devices: Annotated[
        str,
        typer.Option(
            help="Devices to time rlx on, comma-separated, or `all`; instead of --vs.", autocompletion=_complete_device
        ),
    ] = "",
    dim: Dims = [],  # noqa: B006
    threads: Threads = 0,
    precision: Precision = "f32",
    calibration: Calibration = [],  # noqa: B006
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to measure each.")] = 3.0,
    seed: Seed = 0,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Times a model, alternately with other runtimes if requested: median, spread, ratios."""
    if devices:
        from rlx.cli.devices import bench_devices

        bench_devices(model, input, devices, dim, threads, precision, calibration, seed, json)
        return
    from rlx.cli.bench import bench_model

    bench_model(model, vs, input, device, dim, threads, precision, calibration, seconds, seed, json)


@app.command(cls=_Command)
def devices(
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure every device now.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Delete calibrations and measured times.")] = False,
    only: Annotated[str, typer.Option(help="Devices, comma-separated; default: all available.")] = "",
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Lists the devices, why others are missing, and measured rates."""
    from rlx.cli.devices import forget_devices, show_devices

    if forget:
        forget_devices(only)
    show_devices(calibrate, only, json)


@app.command(cls=_Command)
def explain(
    model: Model,
    input: Inputs = [],  # noqa: B006
    dim: Dims = [],  # noqa: B006
    only: Annotated[
        str, typer.Option("--devices", help="Devices to compare, comma-separated; default: all that the policy allows.")
    ] = "",
    precision: Precision = "f32",
    calibration: Calibration = [],  # noqa: B006
    runs: Annotated[float, typer.Option(min=1, help="Runs over which compile time is spread.")] = 1000.0,
    html: Annotated[Path | None, typer.Option(help="Write the explanation as an HTML page to this file.")] = None,
    seed: Seed = 0,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Predicts the time of a model on each device, and explains which is chosen."""
    from rlx.cli.devices import explain_model

    explain_model(model, input, dim, only, precision, calibration, runs, html, seed, json)


@app.command(cls=_Command)
def profile(
    model: Model,
    input: Inputs = [],  # noqa: B006
    device: Device = "auto",
    dim: Dims = [],  # noqa: B006
    threads: Threads = 0,
    precision: Precision = "f32",
    calibration: Calibration = [],  # noqa: B006
    runs: Annotated[int, typer.Option(min=1, help="Number of runs; the fastest is shown.")] = 5,
    top: Annotated[int, typer.Option(min=1, help="Number of kernels to show.")] = 20,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace to this file, which chrome://tracing and Perfetto open.")
    ] = None,
    nan: Annotated[bool, typer.Option("--check-nan", help="Name the first node that produces a NaN.")] = False,
    against: Annotated[
        bool, typer.Option("--against-prediction", help="Show predicted times too, and the worst ratios.")
    ] = False,
    seed: Seed = 0,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Shows the time of each kernel of a model."""
    from rlx.cli.profile import profile_model

    profile_model(
        model, input, device, dim, threads, precision, calibration, runs, top, trace, nan, seed, json, against
    )


@app.command(cls=_Command)
def tune(
    model: Annotated[Path | None, typer.Argument(help="As for other commands; none with --forget.")] = None,
    input: Inputs = [],  # noqa: B006
    dim: Dims = [],  # noqa: B006
    threads: Threads = 0,
    precision: Precision = "f32",
    calibration: Calibration = [],  # noqa: B006
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to search. Ctrl-C ends it sooner.")] = 20.0,
    forget: Annotated[bool, typer.Option("--forget", help="Drop all schedules that were found.")] = False,
    seed: Seed = 0,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Searches for faster schedules of a model's kernels on the CPU, and keeps them for all models."""
    from rlx.cli.tune import forget_schedules, tune_model

    if forget == (model is not None):
        raise typer.BadParameter("expected a model to tune, or --forget")
    if model is None:
        forget_schedules(json)
    else:
        tune_model(model, input, dim, threads, precision, calibration, seconds, seed, json)


@app.command(cls=_Command)
def compile(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder; other models may be in it.")],
    input: Inputs = [],  # noqa: B006
    device: Device = "auto",
    dim: Dims = [],  # noqa: B006
    threads: Threads = 0,
    precision: Precision = "f32",
    calibration: Calibration = [],  # noqa: B006
    seed: Seed = 0,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Makes code of a model in a folder, from which programs on such a machine start at once (RLX_CACHE_DIR)."""
    from rlx.cli.compile import compile_model

    compile_model(model, output, input, device, dim, threads, precision, calibration, seed, json)


@app.command(cls=_Command)
def demo(
    sentences: Annotated[list[str] | None, typer.Argument(help="Sentences to compare.")] = None,
    device: Device = "auto",
    threads: Threads = 0,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Embeds sentences with MiniLM and shows their similarities."""
    from rlx.cli.demo import run_demo

    run_demo(sentences or [], device, threads, json)


@app.command(cls=_Command)
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete its contents.")] = False,
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Shows where compiled programs are kept and how much space they take."""
    from rlx.cli.cache import show_cache

    show_cache(clear, json)


@app.command(cls=_Command)
def env(json: Json = False, wide: Wide = False) -> None:
    """Shows what a report of a fault needs: versions, processor, devices, flags, cache."""
    from rlx.cli.env import show_env

    show_env(json)

"""Models as users see them: `load` opens a file of any format that rlx reads."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from rlx import collector, interrupt, locks, mapped
from rlx.arguments import checked, methods_checked
from rlx.elsewhere import OF_MODELS
from rlx.errors import CapabilityError, ClosedError, InputError
from rlx.interrupt import CancelToken
from rlx.ir.literal import Array
from rlx.ir.names import RANDOM_STATE
from rlx.records import dataclass
from rlx.runtime import stored
from rlx.runtime.compiled import CompiledGraph
from rlx.runtime.interface import Interface, Port
from rlx.runtime.program import Inputs
from rlx.runtime.session import Precision, Session
from rlx.runtime.signature import names_of

if TYPE_CHECKING:
    from rlx.device.device import Device
    from rlx.frontends.registry import Format, Imported, Source
    from rlx.ir.graph import Graph
    from rlx.ir.type import TensorType
    from rlx.models.conversation import Conversation
    from rlx.models.generation import Decoder, Piece, Prompt
    from rlx.models.sampling import Choices
    from rlx.runtime.chain import DeviceChain
    from rlx.runtime.graph_devices import Explanation, GraphDevices
    from rlx.runtime.quantised import Calibration
    from rlx.runtime.tuning import Tuning

T = TypeVar("T")


def formats() -> tuple[Format, ...]:
    """In the order in which they are asked; the last takes whatever no other wants, and says what is wrong with it."""
    from rlx.frontends import onnx, saved
    from rlx.models import registry as families

    return saved.FORMAT, families.FORMAT, families.GGUF, onnx.FORMAT


def read(source: Source, mmap: bool = False, **options: Any) -> Imported:
    """The program in a file, in bytes or in a folder of any known format; see `frontends.registry.read`."""
    import rlx.ops  # noqa: F401  # methods of values call ops by name
    from rlx.frontends import registry

    with collector.paused():
        return registry.read(source, formats(), mmap, **options)


@dataclass(frozen=True)
class _About:
    """What a model is beside its program. `inputs` are the names of the graph's inputs that callers bring."""

    name: str
    format: str
    notes: Mapping[str, str]
    sequences: Mapping[str, Sequence[str]]
    inputs: Sequence[str]
    outputs: Sequence[str]

    @staticmethod
    def of(imported: Imported) -> _About:
        graph = imported.graph
        inputs = [value.name for value in graph.brought if value.name != RANDOM_STATE]
        outputs = imported.outputs if imported.sequences else list(graph.results)
        return _About(graph.name, imported.format, imported.notes, imported.sequences, inputs, outputs)


@methods_checked(but=("run",))
class Model:
    """A model. Its program is compiled for a device at its first use.

    Call it with arrays by name or by position; it returns a dict of its outputs.

    A model with a chain of devices goes on with the next one if its device fails in a call or in `run`: a driver's
    error, a lost device, no memory. What stays between runs is as before that run, and a warning on the logger `rlx`
    tells it. Errors of the caller are raised at once.
    """

    _chain: DeviceChain | None = None
    _imported: Imported | None = None
    _decoder: Decoder | None = None
    _record: stored.Record | None = None
    _place: stored.Spot | None = None
    _read: Callable[[], Imported] | None = None

    def __init__(self, imported: Imported, session: Session, place: stored.Spot | None = None) -> None:
        """`place` is that of the model's record in the cache on disk, which is written when the model is compiled."""
        self._take(_About.of(imported), session)
        self._imported = imported
        self._place = place

    @staticmethod
    def starting(record: stored.Record, session: Session, read: Callable[[], Imported]) -> Model:
        """A model whose program is in the cache on disk; the model itself is read when something needs it."""
        model = Model.__new__(Model)
        model._take(_About(**record.about), session)
        model._record, model._read = record, read
        return model

    def _take(self, about: _About, session: Session) -> None:
        self.format = about.format
        self.notes = dict(about.notes)
        self._about = about
        self._sequences = {name: tuple(parts) for name, parts in about.sequences.items()}
        self._outputs = list(about.outputs)
        self._session = session
        self._compiled: CompiledGraph | None = None
        self._devices: GraphDevices | None = None
        self._closed = False
        self._lock = locks.rlock()

    if not TYPE_CHECKING:  # which knows all attributes, and would take any

        def __getattr__(self, name: str) -> Any:
            meant = OF_MODELS.get(name)
            said = f"'Model' object has no attribute {name!r}{f': {meant}' if meant else ''}"
            raise AttributeError(said, name=name, obj=self)

    @property
    def graph(self) -> Graph:
        """The program. Raises ModelError if it is read only now, and its files were written to since."""
        with self._lock:
            if self._imported is None:
                assert self._read is not None and self._record is not None
                imported = self._read()
                self._record.check_unchanged(imported.files)
                self._imported, self._read = imported, None
            return self._imported.graph

    @property
    def compiled(self) -> CompiledGraph:
        """The compiled program; with a chain of devices, that of the device that the next call uses. Raises
        UnsupportedOp, DeviceUnavailable, CompileError, FallbackError when first asked for."""
        return self._compiled or self._compile(None)

    @property
    def _current(self) -> CompiledGraph | None:
        """The compiled program, if there is one."""
        return self._compiled if self._chain is None else self._chain.current

    def _compile(self, inputs: Inputs | None) -> CompiledGraph:
        with self._lock:
            if self._closed:
                raise ClosedError(f"[run] expected a model that is open, got {self._about.name!r}, which was closed")
            if self._compiled is None and self._record is not None:
                self._compiled = self._record.open(self._session.options, lambda: self._session.meant(self.graph))
                self._record = replace(self._record, weights=self._record.weights.unread())  # the program has them
            if self._compiled is None:
                self._chain = self._chain or self._session.chain(self.graph)
                if self._chain is not None:
                    return self._chain.compiled
                self._compiled = self._session.compile(self.graph, inputs)
                stored.expect_nothing()
                self._keep(self._compiled)
            return self._compiled

    def _run(self, inputs: Inputs | None, attempt: Callable[[CompiledGraph], T]) -> T:
        """A run by the program, which the first one compiles for these inputs, or by the first device of the chain that
        succeeds."""
        program = self._compiled or self._compile(inputs)
        return attempt(program) if self._chain is None else self._chain.run(attempt)

    def _keep(self, compiled: CompiledGraph) -> None:
        """Records how the program starts the next time; beside the first run, if that does not wait for code either."""
        if not self._place or self._imported is None or not self._session.chooses(compiled.device):
            return
        what = (self._place, asdict(self._about), self._imported.files, compiled)
        if compiled.executable.is_pending:
            threading.Thread(target=stored.keep, args=what, name="rlx-record").start()
        else:
            stored.keep(*what)

    def __call__(self, /, *positional: Any, **named: Any) -> dict[str, Any]:
        """Runs the model and returns outputs by name. Accepts inputs, `timeout` and `cancel` as `CompiledGraph.run`
        does. Sequences are lists of arrays.

        The first call chooses the device, at the sizes of its inputs.
        """
        limits = interrupt.taken_from(named, self.input_names)
        if self._sequences:
            positional, named = tuple(self._spread(positional)), self._spread_named(named)
        inputs = named if named and not positional else positional or None
        outputs = self._run(inputs, lambda program: program(*positional, **named, **limits))
        return self._packed(outputs) if self._sequences else outputs

    def run(
        self,
        inputs: Inputs = (),
        outputs: Iterable[str] | None = None,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> list[Any]:
        """Like `CompiledGraph.run`. Sequences are lists of arrays."""
        if not self._sequences:
            return self._run(inputs, lambda program: program.run(inputs, outputs, timeout, cancel))
        flat = self._spread_named(inputs) if isinstance(inputs, Mapping) else self._spread(inputs)
        results = self._run(flat, lambda program: program.run(flat, None, timeout, cancel))
        packed = self._packed(dict(zip(self.compiled.output_names, results)))
        return [packed[i] for i in (self._outputs[n] for n in names_of(outputs or self._outputs, self._outputs))]

    def run_parts(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Runs the model with inputs and outputs by their names in the graph: elements of sequences each have one."""
        return self._run(inputs, lambda program: dict(zip(program.output_names, program.run(inputs))))

    @property
    def decoder(self) -> Decoder:
        """What generates, of models that do. Raises CapabilityError for others."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"[run] expected a model that is open, got {self._about.name!r}, which was closed")
            if self._decoder is None:
                arrays = self.graph.data  # which reads the model, if it has only been started
                generator = None if self._imported is None else self._imported.generator
                if generator is None:
                    from rlx.models import registry as families

                    expected = f"a decoder, of a GGUF file or a folder of {', '.join(families.DECODERS)}"
                    raise CapabilityError(f"[generate] expected {expected}, got {self._about.name!r} ({self.format})")
                self._decoder = generator.decoder(self._session, arrays)
            return self._decoder

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        max_new_tokens: int | None = None,
        *,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        **choices: Unpack[Choices],
    ) -> Any:
        """What a decoder says after a prompt: a `Generation`, with ids and text; of several prompts of equal length,
        which are computed together, a list of them.

        prompt    a text, ids of tokens, the messages of a chat ({"role": …, "content": …}), or a list of several
        max_new_tokens   tokens at most; 256 if neither this nor generation_config.json says it
        timeout, cancel  as in `run`, for the whole call
        choices   temperature, top_k, top_p, min_p, repetition_penalty, seed, stop, eos_token_id: as `Choices` explains.
                  What is not said is as generation_config.json has it; without both, the likeliest token is taken

        Raises InputError, also for more tokens than a context of the model holds, CapabilityError for models that
        generate nothing, MissingExtra for text without a tokenizer's package, RunTimeout, RunCancelled.
        """
        return self.decoder.generate(prompt, max_new_tokens, timeout, cancel, choices)

    def stream(
        self,
        prompt: Prompt,
        max_new_tokens: int | None = None,
        *,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        **choices: Unpack[Choices],
    ) -> Iterator[Piece]:
        """The same for one prompt, token by token: each piece is a token, and the text that is certain since it
        came."""
        return self.decoder.stream(prompt, max_new_tokens, timeout, cancel, choices)

    def conversation(self, path: str | os.PathLike[str] | None = None) -> Conversation:
        """A context that stays: `generate`, `stream` and `say` go on with what was said. `path` is of one that was
        saved."""
        from rlx.models.conversation import Conversation

        conversation = Conversation(self.decoder)
        if path is not None:
            conversation.load(path)
        return conversation

    def explain(self, inputs: Inputs | None = None) -> Explanation:
        """Predicts the time on each device for these inputs, and explains which is chosen."""
        if self._chain is not None:
            return self._chain.devices.explain(inputs)
        if self._devices is None:
            self._devices = self._session.devices(self.graph)
        return self._devices.explain(inputs)

    def tune(self, inputs: Inputs, seconds: float = 20.0) -> Tuning:
        """Searches for faster schedules of the kernels on the CPU for these inputs, as `Session.tune` does. Programs
        that are compiled from then on use them: this one, when the model is loaded again."""
        return self._session.tune(self.graph, inputs, seconds)

    def _spread_named(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs with the elements of sequences by their names in the graph. Raises InputError."""
        flat: dict[str, Any] = {}
        for name, value in named.items():
            parts = self._sequences.get(name)
            if parts is None:
                flat[name] = value
                continue
            if not isinstance(value, (list, tuple)) or len(value) != len(parts):
                actual = f"{len(value)}" if isinstance(value, (list, tuple)) else type(value).__name__
                raise InputError(f"[run] expected a list of {len(parts)} arrays as input {name!r}, got {actual}")
            flat.update(zip(parts, value))
        return flat

    def _spread(self, values: Sequence[Any]) -> list[Any]:
        return [part for each in values for part in (each if isinstance(each, (list, tuple)) else [each])]

    def _packed(self, flat: Mapping[str, Array]) -> dict[str, Any]:
        parts = self._sequences
        return {n: [flat[p] for p in parts[n]] if n in parts else flat[n] for n in self._outputs}

    def seed(self, seed: int | None) -> None:
        """As `CompiledGraph.seed`."""
        self.compiled.seed(seed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes program and weights to one file that `load` opens. Raises OSError, and ModelError for a name that
        belongs to another format."""
        from rlx.frontends import foreign
        from rlx.ir.serial import save_graph

        foreign.check_suffix(Path(path))
        save_graph(self.graph, path)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, sequences under their own."""
        owners = {part: name for name, parts in self._sequences.items() for part in parts}
        return tuple(dict.fromkeys(owners.get(name, name) for name in self._about.inputs))

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(self._outputs)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs with their dtypes and dims. An input with a handle may be left out of a run."""
        return self._ports(self.input_names, self._interface.inputs)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs with their dtypes and dims."""
        return self._ports(self._outputs, self._interface.outputs)

    @property
    def _interface(self) -> Interface:
        """That of the compiled program if there is one, for it is known before the graph is read."""
        if self._compiled is not None and not self._compiled.closed:
            return self._compiled.program.interface
        return Interface.of(self.graph)

    def _ports(self, names: Iterable[str], types: Mapping[str, TensorType]) -> tuple[Port, ...]:
        parts = self._sequences
        return tuple(
            Port(name, tuple(types[part] for part in parts[name]) if name in parts else types[name]) for name in names
        )

    @property
    def device(self) -> str:
        """The device that the model is compiled for, or that was requested."""
        return self._session.device if self._current is None else self._current.device

    def describe(self) -> dict[str, Any]:
        """Like `CompiledGraph.describe`, with facts about the file."""
        return {"format": self.format, "notes": self.notes, **self.compiled.describe()}

    def close(self) -> None:
        """Releases the compiled program, as `CompiledGraph.close` does; later runs raise ClosedError."""
        self._closed = True
        with self._lock:
            compiled, self._devices = self._current, None
            decoder, self._decoder = self._decoder, None
        if decoder is not None:
            decoder.close()
        if compiled is not None:
            compiled.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Models can be pickled. The program is compiled again, for the same device, and has the rest of its chain.
        Raises ModelError if the file was written to."""
        mapped.check(self.graph.data.values())
        absent = dict.fromkeys(("_lock", "_devices", "_record", "_place", "_chain", "_decoder"))
        return {**vars(self), **absent, "_compiled": self._current}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = locks.rlock()
        if self._compiled is not None:
            self._chain = self._session.chain(self.graph, self._compiled)
            self._compiled = None if self._chain is not None else self._compiled

    def __repr__(self) -> str:
        state = "not compiled yet" if self._current is None else "compiled"
        return f"<Model {self._about.name!r} ({self.format}) on {self.device}, {state}>"

    def _repr_html_(self) -> str:
        """A picture of its program, for notebooks."""
        return self.graph._repr_html_()


@checked
def load(
    source: Source,
    device: str | Sequence[str | Device] = "auto",
    *,
    disable: str | Iterable[str] = (),
    threads: int | None = None,
    isa: str | None = None,
    cache: bool | None = None,
    check_indices: bool | None = None,
    compile: Literal["meanwhile", "before"] | None = None,
    expert_budget: int | None = None,
    precision: Precision = "f32",
    calibration: Calibration | None = None,
    mmap: bool = False,
    **reader: Any,
) -> Model:
    """Opens a model: an ONNX file (a path, its bytes, an open file, an `onnx.ModelProto`), a GGUF file with a decoder,
    a file that rlx saved, or a folder of Hugging Face with an encoder or a decoder. Of other formats the error says
    what they are, and what converts them.

    `device` is a name, `auto`, or a list of devices: a chain, in which the model goes on if a device fails in a run.
    The options of `Session` and `read` are accepted; all others go to the reader of the format: `shapes`, `values`,
    `keep_subnormals` of ONNX files, `token_types` and `keep_dtype` of folders, `keep_dtype` of GGUF files. Nothing is
    compiled before the first use. Raises ModelError, UnsupportedOp, DeviceUnavailable.
    """
    session = Session(
        device, disable=disable, threads=threads, isa=isa, cache=cache, check_indices=check_indices, compile=compile,
        expert_budget=expert_budget, precision=precision, calibration=calibration,
    )  # fmt: skip
    of = None
    if not mmap and isinstance(source, (str, os.PathLike)):
        of = _place_of(Path(source), session, reader)
        record = stored.find(of) if of else None
        if record is not None and _still_chosen(session):
            return Model.starting(record, session, partial(read, os.path.abspath(source), mmap, **reader))
        if of is not None and session.options.tiered:
            stored.expect_compile(Path(source))
    return Model(read(source, mmap, **reader), session, of)


def _still_chosen(session: Session) -> bool:
    """Whether the session would choose the device of the stored programs: looking at devices in this process may have
    found out what no file shows."""
    return session.device != "auto" or "rlx.device.choice" not in sys.modules or session.chooses(stored.DEVICE)


def _place_of(path: Path, session: Session, reader: Mapping[str, Any]) -> stored.Spot | None:
    if session.devices_in_turn or not path.is_file():
        return None
    return stored.place(path, session.device, session.options, reader)

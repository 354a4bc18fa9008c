"""Attention of few queries on matrix units, of which the workgroups of a cluster share the keys: one kernel makes what
`passes.split_kv` has two for, and no parts go through memory.

Positions are (batch, head of keys, tile of rows, workgroup of the cluster); rows are the queries of all heads that
share the keys. All warps of a cluster take keys in turn, sixteen at a time. What those of a workgroup have meets in its
memory; from there each element goes to the memory of the workgroup that finishes it. Nothing is read from others, so
that none must stay for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.codegen.simt.attention import FEATURE, HEAD, KEY, PLACE
from rlx.codegen.simt.code import Slot
from rlx.codegen.simt.language.base import Language
from rlx.codegen.simt.shared_heads import SharedHeads
from rlx.codegen.simt.team_attention import TILE
from rlx.ir import dim as dims
from rlx.ir.dim import Dim
from rlx.kernel.ir.attention import FusedAttention

CLUSTER = 8
"""Workgroups of a cluster, at most what every device with clusters has."""
WARPS = 8
"""Of a workgroup: those of a cluster take 1024 keys in one go."""
MOST_BROUGHT = 512
"""Keys that a workgroup asks for before the kernel before has ended."""


class ClusterAttention(SharedHeads):
    def __init__(self, work: FusedAttention, slots: Sequence[Slot], language: Language) -> None:
        self._prepare_heads(work, slots, language, CLUSTER, WARPS)
        self.code.cluster = CLUSTER
        self.code.follows = True

    def write(self) -> Dim:
        work, code, axes = self.work, self.code, self.body.axes
        head = axes[HEAD]
        first = self._first_row()
        code.emit(f"const int split = (int){axes[KEY]};")
        low, stop = self._keys(first, f"min({first} + {TILE - 1}, count - 1)")
        of_all = f"{low} + ({{0}} / {TILE} * {CLUSTER} + split) * {TILE} + {{0}} % {TILE}"
        self._bring(MOST_BROUGHT, of_all.format, stop)
        k, v = (self.start(line, FEATURE, PLACE) for _, line in (work.k, work.v))
        start = self.variable("start", f"{low} + (warp * {CLUSTER} + split) * {TILE}")
        loads = _Loads(self, k, v, stop)
        self._expect(first)
        code.emit("follow();")
        code.emit(f"const bool both = {first} + 8 < count;  // rows of both halves of a tile")
        rows = [code.let(f"min({first} + own / 4 + {8 * i}, count - 1)", "row") for i in range(2)]
        queries, masks = self._queries(head, rows)
        loads.keys_of(start)
        loads.values_of(start)
        axes[HEAD] = head
        code.emit(f"float mixed[{self.columns}][4] = {{}};")
        tops = [self.variable("top", self.least) for _ in rows]
        totals = [self.variable("total", self.zero) for _ in rows]
        with self.body.scope(f"for (; {start} < {stop};)"):
            elements = self._mask_elements(masks, start)
            self._scores(loads.keys)
            following = code.let(f"{start} + {TILE * WARPS * CLUSTER}", "next")
            loads.keys_of(following)
            shrunk = [self._powers_of(row, queries, elements, (start, stop), tops, totals) for row in range(2)]
            self._mix(v, start, stop, shrunk, loads.words)
            loads.values_of(following)
            code.emit(f"{start} = {following};")
        axes[HEAD] = head
        self._join(first, tops, totals)
        steps = dims.ceildiv(work.keys, TILE * WARPS * CLUSTER)
        return dims.add(steps, TILE * work.value_features // self.lanes + CLUSTER + 2)

    def _powers_of(
        self, row: int, queries: Sequence[str], elements: Sequence[Sequence[str]], keys: tuple[str, str],
        tops: Sequence[str], totals: Sequence[str],
    ) -> str:  # fmt: skip
        """Makes powers of a lane's scores of a row; nothing where there are no such rows."""
        if row == 0:
            self._admit(row, queries[row], elements[row], *keys)
            return self._powers(row, tops[row], totals[row])
        shrink = self.variable("shrink", self.number(1.0))
        with self.code.block("if (both)"):
            self._admit(row, queries[row], elements[row], *keys)
            self.code.emit(f"{shrink} = {self._powers(row, tops[row], totals[row])};")
        with self.code.block("else"):
            self.code.emit("scores[0][2] = scores[0][3] = scores[1][2] = scores[1][3] = 0;")
        return shrink

    # what workgroups have

    def _room_for_warps(self, count: int) -> None:
        self._room("shared_mixed", "float", 4 * count)

    def _room(self, name: str, kind: str, nbytes: int) -> None:
        """Memory that others of the cluster find at the same place."""
        self.code.emit(f"{kind}* const {name} = ({kind}*)(dynamic_shared + {self.code.dynamic_shared // 16});")
        self.code.dynamic_shared += -(-nbytes // 16) * 16

    @property
    def _share(self) -> int:
        """Elements of all rows that a workgroup finishes, at most."""
        return -(-TILE * self.work.value_features // (32 * CLUSTER)) * 32

    def _expect(self, first: str) -> None:
        """Tells how many bytes the workgroup is to be given: of its share of elements, and of two numbers of each row,
        by all of the cluster."""
        code, features = self.code, self.work.value_features
        for name, count in (("tops", TILE), ("totals", TILE), ("parts", self._share)):
            self._room(f"shared_{name}", "float", 4 * CLUSTER * count)
        self._room("shared_given", "unsigned long long", 8)
        rows = code.let(f"min(count - {first}, {TILE})", "rows")
        rest = f"{rows} * {features} % {32 * CLUSTER} - split * 32"
        share = f"{rows} * {features} / {32 * CLUSTER} * 32 + min(max({rest}, 0), 32)"
        code.emit(f"expect_gifts(shared_given, {4 * CLUSTER}u * (unsigned)({share} + 2 * {rows}));")

    def _meet(self, first: str, width: int) -> None:
        """Gives each element that the workgroup has to the one that finishes it; 32 in a row are one workgroup's."""
        code, features = self.code, self.work.value_features
        code.emit("meet_cluster();")
        with self._elements_of_rows("(int)lane", self.lanes, first) as (query, place):
            item = f"({query} * {features} + {place})"
            top, mixed, total = self._together(query, place, width)
            at = f"split * {self._share} + {item} / {32 * CLUSTER} * 32 + {item} % 32"
            code.emit(f"give_block(shared_given, shared_parts + {at}, {item} / 32 % {CLUSTER}, {mixed});")
            with code.block(f"if ({place} < {CLUSTER})"):  # so many lanes give one value to a workgroup each
                for array, value in (("shared_tops", top), ("shared_totals", total)):
                    at = f"{array} + split * {TILE} + {query}"
                    code.emit(f"give_block(shared_given, {at}, {place}, {value});")
        code.emit("await_gifts(shared_given);")
        begin = f"(int)lane / 32 * {32 * CLUSTER} + split * 32 + own"
        with self._elements_of_rows(begin, self.lanes * CLUSTER, first) as (query, place):
            item = f"({query} * {features} + {place})"
            top, mixed, total = self._of_all(query, f"{item} / {32 * CLUSTER} * 32 + {item} % 32")
            head = self.body.axes[HEAD]
            self._finish(code.let(f"{first} + {query}", "row"), self._feature_at(place), top, mixed, total)
            self.body.axes[HEAD] = head

    def _of_all(self, row: str, place: str) -> tuple[str, str, str]:
        """What the cluster has for an element: the greatest score, the values mixed by powers, and the sum of these."""
        code = self.code

        def of_each(array: str, pitch: int, at: str) -> list[str]:
            return [code.let(f"{array}[{number * pitch} + {at}]", "part") for number in range(CLUSTER)]

        tops, totals = (of_each(array, TILE, row) for array in ("shared_tops", "shared_totals"))
        mixed = of_each("shared_parts", self._share, place)
        top = self.variable("top", self.least)
        for each in tops:
            self.raise_to(top, each)
        shift = self.shift(top)
        weights = [self.exp(f"{each} - {shift}") for each in tops]
        sums = [
            code.let(" + ".join(f"{weight} * {each}" for weight, each in zip(weights, parts)))
            for parts in (mixed, totals)
        ]
        return top, sums[0], sums[1]

    def _finish(self, row: str, feature: str, top: str, mixed: str, total: str) -> None:
        self._go_to(self.body.axes[HEAD], row)
        self._store(feature, mixed, total)


class _Loads:
    """What a lane has of 16 keys and their values: loaded where it is asked for, and not where compilers would. `words`
    is None where values are no words: those are loaded where they are needed."""

    def __init__(self, writer: ClusterAttention, k: str, v: str, stop: str) -> None:
        self.writer, self.k, self.v, self.stop = writer, k, v, stop
        self.words: list[list[str]] | None = None
        code, chunks = writer.code, writer.chunks
        self.keys = [[f"keys[{half}][{chunk}]" for chunk in range(chunks)] for half in range(2)]
        code.emit(f"Piece keys[2][{chunks}] = {{}};")
        self.kind, count, self.pieces = writer.word_pieces()
        if writer.words:
            code.emit(f"{self.kind} values[4][{self.pieces}] = {{}};")
            components = [(piece, component) for piece in range(self.pieces) for component in "xyzw"[:count]]
            self.words = [
                [f"values[{key}][{piece}].{component}" for piece, component in components] for key in range(4)
            ]

    def keys_of(self, start: str) -> None:
        """Loads those of the 16 keys from one on that there are."""
        writer, code = self.writer, self.writer.code
        work = writer.work
        slot, line = work.k
        step, aligned = writer.record.dim(line.coefficient(PLACE)), writer.is_aligned(work.k)
        for half, pieces in enumerate(self.keys):
            key = code.let(f"{start} + {8 * half} + own / 4", "key")
            at = f"slot{slot} + {self.k} + {key} * {step}"
            with code.block(f"if ({key} < {self.stop})"):
                for chunk, piece in enumerate(pieces):
                    feature = f"{writer.together * chunk} + own % 4 * {writer.piece}"
                    load = (
                        f"read_now((const Piece*)({at} + {feature}))"
                        if aligned
                        else f"piece_at<false>({at} + {feature})"
                    )
                    ragged = writer.together * (chunk + 1) > work.features
                    code.emit(f"{f'if ({feature} < {work.features}) ' if ragged else ''}{piece} = {load};")

    def values_of(self, start: str) -> None:
        """Loads their values, and zeros behind the last."""
        if self.words is None:
            return
        writer, code = self.writer, self.writer.code
        slot, line = writer.work.v
        step = writer.record.dim(line.coefficient(PLACE))
        for number, offset in enumerate((0, 1, 8, 9)):
            key = code.let(f"{start} + {offset} + own % 4 * 2", "key")
            place = f"(const {self.kind}*)(slot{slot} + {self.v} + {key} * {step} + own / 4 * {writer.columns})"
            with code.block(f"if ({key} < {self.stop})"):
                for piece in range(self.pieces):
                    code.emit(f"values[{number}][{piece}] = read_now({place} + {piece});")
            with code.block("else"):
                for piece in range(self.pieces):
                    code.emit(f"values[{number}][{piece}] = {self.kind}{{}};")

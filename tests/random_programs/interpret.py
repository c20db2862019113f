"""Computes what a random program must give, in numpy, thread by thread of the text: neither the emulator nor any
compiler has a part in it.

All threads of the launch go through the text together, each statement acting on those that are active. What lanes may
only do together is checked to be done together: a program that breaks CUDA's rules is a fault of the generator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.random_programs import inputs
from tests.random_programs.program import (
    BINS,
    FULL,
    GATHERS,
    STACK_WORDS,
    Apply,
    Assign,
    BarrierVote,
    Collective,
    Constant,
    Exchange,
    Expression,
    Gather,
    If,
    Leave,
    Load,
    Loop,
    Program,
    Return,
    StackLoad,
    StackStore,
    Statement,
    Switch,
    Variable,
    numbered,
)
from tests.random_programs.values import H2, U64, Type, pair_from_bits, select, words


@dataclass(frozen=True)
class Record:
    """What a statement gave to the active threads."""

    number: int
    active: np.ndarray
    words: list[np.ndarray]


class RuleBrokenError(AssertionError):
    """A program does what CUDA leaves undefined."""


def lane_bits(active: np.ndarray, lane: np.ndarray, warp: np.ndarray) -> np.ndarray:
    """For each thread the lanes of its warp that are active, as bits."""
    sums = np.zeros(int(warp.max()) + 1, np.uint32)
    np.add.at(sums, warp[active], np.uint32(1) << lane[active].astype(np.uint32))
    return sums[warp]


class Interpreter:
    """One run of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.n = program.threads * program.blocks
        place = np.arange(self.n)
        thread, block = place % program.threads, place // program.threads
        self.lane = thread % 32
        self.block = block
        #: Number of the warp in the launch, and place of its first thread.
        self.warp = block * -(-program.threads // 32) + thread // 32
        self.warp_start = place - self.lane
        self.warp_end = np.minimum(self.warp_start + 32, (block + 1) * program.threads)
        self.words, self.floats = inputs.input_words(program), inputs.input_floats(program)
        self.bins = inputs.starting_bins(program)
        parameter0, parameter1, scale, wide = inputs.parameters(program)
        self.values: dict[str, np.ndarray] = {
            "thread": thread.astype(np.uint32), "lane": self.lane.astype(np.uint32),
            "warp": (thread // 32).astype(np.uint32), "block": block.astype(np.uint32),
            "parameter0": np.full(self.n, parameter0), "parameter1": np.full(self.n, parameter1),
            "scale": np.full(self.n, scale), "wide_parameter": np.full(self.n, wide),
        }  # fmt: skip
        with np.errstate(all="ignore"):
            for number, (name, type_) in enumerate(program.variables.items()):
                self.values[name] = self._starting(name, type_, number)
        index = (place * 3)[:, None] + np.arange(STACK_WORDS)
        self.stack = self.words[index % len(self.words)].T.copy()
        self.masks = {FULL: np.ones(self.n, bool)}
        self.returned = np.zeros(self.n, bool)
        self.turn_over = np.zeros(self.n, bool)  # threads that have left this turn of the innermost loop
        self.records: list[Record] = []
        self._numbers = {id(statement): number for number, statement in numbered(program).items()}

    def _starting(self, name: str, type_: Type, number: int) -> np.ndarray:
        index = self.values["thread"] * (2 * number + 1) + self.values["block"] * 5 + 37 * number
        what = {"u": "word", "w": "pair of words", "f": "float", "h": "pair of halves"}.get(name[0])
        if what is None:
            return (self.words[index % 1024] & np.uint32(1)) != 0
        return self._load(what, index)

    def run(self) -> np.ndarray:
        """The rows that the program writes."""
        everyone = np.ones(self.n, bool)
        with np.errstate(all="ignore"):
            for part in self.program.parts():
                everyone = self.execute(part, everyone)
        rows = [row for name, type_ in self.program.variables.items() for row in words(self.values[name], type_)]
        return np.array(rows, np.uint32)

    # --- expressions

    def evaluate(self, value: Expression) -> np.ndarray:
        """Of all threads, whether active or not."""
        if isinstance(value, Variable):
            return self.values[value.name]
        if isinstance(value, Constant):
            if value.type is H2:
                return pair_from_bits(np.full(self.n, value.bits, np.uint32))
            bits = np.full(self.n, value.bits, np.uint64 if value.type is U64 else np.uint32)
            return bits.astype(bool) if value.type.dtype is np.bool_ else bits.view(value.type.dtype)
        if isinstance(value, Load):
            return self._load(value.what, self.evaluate(value.index))
        assert isinstance(value, Apply)
        operands = [self.evaluate(operand) for operand in value.operands]
        fixed = () if value.fixed is None else (value.fixed,)
        result = value.operation.compute(*operands, *fixed)
        assert result.dtype == value.type.dtype, f"{value.operation.name} gave {result.dtype}"
        return result

    def _load(self, what: str, index: np.ndarray) -> np.ndarray:
        if what in ("float", "pair of halves"):
            index = index.astype(np.int64) % len(self.floats)
            if what == "float":
                return self.floats[index]
            return np.stack([self.floats[index], self.floats[index ^ 1]], 1).astype(np.float16)
        kinds = {"byte": np.uint8, "signed byte": np.int8, "short": np.uint16, "signed short": np.int16}
        if what in kinds:
            elements = self.words.view(kinds[what])
            return elements[index.astype(np.int64) % len(elements)].astype(np.int32).view(np.uint32)
        elements = {
            "word": self.words, "pair of words": self.words.view(np.uint64), "last of four": self.words[3::4],
        }[what]  # fmt: skip
        return elements[index.astype(np.int64) % len(elements)]

    # --- statements

    def execute(self, statements: list[Statement], active: np.ndarray) -> np.ndarray:
        """Executes statements for the active threads; those that are still there afterwards."""
        for statement in statements:
            if not active.any():
                break
            active = self._statement(statement, active)
        return active

    def _write(self, statement: Statement, variable: Variable, value: np.ndarray, active: np.ndarray) -> np.ndarray:
        self.values[variable.name] = select(active, value, self.values[variable.name])
        self.records.append(Record(self._numbers[id(statement)], active, words(value, variable.type)))
        return active

    def _statement(self, statement: Statement, active: np.ndarray) -> np.ndarray:
        match statement:
            case Assign(variable, value):
                return self._write(statement, variable, self.evaluate(value), active)
            case If():
                return self._if(statement, active)
            case Loop():
                return self._loop(statement, active)
            case Leave(condition, turn_only, mask):
                leaves = active & self.evaluate(condition)
                if mask:
                    self._together(mask, active)
                    self.masks[mask] = active & ~leaves
                if turn_only:
                    self.turn_over = self.turn_over | leaves
                return active & ~leaves
            case Switch(selector, cases, default):
                chosen = self.evaluate(selector) % statement.modulus
                falling = rest = np.zeros(self.n, bool)
                for number, (body, falls_through) in enumerate(cases):
                    left = self.execute(body, active & (chosen == number) | falling)
                    falling = left if falls_through else np.zeros(self.n, bool)
                    rest = rest if falls_through else rest | left
                return rest | self.execute(default, active & (chosen >= len(cases)) | falling)
            case Collective():
                return self._write(statement, statement.variable, self._collective(statement, active), active)
            case Exchange(variable, value, source, of_warp):
                if of_warp:
                    self._together(FULL, active)
                    from_place = self.warp_start + self.evaluate(source) % 32
                else:
                    self._at_barrier(active)
                    from_place = self.block * self.program.threads + self.evaluate(source) % self.program.threads
                return self._write(statement, variable, self.evaluate(value)[from_place], active)
            case BarrierVote(kind, variable, condition):
                self._at_barrier(active)
                count = np.bincount(self.block, self.evaluate(condition) & active)[self.block]
                size = self.program.threads
                value = {"count": count.astype(np.uint32), "and": count == size, "or": count > 0}[kind]
                return self._write(statement, variable, value, active)
            case Gather(kind, shared, index, value):
                self._gather(kind, shared, self.evaluate(index), self.evaluate(value), active)
            case StackStore(index, value):
                at = self.evaluate(index) % STACK_WORDS
                self.stack[at[active], np.flatnonzero(active)] = self.evaluate(value)[active]
            case StackLoad(variable, index):
                at = self.evaluate(index) % STACK_WORDS
                return self._write(statement, variable, self.stack[at, np.arange(self.n)], active)
            case Return(condition):
                leaves = active & self.evaluate(condition)
                self.returned = self.returned | leaves
                return active & ~leaves
        return active

    def _if(self, statement: If, active: np.ndarray) -> np.ndarray:
        way = self.evaluate(statement.condition)
        if statement.any_lane:
            self._together(statement.any_lane, active)
            way = lane_bits(active & way, self.lane, self.warp) != 0
        if statement.mask:
            self._together(statement.mask.outer, active)
            self.masks[f"{statement.mask.name}_then"] = active & way
            self.masks[f"{statement.mask.name}_else"] = active & ~way
        return self.execute(statement.then, active & way) | self.execute(statement.otherwise, active & ~way)

    def _loop(self, loop: Loop, active: np.ndarray) -> np.ndarray:
        trips = self.evaluate(loop.trips) % np.uint32(loop.most + 1)
        if loop.mask:
            self._together(loop.mask.outer, active)
        outer_turn_over, going = self.turn_over, active
        for turn in range(loop.most + 1):
            self.values[loop.counter] = np.full(self.n, turn, np.uint32)
            if turn or not loop.do_while:
                going = going & (turn < trips)
                if loop.condition:
                    going = going & self.evaluate(loop.condition)
            if not going.any():
                break
            if loop.mask:
                self.masks[loop.mask.name] = going
            self.turn_over = np.zeros(self.n, bool)
            going = self.execute(loop.body, going) | self.turn_over
        self.turn_over = outer_turn_over
        return active & ~self.returned

    def _collective(self, c: Collective, active: np.ndarray) -> np.ndarray:
        self._together(c.mask, active)
        value = self.evaluate(c.value)
        members = lane_bits(active, self.lane, self.warp)
        if c.kind in ("index", "up", "down", "xor"):
            assert c.lane
            return self._shuffle(c, value, (self.evaluate(c.lane) % 32).astype(np.int64), active)
        if c.kind == "lowest":
            lowest = members & (np.uint32(0) - members)
            return value[np.minimum(self.warp_start + np.bitwise_count(lowest - np.uint32(1)), self.n - 1)]
        if c.kind in ("ballot", "any", "all"):
            votes = lane_bits(active & value, self.lane, self.warp)
            return {"ballot": votes, "any": votes != 0, "all": votes == members}[c.kind]
        equal = np.zeros(self.n, np.uint32)
        for other in range(32):
            at = np.minimum(self.warp_start + other, self.n - 1)
            same = (self.warp_start + other < self.warp_end) & active[at] & (value[at] == value)
            equal |= same.astype(np.uint32) << np.uint32(other)
        if c.kind == "match_any":
            return equal
        return np.where(equal == members, members ^ np.uint32(128), np.uint32(0))

    def _shuffle(self, c: Collective, value: np.ndarray, by: np.ndarray, active: np.ndarray) -> np.ndarray:
        segment = self.lane & ~(c.width - 1)
        last = self.lane | (c.width - 1)
        source = {
            "index": segment | (by & (c.width - 1)),
            "up": self.lane - by,
            "down": self.lane + by,
            "xor": self.lane ^ by,
        }[c.kind]
        stays = {"index": source < 0, "up": source < segment, "down": source > last, "xor": source > last}[c.kind]
        place = self.warp_start + source
        known = ~stays & (place < self.warp_end)
        place = np.where(known, place, 0)
        return select(known & active[place], value[place], value)

    def _gather(self, kind: str, shared: bool, index: np.ndarray, value: np.ndarray, active: np.ndarray) -> None:
        kinds = list(GATHERS)
        size = len(kinds) * BINS
        at = kinds.index(kind) * BINS + index % BINS + (size * (self.block + 1) if shared else 0)
        function = {
            "add": np.add, "min": np.minimum, "max": np.maximum, "signed min": np.minimum, "signed max": np.maximum,
            "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
        }[kind]  # fmt: skip
        as_type: type = np.int32 if kind.startswith("signed") else np.uint32
        function.at(self.bins.view(as_type), at[active], value[active].view(as_type))

    # --- CUDA's rules

    def _together(self, mask: str, active: np.ndarray) -> None:
        """The active lanes of each warp are those that the mask names."""
        here = lane_bits(active, self.lane, self.warp)
        if ((lane_bits(self.masks[mask], self.lane, self.warp) != here) & (here != 0)).any():
            raise RuleBrokenError(f"{self.program.name}: lanes of {mask} are not together")

    def _at_barrier(self, active: np.ndarray) -> None:
        """All threads of a block are there, or none."""
        count = np.bincount(self.block, active)
        if ((count != 0) & (count != self.program.threads)).any():
            raise RuleBrokenError(f"{self.program.name}: not all threads come to a barrier")


def run(program: Program) -> tuple[np.ndarray, np.ndarray, list[Record]]:
    """Results, bins, and what each statement gave."""
    interpreter = Interpreter(program)
    results = interpreter.run()
    return results, interpreter.bins, interpreter.records

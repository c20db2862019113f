"""Draws random programs. A seed gives the same program on every machine and under every version of Python and numpy.

What may stand where is kept by a Place: barriers only where the whole block is together, votes and shuffles where a
mask names the lanes that are, and neither where lanes have parted unnamed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tests.random_programs.operations import Operation, table
from tests.random_programs.program import (
    COLLECTIVES,
    FULL,
    GATHERS,
    LOADS,
    NAMES,
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
    Mask,
    Program,
    Return,
    StackLoad,
    StackStore,
    Statement,
    Switch,
    Variable,
)
from tests.random_programs.values import BOOL, F32, H2, U32, U64, Type

T = TypeVar("T")


class Choices:
    """Random choices from the raw words of PCG64, which numpy promises for ever."""

    def __init__(self, seed: int) -> None:
        self._words = np.random.PCG64(seed)

    def below(self, n: int) -> int:
        return int(self._words.random_raw()) % n

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def of(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def weighted(self, items: dict[T, int]) -> T:
        at = self.below(sum(items.values()))
        for item, weight in items.items():
            at -= weight
            if at < 0:
                return item
        raise AssertionError("unreachable")


@functools.cache
def operations() -> dict[Type, dict[str, list[Operation]]]:
    """Operations by what they give and by group."""
    found: dict[Type, dict[str, list[Operation]]] = {}
    for operation in table().values():
        found.setdefault(operation.result, {}).setdefault(operation.group, []).append(operation)
    return found


#: How often each group is drawn, at most: a program has its own share of each.
GROUPS = {
    "integer": 8, "bits": 10, "wide": 5, "divide": 1, "single": 8, "directed": 4, "flushed": 5, "half": 8, "convert": 6,
    "reseed": 6, "compare": 6,
}  # fmt: skip

SPECIAL_WORDS = (0, 1, 2, 3, 7, 31, 32, 255, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x01010101)
SPECIAL_SINGLES = (
    0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x3F000000, 0x40490FDB, 0x4B000000, 0x7F800000, 0x7FFFFFFF,
    0x00000001, 0x00400000, 0x7F7FFFFF, 0x33800000, 0xC2C80000,
)  # fmt: skip
SPECIAL_PAIRS = (
    0x00000000, 0x3C003C00, 0x8000BC00, 0x38004000, 0x7C00FC00, 0x00010400, 0x7BFF7BFF, 0x7FFF3C00, 0x64006400,
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a statement stands."""

    block_together: bool = True
    #: The name of the lanes that are together, if it is known.
    mask: str | None = FULL
    depth: int = 0
    loops: int = 0
    #: The innermost loop may be left from here; a loop whose turns are voted on, only with its mask.
    may_leave: bool = False
    may_break: bool = False
    loop_mask: str | None = None
    tail: bool = False


class Generator:
    """Draws one program."""

    def __init__(self, seed: int, *, stack: bool = True) -> None:
        self.choices = choices = Choices(seed)
        self.seed = seed
        self.threads = choices.of((32, 32, 64, 64, 96, 128, 128, 256, 48, 80))
        counts = {
            BOOL: 2,
            U32: 3 + choices.below(3),
            U64: 1 + choices.below(2),
            F32: 2 + choices.below(3),
            H2: 2 + choices.below(2),
        }
        self.variables = {
            f"{type_.prefix}{number}": type_ for type_, count in counts.items() for number in range(count)
        }
        self.groups = {group: 1 + choices.below(most) for group, most in GROUPS.items()}
        self.groups["divide"] = int(choices.chance(30))
        self.stack = choices.chance(30) and stack
        self.shared_bins, self.global_bins = choices.chance(25), choices.chance(25)
        self.counters: list[str] = []
        self.names = 0
        self.budget = 30 + choices.below(30)

    def fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    # --- expressions

    def variable(self, type_: Type) -> Variable:
        return Variable(self.choices.of([name for name, of in self.variables.items() if of is type_]), type_)

    def constant(self, type_: Type) -> Constant:
        choices = self.choices
        if type_ is BOOL:
            return Constant(choices.below(2), BOOL)
        if type_ is F32:
            return Constant(choices.of(SPECIAL_SINGLES), F32)
        if type_ is H2:
            return Constant(choices.of(SPECIAL_PAIRS), H2)
        word = choices.of(SPECIAL_WORDS) if choices.chance(60) else choices.below(2**32)
        if type_ is U64:
            return Constant(word | choices.of((0, 0, 1, 0xFFFFFFFF, choices.below(2**32))) << 32, U64)
        return Constant(word, U32)

    def leaf(self, type_: Type) -> Expression:
        kind = self.choices.below(100)
        if kind < 14:
            return self.constant(type_)
        if kind < 24:
            names = [name for name, of in NAMES.items() if of is type_]
            names += self.counters if type_ is U32 else []
            if names:
                return Variable(self.choices.of(names), type_)
        return self.variable(type_)

    def load(self, type_: Type) -> Expression:
        return Load(self.choices.of([what for what, (of, _, _) in LOADS.items() if of is type_]), self.variable(U32))

    def expression(self, type_: Type, depth: int) -> Expression:
        choices = self.choices
        if depth == 0 or choices.chance(20):
            return self.leaf(type_)
        if type_ is not BOOL and choices.chance(4):
            return self.load(type_)
        groups = {group: self.groups[group] for group in operations()[type_] if self.groups[group]}
        operation = choices.of(operations()[type_][choices.weighted(groups)])
        fixed = choices.of(operation.fixed) if operation.fixed else None
        return Apply(operation, tuple(self.expression(of, depth - 1) for of in operation.operands), fixed)

    def value(self, type_: Type) -> Expression:
        """An expression that is no leaf."""
        while isinstance(found := self.expression(type_, 1 + self.choices.below(3)), Variable | Constant):
            pass
        return found

    def condition(self) -> Expression:
        """One on which lanes are likely to differ."""
        if self.choices.chance(50):
            return self.value(BOOL)
        bit = table()["(({0} >> {n} & 1u) != 0u)"]
        return Apply(bit, (self.expression(U32, 1),), self.choices.of(bit.fixed))

    # --- statements

    def statements(self, place: Place, count: int) -> list[Statement]:
        return [self.statement(place) for _ in range(count) if self.spend()]

    def spend(self) -> bool:
        self.budget -= 1
        return self.budget >= 0

    def statement(self, place: Place) -> Statement:
        choices = self.choices
        kinds = {"assign": 40}
        if place.depth < 3:
            kinds |= {"if": 16, "loop": 9 if place.loops < 2 else 0, "switch": 4}
        if place.mask:
            kinds["collective"] = 14
        if place.mask == FULL and self.threads % 32 == 0:
            kinds["warp exchange"] = 2
        if place.block_together:
            kinds |= {"exchange": 5, "barrier vote": 3}
        if place.may_leave:
            kinds["leave"] = 10
        if (self.shared_bins and not place.tail) or self.global_bins:
            kinds["gather"] = 8
        if self.stack:
            kinds |= {"stack store": 6, "stack load": 6}
        if place.tail:
            kinds["return"] = 8
        kind = choices.weighted(kinds)
        if kind == "if":
            return self.branch(place)
        if kind == "loop":
            return self.loop(place)
        if kind == "switch":
            return self.switch(place)
        if kind == "collective":
            return self.collective(place)
        if kind in ("exchange", "warp exchange"):
            type_ = choices.of((U32, U32, U64, F32, H2))
            return Exchange(
                self.variable(type_), self.expression(type_, 1), self.expression(U32, 2), kind == "warp exchange"
            )
        if kind == "barrier vote":
            vote = choices.of(("count", "and", "or"))
            return BarrierVote(vote, self.variable(U32 if vote == "count" else BOOL), self.condition())
        if kind == "leave":
            turn_only = not place.may_break or (place.loop_mask is None and choices.chance(40))
            return Leave(self.condition(), turn_only, None if turn_only else place.loop_mask)
        if kind == "gather":
            shared = self.shared_bins and not place.tail and (not self.global_bins or choices.chance(50))
            return Gather(choices.of(list(GATHERS)), shared, self.expression(U32, 1), self.expression(U32, 2))
        if kind == "stack store":
            return StackStore(self.expression(U32, 1), self.expression(U32, 2))
        if kind == "stack load":
            return StackLoad(self.variable(U32), self.expression(U32, 1))
        if kind == "return":
            return Return(self.condition())
        type_ = choices.weighted({U32: 35, F32: 25, H2: 20, U64: 12, BOOL: 8})
        return Assign(self.variable(type_), self.value(type_))

    def branch(self, place: Place) -> Statement:
        choices = self.choices
        kind = choices.weighted({"parted": 40, "named": 25 if place.mask else 0, "together": 20})
        inside = replace(place, depth=place.depth + 1, may_break=place.may_break and place.loop_mask is None)
        inside = replace(inside, may_leave=inside.may_leave and place.loop_mask is None)
        if kind == "together":
            return self.branch_together(place, inside)
        if kind == "named":
            name = self.fresh("m")
            outer = place.mask
            assert outer
            ways = [replace(inside, block_together=False, mask=f"{name}_{way}") for way in ("then", "else")]
            return If(
                self.condition(), self.statements(ways[0], 1 + choices.below(4)),
                self.statements(ways[1], choices.below(4)), Mask(name, outer),
            )  # fmt: skip
        inside = replace(inside, block_together=False, mask=None)
        return If(
            self.condition(), self.statements(inside, 1 + choices.below(4)), self.statements(inside, choices.below(3))
        )

    def branch_together(self, place: Place, inside: Place) -> Statement:
        """On what the block, or at least the warp, agrees on."""
        choices = self.choices
        less, parity = table()["u32 <"], table()["(({0} >> {n} & 1u) != 0u)"]
        kind = choices.weighted({"block": 5, "warp": 5, "any lane": 5 if place.mask else 0})
        if kind == "block":
            condition: Expression = Apply(
                parity, (Variable(choices.of(("block", "parameter0", "parameter1")), U32),), 0
            )
            if choices.chance(50):
                condition = Apply(less, (Variable("parameter0", U32), self.constant(U32)))
        elif kind == "warp":
            condition = Apply(parity, (Variable("warp", U32),), choices.of((0, 1)))
        else:
            condition = self.condition()
        if kind != "block":
            inside = replace(inside, block_together=False)
        return If(
            condition, self.statements(inside, 1 + choices.below(4)), self.statements(inside, choices.below(3)),
            any_lane=place.mask if kind == "any lane" else None,
        )  # fmt: skip

    def loop(self, place: Place) -> Statement:
        choices = self.choices
        kind = choices.weighted({"parted": 40, "named": 20 if place.mask else 0, "fixed": 20})
        counter = self.fresh("i")
        most = 1 + choices.below(6)
        inside = replace(
            place, depth=place.depth + 1, loops=place.loops + 1, may_leave=True, may_break=True, loop_mask=None
        )
        mask = None
        condition = self.condition() if choices.chance(25) else None
        trips = self.expression(U32, 1)
        do_while = choices.chance(25)
        if kind == "fixed":  # all go through it as often: they stay together, if none leaves
            trips, condition = Constant(most, U32), None
            inside = replace(inside, may_leave=False, may_break=False)
        elif kind == "named":
            name = self.fresh("m")
            assert place.mask
            mask = Mask(name, place.mask)
            do_while = False
            inside = replace(inside, block_together=False, mask=name, loop_mask=name)
        else:
            inside = replace(inside, block_together=False, mask=None)
        self.counters.append(counter)
        body = self.statements(inside, 1 + choices.below(4))
        self.counters.remove(counter)
        return Loop(counter, trips, most, body, condition, do_while, choices.chance(70), mask)

    def switch(self, place: Place) -> Statement:
        choices = self.choices
        # `break` would leave the switch, and a voted turn can't be cut short.
        may = place.may_leave and place.loop_mask is None
        inside = replace(place, depth=place.depth + 1, block_together=False, mask=None, may_leave=may, may_break=False)
        cases = [
            (self.statements(inside, 1 + choices.below(2)), choices.chance(25)) for _ in range(2 + choices.below(5))
        ]
        return Switch(self.expression(U32, 2), cases, self.statements(inside, choices.below(2)))

    def collective(self, place: Place) -> Statement:
        choices = self.choices
        kind = choices.weighted({
            "index": 4, "up": 3, "down": 3, "xor": 4, "lowest": 3, "ballot": 3, "any": 2, "all": 2, "match_any": 2,
            "match_all": 2,
        })  # fmt: skip
        takes, gives = COLLECTIVES[kind]
        type_ = gives or choices.of((U32, U32, U64, F32, H2))
        variable = self.variable(type_)
        if takes is BOOL:
            value = self.condition()
        elif takes is U32:  # small numbers, so that lanes meet
            value = Apply(table()["({0} & {1})"], (self.expression(U32, 1), Constant(choices.of((1, 3, 4)), U32)))
        else:
            value = self.expression(type_, 1)
        assert place.mask
        lane = None
        if kind in ("index", "up", "down", "xor"):
            lane = self.expression(U32, 1) if choices.chance(40) else Constant(1 + choices.below(31), U32)
        return Collective(kind, variable, value, place.mask, lane, choices.of((32, 32, 32, 16, 8, 4)))

    def program(self) -> Program:
        choices = self.choices
        body = self.statements(Place(), self.budget)
        self.budget = 2 + choices.below(8)
        tail = self.statements(Place(block_together=False, mask=None, tail=True), 1 + choices.below(3))
        scale = 0x3F000000 + choices.below(2**25)
        parameters = (choices.below(2**32), choices.below(100), scale, choices.below(2**63) * 2 + choices.below(2))
        return Program(
            name(self.seed), self.threads, 1 + choices.below(2), self.variables, body, tail, parameters,
            2 * choices.below(2**30), self.stack, self.shared_bins, self.global_bins,
        )  # fmt: skip


def name(seed: int) -> str:
    """What the kernel of a seed is called."""
    return f"program_{seed}"


def program(seed: int, *, stack: bool = True) -> Program:
    """The program of a seed. Without a stack no thread has an array of its own: NVRTC writes other PTX for some of
    those in each process, which a recording could not be told by."""
    return Generator(seed, stack=stack).program()

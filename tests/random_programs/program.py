"""What a random program consists of. `cuda` writes it, `interpret` computes it, `shrink` cuts it down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.random_programs.operations import Operation
from tests.random_programs.values import BOOL, F32, H2, U32, U64, Type

# --- expressions


@dataclass(frozen=True)
class Variable:
    """A variable, or a name that every program has: see NAMES."""

    name: str
    type: Type


@dataclass(frozen=True)
class Constant:
    """A number, by its bits."""

    bits: int
    type: Type


@dataclass(frozen=True)
class Apply:
    """An operation on operands; `fixed` is its number that the compiler knows."""

    operation: Operation
    operands: tuple[Expression, ...]
    fixed: int | None = None

    @property
    def type(self) -> Type:
        return self.operation.result


@dataclass(frozen=True)
class Load:
    """Reads the inputs, at an index that is taken modulo their number."""

    what: str  # of LOADS
    index: Expression

    @property
    def type(self) -> Type:
        return LOADS[self.what][0]


Expression = Variable | Constant | Apply | Load

#: Words, and ordinary floats, that a program reads.
INPUT_WORDS, INPUT_FLOATS = 1024, 256
#: How the inputs are read: type, CUDA, number of elements. {0} is the index, reduced already.
LOADS: dict[str, tuple[Type, str, int]] = {
    "word": (U32, "words[{0}]", INPUT_WORDS),
    "byte": (U32, "(unsigned)((const unsigned char*)words)[{0}]", 4 * INPUT_WORDS),
    "signed byte": (U32, "(unsigned)(int)((const signed char*)words)[{0}]", 4 * INPUT_WORDS),
    "short": (U32, "(unsigned)((const unsigned short*)words)[{0}]", 2 * INPUT_WORDS),
    "signed short": (U32, "(unsigned)(int)((const short*)words)[{0}]", 2 * INPUT_WORDS),
    "pair of words": (U64, "((const wide*)words)[{0}]", INPUT_WORDS // 2),
    "float": (F32, "floats[{0}]", INPUT_FLOATS),
    "pair of halves": (H2, "__floats2half2_rn(floats[{0}], floats[{0} ^ 1u])", INPUT_FLOATS),
    "last of four": (U32, "((const uint4*)words)[{0}].w", INPUT_WORDS // 4),
}

#: Names that expressions may use anywhere: place of the thread, and parameters of the launch.
NAMES = {
    "thread": U32, "lane": U32, "warp": U32, "block": U32, "parameter0": U32, "parameter1": U32, "scale": F32,
    "wide_parameter": U64,
}  # fmt: skip

# --- statements


@dataclass
class Assign:
    """Computes an expression into a variable."""

    variable: Variable
    value: Expression


@dataclass
class If:
    """Two ways. With a mask, the lanes of each are known by name, `<mask>_then` and `<mask>_else`, and may talk."""

    condition: Expression
    then: list[Statement]
    otherwise: list[Statement]
    mask: Mask | None = None
    #: The condition is asked of all lanes of the mask, and true if it is so for any.
    any_lane: str | None = None


@dataclass
class Loop:
    """Turns 0, 1, ... up to `trips` modulo `most` + 1, while the condition holds, if there is one."""

    counter: str
    trips: Expression
    most: int
    body: list[Statement]
    condition: Expression | None = None
    do_while: bool = False
    rolled: bool = True
    mask: Mask | None = None


@dataclass
class Leave:
    """Leaves the innermost loop, or this turn of it, if the condition holds."""

    condition: Expression
    turn_only: bool
    mask: str | None = None


@dataclass
class Switch:
    """Cases 0, 1, ... of the selector modulo a power of two; some fall through to the next."""

    selector: Expression
    cases: list[tuple[list[Statement], bool]]
    default: list[Statement]

    @property
    def modulus(self) -> int:
        return 1 << (len(self.cases)).bit_length()


@dataclass
class Collective:
    """What the lanes of a mask do together: an exchange, a vote, a match."""

    kind: str  # of COLLECTIVES
    variable: Variable
    value: Expression
    mask: str
    lane: Expression | None = None
    width: int = 32


#: Kinds of collectives: what they take and give; None is the type of the variable.
COLLECTIVES: dict[str, tuple[Type | None, Type | None]] = {
    "index": (None, None), "up": (None, None), "down": (None, None), "xor": (None, None),
    "lowest": (None, None), "ballot": (BOOL, U32), "any": (BOOL, BOOL), "all": (BOOL, BOOL),
    "match_any": (U32, U32), "match_all": (U32, U32),
}  # fmt: skip


@dataclass
class Exchange:
    """Through shared memory, with the block, or with the own warp: each thread leaves a value and takes another's."""

    variable: Variable
    value: Expression
    source: Expression
    of_warp: bool


@dataclass
class BarrierVote:
    """A block barrier that counts, or asks all or any."""

    kind: str  # count, and, or
    variable: Variable
    condition: Expression


@dataclass
class Gather:
    """An atomic operation whose result nobody looks at, on a bin in shared or global memory."""

    kind: str  # of GATHERS
    shared: bool
    index: Expression
    value: Expression


#: Atomic operations: CUDA, what a bin starts with.
GATHERS = {
    "add": ("atomicAdd(&{0}, {1})", 0), "min": ("atomicMin(&{0}, {1})", 0xFFFFFFFF),
    "max": ("atomicMax(&{0}, {1})", 0), "signed min": ("atomicMin((int*)&{0}, (int){1})", 0x7FFFFFFF),
    "signed max": ("atomicMax((int*)&{0}, (int){1})", 0x80000000), "and": ("atomicAnd(&{0}, {1})", 0xFFFFFFFF),
    "or": ("atomicOr(&{0}, {1})", 0), "xor": ("atomicXor(&{0}, {1})", 0),
}  # fmt: skip
BINS = 8  # of each kind


@dataclass
class StackStore:
    """Writes to the thread's own array, at an index that is taken modulo its size."""

    index: Expression
    value: Expression


@dataclass
class StackLoad:
    """Reads the thread's own array."""

    variable: Variable
    index: Expression


STACK_WORDS = 8


@dataclass
class Return:
    """Ends the thread if the condition holds."""

    condition: Expression


Statement = (
    Assign | If | Loop | Leave | Switch | Collective | Exchange | BarrierVote | Gather | StackStore | StackLoad | Return
)


@dataclass(frozen=True)
class Mask:
    """The name of a set of lanes, made of those of another one."""

    name: str
    outer: str


#: All lanes of the warp that there are.
FULL = "full"


@dataclass
class Program:
    """A kernel, its launch and its inputs."""

    name: str
    threads: int
    blocks: int
    variables: dict[str, Type]
    body: list[Statement]
    tail: list[Statement]  # after the last barrier: here threads may return
    parameters: tuple[int, int, int, int]  # two words, the bits of the scale, a wide one
    input_seed: int
    stack: bool = False
    shared_bins: bool = False
    global_bins: bool = False
    features: list[str] = field(default_factory=list)

    def parts(self) -> list[list[Statement]]:
        return [self.body, self.tail]


def inner(statement: Statement) -> list[list[Statement]]:
    """The lists of statements inside a statement."""
    if isinstance(statement, If):
        return [statement.then, statement.otherwise]
    if isinstance(statement, Loop):
        return [statement.body]
    if isinstance(statement, Switch):
        return [*(body for body, _ in statement.cases), statement.default]
    return []


def lists_of(program: Program) -> Iterator[list[Statement]]:
    """Every list of statements, the outer ones first."""
    waiting = program.parts()
    while waiting:
        statements = waiting.pop(0)
        yield statements
        for statement in statements:
            waiting += inner(statement)


def numbered(program: Program) -> dict[int, Statement]:
    """Statements by a number that emission and interpretation agree on, in the order of the text."""
    found: dict[int, Statement] = {}

    def walk(statements: list[Statement]) -> None:
        for statement in statements:
            found[len(found)] = statement
            for part in inner(statement):
                walk(part)

    for part in program.parts():
        walk(part)
    return found

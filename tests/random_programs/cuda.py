"""Writes random programs as CUDA C++."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.random_programs.program import (
    BINS,
    FULL,
    GATHERS,
    LOADS,
    STACK_WORDS,
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
from tests.random_programs.values import F32, H2, U32, U64, written

PRELUDE = Path(__file__).with_name("prelude.cuh")

#: A thread's record of a statement: its number and two words.
TRACE_WORDS = 3
#: Records of a thread that a trace has room for.
TRACE_RECORDS = 2048


def expression(value: Expression) -> str:
    """The text of an expression, in parentheses where a neighbour might take it apart."""
    if isinstance(value, Variable):
        return value.name
    if isinstance(value, Constant):
        bits = f"0x{value.bits:x}"
        return {U32: bits + "u", U64: bits + "ull", F32: f"from_bits({bits}u)", H2: f"pair_from_bits({bits}u)"}.get(
            value.type, "true" if value.bits else "false"
        )
    if isinstance(value, Load):
        _, text, count = LOADS[value.what]
        return text.format(f"(({expression(value.index)}) & {count - 1}u)")
    operands = [expression(operand) for operand in value.operands]
    return f"({value.operation.text.format(*operands, n=value.fixed)})"


class Writer:
    """Collects lines."""

    def __init__(self, program: Program, *, trace: bool) -> None:
        self.program = program
        self.trace = trace
        self.lines: list[str] = []
        self.depth = 1
        self._numbers = {id(statement): number for number, statement in numbered(program).items()}

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def block(self, statements: Iterable[Statement]) -> None:
        self.depth += 1
        for statement in statements:
            self.statement(statement)
        self.depth -= 1

    def result(self, statement: Statement, variable: Variable) -> None:
        """A record of what a statement gave, in a traced program."""
        if self.trace:
            low, high = (*written(variable.name, variable.type), "0u")[:2]
            self.line(f"record({self._numbers[id(statement)]}u, {low}, {high});")

    def statement(self, statement: Statement) -> None:
        match statement:
            case Assign(variable, value):
                self.line(f"{variable.name} = {expression(value)};")
                self.result(statement, variable)
            case If():
                self._if(statement)
            case Loop():
                self._loop(statement)
            case Leave(condition, turn_only, mask):
                word = "continue" if turn_only else "break"
                if mask:
                    self.line(f"{{ const bool leaves = {expression(condition)};")
                    self.line(f"{mask} = __ballot_sync({mask}, !leaves);")
                    self.line(f"if (leaves) {word}; }}")
                else:
                    self.line(f"if ({expression(condition)}) {word};")
            case Switch(selector, cases, default):
                self.line(f"switch ({expression(selector)} & {statement.modulus - 1}u) {{")
                for number, (body, falls_through) in enumerate(cases):
                    self.line(f"case {number}: {{")
                    self.block(body)
                    self.line("} // falls through" if falls_through else "} break;")
                self.line("default: {")
                self.block(default)
                self.line("} }")
            case Collective():
                self._collective(statement)
            case Exchange():
                self._exchange(statement)
            case BarrierVote(kind, variable, condition):
                self.line(f"{variable.name} = __syncthreads_{kind}({expression(condition)});")
                self.result(statement, variable)
            case Gather(kind, shared, index, value):
                bins = ("shared" if shared else "global") + "_bins"
                place = f"{bins}[{list(GATHERS).index(kind) * BINS}u + ({expression(index)} & {BINS - 1}u)]"
                self.line(GATHERS[kind][0].format(place, expression(value)) + ";")
            case StackStore(index, value):
                self.line(f"stack[{expression(index)} & {STACK_WORDS - 1}u] = {expression(value)};")
            case StackLoad(variable, index):
                self.line(f"{variable.name} = stack[{expression(index)} & {STACK_WORDS - 1}u];")
                self.result(statement, variable)
            case Return(condition):
                self.line(f"if ({expression(condition)}) {{ store(); return; }}")

    def _if(self, statement: If) -> None:
        condition = expression(statement.condition)
        mask = statement.mask
        if statement.any_lane:
            condition = f"__any_sync({statement.any_lane}, {condition})"
        if mask:
            self.line(f"{{ const bool {mask.name}_way = {condition};")
            self.line(f"const unsigned {mask.name}_then = __ballot_sync({mask.outer}, {mask.name}_way);")
            self.line(f"const unsigned {mask.name}_else = {mask.outer} & ~{mask.name}_then;")
            condition = f"{mask.name}_way"
        self.line(f"if ({condition}) {{")
        self.block(statement.then)
        if statement.otherwise:
            self.line("} else {")
            self.block(statement.otherwise)
        self.line("} }" if mask else "}")

    def _loop(self, loop: Loop) -> None:
        i, trips = loop.counter, f"{loop.counter}_trips"
        self.line(f"{{ const unsigned {trips} = {expression(loop.trips)} % {loop.most + 1}u;")
        goes_on = f"{i} < {trips}" + (f" && ({expression(loop.condition)})" if loop.condition else "")
        if loop.mask:  # lanes vote in each turn who goes on
            self.line(f"unsigned {loop.mask.name} = {loop.mask.outer};")
        if loop.rolled and not loop.do_while:
            self.line("#pragma unroll 1")
        if loop.mask:
            self.line(f"for (unsigned {i} = 0;; ++{i}) {{")
            self.line(f"const bool goes_on = {goes_on};")
            self.line(f"{loop.mask.name} = __ballot_sync({loop.mask.name}, goes_on);")
            self.line("if (!goes_on) break;")
        elif loop.do_while:
            self.line(f"unsigned {i} = 0; do {{")
        else:
            self.line(f"for (unsigned {i} = 0; {goes_on}; ++{i}) {{")
        self.block(loop.body)
        self.line(f"}} while (++{i}, {goes_on}); }}" if loop.do_while else "} }")

    def _collective(self, c: Collective) -> None:
        value, name = expression(c.value), c.variable.name
        if c.kind in ("index", "up", "down", "xor"):
            lane = expression(c.lane)  # type: ignore[arg-type]
            self.line(f"{name} = shuffle_{c.kind}<{c.width}>({c.mask}, lane, {value}, {lane});")
        elif c.kind == "lowest":
            self.line(f"{name} = __shfl_sync({c.mask}, {value}, __ffs((int){c.mask}) - 1);")
        elif c.kind == "match_all":
            self.line(f"{{ int same; {name} = __match_all_sync({c.mask}, {value}, &same); {name} ^= same << 7; }}")
        else:
            function = {"ballot": "ballot", "any": "any", "all": "all", "match_any": "match_any"}[c.kind]
            self.line(f"{name} = __{function}_sync({c.mask}, {value});")
        self.result(c, c.variable)

    def _exchange(self, e: Exchange) -> None:
        barrier = f"__syncwarp({FULL});" if e.of_warp else "__syncthreads();"
        source = expression(e.source)
        place = f"(warp * 32u + ({source} & 31u))" if e.of_warp else f"(({source}) % {self.program.threads}u)"
        # Warps that talk on their own use other memory than the block, which may not have read yet.
        array = f"reinterpret_cast<{e.variable.type.cuda}*>(exchanged_by_{'warp' if e.of_warp else 'block'})"
        self.line(f"{barrier} {array}[thread] = {expression(e.value)};")
        self.line(f"{barrier} {e.variable.name} = {array}[{place}];")
        self.result(e, e.variable)


def starting(name: str, number: int) -> str:
    """What a variable starts with: inputs at a place of the thread's own."""
    what = {"u": "word", "w": "pair of words", "f": "float", "h": "pair of halves"}.get(name[0])
    index = f"thread * {2 * number + 1}u + block * 5u + {37 * number}u"
    if what is None:
        return f"(words[({index}) & 1023u] & 1u) != 0u"
    return LOADS[what][1].format(f"(({index}) & {LOADS[what][2] - 1}u)")


def kernel(program: Program, *, trace: bool = False) -> str:
    """The source of the program's kernel. A traced one also writes what each statement gave."""
    writer = Writer(program, trace=trace)
    line = writer.line
    arguments = "const unsigned* words, const float* floats, unsigned* out, unsigned* global_bins, unsigned n, "
    arguments += "unsigned parameter0, unsigned parameter1, float scale, wide wide_parameter"
    if trace:
        arguments += ", unsigned* trace"
    line("const unsigned thread = threadIdx.x, lane = thread & 31u, warp = thread >> 5, block = blockIdx.x;")
    line(f"const unsigned place = block * {program.threads}u + thread;")
    whole, rest = divmod(program.threads, 32)
    # In blocks of whole warps the compiler may know that all lanes are there.
    line(f"const unsigned full = {f'warp < {whole}u ? 0xffffffffu : {(1 << rest) - 1}u' if rest else '0xffffffffu'};")
    line(f"__shared__ wide exchanged_by_warp[{program.threads}], exchanged_by_block[{program.threads}];")
    if program.shared_bins:
        count = len(GATHERS) * BINS
        line(f"__shared__ unsigned shared_bins[{count}];")
        line(f"for (unsigned i = thread; i < {count}u; i += {program.threads}u)")
        line(f"    shared_bins[i] = global_bins[{count}u * (block + 1u) + i];")
        line("__syncthreads();")
    if program.stack:
        line(f"unsigned stack[{STACK_WORDS}];")
        line(f"for (unsigned i = 0; i < {STACK_WORDS}u; ++i) stack[i] = words[(place * 3u + i) & 1023u];")
    for number, (name, type_) in enumerate(program.variables.items()):
        line(f"{type_.cuda} {name} = {starting(name, number)};")
    if trace:
        line("unsigned records = 0;")
        line("const auto record = [&](unsigned number, unsigned low, unsigned high) {")
        line(f"    unsigned* const at = trace + (place * {TRACE_RECORDS}u + records) * {TRACE_WORDS}u;")
        line(f"    if (records++ < {TRACE_RECORDS}u) at[0] = number, at[1] = low, at[2] = high;")
        line("};")
    line("const auto store = [&] {")
    row = 0
    for name, type_ in program.variables.items():
        for word in written(name, type_):
            line(f"    out[{row}u * n + place] = {word};")
            row += 1
    line("};")
    writer.depth = 0
    writer.block(program.body)
    writer.depth = 1
    if program.shared_bins:
        line("__syncthreads();")
        line(f"for (unsigned i = thread; i < {count}u; i += {program.threads}u)")
        line(f"    global_bins[{count}u * (block + 1u) + i] = shared_bins[i];")
    writer.depth = 0
    writer.block(program.tail)
    writer.depth = 1
    line("store();")
    body = "\n".join(writer.lines)
    return (
        f'extern "C" __global__ void __launch_bounds__({program.threads}) {program.name}({arguments}) {{\n{body}\n}}\n'
    )


def source(programs: Iterable[Program], *, trace: bool = False) -> str:
    """One file with several kernels."""
    return PRELUDE.read_text() + "\n" + "\n".join(kernel(program, trace=trace) for program in programs)

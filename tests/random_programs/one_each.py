"""Programs that have every operation once, on inputs straight from memory, where the compiler knows nothing of them."""

from __future__ import annotations

from tests.random_programs.operations import table
from tests.random_programs.program import Apply, Assign, Program, Variable
from tests.random_programs.values import TYPES, Type

STATEMENTS = 24
#: Of an operation with a number that is fixed at compile time, so many are tried.
MOST_FIXED = 12


def programs() -> list[Program]:
    """Straight lines of statements, one operation each."""
    inputs: dict[str, Type] = {f"{type_.prefix}{i}": type_ for type_ in TYPES for i in range(3)}
    names = {type_: [name for name, of in inputs.items() if of is type_] for type_ in TYPES}
    alone = [
        Apply(operation, tuple(Variable(names[of][place], of) for place, of in enumerate(operation.operands)), fixed)
        for operation in table().values()
        for fixed in (operation.fixed[:: -(-len(operation.fixed) // MOST_FIXED)] if operation.fixed else (None,))
    ]
    found = []
    for start in range(0, len(alone), STATEMENTS):
        results = alone[start : start + STATEMENTS]
        # The name's first letter says how a variable starts; the results' numbers begin after the inputs'.
        outputs = {f"{value.type.prefix}{10 + i}": value.type for i, value in enumerate(results)}
        body = [Assign(Variable(name, of), value) for (name, of), value in zip(outputs.items(), results, strict=True)]
        parameters = (7, 9, 0x3F800000, 1 << 40)
        found.append(Program(f"operations_{len(found)}", 128, 2, inputs | outputs, body, [], parameters, 1000 + start))
    return found

"""Loops in machine code: natural loops of the graph that says which instruction can follow which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Loop:
    """Instructions by index."""

    header: int
    """Where every turn begins."""
    body: frozenset[int]
    depth: int
    """1: in no other loop."""
    innermost: bool


def _order(successors: Sequence[Sequence[int]], entry: int) -> list[int]:
    """Reverse postorder of what ``entry`` reaches."""
    order: list[int] = []
    seen = {entry}
    stack = [(entry, iter(successors[entry]))]
    while stack:
        node, following = stack[-1]
        for successor in following:
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, iter(successors[successor])))
                break
        else:
            order.append(node)
            stack.pop()
    return order[::-1]


def _dominators(order: list[int], predecessors: dict[int, list[int]]) -> dict[int, int]:
    """Node -> immediate dominator (Cooper, Harvey, Kennedy, "A simple, fast dominance algorithm")."""
    position = {node: index for index, node in enumerate(order)}
    entry = order[0]
    immediate = {entry: entry}

    def meet(a: int, b: int) -> int:
        while a != b:
            while position[a] > position[b]:
                a = immediate[a]
            while position[b] > position[a]:
                b = immediate[b]
        return a

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [predecessor for predecessor in predecessors[node] if predecessor in immediate]
            found = known[0]
            for predecessor in known[1:]:
                found = meet(found, predecessor)
            if immediate.get(node) != found:
                immediate[node] = found
                changed = True
    return immediate


def _loops_from(successors: Sequence[Sequence[int]], entry: int) -> dict[int, set[int]]:
    """Header -> body, of the function that starts at ``entry``."""
    order = _order(successors, entry)
    position = {node: index for index, node in enumerate(order)}
    predecessors: dict[int, list[int]] = {node: [] for node in order}
    for node in order:
        for successor in successors[node]:
            predecessors[successor].append(node)
    immediate = _dominators(order, predecessors)

    def dominates(a: int, b: int) -> bool:
        while b not in (a, entry):
            b = immediate[b]
        return b == a

    loops: dict[int, set[int]] = {}
    for node in order:
        for header in successors[node]:
            # Only an edge backwards in this order can close a loop.
            if position[header] > position[node] or not dominates(header, node):
                continue
            body = loops.setdefault(header, {header})
            waiting = [node]
            while waiting:
                inside = waiting.pop()
                if inside not in body:
                    body.add(inside)
                    waiting.extend(predecessors[inside])
    return loops


def find_loops(successors: Sequence[Sequence[int]], entries: Sequence[int] = (0,), least: int = 1) -> list[Loop]:
    """Natural loops of the functions at ``entries``, in order of their headers; those with one header are one loop.

    Loops of fewer than ``least`` instructions are left out, also where they make another one an outer loop.
    """
    bodies: dict[int, set[int]] = {}
    for entry in dict.fromkeys(entries):
        for header, body in _loops_from(successors, entry).items():
            bodies.setdefault(header, set()).update(body)
    bodies = {header: body for header, body in bodies.items() if len(body) >= least}
    return [
        Loop(
            header=header,
            body=frozenset(body),
            depth=1 + sum(body < other for other in bodies.values()),
            innermost=not any(other < body for other in bodies.values()),
        )
        for header, body in sorted(bodies.items())
    ]

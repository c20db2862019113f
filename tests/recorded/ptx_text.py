"""Hashes of the kernels of a PTX module, so that a recording outlives a change of other kernels or of comments."""

from __future__ import annotations

import hashlib
import re

#: Where an instruction came from, and comments: no part of what runs.
_NOT_CODE = re.compile(r"//[^\n]*|^\s*\.(?:loc|file)\b[^\n]*$|^\s*\.section[^{]*\{[^}]*\}", re.MULTILINE)
#: A kernel or function with its body, or a variable.
_ITEM = re.compile(
    r"^[ \t]*(?:\.(?:visible|weak|extern) )*\.(?P<kind>entry|func)\b(?P<text>.*?)^[};]"
    r"|^[ \t]*(?:\.(?:visible|weak|extern) )*\.(?:global|const|shared)\b(?P<variable>[^;]*);",
    re.MULTILINE | re.DOTALL,
)
_NAME = re.compile(r"[A-Za-z_$][\w$]*")
#: Labels and stack names hold the number of the function in its module.
_NUMBERED = re.compile(r"(\$L__BB|__local_depot)\d+")


def kernel_hashes(ptx: str) -> dict[str, str]:
    """SHA-256 of each kernel's instructions, with all functions and variables that it refers to."""
    texts: dict[str, str] = {}
    kernels = []
    for item in _ITEM.finditer(_NOT_CODE.sub("", ptx)):
        if item["variable"] is not None:
            name = _NAME.findall(re.sub(r"\.\w+|=.*", " ", item["variable"], flags=re.DOTALL))[-1]
        else:
            head = re.sub(r"^\s*\(.*?\)", "", item["text"])  # what a function returns
            name = _NAME.search(head).group()  # type: ignore[union-attr]
            if item["kind"] == "entry":
                kernels.append(name)
        text = _NUMBERED.sub(r"\1", item.group())
        # A function may be declared before it is defined: both count.
        texts[name] = texts.get(name, "") + "\n".join(
            " ".join(line.split()) for line in text.splitlines() if line.strip()
        )
    refers = {name: set(_NAME.findall(text)) & texts.keys() for name, text in texts.items()}
    hashes = {}
    for kernel in kernels:
        reached, waiting = {kernel}, [kernel]
        while waiting:
            new = refers[waiting.pop()] - reached
            reached |= new
            waiting += new
        hashes[kernel] = hashlib.sha256("\n".join(texts[name] for name in sorted(reached)).encode()).hexdigest()
    return hashes

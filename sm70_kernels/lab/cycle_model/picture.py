"""The timeline of an SM as a picture. matplotlib is in the dependency group ``report``."""

from __future__ import annotations

import io
from typing import Any

_COLOURS = {
    "issue": "#444444",
    "tensor": "#1f6f8b",
    "dram": "#b5482a",
    "lsu": "#7a9e3a",
    "fma": "#c29a2b",
    "alu": "#8a6fb0",
    "xu": "#c2688f",
}


def timeline_svg(timeline: dict[str, Any], title: str = "") -> str:
    """An SVG element of ``sm70_kernels.bench.estimates.timeline``; the same timeline gives the same text."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    with mpl.rc_context({"svg.hashsalt": "sm70_kernels", "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(figsize=(9, 2.6), layout="constrained")
        step = timeline["cycles_a_point"]
        for name, shares in timeline["units"].items():
            cycles = [step * (index + 0.5) for index in range(len(shares))]
            axes.plot(cycles, shares, label=name, color=_COLOURS.get(name), linewidth=1.2)
        axes.set_ylim(0, 1.05)
        axes.set_xlabel("cycles of the SM that decides")
        axes.set_ylabel("busy")
        axes.set_title(title or timeline["kernel"], fontsize=9, loc="left")
        axes.legend(ncols=len(timeline["units"]), fontsize=8, loc="lower center", frameon=False)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    text = stream.getvalue()
    return text[text.index("<svg") :]

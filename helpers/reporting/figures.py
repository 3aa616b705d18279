"""Figures: one colour a channel, readable at page width, saved as PNG and PDF with their alternative text."""

import base64
from io import BytesIO
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from IPython.display import display
from PIL import Image

# Okabe and Ito's palette: distinct under the common colour-vision deficiencies.
COLOURS = {
    "direct": "#0072B2",
    "generated": "#D55E00",
    "quote": "#009E73",
    "empty": "#7F7F7F",
    "ungrounded": "#CC79A7",
    "source-only": "#56B4E9",
    "donor": "#E69F00",
    "omega": "#333333",
}


NEUTRAL = ("#5D3A9B", "#997700", "#444444", "#999999")  # for what is no channel: arms, parts, estimators, groups


def use_style():
    """The report's figure style: readable at page width, no chart junk."""
    sns.set_theme(context="notebook", style="ticks", font_scale=1.0)
    plt.rcParams.update({"figure.dpi": 110, "savefig.dpi": 160, "axes.spines.top": False, "axes.spines.right": False})
    plt.rcParams.update({"figure.constrained_layout.use": True, "font.family": "DejaVu Sans", "pdf.fonttype": 42})
    pd.set_option("display.max_colwidth", 160, "display.precision", 3, "display.width", 160, "display.max_rows", 250)


def show_figure(figure, path, alt):
    """Save a figure as PNG (256 colours, a third of the size) and PDF and show it with its alternative text."""
    path = Path(path)
    full = BytesIO()
    figure.savefig(full, format="png")
    Image.open(full).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path.with_suffix(".png"), optimize=True)
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None, "Producer": None, "Creator": None})
    plt.close(figure)
    image = base64.b64encode(path.with_suffix(".png").read_bytes()).decode()
    display({"image/png": image, "text/plain": alt}, raw=True)


def forest(axis, rows, *, colours, labels=None, notes=None):
    """Points with intervals, one line a result row, first on top; ``notes`` stand at the right edge.

    A point without an interval is hollow.

    Parameters
    ----------
    rows : list of result rows (dicts with estimate, low, high)
    colours : list of colours, one a row
    labels, notes : lists of str, optional
        Line labels (the quantity by default) and text such as counts or n.
    """
    place = np.arange(len(rows))[::-1]
    axis.axvline(0, color="0.5", lw=1, ls="--")
    for y, row, colour in zip(place, rows, colours, strict=True):
        axis.plot([row["low"], row["high"]], [y, y], color=colour, lw=2)
        axis.plot(row["estimate"], y, "o", color=colour, ms=7, fillstyle="full" if np.isfinite(row["low"]) else "none")
    axis.set_yticks(place, labels or [row["quantity"] for row in rows])
    axis.set_ylim(-0.6, len(rows) - 0.4)
    for y, note in zip(place, notes or [], strict=False):
        axis.annotate(note, (1.01, y), xycoords=("axes fraction", "data"), va="center", fontsize=9)

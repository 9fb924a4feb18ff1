"""Draws the figures of "How it works": `python docs/figures/draw.py` writes the SVG files beside it.

Pages include them as text, so that their colours are the page's, light or dark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

FRONT, FAINT, ACCENT = "var(--md-default-fg-color)", "var(--md-default-fg-color--lighter)", "var(--md-accent-fg-color)"
SIZE = 13


@dataclass
class Drawing:
    """Rectangles, words and arrows, in units of a page's pixels."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def rectangle(
        self, x: float, y: float, width: float, height: float, *, fill: str = "none", dashed: bool = False
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{fill}" '
            f'fill-opacity="0.35" stroke="{FRONT}" stroke-opacity="0.7"{dash}/>'
        )

    def words(
        self, x: float, y: float, text: str, *, anchor: str = "middle", strong: bool = False, small: bool = False
    ) -> None:
        weight, size = ("600" if strong else "400"), (SIZE - 2 if small else SIZE)
        for line, part in enumerate(text.split("\n")):
            self.parts.append(
                f'<text x="{x:g}" y="{y + line * (size + 4):g}" text-anchor="{anchor}" font-size="{size}" '
                f'font-weight="{weight}" fill="{FRONT}">{part}</text>'
            )

    def box(
        self, x: float, y: float, width: float, height: float, text: str, *, fill: str = "none", dashed: bool = False
    ) -> None:
        self.rectangle(x, y, width, height, fill=fill, dashed=dashed)
        lines = text.count("\n")
        self.words(x + width / 2, y + height / 2 + SIZE / 3 - lines * (SIZE + 4) / 2, text)

    def arrow(self, x0: float, y0: float, x1: float, y1: float) -> None:
        self.parts.append(
            f'<line x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}" stroke="{FRONT}" stroke-width="1.4" '
            'marker-end="url(#head)"/>'
        )

    def grid(self, x: float, y: float, columns: int, rows: int, cell: float, *, fill: str = "none") -> None:
        for row in range(rows):
            for column in range(columns):
                self.rectangle(x + column * cell, y + row * cell, cell, cell, fill=fill)

    def save(self, name: str) -> None:
        head = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto">'
            f'<path d="M0,0 L8,4 L0,8 z" fill="{FRONT}"/></marker></defs>'
        )
        lines = [
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{self.title}" '
            'style="width:100%;height:auto;font-family:inherit" xmlns="http://www.w3.org/2000/svg">',
            head,
            *self.parts,
            "</svg>",
        ]
        (Path(__file__).parent / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def identities() -> None:
    """What a naive loop builds for one pair, and what crossret needs."""
    drawing = Drawing(760, 330, "Steps of one pair, naive and fused")
    drawing.words(20, 24, "Naive: everything is built", anchor="start", strong=True)
    drawing.grid(20, 50, 4, 6, 14, fill=FAINT)
    drawing.words(48, 152, "similarities\n36 × 13", small=True)
    drawing.arrow(84, 92, 132, 92)
    drawing.grid(140, 50, 4, 6, 14, fill=FAINT)
    drawing.words(168, 152, "weights\n36 × 13", small=True)
    drawing.arrow(204, 92, 252, 92)
    drawing.box(260, 50, 330, 84, "attended vectors\n13 × 1,024", fill=FAINT)
    drawing.words(425, 152, "a second product as large as the first", small=True)
    drawing.arrow(598, 92, 646, 92)
    drawing.box(654, 76, 90, 32, "13 cosines")
    drawing.words(20, 204, "Fused: a block stays in registers and cache", anchor="start", strong=True)
    drawing.grid(20, 226, 4, 6, 14, fill=ACCENT)
    drawing.words(48, 328, "similarities s", small=True)
    drawing.arrow(84, 268, 132, 268)
    drawing.box(140, 244, 130, 48, "p = exp(λ₁ norm(s))")
    drawing.arrow(276, 268, 318, 268)
    drawing.box(326, 226, 130, 34, "q·a = Σ p s")
    drawing.box(326, 276, 130, 34, "‖a‖² = pᵀ G p")
    drawing.arrow(462, 268, 510, 268)
    drawing.box(518, 244, 130, 48, "q·a / (‖q‖ ‖a‖)")
    drawing.arrow(654, 268, 686, 268)
    drawing.words(722, 272, "score", strong=True)
    drawing.words(391, 328, "G = C Cᵀ, once an item", small=True)
    drawing.save("identities.svg")


def tiles() -> None:
    """Packed captions, images' rows and the blocks of their product."""
    drawing = Drawing(760, 340, "Captions packed side by side, multiplied by the rows of one image after the other")
    left, top, cell = 190, 70, 11
    lengths, x = (7, 12, 5, 9, 8), float(left)
    drawing.words(left, 30, "captions: words side by side, no padding, packed once", anchor="start", strong=True)
    for number, length in enumerate(lengths):
        drawing.box(x, 42, length * cell, 20, str(number + 1), fill=FAINT if number % 2 else "none")
        x += length * cell
    width = sum(lengths) * cell
    drawing.words(20, top + 22, "images: rows", anchor="start", strong=True)
    drawing.words(20, top + 40, "as they lie", anchor="start")
    for image, rows in enumerate((6, 6, 6)):
        y = top + image * 80
        drawing.box(130, y, 48, rows * cell, f"{image + 1}", fill=FAINT if image % 2 else "none")
        begin = float(left)
        for number, length in enumerate(lengths):
            active = image == 1
            drawing.rectangle(
                begin, y, length * cell, rows * cell, fill=ACCENT if active else "none", dashed=not active
            )
            if active:
                drawing.words(begin + length * cell / 2, y + rows * cell / 2 + 4, f"s(2, {number + 1})", small=True)
            begin += length * cell
    drawing.arrow(left + width + 8, top + 80 + 33, left + width + 40, top + 80 + 33)
    drawing.words(left + width + 78, top + 80 + 37, "5 scores", strong=True)
    drawing.words(
        left,
        328,
        "One block is in cache at a time (filled): a register tile makes it, an epilogue turns it into scores.",
        anchor="start",
    )
    drawing.save("tiles.svg")


def pipelines() -> None:
    """How the two GPU backends run the same formula."""
    drawing = Drawing(760, 330, "The pipelines of the two GPU backends")
    drawing.words(
        20, 26, '"triton": a product by cuBLAS, then one kernel that reads it once', anchor="start", strong=True
    )
    drawing.box(20, 44, 120, 56, "pack items\n(by length)", fill=FAINT)
    drawing.arrow(146, 72, 178, 72)
    drawing.box(186, 44, 150, 56, "S of a run of items\ncuBLAS", fill=FAINT)
    drawing.arrow(342, 72, 374, 72)
    drawing.box(382, 44, 210, 56, "attention: S, norm, p, pᵀGp\nin registers", fill=ACCENT)
    drawing.arrow(598, 72, 630, 72)
    drawing.words(684, 76, "scores", strong=True)
    drawing.words(261, 120, "at most 256 MiB", small=True)
    drawing.words(20, 176, '"cuda": one kernel, and the similarities never leave the chip', anchor="start", strong=True)
    drawing.rectangle(14, 192, 590, 92, dashed=True)
    drawing.box(26, 208, 140, 60, "rows to shared\nmemory, in stages", fill=FAINT)
    drawing.arrow(172, 238, 196, 238)
    drawing.box(204, 208, 150, 60, "tensor cores:\nS in accumulators", fill=ACCENT)
    drawing.arrow(360, 238, 384, 238)
    drawing.box(392, 208, 200, 60, "norm, p, then pᵀGp\nby tensor cores again", fill=ACCENT)
    drawing.arrow(610, 238, 632, 238)
    drawing.words(684, 242, "scores", strong=True)
    drawing.words(
        20,
        310,
        "A warp owns whole images and captions: no sum crosses a warp, and no atomic decides an order.",
        anchor="start",
        small=True,
    )
    drawing.save("pipelines.svg")


if __name__ == "__main__":
    identities()
    tiles()
    pipelines()

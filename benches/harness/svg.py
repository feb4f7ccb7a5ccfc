"""A little SVG: text, lines and marks in colours that are legible on white and on black."""

from xml.sax.saxutils import escape

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .small { font-size: 11px; fill: #57606a }
  .title { font-size: 14px; font-weight: 600 }
  .strong { font-weight: 600 }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  .axis { stroke: #6e7781; stroke-width: 1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .grid { stroke: #30363d } .axis { stroke: #8b949e }
  }
"""


class Drawing:
    def __init__(self, width, height, title):
        self.width, self.height, self.title = width, height, title
        self.parts = []

    def text(self, x, y, words, anchor="start", style=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{escape(words)}</text>')

    def line(self, x1, y1, x2, y2, style="grid"):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>')

    def curve(self, points, colour, width=1.5):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>')

    def mark(self, x, y, colour, shape):
        """One of circle, ring, square, diamond, triangle."""
        around = f'stroke="{colour}" stroke-width="1.5"'
        if shape in ("circle", "ring"):
            fill = colour if shape == "circle" else "none"
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" {around}/>')
            return
        corners = {
            "square": [(-4, -4), (4, -4), (4, 4), (-4, 4)],
            "diamond": [(0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)],
            "triangle": [(0, -5), (5, 4), (-5, 4)],
        }[shape]
        points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
        self.parts.append(f'<polygon points="{points}" fill="{colour}" {around}/>')

    def save(self, path):
        body = "\n".join(self.parts)
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
        )

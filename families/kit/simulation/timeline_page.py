"""The page around a timeline's pictures: the style of the other pages, light or dark, any width."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>
:root {{ color-scheme: light dark; --ground: #f6f7f9; --surface: #ffffff; --ink: #1a222d;
  --muted: #556170; --line: #dde2e8; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ground: #10151b; --surface: #171e26;
  --ink: #e4e9ef; --muted: #9ba8b7; --line: #29333f; }} }}
body {{ margin: 0; padding: 1rem clamp(.8rem, 2vw, 2rem); background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
h1 {{ font-size: 1.45rem; line-height: 1.25; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; background: var(--surface); }}
td, th {{ padding: .2rem .8rem; text-align: left; border: 1px solid var(--line); }}
td:last-child {{ text-align: right; font-variant-numeric: tabular-nums; }}
i {{ display: inline-block; width: 10px; height: 10px; margin: 0 4px 0 12px; }}
svg {{ display: block; width: 100%; min-width: 900px; height: auto; background: var(--surface); }}
svg text:not([fill]) {{ fill: var(--ink); }} svg text[fill="#888"] {{ fill: var(--muted); }}
.wide {{ overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }}
</style></head>
<body><h1>{title}</h1> <p>{summary}</p>
<table><tr><th>{what}</th><th>busy</th></tr>{rows}</table> <p>{legend}</p>
<div class="wide" role="region" aria-label="Timeline" tabindex="0">{pictures}</div></body></html>
"""

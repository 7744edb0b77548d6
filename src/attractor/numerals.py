"""Numbers as people read them."""


def with_prefix(value: float) -> str:
    """Three digits: `1.23M`, `45.1k`, `870`."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{sign}"
    return f"{value:.0f}"


def in_bytes(value: int) -> str:
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"

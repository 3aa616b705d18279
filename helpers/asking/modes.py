"""The modes of acquisition."""

MODES = ("recorded", "missing", "fresh")


def check_mode(acquire):
    """Return the mode, or raise ValueError with the modes that exist."""
    if acquire not in MODES:
        raise ValueError(f"ACQUIRE = {acquire!r}; use one of {', '.join(MODES)}.")
    return acquire

"""What is wrong with a checkpoint, as one sentence for the user."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint that cannot be used; the message says what was expected, what was found, and what to do."""

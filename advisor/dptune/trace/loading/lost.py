"""A trace that an executor gives up."""


class LostError(Exception):
    """Why a trace was not read, as a part of a sentence: its worker was killed, or it took too long."""

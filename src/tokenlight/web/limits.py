"""How much one request, and all of them together, may ask of the server."""

from dataclasses import dataclass
from typing import NamedTuple


class WaitingLimits(NamedTuple):
    """How many requests of each lane may wait for one model, in the order of the lanes."""

    quick: int
    short: int
    long: int


DEFAULT_WAITING = WaitingLimits(quick=64, short=32, long=8)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of the server. A request beyond them is refused with a message, never served in part."""

    # Size of a request.
    characters: int = 20_000  # of one text
    body_bytes: int = 256 * 1024
    open_bytes: int = 4 * 1024 * 1024  # of an opened file
    open_entries: int = 64  # explanations in an opened file
    open_pixels: int = 2048 * 2048  # of all images in an opened file
    picture_bytes: int = 8 * 1024 * 1024  # of the file of a picture
    picture_pixels: int = 4096 * 4096
    methods: int = 12
    evaluated_methods: int = 4
    metrics: int = 4
    texts: int = 16
    report_texts: int = 100  # of a list that is explained into one report
    stored_reports: int = 8
    random_orders: int = 16
    answer_tokens: int = 16  # tokens of an answer that the model writes itself
    attention_tokens: int = 128  # tokens of an attention map

    # Cost of a request: tokens that it may send through the model, counted each time.
    explain_token_passes: int = 60_000
    trust_token_passes: int = 42_000
    evaluation_token_passes: int = 300_000

    # Queues of one model.
    max_waiting: WaitingLimits = DEFAULT_WAITING
    wait_seconds: float = 15.0  # expected time until a request starts; beyond it, it is refused
    # Longest time that interrupted work goes on before it yields again.
    work_slice_seconds: float = 0.5
    short_tokens: int = 64  # a longer text makes a game or a trust test long work
    quick_characters: int = 8_000  # characters × methods that are still explained in a batch
    batch_texts: int = 32
    batch_characters: int = 16_000
    gather_seconds: float = 0.004  # time that the first request of a batch waits for others
    idle_seconds: float = 5.0  # time without a request before background work continues
    answer_seconds: float = 120.0  # time until a request is given up

    # Memory and connections.
    stored_attributions: int = 1024
    stored_bytes: int = 256 * 1024 * 1024  # memory of stored explanations and their games
    concurrent_files: int = 2  # opened files and downloads that are processed at a time
    connections: int = 512  # open at a time
    receive_seconds: float = 10.0  # time until a request has arrived completely
    stop_seconds: float = 5.0  # time that running work has to end at shutdown

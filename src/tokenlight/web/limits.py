"""ServerLimits: how much one request, and all of them together, may ask of this machine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What is more than this is refused in words, never served slowly or half."""

    characters: int = 20_000
    body_bytes: int = 256 * 1024
    open_bytes: int = 4 * 1024 * 1024
    open_entries: int = 64
    open_pixels: int = 2048 * 2048  # of all pictures in one opened file
    methods: int = 12
    evaluated_methods: int = 4
    metrics: int = 4
    texts: int = 16
    random_orders: int = 16
    passes: int = 60_000  # tokens that one request may send through a model, each time counted
    written: int = 16  # tokens of an answer that a model writes itself
    trust_passes: int = 150_000
    evaluated_passes: int = 300_000
    attention_tokens: int = 128
    waiting: tuple[int, int, int] = (64, 32, 8)  # for one model: quick, short and long requests
    wait_seconds: float = 15.0  # that one may have to wait for its turn, as far as can be foretold
    share_seconds: float = 0.5  # that work which let others through goes on before it does so again
    short_tokens: int = 64  # of a text; a longer one is long to play with or to test
    quick_characters: int = 8_000  # of a text, each method counted, that is explained in a batch
    batch_texts: int = 32
    batch_characters: int = 16_000
    gather_seconds: float = 0.004  # that the first of a batch waits for others to join it
    idle_seconds: float = 5.0  # that nobody must have asked before background work goes on
    answer_seconds: float = 120.0
    kept_attributions: int = 1024
    kept_bytes: int = 256 * 1024 * 1024  # memory of kept explanations and their games
    beside: int = 2  # opened files and downloads in work at one time
    connections: int = 512  # open at one time
    receive_seconds: float = 10.0  # until a request has arrived as a whole
    stop_seconds: float = 5.0

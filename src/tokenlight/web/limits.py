"""ServerLimits: how much one request, and all of them together, may ask of this machine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What is more than this is refused in words, never served slowly or half.

    ``written``: tokens of an answer that a model writes itself. ``passes``: tokens that one request
    may send through a model, each time counted. ``waiting``:
    requests that wait for one model, by how long they take (quick, short, long); ``wait_seconds``: how
    long one may have to wait for its turn, as far as can be foretold. ``share_seconds``: how long
    work that let others through goes on before it does so again. A text of more than
    ``short_tokens`` is long to play with or to test; ``quick_characters``: of a text, each method
    counted, that is explained in a batch with others, of ``batch_characters`` together.
    ``open_pixels``: of all pictures in one opened file. ``beside``: opened files and downloads in
    work at one time. ``kept_bytes``: memory of all that is kept of explanations and their games.
    ``gather_seconds``: how long the first of a batch waits for others to join it.
    ``idle_seconds``: how long nobody must have asked before background work goes on.
    ``connections``: open at one time; ``receive_seconds``: until a request has arrived as a whole.
    """

    characters: int = 20_000
    body_bytes: int = 256 * 1024
    open_bytes: int = 4 * 1024 * 1024
    open_entries: int = 64
    open_pixels: int = 2048 * 2048
    methods: int = 12
    evaluated_methods: int = 4
    metrics: int = 4
    texts: int = 16
    random_orders: int = 16
    passes: int = 60_000
    written: int = 16
    trust_passes: int = 150_000
    evaluated_passes: int = 300_000
    attention_tokens: int = 128
    waiting: tuple[int, int, int] = (64, 32, 8)
    wait_seconds: float = 15.0
    share_seconds: float = 0.5
    short_tokens: int = 64
    quick_characters: int = 8_000
    batch_texts: int = 32
    batch_characters: int = 16_000
    gather_seconds: float = 0.004
    idle_seconds: float = 5.0
    answer_seconds: float = 120.0
    kept_attributions: int = 1024
    kept_bytes: int = 256 * 1024 * 1024
    beside: int = 2
    connections: int = 512
    receive_seconds: float = 10.0
    stop_seconds: float = 5.0

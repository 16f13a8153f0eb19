"""An iterator of texts is read in chunks that grow."""

from __future__ import annotations

from tokenlight.explaining.streams import FIRST_CHUNK_SIZES, read_chunks


def test_chunks_of_an_iterator_grow_with_batch_tokens():
    small = [len(window) for window in read_chunks(iter(["word"] * 3000), 2048)]
    assert small[:4] == list(FIRST_CHUNK_SIZES)
    assert small[4:6] == [448, 448]
    large = [len(window) for window in read_chunks(iter(["word"] * 16000), 16384)]
    assert large[4:] == [7168, 7168, 16000 - sum(FIRST_CHUNK_SIZES) - 2 * 7168]
    # Long texts fill a window before it has as many.
    assert max(len(window) for window in read_chunks(iter(["w" * 131072] * 40), 2048)) == 1

"""The explanations in a folder of Parquet files, read when they are asked for."""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, TypeVar, overload

from tokenlight.data.attribution import Attribution
from tokenlight.errors import DamagedFile
from tokenlight.files.rows import FORMAT, attribution_of
from tokenlight.files.stored import Folder, filesystem

Found = TypeVar("Found")


class Explanations(Sequence[Attribution]):
    """What ``tokenlight explain --file … -o FOLDER`` wrote, as Attributions that are made one by one.

    ``explanations[7]`` reads one block, going through all of them holds one at a time.
    ``extras["kept"]`` of each has the columns that were kept, and its place.
    """

    def __init__(self, place: str) -> None:
        self.folder = Folder(place)
        try:
            self.job: dict[str, Any] = json.loads(self.folder.read("job.json") or b"")
            known = self.job["format"]
        except OSError as broken:
            raise DamagedFile(f"{place} cannot be read: {broken}.") from broken
        except (ValueError, KeyError, TypeError) as broken:
            raise DamagedFile(
                f"{place} is a folder without explanations (no job.json that can be read); give a file, "
                "or what tokenlight explain --file DATA -o FOLDER has written."
            ) from broken
        if known != FORMAT:
            raise DamagedFile(
                f"{place} has columns of format {known}, and this version of tokenlight reads {FORMAT}."
            )

    def __repr__(self) -> str:
        return f"<Explanations of {len(self)} texts in {self.folder.place}>"

    @cached_property
    def dataset(self) -> Any:
        """All rows as a ``pyarrow.dataset``, for filters and for other libraries."""
        return self._dataset("rows")

    @property
    def refused(self) -> Any:
        """The texts that were refused, with the reason, as a data frame."""
        return self._dataset("refused").to_table().to_pandas()

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """A data frame, one row a text; ``columns``: only these, which is faster."""
        return self.dataset.to_table(columns=columns).to_pandas()

    @cached_property
    def _ends(self) -> list[int]:
        """How many rows there are up to the end of each file."""
        return list(accumulate(self._told(one, one.count_rows) for one in self._files))

    @cached_property
    def _files(self) -> list[Any]:
        return list(self.dataset.get_fragments())

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, which: int) -> Attribution: ...
    @overload
    def __getitem__(self, which: slice) -> list[Attribution]: ...
    def __getitem__(self, which: int | slice) -> Attribution | list[Attribution]:
        if isinstance(which, slice):
            return [self[i] for i in range(*which.indices(len(self)))]
        place = range(len(self))[which]
        number = bisect_right(self._ends, place)
        first = self._ends[number - 1] if number else 0
        return attribution_of(self._table(number).slice(place - first, 1).to_pylist()[0])

    def __iter__(self) -> Iterator[Attribution]:
        for number in range(len(self._files)):
            for batch in self._table(number).to_batches(max_chunksize=64):
                yield from map(attribution_of, batch.to_pylist())

    @cached_property
    def _table(self) -> Any:
        """The rows of a file by its number; the last ones read are kept."""
        return lru_cache(maxsize=2)(self._read)

    def _read(self, number: int) -> Any:
        import pyarrow.dataset

        one = self._files[number]
        check = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
        return self._told(one, lambda: one.to_table(fragment_scan_options=check))

    def _told(self, file: Any, read: Callable[[], Found]) -> Found:
        """What ``read`` gives of a file; a damaged one is named."""
        import pyarrow

        try:
            return read()
        except (pyarrow.ArrowException, OSError) as broken:
            raise DamagedFile(
                f"{file.path} is damaged ({broken}); delete it and give the same command again."
            ) from broken

    def _dataset(self, below: str) -> Any:
        import pyarrow.dataset

        system, base = filesystem(self.folder.place)
        names = sorted(f"{base}/{name}" for name in self.folder.sizes(below))
        return pyarrow.dataset.dataset(names, filesystem=system, format="parquet")

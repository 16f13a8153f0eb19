"""One job: the files that are explained, by which model and how, and what a worker does with a block."""

import ctypes
import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tokenlight.errors import BadInput, in_words
from tokenlight.explaining.batch import versions
from tokenlight.explaining.default import sample
from tokenlight.files.rows import FORMAT, PLACE, REASON, parquet_of, table_of
from tokenlight.files.write import Folder, json_text
from tokenlight.models.embedded import folder_digest
from tokenlight.scale.mapper import Mapper
from tokenlight.scale.source import Block, Reader, TextFiles
from tokenlight.scale.worker import Hopeless


@dataclass(frozen=True)
class ExplainJob:
    """Files of texts to rows in a folder. ``loading``: keywords of ``from_pretrained()``, name and device
    among them; ``how``: of ``explain()``, the method among them."""

    folder: Folder
    texts: TextFiles
    loading: Mapping[str, Any]
    how: Mapping[str, Any]
    fingerprint: str
    block: int = 1024
    digest: str = field(default="", compare=False)

    @property
    def settings(self) -> dict[str, Any]:
        """What the numbers depend on: another one is another folder's."""
        texts, model = self.texts, dict(self.loading)
        return {
            "format": FORMAT,
            "model": model.pop("name"),
            "fingerprint": self.fingerprint,
            "device": model.pop("device").partition(":")[0],
            **{name: _plain(value) for name, value in (model | dict(self.how)).items()},
            "block": self.block,
            "text": "+".join(texts.columns),
            "keep": ",".join(texts.kept.names),
            "limit": texts.limit,
            "files": {one.file.path: f"{one.rows} rows, {one.digest}" for one in texts.sources},
            "versions": versions(),
        }

    def begin(self, device: str) -> Callable[[Block], dict[str, Any]]:
        """Load the model, and try it on a short text: what is wrong for that is wrong for all."""
        mapper = Mapper(self.texts.text, self.how, {**self.loading, "device": device})
        try:
            explainer = mapper.explainer
            if mapper.fingerprint != self.fingerprint:
                name = self.loading["name"]
                raise BadInput(f"{name} is not what it was when this job was begun; put it back.")
            text, usual = sample(explainer)
            asked = {**self.how, "long": "truncate", "progress": False}
            if explainer.live.head.reads != "text" or explainer.live.head.kind == "span":
                asked["target"] = usual  # what is asked of such a model depends on the text
            explainer.explain([text], **asked)
        except Exception as refused:
            raise Hopeless(in_words(refused)) from refused
        return partial(self._made, Reader(self.texts), mapper)

    def _made(self, reader: Reader, mapper: Mapper, task: Block) -> dict[str, Any]:
        """Explain a block and write it: what was refused first, then the rows, which make it count.
        A block that is there already, since a lost worker made it, gets the same bytes again."""
        rows, kept = reader.read(task)
        source = self.texts.sources[task.source].file
        kind = "line" if source.name.endswith((".jsonl", ".txt")) else "row"
        places = [f"{kind} {number} of {source.name}" for number, _ in rows]
        columns = mapper.columns(list(zip(places, (row for _, row in rows), strict=True)))
        where = {"source": [source.path] * len(rows), "row": [number for number, _ in rows]}
        table = table_of({**where, **columns}, kept)
        said = {"job": self.digest, "block": task.number}
        refused = table.filter(table["refused"].is_valid())
        refused = refused.select([*kept.column_names, *PLACE, *REASON])
        if len(refused):
            self.folder.write(f"refused/{task.name}", parquet_of(refused, said))
        good = table.filter(table["refused"].is_null()).drop_columns(list(REASON))
        content = parquet_of(good, {**said, "texts": task.count, "refused": len(refused)})
        self.folder.write(f"rows/{task.name}", content)
        with suppress(OSError, AttributeError):  # only glibc keeps what was freed, and has this
            ctypes.CDLL(None).malloc_trim(0)
        return {"rows": len(good), "refused": len(refused), "bytes": len(content)}


def _plain(value: Any) -> Any:
    """A value as JSON has it; of what JSON does not have, its own words."""
    if isinstance(value, tuple) and value[1:] == ({},):  # a method without options
        return value[0]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def job_of(
    folder: str,
    texts: TextFiles,
    loading: Mapping[str, Any],
    how: Mapping[str, Any],
    block: int = 1024,
) -> ExplainJob:
    """A job whose digest names all that its numbers depend on."""
    weights = folder_digest(loading["name"])
    made = ExplainJob(Folder(folder), texts, loading, how, weights, block)
    digest = hashlib.sha256(json_text(made.settings, sort_keys=True).encode()).hexdigest()
    return replace(made, digest=digest)

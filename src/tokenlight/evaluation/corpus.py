r"""Document frequencies of tokens, and the weight of each token for each class.

For a class c and a token type v, :math:`W_c(v) = \mathrm{idf}(v) \sum_x s_x(v)` over the texts x predicted as
c (Hou & Castañón 2023, section 4.2).
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenlight.data.tokenizer import tokenize
from tokenlight.errors import BadInput, DamagedFile
from tokenlight.files.parsing import read_json
from tokenlight.files.tables import read_examples
from tokenlight.files.write import dump_json, write_text
from tokenlight.metrics.token_overlap import IdfVariant, compute_idf
from tokenlight.models import embedded
from tokenlight.models.gguf_loading import find_gguf_file, load_gguf_tokenizer
from tokenlight.models.loading import check_model_path, load_tokenizer
from tokenlight.models.safety import check_model_files

FORMAT_VERSION = 1  # of the JSON file of DocumentFrequencies
ClassWeights = dict[str, dict[str, float]]  # class to token type to weight
CHUNK_SIZE = 1000  # texts tokenized in one call
SNIFFED_CHARACTERS = 1000  # read of a JSON file to see what it holds


@dataclass(frozen=True, slots=True)
class DocumentFrequencies:
    """In how many texts each token type occurs.

    Attributes:
        num_documents: Number of texts.
        counts: Token type, or token id, to the number of texts that contain it.
        tokenizer_name: The tokenizer that split the texts.
    """

    num_documents: int
    counts: Mapping[Any, int] = field(repr=False)
    tokenizer_name: str = ""

    @classmethod
    def from_texts(cls, texts: Iterable[str], tokenizer: Any) -> "DocumentFrequencies":
        """Count the token types of ``texts``, without special tokens.

        Raises:
            BadInput: There is no text.
        """
        all_texts = list(texts)
        if not all_texts:
            raise BadInput(
                "The corpus contains no text. Give at least one text.", code="empty-corpus"
            )
        # A token counts once per text, however often it occurs there.
        counts: Counter[int] = Counter()
        for start in range(0, len(all_texts), CHUNK_SIZE):
            chunk = all_texts[start : start + CHUNK_SIZE]
            encoding = tokenize(tokenizer, chunk, add_special_tokens=False, verbose=False)
            for ids in encoding["input_ids"]:
                counts.update(set(ids))
        # Files store tokens, not ids, so that a person can read them.
        tokens = tokenizer.convert_ids_to_tokens(list(counts))
        counts_by_token = dict(zip(map(str, tokens), counts.values(), strict=True))
        tokenizer_name = Path(str(tokenizer.name_or_path)).name
        return cls(len(all_texts), counts_by_token, tokenizer_name)

    @classmethod
    def from_file(cls, corpus: str, tokenizer: Any) -> "DocumentFrequencies":
        """Read a file of texts and count them, or a file that :meth:`save` wrote.

        Raises:
            BadInput: The file holds pairs of texts.
        """
        if _holds_frequencies(Path(corpus)):
            return cls.load(corpus)
        examples = read_examples(corpus)
        texts = [example.text for example in examples if isinstance(example.text, str)]
        if len(texts) < len(examples):
            raise BadInput(
                f"{corpus} holds pairs of texts. Give a corpus with one text per row.",
                code="corpus-of-pairs",
            )
        return cls.from_texts(texts, tokenizer)

    def idf(self, token: str, variant: IdfVariant = "log") -> float:
        """Return the inverse document frequency of a token; see :func:`compute_idf`."""
        return compute_idf(variant, self.counts.get(token, 0), self.num_documents)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write as JSON, most frequent token types first."""
        ordered = dict(sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0])))
        content = {
            "format": FORMAT_VERSION,
            "tokenizer": self.tokenizer_name,
            "documents": self.num_documents,
            "counts": ordered,
        }
        write_text(Path(path), dump_json(content, indent=0))
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "DocumentFrequencies":
        """Read a file that :meth:`save` wrote.

        Raises:
            DamagedFile: The file is of another format, or its counts are impossible.
        """
        try:
            return cls._parse(read_json(path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            # The text of other errors says nothing to a reader.
            is_readable = isinstance(error, OSError | ValueError)
            details = f" ({str(error)[:120]})" if is_readable else ""
            raise DamagedFile(
                f"{path} has no document frequencies{details}. Create such a file with: tokenlight idf "
                "CORPUS -o FILE.",
                code="no-document-frequencies",
            ) from error

    @classmethod
    def _parse(cls, content: Any) -> "DocumentFrequencies":
        counts = {str(token): int(count) for token, count in content["counts"].items()}
        num_documents = int(content["documents"])
        has_valid_counts = all(0 <= count <= num_documents for count in counts.values())
        if content["format"] != FORMAT_VERSION or num_documents < 1 or not has_valid_counts:
            raise ValueError("its format or its counts are not valid")
        return cls(num_documents, counts, str(content["tokenizer"]))


def _holds_frequencies(path: Path) -> bool:
    """Tell a file of frequencies from a table of texts, which may be JSON too."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open(encoding="utf-8") as file:
        return '"counts"' in file.read(SNIFFED_CHARACTERS)


def load_model_tokenizer(name: str) -> Any:
    """Load the tokenizer of a model without its weights."""
    gguf_file = find_gguf_file(name)
    if gguf_file is not None:
        return load_gguf_tokenizer(name, gguf_file)
    check_model_path(name)
    path = embedded.resolve_path(name)
    check_model_files(name, path, with_weights=False)
    return load_tokenizer(path, name, {})


def compute_class_weights(
    rows: Iterable[Mapping[str, Any]], metric: str, idf: IdfVariant
) -> ClassWeights:
    """Compute ``W_c(v)`` of every predicted class from the rows that token_overlap left in a run.

    Args:
        rows: Records as JSON values.
        metric: Key of the metric token_overlap in them.
        idf: Variant of the inverse document frequency; the documents are the explained texts.

    Returns:
        Class to token type to weight, in the order of the class indices.
    """
    # Sum the scores of each token over the texts of a class, and count the texts that contain it.
    sums: dict[tuple[int, str], Counter[str]] = {}
    document_counts: Counter[str] = Counter()
    num_documents = 0
    for row in rows:
        detail = row.get("measured", {}).get(metric, {}).get("detail", {})
        if "weights" not in detail:
            continue
        class_key = (int(detail["class"]), str(row["predicted"]))
        class_sums = sums.setdefault(class_key, Counter())
        for token_id, weight in detail["weights"].items():
            token = detail["pieces"][token_id]
            class_sums[token] += weight
            document_counts[token] += 1
        num_documents += 1

    # Weigh the sums by how rare the tokens are.
    frequencies = DocumentFrequencies(max(1, num_documents), document_counts)
    class_weights: ClassWeights = {}
    for (_, label), class_sums in sorted(sums.items()):
        weights = {}
        for token, total in class_sums.items():
            weights[token] = total * frequencies.idf(token, idf)
        class_weights[label] = weights
    return class_weights

"""A model with its tokenizer, as one explanation needs them: limits, packs, rows made ready."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any, get_args

from tokenlight.capture.live import LiveModel, Pooling, Similarity
from tokenlight.capture.packing import GPU, PROCESSOR, kind_of, packs
from tokenlight.capture.tape import ENTERED, UNLISTENED, Site, Sites
from tokenlight.data.tokens import TokenRow, explain_masked
from tokenlight.errors import BadInput, UnsupportedModel, one_of
from tokenlight.explaining.options import How
from tokenlight.models.carriers import carried


class Session:
    """What reading, batching, windows and comparisons know of the model they work for."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        name: str | None = None,
        pooling: Pooling = "mean",
        similarity: Similarity = "cosine",
        labels: Sequence[str] | None = None,
    ) -> None:
        """``model``: of transformers, or what holds one (a pipeline, a CrossEncoder, a
        SentenceTransformer); or a plain torch module that classifies token ids, as ``labels``.
        ``tokenizer``: of a model of pictures its image processor, of one that reads both a processor."""
        one_of("pooling", pooling, get_args(Pooling))
        one_of("similarity", similarity, get_args(Similarity))
        held = carried(model, tokenizer, pooling, similarity, labels)
        model, tokenizer = held[:2]
        self.processor = tokenizer if hasattr(tokenizer, "image_processor") else None
        tokenizer = getattr(self.processor, "tokenizer", tokenizer)
        self.live = LiveModel(model, tokenizer, *held[2:])
        self.model, self.tokenizer = model, tokenizer
        own = str(getattr(self.live.model.config, "_name_or_path", ""))
        self.name = name or own or type(self.live.model).__name__
        self._defaults: dict[str, tuple[str, ...]] = {}  # by kind of input: what explain() takes

    @cached_property
    def max_tokens(self) -> int | None:
        """The longest text this model reads, special tokens included."""
        limits = [self.live.max_tokens, getattr(self.tokenizer, "model_max_length", None)]
        known = [limit for limit in limits if limit is not None and 0 < limit < 1 << 30]
        return min(known, default=None)

    @cached_property
    def token_types(self) -> int | None:
        """How many token types the model knows; None where it looks up none, so that any do."""
        if "token_type_ids" not in self.live.accepts:
            return None
        config = self.live.model.config.get_text_config()
        return int(getattr(config, "type_vocab_size", self.live.vocabulary)) or None

    @property
    def pad_id(self) -> int | None:
        """The id of padding: the model's, else the tokenizer's."""
        own = self.live.pad_id
        return own if own is not None else getattr(self.tokenizer, "pad_token_id", None)

    def verify(self, row: TokenRow, how: How) -> None:
        """Before the first use of a model, or of its attention: does it compute what it should?"""
        for method in how.methods if self.live.writes_from_source else ():
            if method.needs - ENTERED and not method.after_source:
                raise UnsupportedModel(
                    f"{method.name} has no form for {type(self.live.model).__name__}, whose decoder writes "
                    "after a source; use integrated_gradients, attnlrp, attcat, gae or occlusion."
                )
        sites: Sites = frozenset().union(*(method.sites for method in how.methods))
        fused = Site.RELEVANCE_GRADIENT in sites
        self.live.verify(row, maps=bool(sites - UNLISTENED), seam=fused)

    def packs(self, rows: Sequence[TokenRow], how: How) -> list[list[int]]:
        """Which rows go through the model together."""
        step = self.live.step
        lengths = [-(-len(row.ids) // step) * step for row in rows]
        return packs(
            lengths,
            how.batch_tokens,
            padding_proof=self.live.padding_proof,
            most=how.batch_size or self.live.batch_size,
            kinds=[kind_of(row) for row in rows],
            worth=GPU if self.live.device.type == "cuda" else PROCESSOR,
        )

    def prepared(self, row: TokenRow, how: How) -> TokenRow:
        """The row with the segment ids that ``how`` asks for, refused where its mask hides all."""
        if how.token_types == "zeros" and row.token_types is not None:
            row = dataclasses.replace(row, token_types=(0,) * len(row))
        if self.live.ends:
            both = zip(row.special, row.ids, strict=True)
            special = tuple(own or i in self.live.ends for own, i in both)
            row = dataclasses.replace(row, special=special)
        if not any(self.masked(row, how).attention):
            raise BadInput("every token of the text is masked out; no token is left to explain.")
        return row

    def masked(self, row: TokenRow, how: How) -> TokenRow:
        """The row as the explanation pass reads it; what is predicted is asked of the row itself."""
        return explain_masked(row, how.explain_mask, self.tokenizer)

    def row_notes(self, row: TokenRow) -> tuple[str, ...]:
        """What the reader must know of a text: what was cut off, what the model does not know."""
        notes = []
        if row.cut:
            whole = row.cut + len(row)
            notes.append(f"{row.cut} of {whole} tokens were cut off (long='truncate')")
        unknown = row.ids.count(getattr(self.tokenizer, "unk_token_id", None))
        if unknown and row.texts:
            notes.append(f"{unknown} of {len(row)} tokens are unknown to the model's vocabulary")
        return tuple(notes)

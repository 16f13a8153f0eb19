"""LiveModel: what must be known of a model before its numbers are believed."""

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tokenlight.capture import seam
from tokenlight.capture.head import head_of, unwrapped
from tokenlight.capture.probe import routes, verified
from tokenlight.capture.replay import Replays
from tokenlight.capture.rewired import locked, rewired, takes_seam, token_embeddings
from tokenlight.capture.sight import TYPES, VOCABULARY, Patches, Sight, image_token
from tokenlight.capture.transfer import joined, sent
from tokenlight.capture.turns import lent
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, NotFinite, UnsupportedModel

OWN = ("at", "answer", "anchor")  # arguments that are read here and not handed to the model
STEP = 16  # bytes that a GPU reads at once: a row of a mask begins with them
BATCH_TOKENS = 2048  # on a processor; a GPU takes more
Pooling = Literal["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len"]
Similarity = Literal["cosine", "dot"]
Route = Literal["seam", "eager"]
# Arguments of the model, which tokens are real, and what stands in for a missing padding id.
Inputs = tuple[dict[str, Tensor], Tensor, int | None]


class LiveModel:
    """A transformers model with its head read, its attention route chosen, its padding known."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        pooling: Pooling = "mean",
        similarity: Similarity = "cosine",
    ) -> None:
        self.model = unwrapped(model)
        self.tokenizer = tokenizer  # names [MASK] and its like, which a config does not
        self.head = head_of(self.model, tokenizer)
        # From token vectors to the vector of a text, and from two of them to a number, where no head does it.
        self.pooling, self.similarity = pooling, similarity
        if self.head.reads == "pair" and similarity == "dot":
            self.head = replace(self.head, labels=("dot product",))
        config = self.model.config.get_text_config()
        with locked(self.model):  # another thread may have lent it a padding id for its pass
            self.pad_id: int | None = getattr(config, "pad_token_id", None)
        self.route: Route = "seam" if takes_seam(self.model) else "eager"
        self._fusable = self.route == "seam"
        self.accepts = set(inspect.signature(self.model.forward).parameters)
        self._embedding = token_embeddings(self.model)[0]
        self.patches = Patches(self.model) if self.head.reads == "image" else None
        token = image_token(self.model) if self.head.reads == "next" else None
        self.sight = None if token is None else Sight(self.model, token, self.accepts)
        # Weights that lie on a disk are meta tensors, too, and come when their module is called.
        offloaded = any(hasattr(module, "_hf_hook") for module in self.model.modules())
        if not offloaded and self.device.type == "meta":
            raise UnsupportedModel(
                f"{type(self.model).__name__} lies on the meta device: its weights have shapes but "
                "no numbers. Load them with from_pretrained."
            )
        self.vocabulary = VOCABULARY
        if self.patches is None:
            words = len(self._embedding.weight)  # type: ignore[arg-type]
            self.vocabulary = max(words, 0 if token is None else token + 1)
        # At most so many tokens and rows go through at once, where a caller does not say.
        self.batch_tokens: int | None = None
        self.batch_size: int | None = None
        # Some models let padding change the tokens beside it; such rows go through alone or with
        # rows of their own length. Found out by verify().
        self.padding_proof = True
        # Of an encoder-decoder classifier, tokens and layers are the encoder's; of one that writes,
        # those of both: its rows are a source and what was written after it.
        parted = bool(self.model.config.is_encoder_decoder)
        self.writes_from_source = parted and self.head.reads == "next"
        self.encoder: nn.Module = self.model.get_encoder() if parted else self.model
        if self.sight is not None:  # what its vision tower attends to is no text's
            self.encoder = self.sight.language
        # Of whose tokens something is explained.
        self.listened_parts = {*(self.model if self.writes_from_source else self.encoder).modules()}

    @property
    def listened(self) -> str:
        """The attention implementation under which maps are had."""
        return seam.NAME if self.route == "seam" else "eager"

    @property
    def ends(self) -> set[int]:
        """Ids at which an encoder-decoder classifier finds what it reads: its text may not lose them."""
        if self.encoder is self.model or self.head.reads != "text":
            return set()
        found = self.model.config.eos_token_id
        return set(found) if isinstance(found, list) else {found}

    @property
    def device(self) -> torch.device:
        """Where token ids go in; a model spread over devices takes the rest from there itself."""
        weight = self._embedding.weight if self.patches is None else self.patches.weight
        assert isinstance(weight, Tensor)
        return weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The floating dtype of the model's embeddings: what it computes in."""
        return self.model.dtype  # type: ignore[no-any-return]

    @property
    def max_tokens(self) -> int | None:
        """How many tokens the positions of this model reach; None where nothing limits them."""
        if self.patches is not None:
            return None  # a picture has as many patches as its processor makes
        config = self.model.config.get_text_config()
        limit = getattr(config, "max_position_embeddings", None)
        for name, module in self.encoder.named_modules():
            # RoBERTa and its kin count positions from behind the padding index.
            if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
                start = 0 if module.padding_idx is None else module.padding_idx + 1
                return int(module.num_embeddings - start)
        return limit if isinstance(limit, int) and limit > 0 else None

    def inputs(self, rows: Sequence[Any], width: int | None = None) -> Inputs:
        """Rows as right-padded arguments of the model; which tokens are real (``batch token``); and
        an id that stands in for the padding id where the model has none."""
        if self.patches is not None:
            pixels = self.patches.pixels(rows)
            return {"pixel_values": pixels}, pixels.new_ones(len(rows), len(rows[0])).bool(), None
        lengths = [len(row.ids) for row in rows]
        source, sight = source_of(rows), self.sight
        width = width or self._width({*lengths}, source)
        filler = self.filler(rows)
        padded = min(lengths) < width
        if filler is None:
            if padded:
                raise UnsupportedModel(
                    "this model has no padding id and the batch uses its whole vocabulary; set "
                    "model.config.pad_token_id."
                )
            filler = self.vocabulary  # an id that no token has
        inside = np.arange(width) < np.array(lengths)[:, None]
        assert (source is not None) == self.writes_from_source, "a source belongs to its row"

        def table(values: Sequence[Any], fill: int) -> Tensor:
            laid = joined(values).reshape(-1, width) if not padded else np.full(inside.shape, fill)
            if padded:
                laid[inside] = joined(values)
            return sent(laid, self.device)

        real = sent(inside, self.device)
        masked = not all([getattr(row, "all_seen", False) for row in rows])
        own = [getattr(row, "array", row.ids) for row in rows]
        ids = own if sight is None else [sight.ids(row) for row in rows]
        arguments = {
            "input_ids": table(ids, filler),
            "attention_mask": table([row.attention for row in rows], 0) if masked else real.long(),
        }
        types = [row.token_types for row in rows]
        kinds = [name for name in TYPES if name in self.accepts]
        if kinds and any([own is not None for own in types]):
            # A row without segment ids is all segment 0, whatever its neighbours in the batch have.
            filled = [(0,) * n if t is None else t for n, t in zip(lengths, types, strict=True)]
            arguments[kinds[0]] = table(filled, 0)
        if sight is not None:
            arguments["pixel_values"] = sight.pixels(rows)
        if source is not None:
            arguments = {
                f"{reader}{name}": given[:, places]
                for reader, places in (("", slice(source)), ("decoder_", slice(source, None)))
                for name, given in arguments.items()
            }
        return arguments | self._asked(rows), real, filler

    def _width(self, lengths: set[int], source: int | None) -> int:
        """Of rows side by side. A GPU makes ready for every new shape: there a batch that is padded in
        any case is padded to a multiple of ``step``, so that shapes return."""
        longest, step = max(lengths), self.step
        fixed = len(lengths) == 1 or source is not None
        return longest if fixed else min(-(-longest // step) * step, self.max_tokens or 1 << 30)

    @property
    def step(self) -> int:
        """By how many tokens padded batches grow."""
        steps = self.device.type == "cuda" and self.padding_proof and self.sight is None
        return max(1, STEP // self.dtype.itemsize) if steps else 1

    def check_ids(self, low: int, high: int) -> None:
        """Refuse ids outside the vocabulary: on a GPU they do not raise but kill its context."""
        if low < 0 or high >= self.vocabulary:
            known = f"but this model knows 0 to {self.vocabulary - 1}"
            raise BadInput(f"token ids run from {low} to {high}, {known}.")

    def filler(self, rows: Sequence[Any]) -> int | None:
        """The padding id; of a model without one, the lowest that no row uses, if any; none for pictures."""
        if self.pad_id is not None or self.patches is not None:
            return self.pad_id
        used = np.unique(np.concatenate([row.ids for row in rows]))
        free = np.setdiff1d(np.arange(min(self.vocabulary, len(used) + 1)), used)
        return int(free[0]) if len(free) else None

    def _asked(self, rows: Sequence[Any]) -> dict[str, Tensor]:
        """What the head must be told: the tokens it is asked about, or the vectors it compares with."""
        if self.head.reads in ("next", "mask", "token"):
            before = source_of(rows) or 0
            (foretold,) = {len(row.answer) for row in rows}
            if foretold:
                ends = [(row, len(row) - before) for row in rows]
                at = [[*(row.asked or range(end - foretold, end))] for row, end in ends]
                ids = torch.tensor([row.answer for row in rows])
                return {"at": torch.tensor(at), "answer": ids}
            if rows[0].asked:  # what stands at several tokens, all of it
                return {"at": torch.tensor([row.asked for row in rows]) - before}
            last = [len(row) - 1 if row.at is None else row.at for row in rows]
            return {"at": torch.tensor(last) - before}
        if self.head.reads == "pair":
            # Passes that read attention or vectors alone compare with nothing.
            anchors = [(0.0,) if row.anchor is None else row.anchor for row in rows]
            return {"anchor": sent(anchors, self.device, self.dtype)}
        return {}

    def call(self, arguments: dict[str, Tensor], **flags: Any) -> Any:
        """The model's own forward; caches, which nobody reads here, are switched off."""
        if "use_cache" in self.accepts or "past_key_values" in self.accepts:
            flags["use_cache"] = False
        if "at" in arguments and "logits_to_keep" in self.accepts:
            # A vocabulary is wide: logits are computed where they are read, and nowhere else.
            flags["logits_to_keep"] = sent(torch.unique(arguments["at"]), self.device)
        given = {name: value for name, value in arguments.items() if name not in OWN}
        if self.sight is not None:
            given |= self.sight.laid(given["pixel_values"])
        try:
            with lent(self.sight.keeping if self.sight else [], rope_deltas=None):
                return self.model(**given, return_dict=True, **flags)
        except (ValueError, AssertionError, NotImplementedError) as refusal:
            name = type(self.model).__name__
            raise UnsupportedModel(f"{name} itself refuses this pass: {refusal}") from refusal

    def run(
        self,
        given: Inputs,
        *within: AbstractContextManager[Any],
        attention: str = "own",
        gradients: bool = False,
        examples: Tensor | None = None,
        **flags: Any,
    ) -> tuple[Any, Tensor]:
        """One pass of the rewired model, ``within`` more, over ``given`` or the ``examples`` of it that
        are named, as often as they are: its outputs and its logits."""
        arguments, _, filler = given
        if examples is not None:
            arguments = {k: table[examples.to(table.device)] for k, table in arguments.items()}
        with ExitStack() as undo:
            wired = rewired(self.model, attention=attention, gradients=gradients, filler=filler)
            for context in (wired, *within):
                undo.enter_context(context)
            outputs = self.call(arguments, **flags)
            return outputs, self.logits_of(outputs, arguments)

    def generate(self, source: TokenRow, tokens: int) -> list[int]:
        """What the model writes after a source by its own generation config, its start included."""
        ids, mask = (sent([own], self.device) for own in (source.ids, source.attention))
        with rewired(self.model, attention="own", gradients=False):
            found = self.model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=tokens)
        return [int(i) for i in found[0]]

    def logits_of(
        self, outputs: Any, arguments: dict[str, Tensor], *, others: bool = True
    ) -> Tensor:
        """``batch label`` of a classifier; ``batch token 2`` (start, end) of a span head. Of a head with
        logits at every token, those at the token it is asked about; of an answer foretold together ``batch
        written 2``: each token's logit, and ln Σ exp of all ``others``', which may stand off the graph."""
        if self.head.kind == "span":
            return torch.stack((outputs.start_logits, outputs.end_logits), dim=-1)
        if self.head.reads == "pair":
            vectors = self.pooled(outputs, arguments)
            if self.similarity == "cosine":
                vectors = normalize(vectors, dim=-1, eps=1e-12)
            return (vectors * arguments["anchor"].to(vectors)).sum(dim=-1, keepdim=True)
        logits: Tensor = outputs.logits
        if "at" in arguments and logits.dim() == 3:
            at = arguments["at"]
            if "logits_to_keep" in self.accepts:
                at = torch.searchsorted(torch.unique(at), at)
            rows = torch.arange(len(at), device=logits.device)
            logits = logits[rows.reshape(-1, *[1] * (at.dim() - 1)), sent(at, logits.device)]
            if "answer" in arguments:
                ids = sent(arguments["answer"], logits.device)[..., None]
                rest = (logits if others else logits.detach()).scatter(-1, ids, -torch.inf)
                rest = rest.logsumexp(dim=-1, keepdim=True)
                return torch.cat((logits.gather(-1, ids), rest), dim=-1)
            if at.dim() == 2:  # of several tokens, each by itself
                return logits
        if logits.dim() != 2 or logits.shape[1] != len(self.head.labels):
            raise UnsupportedModel(
                f"{type(self.model).__name__} gives logits of shape {tuple(logits.shape)}, not a row for "
                f"each text with one for each of the {len(self.head.labels)} labels in its config."
            )
        return logits

    def pooled(self, outputs: Any, arguments: dict[str, Tensor]) -> Tensor:
        """``batch hidden``: the vector of each text, as the last hidden states are pooled."""
        hidden: Tensor = outputs.last_hidden_state
        seen = arguments["attention_mask"].to(hidden)
        if self.pooling == "cls":
            return hidden[:, 0]
        if self.pooling == "last":
            ends = (arguments["attention_mask"].cumsum(dim=1)).argmax(dim=1)
            return hidden[torch.arange(len(ends), device=ends.device), ends]
        if self.pooling == "max":
            return hidden.masked_fill(seen[..., None] == 0, -torch.inf).amax(dim=1)
        if self.pooling == "weightedmean":  # later tokens, which have read more, count more
            seen = seen * torch.arange(1, seen.shape[1] + 1, device=seen.device).to(seen)
        total = seen.sum(dim=1, keepdim=True)
        total = total.sqrt() if self.pooling == "mean_sqrt_len" else total
        return (hidden * seen[..., None]).sum(dim=1) / total

    def verify(self, row: TokenRow, *, maps: bool, seam: bool = False) -> None:
        """Before a model's first use: are its weights numbers, does padding beside a text change its
        logits; and before its attention is first listened to (``maps``), does that change them? ``seam``:
        it may go through the seam, if that changes nothing."""
        self.padding_proof = verified(self, row, maps=maps)
        if seam and self._fusable and not self.heard:
            try:
                verified(self, row, maps=True)
            except (UnsupportedModel, NotFinite):
                self.route, self._fusable = "seam", False

    @cached_property
    def half(self) -> bool:
        """Whether it computes in half precision on a GPU, where a pass waits for Python unless large."""
        return self.device.type == "cuda" and self.dtype in (torch.float16, torch.bfloat16)

    @cached_property
    def budget(self) -> int:
        """Tokens that go through the model at once where nobody says: as many as keep the device busy
        and fill no more than a quarter of it (a token's graph takes some twenty hidden states a block)."""
        if self.device.type != "cuda":
            return BATCH_TOKENS
        config = self.model.config.get_text_config()
        width, blocks = (getattr(config, n, 0) for n in ("hidden_size", "num_hidden_layers"))
        a_token = 20 * (width or 0) * (blocks or 0) * self.dtype.itemsize
        room = torch.cuda.get_device_properties(self.device).total_memory // 4
        most = (32 if self.half else 16) * BATCH_TOKENS
        return max(BATCH_TOKENS, min(most, room // max(1, a_token)))

    @cached_property
    def replays(self) -> Replays:
        """Its passes that are launched at once."""
        return Replays(self.model, self.dtype)

    @property
    def heard(self) -> bool:
        """Whether attention through the seam was seen to change no logit."""
        return self.route == "seam" and self.model in routes

    def hidden_states_of(self, outputs: Any) -> tuple[Tensor, ...]:
        """h^0 … h^L, each ``batch token hidden``; none where the model does not give them. Of one
        that writes from a source, its encoder's and behind them its decoder's."""
        names = ["hidden_states"]
        if self.model.config.is_encoder_decoder:
            parts = ["encoder", "decoder"][: 1 + self.writes_from_source]
            names = [f"{part}_hidden_states" for part in parts]
        found = [state for name in names for state in getattr(outputs, name, None) or ()]
        return tuple(found) if all(isinstance(state, Tensor) for state in found) else ()


def source_of(rows: Sequence[Any]) -> int | None:
    """How many tokens of each row of a batch an encoder reads; None where one part reads them all."""
    (found,) = {getattr(row, "source", None) for row in rows}
    return found

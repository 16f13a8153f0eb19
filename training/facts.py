"""Train a writer: a small Llama that answers questions from short documents of facts.

Its truth is planted: every fact is in exactly one document, so it is known which document an answer came
from. ``python -m training.facts --out DIR`` trains, measures and writes a plain checkpoint. None is embedded:
6,000 steps of 256 gave an exact match of 0.469 on 2,000 drawn cases at a rate of 1e-3, and 0.768, its loss
still falling, at 3e-3 (818 thousand weights, one H200): it finds the kind of value asked for,
not always whose.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def _listed(words: str) -> list[str]:
    return words.split()


NAMES = _listed("""
    Anna Ben Clara David Emma Felix Grace Henry Ida Jack Karen Leo Maria Noah Olivia Paul
    Quinn Rosa Simon Tara Ursula Victor Wendy Xavier Yara Zoe Adam Bella Carl Diana Erik
    Fiona George Hanna Ivan Julia Kevin Laura Martin Nina Oscar Petra Ralph Sarah Thomas Uma
    Vera Walter
    """)
VALUES = {
    "city": _listed("""
    Paris London Rome Berlin Madrid Vienna Oslo Lisbon Athens Dublin Prague Warsaw Tokyo
    Boston Chicago Denver Lima Cairo Sydney Delhi Moscow Geneva Milan Naples
    """),
    "job": _listed("""
    baker teacher doctor painter lawyer farmer pilot singer nurse sailor writer plumber
    driver gardener judge dancer tailor butcher chemist barber
    """),
    "food": _listed("""
    pasta soup bread cheese rice fish salad cake apples honey pizza beans plums eggs nuts
    lemons pears noodles chocolate pancakes
    """),
    "animal": _listed("""
    dog cat horse parrot rabbit goat turtle hamster snake donkey duck sheep pony canary
    lizard goose
    """),
    "month": _listed("""
    January February March April May June July August September October November December
    """),
}
# What is asked for: two ways to say it in a document, the question, the answer.
RELATIONS = {
    "city": (
        ("{n} lives in {v} .", "The home of {n} is in {v} ."),
        "Where does {n} live ?",
        "{n} lives in {v} .",
    ),
    "job": (
        ("{n} works as a {v} .", "{n} is a {v} by trade ."),
        "What does {n} do for a living ?",
        "{n} works as a {v} .",
    ),
    "food": (
        ("{n} likes {v} best .", "The favorite food of {n} is {v} ."),
        "What does {n} like to eat ?",
        "{n} likes {v} best .",
    ),
    "animal": (
        ("{n} has a {v} .", "At home {n} keeps a {v} ."),
        "Which animal does {n} have ?",
        "{n} has a {v} .",
    ),
    "month": (
        ("{n} was born in {v} .", "The birthday of {n} is in {v} ."),
        "When was {n} born ?",
        "{n} was born in {v} .",
    ),
}
TEMPLATES = (
    "{documents} {question}",
    "{documents} Question : {question} Answer :",
    "Documents : {documents} Question : {question} Answer :",
)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
MORE = _listed("Document Documents Question Answer Context : . ? , ; ! 1 2 3 4 5 6 7 8 9 [ ] ( )")
POSITIONS = 256


@dataclass(frozen=True, slots=True)
class Case:
    """Documents, a question about one of them, its answer, and which document holds it."""

    documents: tuple[str, ...]
    question: str
    answer: str
    value: str
    right: int


def case(draw: random.Random) -> Case:
    """Two to four documents, each about one person, and a question about one fact in them. Most other
    documents tell the same of another person: a value of the right kind is not yet the answer."""
    people = draw.sample(NAMES, draw.randint(2, 4))
    asked = draw.choice(list(VALUES))
    right = draw.randrange(len(people))
    facts = []
    for number in range(len(people)):
        own = draw.sample(list(VALUES), draw.randint(1, 2))
        if asked not in own and (number == right or draw.random() < 0.8):
            own[draw.randrange(len(own))] = asked
        facts.append(own)
    documents = []
    value = ""
    for number, (name, kinds) in enumerate(zip(people, facts, strict=True)):
        sentences = []
        for kind in kinds:
            drawn = draw.choice(VALUES[kind])
            value = drawn if (number, kind) == (right, asked) else value
            sentences.append(draw.choice(RELATIONS[kind][0]).format(n=name, v=drawn))
        documents.append(" ".join(sentences))
    _, question, answer = RELATIONS[asked]
    name = people[right]
    return Case(
        tuple(documents), question.format(n=name), answer.format(n=name, v=value), value, right
    )


def tokenizer() -> PreTrainedTokenizerFast:
    """Words as they are; ``<s>`` is put before a text by hand."""
    said = [
        sentence
        for ways, asked, answer in RELATIONS.values()
        for sentence in (*ways, asked, answer)
    ]
    words = {word for sentence in said for word in sentence.split() if "{" not in word}
    known = [
        *SPECIAL,
        *sorted(words | {*MORE, *NAMES, *(v for own in VALUES.values() for v in own)}),
    ]
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        model_max_length=POSITIONS,
    )  # fmt: skip


def rows(
    words: PreTrainedTokenizerFast, draw: random.Random, count: int
) -> list[tuple[list[int], int]]:
    """Ids of prompt and answer, and where the answer begins."""
    cases = [case(draw) for _ in range(count)]
    prompts = [
        draw.choice(TEMPLATES).format(documents=" ".join(one.documents), question=one.question)
        for one in cases
    ]
    known = words.get_vocab()  # every word stands between blanks: no need to ask the tokenizer
    pairs = zip(prompts, (one.answer for one in cases), strict=True)
    found = [([known[word] for word in text.split()] for text in pair) for pair in pairs]
    return [([1, *before, *after, 2], 1 + len(before)) for before, after in found]


def batch(words: PreTrainedTokenizerFast, draw: random.Random, size: int) -> tuple[Tensor, Tensor]:
    """Ids, right-padded, and weights: 1 where the answer is to be written, a tenth elsewhere."""
    found = rows(words, draw, size)
    width = max(len(ids) for ids, _ in found)
    ids = torch.zeros(size, width, dtype=torch.long)
    weights = torch.zeros(size, width)
    for i, (own, start) in enumerate(found):
        ids[i, : len(own)] = torch.tensor(own)
        weights[i, : len(own)] = 0.1
        weights[i, start : len(own)] = 1.0
    return ids, weights


def loss_of(model: LlamaForCausalLM, ids: Tensor, weights: Tensor) -> Tensor:
    """Weighted cross-entropy of each next token."""
    logits = model(input_ids=ids, attention_mask=(ids > 0).long()).logits[:, :-1].float()
    each = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    share = weights[:, 1:].flatten()
    return (each * share).sum() / share.sum()


@torch.no_grad()
def exact_match(
    model: LlamaForCausalLM, words: PreTrainedTokenizerFast, count: int, seed: int
) -> float:
    """Share of cases whose whole answer is written, token by token, as the likeliest one."""
    draw = random.Random(seed)
    right = 0
    device = model.device
    for ids, start in rows(words, draw, count):
        given = torch.tensor([ids], device=device)
        written = model(input_ids=given).logits[0, start - 1 : -1].argmax(dim=-1)
        right += int(torch.equal(written, given[0, start:]))
    return right / count


class Drawn(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Batches without end; every process that makes them draws its own."""

    def __init__(self, words: PreTrainedTokenizerFast, size: int, seed: int) -> None:
        """``size``: rows of a batch."""
        self.words = words
        self.size = size
        self.seed = seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Ids and weights, as :func:`batch` makes them."""
        worker = torch.utils.data.get_worker_info()
        draw = random.Random(1000 * self.seed + (worker.id if worker else 0))
        while True:
            yield batch(self.words, draw, self.size)


def trained(
    steps: int, size: int, rate: float, device: str, seed: int, processes: int
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """One model, from scratch; ``processes`` make the batches."""
    torch.manual_seed(seed)
    words = tokenizer()
    source = iter(
        torch.utils.data.DataLoader(Drawn(words, size, seed), None, num_workers=processes)
    )
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=128, intermediate_size=344, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=POSITIONS,
        tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1
    )
    for step in range(steps):
        ids, weights = next(source)
        loss = loss_of(model, ids.to(device), weights.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    return model.eval(), words


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--processes", type=int, default=4, help="that make the batches")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.perf_counter()
    model, words = trained(
        given.steps, given.batch, given.rate, given.device, given.seed, given.processes
    )
    model = model.half().float()  # as it is kept
    figures = {
        "exact_match": exact_match(model, words, 2000, seed=10_000 + given.seed),
        "rows": 2000,
        "steps": given.steps,
        "batch": given.batch,
        "seed": given.seed,
        "seconds": round(time.perf_counter() - began, 1),
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }
    model.half().save_pretrained(given.out)
    words.save_pretrained(given.out)
    (given.out / "measured.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

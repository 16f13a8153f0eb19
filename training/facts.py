"""Train a small Llama that answers questions from short documents of facts.

The ground truth is planted: every fact is in exactly one document, so it is known which document an answer
came from. ``python -m training.facts --out DIR`` trains, measures and writes a plain checkpoint. None is
embedded: 6,000 steps of 256 gave an exact match of 0.469 on 2,000 random cases at a learning rate of 1e-3,
and 0.768, its loss still falling, at 3e-3 (818 thousand weights, one H200): the model finds the kind of value
in question, but not always whose it is.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def split_words(words: str) -> list[str]:
    """Split a table of words at its blanks."""
    return words.split()


NAMES = split_words("""
    Anna Ben Clara David Emma Felix Grace Henry Ida Jack Karen Leo Maria Noah Olivia Paul
    Quinn Rosa Simon Tara Ursula Victor Wendy Xavier Yara Zoe Adam Bella Carl Diana Erik
    Fiona George Hanna Ivan Julia Kevin Laura Martin Nina Oscar Petra Ralph Sarah Thomas Uma
    Vera Walter
    """)
VALUES = {
    "city": split_words("""
    Paris London Rome Berlin Madrid Vienna Oslo Lisbon Athens Dublin Prague Warsaw Tokyo
    Boston Chicago Denver Lima Cairo Sydney Delhi Moscow Geneva Milan Naples
    """),
    "job": split_words("""
    baker teacher doctor painter lawyer farmer pilot singer nurse sailor writer plumber
    driver gardener judge dancer tailor butcher chemist barber
    """),
    "food": split_words("""
    pasta soup bread cheese rice fish salad cake apples honey pizza beans plums eggs nuts
    lemons pears noodles chocolate pancakes
    """),
    "animal": split_words("""
    dog cat horse parrot rabbit goat turtle hamster snake donkey duck sheep pony canary
    lizard goose
    """),
    "month": split_words("""
    January February March April May June July August September October November December
    """),
}


class Relation(NamedTuple):
    """Templates of a kind of fact, in which ``{n}`` is a name and ``{v}`` a value.

    Attributes:
        statements: Two ways to state the fact in a document.
        question: The question about it.
        answer: The answer.
    """

    statements: tuple[str, str]
    question: str
    answer: str


RELATIONS = {
    "city": Relation(
        ("{n} lives in {v} .", "The home of {n} is in {v} ."),
        "Where does {n} live ?",
        "{n} lives in {v} .",
    ),
    "job": Relation(
        ("{n} works as a {v} .", "{n} is a {v} by trade ."),
        "What does {n} do for a living ?",
        "{n} works as a {v} .",
    ),
    "food": Relation(
        ("{n} likes {v} best .", "The favorite food of {n} is {v} ."),
        "What does {n} like to eat ?",
        "{n} likes {v} best .",
    ),
    "animal": Relation(
        ("{n} has a {v} .", "At home {n} keeps a {v} ."),
        "Which animal does {n} have ?",
        "{n} has a {v} .",
    ),
    "month": Relation(
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
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
PAD_ID, BOS_ID, EOS_ID = range(3)
EXTRA_WORDS = split_words(
    "Document Documents Question Answer Context : . ? , ; ! 1 2 3 4 5 6 7 8 9 [ ] ( )"
)
MAX_POSITIONS = 256
SAME_KIND_SHARE = 0.8  # of the other documents
PROMPT_LOSS_WEIGHT = 0.1
NUM_TEST_CASES = 2000
FIRST_TEST_SEED = 10_000
SEEDS_PER_RUN = 1000
LOG_INTERVAL_STEPS = 100


@dataclass(frozen=True, slots=True)
class Case:
    """Documents and a question about one of them.

    Attributes:
        documents: The documents.
        question: The question.
        answer: Its answer.
        value: The word of the answer that is a fact.
        right: Index of the document that holds the fact.
    """

    documents: tuple[str, ...]
    question: str
    answer: str
    value: str
    right: int


class EncodedCase(NamedTuple):
    """Token ids of a prompt with its answer.

    Attributes:
        ids: Token ids, ``<s>`` first and ``</s>`` last.
        answer_start: Position of the first token of the answer.
    """

    ids: list[int]
    answer_start: int


def draw_case(generator: random.Random) -> Case:
    """Draw two to four documents, each about one person, and a question about one fact in them.

    Most other documents state the same kind of fact about another person: a value of the right kind is not
    yet the answer.
    """
    people = generator.sample(NAMES, generator.randint(2, 4))
    asked_kind = generator.choice(list(VALUES))
    right = generator.randrange(len(people))
    kinds_by_person = []
    for index in range(len(people)):
        kinds = generator.sample(list(VALUES), generator.randint(1, 2))
        if asked_kind not in kinds and (index == right or generator.random() < SAME_KIND_SHARE):
            kinds[generator.randrange(len(kinds))] = asked_kind
        kinds_by_person.append(kinds)
    documents = []
    answer_value = ""
    for index, (name, kinds) in enumerate(zip(people, kinds_by_person, strict=True)):
        sentences = []
        for kind in kinds:
            value = generator.choice(VALUES[kind])
            if index == right and kind == asked_kind:
                answer_value = value
            statement = generator.choice(RELATIONS[kind].statements)
            sentences.append(statement.format(n=name, v=value))
        documents.append(" ".join(sentences))
    relation = RELATIONS[asked_kind]
    return Case(
        documents=tuple(documents),
        question=relation.question.format(n=people[right]),
        answer=relation.answer.format(n=people[right], v=answer_value),
        value=answer_value,
        right=right,
    )


def list_vocabulary() -> list[str]:
    """List every token: special ones first, then all words in alphabetical order."""
    words = {*EXTRA_WORDS, *NAMES}
    for values in VALUES.values():
        words.update(values)
    for relation in RELATIONS.values():
        for template in (*relation.statements, relation.question, relation.answer):
            words.update(word for word in template.split() if "{" not in word)
    return [*SPECIAL_TOKENS, *sorted(words)]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of whole words; the caller puts ``<s>`` before a text."""
    vocabulary = {word: index for index, word in enumerate(list_vocabulary())}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=MAX_POSITIONS,
    )


def draw_encoded_cases(
    tokenizer: PreTrainedTokenizerFast, generator: random.Random, count: int
) -> list[EncodedCase]:
    """Draw cases and encode each in a prompt template."""
    cases = [draw_case(generator) for _ in range(count)]
    vocabulary = tokenizer.get_vocab()
    encoded_cases = []
    for case in cases:
        template = generator.choice(TEMPLATES)
        prompt = template.format(documents=" ".join(case.documents), question=case.question)
        # Every word stands between blanks, so a look-up does what the tokenizer would do, and faster.
        prompt_ids = [vocabulary[word] for word in prompt.split()]
        answer_ids = [vocabulary[word] for word in case.answer.split()]
        ids = [BOS_ID, *prompt_ids, *answer_ids, EOS_ID]
        encoded_cases.append(EncodedCase(ids, answer_start=1 + len(prompt_ids)))
    return encoded_cases


def draw_batch(
    tokenizer: PreTrainedTokenizerFast, generator: random.Random, batch_size: int
) -> tuple[Tensor, Tensor]:
    """Draw a batch of cases.

    Returns:
        Ids, padded on the right, and the weight of each token's loss, both ``batch token``.
    """
    encoded_cases = draw_encoded_cases(tokenizer, generator, batch_size)
    width = max(len(encoded.ids) for encoded in encoded_cases)
    ids = torch.zeros(batch_size, width, dtype=torch.long)
    weights = torch.zeros(batch_size, width)
    for row, encoded in enumerate(encoded_cases):
        length = len(encoded.ids)
        ids[row, :length] = torch.tensor(encoded.ids)
        weights[row, :length] = PROMPT_LOSS_WEIGHT
        weights[row, encoded.answer_start : length] = 1.0
    return ids, weights


def compute_loss(model: LlamaForCausalLM, ids: Tensor, weights: Tensor) -> Tensor:
    """Compute the weighted cross-entropy of each next token."""
    attention_mask = (ids != PAD_ID).long()
    logits = model(input_ids=ids, attention_mask=attention_mask).logits[:, :-1].float()
    token_losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    token_weights = weights[:, 1:].flatten()
    return (token_losses * token_weights).sum() / token_weights.sum()


@torch.no_grad()
def measure_exact_match(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int, seed: int
) -> float:
    """Measure the share of cases in which every token of the answer has the highest logit."""
    generator = random.Random(seed)
    num_correct = 0
    for encoded in draw_encoded_cases(tokenizer, generator, count):
        ids = torch.tensor([encoded.ids], device=model.device)
        answer_logits = model(input_ids=ids).logits[0, encoded.answer_start - 1 : -1]
        predictions = answer_logits.argmax(dim=-1)
        num_correct += int(torch.equal(predictions, ids[0, encoded.answer_start :]))
    return num_correct / count


class RandomBatches(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Random batches without end; each worker process draws its own.

    Args:
        tokenizer: Encodes the cases.
        batch_size: Cases of a batch.
        seed: Seed of the draws.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, batch_size: int, seed: int) -> None:
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.seed = seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ids and loss weights, as :func:`draw_batch` makes them."""
        worker = torch.utils.data.get_worker_info()
        worker_index = worker.id if worker else 0
        generator = random.Random(SEEDS_PER_RUN * self.seed + worker_index)
        while True:
            yield draw_batch(self.tokenizer, generator, self.batch_size)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of a training.

    Attributes:
        steps: Optimizer steps.
        batch: Cases per step.
        rate: Peak learning rate.
        processes: Worker processes that make the batches.
        device: Name of a torch device.
        seed: Seed of the weights and of the cases.
    """

    steps: int = 12_000
    batch: int = 256
    rate: float = 3e-3
    processes: int = 4
    device: str = "cpu"
    seed: int = 0


def build_model(vocabulary_size: int) -> LlamaForCausalLM:
    """Build the model with random weights."""
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    return LlamaForCausalLM(config)


def train(settings: RunSettings) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Train a model from random weights, and return it with its tokenizer."""
    torch.manual_seed(settings.seed)
    tokenizer = build_tokenizer()
    dataset = RandomBatches(tokenizer, settings.batch, settings.seed)
    loader = torch.utils.data.DataLoader(dataset, None, num_workers=settings.processes)
    batches = iter(loader)
    model = build_model(len(tokenizer)).to(settings.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.rate, weight_decay=0.01, betas=(0.9, 0.98)
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.rate, total_steps=settings.steps, pct_start=0.1
    )
    for step in range(settings.steps):
        ids, weights = next(batches)
        loss = compute_loss(model, ids.to(settings.device), weights.to(settings.device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % LOG_INTERVAL_STEPS == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    return model.eval(), tokenizer


def main() -> None:
    """Train, measure, write."""
    defaults = RunSettings(device="cuda" if torch.cuda.is_available() else "cpu")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    for name, default in asdict(defaults).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = vars(parser.parse_args())
    out = options.pop("out")
    settings = RunSettings(**options)
    start_time = time.perf_counter()
    model, tokenizer = train(settings)
    model = model.half().float()  # rounded as the saved weights are
    test_seed = FIRST_TEST_SEED + settings.seed
    figures = {
        "exact_match": measure_exact_match(model, tokenizer, NUM_TEST_CASES, test_seed),
        "rows": NUM_TEST_CASES,
        "steps": settings.steps,
        "batch": settings.batch,
        "seed": settings.seed,
        "seconds": round(time.perf_counter() - start_time, 1),
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "measured.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

"""Which document did an instruct model's own answer come from? Facts are planted, so that it is known.

    python benchmarks/document_facts.py --model FOLDER --cases 200 --records NAME.jsonl -o NAME.json

Six documents tell of six people; a question asks for one fact of one of them, which stands in one document
alone. The model answers in its own words; cases with the right fact in the answer are kept. Scores of that
answer are summed by document. The cost is the time (on a processor, its own; on a GPU, that which passes)
relative to generating the answer. ``--facts 2`` asks about short documents, with two facts of each person.

Every case is written to ``--records`` as soon as it is measured; the same command goes on where it was
stopped.

Where no two documents state facts of one kind (``--distinct``), the answer is one sentence, and it is right
only if it names nobody but the person who is asked about: a sentence with the name from one document and the
fact from another has two sources.

A right answer may be a guess. ``--verify`` keeps a case only if the answer follows the document: with another
value of the fact in that document, and nothing else changed, the model answers that value.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pair_records import read_records, wilson

from tokenlight import Context, Continuation, Explainer
from tokenlight.data.probabilities import compute_continuation_log_probability
from tokenlight.inputs.prompt import encode_prompt
from tokenlight.perturb.logits_stream import stream_logits
from tokenlight.perturb.variants import Perturber, ReplacementIds

NUM_DOCUMENTS = 6
MAX_NEW_TOKENS = 16
METHODS: dict[str, Any] = {
    "attnlrp": "attnlrp",
    "attnlrp, logits": "logits",
    "attnlrp, contrasts": "contrasts",
    "leave one document out": "deletions",
    "cp_lrp": "cp_lrp",
    "grad_x_input": "grad_x_input",
    "context_cite, 32 ablations": ("context_cite", {"units": "document", "num_samples": 32}),
    "context_cite, 64 ablations": ("context_cite", {"units": "document", "num_samples": 64}),
    "occlusion of documents": ("occlusion", {"units": "document"}),
    "random": "random",
}
NAMES = (
    "Alice Moreau", "Victor Lund", "Clara Jensen", "Hugo Bennett", "Nadia Petrov", "Oscar Flynn",
    "Irene Castle", "Felix Howard", "Marta Silva", "Simon Clarke", "Julia Stone", "Peter Novak",
)  # fmt: skip
# A fact: the sentence that states it, the question that asks for it, and its possible values.
FACTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("{name} lives in the city of {value}.", "In which city does {name} live?",
     ("Lisbon", "Oslo", "Vienna", "Dublin", "Athens", "Prague", "Warsaw", "Madrid")),
    ("{name} works as a {value}.", "What is the profession of {name}?",
     ("baker", "pilot", "lawyer", "nurse", "painter", "farmer", "teacher", "carpenter")),
    ("{name} has a pet {value}.", "Which pet does {name} have?",
     ("parrot", "rabbit", "turtle", "hamster", "lizard", "kitten", "pony", "goldfish")),
    ("The favorite color of {name} is {value}.", "What is the favorite color of {name}?",
     ("purple", "orange", "green", "yellow", "blue", "red", "pink", "brown")),
    ("{name} plays the {value} every evening.", "Which instrument does {name} play?",
     ("violin", "piano", "guitar", "flute", "trumpet", "harp", "cello", "drums")),
)  # fmt: skip

# With those above, enough for two facts in each document that no other document has.
FURTHER_FACTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("{name} was born in {value}.", "Where was {name} born?",
     ("Japan", "Brazil", "Kenya", "Norway", "Egypt", "Peru", "India", "Greece")),
    ("{name} ordered {value} for lunch.", "What did {name} order for lunch?",
     ("soup", "pizza", "salad", "pasta", "rice", "fish", "steak", "curry")),
    ("{name} is writing a book about {value}.", "What is {name} writing a book about?",
     ("whales", "bridges", "comets", "castles", "spiders", "volcanoes", "trains", "bees")),
    ("{name} won the first prize in {value}.", "In what did {name} win the first prize?",
     ("chess", "swimming", "cooking", "archery", "dancing", "rowing", "singing", "fencing")),
    ("{name} lost a {value} at the station.", "What did {name} lose at the station?",
     ("wallet", "camera", "scarf", "ticket", "jacket", "watch", "ring", "hat")),
    ("{name} drives a {value} to work.", "What does {name} drive to work?",
     ("truck", "tractor", "motorcycle", "van", "taxi", "scooter", "tram", "jeep")),
    ("{name} studies {value} at the university.", "What does {name} study at the university?",
     ("history", "biology", "law", "music", "chemistry", "physics", "medicine", "economics")),
)  # fmt: skip
ALL_FACTS = FACTS + FURTHER_FACTS
# The kinds that are asked for among distinct facts: color, birth, book, loss. A model of 135 million
# parameters finds half of these, and an eighth of the others.
ASKED_KINDS = (3, 5, 7, 9)


@dataclass(frozen=True)
class Case:
    """Documents with a question, the fact that answers it, and the document that states it.

    Attributes:
        context: The documents and the question.
        value: The fact that answers it.
        index: The document that states it.
        other_value: A value of the same kind that no document states.
        name: The person who is asked about, if an answer that names another one is wrong.
    """

    context: Context
    value: str
    index: int
    other_value: str
    name: str = ""

    def is_answered_by(self, answer: str) -> bool:
        """Return whether an answer states the fact, and if it names a person, the right one."""
        if self.name:
            others = set(" ".join(NAMES).split()) - set(self.name.split())
            words = re.findall(r"\w+", answer)
            return self.value in words and others.isdisjoint(words)
        return self.value.lower() in answer.lower()

    def change_fact(self) -> Context:
        """Return the same documents, with another value of the fact that is asked for."""
        documents = list(self.context.documents)
        documents[self.index] = documents[self.index].replace(self.value, self.other_value)
        return replace(self.context, documents=tuple(documents))


def build_case(seed: int) -> Case:
    """Return a case: every document states all facts of one person, with values of its own."""
    draw = np.random.default_rng([23, seed])
    names = draw.choice(NAMES, NUM_DOCUMENTS, replace=False)
    values = [draw.choice(choices, NUM_DOCUMENTS, replace=False) for _, _, choices in FACTS]
    documents = []
    for person, name in enumerate(names):
        order = draw.permutation(len(FACTS))
        sentences = [FACTS[i][0].format(name=name, value=values[i][person]) for i in order]
        documents.append(" ".join(sentences))
    index = int(draw.integers(NUM_DOCUMENTS))
    fact = int(draw.integers(len(FACTS)))
    question = FACTS[fact][1].format(name=names[index])
    return build_named_case(documents, question, values[fact], index, FACTS[fact][2])


def build_named_case(
    documents: Sequence[str],
    question: str,
    stated: Sequence[str],
    index: int,
    values: Sequence[str],
) -> Case:
    """Return a case with the first value of the fact that no document states."""
    other_value = next(value for value in values if value not in stated)
    return Case(Context(documents, question, "chat"), str(stated[index]), index, other_value)


def build_short_case(seed: int, num_facts: int) -> Case:
    """Return a case whose documents state so many facts of a person, that which is asked for among them."""
    draw = np.random.default_rng([29, num_facts, seed])
    names = draw.choice(NAMES, NUM_DOCUMENTS, replace=False)
    fact = int(draw.integers(len(FACTS)))
    others = [int(i) for i in draw.permutation(len(FACTS)) if i != fact]
    stated = [fact, *others[: num_facts - 1]]
    values = {i: draw.choice(FACTS[i][2], NUM_DOCUMENTS, replace=False) for i in stated}
    documents = []
    for person, name in enumerate(names):
        order = draw.permutation(stated)
        sentences = [FACTS[i][0].format(name=name, value=values[i][person]) for i in order]
        documents.append(" ".join(sentences))
    index = int(draw.integers(NUM_DOCUMENTS))
    question = FACTS[fact][1].format(name=names[index])
    return build_named_case(documents, question, values[fact], index, FACTS[fact][2])


def build_distinct_case(seed: int, num_facts: int) -> Case:
    """Return a case whose documents state different facts: none has a fact of the same kind as another."""
    draw = np.random.default_rng([37, num_facts, seed])
    names = draw.choice(NAMES, NUM_DOCUMENTS, replace=False)
    kind = int(draw.choice(ASKED_KINDS))
    others = [i for i in draw.permutation(len(ALL_FACTS)) if i != kind]
    kinds = draw.permutation([kind, *others[: NUM_DOCUMENTS * num_facts - 1]])
    values = {int(stated): str(draw.choice(ALL_FACTS[stated][2])) for stated in kinds}
    documents = []
    for person, name in enumerate(names):
        sentences = []
        for stated in kinds[person * num_facts : (person + 1) * num_facts]:
            sentences.append(ALL_FACTS[stated][0].format(name=name, value=values[int(stated)]))
        documents.append(" ".join(sentences))
    index = kinds.tolist().index(kind) // num_facts
    statement, _, choices = ALL_FACTS[kind]
    # A small model finds a sentence that it has to complete; it answers most questions by guessing.
    beginning, _, _ = statement.partition(" {value}")
    question = f"Complete the sentence: {beginning}"
    # Kinds share no value but those of places, so a value that no document has is looked for in the text.
    text = " ".join(documents)
    other_value = next(value for value in choices if value not in text)
    context = Context(documents, question.format(name=names[index]), "chat")
    return Case(context, values[kind], index, other_value, str(names[index]))


def draw_case(seed: int, num_facts: int | None, *, is_distinct: bool = False) -> Case:
    """Return a case with so many facts per document, by default with all of them."""
    if is_distinct:
        return build_distinct_case(seed, num_facts or 1)
    if num_facts is None:
        return build_case(seed)
    return build_short_case(seed, num_facts)


def read_clock() -> float:
    """Return the processor's seconds; those of the wall where a GPU computes, once it has finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def generate_answer(
    explainer: Explainer, context: Context, stop_strings: list[str] | None = None
) -> tuple[str, float]:
    """Return the model's own answer, up to one of some strings, and the processor seconds that it took."""
    row = encode_prompt(context, explainer.tokenizer, max_tokens=None)  # as explanations encode it
    input_ids = torch.tensor([row.ids], device=explainer.model.device)
    start = read_clock()
    with torch.inference_mode():
        output = explainer.model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            stop_strings=stop_strings,
            tokenizer=explainer.tokenizer,
        )
    seconds = read_clock() - start
    new_ids = output[0, input_ids.shape[1] :]
    return explainer.tokenizer.decode(new_ids, skip_special_tokens=True), seconds


def score_documents(
    explainer: Explainer, case: Case, answer: str, method: Any, **target_options: Any
) -> Sequence[float]:
    """Return the sum of the scores of each document for the whole answer."""
    if isinstance(method, str) and method in SCORERS:
        return SCORERS[method](explainer, case, answer)
    target = Continuation(answer, joint=True, **target_options)
    (attribution,) = explainer.explain(case.context, method, target, progress=False)
    return [part.total for part in attribution.group_by("document")][:NUM_DOCUMENTS]


def sum_logits(explainer: Explainer, case: Case, answer: str) -> Sequence[float]:
    """Return attnlrp's scores by document for the sum of the answer's logits."""
    return score_documents(explainer, case, answer, "attnlrp", against=None)


def sum_contrasts(explainer: Explainer, case: Case, answer: str) -> Sequence[float]:
    """Return attnlrp's scores by document: each token rather than its likely alternatives, summed."""
    totals = np.zeros(NUM_DOCUMENTS)
    for attribution in explainer.explain(
        case.context, "attnlrp", Continuation(answer), progress=False
    ):
        parts = attribution.group_by("document")[:NUM_DOCUMENTS]
        totals += [part.total for part in parts]
    return totals.tolist()


def delete_documents(explainer: Explainer, case: Case, answer: str) -> Sequence[float]:
    """Return how far the log-probability of the answer falls as each document is deleted."""
    target = Continuation(answer, joint=True)
    (attribution,) = explainer.explain(case.context, "random", target, progress=False)
    row = attribution.row
    perturber = Perturber(row, ReplacementIds.from_model(explainer.runner, explainer.tokenizer))
    variants = []
    for document in range(NUM_DOCUMENTS):
        positions = [i for i, segment in enumerate(row.segments) if segment == document]
        variants.append(perturber.remove_tokens(np.array(positions)))
    logits = stream_logits(explainer.runner, [row, *variants])
    whole, *without = [compute_continuation_log_probability(values) for values in logits]
    return [whole - value for value in without]


SCORERS: dict[str, Callable[[Explainer, Case, str], Sequence[float]]] = {
    "logits": sum_logits,
    "contrasts": sum_contrasts,
    "deletions": delete_documents,
}


def follows_document(explainer: Explainer, case: Case) -> bool:
    """Return whether the model answers another value where the document states that one."""
    answer, _ = generate_answer(explainer, case.change_fact())
    return case.other_value.lower() in answer.lower() and case.value.lower() not in answer.lower()


def measure_case(
    explainer: Explainer, case: Case, methods: dict[str, Any], *, verify: bool = False
) -> dict[str, Any]:
    """Return whether a case is answered, whether each method names its document, and the seconds."""
    stop_strings = [".", "\n"] if case.name else None
    answer, generating = generate_answer(explainer, case.context, stop_strings)
    is_right = case.is_answered_by(answer)
    is_kept = is_right and (not verify or follows_document(explainer, case))
    record: dict[str, Any] = {"answer": answer, "right": is_right, "kept": is_kept}
    record |= {"generating": generating, "found": {}, "seconds": {}, "totals": {}}
    record |= {"index": case.index, "value": case.value}
    if not is_kept:
        return record
    for label, method in methods.items():
        start = read_clock()
        totals = score_documents(explainer, case, answer, method)
        record["seconds"][label] = read_clock() - start
        record["totals"][label] = [float(total) for total in totals]
        record["found"][label] = int(np.argmax(totals)) == case.index
    return record


def summarize(records: Sequence[dict[str, Any]], labels: Iterable[str]) -> dict[str, Any]:
    """Return, for each method, how often it names the right document, and its cost."""
    kept = [record for record in records if record["kept"]]
    generating = sum(record["generating"] for record in kept)
    rows = {}
    for label in labels:
        share = sum(record["found"][label] for record in kept) / max(1, len(kept))
        low, high = wilson(share, max(1, len(kept)))
        seconds = sum(record["seconds"][label] for record in kept)
        cost = seconds / generating if generating else 0.0
        rows[label] = {"right": share, "low": low, "high": high, "cost": cost}
    num_right = sum(record["right"] for record in records)
    return {"asked": len(records), "right": num_right, "answered": len(kept), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", help="what the results call the model")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--facts", type=int, choices=range(1, 6), help="facts per document")
    parser.add_argument(
        "--distinct", action="store_true", help="no fact in one document is of a kind of another's"
    )
    parser.add_argument(
        "--verify", action="store_true", help="keep answers that follow the document"
    )
    parser.add_argument("--minutes", type=float, help="ask no further case after so many minutes")
    parser.add_argument("--method", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument(
        "--records", type=Path, required=True, help="one line per case, as measured"
    )
    parser.add_argument("-o", "--output", required=True)
    arguments = parser.parse_args()
    explainer = Explainer.from_pretrained(arguments.model, dtype="float32")
    methods = {label: METHODS[label] for label in arguments.method}
    records = read_records(arguments.records)
    stop_time = time.monotonic() + 60 * (arguments.minutes or np.inf)
    with arguments.records.open("a", encoding="utf-8") as file:
        for number in range(len(records), arguments.cases):
            if time.monotonic() > stop_time:
                break
            seed = arguments.first + number
            case = draw_case(seed, arguments.facts, is_distinct=arguments.distinct)
            record = measure_case(explainer, case, methods, verify=arguments.verify)
            records.append(record)
            print(json.dumps(record), file=file, flush=True)
    results = summarize(records, methods)
    results["model"] = arguments.name or Path(arguments.model).name
    path = Path(arguments.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

"""Counterfactual pairs of prompts: two that differ in one word, with two different right answers.

"The capital of France is" and "The capital of Italy is": what differs decided. Every template has a blank
for that word, and a list of words with the answers that count as right. The templates and lists were
written for this benchmark; which of the pairs a model answers is measured, not assumed.

    python benchmarks/pair_data.py    # write the data of the suite counterfactual_pairs

The suite has a row for every prompt, with another prompt for each word that decides, which differs in this
word alone. Templates that were held out were written after the default target was chosen, and are used for
no choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

SUITES = Path(__file__).parent.parent / "src" / "tokenlight" / "bench" / "suites"
SUITE_DATA = SUITES / "counterfactual_pairs.jsonl"

# How many of the following words each word of a list is paired with.
NEIGHBOURS = 2


@dataclass(frozen=True)
class Prompt:
    """A prompt that ends where its answer begins.

    Attributes:
        text: The prompt.
        start: Where the deciding word begins, in characters.
        end: Where it ends.
        answers: The words that count as right, without the blank before them.
    """

    text: str
    start: int
    end: int
    answers: tuple[str, ...]

    @property
    def word(self) -> str:
        return self.text[self.start : self.end]


@dataclass(frozen=True)
class Pair:
    """Two prompts that differ in one word alone."""

    family: str
    first: Prompt
    second: Prompt


COUNTRIES = {
    "France": "Paris", "Italy": "Rome", "Germany": "Berlin", "Spain": "Madrid", "Japan": "Tokyo",
    "China": "Beijing", "Russia": "Moscow", "England": "London", "Greece": "Athens", "Egypt": "Cairo",
    "Portugal": "Lisbon", "Austria": "Vienna", "Poland": "Warsaw", "Ireland": "Dublin", "Norway": "Oslo",
    "Sweden": "Stockholm", "Denmark": "Copenhagen", "Finland": "Helsinki", "Hungary": "Budapest",
    "Turkey": "Ankara", "India": "New", "Cuba": "Havana", "Peru": "Lima", "Canada": "Ottawa",
    "Thailand": "Bangkok", "Iraq": "Baghdad", "Iran": "Tehran", "Syria": "Damascus", "Kenya": "Nairobi",
}  # fmt: skip
LANGUAGES = {
    "France": "French", "Italy": "Italian", "Germany": "German", "Spain": "Spanish", "Japan": "Japanese",
    "China": "Chinese Mandarin", "Russia": "Russian", "England": "English", "Greece": "Greek",
    "Portugal": "Portuguese", "Poland": "Polish", "Sweden": "Swedish", "Turkey": "Turkish",
    "Finland": "Finnish", "Hungary": "Hungarian", "Korea": "Korean",
}  # fmt: skip
# City to country to language: two steps.
CITY_LANGUAGES = {
    "Paris": "French", "Rome": "Italian", "Berlin": "German", "Madrid": "Spanish", "Tokyo": "Japanese",
    "Beijing": "Chinese Mandarin", "Moscow": "Russian", "London": "English", "Athens": "Greek",
    "Lisbon": "Portuguese", "Warsaw": "Polish", "Stockholm": "Swedish", "Seoul": "Korean",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "good": "bad", "fast": "slow", "high": "low", "light": "dark", "young": "old",
    "rich": "poor", "happy": "sad", "strong": "weak", "wet": "dry", "hard": "soft", "full": "empty",
    "open": "closed", "early": "late", "true": "false", "loud": "quiet", "near": "far", "clean": "dirty",
    "left": "right", "thick": "thin",
}  # fmt: skip
YOUNG = {
    "dog": "puppy pup", "cat": "kitten", "cow": "calf", "sheep": "lamb", "horse": "foal", "duck": "duckling",
    "bear": "cub", "goat": "kid", "pig": "piglet", "lion": "cub",
}  # fmt: skip
COLOURS = {
    "grass": "green", "snow": "white", "blood": "red", "coal": "black", "lemons": "yellow",
    "carrots": "orange", "milk": "white",
}  # fmt: skip
DAYS = {
    "Monday": "Tuesday", "Tuesday": "Wednesday", "Wednesday": "Thursday", "Thursday": "Friday",
    "Friday": "Saturday", "Saturday": "Sunday", "Sunday": "Monday",
}  # fmt: skip
MONTHS = {
    "January": "February", "February": "March", "March": "April", "April": "May", "May": "June",
    "June": "July", "July": "August", "August": "September", "September": "October",
    "October": "November", "November": "December", "December": "January",
}  # fmt: skip
NUMBERS = {
    "one": "two", "two": "three", "three": "four", "four": "five", "five": "six", "six": "seven",
    "seven": "eight", "eight": "nine", "nine": "ten",
}  # fmt: skip
PLACES_OF_WORK = {
    "school": "teacher student", "hospital": "doctor nurse surgeon",
    "restaurant": "waiter waitress chef cook",
    "farm": "farmer", "bakery": "baker", "library": "librarian", "court": "judge lawyer",
    "church": "priest pastor minister", "laboratory": "scientist chemist", "garden": "gardener",
}  # fmt: skip
DEEDS = {
    "teaches": "teacher", "paints": "painter", "sings": "singer", "dances": "dancer", "writes": "writer",
    "bakes": "baker", "farms": "farmer", "drives": "driver", "hunts": "hunter", "acts": "actor",
    "photographs": "photographer",
}  # fmt: skip
# Words of one thing and of several, in turn.
NUMBER_WORDS = (
    ("dog", "dogs"), ("key", "keys"), ("book", "books"), ("child", "children"), ("car", "cars"),
    ("teacher", "teachers"), ("flower", "flowers"), ("man", "men"), ("bird", "birds"), ("apple", "apples"),
)  # fmt: skip
SINGULAR = "is was has looks seems"
PLURAL = "are were have look seem"
NUMBER_TEMPLATES = (
    "The {} in the old house by the river",
    "The {} that I saw yesterday in the garden",
    "The {} behind the big tree",
    "I think that the {} over there",
    "My {}, which I like so much,",
    "Only the {} of my friend",
)
GENDER_WORDS = (
    ("mother", "father"), ("sister", "brother"), ("grandmother", "grandfather"), ("aunt", "uncle"),
    ("wife", "husband"), ("daughter", "son"), ("girl", "boy"), ("woman", "man"), ("queen", "king"),
    ("princess", "prince"), ("lady", "gentleman"),
)  # fmt: skip
GENDER_NAMES = (
    ("Mary", "John"), ("Anna", "Peter"), ("Lily", "Tom"), ("Sarah", "David"), ("Emma", "Jack"),
    ("Lucy", "Ben"), ("Alice", "Bob"), ("Susan", "Michael"),
)  # fmt: skip
GENDER_TEMPLATES = (
    ("The {} was so tired that", "she", "he"),
    ("The {} went home because", "she", "he"),
    ("The {} said that", "she", "he"),
    ("The {} was happy and smiled. Then", "she", "he"),
    ("The {} opened the door of", "her", "his"),
)
GENDER_NAME_TEMPLATES = (
    ("{} was so tired that", "she", "he"),
    ("{} went home because", "she", "he"),
    ("{} lost the keys of", "her", "his"),
    ("{} was happy and smiled. Then", "she", "he"),
)
NAMES = ("Mary", "John", "Anna", "Peter", "Sarah", "David", "Emma", "Jack", "Lucy", "Ben")
GIVING_NAMES = (("Mary", "John", "Anna"), ("David", "Emma", "Jack"))
GIVING_TEMPLATES = (
    "When {first} and {second} went to the store, {giver} gave a drink to",
    "{first} and {second} had a long talk. Then {giver} said goodbye to",
    "After {first} and {second} had lunch, {giver} gave a book to",
)
THINGS = ("ball", "car", "hat", "bag", "cup", "box", "kite", "house")
THING_COLOURS = ("red", "blue", "green", "yellow", "black", "white", "pink", "purple")
HIDING_PLACES = ("box", "drawer", "bag", "kitchen", "garden", "car", "basket", "bedroom")
FOODS = ("cake", "soup", "bread", "pizza", "rice", "fish")
FACT_TEMPLATES = (
    ("Tom put the key in the {}. Later he looked for the key and found it in the", HIDING_PLACES),
    ("The treasure is in the {}. The pirates are looking for it. The treasure is in the", HIDING_PLACES),
    ("Lily has a {} dress. She loves it. The color of her dress is", THING_COLOURS),
    ("The ball is {}. Ben kicks the ball. The color of the ball is", THING_COLOURS),
    ("Anna wanted to eat {}. So her mother gave her some", FOODS),
    ("My best friend is called {}. I love my best friend very much. My best friend is called", NAMES),
    ("Her brother lives in {}. She wants to visit her brother, so she travels to",
     ("Paris", "London", "Rome", "Berlin", "Tokyo", "Moscow", "Madrid", "Boston")),
    ("The teacher said the password is {}. The boy forgot it, and the teacher said again: the password is",
     THINGS),
)  # fmt: skip
FEELINGS = {
    "sad": "cry weep", "happy": "smile laugh dance sing", "hungry": "eat", "tired": "sleep fall yawn",
    "thirsty": "drink", "angry": "shout scream yell",
}  # fmt: skip
# Template, list of words with their answers.
LIST_TEMPLATES: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("capitals", "The capital of {} is", COUNTRIES),
    ("capitals", "The capital city of {} is called", COUNTRIES),
    ("capitals", "He lives in the capital of {}, the city of", COUNTRIES),
    ("languages", "Most people in {} speak", LANGUAGES),
    ("languages", "The official language of {} is", LANGUAGES),
    ("two-hop", "People who live in the city of {} speak", CITY_LANGUAGES),
    ("two-hop", "She was born in {}, so her mother tongue is", CITY_LANGUAGES),
    ("opposites", "The opposite of big is small. The opposite of {} is", OPPOSITES),
    ("opposites", "up and down, big and small, {} and", OPPOSITES),
    ("animals", "A baby {} is called a", YOUNG),
    ("colours", "The color of {} is", COLOURS),
    ("dates", "If today is {}, then tomorrow is", DAYS),
    ("dates", "The day after {} is", DAYS),
    ("dates", "The month after {} is", MONTHS),
    ("dates", "The month of {} is followed by the month of", MONTHS),
    ("numbers", "The number that comes right after {} is", NUMBERS),
    ("numbers", "Count with me: {},", NUMBERS),
    ("professions", "He works in a {}. He is a", PLACES_OF_WORK),
    ("professions", "She works at the {} as a", PLACES_OF_WORK),
    ("professions", "A person who {} for a living is called a", DEEDS),
    ("feelings", "She was very {}, so she started to", FEELINGS),
    ("feelings", "The boy was so {} that he wanted to", FEELINGS),
)


@dataclass(frozen=True)
class Templates:
    """Templates of every kind."""

    lists: tuple[tuple[str, str, Mapping[str, str]], ...]
    facts: tuple[tuple[str, tuple[str, ...]], ...]
    number: tuple[str, ...]
    gender: tuple[tuple[str, str, str], ...]
    gender_names: tuple[tuple[str, str, str], ...]
    giving: tuple[str, ...]


FIRST = Templates(
    LIST_TEMPLATES,
    FACT_TEMPLATES,
    NUMBER_TEMPLATES,
    GENDER_TEMPLATES,
    GENDER_NAME_TEMPLATES,
    GIVING_TEMPLATES,
)
HELD_OUT = Templates(
    lists=(
        ("capitals", "{}'s capital city is", COUNTRIES),
        ("capitals", "When she moved to the capital of {}, she settled in", COUNTRIES),
        ("languages", "In {}, the national language is called", LANGUAGES),
        ("languages", "She comes from {}, so she speaks", LANGUAGES),
        ("two-hop", "The language that is spoken in the city of {} is", CITY_LANGUAGES),
        ("opposites", "It was not {}, it was the opposite:", OPPOSITES),
        ("opposites", "Antonyms: big - small, up - down, {} -", OPPOSITES),
        ("animals", "The young of a {} is called a", YOUNG),
        ("colours", "As everyone knows, the color of {} is", COLOURS),
        ("dates", "Yesterday was {}, so today is", DAYS),
        ("dates", "First comes {}, then comes", MONTHS),
        ("numbers", "One more than {} is", NUMBERS),
        ("professions", "My uncle {} for a living, so he is a", DEEDS),
        ("professions", "My sister has worked in a {} for years. She is a", PLACES_OF_WORK),
        ("feelings", "Because he was {}, he began to", FEELINGS),
    ),
    facts=(
        ("The cat is hiding in the {}. Where is the cat? The cat is in the", HIDING_PLACES),
        (
            "Mary bought a {} scarf. She wears it every day. The color of the scarf is",
            THING_COLOURS,
        ),
        ("For dinner they cooked {}. Everybody liked the", FOODS),
        ("The new teacher is called {}. The children like the new teacher, whose name is", NAMES),
    ),
    number=(
        "The {} near the window",
        "The old {} at the end of the street",
        "Yesterday I noticed that the {} in the picture",
    ),
    gender=(("The {} stood up and raised", "her", "his"), ("My {} is tall, and", "she", "he")),
    gender_names=(
        ("{} took a deep breath and closed", "her", "his"),
        ("I met {} because", "she", "he"),
    ),
    giving=(
        "Yesterday {first} and {second} met at the park, and {giver} handed a letter to",
        "{first} and {second} were working late, so {giver} offered some coffee to",
    ),
)


def build_pairs(templates: Templates = FIRST) -> list[Pair]:
    """Return all pairs, each prompt of which names its deciding word and its right answers."""
    pairs: list[Pair] = []
    for family, template, answers in templates.lists:
        prompts = [fill(template, word, answer) for word, answer in answers.items()]
        pairs.extend(_pair_neighbors(family, prompts))
    for template, words in templates.facts:
        prompts = [fill(template, word, word) for word in words]
        pairs.extend(_pair_neighbors("facts in the prompt", prompts))
    for template in templates.number:
        for one, several in NUMBER_WORDS:
            first = fill(template, one, SINGULAR)
            pairs.append(Pair("number", first, fill(template, several, PLURAL)))
    pairs.extend(_gender_pairs(GENDER_WORDS, templates.gender))
    pairs.extend(_gender_pairs(GENDER_NAMES, templates.gender_names))
    pairs.extend(_giving_pairs(templates.giving))
    return [pair for pair in pairs if not set(pair.first.answers) & set(pair.second.answers)]


def build_suite_rows() -> list[dict[str, Any]]:
    """Return the rows of the suite."""
    return gather_rows((("first", FIRST), ("held out", HELD_OUT)))


def gather_rows(sources: Iterable[tuple[str, Templates]]) -> list[dict[str, Any]]:
    """Return every prompt of some templates once, with a counterfactual for each deciding word.

    Several pairs may share a prompt and differ in different words of it: then each of these words decides.

    Args:
        sources: What the rows call the templates, and the templates.
    """
    rows: dict[str, dict[str, Any]] = {}
    for origin, templates in sources:
        for pair in build_pairs(templates):
            for prompt, other in ((pair.first, pair.second), (pair.second, pair.first)):
                row = rows.setdefault(
                    prompt.text,
                    {
                        "text": prompt.text,
                        "spans": [],
                        "completions": list(prompt.answers),
                        "counterfactuals": [],
                        "counterfactual_completions": [],
                        "family": pair.family,
                        "templates": origin,
                    },
                )
                span = [prompt.start, prompt.end]
                if span not in row["spans"]:
                    row["spans"].append(span)
                    row["counterfactuals"].append(other.text)
                    row["counterfactual_completions"].append(list(other.answers))
    return list(rows.values())


def dump_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as JSON Lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def fill(template: str, word: str, answers: str) -> Prompt:
    """Put the deciding word into the blank; ``answers`` are separated by blanks."""
    start = template.index("{}")
    return Prompt(template.replace("{}", word), start, start + len(word), tuple(answers.split()))


def _pair_neighbors(family: str, prompts: list[Prompt]) -> Iterator[Pair]:
    """Pair each prompt with the next ones of its list, the last with the first."""
    num_prompts = len(prompts)
    for distance in range(1, NEIGHBOURS + 1):
        for index in range(num_prompts):
            second = prompts[(index + distance) % num_prompts]
            yield Pair(family, prompts[index], second)


def _gender_pairs(
    words: tuple[tuple[str, str], ...], templates: tuple[tuple[str, str, str], ...]
) -> Iterator[Pair]:
    """Yield pairs of a woman and a man, each with the pronoun that follows."""
    for template, female, male in templates:
        for woman, man in words:
            yield Pair("gender", fill(template, woman, female), fill(template, man, male))


def _giving_pairs(templates: tuple[str, ...]) -> Iterator[Pair]:
    """Yield who gives to whom. Another giver changes the answer, and so does another receiver."""
    for template in templates:
        for names in GIVING_NAMES:
            for first, second in permutations(names, 2):
                both = template.replace("{first}", first).replace("{second}", second)
                blank = both.replace("{giver}", "{}")
                yield Pair("who gives", fill(blank, first, second), fill(blank, second, first))
            for giver in names:
                one, other = (name for name in names if name != giver)
                for place, giver_place in (("{first}", "{second}"), ("{second}", "{first}")):
                    blank = template.replace(giver_place, giver).replace("{giver}", giver)
                    blank = blank.replace(place, "{}")
                    yield Pair("who gives", fill(blank, one, one), fill(blank, other, other))


if __name__ == "__main__":
    SUITE_DATA.write_text(dump_rows(build_suite_rows()), encoding="utf-8")

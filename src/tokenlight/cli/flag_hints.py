"""Spell the hints of an error message as command-line options.

The library writes its messages for Python: "give labels=…". A person at the command line has no such
keyword. ``FLAG_HINTS`` lists, for each error code whose message names one, the Python spelling and the
option that stands for it; messages with other codes are printed as they are.
"""

import re

from tokenlight.errors import TokenlightError

_LONG_OPTION = (r"long='(\w+)'", r"--long \1")
_COLUMN_OPTION = (r"(text|label)_column='COLUMN'", r"--\1 COLUMN")
_EXPLAIN_MASK_OPTION = (r"explain_mask='(\w+)'", r"--explain-mask \1")
_LABELS_OPTION = (r"labels=…", "--label COLUMN")
_TARGET_OPTION = (r"target='(\w+)'", r"--target \1")
_OCCURRENCE_OPTION = (r"occurrence=", "--occurrence ")

# Error code → pairs of (regular expression for the Python spelling, option), sorted by code.
FLAG_HINTS: dict[str, tuple[tuple[str, str], ...]] = {
    "all-of-vocabulary": (_TARGET_OPTION,),
    "answer-not-in-context": ((r"no_answer=True", "--no-answer"),),
    "answer-truncated": (_LONG_OPTION,),
    "chat-template-missing": ((r"Chat\(…, template=…\)", "a template with --chat-template FILE"),),
    "column-not-text": (_COLUMN_OPTION,),
    "continuation-of-no-tokens": ((r"Continuation\(max_new_tokens=(.*?)\)", r"--generate \1"),),
    "difference-needs-signed-method": (
        (r"A Contrast of two continuations", "--rather-than"),
        (r"RankedAbove\(…\)", "--above"),
    ),
    "effort-value": ((r"effort='?([^' ]*)'?", r"--effort \1"),),
    "explain-mask-no-separator": (_EXPLAIN_MASK_OPTION,),
    "explain-mask-of-image": (_EXPLAIN_MASK_OPTION,),
    "ids-too-long": (_LONG_OPTION,),
    "label-column-missing": (_COLUMN_OPTION,),
    "labels-or-reference-required": (_LABELS_OPTION,),
    "labels-required": (_LABELS_OPTION,),
    "maps-exceed-memory": (_LONG_OPTION,),
    "no-answer-token": ((r"no_answer=True", "--no-answer"),),
    "no-token-labels": ((r"TokenTarget\(token='?([^',)]*)'?,[^)]*\)+", r"--token \1"),),
    "not-one-mask": ((r"TokenTarget\(number, …\)", "--token NUMBER"),),
    "nothing-generated": (
        (r"Continuation\('…'\) or explain 'predicted'", "--continue TEXT or no --generate"),
    ),
    "nothing-generated-from-source": ((r"Continuation\('…'\)", "--continue TEXT"),),
    "occurrence-missing": (_OCCURRENCE_OPTION,),
    "occurrence-range": (_OCCURRENCE_OPTION,),
    "picture-needed": (
        (r"Picture\('cat.png', text='What is this\?'\)", "--image FILE with the text"),
    ),
    "picture-without-text": (
        (r"Picture\(…, text='What is this\?'\)", "a text along with --image"),
    ),
    "prompt-too-long": (_LONG_OPTION,),
    "question-needed": ((r"Question\(question=…, context=…\)", "--question and --context"),),
    "ranking-needs-label": ((r"RankedAbove\(…, label=…\)", "--target LABEL"),),
    "ranking-needs-pair": (
        (r"RankedAbove\('.*?'\)", "--above"),
        (r"\(query, passage\)", "QUERY and --pair PASSAGE"),
    ),
    "spans-required": (("spans=…, for each text", "a file with a column 'spans', in each row"),),
    "stable-unsupported": (
        (r"stable=(\S+) draws", r"--stable \1 draws"),
        (r"Leave out stable", "Leave out --stable"),
        (r"method='(\S+)'", r"--method \1"),
    ),
    "stable-value": ((r"stable=", "--stable "),),
    "stable-without-effort": (
        (r"stable=(\S+) needs", r"--stable \1 needs"),
        (r"effort='?([^' ]*)'?", r"--effort \1"),
    ),
    "stride-needs-label-or-answer": (_LONG_OPTION,),
    "text-column-missing": (_COLUMN_OPTION,),
    "text-too-long": (_LONG_OPTION,),
    "token-ambiguous": ((r"Continuation\(…\)", "--continue WORDS"),),
    "token-target-required": (
        ("target='(all|entities)'", r"--target \1"),
        (r"TokenTarget\(word\)", "--token WORD of tokenlight explain"),
    ),
    "too-many-text-columns": (_COLUMN_OPTION,),
    "true-label-required": (_LABELS_OPTION,),
    "unknown-token-type": ((r"token_types='zeros'", "--token-types zeros"),),
    "unknown-true-label": (("give None", "leave the cell empty"),),
    "which-word": (_TARGET_OPTION,),
}

# Messages of many codes end in ``Head.usage``: task → what to give the model on the command line.
USAGE_FLAGS = {
    "question-answering": "--question and --context; --target WORDS and --no-answer say what to explain",
    "text-classification": "TEXT, or TEXT and --pair TEXT",
    "text-generation": (
        "TEXT or --chat; --target TOKEN, --rather-than TOKEN, --against N, --continue WORDS or "
        "--generate N say what to explain"
    ),
    "fill-mask": "TEXT with one; --target WORD, --rather-than WORD and --against N say what to explain",
    "token-classification": "TEXT and --token WORDS, --target all or --target entities",
    "sentence-similarity": "TEXT and --pair TEXT",
    "image-classification": "--image FILE",
}


def format_for_command_line(error: TokenlightError) -> str:
    """Return the message of ``error`` with the options of ``tokenlight`` in place of Python keywords."""
    # Imported here, since no command should wait for numpy before it starts.
    from tokenlight.data.head import USAGE_BY_TASK

    message = str(error)
    for task, flags in USAGE_FLAGS.items():
        ability, inputs = USAGE_BY_TASK[task]
        # The sentence before it tells "a (text, text) pair" of one task from that of another.
        ability_pattern = re.escape(ability).replace(r"\{\}", ".*?")
        message = re.sub(
            f"({ability_pattern}; give ){re.escape(inputs)}", rf"\g<1>{flags}", message
        )
    for python_spelling, option in FLAG_HINTS.get(error.code, ()):
        message = re.sub(python_spelling, option, message)
    return message


def format_text_for_command_line(text: str) -> str:
    """Spell a message that has lost its code, such as a reason that was read from a results folder.

    Every row of the table is tried: the Python spellings are specific enough to be found by themselves.
    """
    for rows in FLAG_HINTS.values():
        for python_spelling, option in rows:
            text = re.sub(python_spelling, option, text)
    return text

"""Prompts of a chosen length with real text.

Random token ids make a tokenizer and a model behave as no user makes them behave, and one prompt over and over is
answered from the prefix cache. So each prompt begins with words of its own and goes on with a different part of a real text.
"""

from __future__ import annotations

from collections.abc import Sequence

_TEXT = """
The night shift began with a phone call about the third rack from the door. A machine that had answered every question
for eleven weeks was suddenly slow, and nobody could say why. The fans sounded the same, the lights were green, and
the dashboard showed a flat line where it had shown a flat line the day before. Maria pulled up a chair, opened her
notebook at an empty page, and wrote down the one thing that she knew for certain: requests that took half a second
yesterday took two seconds today.

She did not restart anything. A restart would have cleared the symptom and the evidence together, and the fault would
have come back on a worse night. Instead she asked the machine simple questions, the way a doctor asks a patient to
breathe in and out. How fast can you read your own memory? How wide is the link to your accelerator, and how wide
should it be? How warm are the modules beside the second processor? Each answer went into the notebook with a number
and a unit, because an adjective written at three in the morning is worth nothing at nine.

The memory was slow. Not broken, since every module was present and every test pattern came back as it had been
written, but slow: a hundred gigabytes each second where the arithmetic promised a hundred and sixty. She looked at
the list of modules again and counted twice. Two slots that had held memory in the spring were reported empty. Someone
had moved a pair of modules to another machine during an outage, had meant to bring them back, and had forgotten. The
firmware had quietly rearranged the channels, the operating system had quietly used what it was given, and the
monitoring had quietly watched the temperature of modules that were no longer there.

By sunrise the modules were back in their slots, and the machine read its memory at the speed that the arithmetic
promised. Maria wrote a short report. It said what had been measured before and after, which check would have found
the fault in a minute, and where that check now lived. Her colleague read it over coffee and asked why she had
bothered to compute the limit by hand when the old value was in the log. Because the old value, she said, only tells
you what the machine once did. The limit tells you what it should do, and a wall that has always leaned looks straight
to everyone who grew up beside it.

They spent the rest of the week walking along the racks with the same few questions. Most machines answered as they
should. One had a cable that had worked itself loose and ran at half its width, one was configured to save power at
the cost of every burst of work, and one had been slow since the day it was installed, so that nobody had ever thought
of it as slow. None of the three had raised an alarm. The two engineers fixed the first, changed the second, and
returned the third to its maker with four pages of measurements, which is the polite way of insisting.

In the months that followed the telephone rang less often. When it rang, the person on the other end could usually say
what had changed, because somebody had asked the questions before the change and after it, and had kept the answers.
The machines were no better than they had been. They were merely no longer trusted without being asked, and it turned
out that this was most of the difference between a service that people rely on and a service that people hope for.
"""

_WORDS = _TEXT.split()
_TASKS = ("Summarise", "Continue", "Explain", "Comment on", "Rewrite")
_STRIDE = 37  # coprime to the number of words, so that consecutive prompts start in different sentences


def prompt(number: int, words: int) -> str:
    """Return prompt `number` of exactly `words` words (at least 8); prompts with different numbers differ from their first words on.

    :raises ValueError: when fewer than 8 words are asked for.
    """
    if words < 8:
        raise ValueError(f"a prompt has at least 8 words, not {words}")
    head = f"{number}: {_TASKS[number % len(_TASKS)]} this text:".split()
    start = number * _STRIDE
    body: list[str] = [_WORDS[(start + index) % len(_WORDS)] for index in range(words - len(head))]
    return " ".join(head + body)


def words_for_tokens(tokens: int, samples: Sequence[tuple[int, int]]) -> int:
    """Return how many words make a prompt of about `tokens` tokens, from prompts of so many words that came to so many tokens.

    The server's figures include the chat template, a constant; two samples of different length tell it from the words' share.
    """
    words, counted = samples[-1]
    share, constant = max(1, counted) / words, 0.0
    other = next(((w, c) for w, c in reversed(samples) if w != words), None)
    if other is not None and (counted - other[1]) * (words - other[0]) > 0:
        share = (counted - other[1]) / (words - other[0])
        constant = counted - share * words
    return max(8, round((tokens - constant) / share))

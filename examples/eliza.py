"""Eliza listens, with no key and no network: patterns, reflected pronouns, and a memory that is the log itself.

    parlatory serve examples/eliza.py --data ./eliza-data
    parlatory chat ws://127.0.0.1:8000/v1 eliza/you

She keeps nothing of her own: what she says follows from the log, so she says the same after a `kill -9`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from parlatory import Agent
from parlatory.storage import StoredMessage

REFLECTIONS = {
    "i": "you", "me": "you", "my": "your", "mine": "yours", "myself": "yourself", "am": "are", "i'm": "you're",
    "i've": "you've", "i'll": "you'll", "was": "were", "you": "me", "your": "my", "yours": "mine", "yourself": "myself",
    "you're": "I'm", "you've": "I've", "you'll": "I'll", "are": "am",
}  # fmt: skip
CLAUSE = {"", "that", "if", "because", "when", "what", "how", "and", "think"}  # behind these a "you" is the subject

# The first pattern that is found decides; its answers take turns. {} is what the group caught, seen from Eliza's side.
RULES: Sequence[tuple[str, Sequence[str]]] = (
    (r"^(?:hello|hi|hey|good (?:morning|evening))\b", ("Hello. What would you like to talk about?", "Yes, I am here.")),
    (r"\b(?:bye|goodbye|good night)\b", ("Goodbye. It is all in the log, should you come back.",)),
    (r"\bmy name is (\w+)", ("Good to meet you, {}. What brings you here?",)),
    (r"\bi need (.+)", ("Why do you need {}?", "Would it really help you to get {}?")),
    (r"\bi(?: am|'m) (?:sorry)\b", ("There is no need to be sorry.", "What makes you feel you should apologise?")),
    (r"\bi(?: am|'m) (.+)", ("How long have you been {}?", "What do you think made you {}?")),
    (r"\bi feel (.+)", ("What makes you feel {}?", "Do you often feel {}?")),
    (r"\bi (?:can't|cannot) (.+)", ("What would happen if you could {}?", "What keeps you from it?")),
    (r"\bi (?:want|would like|wish)(?: to)? (.+)", ("What would it mean to you: {}?", "Who else knows of it?")),
    (r"\bi (?:think|believe) (.+)", ("What makes you think {}?", "And how sure of that are you?")),
    (r"\bbecause (.+)", ("Is that the real reason?", "What other reasons come to mind, besides that {}?")),
    (r"\bmy (mother|father|sister|brother|wife|husband|friend|boss)\b", ("Tell me more about your {}.",)),
    (r"\byou are (.+)", ("Why does it matter whether I am {}?", "Perhaps you would like me to be {}.")),
    (r"\b(?:are|can|do|will) you\b", ("We were talking about you, not about me.", "What if I said yes?")),
    (r"^(?:what|why|how|who|when|where)\b.*\?", ("What do you think yourself?", "Why do you ask?")),
    (r"^(?:yes|yeah|yep|sure)\b", ("You sound certain. Go on.", "I see. And then?")),
    (r"^(?:no|nope|not really)\b", ("Why not?", "You are a little negative. What is behind it?")),
    (r"\b(?:always|never|everybody|nobody)\b", ("Can you think of one example?", "Really without exception?")),
)
OTHERWISE = ("Please go on.", "I see. What does that tell you?", "How does that make you feel?", "Say more about that.")
REMEMBERED = "Earlier you said: “{}”. Does this have to do with it?"
REPEATED = ("You said that before. What keeps you coming back to it?", "You keep saying that. Try other words?")
WORTH_REMEMBERING = re.compile(r"\bmy \w+", re.IGNORECASE)
HISTORY = 60
PAUSE_S = 0.03  # between two words: she thinks while she speaks


def reflect(text: str) -> str:
    """What somebody says of himself, as a listener says it back: `i lost my keys` is `you lost your keys`."""
    words = text.strip(" .!?,;").split()
    pairs = zip(["", *(word.lower() for word in words)], words, strict=False)
    return " ".join(
        "I" if word == "you" and before in CLAUSE else REFLECTIONS.get(word.lower(), word) for before, word in pairs
    )


def normal(text: str) -> str:
    """A text without what does not matter for comparing it: case, apostrophes of other kinds, marks at the end."""
    return " ".join(text.lower().replace("’", "'").rstrip(" .!?").split())


def answer(remark: str, earlier: Sequence[str]) -> str:
    """Eliza's answer to a remark, given the earlier ones, oldest first. Pure: the same log gives the same answer."""
    text = normal(remark)
    if not text:
        return "You are very quiet. Take your time."
    said = [normal(one) for one in earlier]
    if text in said:
        return REPEATED[(said.count(text) - 1) % len(REPEATED)]
    for pattern, answers in RULES:
        found = re.search(pattern, remark.replace("’", "'").strip(), re.IGNORECASE)
        if found:
            used = sum(bool(re.search(pattern, one, re.IGNORECASE)) for one in said)
            return answers[used % len(answers)].format(*map(reflect, found.groups()))
    memories = [one for one in earlier if WORTH_REMEMBERING.search(one)]
    if memories and len(said) % 3 == 2:
        return REMEMBERED.format(memories[len(said) % len(memories)].strip())
    return OTHERWISE[len(said) % len(OTHERWISE)]


class Eliza(Agent):
    """Answers each remark once; greets whoever is new."""

    async def on_message(self, row: StoredMessage) -> None:
        page = await self.messages.read(before=row.seq, limit=HISTORY)
        earlier = [one.text for one in page if one.role == "user" and one.by == row.by]
        reply = answer(row.text, earlier)
        words = (reply if earlier else f"I am Eliza, and I have time. {reply}").split(" ")
        async with self.reply() as draft:
            for index, word in enumerate(words):
                await draft.write(f" {word}" if index else word)
                await asyncio.sleep(PAUSE_S)

"""Text tasks: facts, arithmetic, copying, tool calls, tool results.

Each item is a prompt in the chat template's form and its answer. What is held out: pairs of
question form and fact, pairs of operands (in both orders for sums), pairs of tool arguments.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .vocabulary import Split, split_of, vocabulary

Arguments = dict[str, Any]


@dataclass(frozen=True)
class TextItem:
    """A prompt with its special tokens written out, and the answer without the end token."""

    kind: str
    prompt: str
    answer: str


def chat(user: str, system: str = "") -> str:
    """One user turn, with an optional ready-made system message, ready for the answer."""
    return f"{system}<|user|>{user}<|end|><|assistant|>"


def _draw(rng: random.Random, split: Split, make: Callable[[], tuple[str, str, Split]]) -> tuple:
    while True:
        question, answer, home = make()
        if home == split:
            return question, answer


def fact(rng: random.Random, split: Split) -> tuple[str, str]:
    """A question about the small world and its answer."""
    facts = vocabulary()["facts"]

    def make() -> tuple[str, str, Split]:
        group = rng.choices(["capital", "opposite", "single"], [0.5, 0.3, 0.2])[0]
        if group == "single":
            question, answer = rng.choice(list(facts["single"].items()))
            return question, answer, split
        subject, answer = rng.choice(list(facts[group]["answers"].items()))
        form = rng.choice(facts[group]["questions"])
        return form.format(x=subject), answer, split_of(subject, form)

    return _draw(rng, split, make)


def arithmetic(rng: random.Random, split: Split) -> tuple[str, str]:
    """A sum or difference of two numbers in the range taught; never below zero."""
    rule = vocabulary()["arithmetic"]

    def make() -> tuple[str, str, Split]:
        a, b = sorted((rng.randint(0, rule["largest"]), rng.randint(0, rule["largest"])))
        minus = rng.random() < 0.5
        home = split_of(a, "minus" if minus else "plus", b)
        if minus or rng.random() < 0.5:
            a, b = b, a
        sign = rng.choice(["-", "minus"] if minus else ["+", "plus"])
        question = rng.choice(rule["questions"]).format(a=a, op=sign, b=b)
        return question, str(a - b if minus else a + b), home

    return _draw(rng, split, make)


def words_and_numbers(rng: random.Random, n: int) -> str:
    """A sequence of words and numbers, separated by spaces."""
    pool = vocabulary()["print_words"] + vocabulary()["spoken_words"]

    def one() -> str:
        if rng.random() < 0.65:
            return rng.choice(pool)
        if rng.random() < 0.3:
            return f"{rng.randint(0, 99)}.{rng.randint(0, 99):02d}"
        return "".join(str(rng.randint(0, 9)) for _ in range(rng.randint(1, 5)))

    return " ".join(one() for _ in range(n))


def copy(rng: random.Random, split: Split) -> tuple[str, str]:
    """Repeat the text given."""
    text = words_and_numbers(rng, rng.randint(1, 8))
    return rng.choice(vocabulary()["prompts"]["repeat"]).format(text=text), text


def no_media(rng: random.Random, split: Split) -> tuple[str, str]:
    """A question about a picture or clip that is not there."""
    v = vocabulary()
    if rng.random() < 0.4:
        return v["prompts"]["clip"], v["prompts"]["no_clip"]
    form = rng.choice([v["prompts"]["picture"], *v["picture_questions"].values()])
    names = {"shape": rng.choice(v["shapes"]), "colour": rng.choice(v["colours"])}
    return form.format(item=rng.choice(v["print_words"]), **names), v["prompts"]["no_picture"]


def describe_tool(tool: dict[str, Any], schema: bool) -> dict[str, Any]:
    """A tool as the system message shows it: the flat form, or JSON schema as OpenAI has it."""
    parameters = tool["parameters"]
    if schema:
        parameters = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"name": tool["name"], "description": tool["description"], "parameters": parameters}


@dataclass(frozen=True)
class ToolList:
    """A system message with tools.

    text: its words, "" for none.
    tools: the JSON text that lists them.
    """

    text: str
    tools: str

    @property
    def message(self) -> str:
        """The message in the model's native form."""
        return f"<|system|>{self.text}<|tool|>{self.tools}<|/tool|><|end|>"


def tool_list(rng: random.Random, tools: list[dict[str, Any]]) -> ToolList:
    """A system message that offers the tools, in one of the forms they come in."""
    schema = rng.random() < 0.5
    separators = (",", ":") if rng.random() < 0.3 else (", ", ": ")
    listed = json.dumps([describe_tool(tool, schema) for tool in tools], separators=separators)
    return ToolList(rng.choice(vocabulary()["prompts"]["tool_system"]), listed)


def made_up_name(rng: random.Random) -> str:
    """A capitalised name of two to four syllables that no list holds."""
    syllables = (
        rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(2, 4))
    )
    return "".join(syllables).capitalize() + rng.choice(["", "", "n", "s", "x"])


def tool_arguments(rng: random.Random, name: str) -> tuple[Arguments, Arguments]:
    """(fields of the request's sentence, arguments of the call)."""
    v = vocabulary()
    words, cities = v["spoken_words"], list(v["facts"]["capital"]["answers"].values())
    city = rng.choice(cities) if rng.random() < 0.7 else made_up_name(rng)
    person = rng.choice(v["people"]) if rng.random() < 0.7 else made_up_name(rng)
    flat: dict[str, Callable[[], Arguments]] = {
        "get_weather": lambda: {"city": city},
        "set_timer": lambda: {"minutes": rng.randint(1, 99)},
        "play_music": lambda: {"title": f"{rng.choice(words)} {rng.choice(words)}"},
        "send_message": lambda: {
            "to": person,
            "text": " ".join(rng.choice(words) for _ in range(rng.randint(1, 3))),
        },
        "find_hotel": lambda: {"city": city, "nights": rng.randint(1, 30)},
        "add_item": lambda: {"name": rng.choice(words), "count": rng.randint(1, 50)},
    }
    fields = flat[name]()
    return fields, {"item": fields} if name == "add_item" else fields


def call_text(name: str, arguments: Arguments) -> str:
    """A call in the form the model emits."""
    return "functools[" + json.dumps({"name": name, "arguments": arguments}) + "]"


def _request(rng: random.Random, split: Split, tool: dict[str, Any]) -> tuple[str, str]:
    def make() -> tuple[str, str, Split]:
        fields, arguments = tool_arguments(rng, tool["name"])
        question = rng.choice(tool["requests"]).format(**fields)
        home = split if tool["name"] == "get_weather" else split_of(*fields.values())
        return question, call_text(tool["name"], arguments), home

    return _draw(rng, split, make)


def tools(rng: random.Random, split: Split) -> tuple[ToolList, str, str]:
    """(system message, question, answer): a call, or plain text when no tool fits."""
    known = vocabulary()["tools"]
    listed = rng.sample(known, rng.choices([1, 2, 3, 4], [4, 4, 2, 1])[0])
    system = tool_list(rng, listed)
    if rng.random() < 0.2:
        return system, *(fact if rng.random() < 0.7 else arithmetic)(rng, split)
    return system, *_request(rng, split, rng.choice(listed))


def tool_result(rng: random.Random, split: Split) -> tuple[str, str]:
    """(prompt, answer): a finished call and its result; the answer states the result."""
    tool = rng.choice(vocabulary()["tools"])
    system = tool_list(rng, [tool]).message
    question, call = _request(rng, split, tool)
    if rng.random() < 0.5:
        call = f"<|tool_call|>[{call.removeprefix('functools[')}<|/tool_call|>"
    result = words_and_numbers(rng, rng.randint(1, 3))
    shown = result if rng.random() < 0.5 else json.dumps({"result": result})
    prompt = f"{chat(question, system)}{call}<|end|><|tool_response|>{shown}<|end|><|assistant|>"
    return prompt, f"The result is {result}."


KINDS = ("facts", "arithmetic", "copy", "no_media", "tools", "tool_result")
PLAIN = {
    "facts": fact,
    "arithmetic": arithmetic,
    "copy": copy,
    "no_media": no_media,
}


def sample(rng: random.Random, split: Split, kind: str) -> TextItem:
    """One item of the given kind."""
    if kind == "tools":
        system, question, answer = tools(rng, split)
        return TextItem(kind, chat(question, system.message), answer)
    if kind == "tool_result":
        return TextItem(kind, *tool_result(rng, split))
    question, answer = PLAIN[kind](rng, split)
    return TextItem(kind, chat(question), answer)

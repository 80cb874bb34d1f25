"""What the built-in sample says to a small held-out set, on record and again.

``scripts/sample_bundle.py`` writes the record whenever the sample changes.  Another processor may
round differently, so tokens are compared up to the first one whose lead over the next likeliest is
small.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from phi4mm.cli.options import sample_bundle
from phi4mm.engine.context_plan import plan_contexts
from phi4mm.engine.engine import AdapterChoice, Engine
from phi4mm.engine.loading import loaded_engine
from phi4mm.engine.parameters import EngineParams, SamplingParams
from phi4mm.evals.ability import Ability, read_abilities
from phi4mm.evals.ability_score import judge
from phi4mm.evals.manifest import Item
from phi4mm.evals.request import messages_of
from phi4mm.evals.slots import Said
from phi4mm.modelfile.bundle import Bundle
from phi4mm.prompt.chunk import PromptBuilder
from phi4mm.prompt.tokenizer import Tokenizer

SET = Path(__file__).parents[1] / "data" / "held_out"
RECORD = SET / "recorded.json"
# Natural logarithm of the ratio of two probabilities; below this, rounding may choose another.
SURE = 0.1
N_TOKENS = 64
# An adapter is taken for trained where at least this share is right with it.
TRAINED = 0.5


@dataclass(frozen=True)
class Recorded:
    """One answer: its tokens, how many are beyond doubt, and how wrong it is (see ``Judged``)."""

    ability: str
    id: str
    is_adapter_on: bool
    text: str
    tokens: tuple[int, ...]
    n_sure: int
    n_errors: int
    n_words: int

    @property
    def is_sure(self) -> bool:
        return self.n_sure == len(self.tokens)


def answer_set(folder: Path = SET) -> list[Recorded]:
    """Ask the built-in sample every item, with the adapter it needs and with none."""
    with Bundle.open(sample_bundle()) as bundle:
        params = EngineParams(n_threads=1, n_ctx=original_context(bundle))
        tokenizer = Tokenizer(bundle.decoder.file.metadata)
        prompts = PromptBuilder(bundle, tokenizer)
        with loaded_engine(bundle, params, tokenizer) as engine:
            return [
                _answer(engine, prompts, ability, item, adapter)
                for ability in read_abilities(folder)
                for adapter in _choices(ability)
                for item in ability.items
            ]


def original_context(bundle: Bundle) -> int:
    """The original context, which holds every item of the set."""
    return plan_contexts(EngineParams(), bundle.decoder.hparams).n_short


def _choices(ability: Ability) -> Iterator[AdapterChoice]:
    yield "auto"
    if ability.adapter is not None:
        yield None


def _answer(
    engine: Engine, prompts: PromptBuilder, ability: Ability, item: Item, adapter: AdapterChoice
) -> Recorded:
    sampling = SamplingParams(max_tokens=min(N_TOKENS, ability.max_tokens), top_logprobs=2)
    engine.submit(prompts.chat(messages_of(item)), sampling, adapter)
    events = []
    while not events or events[-1].finish_reason is None:
        events += [event for _, event in engine.step()]
    leads = [event.logprobs[0].top[0][1] - event.logprobs[0].top[1][1] for event in events]
    n_sure = next((n for n, lead in enumerate(leads) if lead < SURE), len(leads))
    text = "".join(event.text for event in events).strip()
    judged = judge(item, Said(text), adapter == "auto")
    tokens = tuple(id_ for event in events for id_ in event.token_ids)
    return Recorded(
        ability.name, item.id, judged.is_adapter_on, text, tokens, n_sure,
        judged.n_errors, judged.n_words,
    )  # fmt: skip


def share_right(answers: list[Recorded]) -> float:
    """Share of questions that were answered right, or of words that were heard right."""
    n_words = sum(answer.n_words for answer in answers)
    return 1 - sum(answer.n_errors for answer in answers) / n_words


def trained_abilities(answers: list[Recorded]) -> list[str]:
    """Abilities with an adapter whose answers with it are right for the most part."""
    media = {answer.ability for answer in answers if not answer.is_adapter_on}
    return sorted(name for name in media if share_right(of(answers, name, True)) >= TRAINED)


def of(answers: list[Recorded], ability: str, is_adapter_on: bool) -> list[Recorded]:
    """The answers of one ability, with its adapter or without."""
    chosen = (ability, is_adapter_on)
    return [answer for answer in answers if (answer.ability, answer.is_adapter_on) == chosen]


def write_record() -> list[Recorded]:
    """Ask, and put the answers on record."""
    answers = answer_set()
    with Bundle.open(sample_bundle()) as bundle:
        bundle_id = bundle.bundle_id
    lines = ",\n".join(f"  {json.dumps(asdict(a), ensure_ascii=False)}" for a in answers)
    head = {"bundle_id": bundle_id, "trained": trained_abilities(answers)}
    text = json.dumps(head)[:-1] + f', "answers": [\n{lines}\n]}}\n'
    RECORD.write_text(text, encoding="utf-8")
    return answers

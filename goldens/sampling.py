"""Distributions that tokens are drawn from, by transformers' own processors: data/sampling.json. See README.md.

    python sampling.py
"""
import json
from pathlib import Path

import numpy as np
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

OUTPUT = Path(__file__).parent / "data" / "sampling.json"
CASES, VOCABULARY = 60, 40
STEP = 1 / 1024   # logits are multiples of this: short numbers that f32 holds exactly


def random_case(random):
    """Settings and logits; no two logits are equal, since transformers keeps every token that ties with the last of top_k."""
    pick = lambda *values: values[random.integers(len(values))]
    largest = int(pick(2, 6, 12) / STEP)
    logits = random.choice(np.arange(-largest, largest), VOCABULARY, replace=False) * STEP
    bias = {int(token): pick(-2.0, 0.5, 3.0, -np.inf) for token in random.integers(0, VOCABULARY, pick(0, 0, 6))}
    return dict(
        logits=logits.tolist(),
        repetition_penalty=pick(1.0, 1.3, 0.7, 2.5),
        tokens=random.integers(0, VOCABULARY, pick(0, 10)).tolist(),
        bias=sorted(bias.items()),
        allowed=pick(None, None, sorted(set(random.integers(0, VOCABULARY, pick(1, 5, 30)).tolist()))),
        temperature=pick(0.3, 0.8, 1.0, 1.7),
        top_k=pick(0, 0, 1, 5, 20, 100),
        top_p=pick(1.0, 0.95, 0.7, 0.3, 0.01),
        min_p=pick(0.0, 0.0, 0.02, 0.2, 1.0),
    )


def border_cases():
    """Equal logits, whose sums and ratios lie on the borders exactly: how many are kept is what they tell."""
    plain = dict(repetition_penalty=1.0, tokens=[], bias=[], allowed=None, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    for top_p in (0.25, 0.5, 0.75, 0.2500001, 0.4999999):
        yield plain | dict(logits=[0.5] * 4, top_p=top_p)
    yield plain | dict(logits=[0.5] * 4, min_p=1.0)
    yield plain | dict(logits=[0.5] * 4, top_p=0.5, min_p=1.0)
    yield plain | dict(logits=[0.5] * 4 + [0.0], min_p=1.0, repetition_penalty=2.0, tokens=[0, 0, 4])


def f32(number):
    """The number that the project reads."""
    return float(np.float32(number))


def adjusted(case):
    """Scores after penalty, bias and mask, which round as f32, and the ids that were seen."""
    ids = torch.tensor([case["tokens"]], dtype=torch.long)
    scores = torch.tensor([case["logits"]], dtype=torch.float32)
    scores = RepetitionPenaltyLogitsProcessor(case["repetition_penalty"])(ids, scores)
    for token, bias in case["bias"]:
        scores[0, token] += bias
    if case["allowed"] is not None:
        forbidden = torch.ones_like(scores, dtype=torch.bool)
        forbidden[0, case["allowed"]] = False
        scores = scores.masked_fill(forbidden, -torch.inf)
    return ids, scores


def kept(case):
    """`case` with the tokens that are kept, the likeliest first, their probabilities, and log-probabilities of all."""
    ids, scores = adjusted(case)
    # From here in f64, so that no rounding decides what is kept.
    scores = TemperatureLogitsWarper(f32(case["temperature"]))(ids, scores.double())
    if case["top_k"]:
        scores = TopKLogitsWarper(case["top_k"])(ids, scores)
    if case["top_p"] < 1:
        scores = TopPLogitsWarper(f32(case["top_p"]))(ids, scores)
    if case["min_p"]:
        scores = MinPLogitsWarper(f32(case["min_p"]))(ids, scores)
    probabilities = scores.softmax(-1)[0]
    order = [int(token) for token in probabilities.argsort(descending=True, stable=True) if probabilities[token] > 0]
    finite = scores.isfinite()[0].sum()
    assert len(order) == finite, f"{finite - len(order)} probabilities are too small for f64"
    return case | dict(
        kept=order,
        probabilities=[round(float(probabilities[token]), 12) for token in order],
        log_probabilities=[round(float(x), 7) for x in torch.tensor(case["logits"], dtype=torch.float64).log_softmax(-1)],
    )


def main():
    random = np.random.default_rng(20)
    cases = []
    while len(cases) < CASES:
        case = random_case(random)
        scores = adjusted(case)[1]
        possible = scores[scores.isfinite()].tolist()
        if possible and len(set(possible)) == len(possible):
            cases.append(kept(case))
    cases += [kept(case) for case in border_cases()]
    print("tokens kept:", *(len(case["kept"]) for case in cases))
    # JSON has no infinity: null is -inf.
    for case in cases:
        case["bias"] = [[token, None if bias == -np.inf else bias] for token, bias in case["bias"]]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    OUTPUT.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()

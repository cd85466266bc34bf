"""Greedy answers of the demo models, by the oracles in f32: data/demo.json. See README.md.

    python demo.py MODELS     MODELS holds nano-e, ..., and eval/text.jsonl
"""
import json
import sys
from pathlib import Path

import mlx_oracle  # first: it fixes the number of threads before numpy starts its own
import mlx.core as mx
import numpy as np
import torch
import torch_oracle
import transformers

OUTPUT = Path(__file__).parent / "data" / "demo.json"
MAX_NEW = 96
CASES_OF_A_TASK = {"story": 2, "think_on": 2, "tool_call": 2, "tool_final": 2, "json": 2, "ood": 2}  # else one
MODELS = {
    "nano-e": "transformers",
    "nano-unified": "transformers",
    "nano-e-4bit": "mlx-vlm",
    "nano-dense-8bit": "mlx-vlm",
    "nano-moe-8bit": "mlx-vlm",
}
CACHED_AGREES = 2e-3  # logits with a cache and without, f32


class Transformers:
    def __init__(self, folder):
        self.model, self.cache = torch_oracle.load(folder), None

    def start(self):
        self.cache = transformers.DynamicCache(config=self.model.config.get_text_config())

    def next_logits(self, ids):
        """Logits after `ids`, which follow what the cache holds."""
        with torch.no_grad():
            output = self.model(input_ids=torch.tensor([ids]), cache=self.cache, use_cache=True, logits_to_keep=1)
        return output.logits[0, -1].numpy()

    def all_logits(self, ids):
        with torch.no_grad():
            return self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


class MlxVlm:
    def __init__(self, folder):
        self.model, self.cache = mlx_oracle.load(folder).language_model, None

    def start(self):
        self.cache = self.model.make_cache()

    def next_logits(self, ids):
        return np.array(self.model(mx.array([ids]), cache=self.cache).logits[0, -1])

    def all_logits(self, ids):
        return np.array(self.model(mx.array([ids])).logits[0])


def gap(logits):
    """How far the largest logit of each row is above the second."""
    top = np.partition(logits, -2, axis=-1)
    return top[..., -1] - top[..., -2]


def greedy(oracle, prompt_ids, stop_ids):
    """Ids up to the first stop id, which is kept, or `MAX_NEW`, and the smallest gap on the way."""
    oracle.start()
    generated, steps, ids = [], [], prompt_ids
    while len(generated) < MAX_NEW and not (generated and generated[-1] in stop_ids):
        steps.append(oracle.next_logits(ids))
        ids = [int(steps[-1].argmax())]
        generated += ids
    # Plain greedy decoding is what one pass over everything, without a cache, would choose at each place.
    whole = oracle.all_logits(prompt_ids + generated[:-1])[len(prompt_ids) - 1:]
    difference = float(np.abs(whole - np.stack(steps)).max())
    assert difference < CACHED_AGREES, f"with and without a cache logits differ by {difference}"
    assert whole.argmax(-1).tolist() == generated, "with and without a cache answers differ"
    return generated, gap(whole), difference


def chosen_cases(models):
    """The first cases of each task."""
    cases, left = [], {}
    for line in (models / "eval" / "text.jsonl").read_text().splitlines():
        case = json.loads(line)
        left.setdefault(case["task"], CASES_OF_A_TASK.get(case["task"], 1))
        if left[case["task"]]:
            left[case["task"]] -= 1
            cases.append(case)
    return cases


def main(models):
    models, answers = Path(models), []
    cases = chosen_cases(models)
    for name, kind in MODELS.items():
        folder = models / name
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        stop_ids = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
        oracle = {"transformers": Transformers, "mlx-vlm": MlxVlm}[kind](folder)
        worst, smallest, expected = 0.0, np.inf, 0
        for case in cases:
            prompt = tokenizer.apply_chat_template(
                case["messages"], tools=case["tools"], enable_thinking=case["enable_thinking"],
                add_generation_prompt=True, tokenize=False,
            )
            prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
            generated, gaps, difference = greedy(oracle, prompt_ids, stop_ids)
            text = tokenizer.decode(generated, skip_special_tokens=False)
            answers.append(dict(
                model=name, oracle=kind, case=case["id"], prompt_ids=prompt_ids, generated_ids=generated, text=text,
                smallest_gap=round(float(gaps.min()), 6), smallest_gap_step=int(gaps.argmin()),
            ))
            worst, smallest = max(worst, difference), min(smallest, float(gaps.min()))
            expected += text == case["expected_raw"]
        print(f"{name:16} {len(cases)} cases, {expected} as labelled; with and without a cache logits differ by at most "
              f"{worst:.1e}; the smallest gap is {smallest:.1e}", flush=True)
    lines = ",\n".join(json.dumps(answer, ensure_ascii=False, separators=(",", ":")) for answer in answers)
    OUTPUT.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

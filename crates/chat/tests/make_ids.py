"""Writes goldens/ids.json: pieces of texts, and hashes of the ids that Hugging Face's tokenizers give 10,000 texts of them.

usage: make_ids.py TOKENIZER_JSON...

The name of a tokenizer is that of its folder. The texts are put together from a seed in the same way here and in
ids.rs; each hash is of ten texts, each text with its control tokens parsed and as text. Needs tokenizers.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

SEED, COUNT, BLOCK = 61, 10_000, 10
MASK = 0xFFFFFFFFFFFFFFFF

NAMES = "Linus Hannes Torvalds Müller Zoë Łukasz Nguyễn Søren Ngũgĩ O'Brien Jean-Luc MacDonald Dvořák Şahin Åsa Håkon Æthelred 李雷 王芳 Владимир Ωμέγα مريم שרה प्रिया 김민수 さくら".split()
WORDS = "the of and a to in is you that it for on was with as are this be at have from or one had by word but not what all were we when your can said there use an each which she do how their if will up other about out many then them these so some her would make like him into time has look two more write go see number no way could people my than first water been call who oil its now find long down day did get come made may part red-green 3.14 1,000 0xFF 2^10 10% $5 €9 naïve façade Straße İstanbul".split()
CODE = ["fn main() {", "let mut x: Vec<u8> = vec![];", "println!(\"{}\", 1 << 4);", "def f(x):", "\treturn {k: v}", "if (a && b || !c) {", "for(int i=0;i<n;++i)", "a[i] ^= b[i];", "SELECT * FROM t WHERE a <> 'b' -- c", "{\"a\": [1, 2.5, null]}", "$ ls -la | grep '^d' > /dev/null 2>&1", "\\frac{a}{b}", "#include <stdio.h>", "x = y ** 2  # note", "camelCaseName", "snake_case_name", "SCREAMING_CASE", "//", "/* */", "=>", "->", "::", "...", ";;", "```python\n", "\\n", "\\\\", "}\n", "})();\n"]
INDENTS = [" ", "  ", "   ", "    ", "        ", " " * 16, " " * 27, " " * 31, "\t", "\t\t", "\t\t\t", "\n", "\n\n", "\n\n\n", "\n" * 7, "\r\n", "\r", " \n", "\n ", "\n    ", "\n        ", "\n\t", "\n\t\t", " \t ", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\x0b", "\x0c"]
HTML = ["<div>", "</div>", "<p class=\"a\">", "<b>", "</b>", "<br/>", "<code>", "</code>", "<h1>", "</h2>", "<table>", "<td>", "</td>", "<tr>", "<a href='#'>", "<!-- -->", "&nbsp;", "&lt;", "<ul>\n  <li>", "<strong>", "<s>", "</s>", "<i>", "<sup>", "<blockquote>"]
SCRIPTS = ["今日は良い天気ですね。", "我喜欢吃苹果", "你好", "안녕하세요", "값", "깰", "낚", "뷁", "Привет, мир", "สวัสดี", "नमस्ते", "שלום", "مرحبا", "Ελληνικά", "ქართული", "አማርኛ", "தமிழ்", "𠮷野家", "龘", "々〆ヶ", "ｱｲｳ", "Ａ", "①", "½", "ﬁ", "ǆ"]
EMOJI = ["🦀", "🚀🚀", "👩‍👩‍👧", "🇩🇪", "👍🏽", "☺️", "♥", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "e\u0301", "a\u0308\u0323", "\u200b", "\u200d", "\ufeff", "\u00ad", "\ufffd"]
CONTROLS = ["\x00", "\x01", "\x07", "\x08", "\x1b[0m", "\x1c", "\x7f", "\u0080", "\u009f", "\U000f0000", "\U0010ffff", "\ue000", "\ufdd0", "\uffff"]
BLOCKS = ["▁", "▁▁", " ▁", "▁ ", "▁the", "the▁"]
BYTES = ["<0xEA>", "<0x41>", "<0xea>", "<0xEA><0xB9><0xB0>", "<0x0A>", "<0xZZ>", "<unused7>", "<unused", "[INST]", "<mask", "<pa", "d>", "<|", "|>", "<tu"]
TOKENS = ["<bos>", "<eos>", "<|turn>", "<turn|>", "<|image|>", "<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>", "<|turn>user\n", "<turn|>\n"]
ANY = []  # any character
KINDS = [NAMES, NAMES, WORDS, WORDS, WORDS, CODE, CODE, INDENTS, INDENTS, INDENTS, INDENTS, HTML, HTML, SCRIPTS, SCRIPTS, EMOJI, CONTROLS, BLOCKS, BYTES, TOKENS, ANY]


class Numbers:
    """SplitMix64."""

    def __init__(self, seed): self.state = seed

    def below(self, end):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        mixed = ((self.state ^ (self.state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        return (mixed ^ (mixed >> 31)) % end


def text(numbers):
    made = []
    for _ in range(2 + numbers.below(8)):
        kind = KINDS[numbers.below(len(KINDS))]
        if kind:
            piece = kind[numbers.below(len(kind))]
        else:
            code = numbers.below(0x110000 - 0x800)
            piece = chr(code if code < 0xD800 else code + 0x800)
        # Now and then a run of it.
        times = 1 if numbers.below(16) else 2 + numbers.below(30)
        made.append(piece * times)
        if numbers.below(2):
            made.append(" ")
    return "".join(made)


def hashed(state, text):
    """64 bits of FNV-1a."""
    for byte in text.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    return state


def hashes(raw, texts):
    parsed, as_text = Tokenizer.from_str(raw), Tokenizer.from_str(raw)
    as_text.encode_special_tokens = True
    made = []
    for start in range(0, len(texts), BLOCK):
        state = 0xCBF29CE484222325
        for text in texts[start : start + BLOCK]:
            for tokenizer in (parsed, as_text):
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                state = hashed(state, ",".join(map(str, ids)) + ";")
        made.append(f"{state:016x}")
    return "".join(made)


def main():
    numbers = Numbers(SEED)
    texts = [text(numbers) for _ in range(COUNT)]
    made = {Path(file).parent.name: hashes(Path(file).read_text(), texts) for file in sys.argv[1:]}
    golden = {"seed": SEED, "count": COUNT, "block": BLOCK, "kinds": KINDS, "hashes": made}
    path = Path(__file__).parent / "goldens" / "ids.json"
    path.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")).replace("],[", "],\n[").replace('","nano', '",\n"nano') + "\n")
    print(path.name, len(set(texts)), path.stat().st_size)


main()
